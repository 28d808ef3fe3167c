//! Speed of a model: tokens a second of its prompt and of what it generates, as llama-bench
//! measures them, or runs a second.

use std::time::Duration;

use apr_graph::{Dim, Value as GraphValue, ValueOrigin};
use apr_infer::{CacheType, Memory, Tensor, Value};
use apr_registry::{Error, Result};
use serde::Serialize;

use crate::assumed::assumed;
use crate::error::{RunError, RunResult};
use crate::runner::{Prepared, UntilCancelled, known_inputs};
use crate::timing::rate;

/// Tokens that a model gets that reads texts as a whole.
const READ: usize = 128;
/// Height and width of images in pixels, if the graph accepts any size.
const SIDE: usize = 224;

/// Options of a benchmark.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BenchOptions {
    /// Lengths of prompts; 512 by default.
    pub prompts: Vec<usize>,
    /// Numbers of tokens to generate, each behind no prompt; 128 by default.
    pub generated: Vec<usize>,
    /// Numbers of tokens before each prompt or text, whose reading does not count; 0 by default.
    pub depths: Vec<usize>,
    /// Repetitions per test, after one warm-up run. Default: 5.
    pub repeat: usize,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self { prompts: vec![512], generated: vec![128], depths: vec![0], repeat: 5 }
    }
}

/// Result of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct BenchResult {
    /// `pp512` for a prompt of 512 tokens, `tg128` for 128 tokens that are generated, with
    /// ` @ d1024` behind 1,024 others; `run` for a run of a model that generates none.
    pub test: String,
    /// Arithmetic for weights in blocks: `exact` or `fast`.
    pub arithmetic: &'static str,
    /// Storage type of keys and values ([`CacheType`](apr_infer::CacheType)); `None` if none are
    /// kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_type: Option<&'static str>,
    /// Unit that is counted: `tokens` or `runs`.
    pub unit: &'static str,
    /// Units a second, the mean of the samples.
    pub per_second: f64,
    /// Standard deviation of the samples; 0 for one.
    pub deviation: f64,
    /// Units a second of each repetition.
    pub samples: Vec<f64>,
}

/// Measures a part of a model, and passes each result to `each` as soon as it is available.
///
/// # Errors
/// E003 if the host has no clock. [`RunError::Request`] if a prompt exceeds the model's context, or
/// if numbers of tokens or a cache type are given for a model that does not generate text.
/// Otherwise, returns the errors of [`Session::run`](apr_infer::Session::run).
pub fn bench(
    part: &Prepared<'_>,
    options: &BenchOptions,
    each: &mut dyn FnMut(BenchResult) -> Result<()>,
) -> RunResult<()> {
    if !part.generates() {
        let keeps_as = part.runner.options.cache_type;
        let BenchOptions { prompts, generated, depths, .. } = BenchOptions::default();
        let is_usual = (&options.prompts, &options.generated, &options.depths)
            == (&prompts, &generated, &depths);
        if keeps_as != CacheType::F32 || !is_usual {
            return Err(RunError::request(
                "numbers of tokens and a cache type are for models that generate text, and this \
                 one does not",
            ));
        }
        let inputs = inputs(part)?;
        let nothing = Memory::default();
        let measured = measure(part, options, 1, &nothing, &mut |_| {
            let outputs: Vec<&str> = outputs(part);
            part.run(inputs.clone(), &outputs).map(drop)
        })?;
        return Ok(each(result(part, "run".to_owned(), "runs", measured))?);
    }

    let context = part.runner.facts.context();
    let language = part.language()?;
    let vocabulary = part.runner.facts.vocabulary().unwrap_or(1).max(1);
    let host = part.runner.host;
    let next = |memory: &mut Memory, tokens: &[i64]| {
        let mut tap = UntilCancelled(host);
        Ok(language.next(memory, tokens, host.workers(), &mut tap).map(drop)?)
    };
    // Any tokens do, as long as they are not all the same row of the embeddings.
    let token = |at: usize| (at * 7919 % vocabulary) as i64;
    let depth = options.depths.iter().copied().max().unwrap_or(0);
    for &count in options.prompts.iter().chain(&options.generated) {
        let most = depth.saturating_add(count);
        if let Some(context) = context.filter(|context| most > *context) {
            return Err(RunError::request(format!(
                "{most} tokens are beyond the model's context of {context}"
            )));
        }
    }

    let cache_type = Some(language.cache_type().name());
    for &depth in &options.depths {
        let behind = if depth == 0 { String::new() } else { format!(" @ d{depth}") };
        let mut before = Memory::default();
        if depth > 0 {
            next(&mut before, &(0..depth).map(token).collect::<Vec<_>>())?;
        }
        for &count in options.prompts.iter().filter(|count| **count > 0) {
            let prompt: Vec<i64> = (depth..depth + count).map(token).collect();
            let mut run = |memory: &mut Memory| next(memory, &prompt);
            let measured = measure(part, options, count, &before, &mut run)?;
            let test = format!("pp{count}{behind}");
            each(BenchResult { cache_type, ..result(part, test, "tokens", measured) })?;
        }
        for &count in options.generated.iter().filter(|count| **count > 0) {
            let mut run = |memory: &mut Memory| {
                (depth..depth + count).try_for_each(|at| next(memory, &[token(at)]))
            };
            let measured = measure(part, options, count, &before, &mut run)?;
            let test = format!("tg{count}{behind}");
            each(BenchResult { cache_type, ..result(part, test, "tokens", measured) })?;
        }
    }
    Ok(())
}

fn result(part: &Prepared<'_>, test: String, unit: &'static str, samples: Vec<f64>) -> BenchResult {
    let (per_second, deviation) = mean_and_deviation(&samples);
    let arithmetic = part.session().arithmetic().name();
    BenchResult { test, arithmetic, cache_type: None, unit, per_second, deviation, samples }
}

/// Units a second of each repetition, each behind what was read before.
fn measure(
    part: &Prepared<'_>,
    options: &BenchOptions,
    count: usize,
    before: &Memory,
    run: &mut dyn FnMut(&mut Memory) -> RunResult<()>,
) -> RunResult<Vec<f64>> {
    let host = part.runner.host;
    let now = || {
        let missing = || RunError::from(Error::version("no clock is available"));
        host.elapsed().ok_or_else(missing)
    };
    run(&mut before.clone())?;
    let mut samples = Vec::with_capacity(options.repeat);
    for _ in 0..options.repeat {
        // The first token copies what is shared, and the clock is to see none of that.
        let mut memory = before.unshared();
        let start: Duration = now()?;
        run(&mut memory)?;
        samples.push(rate(count, now()?.saturating_sub(start).as_secs_f64()));
    }
    Ok(samples)
}

/// The mean, and the standard deviation of a sample.
fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let count = samples.len().max(1) as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    let deviation = if samples.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
    (mean, deviation)
}

fn outputs<'p>(part: &Prepared<'p>) -> Vec<&'p str> {
    let body = part.body();
    body.outputs.iter().map(|id| body.value(*id).name.as_str()).collect()
}

/// Returns values for all inputs without a default: tokens, the values that follow from them, and
/// 0.5 for the others.
fn inputs(part: &Prepared<'_>) -> RunResult<Vec<(String, Value)>> {
    let body = part.body();
    let length = part.runner.facts.context().unwrap_or(READ).min(READ);
    let mut inputs = known_inputs(body, &vec![1; length])?;
    for value in body.inputs.iter().map(|id| body.value(*id)) {
        let is_given = inputs.iter().any(|(name, _)| *name == value.name);
        if value.origin != ValueOrigin::Input || is_given {
            continue;
        }
        let missing = [value.name.as_str()];
        if let Some((_, tensor)) = assumed(body, &inputs, &missing)?.into_iter().next() {
            inputs.push((value.name.clone(), tensor));
            continue;
        }
        let shape = shape(value);
        let count = shape.iter().try_fold(1_usize, |count, side| count.checked_mul(*side));
        let bytes = count.and_then(|count| count.checked_mul(size_of::<f32>()));
        let limit = part.runner.options.max_memory;
        let count = count.filter(|_| bytes.is_some_and(|bytes| bytes as u64 <= limit));
        let count = count.ok_or_else(|| {
            Error::memory(format!("an input of {shape:?} does not fit the memory limit"))
        })?;
        let tensor = Tensor::new(shape, vec![0.5_f32; count])?;
        let tensor = tensor.cast(value.element().unwrap_or(tensor.element()))?;
        inputs.push((value.name.clone(), tensor.into()));
    }
    Ok(inputs)
}

/// Returns the dimensions of an input. Open dimensions are 1, or the sides of an image.
fn shape(value: &GraphValue) -> Vec<usize> {
    let dims = value.shape().unwrap_or_default();
    let is_image = dims.len() == 4;
    let size = |(at, dim): (usize, &Dim)| match dim.size() {
        Some(size) => usize::try_from(size).unwrap_or(usize::MAX),
        None if is_image && at >= 2 => SIDE,
        None => 1,
    };
    dims.iter().enumerate().map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_the_sample_standard_deviation() {
        assert_eq!(mean_and_deviation(&[2.0]), (2.0, 0.0));
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2.0_f64.sqrt()));
    }
}
