//! Names: what a `[graph]` table may say, and the symbolic sizes of inputs.

use apr_arch::GraphSettings;
use apr_core::{Error, Result};

/// How many inputs are computed at once. Names of sizes are those that Optimum gives them.
pub(crate) const BATCH: &str = "batch_size";
/// Rows of pixels, where a model takes pictures of any size.
pub(crate) const HEIGHT: &str = "height";
/// Pixels in a row.
pub(crate) const WIDTH: &str = "width";
/// Tokens of a text, or samples of a sound.
pub(crate) const SEQUENCE: &str = "sequence_length";
/// Answers that a question is given with.
pub(crate) const CHOICES: &str = "num_choices";
/// Tokens that were read before.
pub(crate) const PAST: &str = "past_sequence_length";
/// Both, where nothing says how many were read before.
pub(crate) const ALL_SEQUENCE: &str = "total_sequence_length";
/// What an encoder reads.
pub(crate) const ENCODER_SEQUENCE: &str = "encoder_sequence_length";
/// What a decoder writes.
pub(crate) const DECODER_SEQUENCE: &str = "decoder_sequence_length";
/// What it wrote before.
pub(crate) const PAST_DECODER_SEQUENCE: &str = "past_decoder_sequence_length";

/// Options that some block reads.
const OPTIONS: &[&str] = &[
    "activation",
    "alibi",
    "attention",
    "attention_cap",
    "attention_scale",
    "between",
    "between_activation",
    "between_groups",
    "block",
    "causal",
    "channels",
    "choices",
    "chunk",
    "content_to_position",
    "convolution_strides",
    "convolutions",
    "distance_buckets",
    "distance_limit",
    "distances_normed",
    "embedding_masked",
    "embedding_scale",
    "end_id",
    "expert_alpha",
    "expert_input_scaled",
    "expert_intermediate",
    "expert_limit",
    "experts",
    "experts_order",
    "experts_per_token",
    "feature_activation",
    "feature_norms",
    "feature_projection_norm",
    "final_norm",
    "final_norm_eps",
    "front",
    "fused",
    "group",
    "head",
    "head_activation",
    "head_dim",
    "heads",
    "hidden",
    "image",
    "image_width",
    "inner",
    "inner_activation",
    "intermediate",
    "kv_heads",
    "latent_dim",
    "layers",
    "learned_positions",
    "linear",
    "logit_cap",
    "logit_scale",
    "mask_input",
    "max_positions",
    "mels",
    "mlp",
    "mutual_mask",
    "norm",
    "norm_eps",
    "norm_plus_one",
    "norms",
    "padding_id",
    "patch",
    "pool",
    "pooler_activation",
    "position_groups",
    "position_input",
    "position_norm",
    "position_numbers",
    "position_offset",
    "position_resize",
    "position_table",
    "position_to_content",
    "qkv_limit",
    "query_growth",
    "query_growth_first",
    "query_growth_step",
    "query_key_norm",
    "query_key_norm_eps",
    "query_key_norm_place",
    "relative_buckets",
    "relative_distance",
    "residual",
    "residual_scale",
    "rotary",
    "rotary_alpha",
    "rotary_config",
    "rotary_dim",
    "rotary_layout",
    "rotary_share",
    "rotary_theta",
    "router",
    "router_best_groups",
    "router_group_score",
    "router_groups",
    "router_normal",
    "router_scale",
    "shift",
    "shortcut",
    "stages",
    "start_id",
    "state_size",
    "stem_activation",
    "stem_pool",
    "stem_stride",
    "nope_dim",
    "stride",
    "strided",
    "tied",
    "time_rank",
    "token_type_input",
    "rope_dim",
    "value_dim",
    "window",
    "window_side",
];

/// Parts that weights play.
const WEIGHTS: &[&str] = &[
    "activation_above",
    "activation_below",
    "activation_limit",
    "activation_slope",
    "attention_layer_scale",
    "attention_norm",
    "attention_post_norm",
    "between",
    "between_norm",
    "class_vector",
    "context_norm",
    "convolution",
    "convolution_norm",
    "cross_key",
    "cross_norm",
    "cross_output",
    "cross_post_norm",
    "cross_query",
    "cross_value",
    "decay",
    "distance_norm",
    "distances",
    "down",
    "downsampling",
    "downsampling_norm",
    "embedding_norm",
    "embedding_projection",
    "expert_down",
    "expert_gate",
    "expert_up",
    "experts_down",
    "experts_down_bias",
    "experts_gate_up",
    "experts_gate_up_bias",
    "feature_norm",
    "feature_projection",
    "final_norm",
    "first_convolution",
    "gate",
    "gate_up",
    "head",
    "head_bias",
    "head_dense",
    "head_norm",
    "head_projection",
    "inner_norm",
    "key",
    "key_norm",
    "latent",
    "latent_norm",
    "latent_up",
    "layer_scale",
    "layer_weights",
    "logit_bias",
    "logit_scale",
    "mixer_convolution",
    "mixer_in",
    "mixer_norm",
    "mixer_out",
    "mlp_layer_scale",
    "mlp_norm",
    "mlp_post_norm",
    "output",
    "output_projection",
    "patches",
    "pooler",
    "pooler_norm",
    "position_bias",
    "position_convolution",
    "position_direction",
    "position_key",
    "position_length",
    "position_norm",
    "position_query",
    "positions",
    "probe",
    "probe_down",
    "probe_norm",
    "probe_output",
    "probe_qkv",
    "probe_qkv_bias",
    "probe_up",
    "projection",
    "qkv",
    "query",
    "query_down",
    "query_down_norm",
    "query_norm",
    "query_up",
    "relative",
    "router",
    "router_bias",
    "score",
    "second_convolution",
    "selection",
    "shared_down",
    "shared_gate",
    "shared_share",
    "shared_up",
    "shortcut",
    "shortcut_norm",
    "sinks",
    "skip",
    "stack_norm",
    "time",
    "token_projection",
    "token_types",
    "tokens",
    "up",
    "value",
];

/// # Errors
/// E003 when the table has an option or a part that no block reads.
pub(crate) fn check(settings: &GraphSettings<'_>) -> Result<()> {
    let (options, weights) = settings.names();
    let family = settings.model().family().name();
    let unknown = |names: Vec<&str>, known: &[&str]| {
        names.iter().find(|name| !known.contains(name)).map(|name| (*name).to_owned())
    };
    if let Some(option) = unknown(options, OPTIONS) {
        return Err(Error::version(format!(
            "[graph] of family {family} has the option '{option}', which no block reads"
        )));
    }

    if let Some(weight) = unknown(weights, WEIGHTS) {
        return Err(Error::version(format!(
            "[graph] of family {family} names a weight for '{weight}', which no block reads"
        )));
    }

    Ok(())
}
