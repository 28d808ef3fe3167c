//! Older APR files, in and out.

use apr_testkit::locate;
use apr_testkit::older::{Apr1Builder, dialect_a, f32s, with_crc};

use crate::support::{Sandbox, small_safetensors};

/// Files that published programs wrote, and tensors that they have.
const REAL: [(&str, usize); 7] = [
    ("apr-format-0.72.3-alldtypes.v2.apr", 6),
    ("aprender-0.20.0-json.apr1.apr", 2),
    ("aprender-0.20.0-v2.APR2magic.apr", 2),
    ("aprender-core-0.72.3-conv-fp16.v2.apr", 12),
    ("aprender-core-0.72.3-conv-int8.v2.apr", 12),
    ("aprender-core-0.72.3-import-f32.v2.apr", 12),
    ("whisper-apr-0.1.0-f32.apr1.apr", 3),
];

#[test]
fn real_files_are_inspected_validated_and_upgraded() {
    let Some(folder) = locate::shared_data("apr") else { return };
    for (name, tensors) in REAL {
        let sandbox = Sandbox::new();
        sandbox.write("old.apr", std::fs::read(folder.join(name)).expect("it can be read"));
        sandbox.apr("inspect old.apr --header").ok();
        sandbox.apr("lint old.apr").ok();
        let listed = sandbox.apr("tensors old.apr --json").ok().json();
        assert_eq!(listed["tensors"].as_array().expect("a list").len(), tensors, "{name}");
        let checked = sandbox.apr("validate old.apr --checksum --nan-check --json").ok().json();
        assert_eq!(checked["bytes_read"].as_u64().map(|bytes| bytes > 0), Some(true), "{name}");
        // The samples are cut to be small: that they are not a whole model is reported, and is no
        // reason to refuse them.
        let report = sandbox.apr("upgrade old.apr new.apr --json").ok().json();
        assert!(
            report["changes"][0].as_str().expect("a text").contains("APR2 2.0.0"),
            "{name}: {report}"
        );
        sandbox.apr("validate new.apr --checksum --nan-check").ok();
        // Quants keep their values, if in another layout.
        sandbox.apr("diff old.apr new.apr --tolerance 0 --exit-code").ok();
        sandbox.apr("upgrade new.apr newer.apr").fails(4, &["already APR2: nothing to upgrade"]);
    }
}

/// A linear regression that a published program fitted and saved in four ways.
#[test]
fn a_real_typed_model_is_upgraded_however_it_was_packed() {
    let Some(folder) = locate::shared_data("apr") else { return };
    for name in ["linreg", "linreg-zstd", "linreg-signed-sk07x32", "linreg-enc-password-hunter2"] {
        let file = std::fs::read(folder.join(format!("aprender-0.20.0-{name}.aprn.apr")))
            .expect("it can be read");
        let sandbox = Sandbox::new().with("old.apr", file).with("password", "hunter2\n");
        let report =
            sandbox.apr("upgrade old.apr new.apr --password-file password --json").ok().json();
        assert_eq!(
            report["changes"].as_array().map(Vec::len),
            Some(2),
            "format and integrity alone: {report}"
        );
        sandbox.apr("validate new.apr").ok();
        sandbox.apr("export new.apr -o new.safetensors").ok();
        let bytes = sandbox.read("new.safetensors");
        // The bits that the program's own payload has.
        let values = [0x3f80_0004_u32, 0x4000_0000, 0xb5d1_05eb].map(u32::to_le_bytes).concat();
        assert!(bytes.ends_with(&values), "{name}");
        if name.contains("enc") {
            sandbox.apr("decrypt old.apr -o plain.apr").fails(4, &["E005"]);
            sandbox.apr("decrypt old.apr -o plain.apr --password-file password").ok();
            sandbox.apr("diff new.apr plain.apr --tolerance 0 --exit-code").ok();
            sandbox.apr("encrypt old.apr -o x.apr --password-file password").fails(
                1,
                &["the model is already encrypted; `apr decrypt` it first to change \
                             keys"],
            );
        }
    }
}

/// The signature (64 bytes), its key (32) and the CRC-32 are the last of a signed file.
#[test]
fn a_signed_typed_model_verifies_with_its_key_until_a_signed_byte_changes() {
    let Some(folder) = locate::shared_data("apr") else { return };
    let file = std::fs::read(folder.join("aprender-0.20.0-linreg-signed-sk07x32.aprn.apr"));
    let file = file.expect("it can be read");
    let sandbox = Sandbox::new().with("m.apr", &file);
    let unasked = "signature not verified: no trusted key given";
    sandbox.apr("validate m.apr").ok().says(&[unasked, "\nVALID"]);
    sandbox.apr("upgrade m.apr new.apr").ok().says(&[unasked]);
    sandbox.apr("validate new.apr").ok();

    let end = file.len() - 100;
    let (metadata, payload, signature, key) = (40, end - 10, end + 10, end + 70);
    for at in [metadata, payload, signature, key] {
        let mut changed = file[..file.len() - 4].to_vec();
        changed[at] ^= 1;
        // What the checksum says is right again.
        sandbox.write("m.apr", with_crc(changed));
        for line in ["validate m.apr", "upgrade m.apr other.apr"] {
            sandbox.apr(line).fails(5, &["E006", "m.apr", "the signature is not one of these"]);
        }
        assert!(!sandbox.path("other.apr").exists(), "byte {at}");
    }
}

#[test]
fn an_import_of_the_source_equals_an_upgrade_of_its_conversion() {
    let Some(folder) = locate::shared_data("apr") else { return };
    let sandbox = Sandbox::new();
    for (from, to) in [
        ("source-model.safetensors", "s.safetensors"),
        ("aprender-core-0.72.3-import-f32.v2.apr", "old.apr"),
    ] {
        sandbox.write(to, std::fs::read(folder.join(from)).expect("it can be read"));
    }
    sandbox.apr("upgrade old.apr new.apr").ok();
    sandbox.apr("export new.apr -o back.safetensors --relaxed").ok();
    sandbox.apr("diff s.safetensors back.safetensors --tolerance 0 --exit-code").ok();
}

#[test]
fn changes_are_reported_and_recorded() {
    let sandbox = Sandbox::new().with(
        "old.apr",
        dialect_a(*b"APR\0", 0, "{}", &[("w", 129, &[1, 2], vec![0, 0, 0x80, 0x3f, 1, 2])]),
    );
    sandbox.apr("upgrade old.apr new.apr").ok().says(&[
        "format: an APR v2 dialect of aprender or apr-cli 0.25 to 0.72 -> APR2 2.0.0",
        "layout: 1 tensor of older dtypes -> i8_row, with the same values",
        "ROW_MAJOR is not set",
    ]);
    let inspected = sandbox.apr("inspect new.apr --json").ok().json();
    assert_eq!(inspected["metadata"]["source"]["file"], "old.apr", "{inspected}");
    assert!(inspected["metadata"]["source"]["tool"].as_str().expect("a text").starts_with("apr "));
    sandbox.apr("upgrade old.apr new.apr").fails(1, &["new.apr"]);
    sandbox.apr("upgrade old.apr new.apr -f").ok();
}

#[test]
fn only_older_files_are_upgraded() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox
        .apr("upgrade m.safetensors new.apr")
        .fails(4, &["is not an older APR format; `apr import` packs it", "apr import"]);
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}

#[test]
fn a_wrong_checksum_is_found_by_validate_and_not_before() {
    let mut file = Apr1Builder {
        tensors: vec![("a.weight", 0, &[2], f32s(&[1.0, 2.0]))],
        ..Apr1Builder::default()
    }
    .build();
    let last = file.len() - 5;
    file[last] ^= 1;
    let sandbox = Sandbox::new().with("old.apr", file);
    sandbox.apr("inspect old.apr").ok();
    sandbox.apr("validate old.apr").fails(5, &["E004"]);
}

#[test]
fn an_apr1_file_is_exported_as_it_was() {
    let Some(path) = locate::shared_data("apr/whisper-apr-0.1.0-f32.apr1.apr") else { return };
    let bytes = std::fs::read(path).expect("it can be read");
    let sandbox = Sandbox::new().with("old.apr", &bytes);
    sandbox.apr("export old.apr --format apr1 -o same.apr --relaxed").ok();
    assert_eq!(sandbox.read("same.apr"), bytes);
    sandbox.apr("upgrade old.apr new.apr").ok();
    sandbox.apr("export new.apr --format apr1 -o back.apr --relaxed").ok();
    assert_eq!(sandbox.read("back.apr"), bytes);
}
