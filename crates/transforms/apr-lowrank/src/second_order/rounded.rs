//! GPTQ: weights are rounded to codes, column by column.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, Error, Result, TensorInfo};
use apr_quantize::{Layout, Rounded, Rounding, Scale, global_scale};
use apr_tensor::cast::cast_values;
use apr_tensor::drift::Drift;
use apr_tensor::element::widen_f32;

use super::checkpoint::Rewrites;
use super::gram::Gram;
use super::layers::{Layers, Matrix};
use super::solve::{Block, Change};
use crate::matrix::read;
use crate::report::{Left, RoundedTensor, RoundingReport};

/// Rounds the weights of a matrix as a layout does, by the products of its inputs.
///
/// Scales are those of the weights as they were. Columns whose inputs are largest are rounded
/// first, so that most columns are left to take up their errors; in llm-compressor, this is
/// `actorder="static"`.
///
/// Returns the error of the outputs over these inputs, relative to their norm.
///
/// # Errors
/// E001 for rows of another length, E002 for weights that are not finite or products that can't be
/// factored, E008 where the products do not fit in memory twice.
pub fn round(rounding: Rounding, gram: Gram, weights: &mut [f32], columns: usize) -> Result<f64> {
    gram.check_columns(columns)?;
    let importance = gram.mean_squares();
    let size = rounding.group().and_then(|group| usize::try_from(group).ok()).unwrap_or(columns);
    let scales = |row: &[f32]| -> Vec<Scale> {
        let groups = row.chunks(size.max(1)).zip(importance.chunks(size.max(1)));
        groups.map(|(values, importance)| rounding.scale(values, Some(importance))).collect()
    };
    let scales = weights.chunks(columns.max(1)).map(scales).collect();
    let order = gram.largest_first();
    let gram = gram.reordered(&order)?;
    reorder(weights, columns, |place| (place, order[place]));
    let mut codes = Codes { rounding, scales, order: &order, size };
    let error = gram.rewrite(weights, columns, &mut codes)?;
    reorder(weights, columns, |place| (order[place], place));
    Ok(error)
}

/// Moves the columns of a matrix: `moves` gives the new and the old place of each.
fn reorder(weights: &mut [f32], columns: usize, moves: impl Fn(usize) -> (usize, usize)) {
    let mut old = vec![0.0; columns];
    for row in weights.chunks_exact_mut(columns.max(1)) {
        old.copy_from_slice(row);
        for (to, from) in (0..columns).map(&moves) {
            row[to] = old[from];
        }
    }
}

/// The nearest codes of a layout, with scales that are given.
struct Codes<'o> {
    rounding: Rounding,
    /// Scales of the groups of each row.
    scales: Vec<Vec<Scale>>,
    /// The columns, in the order in which they are rounded.
    order: &'o [usize],
    /// Columns of a group.
    size: usize,
}

impl Change for Codes<'_> {
    fn begin(&mut self, _: &Block<'_>, _: &[f32]) {}

    fn value(&mut self, block: &Block<'_>, (number, row): (usize, &[f32]), at: usize) -> f32 {
        let group = self.order[block.range().start + at] / self.size;
        self.rounding.round(row[at], self.scales[number][group])
    }
}

/// Matrices that are rounded by inputs, layer by layer.
#[derive(Debug, Clone)]
pub struct RoundingWork {
    /// The layouts of weights, and the numbers of the sets that have one scale of all scales, by
    /// position.
    weights: BTreeMap<usize, (Layout, usize)>,
    /// These scales, by set.
    globals: BTreeMap<usize, f32>,
    rows: u64,
    found: BTreeMap<usize, (String, Rounded, f64)>,
}

impl RoundingWork {
    /// Creates the work of rounding weights to layouts, without results.
    ///
    /// `weights` has the layout and the set number of each weight, by position. Weights with the
    /// same number share one global scale, if the layout has one.
    #[must_use]
    pub fn new(weights: BTreeMap<usize, (Layout, usize)>) -> Self {
        Self { weights, globals: BTreeMap::new(), rows: 0, found: BTreeMap::new() }
    }

    /// Returns the rounding rules of a weight.
    fn rounding(&mut self, base: &dyn CheckpointReader, tensor: usize) -> Result<Rounding> {
        let TensorInfo { name, dtype, .. } = &base.tensors()[tensor];
        let Some(&(layout, set)) = self.weights.get(&tensor) else {
            return Err(Error::format("a weight without a layout").for_tensor(name));
        };
        if !layout.has_global() {
            return Ok(layout.rounding(*dtype, 1.0));
        }
        let global = match self.globals.get(&set) {
            Some(global) => *global,
            None => {
                let of_set = self.weights.iter().filter(|(_, other)| **other == (layout, set));
                let global = global_scale(base, of_set.map(|(tensor, _)| *tensor))?;
                self.globals.insert(set, global);
                global
            }
        };
        Ok(layout.rounding(*dtype, global))
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
        let rows = gram.rows();
        let named = |error: Error| error.for_tensor(&info.name);
        let rounding = self.rounding(base, matrix.tensor)?;
        let error = round(rounding, gram, &mut weights, matrix.columns).map_err(named)?;
        // Products of codes and scales become what libraries make of them.
        let mut bytes = Vec::new();
        cast_values(&weights, rounding.dtype(), &mut bytes);
        widen_f32(rounding.dtype(), &bytes, &mut weights);
        drop(bytes);
        if weights.iter().any(|value| !value.is_finite()) {
            let message = "values so large that codes and scales would make them infinite";
            return Err(named(Error::format(message)));
        }
        // An expert meets some of them.
        self.rows = self.rows.max(rows);
        let rounded = Rounded { rounding, drift: Drift::of(&before, &weights) };
        self.found.insert(matrix.tensor, (info.name.clone(), rounded, error));
        rewrites.put(&info.name, rounding.dtype(), &weights)
    }

    /// Returns the rounding of each matrix, by its name.
    #[must_use]
    pub fn rounded(&self) -> BTreeMap<String, Rounded> {
        self.found.values().map(|(name, rounded, _)| (name.clone(), *rounded)).collect()
    }

    /// Returns the report on the rounded matrices. Other weights are listed as left unchanged.
    #[must_use]
    pub fn report(&self, base: &dyn CheckpointReader, layers: &Layers) -> RoundingReport {
        let tensor = |(name, rounded, output_error): &(String, Rounded, f64)| RoundedTensor {
            name: name.clone(),
            quality: (&rounded.drift).into(),
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
