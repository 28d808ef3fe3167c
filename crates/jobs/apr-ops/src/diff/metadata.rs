//! What differs between the metadata of two checkpoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use apr_core::{counted, grouped};
use apr_gguf::{KeyValues, Pair};
use apr_registry::{CheckpointReader, Metadata, Result, keys};
use apr_source::companions::{Learnt, learn_from};
use apr_source::naming;
use serde_json::{Map, Value};

use super::generation::has_configuration;
use super::report::MetadataChange;

/// Entries of the configuration that change answers and that no comparison of tensors, graphs and
/// tokenizers has: how long a text may be, what attention sees of it, and where an answer begins
/// and ends.
const OF_ANSWERS: [&str; 8] = [
    "architecture.attention_window_size",
    "architecture.bos_token_id",
    "architecture.decoder_start_token_id",
    "architecture.eos_token_id",
    "architecture.layer_types",
    "architecture.max_position_embeddings",
    "architecture.n_positions",
    "architecture.sliding_window",
];

/// Items of an array that are still shown one by one.
const LONG: usize = 16;

/// Returns the keys whose values differ.
///
/// The origin of a file and keys that belong to its format only are not differences of the model.
pub(super) fn metadata_changes(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
) -> Result<Vec<MetadataChange>> {
    const OF_THE_FILE: [&str; 6] = [
        keys::APR_VERSION,
        keys::SOURCE,
        keys::LOSS,
        keys::SAFETENSORS,
        keys::FILES,
        naming::NAMES,
    ];

    let learnt = [learn_from(left)?, learn_from(right)?];
    let sides = [Sayings::of(left, &learnt[0]), Sayings::of(right, &learnt[1])];
    // Of a GGUF file or an old container, a configuration may lack what it does not state.
    let are_configured = has_configuration(left) && has_configuration(right);
    let (left, right) = (left.metadata(), right.metadata());
    let keys: BTreeSet<&str> = left.iter().chain(right.iter()).map(|(key, _)| key).collect();
    let is_same = |key: &str| {
        let [left_value, right_value] = sides.each_ref().map(|side| side.value(key));
        left_value == right_value
            && (key != keys::GGUF || left.key_values().ok() == right.key_values().ok())
    };
    let differs =
        |key: &&str| !OF_THE_FILE.contains(key) && !is_same(key) && !is_untold(&sides, key);
    let mut changes = Vec::new();
    for key in keys.into_iter().filter(differs) {
        let pairs = if key == keys::GGUF { gguf_changes(left, right) } else { None };
        let [left, right] = sides.each_ref().map(|side| side.value(key).cloned());
        match pairs {
            Some(pairs) => changes.extend(pairs),
            None => add_changes(key.to_owned(), (left, right), &mut changes),
        }
    }
    for change in &mut changes {
        let said = [&change.left, &change.right].map(|value| is_said(value.as_ref()));
        let is_compared = said == [true, true] || are_configured && said != [false, false];
        change.changes_answers = is_compared && OF_ANSWERS.contains(&change.key.as_str());
    }

    Ok(changes)
}

/// Adds a change for each key that differs within two objects, and one for other values.
fn add_changes(
    key: String,
    (left, right): (Option<Value>, Option<Value>),
    changes: &mut Vec<MetadataChange>,
) {
    if let (Some(Value::Object(left)), Some(Value::Object(right))) = (&left, &right) {
        let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
        for inner in keys.into_iter().filter(|inner| left.get(*inner) != right.get(*inner)) {
            let values = (left.get(inner).cloned(), right.get(inner).cloned());
            add_changes(format!("{key}.{inner}"), values, changes);
        }
        return;
    }
    changes.push(MetadataChange { key, left, right, changes_answers: false });
}

/// Returns `true` if a configuration has a value: null is the same as no entry.
fn is_said(value: Option<&Value>) -> bool {
    value.is_some_and(|value| !value.is_null())
}

/// Metadata and companions of one side.
///
/// Companions are compared with what the other side's metadata say about the same key.
struct Sayings<'a> {
    metadata: &'a Metadata,
    learnt: &'a Learnt,
    /// Keys that an import derives from the companions.
    ///
    /// If the other side lacks them, that is not a difference.
    derived: BTreeSet<&'a str>,
    /// `true` if the side has neither metadata of its own nor companions.
    is_silent: bool,
}

impl<'a> Sayings<'a> {
    fn of(reader: &'a dyn CheckpointReader, learnt: &'a Learnt) -> Self {
        let is_whole = reader.format().target.is_some_and(|target| target.self_contained);
        Self {
            metadata: reader.metadata(),
            learnt,
            derived: naming::derived_keys(reader, learnt).collect(),
            is_silent: !is_whole && reader.companions().is_empty(),
        }
    }

    /// The value of a key: of the metadata, or else what an import would learn from the companions.
    fn value(&self, key: &str) -> Option<&Value> {
        let learnt =
            || self.learnt.metadata.iter().find(|(known, _)| known == key).map(|(_, value)| value);
        self.metadata.get(key).or_else(learnt)
    }
}

/// Returns `true` if one side lacks a key that it is not expected to have.
fn is_untold(sides: &[Sayings<'_>; 2], key: &str) -> bool {
    let [left, right] = sides;
    match (left.value(key), right.value(key)) {
        (Some(_), None) => right.is_silent || left.derived.contains(key),
        (None, Some(_)) => left.is_silent || right.derived.contains(key),
        _ => false,
    }
}

/// Returns the differences between the key-value pairs of two GGUF files, key by key.
///
/// Returns `None` if these are not GGUF files.
fn gguf_changes(left: &Metadata, right: &Metadata) -> Option<Vec<MetadataChange>> {
    let (left, right) = match (Pairs::of(left)?, Pairs::of(right)?) {
        (Some(left), Some(right)) => (left, right),
        (left, right) => {
            let told = |side: Option<Pairs<'_>>| {
                Some(counted(side?.pairs.len() as u64, "key-value pair").into())
            };
            return Some(vec![MetadataChange {
                key: keys::GGUF.to_owned(),
                left: told(left),
                right: told(right),
                changes_answers: false,
            }]);
        }
    };

    let change = |key: &str, (left, right)| MetadataChange {
        key: format!("{}.{key}", keys::GGUF),
        left,
        right,
        changes_answers: false,
    };
    let fields: BTreeSet<&str> =
        left.fields.keys().chain(right.fields.keys()).map(String::as_str).collect();
    let fields = fields.into_iter().filter(|field| *field != "kv");
    let fields = fields.map(|field| (field, (left.fields.get(field), right.fields.get(field))));
    let fields = fields.filter(|(_, (left, right))| left != right);
    let mut changes: Vec<_> = fields
        .map(|(field, (left, right))| change(field, (left.cloned(), right.cloned())))
        .collect();
    let is_same = |key: &str| {
        let value = |side: Option<Pair<'_>>| side.map(|pair| pair.encoded_value().to_vec());
        value(left.pairs.find(key)) == value(right.pairs.find(key))
    };
    let all = left.pairs.iter().chain(right.pairs.iter()).map(|pair| pair.key);
    let differing: BTreeSet<&str> = all.filter(|key| !is_same(key)).collect();
    changes.extend(differing.into_iter().map(|key| {
        let json = |side: &KeyValues| side.find(key).map(|pair| pair.unpack().to_json());
        change(key, shown(json(&left.pairs).as_ref(), json(&right.pairs).as_ref()))
    }));
    Some(changes)
}

/// Key-value pairs of the metadata, and the fields next to them: version, byte order, alignment.
struct Pairs<'a> {
    fields: &'a Map<String, Value>,
    pairs: Arc<KeyValues>,
}

impl<'a> Pairs<'a> {
    /// Returns `None` if the entry is not a valid set of pairs.
    fn of(metadata: &'a Metadata) -> Option<Option<Self>> {
        let Some(entry) = metadata.get(keys::GGUF) else { return Some(None) };
        Some(Some(Self { fields: entry.as_object()?, pairs: metadata.key_values().ok()?? }))
    }
}

/// Returns the values of two pairs as the report shows them.
///
/// Types are included if only the types differ; long arrays are replaced by their counts.
fn shown(left: Option<&Value>, right: Option<&Value>) -> (Option<Value>, Option<Value>) {
    let field = |pair: Option<&Value>, name: &str| pair.and_then(|pair| pair.get(name)).cloned();
    let values = [field(left, "value"), field(right, "value")];
    if values[0] == values[1] {
        let typed = |pair: Option<&Value>| {
            let pair = pair?.as_object()?.iter().filter(|(name, _)| *name != "key");
            Some(Value::Object(pair.map(|(name, value)| (name.clone(), value.clone())).collect()))
        };
        return (typed(left), typed(right));
    }

    let different = match &values {
        [Some(Value::Array(left)), Some(Value::Array(right))] if left.len() == right.len() => {
            left.iter().zip(right).filter(|(left, right)| left != right).count()
        }
        _ => 0,
    };

    let [left, right] = values.map(|value| match value {
        Some(Value::Array(items)) if items.len() > LONG => {
            Some(counted(items.len() as u64, "item").into())
        }
        value => value,
    });

    match right {
        Some(Value::String(count)) if different > 0 => {
            (left, Some(format!("{count}, {} of them different", grouped(different as u64)).into()))
        }
        right => (left, right),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changes(left: &Value, right: &Value) -> Vec<(String, Value, Value)> {
        let changes = gguf_changes(&of_pairs(left), &of_pairs(right)).unwrap();
        changes.into_iter().map(|it| (it.key, it.left.into(), it.right.into())).collect()
    }

    fn of_pairs(entry: &Value) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set(keys::GGUF, entry.clone());
        metadata
    }

    fn text(key: &str, value: &str) -> Value {
        json!({ "key": key, "type": "string", "value": value })
    }

    #[test]
    fn pairs_are_compared_by_key_whatever_their_order() {
        let left = json!({ "version": 3, "kv": [text("a", "1"), text("b", "2"), text("c", "3")] });
        let right = json!({ "version": 2, "kv": [text("c", "4"), text("a", "1"), text("d", "5")] });
        let expected = [
            ("gguf.version", json!(3), json!(2)),
            ("gguf.b", json!("2"), json!(null)),
            ("gguf.c", json!("3"), json!("4")),
            ("gguf.d", json!(null), json!("5")),
        ];
        assert_eq!(
            changes(&left, &right),
            expected.map(|(key, left, right)| (key.to_owned(), left, right))
        );
    }

    #[test]
    fn another_type_is_a_change_that_shows_the_types() {
        let of = |kind: &str| json!({ "kv": [{ "key": "n", "type": kind, "value": 1 }] });
        let typed = |kind: &str| json!({ "type": kind, "value": 1 });
        assert_eq!(
            changes(&of("u32"), &of("u64")),
            [("gguf.n".to_owned(), typed("u32"), typed("u64"))]
        );
    }

    #[test]
    fn long_arrays_are_counted() {
        let of = |values: &[u32]| {
            json!({
                "kv": [{ "key": "n", "type": "array", "items": "u32", "value": values }],
            })
        };
        let other: Vec<u32> = (0..2000).map(|n| if n < 3 { 9 } else { 0 }).collect();
        let told = changes(&of(&vec![0; 2000]), &of(&other));
        assert_eq!(
            told,
            [(
                "gguf.n".to_owned(),
                json!("2,000 items"),
                json!("2,000 items, 3 of them different")
            )]
        );
        let told = changes(&of(&[1, 2]), &of(&[1; 40]));
        assert_eq!(told, [("gguf.n".to_owned(), json!([1, 2]), json!("40 items"))]);
    }

    #[test]
    fn a_model_without_pairs_lacks_them_as_a_whole() {
        let pairs = json!({ "kv": [text("a", "1")] });
        let told = gguf_changes(&Metadata::new(), &of_pairs(&pairs)).unwrap();
        assert_eq!(
            (&told[0].key, &told[0].left, &told[0].right),
            (&"gguf".to_owned(), &None, &Some(json!("1 key-value pair")))
        );
        assert_eq!(gguf_changes(&of_pairs(&json!(3)), &of_pairs(&pairs)), None);
    }
}
