//! Files that today's torch wrote, or reads: `fixtures/torch`, with what torch found in them.

use apr_core::Sum;
use apr_testkit::torch::{Entry, checkpoint, entries, tensor, zip};
use apr_testkit::{FolderInMemory, corrupt, peak_memory, read_everything};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;

pub(super) fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/torch").join(name);
    std::fs::read(&path).expect("the fixture is in the repository")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares the tensors of a file with the tensors that torch read from it.
#[track_caller]
fn assert_read(name: &str, tensors: &Value) -> Table {
    let reader = open(fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let tensors = tensors.as_object().expect("an object");
    assert_eq!(reader.tensors().len(), tensors.len(), "{name}");
    for (at, info) in reader.tensors().iter().enumerate() {
        let expected = &tensors[&info.name];
        assert_eq!(expected["dtype"], info.dtype.name(), "{name}: {}", info.name);
        let shape: Vec<u64> = serde_json::from_value(expected["shape"].clone()).expect("sizes");
        assert_eq!(info.shape.dims(), shape, "{name}: {}", info.name);
        let bytes = bytes_of(&reader, at, 1000);
        assert_eq!(expected["sha256"], hex(&Sha256::digest(&bytes)), "{name}: {}", info.name);
    }
    reader
}

#[test]
fn every_tensor_is_what_torch_reads() {
    let expected: Value = serde_json::from_slice(&fixture("expected.json")).expect("JSON");
    for (name, tensors) in expected.as_object().expect("an object") {
        assert_read(name, tensors);
    }
}

#[test]
fn constants_of_a_frozen_program_are_its_tensors_and_none_is_omitted() {
    let expected: Value = serde_json::from_slice(&fixture("frozen.json")).expect("JSON");
    let reader = assert_read("frozen.pt", &expected);
    assert_eq!((reader.left_out(), reader.warnings()), (&[][..], &[][..]));
    // The ZIP archive has a CRC-32 of each.
    assert!((0..5).all(|tensor| reader.stored(tensor).crc32().is_some()));
}

#[test]
fn a_compressed_entry_has_no_plain_range_but_a_known_checksum() {
    let file = fixture("deflated.pt");
    let len = file.len() as u64;
    let reader = open(file).expect("a good file");
    assert_eq!(reader.files()[0].len, len);
    for tensor in 0..reader.tensors().len() {
        let stored = reader.stored(tensor);
        assert!(stored.range.offset + stored.range.len <= len, "{stored:?}");
        assert!(reader.tensor_slice(tensor).is_none() && stored.crc32().is_none());
        let [part] = stored.parts() else { panic!("{stored:?}") };
        assert!(part.place.offset + part.place.len <= len && part.range.len > 0, "{part:?}");
    }
}

#[test]
fn broken_compressed_files_are_errors_or_readable() {
    let file = fixture("deflated.pt");
    let cuts = corrupt::truncations(&file).step_by(7);
    let flips = corrupt::bit_flips(&file, 0..file.len()).step_by(11);
    for broken in cuts.chain(flips) {
        let ((), peak) = peak_memory(|| {
            if let Ok(reader) = open(broken) {
                // Weights that are damaged are met where they are read.
                let _ = read_everything(&reader);
            }
        });
        assert!(peak < 64 << 20, "{peak}");
    }
}

#[test]
fn an_entry_that_claims_more_than_its_bytes_can_hold_is_refused() {
    let mut entries = entries(&tensor("FloatStorage", 2, 0, &[2], &[1]));
    let entry =
        entries.iter_mut().find(|entry| entry.name.ends_with("data/0")).expect("the storage");
    let packed = miniz_oxide::deflate::compress_to_vec(&entry.data, 6);
    *entry = Entry { data: packed, method: 8, ..entry.clone() };
    // The helper says one size for both; the content has another.
    let error = open(zip(&entries)).and_then(|reader| read_all(&reader)).expect_err("a wrong size");
    assert_eq!(error.code(), Code::Corrupt, "{error}");
    assert!(
        open(checkpoint(&tensor("FloatStorage", 2, 0, &[2], &[1])))
            .and_then(|reader| read_all(&reader))
            .is_ok()
    );
}

#[test]
fn trainer_checkpoints_are_detected_and_have_the_names_of_the_model() {
    for (name, kind, left_out) in [
        ("lightning.ckpt", "Lightning checkpoint", "optimizer_states (6 tensors)"),
        ("mp_rank_00_model_states.pt", "DeepSpeed model states", "optimizer (6 tensors)"),
    ] {
        let reader = open(fixture(name)).expect("a good file");
        let names: Vec<_> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, ["model.weight", "model.bias"], "{name}");
        assert_eq!(reader.container().header_fields()["kind"], kind, "{name}");
        assert_eq!(reader.left_out(), [left_out], "{name}");
        let all = OpenOptions { prefix: Some(String::new()), ..OpenOptions::default() };
        assert_eq!(
            open_with(fixture(name), &all).expect("a good file").tensors().len(),
            8,
            "{name}"
        );
    }
}

#[test]
fn dtypes_without_storages_of_their_own_are_pickled_as_torch_does() {
    let theirs = fixture("later.pt");
    let reader = open(theirs.clone()).expect("torch's file");
    let tensors = reader.tensors().iter().cloned().enumerate();
    let tensors: Vec<_> = tensors.map(|(at, info)| (info, bytes_of(&reader, at, 100))).collect();
    let ours = super::write::write(&tensors, &apr_core::Metadata::new());
    assert!(
        super::write::LATER
            .iter()
            .all(|dtype| tensors.iter().any(|(info, _)| info.dtype == *dtype))
    );
    let pickle = |file: &[u8]| {
        let archive =
            apr_archive::Archive::read(&file.to_vec(), &Limits::default()).expect("an archive");
        let entry = archive
            .entries
            .iter()
            .find(|entry| entry.name.ends_with("/data.pkl"))
            .expect("its pickle")
            .clone();
        entry.content(&file.to_vec(), &Limits::default()).expect("readable")
    };
    assert_eq!(pickle(&ours), pickle(&theirs));
    let again = open(ours).expect("our file");
    for (at, (info, bytes)) in tensors.iter().enumerate() {
        assert_eq!((&again.tensors()[at], &bytes_of(&again, at, 7)), (info, bytes));
    }
}

fn mesh() -> FolderInMemory {
    let names = [".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"];
    FolderInMemory(names.map(|name| (name.to_owned(), fixture(&format!("mesh/{name}")))).into())
}

fn open_mesh(folder: &FolderInMemory) -> Result<Table> {
    let (limits, options) = (Limits::default(), OpenOptions::default());
    apr_pytorch::open_distributed(&folder.0[".metadata"], folder, &limits, &options)
}

#[test]
fn pieces_of_a_mesh_are_joined_to_the_tensors_that_torch_loads() {
    let folder = mesh();
    let reader = open_mesh(&folder).expect("a good folder");
    let expected: Value = serde_json::from_slice(&fixture("mesh.json")).expect("JSON");
    assert_eq!(reader.tensors().len(), expected.as_object().expect("an object").len());
    for (at, info) in reader.tensors().iter().enumerate() {
        let expected = &expected[&info.name];
        assert_eq!(expected["dtype"], info.dtype.name(), "{}", info.name);
        let shape: Vec<u64> = serde_json::from_value(expected["shape"].clone()).expect("sizes");
        assert_eq!(info.shape.dims(), shape, "{}", info.name);
        let len = usize::try_from(info.byte_len().expect("possible")).expect("small");
        for piece in [1, 3, 8, 1000] {
            let mut bytes = vec![0; len];
            for (number, chunk) in bytes.chunks_mut(piece).enumerate() {
                reader.read_tensor(at, (number * piece) as u64, chunk).expect("readable");
            }
            assert_eq!(
                expected["sha256"],
                hex(&Sha256::digest(&bytes)),
                "{} by {piece}",
                info.name
            );
        }
        assert!(!reader.stored(at).parts().is_empty(), "{}: its checksums are known", info.name);
        for part in reader.stored(at).parts() {
            let Sum::Crc32(stated) = part.sum else { panic!("{part:?}") };
            let mut bytes = vec![0; usize::try_from(part.range.len).expect("small")];
            part.read(0, &mut bytes).expect("within the file");
            assert_eq!(crc32fast::hash(&bytes), stated, "{}", info.name);
        }
    }
    assert_eq!(reader.left_out(), ["2 values that are not tensors, the first is 'step'"]);
}

#[test]
fn broken_distributed_checkpoints_are_errors_or_readable() {
    let good = mesh();
    let cuts = corrupt::truncations(&good.0[".metadata"]).step_by(5);
    let flips = corrupt::bit_flips(&good.0[".metadata"], 0..good.0[".metadata"].len()).step_by(29);
    let metadata = cuts.chain(flips).map(|broken| (".metadata", broken));
    let pieces = &good.0["__3_0.distcp"];
    let pieces = corrupt::truncations(pieces)
        .step_by(97)
        .chain(corrupt::bit_flips(pieces, 0..2000).step_by(41));
    for (name, broken) in metadata.chain(pieces.map(|broken| ("__3_0.distcp", broken))) {
        let mut folder = FolderInMemory(good.0.clone());
        folder.0.insert(name.to_owned(), broken);
        let ((), peak) = peak_memory(|| {
            if let Ok(reader) = open_mesh(&folder) {
                let _ = read_everything(&reader);
            }
        });
        assert!(peak < 64 << 20, "{peak}");
    }
    let mut folder = mesh();
    folder.0.remove("__1_0.distcp");
    let error = open_mesh(&folder).expect_err("a file is absent");
    assert_eq!((error.code(), error.file()), (Code::Io, Some("__1_0.distcp")), "{error}");
}

fn read_all(reader: &Table) -> Result<()> {
    let mut bytes = [0; 8];
    reader.read_tensor(0, 0, &mut bytes)
}

#[test]
fn a_program_whose_weights_are_not_one_stored_state_dict_is_refused() {
    let of = |names: &[&str]| {
        let entries: Vec<_> = names.iter().map(|name| Entry::new(name, b"PK")).collect();
        refused(zip(&entries))
    };
    let error = of(&["p/data/weights/a.pt", "p/data/weights/b.pt"]);
    assert_eq!(error.code(), Code::Format);
    assert!(error.message().contains("two models: 'p/data/weights/a.pt'"), "{error}");
    let error = of(&["p/data/weights/model_weights_config.json"]);
    assert_eq!(error.code(), Code::Version);
    assert!(error.message().contains("one by one"), "{error}");
    let packed = Entry { method: 8, ..Entry::new("p/data/weights/a.pt", b"PK") };
    let error = refused(zip(&[packed]));
    assert_eq!(error.code(), Code::Version);
    assert!(error.message().contains("compressed as a whole"), "{error}");
}

#[test]
fn a_reader_shows_its_tensors_for_debugging() {
    let reader = open(golden("kinds.pt")).unwrap();
    let shown = format!("{reader:?}");
    assert!(shown.starts_with("Table {"), "{shown}");
    assert!(shown.contains(&reader.tensors()[0].name), "{shown}");
}
