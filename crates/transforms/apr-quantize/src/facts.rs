//! What llama.cpp's rules want to know about a model as a whole.

use apr_gguf::{Array, KeyValues, Value};

/// Hyperparameters that decide about types.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ModelFacts {
    /// Architecture in the form of GGUF's `general.architecture`: `llama`, `falcon`.
    pub architecture: String,
    /// Number of layers, including `extra_layers`.
    pub layers: u64,
    /// Layers at the end that predict further tokens.
    pub extra_layers: u64,
    /// Attention heads of the first layer; 0 for models without attention.
    pub heads: u64,
    /// Heads of keys and values in the first layer.
    pub kv_heads: u64,
    /// Experts of a layer; 0 for a dense model.
    pub experts: u64,
}

impl ModelFacts {
    /// Reads the facts from the keys of a GGUF file.
    ///
    /// A missing key gives 0. A missing number of key heads gives the number of heads.
    #[must_use]
    pub fn from_gguf(keys: &KeyValues) -> Self {
        let architecture = keys.text("general.architecture").unwrap_or_default().to_owned();
        let number = |key: &str| first_number(&keys.get(&format!("{architecture}.{key}"))?);
        let heads = number("attention.head_count").unwrap_or(0);
        Self {
            layers: number("block_count").unwrap_or(0),
            extra_layers: number("nextn_predict_layers").unwrap_or(0),
            heads,
            kv_heads: number("attention.head_count_kv").unwrap_or(heads),
            experts: number("expert_count").unwrap_or(0),
            architecture,
        }
    }

    /// Takes the dimensions of a family, by the names that its table has for them; `architecture`
    /// is GGUF's name.
    #[must_use]
    pub fn from_dimensions(architecture: &str, dimension: impl Fn(&str) -> Option<u64>) -> Self {
        let heads = dimension("heads").unwrap_or(0);
        Self {
            architecture: architecture.to_owned(),
            layers: dimension("layers").unwrap_or(0),
            extra_layers: 0,
            heads,
            kv_heads: dimension("kv_heads").unwrap_or(heads),
            experts: dimension("experts").unwrap_or(0),
        }
    }

    /// Heads that share a key and a value.
    pub(super) fn queries_per_key(&self) -> u64 {
        self.heads.checked_div(self.kv_heads).unwrap_or(0)
    }

    /// Returns `true` if llama.cpp counts the model as a 70-billion-parameter model.
    ///
    /// The values of such models have few rows.
    pub(super) fn is_70b(&self) -> bool {
        let layers = self.layers.saturating_sub(self.extra_layers);

        // llama.cpp knows the size of a model by its number of layers.
        match self.architecture.as_str() {
            "llama" | "llama-embed" => {
                layers == 80 && self.experts != 8 && self.heads != self.kv_heads
            }
            "qwen2" | "deci" | "olmo" => layers == 80,
            "jais2" => layers == 68,
            _ => false,
        }
    }
}

/// Returns a whole number, or the first element of an array with one number per layer.
fn first_number(value: &Value) -> Option<u64> {
    macro_rules! whole {
        ($($unsigned_or_signed:ident),*) => {
            match value {
                $(Value::$unsigned_or_signed(number) => u64::try_from(*number).ok(),
                Value::Array(Array::$unsigned_or_signed(numbers)) => {
                    u64::try_from(*numbers.first()?).ok()
                })*
                _ => None,
            }
        };
    }
    whole!(U8, I8, U16, I16, U32, I32, U64, I64)
}

#[cfg(test)]
mod tests {
    use apr_gguf::KeyValue;

    use super::*;

    #[test]
    fn numbers_of_any_width_and_per_layer_are_read() {
        let pairs = [
            KeyValue::new("general.architecture", "deci"),
            KeyValue::new("deci.block_count", 3_u32),
            KeyValue::new("deci.attention.head_count", vec![8_i32, 0, 4]),
            KeyValue::new("deci.expert_count", -1_i16),
            KeyValue::new("llama.nextn_predict_layers", 1_u64),
        ];
        let facts = ModelFacts::from_gguf(&pairs.iter().collect());
        assert_eq!(
            facts,
            ModelFacts {
                architecture: "deci".to_owned(),
                layers: 3,
                extra_layers: 0,
                heads: 8,
                kv_heads: 8,
                experts: 0
            }
        );
    }

    #[test]
    fn dimensions_of_a_family_are_taken_by_name() {
        let facts = ModelFacts::from_dimensions("llama", |name| match name {
            "layers" => Some(32),
            "heads" => Some(32),
            "kv_heads" => Some(8),
            _ => None,
        });
        assert_eq!((facts.layers, facts.queries_per_key(), facts.experts), (32, 4, 0));
    }
}
