//! Changes of a file's pairs and names, which leave its tensors' bytes alone.

use apr_core::{
    CheckpointReader, KeyValue, KeyValues, Metadata, Result, Table, TensorInfo, Value, keys,
};
use serde_json::{Value as Json, json};

use crate::derived::derived;
use crate::header::ALIGNMENT;
use crate::part::is_split_key;
use crate::plan::{WriteOptions, plan};
use crate::reader::is_one_little_endian_file;

/// Key of a model's chat template.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Edits of key-value pairs. Keys are removed first, so a key that is both removed and set gets a
/// new type.
///
/// ```
/// use apr_gguf::{KeyValue, KeyValues, PairEdits, Value};
///
/// let pairs: KeyValues = [KeyValue::new("llama.context_length", 2048_u64)].into_iter().collect();
/// let edits = PairEdits {
///     set: vec![("llama.context_length".into(), "4096".into())],
///     ..PairEdits::default()
/// };
/// assert_eq!(edits.apply(&pairs)?.get("llama.context_length"), Some(Value::U64(4096)));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PairEdits {
    /// Keys that are removed.
    pub unset: Vec<String>,
    /// Keys and values to set. An existing key keeps its type, so text stays text.
    ///
    /// A new value is JSON, or text otherwise. Whole numbers become u32 if they fit, other numbers
    /// f32.
    pub set: Vec<(String, String)>,
    /// The chat template.
    pub chat_template: Option<String>,
}

impl PairEdits {
    /// Returns the pairs after the changes, in their old order, with new ones at the end.
    ///
    /// # Errors
    /// A description of the problem: an absent key, one that describes the file itself, or a value
    /// that is not of its key's type.
    pub fn apply(&self, pairs: &KeyValues) -> std::result::Result<KeyValues, String> {
        let mut edited = pairs.clone();
        for key in &self.unset {
            check_key(key)?;
            if pairs.find(key).is_none() {
                return Err(format!("missing key '{key}' in the metadata"));
            }
            edited.retain(|kept| kept != key);
        }

        let template = self.chat_template.iter().map(|text| (CHAT_TEMPLATE, text.as_str()));
        for (key, text) in
            self.set.iter().map(|(key, text)| (key.as_str(), text.as_str())).chain(template)
        {
            check_key(key)?;
            let pair = pair(key, edited.get(key).as_ref(), text)?;
            edited.set(&pair).map_err(|error| error.message().to_owned())?;
        }
        Ok(edited)
    }
}

fn check_key(key: &str) -> std::result::Result<(), String> {
    if key == ALIGNMENT || is_split_key(key) {
        return Err(format!("'{key}' describes the file itself and is not edited"));
    }
    Ok(())
}

/// Returns a key with the value that a text represents.
fn pair(key: &str, old: Option<&Value>, text: &str) -> std::result::Result<KeyValue, String> {
    let json = |text: &str| serde_json::from_str::<Json>(text).ok();
    let typed = |type_name: &str, items: Option<&str>, value: Json| {
        let mut json = json!({ "key": key, "type": type_name, "value": value });
        if let Some(items) = items {
            json["items"] = items.into();
        }
        KeyValue::from_json(&json).ok()
    };

    let pair = match old {
        Some(Value::String(_)) => {
            let quoted = json(text).and_then(|json| json.as_str().map(str::to_owned));
            return Ok(KeyValue::new(key, quoted.unwrap_or_else(|| text.to_owned())));
        }
        Some(old) => {
            let items = if let Value::Array(items) = old { Some(items.type_name()) } else { None };
            json(text).and_then(|value| typed(old.type_name(), items, value))
        }
        None => {
            let value = json(text).unwrap_or_else(|| text.into());
            match &value {
                Json::Array(items) => typed("array", common_type(items), value.clone()),
                single => typed(type_of(single).unwrap_or_default(), None, value.clone()),
            }
        }
    };

    pair.ok_or_else(|| match old {
        Some(old) => format!(
            "'{key}' is of type {}, which '{text}' is not; to change the type, remove the key and \
             set it in one edit",
            old.type_name()
        ),
        None => format!("GGUF does not support the value '{text}'"),
    })
}

/// Returns the type of a new value.
fn type_of(value: &Json) -> Option<&'static str> {
    Some(match value {
        Json::String(_) => "string",
        Json::Bool(_) => "bool",
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) if u32::try_from(number).is_ok() => "u32",
            (Some(_), _) => "u64",
            (None, Some(number)) if i32::try_from(number).is_ok() => "i32",
            (None, Some(_)) => "i64",
            (None, None) => "f32",
        },
        _ => return None,
    })
}

/// Returns the type of a new array's items. Whole numbers are signed, as in the arrays of
/// llama.cpp.
fn common_type(items: &[Json]) -> Option<&'static str> {
    let all = |is: fn(&Json) -> bool| !items.is_empty() && items.iter().all(is);
    if all(Json::is_string) {
        Some("string")
    } else if all(Json::is_boolean) {
        Some("bool")
    } else if all(|item| item.as_i64().is_some_and(|number| i32::try_from(number).is_ok())) {
        Some("i32")
    } else if all(Json::is_i64) {
        Some("i64")
    } else {
        all(Json::is_number).then_some("f32")
    }
}

/// Returns a file's metadata with other pairs.
#[must_use]
pub fn with_pairs(metadata: &Metadata, pairs: KeyValues) -> Metadata {
    const TIED: &str = "tie_word_embeddings";

    let mut changed = derived(&pairs);

    // The tensors say this, not the pairs.
    if let Some(tied) =
        metadata.object(keys::ARCHITECTURE).and_then(|architecture| architecture.get(TIED))
    {
        let mut architecture = changed.object(keys::ARCHITECTURE).cloned().unwrap_or_default();
        architecture.insert(TIED.into(), tied.clone());
        changed.set(keys::ARCHITECTURE, architecture);
    }
    if let Some(header) = metadata.object(keys::GGUF) {
        changed.set(keys::GGUF, header.clone());
    }

    changed.set_key_values(pairs);
    changed
}

/// Returns the bytes before a file's data with these names and metadata, if no tensor has to move.
/// Writing them at the start of the file changes it in place. Returns `None` if tensors would
/// have to move.
///
/// `tensors` are those of the table except for their names.
///
/// # Errors
/// The errors of [`plan`](crate::plan()).
pub fn front_in_place(
    table: &Table,
    tensors: &[TensorInfo],
    metadata: &Metadata,
) -> Result<Option<Vec<u8>>> {
    let writer = plan(tensors, metadata, &WriteOptions::default())?;

    // The front is written little-endian, and would turn the data of another file into noise.
    let Some((front, layout)) = writer.only_front().filter(|_| is_one_little_endian_file(table))
    else {
        return Ok(None);
    };
    let stays = layout.tensors.len() == table.tensors().len()
        && layout.tensors.iter().all(|planned| {
            let stored = table.stored(planned.source).range;
            (stored.offset, stored.len) == (planned.offset, planned.len)
        });

    // Without tensors, the header is the file.
    let fits = !layout.tensors.is_empty() || front.len() as u64 == table.files()[0].len;
    Ok((stays && fits).then(|| front.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(
        pairs: &[KeyValue],
        set: &[(&str, &str)],
        unset: &[&str],
    ) -> std::result::Result<Vec<KeyValue>, String> {
        let own = |text: &&str| (*text).to_owned();
        let set = set.iter().map(|(key, value)| (own(key), own(value))).collect();
        let edits = PairEdits { set, unset: unset.iter().map(own).collect(), chat_template: None };
        edits.apply(&pairs.iter().cloned().collect()).map(|pairs| pairs.to_vec())
    }

    #[test]
    fn a_key_keeps_its_type_and_its_place() {
        let pairs = [
            KeyValue::new("a", "text"),
            KeyValue::new("b", 7_u16),
            KeyValue::new("c", vec![1.5_f32]),
            KeyValue::new("d", true),
        ];
        let set = [("a", "12"), ("b", "8"), ("c", "[2, 3]"), ("d", "false"), ("e", "-1")];
        let expected = [
            KeyValue::new("a", "12"),
            KeyValue::new("b", 8_u16),
            KeyValue::new("c", vec![2.0_f32, 3.0]),
            KeyValue::new("d", false),
            KeyValue::new("e", -1_i32),
        ];
        assert_eq!(edited(&pairs, &set, &[]), Ok(expected.to_vec()));
        for (key, value) in
            [("b", "70000"), ("b", "x"), ("c", "[\"x\"]"), ("d", "1"), ("e", "null"), ("e", "{}")]
        {
            assert!(edited(&pairs, &[(key, value)], &[]).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn new_values_get_the_types_that_llama_cpp_expects() {
        let set = [
            ("a", "5000000000"),
            ("b", "0.5"),
            ("c", "[1, -2]"),
            ("d", "[\"x\"]"),
            ("e", "plain words"),
            ("f", "\"7\""),
        ];
        let expected = [
            KeyValue::new("a", 5_000_000_000_u64),
            KeyValue::new("b", Value::F32(0.5)),
            KeyValue::new("c", vec![1_i32, -2]),
            KeyValue::new("d", vec!["x".to_owned()]),
            KeyValue::new("e", "plain words"),
            KeyValue::new("f", "7"),
        ];
        assert_eq!(edited(&[], &set, &[]), Ok(expected.to_vec()));
    }

    #[test]
    fn a_key_that_is_removed_and_set_gets_a_new_type() {
        let pairs = [KeyValue::new("a", "text"), KeyValue::new("b", 1_u32)];
        assert_eq!(
            edited(&pairs, &[("a", "1")], &["a"]),
            Ok([KeyValue::new("b", 1_u32), KeyValue::new("a", 1_u32)].to_vec())
        );
        assert!(edited(&pairs, &[], &["c"]).is_err());
    }

    #[test]
    fn keys_that_describe_the_file_are_not_edited() {
        for key in ["general.alignment", "split.count", "split.no", "split.tensors.count"] {
            assert!(edited(&[], &[(key, "1")], &[]).expect_err(key).contains("the file itself"));
            assert!(edited(&[KeyValue::new(key, 1_u32)], &[], &[key]).is_err());
        }
    }
}
