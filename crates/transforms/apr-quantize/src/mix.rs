//! Which tensor gets which type.

use std::fmt;

use apr_core::{DType, DTypeKind, Error, Result};
use apr_tensor::block;
use apr_view::NamePattern;

use super::candidate::Candidate;
use super::category::{Category, EMBEDDING_OF_LAYERS, Kept, layer};
use super::choices::{Casts, Choices};
use super::facts::ModelFacts;
use super::rules::Rules;
use super::scheme::{Scheme, SchemeKind};

/// A tensor's type, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Dtype to store; equal to the candidate's dtype if the tensor does not change.
    pub dtype: DType,
    /// Reason for the dtype.
    pub reason: DecisionReason,
    /// `true` if this dtype requires importance weights for this tensor.
    pub needs_importance: bool,
}

/// Reason why a tensor gets its dtype.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecisionReason {
    /// Tensor that is never quantized.
    Kept(Kept),
    /// Dtype that the scheme is named after.
    AsAsked,
    /// The mix has a rule for this part of the model.
    Mix(&'static str),
    /// Dtype that the user chose for the token embeddings.
    Embedding,
    /// Dtype that the user chose for the output matrix.
    Output,
    /// Dtype of this override pattern.
    Override(String),
    /// The rows are not a multiple of the block of the type that was due.
    Fallback {
        /// Dtype that was chosen first.
        wanted: DType,
        /// Dtype that the tensor gets.
        used: DType,
        /// Elements of a row.
        row_len: u64,
    },
}

impl fmt::Display for DecisionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept(why) => write!(f, "not quantized ({why})"),
            Self::AsAsked => f.write_str("as requested"),
            Self::Mix(part) => write!(f, "rule of the mix: {part}"),
            Self::Embedding => f.write_str("as requested for the token embeddings"),
            Self::Output => f.write_str("as requested for the output"),
            Self::Override(pattern) => write!(f, "as requested for {pattern}"),
            Self::Fallback { wanted, used, row_len } => {
                write!(
                    f,
                    "{used} instead of {wanted}: row length {row_len} is not a multiple of {}",
                    wanted.block_len()
                )
            }
        }
    }
}

/// Assigns each tensor its dtype, by llama.cpp's rules if the scheme is a GGML scheme.
///
/// The candidates must be all tensors of the model, because the presence of an output matrix and
/// the number of attention values affect other tensors. The decisions are in the order of the
/// candidates; the rules count tensors in llama.cpp's order.
///
/// ```
/// use apr_core::DType;
/// use apr_quantize::{Candidate, Choices, ModelFacts, Scheme, assign};
///
/// let candidates = ["token_embd.weight", "output.weight", "blk.0.attn_q.weight"]
///     .map(|name| Candidate::new(name, DType::F32, [512, 256]));
/// let mut facts = ModelFacts::default();
/// facts.architecture = "llama".to_owned();
/// facts.layers = 1;
/// let decisions = assign(&candidates, &facts, &Choices::new(Scheme::Q4_K_M))?;
/// assert_eq!(
///     [decisions[0].dtype, decisions[1].dtype, decisions[2].dtype],
///     [DType::Q4_K, DType::Q6_K, DType::Q4_K]
/// );
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 with the tensor's name for:
/// - a dtype with so few bits that it requires importance, if there is no importance;
/// - a tensor that is already quantized, unless [`Choices::requantize`] is set;
/// - a feed-forward tensor of experts whose name does not contain its layer.
pub fn assign(
    candidates: &[Candidate],
    facts: &ModelFacts,
    choices: &Choices,
) -> Result<Vec<Decision>> {
    // llama.cpp gives names without a layer the number -1; `None` sorts before all layers, too.
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|&i| {
        let name = candidates[i].name.as_str();
        (layer(name), name)
    });
    let mut rules = Rules::new(facts, choices, candidates);
    let mut decisions = vec![None; candidates.len()];
    for i in order {
        let candidate = &candidates[i];
        let category = candidate.category();
        let (dtype, reason) = choose(candidate, category, facts, choices, &mut rules)?;
        let changes = dtype != candidate.dtype;
        let needs_importance = changes && needs_importance(dtype, category, choices.scheme);
        if needs_importance && !choices.has_importance {
            let message = format!("{dtype} has so few bits that it needs an importance matrix");
            return Err(Error::format(message).for_tensor(&candidate.name));
        }

        if changes && dtype.is_quantized() && candidate.dtype.is_quantized() {
            let checked = check_again(candidate.dtype.name(), dtype.name(), choices);
            checked.map_err(|error| error.for_tensor(&candidate.name))?;
        }
        decisions[i] = Some(Decision { dtype, reason, needs_importance });
    }

    // Every candidate stands in `order` once.
    Ok(decisions.into_iter().flatten().collect())
}

/// Checks that a weight which is quantized already, as `own`, may be quantized to `to`.
///
/// # Errors
/// E001 with both, unless [`Choices::requantize`].
pub fn check_again(own: &str, to: &str, choices: &Choices) -> Result<()> {
    if choices.requantize {
        return Ok(());
    }
    Err(Error::format(format!(
        "already quantized as {own}; pass `requantize` to quantize it to {to}, which adds to the \
         error"
    )))
}

fn choose(
    candidate: &Candidate,
    category: Category,
    facts: &ModelFacts,
    choices: &Choices,
    rules: &mut Rules<'_>,
) -> Result<(DType, DecisionReason)> {
    let scheme = choices.scheme;
    if !matches!(
        candidate.dtype.kind(),
        DTypeKind::Float | DTypeKind::MiniFloat | DTypeKind::Quantized
    ) {
        return Ok((candidate.dtype, DecisionReason::Kept(Kept::NotFloat)));
    }

    if let Some(why) = candidate.kept(&facts.architecture) {
        return Ok(match (scheme.kind(), choices.casts) {
            (SchemeKind::Cast, Casts::Everything) => (scheme.dtype(), DecisionReason::AsAsked),
            _ => (candidate.dtype, DecisionReason::Kept(why)),
        });
    }

    let (wanted, reason) = match asked(candidate, category, choices) {
        Some(asked) => asked,
        None if choices.pure || scheme.kind() != SchemeKind::Blocks => {
            (scheme.dtype(), DecisionReason::AsAsked)
        }
        None => {
            let (dtype, rule) = rules.apply(candidate, category)?;
            (dtype, rule.map_or(DecisionReason::AsAsked, DecisionReason::Mix))
        }
    };

    Ok(fitted(candidate, wanted, reason))
}

/// Returns the wanted dtype if the rows fit it and become smaller, otherwise the closest
/// alternative.
fn fitted(candidate: &Candidate, wanted: DType, reason: DecisionReason) -> (DType, DecisionReason) {
    let row_len = candidate.shape.row_len();
    if !row_len.is_multiple_of(wanted.block_len()) {
        let used = fallback(wanted, row_len, candidate.dtype);
        (used, DecisionReason::Fallback { wanted, used, row_len })
    } else if wanted == DType::I8_ROW && !shrinks(candidate, wanted) {
        (candidate.dtype, DecisionReason::Kept(Kept::NoGain))
    } else {
        (wanted, reason)
    }
}

/// Returns the dtype that the user chose for this tensor in particular.
fn asked(
    candidate: &Candidate,
    category: Category,
    choices: &Choices,
) -> Option<(DType, DecisionReason)> {
    let named = choices.overrides.iter().find(|(glob, _)| glob.is_match(&candidate.name));
    let reason = |glob: &NamePattern| match choices.searched {
        true => DecisionReason::AsAsked,
        false => DecisionReason::Override(glob.text().to_owned()),
    };
    let overridden = named.and_then(|(glob, wanted)| Some((wanted.dtype()?, reason(glob))));
    match category {
        Category::TokenEmbedding => {
            let embedding = choices.embedding_type.map(|dtype| (dtype, DecisionReason::Embedding));
            // The tables of layers are embeddings too, but can be far larger: naming them goes
            // first.
            if candidate.name == EMBEDDING_OF_LAYERS {
                overridden.or(embedding)
            } else {
                embedding.or(overridden)
            }
        }
        Category::Output => {
            choices.output_type.map(|dtype| (dtype, DecisionReason::Output)).or(overridden)
        }
        _ => overridden,
    }
}

/// Returns `true` if the tensor is smaller in this dtype.
///
/// For rows as short as those of a kernel, one scale per row costs more than it saves.
fn shrinks(candidate: &Candidate, wanted: DType) -> bool {
    wanted.stored_len(&candidate.shape) < candidate.dtype.stored_len(&candidate.shape)
}

/// A type of about as many bits for rows that the wanted one's blocks do not divide.
fn fallback(wanted: DType, row_len: u64, own: DType) -> DType {
    let smaller = match wanted {
        DType::I4_ROW => return own,
        DType::IQ1_S
        | DType::IQ1_M
        | DType::IQ2_XXS
        | DType::IQ2_XS
        | DType::IQ2_S
        | DType::IQ3_XXS
        | DType::IQ3_S
        | DType::IQ4_XS => DType::IQ4_NL,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        // Q2_K, Q3_K and the ternary types; llama.cpp knows no way out for NVFP4 and Q1_0, which
        // join them.
        _ => DType::Q4_0,
    };

    // llama.cpp goes to halves, too, where not even blocks of 32 divide the rows.
    if row_len.is_multiple_of(smaller.block_len()) { smaller } else { DType::F16 }
}

/// Returns `true` if a dtype loses too much precision without importance.
///
/// Embeddings and output are exempt, because importance never covers them. They are not exempt from
/// dtypes that can't be encoded without importance.
fn needs_importance(dtype: DType, category: Category, scheme: Scheme) -> bool {
    if block::needs_importance(dtype) {
        return true;
    }
    if matches!(category, Category::TokenEmbedding | Category::Output) {
        return false;
    }

    match dtype {
        DType::IQ1_S
        | DType::IQ1_M
        | DType::IQ2_XXS
        | DType::IQ2_XS
        | DType::IQ2_S
        | DType::IQ3_XXS => true,
        DType::Q2_K => scheme == Scheme::Q2_K_S,
        _ => false,
    }
}
