//! Rotary positions that are stretched to longer texts: what llama.cpp keeps in tensors and Hugging Face in the
//! configuration.

use serde_json::{Map, Value, json};

/// Factors by which LLaMA 3 slows each frequency, `head_dim / 2` of them; none where the configuration asks for no such
/// thing. Computed in single precision, step by step as llama.cpp's converter does.
#[expect(clippy::cast_possible_truncation, reason = "single precision is the reference's")]
pub(super) fn llama3_factors(config: &Map<String, Value>, head_dim: u64) -> Option<Vec<f32>> {
    let rope = config.get("rope_scaling")?.as_object()?;
    if !rope.get("rope_type")?.as_str()?.eq_ignore_ascii_case("llama3") {
        return None;
    }
    let number = |key: &str, default: f64| rope.get(key).and_then(Value::as_f64).unwrap_or(default) as f32;
    let base = config.get("rope_theta").and_then(Value::as_f64).unwrap_or(10_000.0) as f32;
    let (factor, context) = (number("factor", 8.0), number("original_max_position_embeddings", 8192.0));
    let (low, high) = (number("low_freq_factor", 1.0), number("high_freq_factor", 4.0));
    let factor_of = |pair: u64| {
        let frequency = 1.0 / base.powf((2 * pair) as f32 / head_dim as f32);
        let wavelength = 2.0 * std::f32::consts::PI / frequency;
        if wavelength < context / high {
            1.0
        } else if wavelength > context / low {
            factor
        } else {
            let smooth = (context / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Some((0..head_dim / 2).map(factor_of).collect())
}

/// Settings of LLaMA 3 that lead to these factors: the largest of them, the bounds of all its releases, and the length
/// of its texts, or else another power of two. None where they lead to others.
pub(super) fn llama3_settings(factors: &[f32], theta: f64) -> Option<Value> {
    let factor = factors.iter().copied().fold(1.0_f32, f32::max);
    let head_dim = 2 * factors.len() as u64;
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs();
    [8192].into_iter().chain((4..24).map(|power| 1_u32 << power)).find_map(|context| {
        let settings = json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": context,
        });
        let config = json!({"rope_theta": theta, "rope_scaling": settings});
        let again = llama3_factors(config.as_object()?, head_dim)?;
        again.iter().zip(factors).all(is_close).then_some(settings)
    })
}

/// Factors of Phi-3 for long and for short texts.
pub(super) fn long_and_short(config: &Map<String, Value>) -> Option<[Vec<f32>; 2]> {
    let rope = config.get("rope_scaling")?;
    #[expect(clippy::cast_possible_truncation, reason = "GGUF has single precision here")]
    let factors = |key: &str| {
        let factors = rope.get(key)?.as_array()?;
        factors.iter().map(|factor| factor.as_f64().map(|factor| factor as f32)).collect::<Option<Vec<f32>>>()
    };
    Some([factors("long_factor")?, factors("short_factor")?])
}

/// What Phi-3 multiplies attention by, computed from how much longer texts are than those it was trained on.
pub(super) fn attention_factor(config: &Map<String, Value>) -> Option<f64> {
    long_and_short(config)?;
    let rope = config.get("rope_scaling")?;
    let original = rope.get("original_max_position_embeddings")?.as_f64()?;
    let longest = config.get("n_positions").or_else(|| config.get("max_position_embeddings"))?.as_f64()?;
    let scale = longest / original;
    match rope.get("rope_type")?.as_str()?.to_ascii_lowercase().as_str() {
        _ if scale <= 1.0 => Some(1.0),
        "su" | "longrope" => Some((1.0 + scale.ln() / original.ln()).sqrt()),
        "yarn" => Some(0.1 * scale.ln() + 1.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_llama_3_lead_back_to_its_settings() {
        let settings = json!({
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
        let config = json!({"rope_theta": 5e5, "rope_scaling": settings});
        let factors = llama3_factors(config.as_object().expect("an object"), 64).expect("asked for");
        assert_eq!((factors.len(), factors[0], factors[31]), (32, 1.0, 32.0));
        assert_eq!(llama3_settings(&factors, 5e5), Some(settings));
        assert_eq!(llama3_settings(&[1.0, 3.0, 2.0], 5e5), None);
        let short = json!({"rope_theta": 1e4, "rope_scaling": {
            "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 256,
        }});
        let factors = llama3_factors(short.as_object().expect("an object"), 64).expect("asked for");
        let settings = llama3_settings(&factors, 1e4).expect("a power of two");
        assert_eq!(settings["original_max_position_embeddings"], 256);
    }

    #[test]
    fn other_scalings_have_no_factors() {
        for config in [json!({}), json!({"rope_scaling": {}}), json!({"rope_scaling": {"rope_type": "linear"}})] {
            let config = config.as_object().expect("an object");
            assert_eq!(llama3_factors(config, 64), None);
            assert_eq!(attention_factor(config), None);
        }
    }
}
