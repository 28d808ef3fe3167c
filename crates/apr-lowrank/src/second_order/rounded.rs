//! GPTQ: weights are rounded to codes, column by column.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, Error, Result};
use apr_quantize::{Rounding, Scale};
use apr_tensor::cast::cast_values;
use apr_tensor::drift::Drift;
use apr_tensor::element::widen_f32;

use super::checkpoint::Rewrites;
use super::gram::Gram;
use super::layers::{Layers, Matrix};
use super::solve::{Block, Change};
use crate::matrix::read;
use crate::report::{Left, RoundedTensor, RoundingReport};

/// Rounds weights as a layout does; the scale of a group is chosen when the group begins, by what
/// the columns before it have made of its weights.
#[derive(Debug, Clone)]
pub struct Rounded {
    rounding: Rounding,
    /// What errors in the columns weigh where a scale is chosen.
    importance: Vec<f32>,
    /// Of rows, where each has one scale.
    of_rows: Vec<Scale>,
    /// Of the group of a row that is worked on.
    of_group: Option<Scale>,
}

impl Rounded {
    /// By a layout. `importance` is what errors in the columns weigh where a scale is chosen.
    #[must_use]
    pub fn new(rounding: Rounding, importance: Vec<f32>) -> Self {
        Self { rounding, importance, of_rows: Vec::new(), of_group: None }
    }

    fn group(&self) -> Option<usize> {
        self.rounding.group().and_then(|group| usize::try_from(group).ok())
    }
}

impl Change for Rounded {
    fn begin(&mut self, block: &Block<'_>, weights: &[f32]) {
        if self.group().is_none() && block.range().start == 0 {
            let scale = |row| self.rounding.scale(row, Some(&self.importance));
            self.of_rows = weights.chunks(block.columns()).map(scale).collect();
        }
    }

    fn value(&mut self, block: &Block<'_>, (number, row): (usize, &[f32]), at: usize) -> f32 {
        let column = block.range().start + at;
        let scale = match self.group() {
            None => self.of_rows.get(number).copied(),
            Some(group) if column.is_multiple_of(group) => {
                // Blocks of columns are whole groups.
                let end = (at + group).min(row.len());
                let importance = self.importance.get(column..column + end - at);
                self.of_group = Some(self.rounding.scale(&row[at..end], importance));
                self.of_group
            }
            Some(_) => self.of_group,
        };
        scale.map_or(row[at], |scale| self.rounding.round(row[at], scale))
    }
}

/// Matrices that are rounded by inputs, layer by layer.
#[derive(Debug, Clone)]
pub struct RoundingWork {
    rounding: Rounding,
    rows: u64,
    found: BTreeMap<usize, (String, Drift, f64)>,
}

impl RoundingWork {
    /// By a layout, of nothing yet.
    #[must_use]
    pub fn new(rounding: Rounding) -> Self {
        Self { rounding, rows: 0, found: BTreeMap::new() }
    }

    /// Rounds a matrix by the products of its inputs, and puts what becomes of it among `rewrites`.
    ///
    /// # Errors
    /// E001 where the inputs are of another length than its rows, E002 for values that are not
    /// finite, E007 and E008 when it can't be read or kept.
    pub fn round(
        &mut self,
        base: &dyn CheckpointReader,
        matrix: &Matrix,
        gram: Gram,
        rewrites: &Rewrites,
    ) -> Result<()> {
        let info = &base.tensors()[matrix.tensor];
        let before = read(base, matrix.tensor)?;
        let mut weights = before.clone();
        let (rows, mut rounded) = (gram.rows(), Rounded::new(self.rounding, gram.mean_squares()));
        let named = |error: Error| error.for_tensor(&info.name);
        let error = gram.rewrite(&mut weights, matrix.columns, &mut rounded).map_err(named)?;
        // Products of codes and scales become what libraries make of them.
        let mut bytes = Vec::new();
        cast_values(&weights, self.rounding.dtype(), &mut bytes);
        widen_f32(self.rounding.dtype(), &bytes, &mut weights);
        drop(bytes);
        if weights.iter().any(|value| !value.is_finite()) {
            let message = "values so large that codes and scales would make them infinite";
            return Err(named(Error::format(message)));
        }
        if self.rows == 0 {
            self.rows = rows;
        }
        let drift = Drift::of(&before, &weights);
        self.found.insert(matrix.tensor, (info.name.clone(), drift, error));
        rewrites.put(&info.name, self.rounding.dtype(), &weights)
    }

    /// How far each matrix moved, by its name.
    #[must_use]
    pub fn moved(&self) -> BTreeMap<String, Drift> {
        self.found.values().map(|(name, drift, _)| (name.clone(), *drift)).collect()
    }

    /// What was rounded. Weights that were not are left.
    #[must_use]
    pub fn report(&self, base: &dyn CheckpointReader, layers: &Layers) -> RoundingReport {
        let tensor = |(name, drift, output_error): &(String, Drift, f64)| RoundedTensor {
            name: name.clone(),
            quality: drift.into(),
            output_error: *output_error,
        };
        let left = layers.left.iter().map(|(tensor, why)| Left {
            name: base.tensors()[*tensor].name.clone(),
            why: (*why).to_owned(),
        });
        RoundingReport {
            method: "gptq",
            rows: self.rows,
            tensors: self.found.values().map(tensor).collect(),
            left: left.collect(),
        }
    }
}
