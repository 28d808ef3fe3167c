//! What a model says of itself.
//!
//! ```text
//! description   1: input  10: output  13: state  20: function  21: default function
//!               11: predicted feature  12: predicted probabilities  100: metadata
//! feature       1: name  2: text  3: type
//! function      1: name  2: input  3: output  6: state
//! metadata      1: text  2: version  3: author  4: licence  100: entry (1: key  2: value)
//! ```

use apr_core::Result;
use apr_core::protobuf::{Field, Message, Walker};
use serde_json::{Map, Value, json};

/// A description, for the metadata.
#[derive(Default)]
pub(crate) struct Description {
    pub(crate) fields: Map<String, Value>,
    /// Name of the function that is called by default; empty if the file has none.
    pub(crate) default_function: String,
}

/// Kinds of features, by their numbers.
const KINDS: [(u32, &str); 8] = [
    (1, "int64"),
    (2, "double"),
    (3, "string"),
    (4, "image"),
    (5, "array"),
    (6, "dictionary"),
    (7, "sequence"),
    (8, "state"),
];

/// Elements of arrays, by their numbers.
const ELEMENTS: [(u64, &str); 5] = [
    (65_552, "float16"),
    (65_568, "float32"),
    (65_600, "float64"),
    (131_080, "int8"),
    (131_104, "int32"),
];

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// E001 and E002 for a damaged one, E007 when reading fails, E008 over the limit.
    pub(crate) fn read(walker: &mut Walker<'_>, mut message: Message) -> Result<Self> {
        let mut description = Self::default();
        let mut functions = Vec::new();
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => description.push("inputs", feature(walker, &field)?),
                10 => description.push("outputs", feature(walker, &field)?),
                13 => description.push("states", feature(walker, &field)?),
                11 => description.text("predicted_feature", field.text(walker)?),
                12 => description.text("predicted_probabilities", field.text(walker)?),
                20 => functions.push(function(walker, field.message()?)?),
                21 => description.default_function = field.text(walker)?,
                100 => description.metadata(walker, field.message()?)?,
                _ => {}
            }
        }
        if !functions.is_empty() {
            description.fields.insert("functions".into(), functions.into());
        }
        let default = description.default_function.clone();
        description.text("default_function", default);
        Ok(description)
    }

    fn push(&mut self, key: &str, value: Value) {
        push(&mut self.fields, key, value);
    }

    fn text(&mut self, key: &str, text: String) {
        if !text.is_empty() {
            self.fields.insert(key.to_owned(), text.into());
        }
    }

    fn metadata(&mut self, walker: &mut Walker<'_>, mut message: Message) -> Result<()> {
        let mut own = Map::new();
        while let Some(field) = message.next(walker)? {
            let key = match field.number {
                1 => "description",
                2 => "version",
                3 => "author",
                4 => "license",
                100 => {
                    let (mut key, mut value) = (String::new(), String::new());
                    let mut entry = field.message()?;
                    while let Some(field) = entry.next(walker)? {
                        match field.number {
                            1 => key = field.text(walker)?,
                            2 => value = field.text(walker)?,
                            _ => {}
                        }
                    }
                    own.insert(key, value.into());
                    continue;
                }
                _ => continue,
            };
            self.text(key, field.text(walker)?);
        }
        if !own.is_empty() {
            self.fields.insert("user_defined".into(), own.into());
        }
        Ok(())
    }
}

fn push(fields: &mut Map<String, Value>, key: &str, value: Value) {
    match fields.entry(key).or_insert_with(|| json!([])) {
        Value::Array(list) => list.push(value),
        other => *other = json!([value]),
    }
}

fn function(walker: &mut Walker<'_>, mut message: Message) -> Result<Value> {
    let mut fields = Map::new();
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => {
                fields.insert("name".into(), field.text(walker)?.into());
            }
            2 => push(&mut fields, "inputs", feature(walker, &field)?),
            3 => push(&mut fields, "outputs", feature(walker, &field)?),
            6 => push(&mut fields, "states", feature(walker, &field)?),
            _ => {}
        }
    }
    Ok(fields.into())
}

/// Reads an input or output: its name, description, kind, and the type of an array or image.
fn feature(walker: &mut Walker<'_>, field: &Field) -> Result<Value> {
    let mut fields = Map::new();
    let mut message = field.message()?;
    walker.keep(field.span.len)?;
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => {
                fields.insert("name".into(), field.text(walker)?.into());
            }
            2 => {
                let text = field.text(walker)?;
                if !text.is_empty() {
                    fields.insert("description".into(), text.into());
                }
            }
            3 => {
                let mut kind = field.message()?;
                while let Some(field) = kind.next(walker)? {
                    let known = KINDS.iter().find(|(number, _)| *number == field.number);
                    if let Some((_, name)) = known {
                        fields.insert("type".into(), (*name).into());
                        of_kind(walker, &field, &mut fields)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(fields.into())
}

/// Shape and elements of an array, sizes of an image.
fn of_kind(walker: &mut Walker<'_>, field: &Field, fields: &mut Map<String, Value>) -> Result<()> {
    let mut message = field.message()?;
    let mut shape = Vec::new();
    while let Some(inner) = message.next(walker)? {
        match (field.number, inner.number) {
            (5, 1) => inner.integers(walker, &mut shape)?,
            (5, 2) => {
                let number = inner.integer()?;
                let known = ELEMENTS.iter().find(|(of, _)| *of == number);
                let name = known.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned());
                fields.insert("dtype".into(), name.into());
            }
            (4, 1) => {
                fields.insert("width".into(), inner.integer()?.into());
            }
            (4, 2) => {
                fields.insert("height".into(), inner.integer()?.into());
            }
            (8, 1) => {
                let mut array = inner.message()?;
                while let Some(inner) = array.next(walker)? {
                    if inner.number == 1 {
                        inner.integers(walker, &mut shape)?;
                    }
                }
            }
            _ => {}
        }
    }
    if !shape.is_empty() {
        fields.insert("shape".into(), shape.into());
    }
    Ok(())
}
