//! Floats as JSON has them: a number, or the bits of what JSON has no number for.

use alloc::format;

use serde::{Serialize, Serializer};
use serde_json::{Number, Value as Json, json};

/// A single as JSON has it.
pub(super) struct F32(pub(super) f32);
/// A double as JSON has it.
pub(super) struct F64(pub(super) f64);

impl Serialize for F32 {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        f32_to_json(self.0).serialize(serializer)
    }
}

impl Serialize for F64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> core::result::Result<S::Ok, S::Error> {
        f64_to_json(self.0).serialize(serializer)
    }
}

pub(super) fn f32_to_json(value: f32) -> Json {
    let number = Number::from_f64(value.into());
    number.map_or_else(|| json!({ "bits": format!("{:#010x}", value.to_bits()) }), Json::Number)
}

pub(super) fn f64_to_json(value: f64) -> Json {
    let number = Number::from_f64(value);
    number.map_or_else(|| json!({ "bits": format!("{:#018x}", value.to_bits()) }), Json::Number)
}

pub(super) fn f32_from_json(json: &Json) -> Option<f32> {
    if let Some(bits) = json.get("bits") {
        return u32::from_str_radix(bits.as_str()?.strip_prefix("0x")?, 16)
            .ok()
            .map(f32::from_bits);
    }
    #[allow(
        clippy::cast_possible_truncation,
        reason = "refused right after, where it changes the value"
    )]
    let value = json.as_f64()? as f32;
    (Some(f64::from(value)) == json.as_f64()).then_some(value)
}

pub(super) fn f64_from_json(json: &Json) -> Option<f64> {
    match json.get("bits") {
        Some(bits) => {
            u64::from_str_radix(bits.as_str()?.strip_prefix("0x")?, 16).ok().map(f64::from_bits)
        }
        None => json.as_f64(),
    }
}
