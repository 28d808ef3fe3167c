//! The files of the tokenizer that a merge has.

use std::collections::{HashMap, HashSet};

use apr_core::Result;
use serde_json::{Map, Value, json};

use super::tokens::{TOKENIZER, Tokens};
use crate::plan::Model;

const CONFIG: &str = "tokenizer_config.json";

/// Files that a tokenizer consists of.
const FILES: [&str; 7] = [
    TOKENIZER,
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "tokenizer.model",
    "vocab.json",
];

/// Files that repeat parts of `tokenizer.json`, without the tokens that were added to it.
const STALE: [&str; 4] = ["added_tokens.json", "merges.txt", "tokenizer.model", "vocab.json"];

/// Files of a tokenizer: contents by name, or `None` for a file to remove.
pub(crate) type Files = Vec<(String, Option<Vec<u8>>)>;

/// The files of a model's tokenizer with more tokens, which have the ids that follow. `models` are
/// the vocabularies that they come from.
pub(crate) fn extended(
    template: &Model<'_>,
    own: &Tokens,
    more: &[(u64, String)],
    models: &[&Tokens],
) -> Result<Files> {
    let mut files = Files::new();
    let companions = template.reader.companions();
    for (position, file) in companions.iter().enumerate() {
        let name = file.name.as_str();
        if !FILES.contains(&name) {
            continue;
        }
        let bytes = template.reader.read_companion(position)?;
        let bytes = match name {
            _ if more.is_empty() => Some(bytes),
            TOKENIZER => Some(pretty(&tokenizer(own, more, models))),
            CONFIG => Some(configuration(bytes, more, models)),
            _ if STALE.contains(&name) => None,
            _ => Some(bytes),
        };
        files.push((name.to_owned(), bytes));
    }
    // The main model may have files that this one lacks.
    for name in FILES {
        if !files.iter().any(|(known, _)| known == name) {
            files.push((name.to_owned(), None));
        }
    }
    Ok(files)
}

fn pretty(value: &Value) -> Vec<u8> {
    apr_core::json::to_python(value)
}

/// The flags of a token that a model finds before text is split.
fn flags(token: &str, models: &[&Tokens]) -> Option<Map<String, Value>> {
    models.iter().find_map(|tokens| tokens.added.get(token)).cloned()
}

/// Returns the tokenizer with more tokens.
///
/// Tokens that models find before they split the text become added tokens. Other tokens become
/// entries of the vocabulary, together with their merges.
fn tokenizer(own: &Tokens, more: &[(u64, String)], models: &[&Tokens]) -> Value {
    let mut file = own.file.clone();
    let mut plain: HashMap<&str, u64> = HashMap::new();
    let mut added = Vec::new();
    for (id, token) in more {
        match flags(token, models) {
            Some(mut entry) => {
                entry.insert("id".to_owned(), (*id).into());
                added.push(Value::Object(entry));
            }
            None if is_known(token, models) => {
                plain.insert(token, *id);
            }
            None => added.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": false,
            })),
        }
    }
    if let Some(entries) = file["added_tokens"].as_array_mut() {
        entries.extend(added);
    } else {
        file["added_tokens"] = added.into();
    }
    let model = &mut file["model"];
    match &mut model["vocab"] {
        // A token that was added gets another id when it is loaded, unless it stands here: readers
        // count from the end of the vocabulary.
        Value::Object(vocabulary) => {
            let known = own.by_id.iter().filter(|(_, token)| own.added.contains_key(*token));
            let known = known.map(|(id, token)| (token.clone(), Value::from(*id)));
            let new = more.iter().map(|(id, token)| (token.clone(), Value::from(*id)));
            vocabulary.extend(known.chain(new));
        }
        // Pieces have their place for an id: every id below needs one.
        Value::Array(pieces) => {
            for (id, token) in more {
                let score = models.iter().find_map(|tokens| score(tokens, token));
                while (pieces.len() as u64) < *id {
                    let at = pieces.len() as u64;
                    let known = own.by_id.get(&at).cloned();
                    pieces.push(json!([known.unwrap_or_else(|| format!("<unused{at}>")), -1e9]));
                }
                pieces.push(json!([token, score.unwrap_or(-1e9)]));
            }
        }
        _ => {}
    }
    if let Some(merges) = model["merges"].as_array_mut() {
        let is_in = |token: &str| own.ids.contains_key(token) || plain.contains_key(token);
        let mut made: HashSet<&str> = HashSet::new();
        for theirs in models.iter().filter_map(|tokens| tokens.file["model"]["merges"].as_array()) {
            for merge in theirs {
                let Some((left, right)) = halves(merge) else { continue };
                let whole = format!("{left}{right}");
                let Some((token, _)) = plain.get_key_value(whole.as_str()) else { continue };
                if is_in(left) && is_in(right) && made.insert(token) {
                    merges.push(merge.clone());
                }
            }
        }
    }
    file
}

fn is_known(token: &str, models: &[&Tokens]) -> bool {
    models.iter().any(|tokens| tokens.ids.contains_key(token))
}

fn score(tokens: &Tokens, token: &str) -> Option<f64> {
    let id = usize::try_from(*tokens.ids.get(token)?).ok()?;
    tokens.file["model"]["vocab"].get(id)?.get(1)?.as_f64()
}

/// The two tokens of a merge, in either form of the file.
fn halves(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => text.split_once(' '),
        Value::Array(pair) => Some((pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
        _ => None,
    }
}

/// Adds the new tokens to the configuration, if it lists added tokens.
fn configuration(bytes: Vec<u8>, more: &[(u64, String)], models: &[&Tokens]) -> Vec<u8> {
    let Ok(mut config) = apr_core::json::from_python::<Map<String, Value>>(&bytes) else {
        return bytes;
    };
    let Some(Value::Object(listed)) = config.get_mut("added_tokens_decoder") else { return bytes };
    for (id, token) in more {
        if let Some(mut entry) = flags(token, models) {
            entry.remove("id");
            listed.insert(id.to_string(), entry.into());
        }
    }
    pretty(&Value::Object(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(file: &Value) -> Tokens {
        Tokens::parse(file.to_string().as_bytes())
    }

    #[test]
    fn new_tokens_come_with_the_merges_that_lead_to_them() {
        let own = tokens(&json!({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
            "merges": [["a", "b"]]}, "added_tokens": []}));
        let other = tokens(&json!({"model": {"type": "BPE",
            "vocab": {"a": 0, "b": 1, "ab": 2, "aba": 3, "c": 4, "x": 5, "cx": 6},
            "merges": ["a b", "ab a", "c x"]},
            "added_tokens": [{"id": 7, "content": "<s>", "special": true}]}));
        let more = [(3, "aba"), (4, "c"), (5, "<s>")].map(|(id, token)| (id, token.to_owned()));
        let file = tokenizer(&own, &more, &[&own, &other]);
        assert_eq!(
            file["model"]["vocab"],
            json!({"a": 0, "b": 1, "ab": 2, "aba": 3, "c": 4, "<s>": 5})
        );
        assert_eq!(file["model"]["merges"], json!([["a", "b"], "ab a"]));
        assert_eq!(file["added_tokens"], json!([{"id": 5, "content": "<s>", "special": true}]));
    }

    #[test]
    fn pieces_keep_their_scores_and_places() {
        let own = tokens(&json!({"model": {"vocab": [["a", -1.0]]},
            "added_tokens": [{"id": 1, "content": "<s>"}]}));
        let other = tokens(&json!({"model": {"vocab": [["b", -2.0]]}}));
        let file = tokenizer(&own, &[(2, "b".to_owned())], &[&own, &other]);
        assert_eq!(file["model"]["vocab"], json!([["a", -1.0], ["<s>", -1e9], ["b", -2.0]]));
    }
}
