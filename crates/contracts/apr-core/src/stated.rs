//! The dtype that a model's configuration states: libraries load weights as it says.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json::{Map, Value};

use crate::DType;

/// The keys that state it: the second since transformers 5.
const KEYS: [&str; 2] = ["torch_dtype", "dtype"];

/// Suffix of the keys of nested configurations, such as towers and decoders.
const NESTED: &str = "_config";

/// Key of a nested configuration whose dtypes are not dtypes of weights.
const NOT_OF_WEIGHTS: &str = "quantization_config";

/// Returns what PyTorch calls a float of 16 bits or more, as configurations state it.
#[must_use]
pub const fn torch_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F64 => "float64",
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => return None,
    })
}

/// Returns the dtype that a configuration states.
#[must_use]
pub fn stated_dtype(config: &Map<String, Value>) -> Option<DType> {
    let name = KEYS.iter().find_map(|key| config.get(*key)?.as_str())?;
    let name = name.strip_prefix("torch.").unwrap_or(name);
    DType::ALL.iter().copied().find(|&dtype| torch_name(dtype) == Some(name))
}

/// Replaces the dtype stated by a configuration and its nested ones; returns the keys that changed.
pub fn state_dtype(config: &mut Map<String, Value>, dtype: DType) -> Vec<String> {
    let mut changed = Vec::new();
    let Some(name) = torch_name(dtype) else { return changed };
    for key in KEYS {
        let stated = config.get_mut(key).filter(|value| value.is_string() && **value != *name);
        if let Some(value) = stated {
            *value = name.into();
            changed.push(key.to_owned());
        }
    }
    config.sort_keys();
    for (key, value) in config.iter_mut() {
        let nested = value.as_object_mut();
        if let Some(nested) = nested.filter(|_| key.ends_with(NESTED) && key != NOT_OF_WEIGHTS)
            && !state_dtype(nested, dtype).is_empty()
        {
            changed.push(key.clone());
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dtype_replaces_only_stated_dtypes() {
        let config = json!({
            "torch_dtype": "bfloat16", "hidden_size": 8, "text_config": {"dtype": "bfloat16"},
            "vision_config": {"depth": 2}, "quantization_config": {"dtype": "bfloat16"}
        });
        let mut config = config.as_object().cloned().expect("an object");
        assert_eq!(stated_dtype(&config), Some(DType::BF16));
        assert_eq!(state_dtype(&mut config, DType::F32), ["torch_dtype", "text_config"]);
        let expected = json!({
            "torch_dtype": "float32", "hidden_size": 8, "text_config": {"dtype": "float32"},
            "vision_config": {"depth": 2}, "quantization_config": {"dtype": "bfloat16"}
        });
        assert_eq!(Value::Object(config), expected);
    }
}
