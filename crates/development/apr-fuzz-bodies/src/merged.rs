//! What says how models are merged: configurations of merges and of adapters.

use std::collections::HashSet;
use std::hint::black_box;
use std::sync::Arc;

use apr_core::CheckpointReader;
use apr_lora::{AdaptOptions, Adapted, Adapter, SecondMatrices};
use apr_merge::{MergeOptions, Merged, Model, moe, parse};
use apr_registry::safetensors;
use apr_view::View;

use crate::{NAME, limits};

/// Elements of a side of the matrices that are merged, and the rank of the adapter.
const SIDE: u64 = 4;
const RANK: u64 = 2;

/// Reads the input as a configuration of mergekit or mergekit-moe, and merges small models by it.
pub fn read_merge(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(Some(recipe)) = moe::parse(text) {
        return mix(&recipe);
    }
    let Ok(recipes) = parse(text) else { return };
    let base = base();
    let mut models: Vec<Model<'_>> = Vec::new();
    let mut known = HashSet::new();
    for recipe in &recipes {
        for name in recipe.models() {
            if known.len() < 8 && known.insert(name.to_owned()) {
                let reader = Arc::new(View::new(&*base));
                models.push(Model { name: name.to_owned(), reader });
            }
        }
        let Ok(merged) = Merged::plan(recipe, &models, &MergeOptions::default()) else { return };
        black_box(apr_testkit::read_everything(&merged).is_ok());
    }
}

/// Puts small models together as experts.
fn mix(recipe: &moe::Recipe) {
    let config = br#"{"model_type":"llama","torch_dtype":"bfloat16"}"#;
    let base = base();
    let models = recipe.models().into_iter().take(8).map(|name| {
        let mut reader = View::new(&*base);
        reader.add_companion("config.json", config.to_vec());
        Model { name: name.to_owned(), reader: Arc::new(reader) }
    });
    let models: Vec<Model<'_>> = models.collect();
    let gates = match recipe.gate {
        gate if gate.is_random() => moe::Gates::random(recipe),
        _ => moe::Gates::of_embeddings(recipe, &*base, |prompt| {
            Ok(prompt.bytes().map(|byte| i64::from(byte % 5)).collect())
        }),
    };
    let Ok(gates) = gates else { return };
    if let Ok(mixture) = moe::Moe::plan(recipe, &models, gates, true) {
        black_box(apr_testkit::read_everything(&mixture).is_ok());
    }
}

/// Reads the input as the configuration of an adapter of PEFT's, and merges the adapter.
pub fn read_adapter(data: &[u8]) {
    let base = base();
    let names = modules().flat_map(|module| {
        [("lora_A", [RANK, SIDE]), ("lora_B", [SIDE, RANK])]
            .map(|(half, dims)| (format!("base_model.model.{module}.{half}.weight"), dims))
    });
    let matrices = safetensors(names);
    let mut adapter = View::new(&*matrices);
    adapter.add_companion("adapter_config.json", data.to_vec());
    black_box(SecondMatrices::of(&adapter, &*base).is_ok());
    let adapters = [Adapter { name: NAME.to_owned(), reader: Arc::new(adapter), weight: 1.0 }];
    let base = Arc::new(View::new(&*base));
    if let Ok(adapted) = Adapted::plan(base, NAME, &adapters, AdaptOptions::default()) {
        black_box(apr_testkit::read_everything(&adapted).is_ok());
    }
}

fn modules() -> impl Iterator<Item = String> {
    (0..3).flat_map(|layer| {
        ["self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
            .map(|last| format!("model.layers.{layer}.{last}"))
    })
}

/// Returns a small model to be merged.
fn base() -> Box<dyn CheckpointReader> {
    let ends = ["model.embed_tokens", "lm_head"].map(str::to_owned);
    safetensors(modules().chain(ends).map(|module| (format!("{module}.weight"), [SIDE, SIDE])))
}

/// A safetensors file of matrices.
fn safetensors(matrices: impl Iterator<Item = (String, [u64; 2])>) -> Box<dyn CheckpointReader> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, dims) in matrices {
        let start = end;
        end += dims.iter().product::<u64>() * 4;
        let entry =
            serde_json::json!({"dtype": "F32", "shape": dims, "data_offsets": [start, end]});
        header.insert(name, entry);
    }
    let header = apr_core::json::to_vec(&header).expect("names and numbers");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    file.extend((0..end).map(|at| if at % 4 == 3 { 0x3e } else { at.to_le_bytes()[0] }));
    Box::new(safetensors::open(file, NAME, &limits()).expect("a valid file"))
}
