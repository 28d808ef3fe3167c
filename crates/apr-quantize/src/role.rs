//! What a tensor is for where llama.cpp has no name for it: by the family, the shape, and only then
//! the name.

use apr_arch::{FamilyModel, GGUF, TensorKind};
use apr_core::Shape;
use apr_registry::{CheckpointReader, DTypeKind, TensorInfo};

use super::category::{Category, Kept, is_matrix, kept, kept_elsewhere};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Rows that the ids of tokens select.
    TokenEmbedding,
    /// Turns vectors into a score for each token.
    Output,
    /// Another matrix that multiplies vectors.
    Matrix,
    /// Nothing that is quantized.
    Kept(Kept),
}

/// Beginnings of tensor names that GGUF files of llama.cpp have.
const GGUF_BEGINNINGS: [&str; 6] =
    ["blk.", "enc.blk.", "dec.blk.", "v.blk.", "a.blk.", "token_embd."];

/// Whether llama.cpp's rules know a name like this.
pub(super) fn is_gguf_name(name: &str) -> bool {
    GGUF_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

impl Role {
    /// What the family says a tensor is, where `kind` is known, and else what its shape says.
    /// `tokens` is the number of tokens, 0 where nobody knows.
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

    /// A tensor of a family that nobody knows: whatever its name, a matrix is one. The few names
    /// that many models share tell embeddings, output matrices and what is better left alone.
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

/// Why a matrix of this kind is never quantized, if that is so.
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

/// What a tensor is for where its name and shape are all that is known.
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

/// The role of each tensor by position; `None` for one whose elements are no floats.
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

/// What a measurement of importance calls each tensor by position: its name in GGUF files, or its
/// own where these do not have the family. A matrix of one expert is called after the stack that
/// GGUF has of them, see [`measured_expert`].
#[must_use]
pub fn measured_names(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
) -> Vec<String> {
    let gguf = model.and_then(|model| model.family().default_naming(GGUF));
    let of_expert = |tensor: usize| {
        let family = model?.family();
        let (stack, expert) = family.stack(model?.canonical(tensor)?)?;
        Some(measured_expert(&family.source_name(&stack, gguf.as_ref()?)?, expert))
    };
    let names = gguf_names(reader, model).into_iter().zip(reader.tensors()).enumerate();
    names
        .map(|(tensor, (name, info))| {
            name.or_else(|| of_expert(tensor)).unwrap_or_else(|| info.name.clone())
        })
        .collect()
}

/// What a measurement calls the matrix of one expert of a stack.
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

/// The role of each tensor by position, `None` where llama.cpp's rules know the name: `names` are
/// GGUF's where the family has such.
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
