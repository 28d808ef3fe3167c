//! What differs between the tokenizers of two checkpoints.

use std::collections::BTreeMap;

use apr_core::json::text;
use apr_core::{Escaped, grouped};
use apr_registry::{CheckpointReader, Result};
use apr_source::companions::{Learnt, learn_from};
use apr_tokenizer::{GGUF_TOKENS, Rules, rules, vocabulary};
use serde_json::Value;

use super::generation::companion;
use super::report::{RuleChange, TokenChange, VocabChanges};

/// Tokens at other ids that a report names.
const EXAMPLES: usize = 8;

/// Keys of the metadata that decide what a tokenizer makes of a text or a chat.
const OF_CHATS: [&str; 9] = [
    "tokenizer.bos_token_id",
    "tokenizer.chat_template",
    "tokenizer.cls_token_id",
    "tokenizer.eos_token_id",
    "tokenizer.eos_token_ids",
    "tokenizer.mask_token_id",
    "tokenizer.pad_token_id",
    "tokenizer.sep_token_id",
    "tokenizer.unk_token_id",
];

/// Key of the template by which a chat is written.
const TEMPLATE: &str = "tokenizer.chat_template";
/// The file that has the template, if no file of its own has it.
const SETTINGS: &str = "tokenizer_config.json";
/// Settings in that file that change the tokens of a text or the text of tokens.
const OF_TEXTS: [&str; 4] =
    ["add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces"];

/// Returns the differences between two vocabularies and between their tokenization rules.
///
/// Returns `None` if a checkpoint has no vocabulary. Also returns `None`, with a warning, if the
/// two spell tokens in different ways: the vocabularies are then not compared.
pub(super) fn vocab_changes(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
    warnings: &mut Vec<String>,
) -> Result<Option<VocabChanges>> {
    let (Some(a), Some(b)) = (Tokens::of(left)?, Tokens::of(right)?) else { return Ok(None) };
    if !a.is_spelled_as(&b) {
        warnings.push(
            "the vocabularies are not compared: the formats spell tokens in different ways"
                .to_owned(),
        );
        return Ok(None);
    }
    let moved = a.ids.iter().filter_map(|(token, ids)| {
        let others = b.ids.get(token).filter(|others| *others != ids)?;
        Some(TokenChange { token: token.clone(), ids: ids.clone(), other_ids: others.clone() })
    });
    let mut moved: Vec<TokenChange> = moved.collect();
    moved.sort_by(|one, other| one.ids.cmp(&other.ids));
    let mut changes = rule_changes(&rules(left)?, &rules(right)?);
    changes.extend(chat_changes(left, right)?);
    changes.extend(text_changes(left, right)?);
    let only = |these: &Tokens, those: &Tokens| {
        these.ids.keys().filter(|token| !those.ids.contains_key(*token)).count()
    };
    Ok(Some(VocabChanges {
        added: only(&b, &a),
        removed: only(&a, &b),
        moved: moved.len(),
        examples: moved.into_iter().take(EXAMPLES).collect(),
        rules: changes,
    }))
}

impl VocabChanges {
    /// Returns `true` if no difference was found.
    ///
    /// Both vocabularies then tokenize all texts alike, as far as they were compared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added + self.removed + self.moved == 0 && self.rules.is_empty()
    }
}

/// The tokens of a vocabulary.
struct Tokens {
    /// Ids by token text. A few texts of tokens that a model never uses can have several ids.
    ids: BTreeMap<String, Vec<u64>>,
    /// `true` if the tokens are spelled as in a GGUF file.
    is_gguf: bool,
}

impl Tokens {
    fn of(reader: &dyn CheckpointReader) -> Result<Option<Self>> {
        let Some(vocabulary) = vocabulary(reader, usize::MAX)? else { return Ok(None) };
        let is_gguf = vocabulary.source == GGUF_TOKENS;
        let mut ids: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for token in vocabulary.tokens {
            // Rows of the embedding that no token has are named in GGUF files.
            if !is_gguf || token.text != format!("[PAD{}]", token.id) {
                ids.entry(token.text).or_default().push(token.id);
            }
        }
        Ok(Some(Self { ids, is_gguf }))
    }

    /// Returns `true` if the tokens of both can be compared.
    ///
    /// Tokens of a GGUF file and of another file can be compared only if most of them are in both.
    fn is_spelled_as(&self, other: &Self) -> bool {
        let common = self.ids.keys().filter(|token| other.ids.contains_key(*token)).count();
        let fewer = self.ids.len().min(other.ids.len());
        self.is_gguf == other.is_gguf || common * 10 >= fewer * 9
    }
}

/// Rules that both tokenizers have and that differ.
fn rule_changes(left: &Rules, right: &Rules) -> Vec<RuleChange> {
    let mut changes = Vec::new();
    if let (Some(a), Some(b)) = (&left.merges, &right.merges)
        && a != b
    {
        changes.push(RuleChange { name: "merges".to_owned(), detail: merges_detail(a, b) });
    }
    for (name, value) in &left.others {
        let Some(other) = right.others.get(name).filter(|other| *other != value) else { continue };
        let detail = match (value, other) {
            (Value::Array(a), Value::Array(b)) => lists_detail(a, b),
            _ => format!("{} -> {}", short(value), short(other)),
        };
        changes.push(RuleChange { name: (*name).to_owned(), detail });
    }
    changes
}

/// Describes the first difference between two lists of merges.
fn merges_detail(left: &[String], right: &[String]) -> String {
    let first = left.iter().zip(right).position(|(a, b)| a != b);
    let Some(rank) = first else {
        let [a, b] = [left.len(), right.len()].map(|len| grouped(len as u64));
        return format!("{a} -> {b} of them; the longer list begins with the shorter one");
    };
    let texts = [left.get(rank), right.get(rank)].map(|text| text.map_or("", String::as_str));
    let [a, b] = texts.map(Escaped::short);
    format!("from rank {} on: '{a}' -> '{b}'", grouped(rank as u64))
}

fn lists_detail(left: &[Value], right: &[Value]) -> String {
    let [a, b] = [left.len(), right.len()].map(|len| grouped(len as u64));
    if left.len() != right.len() {
        return format!("{a} -> {b} items");
    }
    let mut differing = left.iter().zip(right).filter(|(a, b)| a != b);
    match (differing.next(), differing.count()) {
        (Some((from, to)), 0) => format!("{} -> {}", short(from), short(to)),
        (_, more) => format!("{} of {a} items differ", grouped(more as u64 + 1)),
    }
}

fn short(value: &Value) -> String {
    Escaped::short(&text(value)).to_string()
}

/// Returns differences in the settings that decide the tokens of a text or a chat.
///
/// Only settings that both models state are compared, and a chat template that one of them could
/// have and lacks.
fn chat_changes(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
) -> Result<Vec<RuleChange>> {
    let learnt = [learn_from(left)?, learn_from(right)?];
    let value = |reader: &dyn CheckpointReader, learnt: &Learnt, key: &str| {
        let learnt = || learnt.metadata.iter().find(|(known, _)| known == key);
        let own = reader.metadata().get(key).cloned();
        own.or_else(|| learnt().map(|(_, value)| value.clone()))
    };
    let change = |key: &&str| {
        let values = (value(left, &learnt[0], key), value(right, &learnt[1], key));
        let detail = match values {
            (Some(a), Some(b)) if a == b => return None,
            (Some(_), Some(_)) if *key == TEMPLATE => "other text".to_owned(),
            (Some(a), Some(b)) => format!("{} -> {}", short(&a), short(&b)),
            (Some(_), None) if *key == TEMPLATE && states_chats(right) => {
                "only in the left model".to_owned()
            }
            (None, Some(_)) if *key == TEMPLATE && states_chats(left) => {
                "only in the right model".to_owned()
            }
            _ => return None,
        };
        Some(RuleChange { name: (*key).to_owned(), detail })
    };
    Ok(OF_CHATS.iter().filter_map(change).collect())
}

/// Returns `true` if a model without a chat template could have one.
fn states_chats(reader: &dyn CheckpointReader) -> bool {
    reader.format().target.is_some_and(|target| target.self_contained)
        || reader.companions().iter().any(|companion| companion.name == SETTINGS)
}

/// Returns differences in `tokenizer_config.json`, if both models have it.
fn text_changes(
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
) -> Result<Vec<RuleChange>> {
    let (Some(left), Some(right)) = (companion(left, SETTINGS)?, companion(right, SETTINGS)?)
    else {
        return Ok(Vec::new());
    };
    let change = |key: &&str| {
        let [a, b] = [&left, &right].map(|side| side.get(*key).unwrap_or(&Value::Null));
        let detail = format!("{} -> {}", short(a), short(b));
        (a != b).then(|| RuleChange { name: (*key).to_owned(), detail })
    };
    Ok(OF_TEXTS.iter().filter_map(change).collect())
}
