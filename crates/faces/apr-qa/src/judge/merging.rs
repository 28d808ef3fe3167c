//! Points 58 and 59: merging, of files that are made.

use std::sync::Arc;

use apr::merge::{MergeOptions, Merged, Method, Model, Recipe, Settings, Source};
use apr_core::CheckpointReader;
use apr_testkit::apr2::Apr2Builder;

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, ensure, passed};
use crate::made::{bytes_of, floats, opened};

/// Merges models of one tensor each, and returns the bytes of the result.
fn merged(method: Method, models: &[&[f32]], settings: Settings) -> Result<Vec<u8>, Fault> {
    let mut inputs = Vec::new();
    let mut sources = Vec::new();
    for (at, values) in models.iter().enumerate() {
        let name = format!("made{at}.apr");
        let file = Apr2Builder::new().entry(floats("w", &[values.len() as u64], values)).build();
        inputs.push(Model { name: name.clone(), reader: Arc::from(opened(file)?) });
        let weight = Settings::from([("weight".to_owned(), 1.0.into())]);
        // The first is the base, which has no weight.
        let is_weighted = at > 0 && method != Method::Average;
        let settings = if is_weighted { weight } else { Settings::new() };
        sources.push(Source { model: name, settings, ..Source::default() });
    }
    let mut recipe = Recipe::new(method, sources);
    recipe.base = method.needs_base().then(|| "made0.apr".to_owned());
    recipe.settings = settings;
    let merged = Merged::plan(&recipe, &inputs, &MergeOptions::default())?;
    let len = merged.tensors().first().map_or(Ok(0), apr_core::TensorInfo::byte_len)?;
    let mut bytes = vec![0; usize::try_from(len)?];
    merged.read_tensor(0, 0, &mut bytes)?;
    Ok(bytes)
}

pub(crate) fn averages(_: &Bench<'_>) -> Judgement {
    let mean = merged(Method::Average, &[&[1.0, -0.5], &[3.0, 0.25]], Settings::new())?;
    ensure(mean == bytes_of(&[2.0, -0.125]), "the mean of 1 and 3 is not 2")?;
    passed("1 and 3 were averaged to 2")
}

pub(crate) fn ties(_: &Bench<'_>) -> Judgement {
    let models: [&[f32]; 3] =
        [&[10.0, 20.0, 30.0, 0.0], &[13.0, 19.0, 33.0, 0.5], &[12.0, 24.0, 28.0, 0.5]];
    let density = Settings::from([("density".to_owned(), 0.75.into())]);
    let merged = merged(Method::Ties, &models, density)?;
    ensure(
        merged == bytes_of(&[12.5, 24.0, 33.0, 0.0]),
        "small or contradicting differences were not dropped",
    )?;
    passed("dropped 2 small and 2 contradicting differences of 8")
}
