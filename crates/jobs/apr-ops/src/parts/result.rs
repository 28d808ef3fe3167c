//! What a part leaves behind: a JSON document (`docs/parts.md`).

use apr_core::json::{self, Object};
use apr_core::{Error, Limits, Loss, Result};
use apr_quantize::{Layout, Measured, Scheme};
use apr_registry::DType;
use apr_tensor::drift::Drift;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::exact;
use super::plan::{digest_of, encoded};
use crate::convert::{ConvertReport, Learnt, Rounding};
use crate::physics::Sibling;

/// The version of the results' format.
const VERSION: u64 = 1;

/// Maximum number of elements or bytes of a tensor in a result.
const MOST: u64 = 1 << 43;

/// Name of a result file in messages.
const WHAT: &str = "the result of a part";

/// Result of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartResult {
    /// Version of the format.
    apr_part: u64,
    /// The plan that it is a part of: [`PartsPlan::digest`](super::PartsPlan::digest).
    pub plan: String,
    /// Number of the part, counted from 0.
    pub part: usize,
    /// The file that it wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<WrittenFile>,
    /// Findings of the part, in the form of its job.
    pub report: Value,
}

/// A file that a part wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenFile {
    /// Name of the file, without a folder.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 digest of the file.
    pub blake3: String,
}

impl PartResult {
    /// The result of a part of a plan.
    #[must_use]
    pub fn new(plan: String, part: usize, file: Option<WrittenFile>, report: Value) -> Self {
        Self { apr_part: VERSION, plan, part, file, report }
    }

    /// Reads a result; `name` is its file's, for errors.
    ///
    /// # Errors
    /// E001 for what is no such JSON, E003 for another version, E008 over [`Limits::max_metadata`].
    pub fn parse(bytes: &[u8], name: &str, limits: &Limits) -> Result<Self> {
        let parsed = limits.check_metadata(bytes.len() as u64).and_then(|()| {
            let text = json::utf8(bytes, WHAT, 0)?;
            let parsed =
                serde_json::from_str(text).map_err(|error| json::error(&error, WHAT, text, 0));
            let Object(result): Object<Self> = parsed?;
            if result.apr_part != VERSION {
                let message = format!(
                    "this result has version {}; this apr reads {VERSION}",
                    result.apr_part
                );
                return Err(Error::version(message));
            }
            result.file.iter().try_for_each(|file| digest_of(&file.blake3).map(drop))?;
            Ok(result)
        });

        parsed.map_err(|error| error.in_file(name))
    }

    /// The result's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(self)
    }
}

/// Findings of a part that writes output.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct WrittenReport {
    /// Tensors that it wrote.
    pub tensor_count: usize,
    /// Elements of them.
    pub elements: u64,
    /// Bytes of tensors that it read.
    pub bytes_in: u64,
    /// Elements that a cast changed.
    pub rounding: Rounding,
    /// Data that could not be kept.
    pub losses: Vec<LossRecord>,
    /// Tensors whose values were looked at.
    pub checked: usize,
    /// Errors in tensors that were written anyway.
    pub violations: Vec<Value>,
    /// Warnings about tensors.
    pub odd: Vec<Value>,
    /// Weights of layers, which are compared with those in the other parts.
    pub siblings: Vec<Sibling>,
    /// Quantization errors of the tensors.
    pub measured: Vec<MeasuredRecord>,
    /// Further warnings.
    pub warnings: Vec<String>,
}

/// Record of a [`Loss`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossRecord {
    name: String,
    what: String,
    why: String,
}

/// A [`Measured`] tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRecord {
    name: String,
    dtype: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layout: Option<String>,
    bytes: u64,
    count: u64,
    non_finite: u64,
    #[serde(with = "exact")]
    sums: [f64; 3],
    #[serde(with = "exact")]
    max_error: [f64; 1],
}

impl From<&Measured> for MeasuredRecord {
    fn from(Measured { name, dtype, layout, bytes, drift }: &Measured) -> Self {
        Self {
            name: name.clone(),
            dtype: dtype.name().to_owned(),
            layout: layout.map(|layout| layout.name().to_owned()),
            bytes: *bytes,
            count: drift.count,
            non_finite: drift.non_finite,
            sums: [drift.sum_squared_error, drift.sum_squares, drift.sum_squares_new],
            max_error: [drift.max_error],
        }
    }
}

impl MeasuredRecord {
    /// Returns the measured quantization error.
    ///
    /// # Errors
    /// E001 for a type that is not known, and for numbers that no tensor has.
    pub(super) fn measured(self) -> Result<Measured> {
        let dtype = DType::ALL.iter().copied().find(|dtype| dtype.name() == self.dtype);
        let unknown = || Error::format(format!("{WHAT} names an unknown type"));
        let dtype = dtype.ok_or_else(unknown)?;
        let layout = self
            .layout
            .map(|name| Scheme::parse(&name).ok().and_then(Layout::of).ok_or_else(unknown));
        let layout = layout.transpose()?;
        let ([sum_squared_error, sum_squares, sum_squares_new], [max_error]) =
            (self.sums, self.max_error);
        let Self { name, bytes, count, non_finite, .. } = self;

        // Sums over all tensors of all parts stay within 64 bits.
        if count.max(bytes) > MOST || non_finite > count {
            return Err(Error::format(format!(
                "{WHAT} has numbers of elements that no tensor has"
            ))
            .for_tensor(name));
        }

        let drift =
            Drift { count, non_finite, sum_squared_error, sum_squares, sum_squares_new, max_error };
        Ok(Measured { name, dtype, layout, bytes, drift })
    }
}

impl From<&ConvertReport> for WrittenReport {
    fn from(report: &ConvertReport) -> Self {
        let Learnt { losses, violations, measured } = &report.learnt;
        let loss = |Loss { name, what, why }: &Loss| LossRecord {
            name: name.clone(),
            what: what.clone(),
            why: why.clone(),
        };
        let validation = report.validation.as_ref();
        let odd = validation.iter().flat_map(|validation| &validation.warnings);
        Self {
            tensor_count: report.tensors.len(),
            elements: report.elements,
            bytes_in: report.bytes_in,
            rounding: report.rounding,
            losses: losses.iter().map(loss).collect(),
            checked: validation.map_or(0, |validation| validation.checked),
            violations: violations.clone(),
            odd: odd.filter_map(|error| serde_json::to_value(error).ok()).collect(),
            siblings: validation.map_or_else(Vec::new, |validation| validation.siblings.clone()),
            measured: measured.iter().map(Into::into).collect(),
            warnings: report.warnings.clone(),
        }
    }
}

impl From<LossRecord> for Loss {
    fn from(LossRecord { name, what, why }: LossRecord) -> Self {
        Self { name, what, why }
    }
}
