//! Imports and llama.cpp's layout: whichever way a model takes, it leads to the same file
//! (`fixtures/gguf`).

use std::collections::HashSet;

use apr_arch::Families;
use apr_blocks::GraphOptions;
use apr_graph::Graph;
use apr_llama::{described, export, restore};
use apr_ops::graph::computed;
use apr_ops::import::{PrepareOptions, Prepared, prepare};
use apr_registry::{CheckpointReader, FolderCheckpoint, Limits, open_folder};
use apr_source::{Architecture, Source};
use apr_testkit::llama_cpp::{self, AsGguf, Model};
use apr_view::View;
use serde_json::Value;

fn open(model: &Model) -> FolderCheckpoint {
    open_folder(&model.folder(), &Limits::default()).expect("a model")
}

fn read(reader: &dyn CheckpointReader, tensor: usize) -> Vec<u8> {
    let mut bytes = vec![
        0;
        usize::try_from(reader.tensors()[tensor].byte_len().expect("a length"))
            .expect("it fits")
    ];
    reader.read_tensor(tensor, 0, &mut bytes).expect("bytes");
    bytes
}

/// Converts a GGUF file to an `.apr` that keeps its bytes, then back to GGUF and to Hugging Face.
#[test]
fn imports_keep_the_layout_and_lead_back() {
    let families = Families::builtin();
    for model in llama_cpp::models() {
        let (name, reader) = (&model.name, open(&model));
        let export = export(&Source::new(&reader, &families), llama_cpp::tokenizer(&model.json));
        let export = export.unwrap_or_else(|error| panic!("{name}: {error}"));
        let file = AsGguf::new(&export.view);
        let prepared = prepare(&Source::new(&file, &families), &PrepareOptions::default());
        let Prepared { view: imported, misfits, family, .. } =
            prepared.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(misfits.is_empty(), "{name}: {misfits:?}");
        assert!(
            family.is_some_and(|family| !family.guessed && family.convention == "gguf"),
            "{name}"
        );
        assert!(
            imported.metadata().object("architecture").is_some_and(|config| !config.is_empty()),
            "{name}"
        );
        assert_eq!(
            imported.tensors().iter().filter(|info| info.name.starts_with("blk.")).count(),
            0,
            "{name}"
        );

        let again = apr_llama::export(&Source::new(&imported, &families), Vec::new());
        let again = again.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(again.view.tensors(), export.view.tensors(), "{name}");
        assert_eq!(again.view.metadata().get("gguf"), export.view.metadata().get("gguf"), "{name}");

        let restored = [&file as &dyn CheckpointReader, &imported]
            .map(|reader| restore(reader, &families, &Architecture::Auto));
        let [direct, detour] =
            restored.map(|restored| restored.unwrap_or_else(|error| panic!("{name}: {error}")));
        assert_eq!(direct.view.tensors(), detour.view.tensors(), "{name}");
        assert_eq!(direct.config, detour.config, "{name}");
        // Blocks whose elements lie otherwise are decoded, and nothing else is.
        assert_eq!(direct.decoded.is_empty(), !name.ends_with("_mxfp4"), "{name}");
        for position in 0..direct.view.tensors().len() {
            assert!(
                read(&direct.view, position) == read(&detour.view, position),
                "{name}: {position}"
            );
        }
    }
}

/// An `.apr` made of Hugging Face's checkpoint has canonical names, and leads to the same file.
#[test]
fn imports_from_hugging_face_are_exported_alike() {
    let families = Families::builtin();
    for model in llama_cpp::models() {
        let (name, reader) = (&model.name, open(&model));
        let direct = export(&Source::new(&reader, &families), Vec::new());
        let direct = direct.unwrap_or_else(|error| panic!("{name}: {error}"));
        let imported = prepare(&Source::new(&reader, &families), &PrepareOptions::default())
            .expect("a model")
            .view;
        let detour = apr_llama::export(&Source::new(&imported, &families), Vec::new());
        let detour = detour.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(detour.view.tensors(), direct.view.tensors(), "{name}");
        assert_eq!(
            detour.view.metadata().get("gguf"),
            direct.view.metadata().get("gguf"),
            "{name}"
        );
    }
}

/// Models whose GGUF file has another head or none, or of which experts are restored one by one, so
/// that another graph is restored.
///
/// A window longer than any text has no effect.
const OTHER_HEADS: [&str; 6] =
    ["bert", "bert_mlm", "distilbert_mlm", "mistral", "qwen3_vl_moe", "roberta"];

/// Returns the graphs of a model, or `None` if it has none.
fn graphs_of(reader: &dyn CheckpointReader) -> Option<Vec<(String, Graph)>> {
    let families = Families::builtin();
    let found = computed(&Source::new(reader, &families), &GraphOptions::default()).ok()?;
    Some(found.parts.into_iter().map(|part| (part.name, part.graph)).collect())
}

/// Returns whether the graphs of a model's GGUF file equal the model's own.
///
/// The graphs of an `.apr` made from the GGUF file must also be equal. Equal graphs have the same
/// nodes over tensors of the same names and shapes, with the same constants. Also returns the
/// warnings of the conversion. Returns `None` if the model has no graph or can't be converted to
/// GGUF.
fn keeps_graphs(model: &Model) -> Option<(bool, Vec<String>)> {
    let (families, reader) = (Families::builtin(), open(model));
    let expected = graphs_of(&reader)?;
    let export = export(&Source::new(&reader, &families), llama_cpp::tokenizer(&model.json));
    let export = export.ok()?;
    // As commands read it: names alone do not tell every family.
    let bare = AsGguf::new(&export.view);
    let mut file = View::new(&bare);
    if let Some(metadata) = described(&bare, &families, &Architecture::Auto) {
        *file.metadata_mut() = metadata;
    }
    let source = Source::new(&file, &families);
    let imported = prepare(&source, &PrepareOptions::default()).expect("an .apr").view;
    let is_same = [&file as &dyn CheckpointReader, &imported]
        .map(graphs_of)
        .iter()
        .all(|found| found.as_ref() == Some(&expected));
    Some((is_same, export.warnings))
}

#[test]
fn graphs_of_gguf_files_equal_the_original_ones_or_a_warning_is_given() {
    let mut silent = Vec::new();
    for model in llama_cpp::models() {
        if let Some((false, warnings)) = keeps_graphs(&model)
            && warnings.is_empty()
        {
            silent.push(model.name.clone());
        }
    }
    assert_eq!(silent, OTHER_HEADS);
}

/// Entries that determine the sizes of tensors or that other entries repeat.
///
/// If they are changed alone, the configuration contradicts itself. An output matrix beside tied
/// embeddings has a test of its own.
const CONTRADICTING: [&str; 4] =
    ["hidden_size", "kv_lora_rank", "original_max_position_embeddings", "tie_word_embeddings"];

/// Ends of entries that no graph computes with.
const OF_TRAINING: [&str; 10] = [
    "architectures",
    "_token_id",
    "_dropout",
    "_coef",
    "initializer_range",
    "initializer_factor",
    "output_router_logits",
    "pretraining_tp",
    "use_cache",
    "vocab_size",
];

/// Entries that a model's file has by the shapes of its tensors alone, which contradict others.
const OF_SHAPES: [(&str, &str); 2] =
    [("minicpm3", "num_attention_heads"), ("minicpm3", "v_head_dim")];

fn name_is_of(entries: [(&str, &str); 2], name: &str, key: &str) -> bool {
    entries.iter().any(|(family, entry)| name.starts_with(family) && *entry == key)
}

/// Models whose factors are in the weights of the file, so that its graph is always another one.
const FOLDED: [&str; 1] = ["falcon_h1"];

/// Entries that transformers requires, or for which it treats null as false.
const NEVER_NULL: [&str; 5] =
    ["n_group", "num_attention_heads", "parallel_attn", "routed_scaling_factor", "sliding_window"];

/// Changes each entry of the configurations in turn, sets it to null, and omits it.
///
/// A change that affects the model's graph must also affect the graph of its GGUF file, or lead to
/// a warning.
#[test]
fn no_entry_of_a_configuration_is_lost_in_silence() {
    let mut silent = Vec::new();
    // The others are the same models, stored otherwise or written by another version.
    let is_variant = |name: &str| ["_5", "16", "_mxfp4"].iter().any(|end| name.ends_with(end));
    let mut types = HashSet::new();
    for mut model in llama_cpp::models() {
        let Some(own) = graphs_of(&open(&model)) else { continue };
        let name = model.name.as_str();
        if is_variant(name) || OTHER_HEADS.contains(&name) || FOLDED.contains(&name) {
            continue;
        }

        let config = model.json["config"].clone();
        let is_first = types.insert(config["model_type"].clone());
        for (key, value) in config.as_object().expect("entries") {
            let is_idle = OF_TRAINING.iter().any(|end| key.ends_with(end));
            let is_shape = name_is_of(OF_SHAPES, &model.name, key);
            if is_idle || is_shape || CONTRADICTING.contains(&key.as_str()) {
                continue;
            }
            let may_be_null = is_first && !NEVER_NULL.contains(&key.as_str());
            for other in others(value).into_iter().filter(|other| may_be_null || is_some(other)) {
                // A configuration that excludes biases which are there contradicts the file.
                if key.ends_with("_bias") && other == Some(Value::Bool(false)) {
                    continue;
                }
                set(&mut model, key, other.clone());
                let is_moot = graphs_of(&open(&model)).is_none_or(|graphs| graphs == own);
                if !is_moot
                    && let Some((false, warnings)) = keeps_graphs(&model)
                    && warnings.is_empty()
                {
                    let other = other.map_or("missing".to_owned(), |other| other.to_string());
                    silent.push(format!("{}: {key} {other}", model.name));
                }
                set(&mut model, key, Some(value.clone()));
            }
        }
    }
    assert_eq!(silent, [""; 0]);
}

/// EXAONE 4 takes a missing window for one of its large model, which has layers without positions;
/// the small one has none. Its file has to lead back to that.
#[test]
fn a_model_without_windows_comes_back_without_them() {
    let models = llama_cpp::models();
    let mut model = models.into_iter().find(|model| model.name == "exaone4").expect("a fixture");
    set(&mut model, "sliding_window", Some(Value::Null));
    let kinds = model.json["config"]["layer_types"].as_array().expect("a list").len();
    set(&mut model, "layer_types", Some(vec!["full_attention"; kinds].into()));
    let (is_same, warnings) = keeps_graphs(&model).expect("a graph and a file");
    assert!(is_same && warnings.is_empty(), "{warnings:?}");
}

/// Sets an entry of the configuration, or removes it.
fn set(model: &mut Model, key: &str, value: Option<Value>) {
    let config = model.json["config"].as_object_mut().expect("entries");
    match value {
        Some(value) => config.insert(key.to_owned(), value),
        None => config.remove(key),
    };
}

/// Returns `true` if there is a value other than null.
fn is_some(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(|value| !value.is_null())
}

/// Returns other values of the same type, null, and no value, which may mean a default.
///
/// A list of words becomes a list that repeats one of the words.
fn others(value: &Value) -> Vec<Option<Value>> {
    let mut others = vec![None, Some(Value::Null)];
    match value {
        Value::Bool(truth) => others.push(Some((!truth).into())),
        Value::Number(number) => others.push(Some(match number.as_u64() {
            Some(number) => (number + 1).into(),
            None => (number.as_f64().expect("a number") * 1.5).into(),
        })),
        Value::Null => others.push(Some(3.into())),
        Value::Array(words) if words.iter().all(Value::is_string) => {
            let alike = |word: &Value| Some(vec![word.clone(); words.len()].into());
            others.extend(words.iter().map(alike));
        }
        _ => {}
    }
    others
}
