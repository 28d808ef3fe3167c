//! Rotary positions that are stretched to longer texts: what llama.cpp keeps in tensors and Hugging
//! Face in the configuration.

use apr_registry::{Error, Result};
use serde_json::{Map, Value, json};

/// Returns the kind of position scaling in the configuration in lower case, or `None` if positions
/// are not scaled.
///
/// # Errors
/// E001 if `rope_scaling` is not an object, has no type, or lacks a setting that its type needs.
pub(super) fn scaling(config: &Map<String, Value>) -> Result<Option<String>> {
    let Some(scaling) = config.get("rope_scaling") else { return Ok(None) };
    let malformed =
        |why: &str| Err(Error::format(format!("config.json's 'rope_scaling' is {scaling}: {why}")));
    let Some(rope) = scaling.as_object() else {
        return malformed("it has to be an object with a 'rope_type'");
    };
    let kind = match kind_of(rope) {
        Ok(None) => return Ok(None),
        Ok(Some(kind)) => kind,
        Err(why) => return malformed(why),
    };
    if let Some(why) = lacks(rope, &kind) {
        return malformed(&why);
    }

    // An original length of 1 has the logarithm 0, by which the factor would be divided.
    if attention_factor(config).is_some_and(|factor| !factor.is_finite() || factor <= 0.0) {
        return malformed(
            "its 'original_max_position_embeddings' leads to no factor for attention",
        );
    }

    Ok(Some(kind))
}

/// Returns the type in lower case, `None` if positions are not scaled, or the reason why the type
/// is unusable.
fn kind_of(rope: &Map<String, Value>) -> Result<Option<String>, &'static str> {
    match rope.get("rope_type") {
        None if ["factor", "long_factor", "short_factor"]
            .iter()
            .any(|key| rope.contains_key(*key)) =>
        {
            Err("it has no 'rope_type'")
        }
        None => Ok(None),
        Some(Value::String(kind)) => {
            Ok(Some(kind.to_ascii_lowercase()).filter(|kind| kind != "default"))
        }
        Some(_) => Err("its 'rope_type' is not text"),
    }
}

/// Returns a message about settings that scaling of this kind needs and the configuration lacks.
fn lacks(rope: &Map<String, Value>, kind: &str) -> Option<String> {
    const LLAMA3_NUMBERS: [&str; 4] =
        ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"];

    let no_number = |key: &str| format!("its '{key}' has to be a number above 0");
    match kind {
        "linear" | "yarn" => {
            (!rope.get("factor").is_some_and(is_positive)).then(|| no_number("factor"))
        }
        "llama3" => {
            // What is absent has a default in `llama3_factors`.
            let wrong = LLAMA3_NUMBERS
                .iter()
                .find(|key| rope.get(**key).is_some_and(|value| !is_positive(value)));
            wrong.map(|key| no_number(key))
        }
        "su" | "longrope" => {
            let [long, short] =
                ["long_factor", "short_factor"].map(|key| positive_numbers(rope, key));
            let why = "'long_factor' and 'short_factor' must be lists of numbers above 0 with \
                       equal lengths";
            (long.is_none() || long != short).then(|| why.to_owned())
        }
        _ => None,
    }
}

/// The length of a list of numbers above 0.
fn positive_numbers(rope: &Map<String, Value>, key: &str) -> Option<usize> {
    let list = rope.get(key)?.as_array()?;
    (!list.is_empty() && list.iter().all(is_positive)).then_some(list.len())
}

/// Returns `true` for a number above 0 that single precision can represent.
#[expect(clippy::cast_possible_truncation, reason = "GGUF has single precision here")]
fn is_positive(value: &Value) -> bool {
    value
        .as_f64()
        .map(|number| number as f32)
        .is_some_and(|number| number > 0.0 && number.is_finite())
}

/// Rotary positions of a part of a head, among angles as for a whole one.
pub(super) const PROPORTIONAL: &str = "proportional";

/// Factor of an angle that is none.
const NO_ANGLE: f32 = 1e30;

/// Returns the factors of Gemma 4, whose heads are turned in part: 1 for the angles of the first
/// pairs of dimensions, and a factor that leaves no angle for the others.
pub(super) fn proportional_factors(config: &Map<String, Value>, head_dim: u64) -> Option<Vec<f32>> {
    let rope = config.get("rope_scaling")?.as_object()?;
    if rope.get("rope_type")?.as_str()? != PROPORTIONAL {
        return None;
    }
    let share = rope.get("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
    let turned = (head_dim as f64 * share / 2.0).floor();
    let factor = |pair: u64| if (pair as f64) < turned { 1.0 } else { NO_ANGLE };
    Some((0..head_dim / 2).map(factor).collect())
}

/// Returns the share of a head's dimensions that is turned by these factors, if they are those of
/// [`proportional_factors`].
pub(super) fn turned_share(factors: &[f32]) -> Option<f64> {
    let turned = factors.iter().take_while(|factor| **factor == 1.0).count();
    let is_rest = factors[turned..].iter().all(|factor| *factor == NO_ANGLE);
    (is_rest && turned < factors.len()).then(|| turned as f64 / factors.len() as f64)
}

/// Returns the factors by which LLaMA 3 slows each frequency, `head_dim / 2` of them. Returns
/// `None` if the configuration does not request it. They are computed in single precision, step by
/// step as in llama.cpp's converter.
#[expect(clippy::cast_possible_truncation, reason = "single precision is the reference's")]
pub(super) fn llama3_factors(config: &Map<String, Value>, head_dim: u64) -> Option<Vec<f32>> {
    let rope = config.get("rope_scaling")?.as_object()?;
    if !rope.get("rope_type")?.as_str()?.eq_ignore_ascii_case("llama3") {
        return None;
    }

    // The defaults are those of llama.cpp's converter, but for the length of the texts, where
    // transformers takes another one.
    let number =
        |key: &str, default: f64| rope.get(key).and_then(Value::as_f64).unwrap_or(default) as f32;
    let base = config.get("rope_theta").and_then(Value::as_f64).unwrap_or(10_000.0) as f32;
    let longest = config.get("max_position_embeddings").and_then(Value::as_f64).unwrap_or(8192.0);
    let (factor, context) =
        (number("factor", 8.0), number("original_max_position_embeddings", longest));
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

/// Settings of LLaMA 3 that lead to these factors: the largest of them, the bounds of all its
/// releases, and the length of its texts, or else another power of two. None where they lead to
/// others.
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
        factors
            .iter()
            .map(|factor| factor.as_f64().map(|factor| factor as f32))
            .collect::<Option<Vec<f32>>>()
    };
    Some([factors("long_factor")?, factors("short_factor")?])
}

/// Returns the factor of Phi-3's attention. It is computed from the ratio of the maximum length to
/// the length of the training texts.
pub(super) fn attention_factor(config: &Map<String, Value>) -> Option<f64> {
    long_and_short(config)?;
    let rope = config.get("rope_scaling")?;
    let original = rope.get("original_max_position_embeddings")?.as_f64()?;
    let longest = ["n_positions", "max_position_embeddings"]
        .iter()
        .find_map(|key| config.get(*key)?.as_f64())?;
    let scale = longest / original;
    // The formulas are those of llama.cpp's converter for Phi-3.
    match rope.get("rope_type")?.as_str()?.to_ascii_lowercase().as_str() {
        _ if scale <= 1.0 => Some(1.0),
        "su" | "longrope" => Some(longrope_factor(longest, original)),
        "yarn" => Some(0.1 * scale.ln() + 1.0),
        _ => None,
    }
}

/// Returns LongRoPE's factor of attention for a maximum length of `longest`, if the model was
/// trained on the length `original`.
pub(super) fn longrope_factor(longest: f64, original: f64) -> f64 {
    let scale = longest / original;
    if scale <= 1.0 { 1.0 } else { (1.0 + scale.ln() / original.ln()).sqrt() }
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
        let factors =
            llama3_factors(config.as_object().expect("an object"), 64).expect("asked for");
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
    fn complete_scalings_return_their_kind() {
        let of =
            |rope: Value| scaling(json!({ "rope_scaling": rope }).as_object().expect("an object"));
        for rope in [
            json!({}),
            json!({"rope_type": "default"}),
            json!({"original_max_position_embeddings": 9}),
        ] {
            assert_eq!(of(rope), Ok(None));
        }
        for kind in ["linear", "YARN", "dynamic", "foo"] {
            assert_eq!(
                of(json!({"rope_type": kind, "factor": 2.0})),
                Ok(Some(kind.to_lowercase()))
            );
        }
        let longrope = |long: Value| {
            json!({
                "rope_type": "longrope", "long_factor": long, "short_factor": [1.0, 2.0],
            })
        };
        assert_eq!(of(longrope(json!([1.0, 2.0]))), Ok(Some("longrope".to_owned())));
        for long in [
            json!([1.0]),
            json!([1.0, "2"]),
            json!([1.0, 1e300]),
            json!([1.0, 0.0]),
            json!("x"),
            json!(null),
        ] {
            assert!(of(longrope(long.clone())).is_err(), "{long}");
        }
        for rope in [
            json!("x"),
            json!(2),
            json!({"factor": 2.0}),
            json!({"rope_type": 3}),
            json!({"rope_type": "linear"}),
            json!({"rope_type": "yarn", "factor": -1}),
            json!({"rope_type": "llama3", "factor": "8"}),
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0}),
        ] {
            assert!(of(rope.clone()).is_err(), "{rope}");
        }
    }

    #[test]
    fn other_scalings_have_no_llama_3_factors() {
        for config in [
            json!({}),
            json!({"rope_scaling": {}}),
            json!({"rope_scaling": {"rope_type": "linear"}}),
        ] {
            let config = config.as_object().expect("an object");
            assert_eq!(llama3_factors(config, 64), None);
            assert_eq!(attention_factor(config), None);
        }
    }
}
