//! Checksums on every way to an answer or an output.

use std::fs;

use apr_registry::digest::Crc32;
use apr_testkit::locate;
use apr_testkit::older::{Apr1Builder, dialect_a, f32s};

use crate::support::{Run, Sandbox, small_safetensors};

/// Changes a byte of the first tensor that has some.
fn flip(sandbox: &Sandbox, name: &str) -> Vec<u8> {
    let listed = sandbox.apr(&format!("tensors {name} --json")).ok().json();
    let tensors = listed["tensors"].as_array().expect("a list");
    let tensor = tensors.iter().find(|tensor| tensor["bytes"].as_u64() > Some(0));
    let offset = tensor.expect("a tensor")["offset"].as_u64().expect("an offset");
    let mut bytes = sandbox.read(name);
    bytes[usize::try_from(offset).expect("small")] ^= 1;
    bytes
}

fn is_told(run: &Run) -> bool {
    let told = run.to_string();
    ["E004", "the CRC-32 of its bytes is"].iter().any(|part| told.contains(part))
}

/// A LLaMA, signed, with a byte of a tensor changed and the file's CRC-32 renewed.
fn signed_and_changed() -> Sandbox {
    let sandbox = Sandbox::new();
    let model = locate::fixture("tiny-llama");
    sandbox.apr(&format!("import {} -o m.apr", model.display())).ok();
    sandbox.apr("keygen -o key.pem").ok();
    sandbox.apr("sign m.apr --key key.pem").ok();
    let mut file = flip(&sandbox, "m.apr");
    let end = file.len() - 16;
    let mut crc32 = Crc32::new();
    crc32.update(&file[..end]);
    file[end..end + 4].copy_from_slice(&crc32.value().to_le_bytes());
    sandbox.with("changed.apr", file)
}

#[test]
fn every_computation_with_a_changed_tensor_fails_with_e004() {
    let sandbox = signed_and_changed();
    sandbox.write("text.txt", "12+34=46 ".repeat(40));
    for line in [
        "run changed.apr --prompt 12+34=",
        "run changed.apr --prompt 12+34= --json",
        "trace changed.apr --prompt 1+1=",
        "canary create changed.apr --prompt 12+34= -o canary.json",
        "imatrix changed.apr --text text.txt -o i.gguf",
        "convert changed.apr -o x.safetensors",
        "merge changed.apr m.apr -o x.apr",
        "quantize changed.apr --type q8_0 -o x.apr",
        "tensors changed.apr --stats",
    ] {
        let run = sandbox.apr(line).fails(5, &["E004"]);
        assert!(!run.to_string().contains("12+34=46"), "no answer: {run}");
    }
    assert!(!sandbox.files().iter().any(|name| name.starts_with("x.")), "{:?}", sandbox.files());
}

#[test]
fn without_checksum_verification_the_report_is_marked_unverified() {
    let sandbox = signed_and_changed();
    sandbox.apr("run changed.apr --prompt 12+34= --no-verify").ok().says(&["unverified"]);
    let report = sandbox.apr("run changed.apr --prompt 12+34= --no-verify --json").ok().json();
    assert_eq!(report["unverified"], "tensors", "{report}");
    let report = sandbox.apr("run m.apr --prompt 12+34= --json").ok().json();
    assert!(report.get("unverified").is_none(), "{report}");
}

#[test]
fn a_signature_does_not_cover_bytes_that_were_not_compared() {
    let sandbox = signed_and_changed();
    sandbox
        .apr("validate changed.apr --signature --trusted key.pem.pub")
        .fails(5, &["its bytes do not match its digest", "INVALID"]);
    sandbox.apr("verify changed.apr --trusted key.pem.pub").fails(5, &["NOT VERIFIED"]);
    let front = sandbox.apr("verify changed.apr --front --trusted key.pem.pub").ok();
    front.says(&["FRONT VERIFIED", "unverified: the bytes of tensors were not read"]);
    let front = sandbox.apr("verify changed.apr --front --trusted key.pem.pub --json").ok().json();
    assert_eq!((&front["verified"], &front["unverified"]), (&true.into(), &"tensors".into()));
}

#[test]
fn damaged_bytes_of_every_format_with_a_checksum_are_refused_on_every_way() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o m.pt").ok();
    sandbox.apr("convert m.safetensors -o m.apr").ok();
    let fixture = |name: &str| fs::read(locate::fixture(name)).expect("a fixture");
    sandbox.write("m.npz", fixture("numpy/stored.npz"));
    sandbox.write("m.keras", fixture("keras/small.keras"));
    let bytes = f32s(&[1.0, 2.0]);
    let tensor = ("w", 0, &[2_u32][..], bytes.clone());
    sandbox.write("dialect.apr", dialect_a(*b"APR\0", 0, "{}", &[tensor]));
    let tensors = vec![("w", 0, &[2_u32][..], bytes)];
    sandbox.write("apr1.apr", Apr1Builder { tensors, ..Apr1Builder::default() }.build());
    for name in ["m.pt", "m.apr", "m.npz", "m.keras", "dialect.apr", "apr1.apr"] {
        let damaged = format!("damaged-{name}");
        sandbox.write(&damaged, flip(&sandbox, name));
        let mut ways = vec![format!("validate {damaged}"), format!("tensors {damaged} --stats")];
        // One tensor is no Whisper, which is a reason of its own to write nothing.
        if name != "apr1.apr" {
            ways.extend([
                format!("import {damaged} -o out.apr"),
                format!("convert {damaged} -o out.safetensors"),
                format!("merge {damaged} {damaged} -o out.apr"),
            ]);
        }
        if ["dialect.apr", "apr1.apr"].contains(&name) {
            ways.push(format!("upgrade {damaged} out.apr"));
        }
        for way in ways {
            let run = sandbox.apr(&way).fails(5, &[]);
            assert!(is_told(&run), "{way}: {run}");
        }
    }
    assert!(!sandbox.files().iter().any(|name| name.starts_with("out.")), "nothing was written");
}

#[test]
fn tensors_of_an_absent_shard_are_not_counted_as_checked() {
    let sandbox = Sandbox::new();
    let model = locate::fixture("tiny-llama");
    sandbox.apr(&format!("import {} -o m.apr", model.display())).ok();
    sandbox.apr("shard m.apr --size 200KB -o sh.apr").ok();
    let shards = sandbox.files();
    let second = shards.iter().find(|name| name.starts_with("sh-00002")).expect("a second shard");
    fs::remove_file(sandbox.path(second)).expect("ours");
    let report = sandbox.apr("validate sh.apr --json").fails(5, &[]).json();
    let checks = report["checks"].as_array().expect("a list");
    for check in ["digests", "finite", "zeros"] {
        let details = checks.iter().filter(|outcome| outcome["check"] == check);
        let counted = |outcome: &serde_json::Value| {
            let detail = outcome["detail"].as_str().expect("a text").to_owned();
            let digits = detail.split(' ').filter_map(|word| word.parse::<usize>().ok()).next();
            (outcome["status"].as_str().expect("a text").to_owned(), digits.expect("a count"))
        };
        let [(passed, seen), (skipped, unread)] = &details.map(counted).collect::<Vec<_>>()[..]
        else {
            panic!("{check}: {report}")
        };
        assert_eq!((passed.as_str(), skipped.as_str(), seen + unread), ("pass", "skipped", 21));
        assert!(*unread > 0, "{report}");
    }
}
