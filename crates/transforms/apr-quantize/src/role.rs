//! What a tensor is for where llama.cpp has no name for it: by the family, the shape, and only then
//! the name.

use apr_arch::{FamilyModel, GGUF, TensorKind};
use apr_core::Shape;
use apr_registry::{CheckpointReader, DTypeKind, TensorInfo};

use super::category::{Category, Kept, is_matrix, kept, kept_elsewhere};

/// Role of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Rows that the ids of tokens select.
    TokenEmbedding,
    /// Turns vectors into a score for each token.
    Output,
    /// Another matrix that multiplies vectors.
    Matrix,
    /// Tensor that is not quantized.
    Kept(Kept),
}

/// Beginnings of tensor names that GGUF files of llama.cpp have.
const GGUF_BEGINNINGS: [&str; 6] =
    ["blk.", "enc.blk.", "dec.blk.", "v.blk.", "a.blk.", "token_embd."];

/// Returns `true` if llama.cpp's rules cover names like this.
pub(super) fn is_gguf_name(name: &str) -> bool {
    GGUF_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

impl Role {
    /// Returns the role by the family's `kind`, or by name and shape if `kind` is unknown.
    ///
    /// `tokens` is the number of tokens, or 0 if it is unknown.
    pub(super) fn of(info: &TensorInfo, kind: Option<TensorKind>, tokens: u64) -> Self {
        let Some(kind) = kind else { return Self::of_unknown(&info.name, &info.shape) };
        if !is_matrix(&info.shape) {
            return Self::Kept(Kept::Vector);
        }
        if let Some(kept) = kept_as(kind, &info.shape) {
            return Self::Kept(kept);
        }

        let is_for_tokens = tokens == 0 || rows(&info.shape) == tokens;
        match kind {
            TensorKind::Embedding if is_for_tokens => Self::TokenEmbedding,
            TensorKind::Embedding => Self::Kept(Kept::Position),
            TensorKind::Head if is_for_tokens => Self::Output,
            // Heads that classify are matrices like others.
            _ => Self::Matrix,
        }
    }

    /// Returns the role of a tensor of an unknown family.
    ///
    /// Each matrix is a weight, except for a few common names that identify embeddings, output
    /// matrices and tensors that are better not quantized.
    pub(super) fn of_unknown(name: &str, shape: &Shape) -> Self {
        if !is_matrix(shape) {
            return Self::Kept(Kept::Vector);
        }
        if name.rsplit('.').next() == Some("bias") {
            return Self::Kept(Kept::Bias);
        }
        match (kept_elsewhere(name), Category::elsewhere(name)) {
            (Some(kept), _) => Self::Kept(kept),
            (None, Some(Category::TokenEmbedding)) => Self::TokenEmbedding,
            (None, Some(Category::Output)) => Self::Output,
            _ => Self::Matrix,
        }
    }
}

/// Returns the reason why a matrix of this kind is never quantized, if there is one.
fn kept_as(kind: TensorKind, shape: &Shape) -> Option<Kept> {
    match kind {
        TensorKind::Position => Some(Kept::Position),
        // Kernels over images are the patch embedding, which llama.cpp leaves alone.
        TensorKind::Conv => (shape.dims().len() > 3).then_some(Kept::Small),
        TensorKind::NormGamma | TensorKind::NormBeta => Some(Kept::Norm),
        TensorKind::Bias => Some(Kept::Bias),
        TensorKind::Buffer => Some(Kept::Buffer),
        TensorKind::Scale => Some(Kept::Scale),
        _ => None,
    }
}

/// Returns the role of a tensor if only its name and shape are known.
pub(super) fn by_name(name: &str, shape: &Shape) -> Role {
    if !is_gguf_name(name) && name != "output.weight" {
        return Role::of_unknown(name, shape);
    }
    match (kept(name, shape, ""), Category::of(name)) {
        (Some(why), _) => Role::Kept(why),
        (None, Category::TokenEmbedding) => Role::TokenEmbedding,
        (None, Category::Output) => Role::Output,
        (None, _) => Role::Matrix,
    }
}

/// Rows of the matrix, or of all matrices of a stack.
fn rows(shape: &Shape) -> u64 {
    shape.dims().split_last().map_or(0, |(_, outer)| outer.iter().product())
}

/// Returns the role of each tensor by position; `None` for tensors whose elements are not floats.
#[must_use]
pub fn roles_of(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
) -> Vec<Option<Role>> {
    let names = gguf_names(reader, model);
    let roles = roles(reader, model, &names);
    let known = reader.tensors().iter().zip(names).zip(roles);
    // The mel filterbank that an import adds is no weight of the model.
    let auxiliary = reader.metadata().auxiliary_tensor();
    let role = |((info, name), role): ((&TensorInfo, Option<String>), Option<Role>)| {
        if auxiliary == Some(info.name.as_str()) {
            return Some(Role::Kept(Kept::Buffer));
        }
        is_of_floats(info).then(|| {
            role.unwrap_or_else(|| by_name(name.as_deref().unwrap_or(&info.name), &info.shape))
        })
    };
    known.map(role).collect()
}

fn is_of_floats(info: &TensorInfo) -> bool {
    matches!(info.dtype.kind(), DTypeKind::Float | DTypeKind::MiniFloat | DTypeKind::Quantized)
}

/// Returns the name of each tensor in an importance measurement, by position.
///
/// It is the name in GGUF files, or the tensor's own name if GGUF does not have the family. The
/// matrix of one expert is named after its stack in GGUF, see [`measured_expert`].
#[must_use]
pub fn measured_names(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
) -> Vec<String> {
    let of_expert = |tensor: usize| {
        expert_of(model, tensor).map(|(stack, expert)| measured_expert(&stack, expert))
    };
    let names = gguf_names(reader, model).into_iter().zip(reader.tensors()).enumerate();
    names
        .map(|(tensor, (name, info))| {
            name.or_else(|| of_expert(tensor)).unwrap_or_else(|| info.name.clone())
        })
        .collect()
}

/// Returns the name in GGUF files of the stack that holds the matrix of one expert, and the number
/// of the expert.
pub(super) fn expert_of(model: Option<&FamilyModel<'_>>, tensor: usize) -> Option<(String, u64)> {
    let (model, family) = (model?, model?.family());
    let (stack, expert) = family.stack(model.canonical(tensor)?)?;
    Some((family.source_name(&stack, &family.default_naming(GGUF)?)?, expert))
}

/// Returns the name of one expert's matrix of a stack in an importance measurement.
///
/// ```
/// let name = apr_quantize::measured_expert("blk.0.ffn_up_exps.weight", 3);
/// assert_eq!(name, "blk.0.ffn_up_exps.weight[3]");
/// ```
#[must_use]
pub fn measured_expert(stack: &str, expert: u64) -> String {
    format!("{stack}[{expert}]")
}

/// Names that llama.cpp's rules know, for families that it has.
pub(super) fn gguf_names(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
) -> Vec<Option<String>> {
    let model = model.filter(|model| model.family().is_in_gguf());
    let gguf = model.and_then(|model| Some((model, model.family().default_naming(GGUF)?)));
    let name = |position| {
        let (model, gguf) = gguf.as_ref()?;
        model.family().source_name(model.canonical(position)?, gguf)
    };
    (0..reader.tensors().len()).map(name).collect()
}

/// Returns the role of each tensor by position; `None` if llama.cpp's rules cover the name.
///
/// `names` are the GGUF names, if the family has any.
pub(super) fn roles(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
    names: &[Option<String>],
) -> Vec<Option<Role>> {
    let infos = reader.tensors();
    let in_gguf = model.is_none_or(|model| model.family().is_in_gguf());
    if in_gguf && infos.iter().any(|info| is_gguf_name(&info.name)) {
        return vec![None; infos.len()];
    }

    let kind =
        |position: usize| model.and_then(|model| model.family().kind(model.canonical(position)?));
    let kinds: Vec<Option<TensorKind>> = (0..infos.len()).map(kind).collect();

    // Of the tables that ids select, the one with most rows is taken for the tokens'.
    let embeddings =
        infos.iter().zip(&kinds).filter(|(_, kind)| **kind == Some(TensorKind::Embedding));
    let tokens = embeddings.map(|(info, _)| rows(&info.shape)).max().unwrap_or(0);
    let role = |((info, kind), name): ((&TensorInfo, &Option<TensorKind>), &Option<String>)| {
        (name.is_none() && is_of_floats(info)).then(|| Role::of(info, *kind, tokens))
    };

    infos.iter().zip(&kinds).zip(names).map(role).collect()
}
