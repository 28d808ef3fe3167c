//! Whether models have one vocabulary: rows of embeddings are merged by their position.

use std::collections::BTreeMap;

use apr_core::{Error, Escaped, Result};
use serde_json::Value;

use crate::plan::Model;
use crate::recipe::{Recipe, Tokenizer};

const TOKENIZER: &str = "tokenizer.json";

/// Compares vocabularies with the first model's; returns what is odd.
///
/// # Errors
/// E001 where the recipe wants vocabularies brought together that differ.
pub(crate) fn check(recipe: &Recipe, models: &[&Model<'_>]) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let Some((first, others)) = models.split_first() else { return Ok(warnings) };
    let Some(expected) = bytes(first)? else { return Ok(warnings) };
    let mut known = None;
    for other in others {
        let Some(found) = bytes(other)? else { continue };
        if found == expected {
            continue;
        }
        let ours = known.get_or_insert_with(|| tokens(&expected));
        let Some(difference) = difference(ours, &tokens(&found)) else { continue };
        let message =
            format!("its vocabulary is not that of {}: {difference}", Escaped::short(&first.name));
        let asked = match &recipe.tokenizer {
            Some(Tokenizer::Union) => "the union of vocabularies",
            Some(Tokenizer::Base | Tokenizer::Model(_)) => "one of two vocabularies",
            None => {
                warnings.push(format!("{}: {message}", other.name));
                continue;
            }
        };
        return Err(
            Error::format(format!("{asked} is not supported: {message}")).in_file(&other.name)
        );
    }
    Ok(warnings)
}

fn bytes(model: &Model<'_>) -> Result<Option<Vec<u8>>> {
    let companions = model.reader.companions();
    let position = companions.iter().position(|file| file.name == TOKENIZER);
    position.map(|position| model.reader.read_companion(position)).transpose()
}

/// Tokens by their ids.
fn tokens(tokenizer: &[u8]) -> BTreeMap<u64, String> {
    let tokenizer: Value = serde_json::from_slice(tokenizer).unwrap_or_default();
    let mut tokens = BTreeMap::new();
    match &tokenizer["model"]["vocab"] {
        Value::Object(vocabulary) => {
            let ids = vocabulary.iter().filter_map(|(token, id)| Some((id.as_u64()?, token)));
            tokens.extend(ids.map(|(id, token)| (id, token.clone())));
        }
        Value::Array(pieces) => {
            let pieces = pieces.iter().map(|piece| piece[0].as_str().unwrap_or_default());
            tokens.extend((0..).zip(pieces.map(str::to_owned)));
        }
        _ => {}
    }
    for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        if let (Some(id), Some(token)) = (added["id"].as_u64(), added["content"].as_str()) {
            tokens.insert(id, token.to_owned());
        }
    }
    tokens
}

/// The first token that differs.
fn difference(a: &BTreeMap<u64, String>, b: &BTreeMap<u64, String>) -> Option<String> {
    let ids = a.keys().chain(b.keys().filter(|id| !a.contains_key(id)));
    let id = ids.into_iter().find(|id| a.get(id) != b.get(id))?;
    let token = |tokens: &BTreeMap<u64, String>| match tokens.get(id) {
        Some(token) => format!("'{}'", Escaped::short(token)),
        None => "absent".to_owned(),
    };
    Some(format!("token {id} is {} there and {} here", token(a), token(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_that_differs_is_named() {
        let of = |text: &str| tokens(text.as_bytes());
        let a = of(r#"{"model": {"vocab": {"x": 0, "y": 1}}, "added_tokens": []}"#);
        let b = of(r#"{"model": {"vocab": [["x", 0.0], ["y", -1.0]]}}"#);
        assert_eq!(difference(&a, &b), None);
        let b = of(r#"{"model": {"vocab": {"x": 0, "y": 1}},
            "added_tokens": [{"id": 2, "content": "<z>"}]}"#);
        assert_eq!(difference(&a, &b).as_deref(), Some("token 2 is absent there and '<z>' here"));
        let b = of(r#"{"model": {"vocab": {"y": 0, "x": 1}}}"#);
        assert_eq!(difference(&a, &b).as_deref(), Some("token 0 is 'x' there and 'y' here"));
        assert_eq!(tokens(b"["), BTreeMap::new());
    }
}
