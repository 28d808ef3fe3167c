//! Files packed by hand from the tables of `docs/format/older.md`: what no sample shows, and what
//! is wrong with some.

use apr_core::{Code, DType, Error, ExtentKind};
use apr_testkit::corrupt::overwrite;
use apr_testkit::older::{
    Apr1Builder, OlderTensor, apr1_json, dialect_a, dialect_d, f32s, set_header_crc,
};
use serde_json::json;

use super::{covered, open, values_of};

fn refused(file: Vec<u8>) -> Error {
    open(file).map(drop).expect_err("a broken file")
}

pub(crate) fn whisper() -> Apr1Builder<'static> {
    Apr1Builder {
        tensors: vec![
            ("a.weight", 0, &[2, 3], f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
            ("b.bias", 0, &[1], f32s(&[-1.0])),
        ],
        vocabulary: Some((vec![b"!", b" the", b"\xf0"], vec![[b" t", b"he"]])),
        filterbank: Some((1, 2, vec![0.25, 0.5])),
        ..Apr1Builder::default()
    }
}

/// A matrix of AprQ4 with two rows of a block, scale 0.5 and quants 0 to 15 twice; AprQ8; f32; Q4_K
/// padded.
pub(crate) fn dialect() -> Vec<u8> {
    let block: Vec<u8> = [0, 0x38]
        .into_iter()
        .chain((0..16).map(|at| (2 * at % 16) | (((2 * at + 1) % 16) << 4)))
        .collect();
    let quants = [&0.5_f32.to_le_bytes()[..], &[1, 2, 3, 0xff, 0xfe, 0xfd]].concat();
    let k_quant =
        [&[0x00, 0x3c, 0, 0][..], &[1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], &[0x53; 128]].concat();
    let tensors = [
        ("a", 128, &[2, 32][..], block.repeat(2)),
        ("b", 129, &[2, 3], quants),
        ("c", 0, &[2], f32s(&[0.5, -0.5])),
        ("d", 12, &[1, 40], k_quant),
        ("e", 8, &[20], block),
    ];
    dialect_a(*b"APR\0", 0x420, r#"{"model_type":"llama","num_layers":2}"#, &tensors)
}

pub(crate) fn whisper_0_3() -> Vec<u8> {
    let architecture = [8_u32, 2, 4, 2, 16, 32, 10_000.0_f32.to_bits(), 3, 128, 0, 0, 0]
        .map(u32::to_le_bytes)
        .concat();
    let tensors = [
        ("f32", 0, &[2, 2][..], f32s(&[1.0, 2.0, 3.0, 4.0])),
        ("bf16", 2, &[1], vec![0x80, 0x3f]),
        ("int8", 3, &[2, 2], vec![127, 0x81, 0, 1]),
        ("int4", 4, &[3], vec![0x81, 0x0f]),
    ];
    dialect_d(2, &architecture, &tensors)
}

#[test]
fn both_headers_of_whisper_apr_give_the_same_checkpoint() {
    for is_0_2 in [false, true] {
        let file = Apr1Builder { is_0_2, ..whisper() }.build();
        let reader = open(file.clone()).expect("a sound file");
        assert_eq!(
            (reader.format(), covered(&*reader, &file)),
            (&apr_format::apr1::FORMAT, Some(true))
        );
        assert_eq!(values_of(&*reader, "a.weight"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(values_of(&*reader, "b.bias"), [-1.0]);
        assert_eq!(values_of(&*reader, "audio.mel_filterbank"), [0.25, 0.5]);
        // As GPT-2's vocabularies write bytes.
        assert_eq!(
            reader.metadata().get("tokenizer.vocabulary"),
            Some(&json!(["!", "\u{120}the", "\u{f0}"]))
        );
        assert_eq!(reader.metadata().get("tokenizer.merges"), Some(&json!(["\u{120}t he"])));
        assert_eq!(reader.metadata().get("mel_filterbank_shape"), Some(&json!([1, 2])));
        assert_eq!(reader.warnings(), [""; 0]);
    }
}

#[test]
fn int8_has_one_scale_a_tensor() {
    let tensors =
        vec![("a", 0, &[2, 2][..], vec![1, 2, 0xff, 0x81]), ("b", 0, &[3], vec![3, 0, 0xfd])];
    let file =
        Apr1Builder { quantization: 2, tensors, scales: vec![0.5, 2.0], ..Apr1Builder::default() }
            .build();
    let reader = open(file.clone()).expect("a sound file");
    assert_eq!(covered(&*reader, &file), Some(true));
    assert_eq!(reader.tensors()[0].dtype, DType::I8_ROW);
    assert_eq!(values_of(&*reader, "a"), [0.5, 1.0, -0.5, -63.5]);
    assert_eq!(values_of(&*reader, "b"), [6.0, 0.0, -6.0]);
    let extents = reader.container().checksum().expect("it has one").extents;
    assert!(
        extents.iter().all(|extent| !matches!(extent.kind, ExtentKind::Tensor(_))),
        "{extents:?}"
    );
}

#[test]
fn the_length_of_a_tensor_decides_over_the_header() {
    let halves = vec![("a", 0, &[2][..], vec![0, 0x3c, 0, 0xc0])];
    let file = Apr1Builder { quantization: 1, tensors: halves, ..Apr1Builder::default() }.build();
    assert_eq!(values_of(&*open(file).expect("f16"), "a"), [1.0, -2.0]);

    for quantization in [1, 3] {
        let file = Apr1Builder { quantization, compressed: 1, ..whisper() }.build();
        let reader = open(file).expect("floats under any header");
        assert_eq!(values_of(&*reader, "b.bias"), [-1.0]);
        assert!(
            reader.warnings()[0].contains("2 tensors are f32 by their length"),
            "{:?}",
            reader.warnings()
        );
        assert!(reader.warnings()[1].contains("compressed"), "{:?}", reader.warnings());
    }
    let packed = |quantization, compressed| {
        let tensors = vec![("a", 0, &[4][..], vec![0x21, 0x43])];
        refused(Apr1Builder { quantization, compressed, tensors, ..Apr1Builder::default() }.build())
    };
    assert_eq!(packed(3, 0).code(), Code::Version);
    assert_eq!(packed(0, 1).code(), Code::Version);
    assert_eq!(packed(0, 0).code(), Code::Corrupt);
}

#[test]
fn a_name_that_lost_its_last_letter_gets_it_back() {
    let cut = "decoder.layers.10.encoder_attn_layer_norm.weigh";
    let file =
        Apr1Builder { tensors: vec![(cut, 0, &[1], f32s(&[1.0]))], ..Apr1Builder::default() }
            .build();
    let reader = open(file).expect("a sound file");
    assert_eq!(reader.tensors()[0].name, "decoder.layers.10.encoder_attn_layer_norm.weight");
    assert!(reader.warnings()[0].contains("cut to 47 bytes"), "{:?}", reader.warnings());
}

#[test]
fn apr1_files_that_contradict_themselves_are_rejected() {
    let good = whisper().build();
    // The index starts at 52: name 48, offset, size, elements, four dimensions, their number.
    let cases: [(usize, &[u8], Code); 13] = [
        (4, &[9], Code::Format),
        (4, &[0], Code::Format),
        (7, &[7], Code::Format),
        (9, &[0xff, 0xff], Code::Corrupt),
        (11, &[0x80 | 3], Code::Corrupt),
        (52, &[0xff], Code::Format),
        (52, &[0], Code::Format),
        (100, &[0xff; 8], Code::Corrupt),
        (100, &[4], Code::Corrupt),
        (108, &[0xff; 8], Code::Corrupt),
        (116, &[0xff; 8], Code::Corrupt),
        (124, &[0xff; 16], Code::Corrupt),
        (140, &[5], Code::Format),
    ];
    for (at, bytes, code) in cases {
        match open(overwrite(&good, at, bytes)) {
            Ok(reader) => {
                assert!(at == 11 && reader.warnings()[0].contains("unknown flags"), "byte {at}");
            }
            Err(error) => assert_eq!(error.code(), code, "byte {at}: {error}"),
        }
    }
    let twice = vec![("a", 0, &[1][..], f32s(&[1.0])), ("a", 0, &[1], f32s(&[1.0]))];
    assert_eq!(
        refused(Apr1Builder { tensors: twice, ..Apr1Builder::default() }.build()).tensor(),
        Some("a")
    );
    // Flags without their sections.
    let bare = Apr1Builder { vocabulary: None, filterbank: None, ..whisper() }.build();
    for flag in [1, 2] {
        assert_eq!(refused(overwrite(&bare, 11, &[flag])).code(), Code::Corrupt);
    }
}

#[test]
fn a_filterbank_among_the_metadata_is_a_tensor() {
    let metadata = r#"{"mel_filterbank":[0.5,1,2.25],"mel_filterbank_shape":[1,3]}"#;
    let file = apr1_json(metadata, 0, "[]", &[]);
    let reader = open(file.clone()).expect("a sound file");
    assert_eq!(values_of(&*reader, "audio.mel_filterbank"), [0.5, 1.0, 2.25]);
    assert_eq!(covered(&*reader, &file), Some(true));
    assert_eq!(reader.metadata().auxiliary_tensor(), Some("audio.mel_filterbank"));
}

#[test]
fn a_json_index_that_contradicts_itself_is_refused() {
    let index =
        |fields: &str| apr1_json("{}", 1, &format!(r#"[{{"name":"a",{fields}}}]"#), &[0; 8]);
    for (fields, code) in [
        (r#""dtype":"F32","shape":[2],"offset":0,"size":8"#, None),
        (r#""dtype":"F32","shape":[2],"offset":4,"size":8"#, None),
        (r#""dtype":"F32","shape":[2],"offset":8,"size":8"#, Some(Code::Corrupt)),
        (
            r#""dtype":"F32","shape":[2],"offset":18446744073709551615,"size":8"#,
            Some(Code::Corrupt),
        ),
        (r#""dtype":"F32","shape":[3],"offset":0,"size":8"#, Some(Code::Corrupt)),
        (
            r#""dtype":"F32","shape":[4294967296,4294967296],"offset":0,"size":8"#,
            Some(Code::Format),
        ),
        (r#""dtype":"F32","shape":[-2],"offset":0,"size":8"#, Some(Code::Format)),
        (r#""dtype":"Q9","shape":[2],"offset":0,"size":8"#, Some(Code::Version)),
        (r#""dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"offset":0,"size":8"#, Some(Code::Format)),
        (r#""dtype":"F32","shape":[2],"offset":0"#, Some(Code::Format)),
    ] {
        let found = open(index(fields)).map(drop).map_err(|error| error.code());
        // The second one takes the checksum for data, and leaves none.
        assert_eq!(found.err(), code, "{fields}");
    }
    assert_eq!(refused(apr1_json("{}", u32::MAX, "[]", &[])).code(), Code::Corrupt);
    assert_eq!(refused(apr1_json("{", 0, "[]", &[])).code(), Code::Format);
}

#[test]
fn older_dtypes_are_presented_with_the_same_values() {
    let file = dialect();
    let reader = open(file.clone()).expect("a sound file");
    assert_eq!(covered(&*reader, &file), Some(true));
    let dtypes: Vec<DType> = reader.tensors().iter().map(|info| info.dtype).collect();
    assert_eq!(dtypes, [DType::Q4_0, DType::I8_ROW, DType::F32, DType::F32, DType::F32]);
    let block: Vec<f32> = (0..32_u8).map(|at| (f32::from(at % 16) - 8.0) * 0.5).collect();
    assert_eq!(values_of(&*reader, "a"), block.repeat(2));
    assert_eq!(values_of(&*reader, "b"), [0.5, 1.0, 1.5, -0.5, -1.0, -1.5]);
    // Q4_K with d = 1, no minimum and scales of 1: the low nibbles of 32 bytes, then their high
    // ones.
    assert_eq!(values_of(&*reader, "d"), [[3.0; 32].as_slice(), &[5.0; 8]].concat());
    assert_eq!(values_of(&*reader, "e"), block[..20]);
    assert_eq!(reader.metadata().get("architecture"), Some(&json!({"num_hidden_layers": 2})));
}

#[test]
fn flags_of_the_dialect_that_contradict_the_file_are_reported() {
    let warnings = |flags: u16, tensors: &[OlderTensor<'_>]| {
        open(dialect_a(*b"APR\0", flags, "{}", tensors)).expect("a sound file").warnings().to_vec()
    };
    let floats: &[OlderTensor<'_>] = &[("a", 0, &[1], f32s(&[1.0]))];
    assert_eq!(warnings(0x400, floats), [""; 0]);
    assert_eq!(
        warnings(0x420, floats),
        ["the flag QUANTIZED is set, but the file does not have the data that it declares"]
    );
    assert_eq!(
        warnings(0, floats),
        ["the flag ROW_MAJOR is not set; matrices are taken for row-major"]
    );
    for (flag, words) in [
        (0x1, "states compressed tensors"),
        (0x2, "states compressed tensors"),
        (0x8, "the file is signed"),
        (0x10, "one shard of several"),
        (0x40, "the flag FILTERBANK is set, but"),
        (0x200, "the flag VOCABULARY is set, but"),
    ] {
        let found = warnings(0x400 | flag, floats);
        assert!(found.len() == 1 && found[0].contains(words), "{flag:#x}: {found:?}");
    }
    let with = |flags: u16, metadata: &str| {
        open(dialect_a(*b"APR\0", flags, metadata, floats))
            .expect("a sound file")
            .warnings()
            .to_vec()
    };
    for key in ["tokenizer.vocabulary", "tokenizer.vocab"] {
        let metadata = format!("{{\"{key}\": [\"a\"]}}");
        assert_eq!(with(0x600, &metadata), [""; 0]);
        assert_eq!(
            with(0x400, &metadata),
            ["the flag VOCABULARY is not set, but the file has the data that it declares"]
        );
    }
}

#[test]
fn a_dialect_without_its_checksum_opens_with_a_warning() {
    let mut file = dialect();
    file.truncate(file.len() - 4);
    let reader = open(file).expect("a sound file");
    assert!(reader.container().checksum().is_none());
    assert!(
        reader.warnings().iter().any(|warning| warning.contains("no CRC-32")),
        "{:?}",
        reader.warnings()
    );
}

#[test]
fn dialect_files_that_contradict_themselves_are_rejected() {
    let with = |at: usize, bytes: &[u8]| {
        let mut file = overwrite(&dialect(), at, bytes);
        set_header_crc(&mut file);
        refused(file).code()
    };
    assert_eq!(refused(overwrite(&dialect(), 9, &[1])).code(), Code::Checksum);
    assert_eq!(with(6, &[4]), Code::Version);
    assert_eq!(with(7, &[8]), Code::Version);
    assert_eq!(with(8, &[0xff; 4]), Code::Corrupt);
    for offset in [12, 24, 32] {
        assert_eq!(with(offset, &[0xff; 8]), Code::Corrupt, "{offset}");
    }
    assert_eq!(with(20, &[0xff; 4]), Code::Corrupt);
    // The second entry's offset is the first's.
    let overlap = dialect_a(
        *b"APR\0",
        0x400,
        "{}",
        &[("a", 0, &[1], f32s(&[1.0])), ("b", 0, &[1], f32s(&[1.0]))],
    );
    let index = 64 + 64;
    let entry = 2 + 1 + 2 + 8 + 8 + 8;
    let overlap = overwrite(&overlap, index + entry + 2 + 1 + 2 + 8, &0_u64.to_le_bytes());
    assert_eq!(refused(overlap).tensor(), Some("b"));
}

#[test]
fn the_third_dialect_of_whisper_is_detected_and_read() {
    let file = whisper_0_3();
    let reader = open(file.clone()).expect("a sound file");
    assert_eq!(
        (reader.format(), covered(&*reader, &file)),
        (&apr_format::dialect::FORMAT, Some(true))
    );
    assert_eq!(reader.container().header_fields()["program"], "whisper-apr 0.3");
    assert_eq!(values_of(&*reader, "f32"), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(values_of(&*reader, "bf16"), [1.0]);
    assert_eq!(values_of(&*reader, "int8").map_near(&[1.0, -1.0, 0.0, 1.0 / 127.0]), Ok(()));
    assert_eq!(values_of(&*reader, "int4"), [-7.0_f32, 0.0, 7.0].map(|quant| quant / 7.0));
    assert!(
        reader.warnings()[0].contains("2 quantized tensors are stored without scales"),
        "{:?}",
        reader.warnings()
    );
    assert_eq!(reader.metadata().text("model_type"), Some("llama"));
    assert_eq!(reader.metadata().object("architecture").expect("numbers")["vocab_size"], json!(32));
}

trait Near {
    fn map_near(&self, expected: &[f32]) -> Result<(), String>;
}

impl Near for Vec<f32> {
    /// Checks that all values are within the rounding error of one product.
    fn map_near(&self, expected: &[f32]) -> Result<(), String> {
        let near = self.len() == expected.len()
            && self
                .iter()
                .zip(expected)
                .all(|(ours, theirs)| (ours - theirs).abs() <= theirs.abs() * f32::EPSILON);
        if near { Ok(()) } else { Err(format!("{self:?}")) }
    }
}
