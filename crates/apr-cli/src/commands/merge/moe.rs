//! A configuration of mergekit-moe: dense models as the experts of one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apr_core::{Error, Result};
use apr_infer::Value;
use apr_merge::Model as Input;
use apr_merge::moe::{GateMode, Gates, Moe, Recipe, layers};
use apr_registry::{CheckpointReader, Convention};
use apr_run::{Facts, Prepared, RunOptions, RunResult, Tokenizer, with_runner};
use apr_source::Source;
use apr_view::View;

use super::recipe::{Location, models_dir};
use super::{
    Made, Opened, adapters, as_framework, check_families, files_of, has_card, inputs_of, job,
    open_all, poll, sources, target, title_of,
};
use crate::args::MergeArgs;
use crate::commands::convert::Extras;
use crate::commands::run::terse_host;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model;

/// Plans the mixture, and calls `then` with it.
pub(super) fn with_made<R>(
    recipe: &Recipe,
    args: &MergeArgs,
    context: &Context,
    then: impl FnOnce(Made<'_>) -> Outcome<R>,
) -> Outcome<R> {
    let folder = models_dir(args);
    let named = recipe.models().into_iter().map(|name| Location::named(name, folder));
    let named: Vec<Location> = named.collect::<Outcome<_>>()?;
    let target = target(args, named.first().map(|named| named.path.as_path()))?;
    context.sources.expect_companions();
    let open = |path: &Path| model::open_with_companions(path, context);
    let opened = open_all(named, open, context)?;
    let first = opened.first().map(|first| PathBuf::from(&first.model.name)).unwrap_or_default();
    let job = job(&first, target, args, context)?;

    let sources = sources(&opened, context)?;
    check_families(&sources)?;
    let relaxed = args.write.relaxed || args.write.force;
    let mut models = inputs(&sources, &opened)?;
    let adapted = adapters::merge_into(&mut models, &opened, &sources, relaxed, &poll(context))?;
    let gates = gates(recipe, &models[0], context)?;
    let mut mixture = Moe::plan(recipe, &models, gates, relaxed)?.with_record(job.target.format);
    if has_card(&job) {
        let title = args.write.output.as_deref().and_then(title_of);
        mixture = mixture.with_card(&title.unwrap_or_else(|| "mixture".to_owned()))?;
    }
    let name = recipe.models().join(" + ");
    let adapters = || adapted.iter().map(|adapted| adapted.report()).collect();
    let moe = Some(mixture.report().clone());
    let extras = Extras { moe, adapters: Some(&adapters), ..Extras::default() };
    let files = files_of(&opened).concat();
    let (job, reader, inputs) = (&job, &mixture, inputs_of(&opened));
    then(Made { job, reader, name: &name, inputs, files, extras, context })
}

/// The models under the names that frameworks have for tensors.
fn inputs<'a>(sources: &[(&str, Source<'a>)], opened: &'a [Opened]) -> Outcome<Vec<Input<'a>>> {
    let input = |((name, source), one): (&(&str, Source<'a>), &'a Opened)| {
        let reader: Arc<dyn CheckpointReader + 'a> = match one.model.reader.format().convention {
            Convention::Framework => Arc::new(View::new(&*one.model.reader)),
            _ => as_framework(source)?,
        };
        Ok(Input { name: (*name).to_owned(), reader })
    };
    sources.iter().zip(opened).map(input).collect()
}

/// The vectors of the experts, by the base.
fn gates(recipe: &Recipe, base: &Input<'_>, context: &Context) -> Outcome<Gates> {
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

/// What tokens are in front of each layer: the last one's state, or the mean of all.
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
