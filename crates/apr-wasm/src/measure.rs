//! Statistics and distributions of one tensor, beside what is expected of its kind.

use apr_arch::{FamilyModel, TensorKind};
use apr_core::{CheckpointReader, Result, Serial};
use apr_ops::physics::{Physics, expectation};
use apr_ops::tensors::{HistogramReport, TensorRow, find, histogram, measured};
use serde::Serialize;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::{Thrown, json};
use crate::model::Model;
use crate::progress::{OnProgress, Told};
use crate::reports::no_such_tensor;

/// A report with what people call the tensor's kind, and what its values violate.
#[derive(Serialize)]
struct Judged<R> {
    #[serde(flatten)]
    report: R,
    kind: Option<&'static str>,
    violations: Vec<String>,
}

#[wasm_bindgen]
impl Model {
    /// Statistics of a tensor, in one read: a row of `apr tensors --stats`.
    ///
    /// # Errors
    /// E002, E004 and E007 where its bytes can't be read or are damaged.
    pub fn stats(
        &self,
        name: &str,
        on_progress: OnProgress,
    ) -> std::result::Result<String, JsValue> {
        let tensor = self.position(name)?;
        let told = Told::new(on_progress);
        let row = measured(&*self.reader, tensor, &Serial, &told).map_err(Thrown::from)?;
        let source = self.source();
        let family = source.family().map_err(Thrown::from)?;
        json(&judged(row.clone(), &row, &*self.reader, tensor, family))
    }

    /// Statistics and distribution of a tensor: the report of `apr tensors --hist`.
    ///
    /// # Errors
    /// E002, E004 and E007 where its bytes can't be read or are damaged.
    pub fn histogram(
        &self,
        name: &str,
        bins: usize,
        on_progress: OnProgress,
    ) -> std::result::Result<String, JsValue> {
        let tensor = self.position(name)?;
        let told = Told::new(on_progress);
        let report =
            histogram(&*self.reader, tensor, bins, &Serial, &told).map_err(Thrown::from)?;
        let source = self.source();
        let family = source.family().map_err(Thrown::from)?;
        let row = report.tensor.clone();
        json(&judged(report, &row, &*self.reader, tensor, family))
    }

    /// The distribution of a tensor of two models that are compared, in one layout; `is_other` for
    /// that of the second one.
    ///
    /// # Errors
    /// E002, E004 and E007 where its bytes can't be read or are damaged.
    pub fn distribution(
        &self,
        other: &Model,
        name: &str,
        is_other: bool,
        bins: usize,
    ) -> std::result::Result<String, JsValue> {
        let report = self.distribution_of(other, name, is_other, bins).map_err(Thrown::from)?;
        match report {
            Some(report) => json(&report),
            None => Err(no_such_tensor(name).into()),
        }
    }
}

impl Model {
    fn distribution_of(
        &self,
        other: &Self,
        name: &str,
        is_other: bool,
        bins: usize,
    ) -> Result<Option<HistogramReport>> {
        let sources = [self.source(), other.source()];
        let views = apr_ops::diff::alike(&sources[0], &sources[1]);
        let side = if is_other { &views.right } else { &views.left };
        let Ok(tensor) = find(side, name) else { return Ok(None) };
        histogram(side, tensor, bins, &Serial, &()).map(Some)
    }
}

fn judged<R>(
    report: R,
    row: &TensorRow,
    reader: &dyn CheckpointReader,
    tensor: usize,
    family: Option<&FamilyModel<'_>>,
) -> Judged<R> {
    let info = &reader.tensors()[tensor];
    let expected = expectation(family, tensor, info);
    let violations = row.stats.as_ref().map(|stats| {
        let found = Physics::ALL.violations(&info.name, stats, expected);
        found.iter().map(ToString::to_string).collect()
    });
    Judged {
        report,
        kind: expected.map(|expected| TensorKind::name(expected.kind)),
        violations: violations.unwrap_or_default(),
    }
}
