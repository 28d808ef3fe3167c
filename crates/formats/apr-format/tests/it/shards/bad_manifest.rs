//! Manifests that are hostile, contradict themselves or are broken.

use apr_core::{Code, Limits};
use apr_format::apr2::{Keys, open_manifest};
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::{Value, json};

use super::{cut, edit, open, plain, refused, small};

#[test]
fn hostile_manifests_are_refused() {
    let folder = cut(&small(), 100);
    for name in ["../m.apr", "/etc/passwd", "a/b.apr", "a\\b.apr", "..", "", "C:m.apr", "m\0.apr"] {
        refused(
            &edit(&folder, |manifest| manifest["shards"][1]["file"] = json!(name)),
            Code::Format,
            "plain file name",
        );
    }
    refused(
        &edit(&folder, |m| m["shards"][1]["file"] = json!("model.apr")),
        Code::Format,
        "names itself",
    );
    refused(&edit(&folder, |m| m["shards"][1] = m["shards"][0].clone()), Code::Format, "twice");
    for crc32 in ["", "0x123456", "+1234567", "123456789", "gggggggg"] {
        refused(
            &edit(&folder, |m| m["shards"][1]["crc32"] = json!(crc32)),
            Code::Format,
            "8 hexadecimal digits",
        );
    }
    for count in [0, 2, 1_u64 << 32, u64::MAX] {
        refused(&edit(&folder, |m| m["shard_count"] = json!(count)), Code::Corrupt, "but lists 3");
    }
    refused(
        &edit(&folder, |m| m["tensor_shard_map"]["q"] = json!(1_u64 << 32)),
        Code::Corrupt,
        "there are 3 shards",
    );
    refused(&edit(&folder, |m| m["sharded"] = json!(false)), Code::Format, "not sharded");
    refused(&edit(&folder, |m| m["apr_version"] = json!("3.0.0")), Code::Version, "'3.0.0'");
    let none = |m: &mut Value| {
        (m["shard_count"], m["shards"], m["tensor_shard_map"]) = (json!(0), json!([]), json!({}));
    };
    refused(&edit(&plain(&folder), none), Code::Format, "names no shard");
    for key in ["apr_version", "sharded", "shard_count", "shards", "tensor_shard_map"] {
        let without = |m: &mut Value| drop(m.as_object_mut().expect("an object").remove(key));
        refused(&edit(&folder, without), Code::Format, key);
    }
    for (old, new) in [
        (r#""big": 1"#, r#""big": 1, "big": 2"#),
        (r#""sharded": true"#, r#""sharded": true, "sharded": true"#),
        (r#""size": "#, r#""size": 1, "size": "#),
    ] {
        let mut folder = folder.clone();
        let text = String::from_utf8(folder.0["model.apr"].clone()).expect("JSON");
        assert!(text.contains(old));
        folder.0.insert("model.apr".into(), text.replace(old, new).into_bytes());
        let error = open(&folder).map(drop).expect_err("a key that appears twice");
        assert_eq!(error.code(), Code::Format, "{error}");
    }
    let limits = {
        let mut limits = Limits::default();
        limits.max_metadata = 100;
        limits
    };
    let error =
        open_manifest(&folder.0["model.apr"], "model.apr", &folder, &limits, &Keys::default())
            .map(drop)
            .expect_err("too long");
    assert_eq!(error.code(), Code::Memory);
}

#[test]
fn the_manifest_must_describe_exactly_the_tensors_that_it_maps() {
    let folder = cut(&small(), 100);
    let described = |change: fn(&mut Vec<Value>)| {
        edit(&folder, |m| change(m["tensors"].as_array_mut().expect("an array")))
    };
    refused(
        &described(|tensors| drop(tensors.pop())),
        Code::Corrupt,
        "'q': the manifest lists the tensor in a shard",
    );
    refused(&described(|tensors| tensors[1] = tensors[0].clone()), Code::Corrupt, "twice");
    refused(
        &described(|tensors| tensors[1]["name"] = json!("other")),
        Code::Corrupt,
        "but no shard",
    );
    refused(&described(|tensors| tensors[1]["dtype"] = json!("f33")), Code::Format, "f33");
    refused(
        &described(|tensors| tensors[1]["shape"] = json!([1, 1, 1, 1, 1, 1, 1, 1, 1])),
        Code::Format,
        "dimensions",
    );
    refused(
        &described(|tensors| tensors[1]["shape"] = json!([u64::MAX, 2])),
        Code::Format,
        "'norm'",
    );
    refused(
        &described(|tensors| tensors[1]["shape"] = json!([4])),
        Code::Corrupt,
        "but model.apr states f32 of shape [4]",
    );
    refused(&described(|tensors| tensors[1]["dtype"] = json!("i32")), Code::Corrupt, "states i32");
    let huge = edit(&folder, |m| m["companions"][1]["len"] = json!(1_u64 << 60));
    refused(&huge, Code::Checksum, "the companions differ from");
}

#[test]
fn a_broken_manifest_is_an_error_or_leaves_a_model_that_reads_or_reports_errors() {
    let sound = cut(&small(), 100);
    let manifest = sound.0["model.apr"].clone();
    let json_end = manifest.trim_ascii_end().len();
    let attempt = |manifest: Vec<u8>, what: &str| {
        let justified = 64 * manifest.len() + 8192;
        let (opened, peak) = peak_memory(|| {
            open_manifest(&manifest, "model.apr", &sound, &Limits::default(), &Keys::default())
        });
        assert!(peak < justified, "{what}: {peak} bytes");
        let Ok(model) = opened else { return false };
        if let Err(error) = read_everything(&model) {
            assert!(!error.to_string().contains(char::is_control), "{error}");
        }
        true
    };
    for (len, cut) in corrupt::truncations(&manifest).enumerate() {
        assert_eq!(attempt(cut, "cut"), len >= json_end, "cut at {len}");
    }
    for flipped in corrupt::bit_flips(&manifest, 0..manifest.len()) {
        attempt(flipped, "flipped");
    }
}
