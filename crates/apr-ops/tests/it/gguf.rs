//! Imports and llama.cpp's layout: whichever way a model takes, it leads to the same file
//! (`fixtures/gguf`).

use apr_arch::Families;
use apr_blocks::GraphOptions;
use apr_graph::Graph;
use apr_llama::{export, restore};
use apr_ops::graph::computed;
use apr_ops::import::{PrepareOptions, Prepared, prepare};
use apr_registry::{CheckpointReader, FolderCheckpoint, Limits, open_folder};
use apr_source::{Architecture, Source};
use apr_testkit::llama_cpp::{self, AsGguf, Model};
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

/// From a GGUF file to an `.apr`, which keeps its bytes, and from there back to a GGUF file, and to
/// Hugging Face.
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

/// Models of which a GGUF file has another head, or none, so that another graph comes back; a
/// window that is longer than any text changes nothing.
const OTHER_HEADS: [&str; 8] = [
    "bert",
    "bert_classifier",
    "bert_mlm",
    "distilbert_mlm",
    "llama_model",
    "mistral",
    "qwen2_model",
    "roberta",
];

/// The graphs of a model; `None` where it has none.
fn graphs_of(reader: &dyn CheckpointReader) -> Option<Vec<(String, Graph)>> {
    let families = Families::builtin();
    let found = computed(&Source::new(reader, &families), &GraphOptions::default()).ok()?;
    Some(found.parts.into_iter().map(|part| (part.name, part.graph)).collect())
}

/// Whether the graphs of the GGUF file of a model, and of an `.apr` made of that, are the model's
/// own: the same nodes over tensors of the same names and shapes, with the same constants. `None`
/// where the model has no graph, or becomes no GGUF file; and what is said of the way there.
fn keeps_graphs(model: &Model) -> Option<(bool, Vec<String>)> {
    let (families, reader) = (Families::builtin(), open(model));
    let expected = graphs_of(&reader)?;
    let export = export(&Source::new(&reader, &families), llama_cpp::tokenizer(&model.json));
    let export = export.ok()?;
    let file = AsGguf::new(&export.view);
    let source = Source::new(&file, &families);
    let imported = prepare(&source, &PrepareOptions::default()).expect("an .apr").view;
    let is_same = [&file as &dyn CheckpointReader, &imported]
        .map(graphs_of)
        .iter()
        .all(|found| found.as_ref() == Some(&expected));
    Some((is_same, export.warnings))
}

#[test]
fn graphs_are_those_of_the_folder_or_a_warning_says_otherwise() {
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

/// Entries that sizes of tensors go by, or that others say again: where they are changed alone, the
/// configuration contradicts itself. An output matrix beside tied embeddings has a test of its own.
const CONTRADICTING: [&str; 4] =
    ["hidden_size", "kv_lora_rank", "original_max_position_embeddings", "tie_word_embeddings"];

/// Ends of entries that no graph computes with.
const OF_TRAINING: [&str; 9] = [
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

/// Each number and truth of the configurations is changed in turn. What then changes the model's
/// graph changes that of its GGUF file, too, or something is said.
#[test]
fn no_entry_of_a_configuration_is_lost_in_silence() {
    let mut silent = Vec::new();
    // The others are the same models, stored otherwise or written by another version.
    let is_variant = |name: &str| ["_5", "16", "_mxfp4"].iter().any(|end| name.ends_with(end));
    for mut model in llama_cpp::models() {
        let Some(own) = graphs_of(&open(&model)) else { continue };
        if is_variant(&model.name) || OTHER_HEADS.contains(&model.name.as_str()) {
            continue;
        }

        let config = model.json["config"].clone();
        for (key, value) in config.as_object().expect("entries") {
            let is_idle = OF_TRAINING.iter().any(|end| key.ends_with(end));
            let Some(changed) = changed(value) else { continue };
            if is_idle || CONTRADICTING.contains(&key.as_str()) {
                continue;
            }
            model.json["config"][key] = changed;
            let is_moot = graphs_of(&open(&model)).is_none_or(|graphs| graphs == own);
            if !is_moot
                && let Some((false, warnings)) = keeps_graphs(&model)
                && warnings.is_empty()
            {
                silent.push(format!("{}: {key}", model.name));
            }
            model.json["config"][key] = value.clone();
        }
    }
    assert_eq!(silent, [""; 0]);
}

/// Another value of the same type.
fn changed(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(truth) => Some((!truth).into()),
        Value::Number(number) => match number.as_u64() {
            Some(number) => Some((number + 1).into()),
            None => Some((number.as_f64()? * 1.5).into()),
        },
        Value::Null => Some(3.into()),
        _ => None,
    }
}
