//! Real models, and the `onnx` package's reading of them.

use std::fs;
use std::path::Path;

use apr_core::Limits;
use apr_io::ModelFolder;
use apr_onnx::OnnxReader;
use apr_testkit::locate;
use sha2::{Digest, Sha256};

use crate::listing::{hex, lines};

pub(crate) fn open(path: &Path, limits: &Limits) -> apr_core::Result<OnnxReader> {
    let folder = ModelFolder::open(path.parent().expect("a folder"))?;
    apr_onnx::open_as_stored(
        &folder,
        path.file_name().and_then(|name| name.to_str()).expect("a name"),
        limits,
    )
}

/// The models of the collection that the `onnx` package reads, under the names of their files, and
/// their paths; none where the collection is absent.
pub(crate) fn models_as_stored(limits: &Limits) -> Vec<(String, OnnxReader)> {
    let Some(folder) = locate::shared_data("onnx") else { return Vec::new() };
    let listing = fs::read_to_string(locate::fixture("onnx/listing.tsv")).expect("a fixture");
    let read = listing
        .lines()
        .filter_map(|row| row.split_once('\t'))
        .filter(|(_, rest)| *rest != "refused");
    read.map(|(file, _)| (file.to_owned(), open(&folder.join(file), limits).expect(file))).collect()
}

/// Returns the number of lines and the text of a file's listing, or `None` if the file is rejected.
fn listing(path: &Path) -> Option<(usize, String)> {
    let reader = open(path, &Limits::default()).ok()?;
    let lines = lines(&reader, &fs::read(path).expect("a readable file"));
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    Some((lines.len(), text))
}

/// `fixtures/onnx/listing.tsv` is what the package reads from each file: tensors with every byte,
/// nodes, attributes, types, opsets, functions.
#[test]
fn real_models_read_as_the_onnx_package_reads_them() {
    let Some(folder) = locate::shared_data("onnx") else { return };
    let expected = fs::read_to_string(locate::fixture("onnx/listing.tsv")).expect("a fixture");
    let mut wrong = Vec::new();
    for row in expected.lines() {
        let (file, rest) = row.split_once('\t').expect("a row");
        let found = listing(&folder.join(file));
        let shown = found.as_ref().map_or("refused".to_owned(), |(count, text)| {
            format!("{count}\t{}", hex(&Sha256::digest(text.as_bytes())))
        });
        if shown != rest {
            wrong.push(file.to_owned());
        }
    }
    assert!(wrong.is_empty(), "{} files differ: {wrong:#?}", wrong.len());
    assert_eq!(expected.lines().count(), 769, "the collection has so many");
}

/// Runs the `onnx` package itself; `cargo xtask interop` starts this test.
///
/// The regular tests use the package's recorded results in `fixtures/onnx/listing.tsv`.
#[test]
fn live_the_onnx_package_still_gives_the_results_of_the_fixture() {
    let python =
        std::env::var_os("APR_GRAPH_PYTHON").filter(|_| std::env::var_os("APR_INTEROP").is_some());
    let (Some(python), Some(folder)) = (python, locate::shared_data("onnx")) else {
        eprintln!("skipped: `cargo xtask interop` asks the package");
        return;
    };
    let found = std::env::temp_dir().join(format!("apr-onnx-listing-{}.tsv", std::process::id()));
    let script = locate::fixture("onnx/listing.py");
    let ran = std::process::Command::new(python)
        .arg(script)
        .arg(&folder)
        .arg(&found)
        .status()
        .expect("Python runs");
    let rows = fs::read_to_string(&found);
    let _ = fs::remove_file(&found);
    assert!(ran.success());
    let expected = fs::read_to_string(locate::fixture("onnx/listing.tsv")).expect("a fixture");
    assert!(
        rows.expect("the script wrote it") == expected,
        "the package reads the collection otherwise now"
    );
}
