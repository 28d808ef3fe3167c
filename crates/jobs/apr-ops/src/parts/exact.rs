//! Numbers as texts, for `serde(with)`: JSON has no infinity.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer, const N: usize>(
    numbers: &[f64; N],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    numbers.map(|number| format!("{number:?}")).as_slice().serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
    deserializer: D,
) -> Result<[f64; N], D::Error> {
    let texts: Vec<String> = Vec::deserialize(deserializer)?;
    let numbers: Option<Vec<f64>> = texts.iter().map(|text| text.parse().ok()).collect();
    let numbers = numbers.and_then(|numbers| <[f64; N]>::try_from(numbers).ok());
    numbers.ok_or_else(|| serde::de::Error::custom(format!("expected {N} numbers, as texts")))
}
