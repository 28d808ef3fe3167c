//! What the keys of a GGUF file say, by the names that families' tables ask for.

use std::collections::HashMap;
use std::sync::Arc;

use apr_arch::{Families, Family, GGUF, Naming};
use apr_gguf::KeyValues;
use apr_registry::{Metadata, TensorInfo};
use apr_source::Architecture;
use apr_source::naming::NAMES;
use serde_json::{Map, Value};

use super::hyperparameters::{config_value, layer_types};

/// Maximum number of layers that are listed one by one, whatever number a file declares.
const MAX_LAYERS: u64 = 1 << 12;

/// The keys of a GGUF file, and the names of its tensors.
pub(super) struct GgufKeys<'m> {
    pairs: Arc<KeyValues>,
    /// The architecture by its GGUF name.
    pub(super) architecture: String,
    tensors: HashMap<String, &'m TensorInfo>,
}

impl<'m> GgufKeys<'m> {
    /// Reads the keys. Returns `None` if the metadata are not from a GGUF file.
    pub(super) fn of(
        metadata: &'m Metadata,
        tensors: &'m [TensorInfo],
        families: &Families,
    ) -> Option<Self> {
        let pairs = metadata.key_values().ok().flatten()?;
        let architecture = pairs.text("general.architecture")?.to_owned();

        // What was imported has canonical names; the record says whose, and leads back to GGUF's.
        let recorded =
            metadata.object(NAMES).and_then(|names| families.find(names.get("family")?.as_str()?));
        let naming = Naming::new(GGUF, "");
        let name = |info: &TensorInfo| {
            let name = recorded.and_then(|family| family.source_name(&info.name, &naming));
            name.unwrap_or_else(|| info.name.clone())
        };
        let tensors = tensors.iter().map(|info| (name(info), info)).collect();
        Some(Self { pairs, architecture, tensors })
    }

    /// The value of a key with or without the architecture in front, `has.TENSOR`, `rows.TENSOR`,
    /// `columns.TENSOR`, `layers_of.TENSOR` (the numbers of layers with it), `true_in.KEY` (the
    /// places of what is true in a list), `every.KEY` (the last of every so many layers),
    /// `layer_types` as configurations have them, or `rope.fraction`: the share of a head's
    /// dimensions that is rotated. A hyperparameter with one value a layer, all of them equal, is
    /// that value; `list.KEY` is the list.
    pub(super) fn entry(&self, name: &str) -> Option<Value> {
        if let Some(tensor) = name.strip_prefix("has.") {
            return Some(self.tensors.contains_key(tensor).into());
        }
        if let Some(tensor) = name.strip_prefix("rows.") {
            // Only matrices are asked for. ggml leaves out outer sizes of 1: a matrix of one row,
            // as RoBERTa's table of types, has one dimension in a file that llama-quantize wrote.
            let dims = self.tensors.get(tensor)?.shape.dims();
            return Some(if let [rows, _, ..] = dims { (*rows).into() } else { 1.into() });
        }

        if let Some(tensor) = name.strip_prefix("columns.") {
            return self.tensors.get(tensor)?.shape.dims().last().map(|columns| (*columns).into());
        }

        if let Some(tensor) = name.strip_prefix("layers_of.") {
            let layers =
                self.entry("block_count")?.as_u64().filter(|count| *count <= MAX_LAYERS)?;
            let has = |layer: &u64| self.tensors.contains_key(&format!("blk.{layer}.{tensor}"));
            return Some((0..layers).filter(has).collect());
        }

        if let Some(name) = name.strip_prefix("true_in.") {
            let truths = self.entry(name)?;
            let truths = truths.as_array()?.iter().zip(0_u64..);
            return Some(truths.filter(|(truth, _)| **truth == true).map(|(_, at)| at).collect());
        }

        if let Some(name) = name.strip_prefix("every.") {
            let step =
                usize::try_from(self.entry(name)?.as_u64()?).ok().filter(|step| *step > 0)?;
            let layers = self.entry("vision.block_count")?.as_u64();
            let layers = layers.filter(|count| *count <= MAX_LAYERS)?;
            return Some((0..layers).skip(step - 1).step_by(step).collect());
        }

        if name == "layer_types" {
            return self.layer_types();
        }

        if name == "rope.fraction" {
            let number = |name: &str| self.entry(name)?.as_f64();
            let head = number("embedding_length")? / number("attention.head_count")?;
            return Some((number("rope.dimension_count")? / head).into());
        }

        let own = |name: &str| self.pairs.find(&format!("{}.{name}", self.architecture));
        if let Some(name) = name.strip_prefix("list.") {
            return own(name).or_else(|| self.pairs.find(name)).map(|pair| config_value(&pair));
        }
        match own(name) {
            Some(pair) => Some(of_all_layers(config_value(&pair))),
            None => self.pairs.find(name).map(|pair| config_value(&pair)),
        }
    }

    /// Returns the layer types by the pattern of windows. Without a window, every layer has full
    /// attention. With a window but no pattern, returns `None`.
    fn layer_types(&self) -> Option<Value> {
        let own = |key: &str| self.pairs.find(&format!("{}.{key}", self.architecture));
        if let Some(pattern) = own("attention.sliding_window_pattern") {
            return layer_types(&config_value(&pattern));
        }
        let is_open = self.entry("attention.sliding_window").is_none_or(|window| window == 0);
        let layers = self.entry("block_count")?.as_u64()?;
        let see_all = (0..layers).map(|_| Value::from(false));
        (is_open && layers <= MAX_LAYERS).then(|| layer_types(&see_all.collect()))?
    }

    pub(super) fn family<'f>(
        &self,
        families: &'f Families,
        architecture: &Architecture,
    ) -> Option<&'f Family> {
        match architecture {
            Architecture::Named(name) => families.find(name),
            _ => families.of_gguf(&self.architecture, &|name| self.entry(name)),
        }
    }

    /// The configuration that the keys lead to, with `model_type`.
    pub(super) fn config(&self, family: &Family) -> Map<String, Value> {
        let mut config = family.config_from_gguf(&|name| self.entry(name));
        config.entry("model_type").or_insert_with(|| family.name().into());
        // A table names one class, where `config.json` has a list.
        if let Some(class) = config.get_mut("architectures") {
            *class = Value::Array(vec![class.take()]);
        }
        config
    }
}

/// Returns the number or Boolean that all items of a list equal, or else the value unchanged.
fn of_all_layers(value: Value) -> Value {
    let layers = value.as_array().map_or(&[][..], Vec::as_slice);
    let first = layers.first().filter(|first| first.is_number() || first.is_boolean());
    match first.filter(|&first| layers.iter().all(|layer| layer == first)) {
        Some(first) => first.clone(),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use apr_registry::DType;

    use super::*;

    #[test]
    fn a_matrix_without_outer_ones_has_one_row() {
        let table = |dims: Vec<u64>| TensorInfo {
            name: "token_types.weight".to_owned(),
            dtype: DType::F32,
            shape: dims.into(),
        };
        for (dims, rows) in [(vec![320], 1), (vec![1, 320], 1), (vec![2, 320], 2)] {
            let table = table(dims);
            let described = GgufKeys {
                pairs: Arc::new([apr_gguf::KeyValue::new("a.b", 1_u32)].into_iter().collect()),
                architecture: "bert".to_owned(),
                tensors: HashMap::from([(table.name.clone(), &table)]),
            };
            assert_eq!(described.entry("rows.token_types.weight"), Some(rows.into()));
        }
    }
}
