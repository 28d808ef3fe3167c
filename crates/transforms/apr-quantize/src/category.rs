//! What a tensor is for by its name, as llama.cpp's quantizer decides.

use apr_core::Shape;

/// Category of a tensor, as coarse as the choice of dtypes needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    TokenEmbedding,
    Query,
    Key,
    /// Attention values, alone or in one matrix with queries and keys or with latent keys.
    Value,
    AttentionOutput,
    FeedForwardUp,
    FeedForwardGate,
    FeedForwardDown,
    Output,
    Other,
}

/// Parts of GGUF names, the first that a name contains decides.
const PARTS: &[(&str, Category)] = &[
    ("attn_qkv.weight", Category::Value),
    ("attn_kv_b.weight", Category::Value),
    ("attn_v.weight", Category::Value),
    ("attn_k.weight", Category::Key),
    ("attn_q.weight", Category::Query),
    ("attn_output.weight", Category::AttentionOutput),
    ("ffn_up", Category::FeedForwardUp),
    ("ffn_gate", Category::FeedForwardGate),
    ("ffn_down", Category::FeedForwardDown),
];

/// Ends of the names that token embeddings and output matrices have outside GGUF, before `.weight`:
/// for models of unknown families.
const ENDS_ELSEWHERE: &[(&str, Category)] = &[
    ("lm_head", Category::Output),
    ("proj_out", Category::Output),
    ("embed_out", Category::Output),
    ("embed_tokens", Category::TokenEmbedding),
    ("token_embedding", Category::TokenEmbedding),
    ("word_embeddings", Category::TokenEmbedding),
    ("tok_embeddings", Category::TokenEmbedding),
    ("wte", Category::TokenEmbedding),
];

/// The second table of token embeddings that some models look up in every layer.
pub(super) const EMBEDDING_OF_LAYERS: &str = "per_layer_token_embd.weight";

impl Category {
    pub(super) fn of(name: &str) -> Self {
        match name {
            "output.weight" => return Self::Output,
            "token_embd.weight" | EMBEDDING_OF_LAYERS => return Self::TokenEmbedding,
            _ => {}
        }
        let part =
            PARTS.iter().find(|(part, _)| name.contains(part)).map(|&(_, category)| category);
        part.or_else(|| Self::elsewhere(name)).unwrap_or(Self::Other)
    }

    /// Returns the category of a name from outside GGUF, based on the end of the name.
    pub(super) fn elsewhere(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        ENDS_ELSEWHERE.iter().find(|(end, _)| stem.ends_with(end)).map(|&(_, category)| category)
    }

    pub(super) const fn is_feed_forward(self) -> bool {
        matches!(self, Self::FeedForwardUp | Self::FeedForwardGate | Self::FeedForwardDown)
    }
}

/// Reason why a tensor is never quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// Elements that are not floats.
    NotFloat,
    /// One row: vectors are small and matter much.
    Vector,
    /// Tensor whose name does not end with `weight`: biases, scales, states.
    NotWeight,
    /// Weight of a norm.
    Norm,
    /// Picks the experts.
    Router,
    /// Embeds positions or the kinds of tokens.
    Position,
    /// A small matrix or a convolution that costs little and matters much.
    Small,
    /// A bias of more than one row.
    Bias,
    /// Data that are not learnt: masks, ids, frequencies.
    Buffer,
    /// A table of scales or offsets, which multiplies no vector.
    Scale,
    /// Matrix with rows so short that the scales would take up the space that the values save.
    NoGain,
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotFloat => "its elements are not floats",
            Self::Vector => "1-D tensor",
            Self::NotWeight => "the name does not end with 'weight'",
            Self::Norm => "a norm",
            Self::Router => "expert router",
            Self::Position => "embedding of positions or token types",
            Self::Small => "small and sensitive",
            Self::Bias => "a bias",
            Self::Buffer => "computed, not learnt",
            Self::Scale => "a scale or an offset",
            Self::NoGain => "no smaller when quantized",
        })
    }
}

/// Names of tensors that llama.cpp leaves alone, as parts of them.
const KEPT_PARTS: &[(&str, Kept)] = &[
    ("_norm.weight", Kept::Norm),
    ("ffn_gate_inp.weight", Kept::Router),
    ("ffn_gate_tid2eid.weight", Kept::Router),
    ("altup", Kept::Small),
    ("laurel", Kept::Small),
    ("per_layer_model_proj", Kept::Small),
    ("ssm_conv1d", Kept::Small),
    ("shortconv.conv.weight", Kept::Small),
    ("indexer.k_proj.weight", Kept::Small),
    ("indexer.q_proj.weight", Kept::Small),
    ("time_mix_first.weight", Kept::Small),
    ("time_mix_w0.weight", Kept::Small),
    ("time_mix_w1.weight", Kept::Small),
    ("time_mix_w2.weight", Kept::Small),
    ("time_mix_v0.weight", Kept::Small),
    ("time_mix_v1.weight", Kept::Small),
    ("time_mix_v2.weight", Kept::Small),
    ("time_mix_a0.weight", Kept::Small),
    ("time_mix_a1.weight", Kept::Small),
    ("time_mix_a2.weight", Kept::Small),
    ("time_mix_g1.weight", Kept::Small),
    ("time_mix_g2.weight", Kept::Small),
    ("time_mix_decay_w1.weight", Kept::Small),
    ("time_mix_decay_w2.weight", Kept::Small),
    ("time_mix_lerp_fused.weight", Kept::Small),
    ("attn_rel_b.weight", Kept::Position),
    (".position_embd", Kept::Position),
    ("sam.pos_embd", Kept::Position),
    (".rel_pos", Kept::Position),
    ("sam.neck.", Kept::Small),
    ("sam.net_", Kept::Small),
    (".patch_embd", Kept::Small),
    (".patch_merger", Kept::Small),
    ("a.rvq.codebook", Kept::Small),
    ("mm.a.code_embd", Kept::Small),
];

/// Kept tensors by the ends of their names outside GGUF, before `.weight`.
const KEPT_ELSEWHERE: &[(&str, Kept)] = &[
    ("position_embd", Kept::Position),
    ("token_types", Kept::Position),
    ("position_embeddings", Kept::Position),
    ("position_embedding", Kept::Position),
    ("embed_positions", Kept::Position),
    ("wpe", Kept::Position),
    ("token_type_embeddings", Kept::Position),
    ("relative_attention_bias", Kept::Position),
    ("mlp.gate", Kept::Router),
    ("block_sparse_moe.gate", Kept::Router),
    ("patch_embedding", Kept::Small),
    ("patch_embeddings.projection", Kept::Small),
    ("conv1d", Kept::Small),
];

/// Tensors of the architecture `glm5-next` alone.
const KEPT_OF_GLM5: &[&str] = &[
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Returns the reason why a float tensor is not quantized, or `None` if it can be.
pub(super) fn kept(name: &str, shape: &Shape, architecture: &str) -> Option<Kept> {
    if !is_matrix(shape) {
        return Some(Kept::Vector);
    }
    // Without a dot in front, as in llama.cpp.
    if !name.ends_with("weight") {
        return Some(Kept::NotWeight);
    }
    if architecture == "glm5-next" && KEPT_OF_GLM5.iter().any(|part| name.contains(part)) {
        return Some(Kept::Small);
    }

    KEPT_PARTS
        .iter()
        .find(|(part, _)| name.contains(part))
        .map(|&(_, kept)| kept)
        .or_else(|| kept_elsewhere(name))
}

/// Returns the reason not to quantize a tensor, based on the end of a name from outside GGUF.
pub(super) fn kept_elsewhere(name: &str) -> Option<Kept> {
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    KEPT_ELSEWHERE.iter().find(|(end, _)| stem.ends_with(end)).map(|&(_, kept)| kept)
}

/// Returns `true` if the shape has more than one row.
///
/// Leading dimensions of 1 do not count, since ggml does not store them.
pub(super) fn is_matrix(shape: &Shape) -> bool {
    shape.dims().split_last().is_some_and(|(_, outer)| outer.iter().any(|&dim| dim > 1))
}

/// Returns the number of matrices in a tensor, as ggml counts them.
///
/// This is the dimension before rows and columns, or 1 for a plain matrix.
pub(super) fn matrices(shape: &Shape) -> u64 {
    shape.dims().iter().rev().nth(2).copied().unwrap_or(1)
}

/// The number in `blk.NUMBER`.
pub(super) fn layer(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("blk.")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
