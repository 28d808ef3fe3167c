//! Vocabulary and special tokens.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use apr_core::{Escaped, counted, grouped};
use apr_tokenizer::{Tokenizer, read_tokenizer};
use serde_json::{Map, Value};

use super::files::Files;
use super::learnt::{Learnt, MAX_INLINE};

/// Roles of tokens, by the names that every file uses: `bos_token`, `bos_token_id`.
const ROLES: [&str; 7] = ["bos", "eos", "unk", "pad", "sep", "cls", "mask"];

/// Files that give the role of a token by its text, the most specific first.
const BY_TEXT: [&str; 2] = ["tokenizer_config.json", "special_tokens_map.json"];

pub(super) fn learn(files: &Files<'_>, learnt: &mut Learnt) {
    let names: Vec<_> = files.list.iter().map(|(name, _)| name.as_str()).collect();
    let bytes = |file: usize| files.list.get(file).map_or(&[][..], |(_, bytes)| bytes);
    let found = read_tokenizer(&names, &mut |file| Ok(Cow::Borrowed(bytes(file))));
    let (tokenizer, warnings) = found.unwrap_or_default();
    learnt.warnings.extend(
        warnings
            .into_iter()
            .filter(|warning| !learnt.warnings.contains(warning))
            .collect::<Vec<_>>(),
    );
    if let Some(tokenizer) = &tokenizer {
        describe(tokenizer, files, learnt);
    }

    let ids = tokenizer
        .as_ref()
        .map(|tokenizer| tokenizer.tokens.iter().map(|(&id, text)| (text.as_str(), id)).collect());
    let mut roles = Roles { files, tokenizer: tokenizer.as_ref(), ids, special: BTreeMap::new() };
    for role in ROLES {
        roles.learn(role, learnt);
    }

    roles.learn_ends(learnt);
    roles.learn_special(learnt);
}

fn describe(tokenizer: &Tokenizer, files: &Files<'_>, learnt: &mut Learnt) {
    let Tokenizer { file, tokens, model_type, clash, .. } = tokenizer;
    if let Some((id, one, other)) = clash {
        let (one, other) = (Escaped::short(one), Escaped::short(other));
        learnt.warn(
            file,
            &format!(
                "the token id {id} is assigned to both '{one}' and '{other}'; the vocabulary is \
                 ignored"
            ),
        );
    } else {
        // Of texts that are over the bound by themselves no list is made.
        if tokens.values().map(String::len).sum::<usize>() > MAX_INLINE {
            learnt.set_by_file("tokenizer.vocabulary", file);
        } else {
            learnt.set_bounded("tokenizer.vocabulary", by_id(tokens), file);
        }
    }

    learnt.set("tokenizer.vocab_size", tokens.len());
    if let Some(model_type) = model_type {
        learnt.set("tokenizer.model_type", model_type.as_str());
    }

    check_size(tokenizer, files, learnt);
}

/// Returns the texts in the order of their ids, with null for an id without a text, so that a
/// position is an id.
fn by_id(tokens: &BTreeMap<u64, String>) -> Value {
    let mut texts = Vec::with_capacity(tokens.len());
    for (&id, text) in tokens {
        texts.extend((texts.len() as u64..id).map(|_| Value::Null));
        texts.push(text.as_str().into());
    }
    texts.into()
}

/// Returns `true` if a tokenizer has far fewer tokens than the embedding has rows. Padding takes
/// only some hundred rows, less than a twentieth.
#[must_use]
pub fn leaves_rows_unused(tokens: u64, rows: u64) -> bool {
    rows.saturating_sub(tokens) > rows.div_ceil(20)
}

/// Checks the number of tokens against the embedding. Embeddings are often padded by some hundred
/// rows, but no token may be outside of them.
fn check_size(tokenizer: &Tokenizer, files: &Files<'_>, learnt: &mut Learnt) {
    let Some(rows) = files.config("vocab_size").and_then(Value::as_u64) else { return };
    let tokens = tokenizer.tokens.len() as u64;
    let last = tokenizer.tokens.last_key_value().map_or(0, |(&id, _)| id);
    let (held, expected) = (counted(tokens, "token"), grouped(rows));
    if last >= rows {
        let last = grouped(last);
        learnt.warn(
            &tokenizer.file,
            &format!("its largest id is {last}, but config.json's vocab_size is {expected}"),
        );
    } else if leaves_rows_unused(tokens, rows) {
        learnt.warn(
            &tokenizer.file,
            &format!("it has {held}, but config.json's vocab_size is {expected}; is it complete?"),
        );
    }
}

struct Roles<'a> {
    files: &'a Files<'a>,
    tokenizer: Option<&'a Tokenizer>,
    /// Ids by text, if there is a vocabulary.
    ids: Option<HashMap<&'a str, u64>>,
    special: BTreeMap<&'a str, u64>,
}

impl<'a> Roles<'a> {
    /// Learns text and id of the same token. The tokenizer's files decide, because the model's
    /// configuration often has an unchecked default.
    fn learn(&mut self, role: &str, learnt: &mut Learnt) {
        let (token_key, id_key) = (format!("{role}_token"), format!("{role}_token_id"));
        let named = BY_TEXT
            .into_iter()
            .find_map(|file| Some((file, self.files.value(file, &token_key).and_then(text)?)));
        if let Some((file, token)) = named {
            learnt.set(format!("tokenizer.{token_key}"), token);
            match self.ids.as_ref().map(|ids| ids.get(token)) {
                Some(Some(&id)) => self.set_id(&id_key, id, learnt),
                Some(None) => {
                    let token = Escaped::short(token);
                    learnt
                        .warn(file, &format!("the {token_key} '{token}' is not in the vocabulary"));
                }
                None => self.learn_configured(&id_key, learnt),
            }
            return;
        }

        let own = self
            .tokenizer
            .and_then(|tokenizer| tokenizer.roles.iter().find(|(there, _)| *there == role));
        if let Some(&(_, id)) = own {
            self.set_id(&id_key, id, learnt);
        } else {
            self.learn_configured(&id_key, learnt);
        }

        let id = learnt.metadata.iter().find(|(key, _)| *key == format!("tokenizer.{id_key}"));
        if let Some(token) = id.and_then(|(_, id)| self.tokenizer?.tokens.get(&id.as_u64()?)) {
            learnt.set(format!("tokenizer.{token_key}"), token.as_str());
        }
    }

    fn set_id(&mut self, key: &str, id: u64, learnt: &mut Learnt) {
        learnt.set(format!("tokenizer.{key}"), id);
        self.note_special(id);
    }

    fn note_special(&mut self, id: u64) {
        if let Some(token) = self.tokenizer.and_then(|tokenizer| tokenizer.tokens.get(&id)) {
            self.special.insert(token, id);
        }
    }

    /// Learns the id in the model's configuration; if there are several, the first.
    fn learn_configured(&mut self, key: &str, learnt: &mut Learnt) {
        if let Some(id) = self.configured(key, learnt).first() {
            self.set_id(key, *id, learnt);
        }
    }

    fn learn_ends(&mut self, learnt: &mut Learnt) {
        let ids = self.configured("eos_token_id", learnt);
        if ids.len() > 1 {
            ids.iter().for_each(|&id| self.note_special(id));
            learnt.set("tokenizer.eos_token_ids", ids);
        }
    }

    /// Returns the ids under a key of the configurations, a number or a list; -1 means none.
    fn configured(&self, key: &str, learnt: &mut Learnt) -> Vec<u64> {
        let generation = self
            .files
            .value("generation_config.json", key)
            .map(|value| ("generation_config.json", value));
        let config = || Some(("config.json", self.files.config(key)?));
        let Some((file, value)) = generation.or_else(config) else { return Vec::new() };
        let listed = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let mut seen = BTreeSet::new();
        let written = listed.iter().filter(|id| id.as_i64() != Some(-1));
        let (known, stray): (Vec<_>, Vec<_>) =
            written.partition(|id| id.as_u64().is_some_and(|id| self.exists(id)));
        if let Some(stray) = stray.first() {
            learnt.warn(file, &format!("the {key} {stray} is not the id of a token"));
        }

        known.iter().filter_map(|id| id.as_u64()).filter(|&id| seen.insert(id)).collect()
    }

    fn exists(&self, id: u64) -> bool {
        match self.tokenizer {
            Some(tokenizer) => tokenizer.tokens.contains_key(&id),
            None => u32::try_from(id).is_ok(),
        }
    }

    /// Learns the special tokens: the tokens that the tokenizer's files mark as special, and all
    /// with a role.
    fn learn_special(self, learnt: &mut Learnt) {
        let Some(tokenizer) = self.tokenizer else { return };
        let mut special: Map<String, Value> =
            tokenizer.special.iter().map(|(token, &id)| (token.clone(), id.into())).collect();
        let listed = BY_TEXT
            .into_iter()
            .filter_map(|file| self.files.value(file, "additional_special_tokens"));
        for token in listed.filter_map(Value::as_array).flatten().filter_map(text) {
            if let Some(&id) = self.ids.as_ref().and_then(|ids| ids.get(token)) {
                special.insert(token.to_owned(), id.into());
            }
        }

        special.extend(self.special.into_iter().map(|(token, id)| (token.to_owned(), id.into())));
        if !special.is_empty() {
            learnt.set_bounded("tokenizer.special_tokens", special, &tokenizer.file);
        }
    }
}

/// Returns the text of a token, which is written as text or as an object with the text and its
/// stripping rules.
fn text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}
