//! Files we write, read by an implementation that knows the specification and nothing of ours
//! (`fixtures/apr2/read_apr2.py`).

use std::path::Path;
use std::process::Command;

use apr_ops::convert::{ConvertOptions, plan};
use apr_registry::{CheckpointReader, DType, Limits, PlanOptions, Serial};
use apr_testkit::{FolderInMemory, locate};

/// Reads an APR2 file with the Python reader and compares it with its original safetensors file.
fn read_in_python(python: &Path, apr: &[u8], source: Option<&Path>) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.apr");
    std::fs::write(&path, apr).expect("the folder is writable");
    let mut command = Command::new(python);
    command.arg(locate::fixture("apr2/read_apr2.py")).arg(&path).args(source);
    let output = command.output().expect("Python starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn convert(model: &dyn CheckpointReader, options: &ConvertOptions, alignment: u32) -> Vec<u8> {
    let target = PlanOptions {
        alignment: Some(alignment),
        ..PlanOptions::new(&apr_registry::apr2::FORMAT, "model.apr")
    };
    let mut file = Vec::new();
    let conversion = plan(model, options, &target).expect("the model fits");
    conversion.run(model, &mut file, &Serial, &()).expect("memory takes everything");
    file
}

#[test]
fn a_trained_model_is_the_same_to_both() {
    let Some(python) = locate::reference_python() else { return };
    let path = locate::fixture("tiny-llama/model.safetensors");
    let bytes = std::fs::read(&path).expect("the fixture is there");
    let model = apr_registry::open(bytes, "model.safetensors", &Limits::default())
        .expect("the fixture opens");
    for alignment in [64, 32] {
        let file = convert(&*model, &ConvertOptions::default(), alignment);
        assert_eq!(
            read_in_python(&python, &file, Some(&path)),
            "21 tensors, 0 files, as specified\n"
        );
    }
    let cast = convert(
        &*model,
        &ConvertOptions { precision: Some(DType::F32), ..ConvertOptions::default() },
        64,
    );
    assert_eq!(read_in_python(&python, &cast, None), "21 tensors, 0 files, as specified\n");
}

#[test]
fn companions_large_and_small_keep_the_file_as_specified() {
    let Some(python) = locate::reference_python() else { return };
    let weights = std::fs::read(locate::fixture("tiny-llama/model.safetensors"))
        .expect("the fixture is there");
    let folder = FolderInMemory::from([
        ("model.safetensors", weights),
        ("config.json", br#"{"model_type":"llama","vocab_size":259}"#.to_vec()),
        ("tokenizer.json", vec![b' '; 3 << 20]),
        ("tokenizer.model", vec![0xff; 77]),
    ]);
    let model = apr_registry::open_folder(&folder, &Limits::default()).expect("the folder opens");
    let file = convert(&model, &ConvertOptions::default(), 64);
    assert_eq!(read_in_python(&python, &file, None), "21 tensors, 3 files, as specified\n");
}
