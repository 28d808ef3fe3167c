//! Late interaction (ColBERT): a text keeps the vectors of its tokens, and each token of a query is
//! compared with all of a document.

use apr_graph::Meaning;
use apr_infer::Value;
use apr_registry::Error;
use apr_source::sentence::{Late, Module, Sentence};

use crate::error::RunResult;
use crate::runner::{Prepared, Runner};
use crate::sentence::SentenceHead;
use crate::tokens::Tokenizer;

/// Role of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Query,
    Document,
}

impl Role {
    /// The name of its prompt, and of the task that modules name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Document => "document",
        }
    }
}

/// Makes the vectors of the tokens of texts.
pub(crate) struct LateInteraction {
    head: SentenceHead,
    sentence: Sentence,
    /// Tokens that have no vector in queries and in documents.
    skipped: [Vec<i64>; 2],
}

/// The tokens of a text with those behind it.
struct Tokens {
    ids: Vec<i64>,
    /// Number of tokens that belong to the text.
    own: usize,
    /// `true` if the model attends to all of them.
    sees_all: bool,
    left_out: usize,
}

impl LateInteraction {
    /// # Errors
    /// E003 for a module that is not known, and whatever reading their weights ends with.
    pub(crate) fn of(
        runner: &Runner<'_>,
        sentence: &Sentence,
        tokenizer: &Tokenizer<'_>,
    ) -> RunResult<Self> {
        let head = SentenceHead::new(runner, sentence.clone())?;
        let of_role = |role: Role| {
            let words = sentence.modules.iter().filter_map(|module| match module {
                Module::TokenMask { skipped, tasks } => {
                    tasks.iter().any(|task| task == role.name()).then_some(skipped)
                }
                _ => None,
            });
            // Words that are no tokens are none to skip.
            words.flatten().filter_map(|word| tokenizer.vocabulary().id(word)).collect()
        };
        let skipped = [of_role(Role::Query), of_role(Role::Document)];
        Ok(Self { head, sentence: sentence.clone(), skipped })
    }

    /// Returns the vectors of a text's tokens, and the number of tokens omitted because the model
    /// accepts no more.
    pub(crate) fn vectors(
        &self,
        part: &Prepared<'_>,
        tokenizer: &Tokenizer<'_>,
        (prompt, text): (&str, &str),
        role: Role,
    ) -> RunResult<(Vec<Vec<f32>>, usize)> {
        let tokens = self.tokens(part, tokenizer, (prompt, text), role)?;
        let mut inputs = part.token_inputs(&tokens.ids)?;
        let mask = part.input(Meaning::AttentionMask);
        if let Some((_, value)) = inputs.iter_mut().find(|(name, _)| Some(name.as_str()) == mask)
            && !tokens.sees_all
        {
            let counts = |at: usize| i64::from(at < tokens.own);
            let row: Vec<i64> = (0..tokens.ids.len()).map(counts).collect();
            let row = apr_infer::Tensor::new(vec![1, row.len()], row)?;
            *value = Value::from(row.cast(value.tensor()?.element())?);
        }
        let output = part.output(Meaning::HiddenStates);
        let output = output.ok_or_else(|| Error::version("the model has no vectors of tokens"))?;
        let states = part.one(inputs, output)?;
        let vectors = self.head.vectors(&part.runner, states, 0)?;
        let skipped = &self.skipped[usize::from(role == Role::Document)];
        let kept = vectors.into_iter().zip(&tokens.ids).filter(|(_, id)| !skipped.contains(id));
        Ok((kept.map(|(vector, _)| vector).collect(), tokens.left_out))
    }

    fn tokens(
        &self,
        part: &Prepared<'_>,
        tokenizer: &Tokenizer<'_>,
        (prompt, text): (&str, &str),
        role: Role,
    ) -> RunResult<Tokens> {
        let late = &self.sentence.late;
        let expansion = late.expansion.as_ref().filter(|_| role == Role::Query);
        let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        let most = match (role, expansion) {
            (Role::Query, Some(expansion)) if expansion.is_least => {
                late.query_length.map(|most| most.max(expansion.length))
            }
            (Role::Query, Some(expansion)) => Some(expansion.length),
            (Role::Query, None) => late.query_length,
            (Role::Document, _) => late.document_length,
        };
        let positions = part.runner.facts.positions().unwrap_or(usize::MAX);
        let most = most.or(self.sentence.max_tokens).map_or(positions, size).min(positions);
        let (mut ids, left_out) = encoded(tokenizer, late, (prompt, text), role, most)?;
        let own = ids.len();
        if let Some(expansion) = expansion {
            let named = expansion.token.as_deref().map(|token| tokenizer.vocabulary().id(token));
            let special = |role: &str| {
                let all = part.runner.facts.special_tokens();
                let found = all.into_iter().find(|(known, _)| known == role);
                found.and_then(|(_, token)| tokenizer.vocabulary().id(&token))
            };
            let usual = || special("mask_token").or_else(|| special("eos_token"));
            let token = named
                .unwrap_or_else(usual)
                .ok_or_else(|| Error::version("missing token to append to a query"))?;
            ids.resize(own.max(size(expansion.length).min(positions)), token);
        }
        let sees_all = expansion.is_none_or(|expansion| expansion.attends);
        Ok(Tokens { ids, own, sees_all, left_out })
    }
}

/// Returns at most `most` tokens of a prompt and a text, and the number of omitted ones. In old
/// folders, a prefix that is a token is inserted after the token that begins a text.
fn encoded(
    tokenizer: &Tokenizer<'_>,
    late: &Late,
    (prompt, text): (&str, &str),
    role: Role,
    most: usize,
) -> RunResult<(Vec<i64>, usize)> {
    let prefix = late.prefixes[usize::from(role == Role::Document)].as_deref();
    let id = |token: &str| tokenizer.vocabulary().id(token);
    let marker = prefix.and_then(|prefix| {
        let word = prefix.split_whitespace().next()?;
        id(prefix).map(|id| (prefix, id)).or_else(|| id(word).map(|id| (word, id)))
    });
    let Some((marker, id)) = marker else {
        let text = format!("{}{prompt}{text}", prefix.unwrap_or_default());
        return Ok(tokenizer.encode_at_most(&text, most)?);
    };
    let rest = prefix.and_then(|prefix| prefix.strip_prefix(marker)).unwrap_or_default();
    let text = format!("{rest}{prompt}{text}");
    let (mut ids, left_out) = tokenizer.encode_at_most(&text, most.saturating_sub(1))?;
    ids.insert(ids.len().min(1), id);
    Ok((ids, left_out))
}

/// The sum over the vectors of a query of the largest product with one of a document.
pub(crate) fn most_alike(query: &[Vec<f32>], document: &[Vec<f32>]) -> f32 {
    let product =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let best = |one: &Vec<f32>| {
        document.iter().map(|other| product(one, other)).fold(f64::NEG_INFINITY, f64::max)
    };
    let sum = query.iter().map(best).filter(|best| best.is_finite()).sum::<f64>();
    #[expect(clippy::cast_possible_truncation, reason = "scores are of single precision")]
    let narrow = |sum: f64| sum as f32;
    narrow(sum)
}

#[cfg(test)]
mod tests {
    use super::most_alike;

    #[test]
    fn each_token_of_a_query_counts_with_the_one_most_alike() {
        let query = [vec![1.0, 0.0], vec![0.0, 1.0]];
        let document = [vec![0.5, 0.25], vec![1.0, -1.0]];
        assert_eq!(most_alike(&query, &document), 1.25);
        assert_eq!(most_alike(&query, &[]), 0.0);
    }
}
