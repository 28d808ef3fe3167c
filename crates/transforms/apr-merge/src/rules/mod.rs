//! What a method does to one tensor: scalars of the whole tensor first, where it needs any, then
//! element by element.
//!
//! Each kernel follows the order of operations that mergekit 0.1.5 was seen to have, with one
//! rounding after each (`grid.rs`). Sums over a whole tensor are exact to `f64` and rounded once;
//! those of PyTorch depend on how the processor's vectors split them, so that what follows from
//! such a sum in `f32` may differ in the last bits.

mod fusion;
mod linear;
mod ram;
mod sce;
mod sphere;
mod spheres;
mod stock;
mod task;

use std::collections::BTreeMap;

use apr_core::{Error, Result};

use crate::elements::{Block, Elements};
use crate::grid::on_grid;
use crate::method::Method;

/// Computes elements, once all scalars are known.
pub(crate) trait Kernel: Send + Sync {
    /// Returns `true` if blocks must consist of whole rows.
    fn by_row(&self) -> bool {
        false
    }

    /// Appends the merged elements of a block.
    fn apply(&self, block: &Block, out: &mut Vec<f64>);
}

/// A method with the parameters of one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) method: Method,
    /// The position of the base among the inputs.
    pub(crate) base: Option<usize>,
    /// Values by parameter name: one value, or one for each input.
    pub(crate) values: BTreeMap<&'static str, Vec<f64>>,
    /// Name of the tensor in the output, from which random numbers follow.
    pub(crate) name: String,
    pub(crate) seed: u64,
}

impl Rule {
    /// A parameter of the merge.
    fn one(&self, name: &str) -> f64 {
        self.values.get(name).and_then(|values| values.first()).copied().unwrap_or_default()
    }

    fn flag(&self, name: &str) -> bool {
        self.one(name) != 0.0
    }

    /// A parameter of a model.
    fn of(&self, name: &str, input: usize) -> f64 {
        self.values.get(name).and_then(|values| values.get(input)).copied().unwrap_or_default()
    }

    /// The inputs that are not the base.
    fn others(&self, elements: &Elements<'_>) -> Vec<usize> {
        (0..elements.inputs.len()).filter(|&input| Some(input) != self.base).collect()
    }

    /// The base, and the inputs that are not.
    fn parted(&self, elements: &Elements<'_>) -> Result<(usize, Vec<usize>)> {
        let base = self.base.ok_or_else(|| self.lacks("a base"))?;
        Ok((base, self.others(elements)))
    }

    fn lacks(&self, what: &str) -> Error {
        Error::format(format!("{} needs {what}", self.method)).for_tensor(&self.name)
    }

    /// Computes what has to be known of the whole tensor.
    ///
    /// # Errors
    /// What reading the tensor says, and E001 where parameters and tensor contradict each other.
    pub(crate) fn prepare(&self, elements: &Elements<'_>) -> Result<Box<dyn Kernel>> {
        let dtype = elements.dtype;
        match self.method {
            Method::Average => on_grid!(dtype, linear::average(self, elements)),
            Method::Linear => on_grid!(dtype, linear::linear(self, elements)),
            Method::Passthrough => on_grid!(dtype, linear::scale(self)),
            Method::NearSwap => on_grid!(dtype, linear::nearswap(self, elements)),
            Method::Slerp => on_grid!(dtype, sphere::slerp(self, elements)),
            Method::NuSlerp => on_grid!(dtype, sphere::nuslerp(self, elements)),
            Method::MultiSlerp => on_grid!(dtype, spheres::multislerp(self, elements)),
            Method::Karcher => on_grid!(dtype, spheres::karcher(self, elements)),
            Method::TaskArithmetic
            | Method::Ties
            | Method::DareLinear
            | Method::DareTies
            | Method::Della
            | Method::DellaLinear
            | Method::Breadcrumbs
            | Method::BreadcrumbsTies => on_grid!(dtype, task::prepare(self, elements)),
            Method::Sce => on_grid!(dtype, sce::prepare(self, elements)),
            Method::Ram | Method::RamPlusTl => on_grid!(dtype, ram::prepare(self, elements)),
            Method::ModelStock => on_grid!(dtype, stock::prepare(self, elements)),
            Method::ArceeFusion => on_grid!(dtype, fusion::prepare(self, elements)),
        }
    }
}

/// The sum of terms in order, rounded after each addition as sums accumulate, and then to the grid.
#[inline]
fn fold<G: crate::grid::Grid>(terms: impl Iterator<Item = f64>) -> f64 {
    G::q(terms.fold(0.0, |sum, term| G::wide(sum + term)))
}
