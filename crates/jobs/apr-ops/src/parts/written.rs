//! Finishing a job that writes, and where its parts are cut.

use apr_core::{Limits, Loss};
use apr_quantize::{QualityLog, QuantizationReport};
use apr_registry::apr2::Manifest;
use apr_registry::{Error, Notes, Result};
use serde::Serialize;
use serde_json::Value;

use super::plan::PartsPlan;
use super::result::{PartResult, WrittenReport};
use crate::convert::Rounding;
use crate::inline::beside_siblings;

/// A job whose parts are done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Finished {
    /// Tensors that were written.
    pub tensor_count: usize,
    /// Number of elements of these tensors.
    pub elements: u64,
    /// Bytes of tensors that were read.
    pub bytes_in: u64,
    /// Rounding of casts, in elements.
    pub rounding: Rounding,
    /// Data that could not be kept.
    pub losses: Vec<Loss>,
    /// Tensors whose values were looked at.
    pub checked: usize,
    /// Errors in tensors that were written anyway.
    pub violations: Vec<Value>,
    /// Warnings about tensors.
    pub odd: Vec<Value>,
    /// Quantization error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationReport>,
    /// Exceeded limits of gates, for an output that is written anyway.
    ///
    /// The caller that judges the output adds them.
    pub gate_failures: Vec<String>,
    /// Further warnings, without duplicates.
    pub warnings: Vec<String>,
}

/// Combines the results of a job's parts, and completes the manifest with each shard's checksum.
///
/// Results must be in the order of their parts and belong to the plan.
///
/// # Errors
/// E001 for reports of another kind of job, and the errors in the plan's manifest.
pub fn finish(
    plan: &PartsPlan,
    results: &[PartResult],
    crc32: &[u32],
    limits: &Limits,
) -> Result<(Finished, Option<Manifest>)> {
    let mut all = WrittenReport::default();
    for result in results {
        let report = serde_json::from_value(result.report.clone()).map_err(|error| {
            Error::format(format!("the result of part {}: {error}", result.part))
        })?;
        all.add(report);
    }

    let mut log = QualityLog::default();
    for measured in std::mem::take(&mut all.measured) {
        log.extend([measured.measured()?]);
    }

    let beside = beside_siblings(&all.siblings);
    all.odd.extend(beside.iter().filter_map(|warning| serde_json::to_value(warning).ok()));
    let quantization = log.finish();
    let losses: Vec<Loss> = std::mem::take(&mut all.losses).into_iter().map(Into::into).collect();
    let degradation = quantization.as_ref().and_then(|report| report.degradation.as_ref());
    let notes = Notes {
        losses: losses.clone(),
        violations: all.violations.clone(),
        degradation: degradation.and_then(|degradation| serde_json::to_value(degradation).ok()),
    };
    let manifest = plan.manifest(limits)?.map(|mut manifest| {
        for ((shard, result), crc32) in manifest.shards.iter_mut().zip(results).zip(crc32) {
            shard.size = result.file.as_ref().map_or(shard.size, |file| file.bytes);
            shard.crc32 = *crc32;
        }
        manifest.note(&notes);
        manifest
    });

    let finished = Finished {
        tensor_count: all.tensor_count,
        elements: all.elements,
        bytes_in: all.bytes_in,
        rounding: all.rounding,
        losses,
        checked: all.checked,
        violations: all.violations,
        odd: all.odd,
        quantization,
        gate_failures: Vec::new(),
        warnings: all.warnings,
    };

    Ok((finished, manifest))
}

impl WrittenReport {
    fn add(&mut self, other: Self) {
        // Results are files that anybody may have written.
        self.tensor_count = self.tensor_count.saturating_add(other.tensor_count);
        self.elements = self.elements.saturating_add(other.elements);
        self.bytes_in = self.bytes_in.saturating_add(other.bytes_in);
        self.rounding.merge(other.rounding);

        self.losses.extend(other.losses);
        self.checked = self.checked.saturating_add(other.checked);
        self.violations.extend(other.violations);
        self.odd.extend(other.odd);
        self.siblings.extend(other.siblings);
        self.measured.extend(other.measured);
        for warning in other.warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

/// Returns the smallest size with which items of these lengths fill at most `parts` parts.
///
/// `count` returns the number of parts for a size.
///
/// # Errors
/// Returns the errors of `count`.
pub fn smallest_size(
    lens: &[u64],
    parts: usize,
    mut count: impl FnMut(u64) -> Result<usize>,
) -> Result<u64> {
    let total = lens.iter().fold(0, |sum: u64, &len| sum.saturating_add(len)).max(1);
    let largest = lens.iter().copied().max().unwrap_or_default().max(1);
    // Whatever the size, a piece stays whole.
    let (mut low, mut high) = (largest.max(total / parts.max(1) as u64), total);
    while low < high {
        let middle = low + (high - low) / 2;
        if count(middle)? <= parts { high = middle } else { low = middle + 1 }
    }
    Ok(low)
}
