//! What we write, as torch itself reads it, and beside what torch writes.

use std::path::PathBuf;
use std::process::Command;

use apr_core::{DType, Metadata};
use apr_testkit::peers::agreed;

use super::write::{DTYPES, sample, tensor, write};

/// A Python that has torch (Debian's `python3-torch`, or `pip install torch`).
fn python_with_torch() -> PathBuf {
    let given = std::env::var_os("APR_TORCH_PYTHON").map(PathBuf::from);
    let mut pythons = given.into_iter().chain(["python3", "/usr/bin/python3"].map(PathBuf::from));
    let found = pythons.find(|python| {
        let output = Command::new(python).args(["-c", "import torch"]).output();
        output.is_ok_and(|output| output.status.success())
    });
    found.expect("a Python with torch; APR_TORCH_PYTHON may name one")
}

/// Runs `tests/golden/load.py`, which gives what torch sees as JSON.
fn load(file: &[u8], command: &str) -> serde_json::Value {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("apr-pytorch-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let path = folder.join("model.pt");
    std::fs::write(&path, file).expect("the folder is writable");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/load.py");
    let output = Command::new(python_with_torch())
        .arg(script)
        .arg(command)
        .arg(&path)
        .output()
        .expect("Python starts");
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn as_loaded(tensors: &[(apr_core::TensorInfo, Vec<u8>)]) -> serde_json::Value {
    let tensor = |(info, bytes): &(apr_core::TensorInfo, Vec<u8>)| {
        serde_json::json!([info.name, info.dtype.name(), info.shape.dims(), hex(bytes)])
    };
    tensors.iter().map(tensor).collect()
}

/// Asserts that torch loads a file with these tensors and ties, live or as recorded.
fn loads(
    record: &str,
    tensors: &[(apr_core::TensorInfo, Vec<u8>)],
    metadata: &Metadata,
    shared: &[[&str; 2]],
) {
    let file = write(tensors, metadata);
    agreed(&format!("torch/{record}"), &[("model.pt".into(), file.clone())], || {
        let loaded = load(&file, "load");
        assert_eq!(loaded["tensors"], as_loaded(tensors));
        assert_eq!(loaded["shared"], serde_json::json!(shared));
    });
}

/// Asserts that `torch.save` writes the same pickle and entries, live or as recorded.
fn is_what_torch_saves(
    record: &str,
    tensors: &[(apr_core::TensorInfo, Vec<u8>)],
    metadata: &Metadata,
) {
    let file = write(tensors, metadata);
    agreed(&format!("torch/{record}"), &[("model.pt".into(), file.clone())], || {
        assert_eq!(load(&file, "compare"), serde_json::json!({ "different": [] }));
    });
}

#[test]
fn torch_loads_every_dtype_and_shape_with_weights_only() {
    let shapes: [&[u64]; 7] = [&[], &[1], &[0], &[3, 0, 2], &[2, 3], &[300, 2], &[1, 2, 3, 4, 5]];
    let tensors: Vec<_> = DTYPES
        .iter()
        .flat_map(|dtype| {
            shapes.iter().map(move |shape| tensor(&format!("{dtype}.ö.{shape:?}"), *dtype, shape))
        })
        .collect();
    loads("every_dtype", &tensors, &Metadata::new(), &[]);
    loads("no_tensors", &[], &Metadata::new(), &[]);
}

#[test]
fn tied_tensors_share_their_storage_in_torch() {
    let (tensors, metadata) = sample();
    loads("tied", &tensors, &metadata, &[["embed.weight", "head.weight"]]);
}

#[test]
fn seventy_thousand_tensors_load() {
    let tensors: Vec<_> =
        (0..70_000).map(|i| tensor(&format!("layers.{i}.weight"), DType::U8, &[1])).collect();
    loads("seventy_thousand", &tensors, &Metadata::new(), &[]);
}

#[test]
fn pickle_and_entries_are_the_bytes_that_torch_writes() {
    let (mut tensors, metadata) = sample();
    tensors.extend((0..1996).map(|i| tensor(&format!("{i}"), DType::F16, &[i % 3, 257])));
    is_what_torch_saves("saved_many", &tensors, &metadata);
    is_what_torch_saves("saved_one", &[tensor("x", DType::F32, &[70_000])], &Metadata::new());
}
