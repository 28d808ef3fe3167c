//! What a source is like before it is converted: the verdict on each tensor, and nothing written.

use std::collections::HashMap;

use apr_arch::{FamilyModel, TensorExpectation};
use apr_core::Progress;
use apr_registry::{CheckpointReader, Pipeline, Result};
use apr_tensor::stats::Stats;
use serde::Serialize;

use crate::import::family_misfits;
use crate::inline::ValidationError;
use crate::physics::{Level, Physics, Sibling, Violation, expectation, outliers};
use crate::tensors::{TensorsOptions, list};

/// A tensor with its statistics and the violations found in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AnalyzedTensor {
    /// Canonical name, or the name in the source if there is no canonical name.
    pub name: String,
    /// Name in the source.
    pub source_name: String,
    /// `true` if no error was found in the values.
    pub pass: bool,
    /// Statistics; `None` for quantized tensors.
    pub stats: Option<Stats>,
    /// Expected statistics of the values.
    pub expected: Option<TensorExpectation>,
    /// Violations found in the values: errors and warnings.
    pub violations: Vec<Violation>,
}

/// The report of `apr convert --analyze-source`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AnalyzeReport {
    /// Path or location of the opened model.
    pub path: String,
    /// Title of its family.
    pub family: Option<String>,
    /// `true` if a conversion would succeed.
    pub pass: bool,
    /// Errors found in names and shapes.
    pub misfits: Vec<ValidationError>,
    /// The tensors, in the order of the source.
    pub tensors: Vec<AnalyzedTensor>,
}

/// Judges every tensor of a source.
///
/// # Errors
/// E002 and E007 when bytes can't be read.
pub fn analyze<P: Pipeline>(
    reader: &dyn CheckpointReader,
    file: &str,
    model: Option<&FamilyModel<'_>>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<AnalyzeReport> {
    let options = TensorsOptions { stats: true, ..TensorsOptions::default() };
    let rows = list(reader, file, &options, pipeline, progress)?.tensors;
    let siblings = rows.iter().zip(reader.tensors()).enumerate();
    let siblings: Vec<Sibling> = siblings
        .filter_map(|(position, (row, info))| {
            Sibling::of(model, position, info, row.stats.as_ref()?)
        })
        .collect();
    let outliers: HashMap<&str, Violation> = outliers(&siblings).into_iter().collect();
    let tensors: Vec<AnalyzedTensor> = rows
        .into_iter()
        .enumerate()
        .map(|(position, row)| {
            let expected = expectation(model, position, &reader.tensors()[position]);
            let stats = row.stats.as_ref();
            let mut violations = stats
                .map(|stats| Physics::ALL.violations(&row.name, stats, expected))
                .unwrap_or_default();
            violations.extend(outliers.get(row.name.as_str()).cloned());
            AnalyzedTensor {
                name: model
                    .and_then(|model| model.canonical(position))
                    .unwrap_or(&row.name)
                    .to_owned(),
                pass: violations.iter().all(|violation| violation.level() != Level::Error),
                source_name: row.name,
                stats: row.stats,
                expected,
                violations,
            }
        })
        .collect();
    let misfits = model.map(|model| family_misfits(reader, model).0).unwrap_or_default();
    Ok(AnalyzeReport {
        path: file.to_owned(),
        family: model.map(|model| model.family().title().to_owned()),
        pass: misfits.iter().all(|misfit| misfit.level != Level::Error)
            && tensors.iter().all(|tensor| tensor.pass),
        misfits,
        tensors,
    })
}
