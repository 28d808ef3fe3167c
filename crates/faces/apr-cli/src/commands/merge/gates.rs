//! Router weights of a mixture of experts: random, or token embeddings or hidden states of prompts.
//!
//! Hidden states are computed in single precision, one prompt at a time: mergekit runs `bf16` and
//! pads prompts, and `hidden_avg` then counts the padding.

use apr_core::{Error, Result};
use apr_infer::Value;
use apr_merge::Model as Input;
use apr_merge::moe::{GateMode, Gates, Recipe, layers};
use apr_run::{Facts, Prepared, RunOptions, RunResult, Tokenizer, with_runner};

use crate::commands::run::terse_host;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// The router weights of the experts, by the base.
pub(super) fn gates(recipe: &Recipe, base: &Input<'_>, context: &Context) -> Outcome<Gates> {
    if recipe.gate.is_random() {
        return Ok(Gates::random(recipe)?);
    }
    let reader = &*base.reader;
    let facts = Facts::of(reader)?;
    let host = terse_host(context);
    let tokenizer = Tokenizer::of(reader, &host)?;
    let roles = facts.special_tokens();
    let begin = roles.iter().find(|(role, _)| role == "bos_token");
    let begin = begin.map(|(_, token)| token.as_str()).unwrap_or_default();
    let tokens = |prompt: &str| tokenizer.encode(&format!("{begin}{prompt}"), false);
    if !recipe.gate.needs_states() {
        return Ok(Gates::of_embeddings(recipe, reader, tokens)?);
    }

    let source = context.source(reader, &base.name)?;
    let mut options = RunOptions::reading();
    options.max_memory = context.max_memory();
    let count = layers(reader).unwrap_or_default();
    with_runner(&source, &facts, &options, &host, |runner| {
        let prepared = runner.prepare()?;
        let states = |prompt: &str| -> RunResult<_> {
            states(&prepared, &tokens(prompt)?, count, recipe.gate)
        };
        Ok::<_, Failure>(Gates::of_states(recipe, states)?)
    })
}

/// Returns the hidden state before each layer: of the last token, or the mean over all tokens.
fn states(
    model: &Prepared<'_>,
    tokens: &[i64],
    layers: usize,
    gate: GateMode,
) -> RunResult<Vec<Vec<f32>>> {
    if tokens.is_empty() {
        return Err(Error::format("a prompt has no tokens").into());
    }
    let names: Vec<String> = std::iter::once("embeddings/tokens".to_owned())
        .chain((1..layers).map(|layer| format!("layers.{}", layer - 1)))
        .collect();
    let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
    let outcome = model.run(model.token_inputs(tokens)?, &wanted)?;
    let of_layer = |value: &Value| -> Result<Vec<f32>> {
        let states = value.tensor()?;
        let width = states.shape().last().copied().unwrap_or_default().max(1);
        let states = states.floats()?;
        let rows = states.chunks_exact(width);
        if gate == GateMode::Hidden {
            return Ok(rows.last().unwrap_or_default().to_vec());
        }
        let (mut mean, count) = (vec![0.0; width], rows.len().max(1) as f32);
        for row in rows {
            mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += value / count);
        }
        Ok(mean)
    };
    Ok(outcome.outputs.iter().map(of_layer).collect::<Result<_>>()?)
}
