//! Weights that stay in floats, and the reasons.

use std::fmt;

use apr_arch::{FamilyModel, TensorKind};
use apr_core::TensorInfo;

use super::{Layout, is_router};
use crate::category::Kept;
use crate::role::Role;

/// Weight of a layer that stays in floats although a layout is for such weights.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeftWeight {
    /// Name of the tensor, without `.weight` at the end.
    pub module: String,
    /// Reason why it stays in floats.
    pub why: LeftReason,
    /// `true` if libraries have the tensor as the weight of a module.
    pub(super) is_of_module: bool,
}

/// Reason why a weight stays in floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftReason {
    /// Servers expect the output matrix in floats.
    Output,
    /// One row for each input, the other way round than `torch.nn.Linear`: no library has the
    /// layouts for such a module.
    Conv1D,
    /// A role that is not quantized.
    Kept(Kept),
    /// The matrices of several experts in one tensor.
    Stack,
    /// Not two dimensions.
    Dimensions,
    /// The number of columns is not a multiple of this.
    Columns(u64),
    /// The number of rows is not a multiple of this.
    Rows(u64),
    /// The choice of a rule.
    Asked,
    /// Elements or a name that the layouts do not have.
    Other,
}

impl fmt::Display for LeftReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output => f.write_str("the output matrix"),
            Self::Conv1D => f.write_str("Conv1D weights"),
            Self::Kept(Kept::Vector) => f.write_str("a single row"),
            Self::Kept(why) => why.fmt(f),
            Self::Stack => f.write_str("experts in one tensor"),
            Self::Dimensions => f.write_str("not two dimensions"),
            Self::Columns(group) => write!(f, "columns not a multiple of {group}"),
            Self::Rows(words) => write!(f, "rows not a multiple of {words}"),
            Self::Asked => f.write_str("as chosen"),
            Self::Other => f.write_str("not floats, or no name with '.weight'"),
        }
    }
}

impl LeftWeight {
    /// Returns the entry for a weight that stays in floats by a rule.
    pub(super) fn asked(info: &TensorInfo) -> Self {
        let module = info.name.strip_suffix(".weight").unwrap_or(&info.name).to_owned();
        Self { module, why: LeftReason::Asked, is_of_module: true }
    }

    /// Returns the entry for a tensor that is not laid out, or `None` for tensors that no layout is
    /// for: embeddings, norms, biases, kernels.
    ///
    /// `info` has the name in libraries, `tensor` is the position in the model.
    pub(super) fn of(
        layout: Layout,
        info: &TensorInfo,
        role: Option<Role>,
        (tensor, model): (usize, Option<&FamilyModel<'_>>),
    ) -> Option<Self> {
        let module = info.name.strip_suffix(".weight");
        let dims = info.shape.dims();
        let is_matrix = dims.len() == 2 && module.is_some();
        let kind = || model?.family().kind(model?.canonical(tensor)?);
        let why = match role? {
            Role::Output if !matches!(layout, Layout::Mlx(_)) => LeftReason::Output,
            Role::Output => layout.misfit(info).unwrap_or(LeftReason::Other),
            Role::Matrix if is_router(&info.name) => LeftReason::Kept(Kept::Router),
            Role::Matrix if is_position(model, tensor) => return None,
            Role::Matrix if has_inputs_first(model, tensor) && dims.len() == 2 => {
                LeftReason::Conv1D
            }
            Role::Matrix if dims.len() != 2 => {
                if kind() == Some(TensorKind::Conv) || info.name.contains("conv") {
                    return None;
                }
                let is_stack = info.name.contains("expert");
                if is_stack { LeftReason::Stack } else { LeftReason::Dimensions }
            }
            Role::Matrix => layout.misfit(info).unwrap_or(LeftReason::Other),
            Role::Kept(why @ (Kept::Router | Kept::Small | Kept::NoGain | Kept::Vector))
                if is_matrix && kind() != Some(TensorKind::Conv) =>
            {
                LeftReason::Kept(why)
            }
            Role::TokenEmbedding | Role::Kept(_) => return None,
        };
        let is_of_module = is_matrix;
        Some(Self { module: module.unwrap_or(&info.name).to_owned(), why, is_of_module })
    }
}

/// Returns `true` if a tensor has one row for each input, as in GPT-2's `Conv1D`.
pub(super) fn has_inputs_first(model: Option<&FamilyModel<'_>>, tensor: usize) -> bool {
    model.is_some_and(|model| model.has_inputs_first(tensor))
}

/// Returns `true` for a table of positions, which is a module of embeddings.
pub(super) fn is_position(model: Option<&FamilyModel<'_>>, tensor: usize) -> bool {
    let kind = model.and_then(|model| model.family().kind(model.canonical(tensor)?));
    kind == Some(TensorKind::Position)
}
