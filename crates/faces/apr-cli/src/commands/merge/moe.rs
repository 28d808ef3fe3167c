//! A configuration of mergekit-moe: dense models as the experts of one.

use std::path::Path;
use std::sync::Arc;

use apr_merge::Model as Input;
use apr_merge::moe::{Moe, Recipe};
use apr_registry::{CheckpointReader, Convention};
use apr_source::Source;
use apr_view::View;

use super::gates::gates;
use super::recipe::{Location, models_dir};
use super::{
    Made, Opened, adapters, as_framework, check_families, files_of, has_card, inputs_of, job,
    open_all, poll, sources, target, title_of,
};
use crate::args::MergeArgs;
use crate::commands::convert::Extras;
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
    let first = opened.first().map(|first| &first.model);
    let job = job(first, target, args, context)?;

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
    let base = opened.iter().find(|one| one.name == recipe.base).or(opened.first());
    let origin = &base.ok_or_else(|| Failure::Usage("nothing to mix".to_owned()))?.model;
    then(Made { job, reader, name: &name, inputs, origin, files, extras, context })
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
