//! Adapters that are merged into a model: with `--lora`, or named by a configuration.

use std::path::Path;
#[cfg(feature = "infer")]
use std::path::PathBuf;
use std::sync::Arc;

use apr_core::{Error, Result};
use apr_lora::{AdaptOptions, Adapted, Adapter, inputs_first};
use apr_merge::Model as Input;
use apr_registry::{CheckpointReader, Convention};
use apr_source::Source;
use apr_view::View;

use super::{Made, Opened, as_framework, has_card, job, poll, recipe, target, title_of};
use crate::args::MergeArgs;
use crate::commands::convert::{self, Extras};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::{self, Model};

type Poll<'a> = Arc<dyn Fn() -> Result<()> + Send + Sync + 'a>;

/// Opens an adapter, with the configuration beside it.
pub(in crate::commands) fn open(path: &Path, context: &Context) -> Outcome<Model> {
    context.sources.expect_companions();
    model::open_with_companions(path, context)
}

/// Plans the merge of the adapters of `--lora` into the one model, and calls `then` with it.
pub(super) fn with_made<R>(
    args: &MergeArgs,
    context: &Context,
    then: impl FnOnce(Made<'_>) -> Outcome<R>,
) -> Outcome<R> {
    let [base] = &args.models[..] else {
        let message = match (&context.model_config, args.models.len()) {
            (Some(_), _) => "a configuration names its adapters as MODEL+ADAPTER".to_owned(),
            (None, 0) => "--lora needs the model that the adapter is for".to_owned(),
            (None, count) => format!("--lora merges adapters into one model, not {count}"),
        };
        return Err(Failure::Usage(message));
    };
    recipe::refuse(&recipe::of_methods(args), "--lora")?;
    recipe::refuse(&[("--seed", args.seed.is_some())], "--lora")?;
    let target = target(args, Some(base))?;
    let opened = convert::open_for(target.format, base, context)?;
    let models: Vec<Model> =
        args.lora.iter().map(|(path, _)| open(path, context)).collect::<Outcome<_>>()?;
    let name = recipe::named(base, args);
    let source = context.source(&*opened.reader, &opened.name)?;
    let job = job(Some(&opened), target, args, context)?;

    let named = models.iter().zip(&args.lora);
    let adapters: Vec<Adapter<'_>> = named
        .map(|(model, (path, weight))| adapter(model, &recipe::named(path, args), *weight))
        .collect();
    let reader = base_of(&source, &opened, &adapters)?;
    let relaxed = args.write.relaxed || args.write.force;
    let is_cast = job.weights.precision.is_some() || args.requantize.keep_quantization;
    let inputs_first = inputs_first(&*reader, source.family_in(&*reader)?.as_ref());
    let options = AdaptOptions { relaxed, is_cast, inputs_first, poll: poll(context) };
    let mut adapted =
        Adapted::plan(reader, &name, &adapters, options)?.with_record(job.target.format);
    if has_card(&job) {
        let title = args.write.output.as_deref().and_then(title_of);
        adapted = adapted.with_card(&title.unwrap_or_else(|| "merged".to_owned()))?;
    }
    let report = || vec![adapted.report()];
    let extras = Extras { adapters: Some(&report), ..Extras::default() };
    let inputs = std::iter::once(&opened).chain(&models).collect::<Vec<_>>();
    let files = inputs
        .iter()
        .enumerate()
        .flat_map(|(input, model)| (0..model.reader.files().len()).map(move |file| (input, file)));
    let (job, reader, name, files) = (&job, &adapted, opened.name.as_str(), files.collect());
    let origin = &opened;
    then(Made { job, reader, name, inputs, origin, files, extras, context })
}

/// Calls `then` with a model whose weights have the adapters of `--lora` in them when they are
/// read.
#[cfg(feature = "infer")]
pub(in crate::commands) fn with_adapted<R>(
    base: &Model,
    lora: &[(PathBuf, f64)],
    context: &Context,
    then: impl FnOnce(&dyn CheckpointReader) -> Outcome<R>,
) -> Outcome<R> {
    let models: Vec<Model> =
        lora.iter().map(|(path, _)| open(path, context)).collect::<Outcome<_>>()?;
    let named = models.iter().zip(lora);
    let adapters: Vec<Adapter<'_>> =
        named.map(|(model, (_, weight))| adapter(model, &model.name, *weight)).collect();
    let source = context.source(&*base.reader, &base.name)?;
    let reader = base_of(&source, base, &adapters)?;
    let inputs_first = inputs_first(&*reader, source.family_in(&*reader)?.as_ref());
    let options = AdaptOptions { inputs_first, poll: poll(context), ..AdaptOptions::default() };
    let adapted = Adapted::plan(reader, &base.name, &adapters, options)?;
    then(&adapted)
}

/// Merges the adapters that a configuration names into their models.
pub(super) fn merge_into<'a>(
    models: &mut [Input<'a>],
    opened: &'a [Opened],
    sources: &[(&str, Source<'a>)],
    relaxed: bool,
    poll: &Poll<'a>,
) -> Outcome<Vec<Arc<Adapted<'a>>>> {
    let mut merged = Vec::new();
    for ((input, one), (_, source)) in models.iter_mut().zip(opened).zip(sources) {
        if one.adapters.is_empty() {
            continue;
        }
        let adapters: Vec<Adapter<'a>> =
            one.adapters.iter().map(|model| adapter(model, &model.name, 1.0)).collect();
        let reader = base_of(source, &one.model, &adapters)?;
        let inputs_first = inputs_first(&*reader, source.family_in(&*reader)?.as_ref());
        let poll = Arc::clone(poll);
        let options = AdaptOptions { relaxed, inputs_first, poll, ..AdaptOptions::default() };
        let adapted = Arc::new(Adapted::plan(reader, &one.model.name, &adapters, options)?);
        input.reader = Arc::clone(&adapted) as Arc<dyn CheckpointReader + 'a>;
        merged.push(adapted);
    }
    Ok(merged)
}

fn adapter<'a>(model: &'a Model, name: &str, weight: f64) -> Adapter<'a> {
    Adapter { name: name.to_owned(), reader: Arc::new(View::new(&*model.reader)), weight }
}

/// Returns the base under the tensor names of its adapters.
///
/// These are llama.cpp's names if all adapters are GGUF files, and otherwise the names of
/// frameworks.
fn base_of<'a>(
    source: &Source<'a>,
    model: &'a Model,
    adapters: &[Adapter<'_>],
) -> Outcome<Arc<dyn CheckpointReader + 'a>> {
    let convention = model.reader.format().convention;
    let of_gguf =
        |adapter: &Adapter<'_>| adapter.reader.format().convention == Convention::LlamaCpp;
    let foreign = adapters.iter().find(|adapter| of_gguf(adapter));
    match (convention, foreign) {
        (Convention::LlamaCpp, Some(_)) if adapters.iter().all(of_gguf) => {
            Ok(Arc::new(View::new(&*model.reader)))
        }
        (_, Some(adapter)) => {
            let message = "an adapter with llama.cpp's names can only be merged into a GGUF \
                           file, with other such adapters: convert the base to GGUF first";
            Err(Error::format(message).in_file(&adapter.name).into())
        }
        (Convention::Framework, None) => Ok(Arc::new(View::new(&*model.reader))),
        (_, None) => as_framework(source),
    }
}
