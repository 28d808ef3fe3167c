//! The input features of a model as arrays: token ids, log-mel spectrogram or waveform, pixel
//! values.

use std::path::{Path, PathBuf};

use apr_graph::Graph;
use apr_infer::{Data, Tensor, Value};
use apr_run::{AudioFeatures, ImageFeatures, InputKind, Runnable, report};

use super::arrays;
use super::given::{Given, read_media};
use super::job::Job;
use super::output::Output;
use super::timing::WithMemory;
use crate::args::RunArgs;
use crate::failure::{Failure, Outcome};

/// Value of `--want` that requests the features.
const NAME: &str = "features";

/// Returns `true` if the features are requested.
pub(super) fn are_wanted(args: &RunArgs) -> bool {
    args.want.iter().any(|name| name == NAME)
}

/// Returns `true` if a part to run has a value with this name, which then takes precedence.
pub(super) fn is_a_value(parts: &[Runnable], args: &RunArgs) -> bool {
    let runs = |part: &&Runnable| args.part.as_ref().is_none_or(|name| *name == part.name);
    parts
        .iter()
        .filter(runs)
        .any(|part| part.graph.body.values.iter().any(|value| value.name == NAME))
}

/// Computes the features, and shows or writes them. The model itself does not run.
pub(super) fn run(job: &Job<'_>, given: &Given) -> Outcome {
    if job.args.want.len() > 1 {
        let message = "--want features can't be combined with other values: it returns the \
                       preprocessed input and does not run the model";
        return Err(Failure::Usage(message.to_owned()));
    }
    let part = job.runner.part_taking(given.kind())?;
    let (names, outputs): (Vec<String>, Vec<Value>) =
        stacked(rows(job, given, &part.graph)?)?.into_iter().unzip();
    if let Some(output) = Output::of(job.args, &job.context.printer)? {
        let array = |(name, value): (&String, &Value)| Ok((name.clone(), value.tensor()?.clone()));
        let arrays =
            names.iter().zip(&outputs).map(array).collect::<apr_registry::Result<Vec<_>>>()?;
        output.write(&arrays)?;
    }

    let outcome = apr_infer::Outcome { outputs, peak_bytes: 0, work: 0, stopped: false };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let report = report(job.name, &part.name, &names, &outcome)?;
    job.context.printer.report(&WithMemory::of(report), |out, WithMemory { report, .. }| {
        report.outputs.iter().try_for_each(|output| arrays::render(out, output))
    })
}

/// The input features of each file.
fn rows(job: &Job<'_>, given: &Given, graph: &Graph) -> Outcome<Vec<Vec<(String, Value)>>> {
    let body = &graph.body;
    let name = |path: &Path| path.display().to_string();
    match given.kind() {
        InputKind::Audio => {
            let features = AudioFeatures::of(job.runner, body)?;
            let inputs = |path: &PathBuf| -> Outcome<_> {
                Ok(features.inputs(&name(path), read_media(path, job.context)?)?)
            };
            given.sounds.iter().map(inputs).collect()
        }
        InputKind::Image => {
            let features = ImageFeatures::of(job.runner, body, &given.texts)?;
            let inputs = |path: &PathBuf| -> Outcome<_> {
                Ok(features.inputs(&name(path), &read_media(path, job.context)?)?)
            };
            given.pictures.iter().map(inputs).collect()
        }
        InputKind::Arrays => Ok(vec![arrays::inputs(job, &given.arrays, graph)?]),
        InputKind::Text => Ok(vec![arrays::text_inputs(job, &given.texts, body)?]),
    }
}

/// The input features of several files, stacked along the first dimension.
fn stacked(rows: Vec<Vec<(String, Value)>>) -> Outcome<Vec<(String, Value)>> {
    let mut rows = rows.into_iter();
    let Some(mut all) = rows.next() else { return Ok(Vec::new()) };
    for row in rows {
        for ((_, first), (_, other)) in all.iter_mut().zip(row) {
            let joined = joined(first.tensor()?, other.tensor()?)?;
            *first = joined.into();
        }
    }
    Ok(all)
}

fn joined(first: &Tensor, other: &Tensor) -> Outcome<Tensor> {
    let (inner, others) = (first.shape().get(1..), other.shape().get(1..));
    if inner != others {
        let message = "files of different lengths don't fit one array: pass one at a time";
        return Err(Failure::Usage(message.to_owned()));
    }
    let mut shape = first.shape().to_vec();
    if let (Some(rows), Some(more)) = (shape.first_mut(), other.shape().first()) {
        *rows += more;
    }
    Ok(match (first.data(), other.data()) {
        (Data::F32(a), Data::F32(b)) => Tensor::new(shape, [&a[..], &b[..]].concat())?,
        (Data::I64(a), Data::I64(b)) => Tensor::new(shape, [&a[..], &b[..]].concat())?,
        _ => return Err(Failure::Usage("pass one file at a time".to_owned())),
    })
}
