//! What a chat is made of, and the template that writes it down.

use std::fmt;

use apr_core::{Error, Result};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::Value as Json;

/// Bytes of a chat in JSON.
const MAX_JSON: usize = 16 << 20;
/// Names of a message's reasoning, the one that most templates read first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A JSON value that keeps the order of keys, as templates write objects down.
///
/// ```
/// use apr_inputs::chat::Data;
///
/// let data = Data::from_json(r#"{"b": 1, "a": [2.0, null]}"#)?;
/// assert_eq!(data.get("b"), Some(&Data::Integer(1)));
/// assert_eq!(serde_json::to_string(&data).unwrap(), r#"{"b":1,"a":[2.0,null]}"#);
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// The value `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number that 64 bits hold, signed or not.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// Text value.
    Text(String),
    /// List of values.
    List(Vec<Data>),
    /// An object, whose keys are different.
    Object(Vec<(String, Data)>),
}

impl Data {
    /// Reads a JSON text.
    ///
    /// # Errors
    /// E001 for what is not JSON or nested more than 128 deep, E008 for more than 16 MiB.
    pub fn from_json(text: &str) -> Result<Self> {
        if text.len() > MAX_JSON {
            return Err(Error::memory(format!("the JSON has {} bytes", text.len())));
        }
        serde_json::from_str(text).map_err(|error| {
            Error::format(format!("not valid JSON: {}", apr_core::foreign(&error)))
        })
    }

    /// The value of a key of an object.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => {
                fields.iter().find(|(name, _)| name == key).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items of a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Integer(number) => match i64::try_from(*number) {
                Ok(number) => serializer.serialize_i64(number),
                Err(_) => serializer.serialize_i128(*number),
            },
            Self::Float(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(item))?;
                list.end()
            }
            Self::Object(fields) => {
                // Without a length, the order stays (`apr_core::json::Sorted`).
                let mut map = serializer.serialize_map(None)?;
                fields.iter().try_for_each(|(key, value)| map.serialize_entry(key, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DataVisitor)
    }
}

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Data, E> {
        Ok(Data::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Data, E> {
        Ok(Data::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Data, E> {
        Ok(Data::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Data, E> {
        Ok(Data::Integer(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Data, E> {
        Ok(Data::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Data, E> {
        Ok(Data::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Data, E> {
        Ok(Data::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Data, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Data::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Data, A::Error> {
        let mut fields: Vec<(String, Data)> = Vec::new();
        let mut places = std::collections::BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, Data>()? {
            // Of a key that is there twice, the first place and the last value count, as in Python.
            match places.get(&key) {
                Some(&at) => {
                    let field: &mut (String, Data) = &mut fields[at];
                    field.1 = value;
                }
                None => {
                    places.insert(key.clone(), fields.len());
                    fields.push((key, value));
                }
            }
        }
        Ok(Data::Object(fields))
    }
}

/// One message of a chat: an object with a `role`, and mostly a `content`.
#[derive(Debug, Clone, PartialEq)]
pub struct Message(Data);

impl Message {
    /// A message that is a text.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Self {
        let field = |key: &str, text: &str| (key.to_owned(), Data::Text(text.to_owned()));
        Self(Data::Object(vec![field("role", role), field("content", content)]))
    }

    /// Creates a message of `images` images and the text after them, as a list of parts.
    #[must_use]
    pub fn with_images(role: &str, images: usize, text: &str) -> Self {
        let field = |key: &str, text: &str| (key.to_owned(), Data::Text(text.to_owned()));
        let image = Data::Object(vec![field("type", "image")]);
        let mut parts = vec![image; images];
        parts.push(Data::Object(vec![field("type", "text"), field("text", text)]));
        let content = ("content".to_owned(), Data::List(parts));
        Self(Data::Object(vec![field("role", role), content]))
    }

    /// Returns the role: `system`, `user`, `assistant`, `tool`.
    #[must_use]
    pub fn role(&self) -> &str {
        self.0.get("role").and_then(Data::as_str).unwrap_or_default()
    }

    /// Returns the content, if it is a text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.0.get("content").and_then(Data::as_str)
    }

    /// The types of the parts of its content that are not texts, such as `image`.
    pub fn media(&self) -> impl Iterator<Item = &str> {
        let parts = self.0.get("content").and_then(Data::as_list).unwrap_or_default();
        parts.iter().filter_map(|part| part.get("type")?.as_str()).filter(|kind| *kind != "text")
    }

    /// Returns the message with the texts of its parts joined by a space, as transformers serves it
    /// to templates that read texts. Returns `None` unless its content is a list of texts.
    #[must_use]
    pub fn joined(&self) -> Option<Self> {
        let Data::Object(fields) = &self.0 else { return None };
        let text = |part: &Data| match part.get("type")?.as_str()? {
            "text" => Some(part.get("text")?.as_str()?.to_owned()),
            _ => None,
        };
        let texts: Option<Vec<String>> =
            self.0.get("content")?.as_list()?.iter().map(text).collect();
        let content = Data::Text(texts?.join(" "));
        let mut fields = fields.clone();
        fields.iter_mut().find(|(name, _)| name == "content")?.1 = content;
        Some(Self(Data::Object(fields)))
    }

    /// A message as a template gets it, which is how transformers hands it on: without keys that
    /// are `null`, and with its reasoning under the names that templates read.
    #[must_use]
    pub fn for_template(&self) -> Data {
        let Data::Object(fields) = &self.0 else { return self.0.clone() };
        let is_set = |(_, value): &&(String, Data)| *value != Data::Null;
        let mut fields: Vec<_> = fields.iter().filter(is_set).cloned().collect();
        let reasoning =
            REASONING.iter().find_map(|name| self.0.get(name).filter(|it| **it != Data::Null));
        if let Some(reasoning) = reasoning.cloned() {
            let own = fields.iter().position(|(name, _)| name == REASONING[1]);
            let thinking = own.map_or_else(|| reasoning.clone(), |at| fields.remove(at).1);
            fields.insert(0, (REASONING[1].to_owned(), thinking));
            match fields.iter_mut().find(|(name, _)| name == REASONING[0]) {
                Some((_, value)) => *value = reasoning,
                None => fields.push((REASONING[0].to_owned(), reasoning)),
            }
        }
        Data::Object(fields)
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl TryFrom<Data> for Message {
    type Error = Error;

    /// A message from JSON.
    ///
    /// # Errors
    /// E001 for what is no object with a `role`.
    fn try_from(data: Data) -> Result<Self> {
        match data.get("role").and_then(Data::as_str) {
            Some(_) => Ok(Self(data)),
            None => Err(Error::format("a message must be an object with a role")),
        }
    }
}

/// A chat as files have it: a list of messages, or an object with `messages`, and with `tools` and
/// `documents` that the template gets.
///
/// ```
/// use apr_inputs::chat::ChatFile;
///
/// let chat = ChatFile::from_json(r#"[{"role": "user", "content": "12+34="}]"#)?;
/// assert_eq!(chat.messages[0].text(), Some("12+34="));
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatFile {
    /// The messages, the oldest first; at least one.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    pub tools: Option<Data>,
    /// Documents that the model may quote.
    pub documents: Option<Data>,
    /// Further keys of the object, which are ignored.
    pub ignored: Vec<String>,
}

impl ChatFile {
    /// Reads a chat file.
    ///
    /// # Errors
    /// E001 for a file that is not a chat, E008 for more than 16 MiB.
    pub fn from_json(text: &str) -> Result<Self> {
        let mut chat = Self::default();
        let messages = match Data::from_json(text)? {
            Data::Object(fields) => {
                let mut messages = None;
                for (key, value) in fields {
                    match key.as_str() {
                        "messages" => messages = Some(value),
                        "tools" => chat.tools = list_of_objects(value, "tools")?,
                        "documents" => chat.documents = list_of_objects(value, "documents")?,
                        _ => chat.ignored.push(key),
                    }
                }
                messages
            }
            list => Some(list),
        };
        let Some(Data::List(messages)) = messages else {
            let message = "a chat must be a list of messages, or an object with `messages`";
            return Err(Error::format(message));
        };
        if messages.is_empty() {
            return Err(Error::format("the chat does not contain messages"));
        }
        let numbered = |(at, data)| {
            Message::try_from(data).map_err(|error: Error| {
                Error::format(format!("message {}: {}", at + 1, error.message()))
            })
        };
        chat.messages = messages.into_iter().enumerate().map(numbered).collect::<Result<_>>()?;
        Ok(chat)
    }

    /// Reads the tools of a file of their own: a list of objects.
    ///
    /// # Errors
    /// E001 for what is no list of objects, E008 for more than 16 MiB.
    pub fn tools_from_json(text: &str) -> Result<Data> {
        let tools = list_of_objects(Data::from_json(text)?, "tools")?;
        tools.ok_or_else(|| Error::format("the tools are null"))
    }
}

fn list_of_objects(data: Data, what: &str) -> Result<Option<Data>> {
    let is_object = |item: &Data| matches!(item, Data::Object(_));
    match &data {
        Data::Null => Ok(None),
        Data::List(items) if items.iter().all(is_object) => Ok(Some(data)),
        _ => Err(Error::format(format!("the {what} must be a list of objects"))),
    }
}

/// Inputs of a template besides the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateOptions {
    /// Tools that the model may call: a list of objects.
    pub tools: Option<Data>,
    /// Documents that the model may quote: a list of objects.
    pub documents: Option<Data>,
    /// Variables by name, such as `enable_thinking`.
    pub arguments: Vec<(String, Data)>,
}

/// A chat, as a template gets it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chat<'c> {
    /// The messages so far.
    pub messages: &'c [Message],
    /// Inputs of the template besides the messages.
    pub options: &'c TemplateOptions,
    /// The special tokens by their roles: `bos_token`, `eos_token`, ...
    pub tokens: &'c [(String, String)],
    /// The time, in seconds since 1970, for templates that write the date.
    pub now: i64,
}

/// A chat as its template wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Text, up to the beginning of the model's answer.
    pub text: String,
    /// Names of options that the template does not use: `tools`, `documents`, arguments.
    pub unread: Vec<String>,
}

/// A model's template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(pub String);

impl Template {
    /// The template in the metadata key `tokenizer.chat_template`: a text, or one of a list of
    /// `{"name", "template"}`, which is `tool_use` for a chat with tools, or else the default.
    #[must_use]
    pub fn from_json(json: &Json, has_tools: bool) -> Option<Self> {
        let named = |list: &[Json]| {
            let template = |name: &str| {
                list.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some(name))
            };
            let of_tools = template("tool_use").filter(|_| has_tools);
            let default = of_tools.or_else(|| template("default")).or(list.first())?;
            default.get("template")?.as_str().map(str::to_owned)
        };
        match json {
            Json::String(text) => Some(Self(text.clone())),
            Json::Array(list) => named(list).map(Self),
            _ => None,
        }
    }
}
