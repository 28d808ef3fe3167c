//! What is pruned, and how much of it.

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, Pipeline, Progress, Result, TensorInfo};
use apr_quantize::{Imatrix, Kept, Role, importance, roles_of};
use apr_source::Source;
use apr_view::{NamePattern, check_decodable};
use serde::Serialize;

use crate::cut::{Cut, Weighed, smallest};
use crate::mask::{Mask, Norms};
use crate::pruned::Pruned;
use crate::report::PruneReport;
use crate::widths::Gradients;

/// Amount of weights to remove.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Share of the weights, from 0 to 1, smallest magnitudes first.
    Share {
        /// The share, rounded to whole weights, half to even.
        share: f64,
        /// Scope of the share.
        scope: Scope,
    },
    /// All weights of a smaller magnitude than this.
    Threshold(f32),
    /// All but `keep` of every `of` consecutive weights of a row.
    Pattern {
        /// Number of weights to keep.
        keep: usize,
        /// Weights of a group.
        of: usize,
    },
}

/// Scope of a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Share of each tensor.
    #[default]
    Tensor,
    /// All tensors together.
    Global,
}

/// Options for pruning.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Pruning {
    /// Amount of weights to remove.
    pub amount: Amount,
    /// Tensors whose names match; without one, the matrices and convolution kernels, but neither
    /// embeddings nor the output projection.
    pub targets: Option<NamePattern>,
    /// Mean squares of the inputs of each column, by which magnitudes are weighed.
    pub importance: Option<Imatrix>,
    /// Root mean square gradients of all elements by the names of tensors, by which magnitudes are
    /// weighed: the order of the squares is that of Fisher pruning (Theis et al. 2018,
    /// arXiv:1801.05787), by how much the loss rises without a weight.
    pub gradients: Option<Gradients>,
    /// Quantized tensors become floats of this dtype first.
    pub dequantize: Option<DType>,
    /// `true` to update the kept weights by the inputs of a calibration run (SparseGPT).
    ///
    /// The module `second_order` implements the update.
    pub updates: bool,
}

impl Pruning {
    /// Creates options for pruning by magnitude, with the default targets.
    #[must_use]
    pub const fn new(amount: Amount) -> Self {
        Self {
            amount,
            targets: None,
            importance: None,
            gradients: None,
            dequantize: None,
            updates: false,
        }
    }
}

/// A tensor that is not pruned, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Name of the tensor.
    pub name: String,
    /// Reason why the tensor is left unchanged.
    pub why: String,
}

/// Plan for pruning a checkpoint.
#[derive(Debug, Clone)]
#[must_use = "nothing is pruned until it is applied"]
pub struct PrunePlan {
    pruning: Pruning,
    tensors: Vec<Planned>,
    left: Vec<Left>,
}

/// A tensor that is pruned.
#[derive(Debug, Clone)]
struct Planned {
    position: usize,
    /// Norms of the inputs of the columns.
    norms: Option<Arc<[f32]>>,
    /// Root mean square gradients of the elements.
    gradients: Option<Arc<[f32]>>,
}

/// Decides what is pruned of a model.
///
/// # Errors
/// E001 for a share beyond 0 to 1, a threshold that is no positive number, a pattern that keeps
/// more than there is, quantized tensors that are not to be dequantized, a glob that matches
/// nothing, and a model without anything to prune; E003 for weights in codes that can't be decoded.
pub fn plan(source: &Source<'_>, pruning: Pruning) -> Result<PrunePlan> {
    check(&pruning)?;
    let reader = source.reader();
    check_decodable(reader)?;
    let family = source.family()?;
    let roles = roles_of(reader, family);
    let norms = match &pruning.importance {
        Some(matrix) => {
            let squares = importance(reader, family, matrix)?;
            let norms = |squares: Arc<[f32]>| squares.iter().map(|square| square.sqrt()).collect();
            squares.into_iter().map(|squares| squares.map(norms)).collect()
        }
        None => vec![None; roles.len()],
    };

    let (mut tensors, mut left) = (Vec::new(), Vec::new());
    let (mut matches, mut first_unsuited) = (0_usize, None);
    for (position, ((info, role), norms)) in
        reader.tensors().iter().zip(roles).zip(norms).enumerate()
    {
        let is_target = pruning.targets.as_ref().map(|glob| glob.is_match(&info.name));
        matches += usize::from(is_target == Some(true));
        let why = match (is_target, role) {
            (Some(false), _) | (None, Some(Role::Kept(Kept::Vector)) | None) => continue,
            (None, Some(Role::TokenEmbedding)) => Some("the token embeddings".to_owned()),
            (None, Some(Role::Output)) => Some("the output projection".to_owned()),
            (None, Some(Role::Kept(why))) => Some(why.to_string()),
            (None, Some(Role::Matrix)) | (Some(true), _) => {
                let has_inputs_first =
                    family.is_some_and(|family| family.has_inputs_first(position));
                let why = match pruning.importance.is_some() && has_inputs_first {
                    true => Some("its rows are inputs, not outputs".to_owned()),
                    false => unsuited(info, &pruning, &norms),
                };
                first_unsuited = first_unsuited.or_else(|| why.as_ref().map(|_| left.len()));
                why
            }
            (None, Some(_)) => continue,
        };
        match why {
            Some(why) => left.push(Left { name: info.name.clone(), why }),
            None if info.dtype.is_quantized() && pruning.dequantize.is_none() => {
                let message = format!("it is {}: weights are pruned as floats", info.dtype);
                return Err(Error::format(message).for_tensor(&info.name));
            }
            None => {
                let gradients = pruning.gradients.as_ref().and_then(|all| all.get(&info.name));
                let gradients = gradients.cloned();
                tensors.push(Planned { position, norms, gradients });
            }
        }
    }

    if tensors.is_empty() {
        let message = match (&pruning.targets, first_unsuited.and_then(|at| left.get(at))) {
            (Some(glob), _) if matches == 0 => {
                format!("no tensor's name matches '{}'", glob.text())
            }
            (_, Some(Left { name, why })) => format!("nothing to prune: {name}: {why}"),
            _ => "nothing to prune: the model has no matrices of floats".to_owned(),
        };
        return Err(Error::format(message));
    }
    Ok(PrunePlan { pruning, tensors, left })
}

fn check(pruning: &Pruning) -> Result<()> {
    let wrong = match pruning.amount {
        Amount::Share { share, .. } if !(0.0..=1.0).contains(&share) => {
            format!("a share of {share} is not between 0 and 1")
        }
        Amount::Threshold(threshold) if !(threshold.is_finite() && threshold > 0.0) => {
            format!("a threshold of {threshold} is not a positive number")
        }
        Amount::Pattern { keep, of } if keep == 0 || keep >= of => {
            format!("a pattern of {keep} of {of} prunes no weights, or all")
        }
        Amount::Share { scope: Scope::Global, .. } | Amount::Threshold(_)
            if pruning.importance.is_some() || pruning.updates =>
        {
            "activations rank the weights of each row: use them with a share of each tensor, or \
             with a pattern"
                .to_owned()
        }
        Amount::Threshold(_) if pruning.gradients.is_some() => {
            "a threshold applies to magnitudes only: use gradients with a share, or with a pattern"
                .to_owned()
        }
        _ => return Ok(()),
    };
    Err(Error::format(wrong))
}

/// Returns the reason why a tensor can't be pruned with these options, if there is one.
fn unsuited(info: &TensorInfo, pruning: &Pruning, norms: &Option<Arc<[f32]>>) -> Option<String> {
    let row_len = info.shape.row_len();
    match pruning.amount {
        _ if !(info.dtype.is_float() || info.dtype.is_quantized()) => {
            Some(format!("its elements are {}", info.dtype))
        }
        _ if info.shape.elements().is_none_or(|elements| elements == 0) => {
            Some("it has no elements".to_owned())
        }
        Amount::Pattern { of, .. } if !row_len.is_multiple_of(of as u64) => {
            Some(format!("its row length {row_len} is not a multiple of {of}"))
        }
        _ if pruning.importance.is_some() && norms.is_none() => {
            Some("its inputs were not measured".to_owned())
        }
        _ if pruning.gradients.as_ref().is_some_and(|all| !has_gradients(all, info)) => {
            Some("its gradients were not measured".to_owned())
        }
        _ => None,
    }
}

fn has_gradients(gradients: &HashMap<String, Arc<[f32]>>, info: &TensorInfo) -> bool {
    let elements = info.shape.elements();
    gradients.get(&info.name).is_some_and(|found| Some(found.len() as u64) == elements)
}

impl PrunePlan {
    /// Returns the number of tensors to prune.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns `true` if there are no tensors to prune. A plan always has some.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Returns the amount of weights to remove.
    #[must_use]
    pub fn amount(&self) -> Amount {
        self.pruning.amount
    }

    /// Returns the share of weights to set to zero, or `None` if the amount is not a share.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        match self.pruning.amount {
            Amount::Share { share, .. } => Some(share),
            _ => None,
        }
    }

    /// Positions of the tensors that are pruned.
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        self.tensors.iter().map(|planned| planned.position)
    }

    /// Tensors that are left alone, and why.
    #[must_use]
    pub fn left(&self) -> &[Left] {
        &self.left
    }

    /// Finds the thresholds, and prunes the checkpoint that was planned for.
    ///
    /// # Errors
    /// E002 and E007 when a tensor can't be read.
    pub fn apply<'b, P: Pipeline>(
        &self,
        base: Box<dyn CheckpointReader + 'b>,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<(Box<dyn CheckpointReader + 'b>, PruneReport)> {
        let masks = self.masks(&*base, pipeline, progress)?;
        let pruned = Pruned::new(base, masks, self.pruning.dequantize)?;
        let (total, tensors) = pruned.measure(pipeline, progress)?;
        let (method, share) = (self.method(), self.share());
        let report = PruneReport { method, share, total, tensors, left: self.left.clone() };
        Ok((Box::new(pruned.recorded(&report, self.scope()).reader), report))
    }

    fn scope(&self) -> Option<Scope> {
        match self.pruning.amount {
            Amount::Share { scope, .. } => Some(scope),
            _ => None,
        }
    }

    pub(crate) fn method(&self) -> String {
        let measure = match self.pruning.importance {
            _ if self.pruning.updates => "sparsegpt",
            Some(_) => "wanda",
            None if self.pruning.gradients.is_some() => "fisher",
            None => "magnitude",
        };
        match self.pruning.amount {
            Amount::Share { .. } => measure.to_owned(),
            Amount::Threshold(_) => "threshold".to_owned(),
            Amount::Pattern { keep, of } => format!("{measure} {keep}:{of}"),
        }
    }

    /// Returns the mask of each tensor.
    fn masks<P: Pipeline>(
        &self,
        base: &dyn CheckpointReader,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Vec<(usize, Mask)>> {
        let elements = |planned: &Planned| {
            let info = base.tensors().get(planned.position);
            info.and_then(|info| info.shape.elements()).unwrap_or(0)
        };
        let smallest = |planned: &[Planned], share: f64| {
            let all: u64 = planned.iter().map(elements).sum();
            let weighed = |planned: &Planned| Weighed {
                tensor: planned.position,
                weights: planned.gradients.clone(),
            };
            let weighed: Vec<Weighed> = planned.iter().map(weighed).collect();
            smallest(base, &weighed, share_of(share, all), pipeline, progress)
        };
        let cuts: Vec<Cut> = match self.pruning.amount {
            Amount::Share { share, scope: Scope::Global } => smallest(&self.tensors, share)?,
            Amount::Share { share, scope: Scope::Tensor } if self.pruning.importance.is_none() => {
                let cut = |planned: &Planned| smallest(std::slice::from_ref(planned), share);
                self.tensors.iter().map(cut).collect::<Result<Vec<_>>>()?.concat()
            }
            Amount::Threshold(threshold) => vec![Cut::below(threshold); self.tensors.len()],
            _ => Vec::new(),
        };
        let weighed = |planned: &Planned, mask: Mask| {
            let mask = match &planned.gradients {
                Some(weights) => {
                    Mask::Weighed { weights: Arc::clone(weights), mask: Box::new(mask) }
                }
                None => mask,
            };
            (planned.position, mask)
        };
        if !cuts.is_empty() {
            let cuts = cuts.into_iter().map(Mask::Cut);
            return Ok(self.tensors.iter().zip(cuts).map(|(of, mask)| weighed(of, mask)).collect());
        }
        let mask = |planned: &Planned| {
            let shape = &base.tensors()[planned.position].shape;
            let row_len = crate::weights::in_memory(shape.row_len())?;
            let norms = planned.norms.as_ref().map(|norms| {
                let rows = shape.dims().iter().rev().nth(1).copied().unwrap_or(1);
                Norms { norms: norms.clone(), row_len, rows }
            });
            let mask = match (self.pruning.amount, norms) {
                (Amount::Pattern { keep, of }, norms) => Mask::Groups { keep, of, norms },
                (Amount::Share { share, .. }, Some(norms)) => {
                    let count = crate::weights::in_memory(share_of(share, shape.row_len()))?;
                    Mask::Rows { count, norms }
                }
                _ => Mask::Cut(Cut::below(0.0)),
            };
            Ok(weighed(planned, mask))
        };
        self.tensors.iter().map(mask).collect()
    }
}

/// Returns a share of `all`, rounded half to even.
pub(crate) fn share_of(share: f64, all: u64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to all")]
    let count = (share * all as f64).round_ties_even() as u64;
    count.min(all)
}
