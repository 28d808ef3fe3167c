//! The fixtures of whole models, and their exports.

use std::sync::LazyLock;

use apr_arch::Families;
use apr_llama::{GgufExport, export};
use apr_registry::{CheckpointReader, FolderCheckpoint, open_folder};
use apr_source::Source;
use apr_testkit::llama_cpp::{self, Model};
use serde_json::Value;

pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) json: Value,
    pub(crate) reader: FolderCheckpoint,
}

/// The families, which what is made by them lives as long as.
pub(crate) fn families() -> &'static Families {
    static FAMILIES: LazyLock<Families> = LazyLock::new(Families::builtin);
    &FAMILIES
}

pub(crate) fn cases() -> Vec<Case> {
    llama_cpp::models().into_iter().map(case).collect()
}

pub(crate) fn named(name: &str) -> Case {
    case(llama_cpp::model(name))
}

pub(crate) fn case(model: Model) -> Case {
    let reader = open(&model);
    Case { name: model.name, json: model.json, reader }
}

pub(crate) fn open(model: &Model) -> FolderCheckpoint {
    open_folder(&model.folder(), &apr_registry::Limits::default()).expect("a model")
}

pub(crate) fn exported<'a>(reader: &'a FolderCheckpoint, name: &str) -> GgufExport<'a> {
    export(&Source::new(reader, families()), Vec::new())
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Exports a case with tokenizer keys that distinguish one family of encoders from another.
pub(crate) fn exported_with_tokens<'a>(case: &'a Case) -> GgufExport<'a> {
    let tokenizer = llama_cpp::tokenizer(&case.json);
    let export = export(&Source::new(&case.reader, families()), tokenizer);
    export.unwrap_or_else(|error| panic!("{}: {error}", case.name))
}

pub(crate) fn read(reader: &dyn CheckpointReader, tensor: usize) -> Vec<u8> {
    let mut bytes = vec![
        0;
        usize::try_from(reader.tensors()[tensor].byte_len().expect("a length"))
            .expect("it fits")
    ];
    reader.read_tensor(tensor, 0, &mut bytes).expect("bytes");
    bytes
}

/// Returns a case whose configuration also has these entries.
pub(crate) fn with_config(name: &str, entries: &Value) -> Case {
    let mut model = llama_cpp::model(name);
    let config = model.json["config"].as_object_mut().expect("a configuration");
    config.extend(entries.as_object().expect("entries").clone());
    case(model)
}

/// Compares values of exponentials: torch rounds some of them to the next single.
pub(crate) fn assert_adjacent(what: &str, bytes: &[u8], expected: &[Value]) {
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(values.len(), expected.len(), "{what}");
    for (value, expected) in values.iter().zip(expected) {
        let expected = expected.as_f64().expect("a number");
        let distance = (f64::from(*value) - expected).abs();
        assert!(distance <= f64::from(f32::EPSILON) * expected.abs(), "{what} has {value}");
    }
}

/// Compares values that went through an exponential and came back by its logarithm.
pub(crate) fn assert_close(what: &str, found: &[u8], expected: &[u8]) {
    let singles = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    for (found, expected) in singles(found).iter().zip(singles(expected)) {
        assert!((found - expected).abs() <= 2e-7, "{what} has {found}, not {expected}");
    }
}
