//! The combined adapter as a checkpoint: its tensors, its configuration and what it says of itself.

use std::collections::BTreeSet;

use apr_core::json::from_python;
use apr_core::{DType, Error, Escaped, Metadata, Result, TensorInfo, keys};
use apr_lowrank::{Adapter as MadeAdapter, AdapterBytes, FactorStore};
use apr_source::adapter::ADAPTER_CONFIG;
use apr_tensor::cast::cast_values;
use apr_view::Companions;
use serde_json::{Map, Value, json};

use super::CombineReport;
use super::modules::Modules;
use crate::adapter::Adapter;
use crate::configuration::{DIFFUSERS, Writer};

/// Name of the card of an adapter.
const CARD: &str = "README.md";

/// Settings of PEFT that select some of the modules of the targets.
const SELECTIONS: [&str; 3] = ["exclude_modules", "layers_to_transform", "layers_pattern"];

/// Keys in the metadata of kohya's files that state the rank and the scale.
const KOHYA_RANK: [&str; 2] = ["ss_network_dim", "ss_network_alpha"];

/// Keys in the metadata of kohya's files with digests of the weights.
const KOHYA_DIGESTS: [&str; 2] = ["sshs_model_hash", "sshs_legacy_hash"];

/// Creates the adapter of these matrices.
pub(super) fn adapter<'a>(
    adapters: &'a [Adapter<'a>],
    found: &Modules,
    report: &mut CombineReport,
    mut tensors: Vec<(TensorInfo, AdapterBytes)>,
    store: Box<dyn FactorStore>,
) -> Result<MadeAdapter<'a>> {
    let source = &*adapters[0].reader;
    let (mut metadata, mut companions) = (Metadata::new(), Companions::default());
    match found.writer {
        Writer::Images => {
            // The scale is in the matrices, so that alpha is the rank: what no number means, too.
            for (module, made) in found.list.iter().zip(&report.modules) {
                let Some(alpha) = module.alpha else { continue };
                let of = &adapters[module.pairs[0].adapter];
                let info = &of.reader.tensors()[alpha];
                let dtype = if made.rank <= 256 { info.dtype } else { DType::F32 };
                let mut bytes = Vec::new();
                cast_values(&[made.rank as f32], dtype, &mut bytes);
                let stored = AdapterBytes::append(&*store, &bytes)?;
                tensors.push((TensorInfo { dtype, ..info.clone() }, stored));
            }
            if let Some(header) = header(source.metadata(), report) {
                metadata.set(keys::SAFETENSORS, header);
            }
        }
        _ => {
            companions = files_beside(adapters, &mut report.warnings)?;
            companions.put(ADAPTER_CONFIG, configuration(adapters, report)?);
        }
    }
    for &tensor in &found.copied {
        tensors.push((source.tensors()[tensor].clone(), AdapterBytes::Copied(tensor)));
    }
    Ok(MadeAdapter::new(source, store, tensors, metadata, companions))
}

/// Returns the first adapter's files beside its weights, such as the tokenizer of added tokens, and
/// warns of files that the result lacks.
fn files_beside(adapters: &[Adapter<'_>], warnings: &mut Vec<String>) -> Result<Companions> {
    let source = &*adapters[0].reader;
    let mut kept = Companions::of(source);
    if adapters.len() > 1 {
        // It describes one of them.
        kept.keep(|name| name != CARD);
    }
    for (position, adapter) in adapters.iter().enumerate().filter(|_| adapters.len() > 1) {
        for (at, file) in adapter.reader.companions().iter().enumerate() {
            let is_there = match (position, kept.read_named(source, &file.name)?) {
                (0, found) => found.is_some(),
                (_, found) => found == Some(adapter.reader.read_companion(at)?),
            };
            if !is_there && file.name != ADAPTER_CONFIG {
                warnings.push(format!(
                    "{} of {} is left out",
                    Escaped::short(&file.name),
                    Escaped::short(&adapter.name)
                ));
            }
        }
    }
    Ok(kept)
}

/// Returns the largest rank of the result's modules.
fn largest_rank(report: &CombineReport) -> u64 {
    report.modules.iter().map(|module| module.rank).max().unwrap_or(1)
}

/// Returns the header's texts of the first adapter, with the rank of the result.
fn header(metadata: &Metadata, report: &CombineReport) -> Option<Value> {
    let mut header = metadata.object(keys::SAFETENSORS)?.clone();
    let texts = header.get_mut("metadata")?.as_object_mut()?;
    texts.remove(DIFFUSERS);
    KOHYA_DIGESTS.iter().for_each(|key| drop(texts.remove(*key)));
    let rank = largest_rank(report).to_string();
    for key in KOHYA_RANK {
        if let Some(text) = texts.get_mut(key) {
            *text = Value::from(rank.as_str());
        }
    }
    Some(Value::Object(header))
}

/// Returns the first adapter's configuration, with the modules, ranks and scales of the result.
fn configuration(adapters: &[Adapter<'_>], report: &CombineReport) -> Result<Vec<u8>> {
    let read = |adapter: &Adapter<'_>| -> Result<Map<String, Value>> {
        let reader = &*adapter.reader;
        let list = reader.companions();
        let position = list.iter().position(|file| file.name == ADAPTER_CONFIG);
        let bytes = position.map(|at| reader.read_companion(at)).transpose()?.unwrap_or_default();
        from_python(&bytes).map_err(|error| {
            Error::format(format!("{ADAPTER_CONFIG}: {}", apr_core::foreign(&error)))
        })
    };
    let configurations: Vec<Map<String, Value>> =
        adapters.iter().map(read).collect::<Result<_>>()?;
    let most = largest_rank(report);
    let of_others: Map<String, Value> = report
        .modules
        .iter()
        .filter(|module| module.rank != most)
        .map(|module| (module.name.clone(), module.rank.into()))
        .collect();
    let mut made = configurations[0].clone();
    for (key, value) in [
        ("r", json!(most)),
        ("lora_alpha", json!(most)),
        ("rank_pattern", json!(of_others)),
        ("alpha_pattern", json!(of_others)),
        ("use_rslora", json!(false)),
        ("init_lora_weights", json!(true)),
        ("inference_mode", json!(true)),
        ("target_modules", targets(&configurations, report)),
    ] {
        made.insert(key.to_owned(), value);
    }
    for key in &SELECTIONS {
        if made.contains_key(*key) {
            made.insert((*key).to_owned(), Value::Null);
        }
    }
    Ok(apr_core::json::to_vec_pretty(&made).unwrap_or_default())
}

/// Returns the target modules: of lists without exceptions all that one of them has, and the names
/// of all modules otherwise.
fn targets(configurations: &[Map<String, Value>], report: &CombineReport) -> Value {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(list) => !list.is_empty(),
        _ => true,
    };
    let list = |configuration: &Map<String, Value>| -> Option<BTreeSet<String>> {
        if SELECTIONS.iter().any(|key| configuration.get(*key).is_some_and(is_set)) {
            return None;
        }
        let names = configuration.get("target_modules")?.as_array()?.iter();
        names.map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let lists: Option<Vec<BTreeSet<String>>> = configurations.iter().map(list).collect();
    let names: BTreeSet<String> = match lists {
        Some(lists) => lists.into_iter().flatten().collect(),
        None => report.modules.iter().map(|module| module.name.clone()).collect(),
    };
    json!(names)
}
