//! The bytes themselves: golden files, and what a plan promises.

use crate::support::{Model, bytes_of, open, pattern, refused, sound, tensor};
use apr_core::{CheckpointReader, CheckpointWriter, DType, ExtentKind, Metadata, TensorInfo};
use apr_format::apr2::{self, CompanionFile, WriteOptions};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

/// Space in bytes that the writer leaves for notes of losses. The builder leaves none unless asked.
const SLACK: usize = 1024;

#[test]
fn the_writer_gives_the_file_that_was_packed_by_hand() {
    let tensors = vec![
        tensor("z.weight", DType::F32, &[2, 3]),
        tensor("empty", DType::BF16, &[0, 7]),
        tensor("a.scalar", DType::F64, &[]),
        tensor("blocks", DType::Q4_K, &[2, 256]),
    ];
    for align_32 in [false, true] {
        let model = Model { tensors: tensors.clone(), align_32, ..Model::default() };
        // QUANTIZED, and the alignment's flag.
        let flags = if align_32 { 1 << 6 | 1 << 2 } else { 1 << 6 | 1 << 1 };
        let mut builder = Apr2Builder { flags, slack: SLACK, ..Apr2Builder::new() };
        for tensor in &tensors {
            let info = &tensor.info;
            builder = builder.entry(Apr2Entry::new(
                &info.name,
                info.dtype,
                info.shape.dims(),
                &tensor.bytes,
            ));
        }
        assert!(model.write() == builder.build(), "alignment of 32: {align_32}");
    }
}

#[test]
fn a_model_without_tensors_is_a_front_a_digest_block_and_a_footer() {
    let file = Model::default().write();
    assert_eq!(file, Apr2Builder { slack: SLACK, ..Apr2Builder::new() }.build());
    assert!(open(file).tensors().is_empty());
}

#[test]
fn the_first_bytes_match_the_seed() {
    let file = Model { tensors: vec![tensor("t", DType::F32, &[1])], ..Model::default() }.write();
    assert_eq!(&file[..16], b"APR2\x02\0\0\0\x02\0\0\0\x20\0\0\0");
    assert_eq!(&file[file.len() - 12..file.len() - 8], b"2RPA");
    assert_eq!(file[file.len() - 8..], (file.len() as u64).to_le_bytes());
    assert_eq!(
        file[file.len() - 16..file.len() - 12],
        crc32fast::hash(&file[..file.len() - 16]).to_le_bytes()
    );
}

#[test]
fn the_packed_file_reads_as_it_was_packed() {
    let reader = open(sound().build());
    let names: Vec<&str> = reader.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["b.weight", "a.bias", "c.empty"]);
    assert_eq!(bytes_of(&reader, 0), pattern(24, 1));
    assert_eq!(bytes_of(&reader, 1), pattern(10, 2));
    assert_eq!(reader.position("a.bias"), Some(1));
    assert_eq!(reader.position("d"), None);
    assert_eq!(reader.warnings(), [""; 0]);
}

#[test]
fn every_dtype_is_written_and_read_under_its_number() {
    for &dtype in DType::ALL {
        let file = Model { tensors: vec![tensor("t", dtype, &[256])], ..Model::default() }.write();
        let index = u32::from_le_bytes(file[20..24].try_into().expect("four bytes")) as usize;
        assert_eq!(file[index + 8 + 2 + 1], dtype.apr2_code(), "{dtype}");
        assert_eq!(open(file).tensors()[0].dtype, dtype);
    }
}

#[test]
fn extents_cover_every_byte_before_the_footer_once() {
    let companions = vec![CompanionFile { name: "spiece.model".into(), bytes: vec![0xff; 100] }];
    let tensors = vec![
        tensor("w", DType::F32, &[5]),
        tensor("e", DType::F32, &[0]),
        tensor("v", DType::U8, &[64]),
    ];
    let written = Model { tensors, companions, ..Model::default() }.write();
    let mut odd = sound().entry(Apr2Entry::of_bytes("z", &[7; 9]));
    odd.blocks.push(apr_testkit::apr2::Apr2Block::new(*b"NEWS", b"later"));
    // An empty tensor may claim any place, even inside another one or among the padding.
    odd.entries[2].offset = Some(3);
    let mut bare = Apr2Builder { digests: false, ..sound() };
    bare.entries[2].offset = Some(64 + 40);
    for file in [
        written,
        odd.build(),
        bare.build(),
        Apr2Builder { digests: false, ..Apr2Builder::new() }.build(),
    ] {
        let reader = open(file.clone());
        let checksum = reader.container().checksum().expect("APR2 has one");
        let mut covered = Vec::new();
        for extent in &checksum.extents {
            assert_eq!(extent.offset, covered.len() as u64, "{:?}", checksum.extents);
            let mut bytes = vec![0; usize::try_from(extent.len).expect("a small file")];
            reader.container().read_raw(extent.offset, &mut bytes).expect("inside the file");
            match extent.kind {
                ExtentKind::Padding => assert!(bytes.iter().all(|&byte| byte == 0)),
                ExtentKind::Tensor(tensor) => assert_eq!(bytes, bytes_of(&reader, tensor)),
                ExtentKind::Companion(at) => {
                    assert_eq!(bytes, reader.read_companion(at).expect("it is there"));
                }
                ExtentKind::Structure => {}
            }
            covered.extend(bytes);
        }
        assert_eq!(covered, file[..file.len() - 16]);
        assert_eq!(checksum.crc32, crc32fast::hash(&covered));
        let tensors = checksum
            .extents
            .iter()
            .filter(|extent| matches!(extent.kind, ExtentKind::Tensor(_)))
            .count();
        assert_eq!(tensors, reader.tensors().len());
    }
}

#[test]
fn plan_refuses_what_an_index_entry_cannot_hold() {
    let info = |name: &str, dtype: DType, dims: &[u64]| TensorInfo {
        name: name.into(),
        dtype,
        shape: dims.to_vec().into(),
    };
    let plan = |infos: &[TensorInfo]| {
        apr2::plan(infos, &Metadata::new(), Vec::new(), &WriteOptions::default())
    };
    let cases = [
        (vec![info(&"n".repeat(65_536), DType::F32, &[1])], "65535 are allowed"),
        (vec![info("", DType::F32, &[1])], "empty name"),
        (vec![info("t", DType::F32, &[1; 9])], "9 dimensions"),
        (vec![info("t", DType::F32, &[u64::MAX, 2])], "is not compatible with"),
        (vec![info("t", DType::Q8_0, &[33])], "is not compatible with"),
        (
            vec![
                info("t", DType::U8, &[1]),
                info("s", DType::U8, &[1]),
                info("t", DType::U8, &[2]),
            ],
            "two tensors",
        ),
        (vec![info("s", DType::U8, &[1 << 63]), info("t", DType::U8, &[1 << 63])], "exceed 2^64"),
        (vec![info("t", DType::U8, &[u64::MAX])], "exceed 2^64"),
    ];
    for (infos, message) in cases {
        let error = plan(&infos).expect_err(message);
        assert_eq!(error.code().id(), "E001", "{error}");
        assert!(error.message().contains(message), "{error}");
        assert_eq!(error.tensor(), infos.last().map(|info| info.name.as_str()), "{error}");
    }
    assert!(plan(&[info(&"n".repeat(65_535), DType::F32, &[1; 8])]).is_ok());
    let huge =
        plan(&[info("t", DType::U8, &[1 << 62])]).expect("a plan takes no memory for the data");
    assert!(huge.layout().total_len() > 1 << 62);
}

#[test]
fn plan_refuses_companions_that_would_be_written_elsewhere_or_lost() {
    let plan = |names: &[&str]| {
        let companions = names
            .iter()
            .map(|&name| CompanionFile { name: name.into(), bytes: b"{}".to_vec() })
            .collect();
        apr2::plan(&[], &Metadata::new(), companions, &WriteOptions::default())
    };
    for name in ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a\\b", "C:x", "a\0", "a\u{1b}[2J"]
    {
        let error = plan(&[name]).expect_err(name);
        assert_eq!(error.code().id(), "E001", "{error}");
        let files = format!(r#"{{"files":{{{}:"text"}}}}"#, serde_json::Value::from(name));
        let error = refused(Apr2Builder::new().metadata(files).build());
        assert_eq!((error.code().id(), error.offset()), ("E001", Some(32)), "{error}");
        assert!(!error.to_string().contains(['\u{1b}', '\0']));
    }
    assert!(plan(&["config.json", "config.json"]).is_err());
    assert!(plan(&["config.json", "1_Pooling/config.json", "größe..txt"]).is_ok());
}
