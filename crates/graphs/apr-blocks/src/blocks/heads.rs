//! Heads of attention.

use apr_core::Result;

use crate::model::BlockPosition;

/// Sizes of the heads, and the parameters of their scores.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heads {
    pub(crate) heads: u64,
    /// Number of key and value heads; fewer than `heads` if several queries share a key and a value
    /// (Ainslie et al. 2023, <https://arxiv.org/abs/2305.13245>).
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: u64,
    /// Length of a value, which can differ from that of a query and a key.
    pub(crate) value_dim: u64,
    pub(crate) scale: f64,
    /// Scores become `cap tanh(score / cap)` (Gemma 2, <https://arxiv.org/abs/2408.00118>).
    pub(crate) cap: Option<f64>,
}

impl Heads {
    /// Options `heads`, `kv_heads` (or as many), `head_dim`, `value_dim` (or as long),
    /// `attention_scale` (or `1 / sqrt(head_dim)`), `attention_cap`.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Self> {
        let heads = place.size("heads")?;
        let kv_heads = place.size_or_none("kv_heads")?.unwrap_or(heads);
        let head_dim = place.size("head_dim")?;
        let value_dim = place.size_or_none("value_dim")?.unwrap_or(head_dim);

        // The product is a length of vectors, too.
        let is_absurd =
            heads.checked_mul(head_dim).is_none_or(|width| width == 0 || width > 1 << 40);
        if is_absurd || kv_heads == 0 || heads % kv_heads != 0 {
            return Err(apr_core::Error::format(format!(
                "{heads} heads of {head_dim} can't share {kv_heads} keys and values evenly"
            )));
        }

        let scale =
            place.number_or_none("attention_scale")?.unwrap_or(1.0 / (head_dim as f64).sqrt());
        let cap = place.number_or_none("attention_cap")?.filter(|cap| *cap > 0.0);
        Ok(Self { heads, kv_heads, head_dim, value_dim, scale, cap })
    }
}
