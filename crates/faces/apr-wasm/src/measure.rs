//! Statistics and distributions of one tensor, beside what is expected of its kind.

use apr_core::Serial;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::{Thrown, json};
use crate::model::Model;
use crate::progress::{OnProgress, Told};
use crate::reports::no_such_tensor;

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
        json(&self.session().statistics(tensor, &Serial, &told).map_err(Thrown::from)?)
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
        json(&self.session().histogram(tensor, bins, &Serial, &told).map_err(Thrown::from)?)
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
        let (left, right) = (self.session(), other.session());
        let models = left.beside(&right);
        let report = models.distribution(name, is_other, bins, &Serial, &());
        match report.map_err(Thrown::from)? {
            Some(report) => json(&report),
            None => Err(no_such_tensor(name).into()),
        }
    }
}
