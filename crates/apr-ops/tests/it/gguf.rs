//! Imports and llama.cpp's layout: whichever way a model takes, it leads to the same file
//! (`fixtures/gguf`).

use apr_arch::Families;
use apr_llama::{export, restore};
use apr_ops::import::{PrepareOptions, Prepared, prepare};
use apr_registry::{CheckpointReader, FolderCheckpoint, Limits, open_folder};
use apr_source::{Architecture, Source};
use apr_testkit::llama_cpp::{self, AsGguf, Model};

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
        if name.ends_with("_mxfp4") {
            // Blocks are not joined; the error names the option that makes floats of them.
            for refused in restored {
                let error = refused.err().unwrap_or_else(|| panic!("{name}: restored"));
                assert!(error.message().contains("--dequantize"), "{name}: {error}");
            }
            continue;
        }
        let [direct, detour] =
            restored.map(|restored| restored.unwrap_or_else(|error| panic!("{name}: {error}")));
        assert_eq!(direct.view.tensors(), detour.view.tensors(), "{name}");
        assert_eq!(direct.config, detour.config, "{name}");
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
