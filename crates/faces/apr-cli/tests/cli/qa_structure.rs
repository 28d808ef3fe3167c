//! Points 1-7 and 10-22 of `docs/qa.md`, A: format and structural integrity.
//!
//! Each test has a command accept the sound file and then meet the broken one under the same name.

use apr_registry::{DType, TensorInfo};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry, Apr2Footer};
use apr_testkit::corrupt::{insert, overwrite};

use crate::support::{Run, Sandbox, small_safetensors, sound};

/// Returns the run on `broken`, after the command accepted the valid file without a message.
#[track_caller]
fn accepted_then(line: &str, broken: Vec<u8>) -> Run {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    sandbox.apr(line).clean();
    sandbox.write("m.apr", broken);
    sandbox.apr(line)
}

/// The sound file with its first entry, `b.weight`, changed.
fn changed(change: impl FnOnce(&mut Apr2Entry)) -> Apr2Builder {
    let mut builder = sound();
    change(&mut builder.entries[0]);
    builder
}

/// The sound file with one bit of its first tensor flipped.
fn damaged() -> Vec<u8> {
    let mut file = sound().build();
    file[sound().data_start() as usize + 9] ^= 0x10;
    file
}

#[test]
fn qa_01_a_file_starts_with_its_magic() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o m.apr").clean();
    assert!(sandbox.read("m.apr").starts_with(b"APR2"));
    // With the magic of an older format, it is still not one of its files.
    let others =
        [(*b"APR1", "E001"), (*b"APRN", "E003"), (*b"2RPA", "E001"), ([0x8f, 0, 1, 0xff], "E001")];
    for (magic, code) in others {
        accepted_then("inspect m.apr", overwrite(&sound().build(), 0, &magic))
            .fails(4, &[code, "m.apr"]);
    }
}

#[test]
fn qa_02_a_byte_put_in_before_the_data_is_corruption() {
    let file = sound().build();
    let broken = insert(&file, sound().data_start() as usize, &[0]);
    accepted_then("inspect m.apr --header", broken).fails(4, &["E002", "m.apr"]);
    let sandbox = Sandbox::new().with("m.apr", &file);
    sandbox.apr("inspect m.apr --header").says(&["metadata_offset", "32", "data_offset"]);
}

#[test]
fn qa_03_another_major_version_is_e003() {
    for version in [(3, 0), (1, 0), (0, 2)] {
        let broken = Apr2Builder { version, ..sound() }.build();
        accepted_then("inspect m.apr", broken).fails(4, &["E003", "m.apr", "only 2.x is"]);
    }
    accepted_then("inspect m.apr", Apr2Builder { version: (2, 7), ..sound() }.build()).clean();
}

#[test]
fn qa_04_a_flipped_bit_in_the_payload_is_e004_and_names_its_tensor() {
    for line in ["validate m.apr --checksum", "validate m.apr"] {
        accepted_then(line, damaged()).fails(5, &["E004", "tensor 'b.weight'", "INVALID"]);
    }
    // Without digests only the CRC shows it.
    let mut file = Apr2Builder { digests: false, ..sound() }.build();
    file[sound().data_start() as usize] ^= 1;
    accepted_then("validate m.apr --checksum", file).fails(5, &["E004", "CRC-32"]);
}

#[test]
fn qa_04_damage_outside_the_tensors_is_found_by_the_file_checksum() {
    let file = sound().build();
    let at = file.windows(7).position(|window| window == b"unknown").expect("in the metadata");
    let broken = overwrite(&file, at, b"UNKNOWN");
    accepted_then("validate m.apr --checksum", broken)
        .fails(5, &["E004", "all tensors match their digests"]);
}

#[test]
fn qa_05_metadata_that_are_no_json_are_e001() {
    for json in [r#"{"apr_version":"2.0.0",}"#, "{", "[]", r#"{"a":"\u{1}"}"#] {
        let broken = sound().metadata(json).build();
        accepted_then("inspect m.apr --json", broken).fails(4, &["E001", "m.apr", "at byte 32"]);
    }
}

#[test]
fn qa_06_tensors_that_are_not_aligned_warn() {
    // Without digests nothing else is wrong: the tensor simply is what lies there.
    let entry = Apr2Entry {
        offset: Some(193),
        size: Some(3),
        dims: vec![3],
        ..Apr2Entry::of_bytes("d", &[0, 1, 2, 3])
    };
    let broken = Apr2Builder { digests: false, ..sound().entry(entry) }.build();
    let warning = ["1 of 4 tensors do not start at a multiple of 64"];
    accepted_then("validate m.apr", broken.clone()).ok().says(&warning).says(&["VALID"]);
    accepted_then("inspect m.apr", broken.clone()).ok().says(&warning);
    accepted_then("validate m.apr --strict", broken).fails(5, &warning);
}

#[test]
fn qa_06_lint_warns_of_a_tensor_that_starts_at_any_byte() {
    let entry = Apr2Entry {
        offset: Some(193),
        size: Some(3),
        dims: vec![3],
        ..Apr2Entry::of_bytes("d", &[0, 1, 2, 3])
    };
    let broken = Apr2Builder { digests: false, ..sound().entry(entry) }.build();
    let warning = ["[WARN] Structure: 1 of 4 tensors do not start at a multiple of 64"];
    let remark = ["[INFO] Efficiency: 1 tensor could be aligned to 64 bytes (currently 1)"];
    accepted_then("lint m.apr", broken.clone()).ok().says(&warning).says(&remark);
    let run = accepted_then("lint m.apr", broken).ok();
    assert!(run.text().ends_with("4 warnings, 2 notes\n"), "{run}");
    let run = accepted_then("lint m.apr", sound().build()).ok();
    assert!(!run.text().contains("aligned") && !run.text().contains("multiple of 64"), "{run}");
}

#[test]
fn qa_07_an_index_that_is_not_sorted_is_corrupt() {
    let broken = Apr2Builder { unsorted: true, ..sound() }.build();
    accepted_then("validate m.apr", broken).fails(4, &["E002", "tensor 'a.bias'", "not sorted"]);
}

#[test]
fn qa_10_a_big_endian_header_is_refused() {
    let mut file = sound().build();
    file[4..8].chunks_exact_mut(2).for_each(<[u8]>::reverse);
    file[8..32].chunks_exact_mut(4).for_each(<[u8]>::reverse);
    accepted_then("inspect m.apr", file).fails(4, &["E001", "m.apr", "big-endian"]);
}

#[test]
fn qa_11_flags_are_named_and_undefined_ones_ignored_with_a_warning() {
    let unknown = Apr2Builder { flags: 1 << 20 | 1 << 1, ..sound() }.build();
    accepted_then("inspect m.apr", unknown.clone())
        .ok()
        .says(&["ALIGNED_64", "unknown flags set (0x100000)"]);
    accepted_then("validate m.apr", unknown).ok().says(&["VALID", "warning"]);
    let sandbox = Sandbox::new().with("m.apr", Apr2Builder { flags: 1 << 2, ..sound() }.build());
    sandbox.apr("inspect m.apr").clean().says(&["ALIGNED_32"]);
}

#[test]
fn qa_12_a_file_without_its_last_16_bytes_is_truncated() {
    let file = sound().build();
    assert_eq!(file[file.len() - 12..file.len() - 8], *b"2RPA");
    accepted_then("validate m.apr", file[..file.len() - 16].to_vec())
        .fails(4, &["E002", "truncated"]);
    let footer = Apr2Footer { magic: *b"APR2", ..sound().footer };
    accepted_then("validate m.apr", Apr2Builder { footer, ..sound() }.build()).fails(4, &["E002"]);
}

#[test]
fn qa_13_bytes_after_the_footer_warn_and_the_file_stays_valid() {
    let file = Apr2Builder { tail: b"garbage".to_vec(), ..sound() }.build();
    accepted_then("validate m.apr", file.clone()).ok().says(&[
        "warning",
        "7 bytes follow the footer",
        "\nVALID",
    ]);
    accepted_then("validate m.apr --strict", file).fails(5, &["7 bytes follow the footer"]);
}

#[test]
fn qa_13_the_stated_size_is_that_of_the_file() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o m.apr").clean();
    let file = sandbox.read("m.apr");
    assert_eq!(file[file.len() - 8..], (file.len() as u64).to_le_bytes());
    let footer = Apr2Footer { file_size: Some(1 << 40), ..sound().footer };
    accepted_then("validate m.apr", Apr2Builder { footer, ..sound() }.build()).fails(4, &["E002"]);
}

#[test]
fn qa_14_an_offset_past_the_end_is_e002_and_names_its_tensor() {
    for offset in [1 << 20, u64::MAX] {
        let mut builder = sound();
        builder.entries[2].offset = Some(offset);
        let line = "debug m.apr --hex --tensor c.norm";
        accepted_then(line, builder.build())
            .fails(4, &["E002", "tensor 'c.norm'", &format!("offset {offset}")]);
    }
}

#[test]
fn qa_15_a_model_without_tensors_is_a_model() {
    let sandbox = Sandbox::new().with("m.apr", Apr2Builder::new().build());
    for line in [
        "inspect m.apr",
        "tensors m.apr --stats",
        "validate m.apr",
        "debug m.apr",
        "debug m.apr --drama",
    ] {
        sandbox.apr(line).clean();
    }
    sandbox.apr("convert m.apr -o m.safetensors").clean().says(&["0 tensors"]);
    sandbox.apr("convert m.safetensors -o back.apr").clean();
    sandbox.apr("validate back.apr").clean().says(&["VALID"]);
}

#[cfg(unix)]
#[test]
fn qa_16_metadata_of_200_mib_are_e008_and_take_no_memory() {
    let builder = Apr2Builder {
        metadata_size: Some(200 << 20),
        index_offset: Some(300 << 20),
        data_offset: Some(400 << 20),
        ..sound()
    };
    let sandbox = Sandbox::new().with("m.apr", builder.build());
    sandbox.extend("m.apr", 500 << 20, &[]);
    // 150 MB of address space hold the program, and no buffer for the metadata.
    for command in ["inspect", "validate", "tensors"] {
        let run = sandbox.shell(&format!(r#"ulimit -v 150000; exec "$APR" {command} m.apr"#));
        run.fails(4, &["E008", "209715200", "--max-metadata"]);
    }
}

#[test]
fn qa_16_the_limit_of_metadata_can_be_set() {
    let mut json = br#"{"apr_version":"2.0.0","architecture":{},"model_type":"large"}"#.to_vec();
    json.resize(101 << 20, b' ');
    let sandbox = Sandbox::new().with("m.apr", sound().metadata(json).build());
    sandbox.apr("inspect m.apr").fails(4, &["E008", "--max-metadata"]);
    sandbox.apr("inspect m.apr --max-metadata 102MiB").clean().says(&["large"]);

    sandbox.write("m.apr", sound().build());
    sandbox.apr("inspect m.apr --max-metadata 10").fails(4, &["E008", "the limit of 10"]);
    sandbox.write("m.safetensors", small_safetensors());
    sandbox.apr("inspect m.safetensors --max-metadata 10").fails(4, &["E008", "the limit of 10"]);
}

#[test]
fn qa_17_a_name_that_is_not_utf_8_is_refused() {
    for name in [&b"\xff.weight"[..], b"b\xc3", b"\xed\xa0\x80", b""] {
        accepted_then("inspect m.apr", changed(|entry| entry.name = name.to_vec()).build())
            .fails(4, &["E001"]);
    }
    accepted_then("tensors m.apr", changed(|entry| entry.name = "größe".into()).build())
        .clean()
        .says(&["größe"]);
}

#[test]
fn qa_18_a_name_there_twice_is_refused() {
    let broken = changed(|entry| entry.name = b"a.bias".to_vec()).build();
    accepted_then("inspect m.apr", broken).fails(4, &["E002", "tensor 'a.bias'", "twice"]);
}

#[test]
fn qa_19_eight_dimensions_are_supported_and_nine_refused() {
    let dims = |count: usize| {
        changed(|entry| entry.dims = [vec![1_u64; count - 2], vec![2, 3]].concat()).build()
    };
    accepted_then("tensors m.apr", dims(8)).clean().says(&["[1, 1, 1, 1, 1, 1, 2, 3]"]);
    accepted_then("tensors m.apr", dims(9))
        .fails(4, &["E001", "tensor 'b.weight'", "9 dimensions"]);
}

#[test]
fn qa_20_no_dimensions_are_a_scalar() {
    let scalar = Apr2Builder::new()
        .entry(Apr2Entry::new("scale", DType::F32, &[], &2.5_f32.to_le_bytes()))
        .build();
    accepted_then("validate m.apr", scalar.clone()).clean();
    let run = accepted_then("tensors m.apr --stats --json", scalar).clean();
    let tensor = &run.json()["tensors"][0];
    assert_eq!((&tensor["shape"], &tensor["elements"]), (&serde_json::json!([]), &1.into()));
    assert_eq!(tensor["stats"]["mean"], 2.5);
}

#[test]
fn qa_21_every_dtype_is_read_and_an_undefined_code_refused() {
    let mut builder = Apr2Builder::new();
    let known: Vec<DType> = DType::ALL.to_vec();
    for &dtype in &known {
        let info = TensorInfo { name: dtype.name().into(), dtype, shape: [2, 256].into() };
        let len = info.byte_len().expect("256 suits every block");
        builder = builder.entry(Apr2Entry::new(
            &info.name,
            dtype,
            &[2, 256],
            &vec![1; len.try_into().expect("small")],
        ));
    }
    let run = accepted_then("tensors m.apr --json", builder.build()).clean();
    let listed = run.json()["tensors"].as_array().expect("a list").clone();
    assert_eq!(listed.len(), known.len());
    listed.iter().for_each(|tensor| assert_eq!(tensor["name"], tensor["dtype"]));
    accepted_then("validate m.apr --checksum", builder.build()).clean();

    for code in [255, 64, 29] {
        let broken = changed(|entry| entry.dtype = code).build();
        accepted_then("inspect m.apr", broken)
            .fails(4, &["E001", "tensor 'b.weight'", &format!("dtype code {code}")]);
    }
}

#[test]
fn qa_22_padding_that_is_not_zero_warns() {
    let file = Apr2Builder { padding: 0xff, ..sound() }.build();
    accepted_then("validate m.apr", file.clone()).ok().says(&[
        "warning",
        "the padding is not zero",
        "\nVALID",
    ]);
    accepted_then("validate m.apr --strict", file).fails(5, &["the padding is not zero"]);
}

#[test]
fn qa_22_lint_warns_of_padding_that_is_not_zero() {
    let file = Apr2Builder { padding: 0xff, ..sound() }.build();
    let warning = ["[WARN] Structure: the padding is not zero (at byte "];
    accepted_then("lint m.apr", file).ok().says(&warning);
    let run = accepted_then("lint m.apr", sound().build()).ok();
    assert!(!run.text().contains("padding"), "{run}");
}
