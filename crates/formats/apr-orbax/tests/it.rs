//! Checkpoints that Orbax and TensorStore wrote and read back (`fixtures/orbax`), by their bytes;
//! broken ones are errors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use apr_core::{
    ByteSource, CheckpointReader, Code, Error, IoCause, Limits, Result, SourceSet, Table,
    TensorInfo,
};
use apr_orbax::{FORMAT, METADATA};
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

/// A folder in memory.
#[derive(Clone, Default)]
struct Folder(BTreeMap<String, Vec<u8>>);

impl Folder {
    fn fixture(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/orbax");
        let mut files = Self::default();
        files.add(&folder.join(name), "");
        assert!(!files.0.is_empty(), "the fixture is in the repository");
        files
    }

    fn add(&mut self, folder: &Path, prefix: &str) {
        for entry in std::fs::read_dir(folder).expect("the fixture is in the repository") {
            let path = entry.expect("readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            let name = format!("{prefix}{name}");
            if path.is_dir() {
                self.add(&path, &format!("{name}/"));
            } else {
                self.0.insert(name, std::fs::read(&path).expect("readable"));
            }
        }
    }

    fn with(&self, name: &str, bytes: Vec<u8>) -> Self {
        let mut files = self.clone();
        files.0.insert(name.to_owned(), bytes);
        files
    }

    fn open(&self) -> Result<Table> {
        apr_orbax::open_in(self, METADATA, &Limits::default())
    }

    /// Returns the name of the data file that has nodes, or chunks, of a database.
    fn data(&self, least: usize) -> String {
        let data = self
            .0
            .iter()
            .find(|(name, file)| name.contains("d/") && file.as_slice().len() >= least);
        data.expect("a file of data").0.clone()
    }
}

impl SourceSet for Folder {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        match self.0.get(name) {
            Some(bytes) => Ok(Box::new(bytes.clone())),
            None => Err(Error::io(IoCause::NotFound, "no such file")),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }
}

fn found(reader: &Table, piece: usize) -> BTreeMap<String, Value> {
    let of = |(tensor, info): (usize, &TensorInfo)| {
        let len = info.byte_len().expect("a possible length");
        let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
        let mut offset = 0;
        for chunk in bytes.chunks_mut(piece) {
            reader.read_tensor(tensor, offset, chunk).expect("readable");
            offset += chunk.len() as u64;
        }
        let sha256: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let shape = info.shape.dims();
        let value = json!({ "dtype": info.dtype.name(), "shape": shape, "sha256": sha256 });
        (info.name.clone(), value)
    };
    reader.tensors().iter().enumerate().map(of).collect()
}

#[test]
fn every_array_has_the_bytes_that_tensorstore_reads() {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/orbax/expected.json");
    let all: Value =
        serde_json::from_slice(&std::fs::read(path).expect("expected values")).expect("JSON");
    for (name, arrays) in all.as_object().expect("an object") {
        let folder = Folder::fixture(name);
        assert!((FORMAT.recognises)(&folder.0[METADATA]), "{name}");
        let reader = folder.open().unwrap_or_else(|error| panic!("{name}: {error}"));
        let arrays: BTreeMap<String, Value> =
            serde_json::from_value(arrays.clone()).expect("an object");
        for piece in [3, 50, 1 << 20] {
            assert_eq!(found(&reader, piece), arrays, "{name} by {piece}");
        }
    }
}

#[test]
fn unsupported_values_are_skipped_by_name() {
    let left = ["the optimizer's state (1 value)", "name (a text)"];
    assert_eq!(Folder::fixture("ocdbt").open().expect("a checkpoint").left_out(), left);
    let codecs = Folder::fixture("codecs").open().expect("a checkpoint");
    assert_eq!(codecs.left_out(), ["params/blosc (its chunks are compressed with blosc)"]);
    assert_eq!(codecs.metadata().object("orbax").expect("notes")["note"], "written by a script");
}

#[test]
fn a_missing_chunk_is_reported_by_name() {
    let mut folder = Folder::fixture("zarr");
    folder.0.remove("params.dense.kernel/1.0");
    let error = folder.open().expect_err("a chunk is missing");
    assert_eq!(error.code(), Code::Corrupt);
    assert!(error.to_string().contains("'params.dense.kernel/1.0' is missing"), "{error}");
    assert_eq!(error.tensor(), Some("params/dense/kernel"));
    // Where zeros are not written, it is a chunk of zeros.
    let mut folder = Folder::fixture("codecs");
    folder.0.remove("params.none/0.1");
    folder.open().expect("chunks may be missing");

    let mut folder = Folder::fixture("ocdbt");
    let name = folder.data(2000);
    folder.0.remove(&name);
    let error = folder.open().expect_err("a file of data is missing");
    assert_eq!((error.code(), error.file()), (Code::Io, Some(name.as_str())));
}

#[test]
fn other_versions_are_refused_by_name() {
    let folder = Folder::fixture("zarr");
    let text = String::from_utf8(folder.0[METADATA].clone()).expect("JSON");
    let text = text.replace("\"use_zarr3\": false", "\"use_zarr3\": true");
    let error = folder.with(METADATA, text.into()).open().expect_err("zarr 3");
    assert_eq!(error.code(), Code::Version);
    assert!(error.to_string().contains("use_zarr3"), "{error}");
}

#[test]
fn broken_files_are_errors_or_readable_within_bounded_memory() {
    let ocdbt = Folder::fixture("ocdbt");
    let deep = Folder::fixture("deep");
    let zarr = Folder::fixture("zarr");
    let codecs = Folder::fixture("codecs");
    let cases = [
        (&ocdbt, "manifest.ocdbt".to_owned()),
        (&ocdbt, ocdbt.data(700)),
        (&deep, deep.data(1000)),
        (&zarr, "params.dense.kernel/.zarray".to_owned()),
        (&zarr, "params.dense.bias/0".to_owned()),
        (&codecs, "params.gzip/0.0".to_owned()),
        (&codecs, "params.zlib/0.0".to_owned()),
        (&codecs, METADATA.to_owned()),
    ];
    for (folder, name) in cases {
        let file = &folder.0[&name];
        let flips = corrupt::bit_flips(file, 0..file.as_slice().len().min(800));
        let cuts = corrupt::truncations(file);
        for broken in cuts.chain(flips) {
            let broken = folder.with(&name, broken);
            let ((), peak) = peak_memory(|| {
                if let Ok(reader) = broken.open() {
                    let _ = read_everything(&reader);
                }
            });
            assert!(peak < 48 << 20, "{name}: {peak} bytes");
        }
    }
}

#[test]
fn damaged_nodes_do_not_match_their_checksums() {
    let folder = Folder::fixture("ocdbt");
    let mut manifest = folder.0["manifest.ocdbt"].clone();
    manifest[40] ^= 1;
    let error = folder.with("manifest.ocdbt", manifest).open().expect_err("damaged");
    assert_eq!((error.code(), error.file()), (Code::Checksum, Some("manifest.ocdbt")));
}

#[test]
fn arrays_that_the_files_do_not_justify_are_refused() {
    let folder = Folder::fixture("codecs");
    let name = "params.none/.zarray";
    let text = String::from_utf8(folder.0[name].clone()).expect("JSON");
    for (shape, chunks) in [
        // As many chunks as there can't be, elements as no file has, and more than 2^64 bytes.
        ("[4294967296,4294967296]", "[1,1]"),
        ("[1048576,1048576]", "[1048576,1048576]"),
        ("[1099511627776]", "[1099511627776]"),
        ("[18446744073709551615,2]", "[2,2]"),
    ] {
        let huge = text.replace("[4,5]", shape).replace("[2,3]", chunks);
        assert_ne!(huge, text);
        let ((), peak) = peak_memory(|| {
            let error = folder.with(name, huge.into()).open().expect_err("too much");
            assert!(matches!(error.code(), Code::Corrupt | Code::Memory), "{error}");
        });
        assert!(peak < 8 << 20, "{shape}: {peak} bytes");
    }
}
