//! What a `[graph]` table may say.

use apr_arch::GraphSettings;
use apr_core::{Error, Result};

/// Options that some block reads.
const OPTIONS: &[&str] = &[
    "activation",
    "attention_cap",
    "attention_scale",
    "embedding_scale",
    "experts",
    "experts_per_token",
    "fused",
    "head",
    "head_dim",
    "head_norm",
    "head_norm_eps",
    "heads",
    "hidden",
    "intermediate",
    "kv_heads",
    "layers",
    "linear",
    "logit_cap",
    "logit_scale",
    "max_positions",
    "mlp",
    "norm",
    "norm_eps",
    "norm_plus_one",
    "padding_id",
    "qkv_limit",
    "residual",
    "residual_scale",
    "rotary",
    "rotary_config",
    "rotary_dim",
    "rotary_layout",
    "rotary_share",
    "rotary_theta",
    "router",
    "router_normal",
    "router_scale",
    "tied",
    "window",
];

/// Parts that weights play.
const WEIGHTS: &[&str] = &[
    "attention_norm",
    "attention_post_norm",
    "down",
    "embedding_norm",
    "expert_down",
    "expert_gate",
    "expert_up",
    "final_norm",
    "gate",
    "gate_up",
    "head",
    "key",
    "key_norm",
    "mlp_norm",
    "mlp_post_norm",
    "output",
    "positions",
    "qkv",
    "query",
    "query_norm",
    "router",
    "score",
    "shared_down",
    "shared_gate",
    "shared_share",
    "shared_up",
    "sinks",
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
