//! Points 1-24 of `docs/qa.md` over compressed, encrypted, signed and sharded files, and point 42.
//!
//! Each test breaks every kind of file in the same way. The checksum of the footer is made right
//! again, so that it is the point's own check that has to see the damage; of an encrypted file, its
//! authentication may see it first.

use std::sync::LazyLock;

use apr_registry::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::corrupt::overwrite;

use crate::container::{crc32, flipped, stored, weights, word, workshop};
use crate::support::{Files, Run, Sandbox, safetensors};

/// Flags of the header: encrypted, signed, licensed.
const SEALED: usize = 1 << 4 | 1 << 5 | 1 << 8;

/// One way to store a model.
pub(crate) struct Kind {
    /// Argument that commands get for the model.
    pub(crate) model: &'static str,
    /// The `.apr` file of it that is broken: the model itself or a shard.
    pub(crate) part: &'static str,
    /// Options of the conversion of `m.safetensors` that makes it.
    made: &'static str,
    encrypted: bool,
}

pub(crate) const KINDS: [Kind; 9] = [
    Kind { model: "lz4.apr", part: "lz4.apr", made: "--compress=lz4", encrypted: false },
    Kind { model: "zstd.apr", part: "zstd.apr", made: "--compress=zstd", encrypted: false },
    Kind { model: "auto.apr", part: "auto.apr", made: "--compress", encrypted: false },
    Kind {
        model: "sealed.apr",
        part: "sealed.apr",
        made: "--recipient owner.pub",
        encrypted: true,
    },
    Kind {
        model: "hidden.apr",
        part: "hidden.apr",
        made: "--compress --recipient owner.pub --encrypt-metadata",
        encrypted: true,
    },
    Kind { model: "signed.apr", part: "signed.apr", made: "--sign signer", encrypted: false },
    Kind {
        model: "all.apr",
        part: "all.apr",
        made: "--compress=best --recipient owner.pub --sign signer --streaming",
        encrypted: true,
    },
    Kind {
        model: "cut.apr",
        part: "cut-00003-of-00003.apr",
        made: "--shard-size 1300",
        encrypted: false,
    },
    Kind {
        model: "cut-all.apr",
        part: "cut-all-00003-of-00003.apr",
        made: "--compress --recipient owner.pub --sign signer --shard-size 1300",
        encrypted: true,
    },
];

/// Every kind of file, made of `m.safetensors`, and the keys.
pub(crate) fn every_kind() -> Sandbox {
    static MADE: LazyLock<Files> = LazyLock::new(|| {
        let sandbox = workshop();
        for kind in &KINDS {
            let line = format!("convert m.safetensors -o {} {}", kind.model, kind.made);
            sandbox.apr(&line).clean();
            let shown = sandbox.files();
            assert!(shown.iter().any(|name| name == kind.part), "{}: {shown:?}", kind.part);
        }
        sandbox.kept()
    });
    Sandbox::of(&MADE)
}

/// The file with its footer's checksum made right.
fn sealed_again(mut file: Vec<u8>) -> Vec<u8> {
    if let Some(end) = file.len().checked_sub(16) {
        let crc = crc32(&file[..end]);
        file[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    }
    file
}

/// Breaks every kind of file, and has every command that reads weights refuse it with one of these
/// codes.
#[track_caller]
fn refused(what: impl Fn(&[u8]) -> Vec<u8>, codes: &[&str]) {
    let sandbox = every_kind();
    for kind in &KINDS {
        let whole = sandbox.read(kind.part);
        sandbox.write(kind.part, sealed_again(what(&whole)));
        let known = |run: &Run| {
            let said = run.to_string();
            let seen = codes.iter().any(|code| said.contains(code))
                || kind.encrypted && said.contains("E005");
            assert!(seen, "{}, not {codes:?}: {said}", kind.model);
        };
        let files = sandbox.files();
        let run = sandbox.apr(&format!("convert {} -o out.safetensors --key owner", kind.model));
        known(&run);
        assert!(matches!(run.code, Some(4 | 5)), "{}: {run}", kind.model);
        run.says(&[kind.part]);
        assert_eq!(sandbox.files(), files, "{}", kind.model);
        let run = sandbox.apr(&format!("validate {} --key owner", kind.model));
        assert!(matches!(run.code, Some(4 | 5)), "{}: {run}", kind.model);
        known(&run);
        let run = sandbox.apr(&format!("inspect {}", kind.model));
        assert!(matches!(run.code, Some(0 | 4)), "{}: {run}", kind.model);
        // Of the tensors, a signature covers the digests.
        let front = sandbox.read(kind.part)[..word(&whole, 28)] != whole[..word(&whole, 28)];
        if kind.made.contains("--sign") && front {
            let run = sandbox.apr(&format!("verify {} --trusted signer.pub", kind.model));
            assert!(matches!(run.code, Some(4 | 5)), "{}: {run}", kind.model);
        }
        sandbox.write(kind.part, whole);
    }
}

/// Returns the start and the end of an entry in the index.
fn entry(file: &[u8], name: &str) -> (usize, usize) {
    let (start, size) = (word(file, 20), word(file, 24));
    let wanted =
        [&u16::try_from(name.len()).expect("a short name").to_le_bytes()[..], name.as_bytes()]
            .concat();
    let found = file[start..start + size].windows(wanted.len()).position(|window| window == wanted);
    let at = start + found.unwrap_or_else(|| panic!("{name} is in the index"));
    let dims = usize::from(file[at + wanted.len() + 1]);
    (at, at + wanted.len() + 2 + 8 * dims + 28)
}

/// The file with the bytes of an entry of `table` overwritten, `back` bytes from its end.
fn in_entry(file: &[u8], back: usize, bytes: &[u8]) -> Vec<u8> {
    overwrite(file, entry(file, "table").1 - back, bytes)
}

#[test]
fn qa_01_every_container_starts_with_its_magic() {
    let sandbox = every_kind();
    KINDS
        .iter()
        .for_each(|kind| assert!(sandbox.read(kind.part).starts_with(b"APR2"), "{}", kind.part));
    refused(|file| overwrite(file, 0, b"APRX"), &["E001"]);
}

#[test]
fn qa_02_a_byte_put_in_before_the_data_is_seen_in_every_container() {
    refused(|file| apr_testkit::corrupt::insert(file, word(file, 28), &[0]), &["E002"]);
}

#[test]
fn qa_03_another_major_version_is_e003_in_every_container() {
    refused(|file| overwrite(file, 4, &[3, 0]), &["E003"]);
}

#[test]
fn qa_04_a_flipped_bit_of_a_tensor_is_seen_in_every_container() {
    for tensor in ["table", "steps"] {
        let broken = |file: &[u8]| {
            let (start, size) = stored(file, tensor);
            flipped(file, start + size / 2)
        };
        refused(broken, &["E004"]);
        let sandbox = every_kind();
        for kind in &KINDS {
            let whole = sandbox.read(kind.part);
            sandbox.write(kind.part, broken(&whole));
            // The tensor has a name without any key.
            sandbox
                .apr(&format!("validate {} --checksum", kind.model))
                .fails(5, &["E004", tensor, "INVALID"]);
        }
    }
}

#[test]
fn qa_05_metadata_that_are_no_json_are_refused_in_every_container() {
    refused(|file| overwrite(file, word(file, 12), b"["), &["E001"]);
}

#[test]
fn qa_06_tensors_are_aligned_in_every_container() {
    let sandbox = every_kind();
    for kind in &KINDS {
        let file = sandbox.read(kind.part);
        for tensor in ["table", "steps"] {
            assert_eq!(stored(&file, tensor).0 % 64, 0, "{}", kind.part);
        }
    }
    // One byte further the bytes are not the tensor's.
    refused(|file| in_entry(file, 28, &(u64_at(file, 28) + 1).to_le_bytes()), &["E002", "E004"]);
}

/// Returns a field of the entry of `table`, `back` bytes before its end.
fn u64_at(file: &[u8], back: usize) -> u64 {
    let at = entry(file, "table").1 - back;
    u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"))
}

#[test]
fn qa_07_an_index_that_is_not_sorted_is_refused_in_every_container() {
    let swapped = |file: &[u8]| {
        let ((from, middle), (_, to)) = (entry(file, "steps"), entry(file, "table"));
        [&file[..from], &file[middle..to], &file[from..middle], &file[to..]].concat()
    };
    refused(swapped, &["E002"]);
}

#[test]
fn qa_08_an_unknown_codec_filter_or_layout_is_e003() {
    for bits in [4_u32, 15, 2 << 4, 15 << 4, 4 << 8, 15 << 8] {
        refused(|file| in_entry(file, 4, &bits.to_le_bytes()), &["E003"]);
    }
}

#[test]
fn qa_09_a_model_in_shards_loads_and_without_one_of_them_is_e007() {
    let sandbox = every_kind();
    for kind in KINDS.iter().filter(|kind| kind.made.contains("--shard-size")) {
        sandbox.apr(&format!("validate {} --key owner", kind.model)).clean();
        std::fs::remove_file(sandbox.path(kind.part)).expect("it is there");
        sandbox.apr(&format!("validate {} --key owner", kind.model)).fails(5, &["E007", kind.part]);
        let line = format!("convert {} -o out.safetensors --key owner", kind.model);
        sandbox.apr(&line).fails(3, &["E007", kind.part]);
        assert!(!sandbox.path("out.safetensors").exists());
    }
}

#[test]
fn qa_10_a_big_endian_header_is_refused_in_every_container() {
    let swapped = |file: &[u8]| {
        let mut file = file.to_vec();
        file[4..8].chunks_exact_mut(2).for_each(<[u8]>::reverse);
        file[8..32].chunks_exact_mut(4).for_each(<[u8]>::reverse);
        file
    };
    refused(swapped, &["big-endian"]);
}

#[test]
fn qa_11_flags_are_named_in_every_container() {
    let sandbox = every_kind();
    for (model, flags) in [
        ("auto.apr", &["COMPRESSED"][..]),
        ("sealed.apr", &["ENCRYPTED"]),
        ("hidden.apr", &["COMPRESSED", "ENCRYPTED"]),
        ("signed.apr", &["SIGNED"]),
        ("all.apr", &["COMPRESSED", "ENCRYPTED", "SIGNED", "STREAMING"]),
        ("cut.apr", &["SHARDED"]),
        ("cut-all.apr", &["COMPRESSED", "ENCRYPTED", "SHARDED"]),
    ] {
        sandbox.apr(&format!("inspect {model} --key owner")).ok().says(flags);
    }
    // A flag that nobody knows is ignored where nothing seals the header.
    let file = sandbox.read("auto.apr");
    sandbox.write("auto.apr", sealed_again(overwrite(&file, 10, &[0x10])));
    sandbox.apr("validate auto.apr").ok().says(&["unknown flags set (0x100000)", "VALID"]);
}

#[test]
fn qa_12_a_file_without_its_last_16_bytes_is_refused_in_every_container() {
    let sandbox = every_kind();
    for kind in &KINDS {
        let whole = sandbox.read(kind.part);
        for cut in [1, 16, 17, 64] {
            sandbox.write(kind.part, &whole[..whole.len() - cut]);
            sandbox
                .apr(&format!("convert {} -o o.safetensors --key owner", kind.model))
                .fails(4, &["E002", kind.part]);
        }
        sandbox.write(kind.part, whole);
    }
}

/// Returns `true` if a file is signed, licensed or encrypted, so that unauthenticated bytes are an
/// error.
fn is_sealed(file: &[u8]) -> bool {
    word(file, 8) & SEALED != 0
}

#[test]
fn qa_13_bytes_after_the_footer_change_no_weight() {
    let sandbox = every_kind();
    for kind in KINDS.iter().filter(|kind| kind.model == kind.part) {
        let file = [sandbox.read(kind.part), b"garbage".to_vec()].concat();
        sandbox.write(kind.part, file);
        let run = sandbox.apr(&format!("validate {} --key owner", kind.model));
        match is_sealed(&sandbox.read(kind.part)) {
            true => run.fails(5, &["E006", "7 bytes follow the footer", "INVALID"]),
            false => run.ok().says(&["7 bytes follow the footer", "\nVALID"]),
        };
    }
}

#[test]
fn qa_14_an_offset_past_the_end_is_e002_in_every_container() {
    for offset in [1_u64 << 20, u64::MAX] {
        refused(|file| in_entry(file, 28, &offset.to_le_bytes()), &["E002"]);
    }
    for size in [0_u64, 1 << 40, u64::MAX] {
        refused(|file| in_entry(file, 20, &size.to_le_bytes()), &["E001", "E002"]);
        refused(|file| in_entry(file, 12, &(size | 1).to_le_bytes()), &["E001", "E002"]);
    }
}

#[test]
fn qa_15_a_model_without_tensors_is_a_model_in_every_container() {
    let sandbox = workshop().with("m.safetensors", safetensors(&[]));
    for kind in &KINDS {
        sandbox.apr(&format!("convert m.safetensors -o {} {}", kind.model, kind.made)).clean();
        sandbox.apr(&format!("validate {} --key owner", kind.model)).clean();
        sandbox.apr(&format!("inspect {} --key owner", kind.model)).clean();
        sandbox.apr(&format!("export {} -o back.safetensors -f --key owner", kind.model)).ok();
        assert_eq!(
            sandbox.read("back.safetensors"),
            sandbox.read("m.safetensors"),
            "{}",
            kind.model
        );
    }
}

#[test]
fn qa_16_metadata_of_200_mib_are_refused_in_every_container() {
    refused(|file| overwrite(file, 16, &(200_u32 << 20).to_le_bytes()), &["E008", "E002"]);
}

#[test]
fn qa_17_a_name_that_is_not_utf_8_is_refused_in_every_container() {
    refused(|file| overwrite(file, entry(file, "table").0 + 2, &[0xff]), &["E001"]);
}

#[test]
fn qa_18_a_name_there_twice_is_refused_in_every_container() {
    refused(|file| overwrite(file, entry(file, "table").0 + 2, b"steps"), &["E002"]);
}

#[test]
fn qa_19_nine_dimensions_are_refused_in_every_container() {
    refused(|file| overwrite(file, entry(file, "table").0 + 8, &[9]), &["E001", "E002"]);
}

#[test]
fn qa_20_and_21_every_shape_and_dtype_survives_every_container() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/valid/safetensors");
    for name in ["dtypes", "shapes"] {
        let source = std::fs::read(format!("{fixtures}/{name}.safetensors")).expect("a fixture");
        let sandbox = workshop().with("m.safetensors", &source);
        for kind in &KINDS {
            sandbox.apr(&format!("convert m.safetensors -o {} {}", kind.model, kind.made)).ok();
            sandbox.apr(&format!("validate {} --checksum --key owner", kind.model)).ok();
            sandbox.apr(&format!("export {} -o back.safetensors -f --key owner", kind.model)).ok();
            sandbox.apr("diff m.safetensors back.safetensors --tolerance 0 --exit-code").ok();
            // Streaming files keep their tensors in another order.
            let same = sandbox.read("back.safetensors") == source;
            assert!(same || kind.made.contains("--streaming"), "{name} in {}", kind.model);
        }
    }
}

#[test]
fn qa_21_an_undefined_dtype_is_refused_in_every_container() {
    refused(|file| overwrite(file, entry(file, "table").0 + 7, &[255]), &["E001"]);
}

#[test]
fn qa_22_padding_that_is_not_zero_warns_in_every_container() {
    let sandbox = every_kind();
    for kind in KINDS.iter().filter(|kind| kind.model == kind.part) {
        let file = sandbox.read(kind.part);
        let (start, size) = stored(&file, "table");
        assert!(!(start + size).is_multiple_of(64), "{} has padding", kind.part);
        sandbox.write(kind.part, sealed_again(overwrite(&file, start + size, &[0xff])));
        let run = sandbox.apr(&format!("validate {} --key owner", kind.model));
        match is_sealed(&file) {
            true => run.fails(5, &["E006", "the padding is not zero", "INVALID"]),
            false => run.ok().says(&["the padding is not zero", "\nVALID"]),
        };
    }
}

#[test]
fn qa_23_a_changed_signature_is_e006() {
    let sandbox = every_kind();
    for model in ["signed.apr", "all.apr"] {
        let validate = format!("validate {model} --signature --trusted signer.pub --key owner");
        let file = sandbox.read(model);
        sandbox.apr(&validate).clean();
        sandbox.apr(&format!("verify {model} --trusted signer.pub")).clean().says(&["VERIFIED"]);
        let at = file.windows(4).rposition(|window| window == b"SIGN").expect("a signature");
        // Public key and signature follow the block's head of 16 bytes, a count of 8 and an
        // algorithm of 8.
        for byte in (at + 32..at + 32 + 96).step_by(5) {
            sandbox.write(model, sealed_again(flipped(&file, byte)));
            sandbox.apr(&format!("verify {model} --trusted signer.pub")).fails(5, &["E006"]);
            sandbox.apr(&validate).fails(5, &["E006", "INVALID"]);
        }
    }
}

#[test]
fn qa_23_a_change_of_what_is_signed_is_e006() {
    let sandbox = every_kind();
    let file = sandbox.read("signed.apr");
    let at = file.windows(4).rposition(|window| window == b"DGST").expect("digests") + 40;
    let metadata =
        file.windows(11).position(|window| window == b"safetensors").expect("in the metadata");
    for broken in [flipped(&file, at), overwrite(&file, metadata, b"S")] {
        sandbox.write("signed.apr", sealed_again(broken));
        sandbox.apr("verify signed.apr --trusted signer.pub").fails(5, &["E006"]);
    }
    // Weights that no longer have their digest do not validate, whoever signed.
    let (start, _) = stored(&file, "steps");
    sandbox.write("signed.apr", sealed_again(flipped(&file, start)));
    let run = sandbox.apr("validate signed.apr --checksum --signature --trusted signer.pub");
    run.fails(5, &["E004", "steps"]);
}

#[test]
fn qa_24_a_wrong_key_is_e005_in_every_container() {
    let sandbox = every_kind();
    for kind in KINDS.iter().filter(|kind| kind.encrypted) {
        let convert = format!("convert {} -o out.safetensors", kind.model);
        for key in ["", "--key other", "--key signer", "--password-file password"] {
            sandbox.apr(&format!("{convert} {key}")).fails(4, &["E005"]);
            assert!(!sandbox.path("out.safetensors").exists());
        }
        sandbox.apr(&format!("{convert} --key owner")).ok();
        assert!(sandbox.read("out.safetensors") == weights(), "{}", kind.model);
        std::fs::remove_file(sandbox.path("out.safetensors")).expect("it is there");
    }
}

/// A 16 x 8 matrix of f32 as compressed sparse rows (`docs/format/codecs.md`, "Layouts"), with
/// `filled` entries in each row.
fn sparse_matrix(filled: u32) -> Apr2Entry {
    let rows = 16;
    let mut bytes = u64::from(rows * filled).to_le_bytes().to_vec();
    bytes.extend((0..=rows).flat_map(|row| u64::from(row * filled).to_le_bytes()));
    bytes.extend((0..rows).flat_map(|_| 0..filled).flat_map(u32::to_le_bytes));
    bytes.extend((0..rows * filled).flat_map(|value| (value as f32 + 1.0).to_le_bytes()));
    let raw_size = bytes.len() as u64;
    Apr2Entry {
        flags: 1 << 8,
        raw_size,
        ..Apr2Entry::new("layers.0.weight", DType::F32, &[16, 8], &bytes)
    }
}

#[test]
fn qa_42_a_tensor_that_claims_to_be_sparse_and_is_dense_warns() {
    for (filled, warns) in [(1, false), (8, true)] {
        let file = Apr2Builder::new().entry(sparse_matrix(filled)).build();
        let sandbox = Sandbox::new().with("m.apr", file);
        let run = sandbox.apr("lint m.apr");
        assert_eq!(
            run.text().contains("tensor 'layers.0.weight' is stored as sparse, but is dense"),
            warns,
            "{run}"
        );
        sandbox.apr("tensors m.apr").says(&["csr"]);
        let zeros =
            sandbox.apr("tensors m.apr --stats --json").json()["tensors"][0]["stats"]["zeros"]
                .clone();
        assert_eq!(zeros, 16 * (8 - filled), "as the values are read");
    }
}
