//! Whether the key-value pairs of GGUF describe a network that can be built.

use apr_core::{Convention, Escaped, Format, counted, grouped};
use apr_gguf::{Array, KeyValues, Value, key_values};
use apr_registry::CheckpointReader;

use super::Level;

/// Roles whose token is looked up in the vocabulary.
const ROLES: [&str; 4] = ["bos", "eos", "unknown", "padding"];

type Problem = (Level, String);

/// Returns the errors in the key-value pairs of a model. `known`: its family is known.
///
/// Files without tensors contain a vocabulary, and files of another `general.type` than `model`
/// contain something other than a model. They need no hyperparameters, but existing ones must be
/// valid.
pub(super) fn problems(reader: &dyn CheckpointReader, known: bool) -> Vec<Problem> {
    let pairs = match key_values(reader.metadata()) {
        Ok(Some(pairs)) => pairs,
        Ok(None) => return Vec::new(),
        Err(error) => return vec![(Level::Warning, error.message().to_owned())],
    };
    let mut problems = Vec::new();
    if let Some(architecture) = pairs.text("general.architecture") {
        let network = Network { architecture, pairs: &pairs };
        let tensors = reader.tensors();
        let is_model =
            architecture != "clip" && pairs.text("general.type").is_none_or(|kind| kind == "model");
        let embeds = known || tensors.iter().any(|info| info.name == "token_embd.weight");
        let attends = tensors.iter().any(|info| info.name.contains("attn_q"));
        network.check_sizes(is_model && embeds && !tensors.is_empty(), attends, &mut problems);
        network.check_heads(&mut problems);
        network.check_floats(&mut problems);
    }

    check_tokens(&pairs, reader.format(), &mut problems);
    problems
}

struct Network<'a> {
    architecture: &'a str,
    pairs: &'a KeyValues,
}

impl Network<'_> {
    fn value(&self, key: &str) -> Option<Value> {
        self.pairs.get(&format!("{}.{key}", self.architecture))
    }

    /// A key as messages name it.
    fn name(&self, key: &str) -> String {
        format!("'{}.{key}'", Escaped::short(self.architecture))
    }

    fn check_sizes(&self, needed: bool, attends: bool, problems: &mut Vec<Problem>) {
        // Networks without attention state no heads, or none of them.
        let wrong = [
            self.wrong_size("block_count", needed, 1),
            self.wrong_size("embedding_length", needed, 1),
            self.wrong_size("attention.head_count", needed && attends, u64::from(attends)),
        ];
        problems.extend(wrong.into_iter().flatten().map(|message| (Level::Error, message)));
    }

    /// Returns an error if a size is not an integer of at least `least`, or is missing but needed.
    fn wrong_size(&self, key: &str, needed: bool, least: u64) -> Option<String> {
        let name = self.name(key);
        match self.value(key) {
            None => needed.then(|| format!("missing {name}")),
            Some(Value::Array(layers)) if key == "attention.head_count" => {
                (!integers(&layers)).then(|| format!("{name} is not a list of whole numbers"))
            }
            Some(value) => {
                let above = if least == 0 { "" } else { " above zero" };
                let is_wrong = value.as_u64().is_none_or(|value| value < least);
                is_wrong.then(|| format!("{name} is {}, not a whole number{above}", spelt(&value)))
            }
        }
    }

    /// Without a length of its own, a head takes its share of the embedding; given by layer, there
    /// is one a layer.
    fn check_heads(&self, problems: &mut Vec<Problem>) {
        let name = self.name("attention.head_count");
        let number = |key: &str| self.value(key).and_then(|value| value.as_u64());
        match self.value("attention.head_count") {
            Some(Value::Array(layers)) => {
                let blocks = number("block_count").filter(|&blocks| blocks != layers.len() as u64);
                if let Some(blocks) = blocks {
                    let (items, blocks) =
                        (counted(layers.len() as u64, "item"), counted(blocks, "layer"));
                    problems.push((Level::Error, format!("{name} has {items} for {blocks}")));
                }
            }
            Some(heads) if self.value("attention.key_length").is_none() => {
                let (Some(heads), Some(width)) = (heads.as_u64(), number("embedding_length"))
                else {
                    return;
                };
                if heads > 0 && !width.is_multiple_of(heads) {
                    let message = format!(
                        "{name} is {heads}, which does not divide the embedding length {width}"
                    );
                    problems.push((Level::Error, message));
                }
            }
            _ => {}
        }
    }

    fn check_floats(&self, problems: &mut Vec<Problem>) {
        let prefix = format!("{}.", self.architecture);
        let own =
            self.pairs.iter().filter_map(|pair| Some((pair.key.strip_prefix(&prefix)?, pair)));
        let mut own: Vec<_> = own
            .filter(|(key, _)| key.ends_with("epsilon") || key.starts_with("rope.freq_base"))
            .collect();
        own.sort_unstable_by_key(|(key, _)| *key);
        for (key, pair) in own {
            let number = match pair.value() {
                Value::F32(value) => f64::from(value),
                Value::F64(value) => value,
                _ => continue,
            };
            let level = if number == 0.0 { Level::Warning } else { Level::Error };
            if !number.is_finite() || number <= 0.0 {
                problems.push((
                    level,
                    format!("{} is {number}, not a number above zero", self.name(key)),
                ));
            }
        }
    }
}

/// Returns `true` if the items are integers and none of them is negative.
fn integers(items: &Array) -> bool {
    match items {
        Array::U32(_) | Array::U64(_) | Array::U16(_) | Array::U8(_) => true,
        Array::I32(items) => items.iter().all(|&item| item >= 0),
        Array::I64(items) => items.iter().all(|&item| item >= 0),
        _ => false,
    }
}

fn spelt(value: &Value) -> String {
    match value {
        Value::U8(value) => value.to_string(),
        Value::I8(value) => value.to_string(),
        Value::U16(value) => value.to_string(),
        Value::I16(value) => value.to_string(),
        Value::U32(value) => value.to_string(),
        Value::I32(value) => value.to_string(),
        Value::U64(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::String(text) => format!("the text '{}'", Escaped::short(text)),
        Value::Array(items) => format!("a list of {}", counted(items.len() as u64, "item")),
    }
}

/// Ids of special tokens, and arrays with an item a token.
fn check_tokens(pairs: &KeyValues, format: &'static Format, problems: &mut Vec<Problem>) {
    let len = |key: &str| pairs.find(key)?.items();
    let Some(tokens) = len("tokenizer.ggml.tokens") else { return };
    for role in ROLES {
        let key = format!("tokenizer.ggml.{role}_token_id");
        let Some(value) = pairs.get(&key) else { continue };
        // Some files say so that they have no such token.
        let id = value.as_u64().filter(|&id| id != u64::from(u32::MAX));
        if let Some(id) = id.filter(|&id| id >= tokens) {
            let (id, tokens) = (grouped(id), counted(tokens, "token"));
            problems.push((
                Level::Warning,
                format!("'{key}' is {id}, beyond the vocabulary of {tokens}"),
            ));
        }
    }

    // The reader of GGUF files warns of these itself.
    let arrays = ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"];
    for key in arrays.into_iter().filter(|_| format.convention != Convention::LlamaCpp) {
        if let Some(items) = len(key).filter(|&items| items != tokens) {
            let (items, tokens) = (counted(items, "item"), counted(tokens, "token"));
            problems.push((Level::Warning, format!("'{key}' has {items} for {tokens}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use apr_core::Limits;
    use apr_testkit::gguf::{GgufBuilder, GgufEntry};

    use super::*;

    const F32: u32 = 6;

    fn of(file: &GgufBuilder) -> Vec<Problem> {
        problems(&apr_gguf::open(file.build(), "", &Limits::default()).unwrap(), false)
    }

    fn toy() -> GgufBuilder {
        let query = GgufEntry::new("blk.0.attn_q.weight", 0, &[1], &[0; 4]);
        let embedding = GgufEntry::new("token_embd.weight", 0, &[1], &[0; 4]);
        GgufBuilder::new().text("general.architecture", "toy").entry(query).entry(embedding)
    }

    fn sized() -> GgufBuilder {
        toy().u32("toy.block_count", 2).u32("toy.embedding_length", 8)
    }

    #[track_caller]
    fn assert_only(file: &GgufBuilder, level: Level, parts: &[&str]) {
        let problems = of(file);
        let [(found, message)] = &problems[..] else { panic!("{problems:?}") };
        assert!(*found == level && parts.iter().all(|part| message.contains(part)), "{message}");
    }

    #[test]
    fn sizes_are_there_and_above_zero_where_a_network_is_built_from_them() {
        let keys: Vec<String> = of(&toy()).into_iter().map(|(_, message)| message).collect();
        let missing = ["block_count", "embedding_length", "attention.head_count"];
        assert_eq!(keys, missing.map(|key| format!("missing 'toy.{key}'")));
        assert_eq!(of(&sized().u32("toy.attention.head_count", 2)), []);
        let zero = sized().u32("toy.attention.head_count", 0);
        assert_only(&zero, Level::Error, &["head_count' is 0", "above zero"]);
        let negative = toy().i32("toy.block_count", -1).u32("toy.embedding_length", 8);
        assert_only(
            &negative.u32("toy.attention.head_count", 2),
            Level::Error,
            &["block_count' is -1"],
        );
        let text = toy().text("toy.block_count", "2").u32("toy.embedding_length", 8);
        assert_only(
            &text.u32("toy.attention.head_count", 2),
            Level::Error,
            &["block_count' is the text '2'"],
        );
    }

    #[test]
    fn files_without_a_model_need_no_hyperparameters() {
        let vocabulary = GgufBuilder::new().text("general.architecture", "toy");
        assert_eq!(of(&vocabulary), []);
        assert_eq!(of(&toy().text("general.type", "adapter")), []);
        let without_attention = GgufBuilder { entries: toy().entries.split_off(1), ..sized() };
        assert_eq!(of(&without_attention.u32("toy.attention.head_count", 0)), []);
    }

    #[test]
    fn heads_share_the_embedding_unless_they_have_a_length_of_their_own() {
        let odd = || sized().u32("toy.attention.head_count", 3);
        assert_only(&odd(), Level::Error, &["does not divide the embedding length 8"]);
        assert_eq!(of(&odd().u32("toy.attention.key_length", 4)), []);
        let by_layer =
            |layers: u64, items: &[u8]| sized().array("toy.attention.head_count", 4, layers, items);
        assert_eq!(of(&by_layer(2, &[3, 0, 0, 0, 5, 0, 0, 0])), []);
        assert_only(&by_layer(1, &[3, 0, 0, 0]), Level::Error, &["has 1 item for 2 layers"]);
    }

    #[test]
    fn epsilons_and_bases_are_above_zero() {
        let with = |key: &str, value: f32| {
            sized().u32("toy.attention.head_count", 2).pair(key, F32, &value.to_le_bytes())
        };
        for key in ["toy.attention.layer_norm_rms_epsilon", "toy.rope.freq_base"] {
            assert_eq!(of(&with(key, 1e-5)), []);
            assert_only(&with(key, 0.0), Level::Warning, &[key, "is 0,"]);
            for value in [-1.0, f32::NAN, f32::INFINITY] {
                assert_only(&with(key, value), Level::Error, &[key]);
            }
        }
    }

    #[test]
    fn ids_of_special_tokens_are_in_the_vocabulary() {
        let with = |id: u32| {
            GgufBuilder::new()
                .texts("tokenizer.ggml.tokens", &["a", "b"])
                .u32("tokenizer.ggml.bos_token_id", id)
        };
        assert_eq!(of(&with(1)), []);
        assert_eq!(of(&with(u32::MAX)), []);
        assert_only(
            &with(2),
            Level::Warning,
            &["bos_token_id' is 2, beyond the vocabulary of 2 tokens"],
        );
    }
}
