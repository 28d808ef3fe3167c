//! Pruning: weights that become zero, layers that go, tensors that are stored without their zeros.
//!
//! Each takes a checkpoint and gives one, which is converted, quantized or run like any other.
//!
//! ```
//! use apr::prune::{Amount, Pruning, Scope, plan};
//! use apr::job::Source;
//! use apr::{Families, Limits, Serial};
//!
//! let header = br#"{"a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend([1.0_f32, -0.1, 3.0, 0.2].iter().flat_map(|value| value.to_le_bytes()));
//! let model = apr::open(file, "model.safetensors", &Limits::default())?;
//!
//! let families = Families::builtin();
//! let half = Pruning::new(Amount::Share { share: 0.5, scope: Scope::Tensor });
//! let planned = plan(&Source::new(&*model, &families), half)?;
//! let (_pruned, report) = planned.apply(model, &Serial, &())?;
//! assert_eq!(report.tensors[0].zeros, 2);
//! # Ok::<(), apr::Error>(())
//! ```

#[cfg(feature = "native")]
use apr_core::Result;

#[cfg(feature = "native")]
use crate::Model;
#[cfg(feature = "native")]
use crate::reports::threads;

pub use apr_prune::{
    Amount, LayerChoice, LayerPlan, LayerReport, LayerWidth, Left, PrunePlan, PruneReport,
    PruneTotal, PrunedTensor, Pruning, Scope, SparseLayout, SparseReport, SparseTensor, Sparsity,
    WidthChoice, WidthPlan, WidthReport, least_influential, plan, plan_layers, plan_widths,
    sparsify,
};

#[cfg(feature = "native")]
impl Model {
    /// Prunes weights, and returns the model that has zeros instead of them, with a report. Weights
    /// are computed when they are read.
    ///
    /// ```
    /// use apr::prune::{Amount, Pruning, Scope};
    ///
    /// # let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// let half = Pruning::new(Amount::Share { share: 0.5, scope: Scope::Tensor });
    /// let (pruned, report) = apr::Model::open(source)?.prune(half)?;
    /// assert!(report.total.zeros > 0 && pruned.tensors().len() == 21);
    /// # Ok::<(), apr::Error>(())
    /// ```
    ///
    /// # Errors
    /// E001 when the pruning does not fit the model, E002 and E007 when a tensor can't be read.
    pub fn prune(self, pruning: Pruning) -> Result<(Self, PruneReport)> {
        let planned = plan(&self.source(), pruning)?;
        let threads = threads()?;
        self.changed(|reader| planned.apply(reader, &threads, &()))
    }
}
