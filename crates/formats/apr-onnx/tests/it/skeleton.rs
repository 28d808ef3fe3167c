//! Files that are taken apart and put together again.

use std::fs;

use apr_core::{CheckpointReader, CheckpointWriter, Code, Limits, MemoryFolder, Notes};
use apr_onnx::skeleton::{COMPANION, RestoreOptions, graph_of, read_companion, restore};
use apr_onnx::{OnnxReader, open_as_stored};
use apr_testkit::{FolderInMemory, locate};

use crate::corpus::models_as_stored;

/// Writes the model that a reader has under the names of its file, from its skeleton and its
/// tensors.
pub(crate) fn rewritten(reader: &OnnxReader, file_name: &str) -> MemoryFolder {
    let skeleton = read_companion(reader).expect("readable").expect("a model has one");
    let options = RestoreOptions { file_name: file_name.to_owned(), named_files: true };
    let mut writer =
        restore(skeleton, reader.tensors(), &options, &Limits::default()).expect("it fits");
    let mut folder = MemoryFolder::default();
    writer.begin(&mut folder).expect("memory");
    for planned in writer.layout().tensors.clone() {
        // Pieces that end amid elements.
        let mut at = 0;
        while at < planned.len {
            let mut piece = vec![0; usize::try_from((planned.len - at).min(1001)).expect("small")];
            reader.read_tensor(planned.source, at, &mut piece).expect("readable");
            writer.write_chunk(&mut folder, &piece, None).expect("memory");
            at += piece.len() as u64;
        }
    }
    writer.finish(&mut folder, &Notes::default()).expect("memory");
    folder
}

#[test]
fn every_real_model_comes_back_byte_for_byte() {
    let Some(folder) = locate::shared_data("onnx") else { return };
    for (path, reader) in models_as_stored(&Limits::default()) {
        if reader.model().is_none() {
            continue;
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let written = rewritten(&reader, name);
        for (name, bytes) in written.files() {
            assert!(
                *bytes == fs::read(folder.join(parent).join(name)).expect("a file"),
                "{path}: {name}"
            );
        }
        assert_eq!(written.files().len(), reader.files().len(), "{path}");
    }
}

#[test]
fn the_skeleton_of_a_real_model_has_its_graph() {
    for (path, reader) in models_as_stored(&Limits::default()) {
        if reader.model().is_some() {
            let limits = Limits::default();
            assert_eq!(reader.companions()[0].name, COMPANION);
            let skeleton = reader.read_companion(0).expect("readable");
            assert_eq!(skeleton.len() as u64, reader.companions()[0].len, "{path}");
            let graph = graph_of(&reader, &limits).expect("a skeleton").expect("a graph");
            let own = reader.graph().expect("a graph").expect("a graph");
            assert_eq!(graph.body.nodes.len(), own.body.nodes.len(), "{path}");
        }
    }
}

/// Numbers of the schema and sparse tensors cannot store other values.
#[test]
fn changed_values_are_written_if_they_fit_and_are_otherwise_rejected_by_name() {
    let folder = FolderInMemory::from([(
        "m.onnx",
        fs::read(locate::fixture("onnx/storages.onnx")).expect("a fixture"),
    )]);
    let reader = open_as_stored(&folder, "m.onnx", &Limits::default()).expect("a sound file");
    let restored = |changed: &str| {
        let skeleton = read_companion(&reader).expect("readable").expect("a model has one");
        let mut writer =
            restore(skeleton, reader.tensors(), &RestoreOptions::default(), &Limits::default())
                .expect("it fits");
        let mut file = Vec::new();
        writer.begin(&mut file).expect("memory");
        assert!(format!("{writer:?}").starts_with("RestoredWriter"));
        for planned in writer.layout().tensors.clone() {
            let mut bytes = vec![0; usize::try_from(planned.len).expect("small")];
            reader.read_tensor(planned.source, 0, &mut bytes).expect("readable");
            if reader.tensors()[planned.source].name == changed {
                bytes[0] ^= 1;
            }
            writer.write_chunk(&mut file, &bytes, None)?;
        }
        writer.finish(&mut file, &Notes::default()).map(|()| file)
    };
    let same = restored("").expect("nothing changed");
    for (position, info) in
        reader.tensors().iter().enumerate().filter(|(_, info)| info.shape.elements() != Some(0))
    {
        // Integers below a byte are packed again where they lay side by side.
        let is_range = reader.tensor_slice(position).is_some() || info.name.ends_with("_raw");
        match restored(&info.name) {
            Ok(file) => assert!(is_range && file != same, "{}", info.name),
            Err(error) => {
                assert!(!is_range, "{error}");
                assert_eq!(
                    (error.code(), error.tensor()),
                    (Code::Version, Some(info.name.as_str())),
                    "{error}"
                );
            }
        }
    }
}
