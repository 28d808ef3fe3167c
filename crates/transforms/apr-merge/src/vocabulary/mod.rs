//! The vocabulary of a merge. Without a word about it, rows of embeddings are merged by their
//! position; otherwise rows of all models are moved to the ids that their tokens have in the
//! result.

mod files;
mod rows;
mod tokens;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use apr_core::{CheckpointReader, Error, Escaped, Result, counted};
use serde_json::Value;

use self::files::{Files, extended};
use self::rows::{Row, aligned};
use self::tokens::{Tokens, bytes};
use crate::compatible::config;
use crate::plan::Model;
use crate::recipe::{Recipe, TokenChoice, TokenRow, Tokenizer};

/// Keys under which configurations have ids of tokens.
const IDS: [&str; 4] = ["bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"];

/// Models with one vocabulary.
pub(crate) struct Vocabulary<'a> {
    pub(crate) models: Vec<Model<'a>>,
    pub(crate) warnings: Vec<String>,
    /// Changes outside the tensors, if the vocabulary is not the main model's.
    pub(crate) changed: Option<Changed>,
}

/// Changes of a vocabulary outside the tensors.
pub(crate) struct Changed {
    /// Rows of embeddings.
    pub(crate) rows: u64,
    pub(crate) files: Files,
    /// Token ids of the result by the ids of the main model.
    ids: HashMap<u64, u64>,
}

impl Changed {
    /// Fits a configuration to the vocabulary.
    pub(crate) fn fit(&self, config: &mut serde_json::Map<String, Value>) {
        if config.contains_key("vocab_size") {
            config.insert("vocab_size".to_owned(), self.rows.into());
        }
        let of = |value: &Value| Some(Value::from(*self.ids.get(&value.as_u64()?)?));
        for key in IDS {
            let moved = match config.get(key) {
                Some(Value::Array(ids)) => {
                    Some(Value::Array(ids.iter().map(|id| of(id).unwrap_or(id.clone())).collect()))
                }
                Some(id) => of(id),
                None => None,
            };
            if let Some(moved) = moved {
                config.insert(key.to_owned(), moved);
            }
        }
    }
}

/// A model's part in the vocabulary.
struct Member<'m, 'a> {
    model: &'m Model<'a>,
    tokens: Tokens,
    /// Rows of its embeddings.
    rows: u64,
}

impl Member<'_, '_> {
    /// Returns the row of a token, if the model has one.
    fn row(&self, token: &str) -> Option<u64> {
        self.tokens.ids.get(token).copied().filter(|id| *id < self.rows)
    }
}

/// Moves the rows of all models of a recipe to one vocabulary, if the recipe has a tokenizer
/// source.
///
/// # Errors
/// E001 if a model has no `tokenizer.json`, or a choice refers to a missing model or token.
pub(crate) fn align<'a>(recipe: &Recipe, models: &[Model<'a>]) -> Result<Vocabulary<'a>> {
    let mut vocabulary =
        Vocabulary { models: models.to_vec(), warnings: Vec::new(), changed: None };
    let Some(source) = &recipe.tokenizer else { return Ok(vocabulary) };
    let names = recipe.models();
    let members = names.iter().filter_map(|name| models.iter().find(|model| model.name == *name));
    let members: Vec<Member<'_, 'a>> = members.map(member).collect::<Result<_>>()?;
    let position = |name: &str| members.iter().position(|member| member.model.name == name);
    let base = recipe.base.as_deref().and_then(position);
    let main = base.unwrap_or_default();
    let template = match source {
        Tokenizer::Model(name) => position(name).unwrap_or_default(),
        Tokenizer::Base | Tokenizer::Union => main,
    };
    let Some(Member { model, tokens, .. }) = members.get(template) else { return Ok(vocabulary) };

    let (out, more) = tokens_of(tokens, &members, recipe, *source == Tokenizer::Union);
    let rows = match recipe.pad_rows {
        Some(multiple) => (out.len() as u64).next_multiple_of(multiple.max(1)),
        None => out.len() as u64,
    };
    let readers: Arc<[Arc<dyn CheckpointReader + 'a>]> =
        members.iter().map(|member| Arc::clone(&member.model.reader)).collect();
    let mut moved_any = false;
    for (at, member) in members.iter().enumerate() {
        let mut moved = rows_of(at, &members, &out, base, recipe)?;
        moved.resize(usize::try_from(rows).unwrap_or(usize::MAX).max(moved.len()), Row::Zero);
        let is_own = |(at, row): (usize, &Row)| *row == Row::Own(at as u64);
        if rows == member.rows && moved.iter().enumerate().all(is_own) {
            continue;
        }
        moved_any = true;
        let reader = Arc::clone(&member.model.reader);
        let aligned = aligned(reader, &readers, member.rows, moved)
            .map_err(|error| error.in_file(&member.model.name))?;
        for model in &mut vocabulary.models {
            if model.name == member.model.name {
                model.reader = Arc::new(aligned);
                break;
            }
        }
    }
    let all: Vec<&Tokens> = members.iter().map(|member| &member.tokens).collect();
    if moved_any || template != main {
        let places: HashMap<&str, u64> =
            out.iter().zip(0..).filter_map(|(token, at)| Some((token.as_deref()?, at))).collect();
        let ids = members[main].tokens.by_id.iter();
        let ids = ids.filter_map(|(id, token)| Some((*id, *places.get(token.as_str())?))).collect();
        let files = extended(model, tokens, &more, &all)?;
        vocabulary.changed = Some(Changed { rows, files, ids });
    }
    if !more.is_empty() {
        let count = counted(more.len() as u64, "token");
        let name = Escaped::short(&model.name);
        vocabulary.warnings.push(format!("{count} added to the vocabulary of {name}"));
    }
    Ok(vocabulary)
}

fn member<'m, 'a>(model: &'m Model<'a>) -> Result<Member<'m, 'a>> {
    let tokens = Tokens::of(model)?;
    let told = config(model)?.get("vocab_size").and_then(Value::as_u64);
    let rows = told.unwrap_or_else(|| tokens.len());
    Ok(Member { model, tokens, rows })
}

/// Returns the tokens of the result by id, and the tokens that the template lacks.
fn tokens_of(
    template: &Tokens,
    members: &[Member<'_, '_>],
    recipe: &Recipe,
    is_union: bool,
) -> (Vec<Option<String>>, Vec<(u64, String)>) {
    let mut out: Vec<Option<String>> =
        (0..template.len()).map(|id| template.by_id.get(&id).cloned()).collect();
    let mut more = Vec::new();
    let mut known: HashSet<&str> = template.ids.keys().map(String::as_str).collect();
    let theirs = members.iter().filter(|_| is_union).flat_map(|member| {
        member.tokens.by_id.iter().filter(|(id, _)| **id < member.rows).map(|(_, token)| token)
    });
    for token in theirs.chain(recipe.token_choices.keys()) {
        if known.insert(token) {
            more.push((out.len() as u64, token.clone()));
            out.push(Some(token.clone()));
        }
    }
    (out, more)
}

/// Returns the source rows of a model by the ids of the result.
///
/// A token that the model has keeps its own row. For other tokens, the source is a choice of the
/// recipe, the base's row, the row of the only model with the token, the mean over all models with
/// the token, or zeros.
fn rows_of(
    at: usize,
    members: &[Member<'_, '_>],
    out: &[Option<String>],
    base: Option<usize>,
    recipe: &Recipe,
) -> Result<Vec<Row>> {
    let member = &members[at];
    let row = |(id, token): (usize, &Option<String>)| {
        let Some(token) = token else {
            let id = id as u64;
            return Ok(if id < member.rows { Row::Own(id) } else { Row::Zero });
        };
        let choice = recipe.token_choices.get(token);
        if let Some(choice) = choice.filter(|choice| choice.force) {
            return chosen(choice, token, members);
        }
        if let Some(own) = member.row(token) {
            return Ok(Row::Own(own));
        }
        if let Some(choice) = choice {
            return chosen(choice, token, members);
        }
        if let Some((base, row)) = base.and_then(|base| Some((base, members[base].row(token)?))) {
            return Ok(Row::Of(base, row));
        }
        let having = |(at, member): (usize, &Member<'_, '_>)| Some((at, member.row(token)?));
        let rows: Vec<(usize, u64)> = members.iter().enumerate().filter_map(having).collect();
        Ok(match rows[..] {
            [] => Row::Zero,
            [(model, row)] => Row::Of(model, row),
            _ => Row::Mean(rows),
        })
    };
    out.iter().enumerate().map(row).collect()
}

/// The row that a choice gives a token.
fn chosen(choice: &TokenChoice, token: &str, members: &[Member<'_, '_>]) -> Result<Row> {
    let of = |name: &str| {
        let found = members.iter().enumerate().find(|(_, member)| member.model.name == name);
        let short = Escaped::short(name);
        found.ok_or_else(|| Error::format(format!("'{short}' is not one of the models")))
    };
    let lacks = |name: &str, what: &str| {
        let (name, token) = (Escaped::short(name), Escaped::short(token));
        Error::format(format!(
            "the row of '{token}' must be taken from {name}, which has no {what}"
        ))
    };
    match &choice.source {
        TokenRow::Zero => Ok(Row::Zero),
        TokenRow::Model(name) => {
            let (at, member) = of(name)?;
            let row = member.row(token).ok_or_else(|| lacks(name, "such token"))?;
            Ok(Row::Of(at, row))
        }
        TokenRow::Token(name, other) => {
            let (at, member) = of(name)?;
            let what = || format!("token '{}'", Escaped::short(other));
            let row = member.row(other).ok_or_else(|| lacks(name, &what()))?;
            Ok(Row::Of(at, row))
        }
        TokenRow::Id(name, id) => {
            let (at, member) = of(name)?;
            if *id >= member.rows {
                return Err(lacks(name, &format!("row {id}")));
            }
            Ok(Row::Of(at, *id))
        }
    }
}

/// Compares vocabularies with the first model's vocabulary and returns warnings.
///
/// A recipe with a tokenizer source gets no warnings.
pub(crate) fn check(recipe: &Recipe, models: &[&Model<'_>]) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    if recipe.tokenizer.is_some() {
        return Ok(warnings);
    }
    let Some((first, others)) = models.split_first() else { return Ok(warnings) };
    let Some(expected) = bytes(first)? else { return Ok(warnings) };
    let mut known = None;
    for other in others {
        let Some(found) = bytes(other)? else { continue };
        if found == expected {
            continue;
        }
        let ours = known.get_or_insert_with(|| Tokens::parse(&expected).by_id);
        let Some(difference) = difference(ours, &Tokens::parse(&found).by_id) else { continue };
        let first = Escaped::short(&first.name);
        warnings.push(format!(
            "{}: its vocabulary differs from the vocabulary of {first}: {difference}",
            other.name
        ));
    }
    Ok(warnings)
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
    fn the_first_different_token_is_reported() {
        let of = |text: &str| Tokens::parse(text.as_bytes()).by_id;
        let a = of(r#"{"model": {"vocab": {"x": 0, "y": 1}}, "added_tokens": []}"#);
        let b = of(r#"{"model": {"vocab": [["x", 0.0], ["y", -1.0]]}}"#);
        assert_eq!(difference(&a, &b), None);
        let b = of(r#"{"model": {"vocab": {"x": 0, "y": 1}},
            "added_tokens": [{"id": 2, "content": "<z>"}]}"#);
        assert_eq!(difference(&a, &b).as_deref(), Some("token 2 is absent there and '<z>' here"));
        let b = of(r#"{"model": {"vocab": {"y": 0, "x": 1}}}"#);
        assert_eq!(difference(&a, &b).as_deref(), Some("token 0 is 'x' there and 'y' here"));
        assert_eq!(Tokens::parse(b"[").by_id, BTreeMap::new());
    }
}
