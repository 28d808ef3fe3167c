//! `apr merge`.

mod adapters;
#[cfg_attr(not(feature = "infer"), path = "gates_off.rs")]
mod gates;
mod moe;
mod recipe;
mod render;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use apr::job::title;
use apr_merge::{MergeOptions, Merged, Model as Input, Recipe};
use apr_ops::import::restore;
use apr_ops::inline::ValidationConfig;
use apr_ops::job::Job;
use apr_quantize::{QuantizedLike, Scheme};
use apr_registry::{
    CheckpointReader, Convention, Error, Format, IoCause, PlanOptions, safetensors,
};
use apr_source::Source;

pub(super) use self::adapters::open as open_adapter;
#[cfg(feature = "infer")]
pub(super) use self::adapters::with_adapted;
use self::recipe::{Description, Location};
pub(super) use self::render::{render, render_adapter, render_adapters, render_moe};
use super::convert::{
    self, Destination, Extras, Subject, contain, layout, target_format, validation,
};
use super::weights;
use crate::args::MergeArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;

/// Prepared merge, before it is written.
pub(super) struct Made<'m> {
    pub(super) job: &'m Job,
    pub(super) reader: &'m dyn CheckpointReader,
    /// Name of the merge in reports.
    pub(super) name: &'m str,
    /// The models and adapters that it is made of.
    pub(super) inputs: Vec<&'m Model>,
    /// Model with which a gate compares the result: the base, or else the first.
    pub(super) origin: &'m Model,
    /// For each file of the reader, the indices of the input and of the file in that input.
    pub(super) files: Vec<(usize, usize)>,
    pub(super) extras: Extras<'m>,
    pub(super) context: &'m Context,
}

impl Made<'_> {
    /// Returns the notes about the models.
    pub(super) fn notes(&self) -> Vec<String> {
        self.inputs.iter().flat_map(|model| model.notes.clone()).collect()
    }
}

/// Merges models.
pub(super) fn run(args: &MergeArgs, context: &Context) -> Outcome {
    context.sources.expect_whole();
    with_made(args, context, |made| {
        let notes = made.notes();
        let Made { job, reader, name, extras, origin, context, .. } = made;
        let extras = Extras { origin: Some((job, origin)), ..extras };
        let subject = Subject { reader, name, notes: &notes };
        convert::write_subject(job, subject, Destination::of(&args.write), extras, context)
    })
}

/// Plans a merge, and calls `then` with it.
pub(super) fn with_made<R>(
    args: &MergeArgs,
    context: &Context,
    then: impl FnOnce(Made<'_>) -> Outcome<R>,
) -> Outcome<R> {
    let description = match args.lora.is_empty() {
        true => Some(recipe::describe(args, context)?),
        false => None,
    };
    if args.models_dir.is_some() && matches!(description, None | Some(Description::Options(_))) {
        let message = "--models-dir applies to merge configurations only";
        return Err(Failure::Usage(message.to_owned()));
    }
    let Some(description) = description else {
        return adapters::with_made(args, context, then);
    };
    // It is the merge's, and no model's.
    let context = &context.without_config();
    let folder = recipe::models_dir(args);
    let (mut recipes, named) = match description {
        Description::Moe(recipe) => return moe::with_made(&recipe, args, context, then),
        Description::Options(recipe) => {
            let given = |name| Location::given(name, args);
            let named = recipe.models().into_iter().map(given).collect();
            (vec![*recipe], named)
        }
        Description::Merges(recipes) => {
            let named = recipe::locations(&recipes, folder)?;
            (recipes, named)
        }
    };
    let target = target(args, named.first().map(|named: &Location| named.path.as_path()))?;
    let opened = open_all(named, |path| convert::open_for(target.format, path, context), context)?;
    let first = opened.first().map(|first| &first.model);
    let mut job = job(first, target, args, context)?;
    if let Some(precision) = job.weights.precision {
        recipes.iter_mut().for_each(|recipe| recipe::compute_for(recipe, precision));
        let is_of = |recipe: &Recipe| recipe.out_dtype == Some(precision);
        job.weights.is_computed = recipes.iter().any(is_of);
    }
    merge(&recipes, &opened, &job, args, context, then)
}

/// Opens models with their adapters.
fn open_all(
    named: Vec<Location>,
    open: impl Fn(&Path) -> Outcome<Model>,
    context: &Context,
) -> Outcome<Vec<Opened>> {
    let one = |Location { name, path, adapters }| {
        let model = open(&path)?;
        let adapters = adapters.into_iter().map(|path| adapters::open(&path, context));
        Ok(Opened { name, model, adapters: adapters.collect::<Outcome<_>>()? })
    };
    named.into_iter().map(one).collect()
}

/// A model that takes part, with adapters that are merged into it before.
struct Opened {
    /// Name of the model in the recipe.
    name: String,
    model: Model,
    adapters: Vec<Model>,
}

/// Returns the job that writes the result; `first` is the first of the models.
fn job(
    first: Option<&Model>,
    target: PlanOptions,
    args: &MergeArgs,
    context: &Context,
) -> Outcome<Job> {
    let path = first.map(|model| PathBuf::from(&model.name)).unwrap_or_default();
    let (of_model, options) = ((path.as_path(), target.format), &args.requantize.options);
    let like_first = first.filter(|_| args.requantize.keep_quantization);
    let weights = match like_first.map(|model| scheme_of(model, context)).transpose()? {
        None => weights::asked(of_model, &args.requantize, &args.write, &args.container, context)?,
        Some(scheme) => {
            weights::quantized(scheme, of_model, options, &args.write, &args.container, context)?
        }
    };
    let job = Job {
        weights,
        validation: validation(&args.write),
        title: args.write.output.as_deref().and_then(title),
        ..Job::new(contain(target, &args.container, context)?)
    };
    weights::check_rounding(&job, options)?;
    Ok(job)
}

/// The scheme that a model is quantized to.
fn scheme_of(model: &Model, context: &Context) -> Outcome<Scheme> {
    let found = match QuantizedLike::of(&*model.reader)? {
        QuantizedLike::Scheme(scheme, stored) => {
            // Groups are those of the scheme.
            context.printer.warn_all(stored.map(|stored| {
                format!(
                    "the first model has {stored}; the output is quantized as {}",
                    scheme.name()
                )
            }));
            return Ok(scheme);
        }
        QuantizedLike::Other(kind) => format!("quantized as {kind}, which can't be written"),
        _ => "not quantized".to_owned(),
    };
    Err(Failure::Usage(format!(
        "the first model is {found}: pass --quantize TYPE instead of --keep-quantization"
    )))
}

/// The layout of the output.
fn target(args: &MergeArgs, first: Option<&Path>) -> Outcome<PlanOptions> {
    let output = args.write.output.as_deref();
    let extension = |path: &Path| apr_registry::target_by_extension(path.extension()?.to_str()?);
    let like_first = || match first {
        Some(path) if path.is_dir() => Some(&safetensors::FORMAT),
        Some(path) => extension(path),
        None => None,
    };
    let asked = args.format.or_else(|| output.and_then(extension)).or_else(like_first);
    let format = target_format(Some(asked.unwrap_or(&safetensors::FORMAT)), output)?;
    layout(apr::job::Output::layout(format, output), None, args.shard_size)
}

/// Plans the merges, one over the other, and calls `then` with the last one.
fn merge<R>(
    recipes: &[Recipe],
    opened: &[Opened],
    job: &Job,
    args: &MergeArgs,
    context: &Context,
    then: impl FnOnce(Made<'_>) -> Outcome<R>,
) -> Outcome<R> {
    let sources = sources(opened, context)?;
    check_families(&sources)?;
    let relaxed = args.write.relaxed || args.write.force;
    let poll = poll(context);
    let mut models = inputs(&sources, opened, recipes)?;
    let adapted = adapters::merge_into(&mut models, opened, &sources, relaxed, &poll)?;
    let Some((last, before)) = recipes.split_last() else {
        return Err(Failure::Usage("nothing to merge".to_owned()));
    };
    let mut files = files_of(opened);
    for recipe in before {
        files.push(files_in(&files, &models, &recipe.models()));
        let options = MergeOptions { relaxed, poll: poll.clone() };
        let merged = Merged::plan(recipe, &models, &options)?;
        let name = recipe.name.clone().unwrap_or_default();
        models.push(Input { name, reader: Arc::new(merged) });
    }
    let options = MergeOptions { relaxed, poll };
    let mut merged = Merged::plan(last, &models, &options)?.with_record(job.target.format);
    let output = args.write.output.as_deref();
    if has_card(job) {
        let title = output.and_then(title_of).unwrap_or_else(|| "merged".to_owned());
        merged = merged.with_card(&title)?;
    }
    let each = last.models().into_iter();
    let each = each.flat_map(|model| std::iter::repeat_n(model, last.times(model)));
    let name = each.collect::<Vec<_>>().join(" + ");
    let report = || merged.report();
    let adapters = || adapted.iter().map(|adapted| adapted.report()).collect();
    let extras = Extras { merge: Some(&report), adapters: Some(&adapters), ..Extras::default() };
    let files = files_in(&files, &models, &last.models());
    let (reader, inputs) = (&merged, inputs_of(opened));
    let origin = origin_of(last, opened)?;
    then(Made { job, reader, name: &name, inputs, origin, files, extras, context })
}

/// The model that a gate compares the result of a recipe with: its base, or else the first of its
/// models; of a merge of merges, the first that is a file.
fn origin_of<'a>(recipe: &Recipe, opened: &'a [Opened]) -> Outcome<&'a Model> {
    let named = recipe.base.as_deref().into_iter().chain(recipe.models());
    let mut found = named.filter_map(|name| opened.iter().find(|one| one.name == name));
    let first = found.next().or(opened.first());
    let one = first.ok_or_else(|| Failure::Usage("nothing to merge".to_owned()))?;
    Ok(&one.model)
}

/// Models and adapters, each with its adapters after it.
fn inputs_of(opened: &[Opened]) -> Vec<&Model> {
    opened.iter().flat_map(|one| std::iter::once(&one.model).chain(&one.adapters)).collect()
}

/// Returns for each file of a model the indices of the input and of its file, in the order of
/// [`inputs_of`].
fn files_of(opened: &[Opened]) -> Vec<Vec<(usize, usize)>> {
    let mut input = 0;
    let mut of = |model: &Model| {
        let files = (0..model.reader.files().len()).map(|file| (input, file)).collect::<Vec<_>>();
        input += 1;
        files
    };
    let all = |one: &Opened| {
        let mut files = of(&one.model);
        one.adapters.iter().for_each(|adapter| files.extend(of(adapter)));
        files
    };
    opened.iter().map(all).collect()
}

/// The files of the models that a recipe names, in the order of the models.
fn files_in(
    files: &[Vec<(usize, usize)>],
    models: &[Input<'_>],
    names: &[&str],
) -> Vec<(usize, usize)> {
    let named = files.iter().zip(models).filter(|(_, model)| names.contains(&&*model.name));
    named.flat_map(|(files, _)| files.clone()).collect()
}

/// Returns the models as sources, by their names in the recipe.
fn sources<'a>(opened: &'a [Opened], context: &'a Context) -> Outcome<Vec<(&'a str, Source<'a>)>> {
    let source = |one: &'a Opened| {
        Ok((one.name.as_str(), context.source(&*one.model.reader, &one.model.name)?))
    };
    opened.iter().map(source).collect()
}

/// Returns a function that ends a long measurement when the user interrupts it.
fn poll(context: &Context) -> Arc<dyn Fn() -> apr_core::Result<()> + Send + Sync> {
    let interrupt = context.interrupt.clone();
    Arc::new(move || match interrupt.0.load(Ordering::Relaxed) {
        true => Err(Error::io(IoCause::Interrupted, "interrupted")),
        false => Ok(()),
    })
}

/// Returns the title of the output: the file name without its extension.
fn title_of(path: &Path) -> Option<String> {
    path.file_stem()?.to_str().map(str::to_owned)
}

/// Returns `true` if the output can store a model card.
fn has_card(job: &Job) -> bool {
    job.target.folder || job.target.format.convention == Convention::Canonical
}

/// Models of one family, as far as that is known.
fn check_families(sources: &[(&str, Source<'_>)]) -> Outcome {
    let mut first: Option<(&str, String)> = None;
    for (name, source) in sources {
        let Some(family) = source.family()? else { continue };
        let family = family.family().name().to_owned();
        match &first {
            Some((other, expected)) if *expected != family => {
                let message =
                    format!("it is of the {family} family, but '{other}' of the {expected} family");
                return Err(Error::format(message).in_file(name).into());
            }
            Some(_) => {}
            None => first = Some((name, family)),
        }
    }
    Ok(())
}

/// Returns the models under names that they share.
///
/// They keep their own names if their formats have the same convention, and otherwise get the names
/// of frameworks.
fn inputs<'a>(
    sources: &[(&str, Source<'a>)],
    opened: &'a [Opened],
    recipes: &[Recipe],
) -> Outcome<Vec<Input<'a>>> {
    let convention = |model: &Model| model.reader.format().convention;
    let mut conventions = opened.iter().map(|one| convention(&one.model));
    let first = conventions.next();
    let is_sliced =
        recipes.iter().any(|recipe| matches!(recipe.parts, apr_merge::Parts::Slices(_)));
    // Pairs of a GGUF file do not follow slices of layers.
    let has_adapters = opened.iter().any(|one| !one.adapters.is_empty());
    let alike = conventions.all(|other| Some(other) == first)
        && !(has_adapters && first != Some(Convention::Framework))
        && !(is_sliced && first == Some(Convention::LlamaCpp));
    sources
        .iter()
        .zip(opened)
        .map(|((name, source), Opened { model, .. })| {
            let reader: Arc<dyn CheckpointReader + 'a> = match alike {
                true => Arc::new(apr_view::View::new(&*model.reader)),
                false => as_framework(source)?,
            };
            Ok(Input { name: (*name).to_owned(), reader })
        })
        .collect()
}

/// A model under the names and in the layout that frameworks have.
fn as_framework<'a>(source: &Source<'a>) -> Outcome<Arc<dyn CheckpointReader + 'a>> {
    let format: &'static Format = &safetensors::FORMAT;
    let foreign = restore(source, format, ValidationConfig::integrity())?.stating_configuration();
    Ok(Arc::new(foreign.prepared.view))
}
