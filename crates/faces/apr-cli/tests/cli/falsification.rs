//! Claims about headers, inspection, round trips and comparison, over APRN files and today's
//! containers.

use apr_registry::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::corrupt::overwrite;
use serde_json::Value;

use crate::container::{stored, weights, workshop};
use crate::golden::tiny_llama;
use crate::qa_container::{KINDS, every_kind};
use crate::support::{Sandbox, f32s, safetensors, scrambled};

/// A file of the older formats.
fn older(name: &str) -> Vec<u8> {
    let path = format!("{}/../../../fixtures/valid/aprn/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).expect("a fixture")
}

const OLDER: [&str; 3] = ["kmeans.apr", "card-licence-zstd19.apr", "recipient-x09.apr"];

#[test]
fn falsification_01_to_03_magic_version_and_size_of_the_header() {
    for name in OLDER {
        let file = older(name);
        assert!(file.starts_with(b"APRN"));
        let sandbox = Sandbox::new().with("m.apr", &file);
        sandbox.apr("inspect m.apr").ok().says(&["APRN"]);
        sandbox.write("m.apr", overwrite(&file, 0, b"APRZ"));
        sandbox.apr("inspect m.apr").fails(4, &["E001"]);
        // Version 1.0 loads, and 9.0 is for a newer program.
        assert_eq!(file[4..6], [1, 0]);
        sandbox.write("m.apr", overwrite(&file, 4, &[9, 0]));
        sandbox.apr("inspect m.apr").fails(4, &["E003"]);
        // 32 bytes are the header: no fewer are enough.
        for len in 0..32 {
            sandbox.write("m.apr", &file[..len]);
            let run = sandbox.apr("inspect m.apr");
            assert_eq!(run.code, Some(4), "{len} bytes: {run}");
        }
    }
}

#[test]
fn falsification_04_the_checksum_detects_every_flipped_bit() {
    for name in OLDER {
        let sandbox = Sandbox::new().with("m.apr", older(name));
        let file = older(name);
        // apr-format's own tests flip every bit; here the command's verdict counts.
        for bit in (0..file.len() * 8).step_by(61) {
            let mut broken = file.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            sandbox.write("m.apr", broken);
            let run = sandbox.apr("validate m.apr");
            assert!(matches!(run.code, Some(4 | 5)), "{name}, bit {bit}: {run}");
        }
    }
}

#[test]
fn falsification_05_compressed_is_never_larger_than_raw() {
    let noise: Vec<u8> = (0..9000).flat_map(|i| scrambled(i).to_le_bytes()).collect();
    let bytes = safetensors(&[
        ("noise", "U8", &[72_000], noise.clone()),
        ("one", "F32", &[1], noise[..4].to_vec()),
        ("weights", "F32", &[18_000], noise),
    ]);
    let sandbox = Sandbox::new().with("m.safetensors", bytes);
    for codec in ["auto", "lz4", "zstd:22", "best"] {
        sandbox
            .apr(&format!("convert m.safetensors -o m.apr -f --relaxed --compress={codec}"))
            .ok();
        let file = sandbox.read("m.apr");
        for (name, raw) in [("noise", 72_000), ("one", 4), ("weights", 72_000)] {
            assert!(stored(&file, name).1 <= raw, "{name} with {codec}");
        }
    }
}

#[test]
fn falsification_06_inspect_reads_no_weights() {
    let sandbox = every_kind();
    for kind in &KINDS {
        let before = sandbox.apr(&format!("inspect {} --json", kind.model)).ok().text();
        let mut file = sandbox.read(kind.part);
        for tensor in ["table", "steps"] {
            let (start, size) = stored(&file, tensor);
            file[start..start + size].fill(0xa5);
        }
        sandbox.write(kind.part, file);
        assert_eq!(
            sandbox.apr(&format!("inspect {} --json", kind.model)).ok().text(),
            before,
            "{}",
            kind.model
        );
    }
}

#[cfg(unix)]
#[test]
fn falsification_06_inspect_of_a_large_model_uses_little_memory() {
    let entry = Apr2Entry {
        size: Some(4 << 30),
        dims: vec![4 << 30],
        ..Apr2Entry::new("zeros", DType::U8, &[0], &[])
    };
    let builder = Apr2Builder { digests: false, ..Apr2Builder::new().entry(entry) };
    let mut head = builder.build();
    let footer = head.split_off(head.len() - 16);
    let len = u64::from(builder.data_start()) + (4 << 30) + 16;
    let sandbox = Sandbox::new().with("m.apr", &head);
    sandbox.extend("m.apr", len, &[&footer[..8], &len.to_le_bytes()].concat());
    sandbox.shell(r#"ulimit -v 150000; exec "$APR" inspect m.apr"#).ok().says(&["4,294,967,296"]);
}

#[test]
fn falsification_07_the_vocabulary_size_matches_the_tokenizer() {
    let sandbox = workshop();
    tiny_llama(&sandbox);
    let json = |name: &str| -> Value { serde_json::from_slice(&sandbox.read(name)).expect("JSON") };
    let tokens = json("tiny-llama/tokenizer.json")["model"]["vocab"]
        .as_object()
        .expect("a vocabulary")
        .len();
    for line in [
        "import tiny-llama -o m.apr --compress",
        "import tiny-llama -o m.apr -f --recipient owner.pub",
        "convert tiny-llama -o m.apr -f --sign signer --shard-size 200KB",
    ] {
        sandbox.apr(line).ok();
        let report: Value = sandbox.apr("inspect m.apr --json").ok().json();
        assert_eq!(report["vocab_size"], tokens, "{line}");
    }
    // Two that contradict each other are not taken.
    let mut config = json("tiny-llama/config.json");
    config["vocab_size"] = (tokens + 1).into();
    sandbox.write("tiny-llama/config.json", config.to_string());
    sandbox.apr("import tiny-llama -o n.apr").fails(5, &["lm_head.weight", "vocab"]);
    assert!(!sandbox.path("n.apr").exists());
}

#[test]
fn falsification_08_every_metadata_field_is_optional() {
    let sandbox = Sandbox::new().with("m.apr", Apr2Builder::new().metadata("{}").build());
    for command in ["inspect", "tensors", "validate", "lint", "debug", "convert -o x.apr"] {
        sandbox.apr(&format!("{command} m.apr")).ok();
    }
}

#[test]
fn falsification_09_reports_are_valid_json() {
    let sandbox = every_kind();
    for kind in &KINDS {
        for command in ["inspect", "tensors --stats", "validate", "lint", "debug"] {
            let run = sandbox.apr(&format!("{command} {} --json --key owner", kind.model));
            assert_eq!(run.code, Some(0), "{command} {}: {run}", kind.model);
            let _: Value = run.json();
        }
    }
    let _: Value = sandbox.apr("verify signed.apr --trusted signer.pub --json").ok().json();
    let _: Value = sandbox.apr("verify signed.apr --trusted stranger.pub --json").json();
    let _: Value = sandbox.apr("sign plain.apr --key signer --json").ok().json();
    let _: Value = sandbox.apr("edit plain.apr --set a=1 --json").ok().json();
    let _: Value =
        sandbox.apr("license issue plain.apr --licensee Ann --key signer --json").ok().json();
    let _: Value = sandbox
        .apr("license check plain.apr --trusted signer.pub --licensee Ann --json")
        .ok()
        .json();
    let _: Value = sandbox.apr("keygen -o new --json").ok().json();
    let _: Value =
        sandbox.apr("encrypt plain.apr -o e.apr --recipient owner.pub --json").ok().json();
}

#[test]
fn falsification_16_and_18_every_container_restores_weights_without_a_pickle() {
    let sandbox = every_kind();
    for kind in &KINDS {
        sandbox.apr(&format!("export {} -o back.safetensors -f --key owner", kind.model)).ok();
        let back = sandbox.read("back.safetensors");
        assert!(back == weights(), "{}", kind.model);
        let header = u64::from_le_bytes(back[..8].try_into().expect("eight bytes"));
        let header = usize::try_from(header).expect("a short header");
        let _: Value = serde_json::from_slice(&back[8..8 + header]).expect("the header is JSON");
    }
}

#[test]
fn falsification_19_a_pickle_that_runs_code_is_not_imported() {
    let sandbox =
        Sandbox::new().with("m.bin", b"\x80\x02cos\nsystem\nX\x0a\x00\x00\x00touch owned\x85R.");
    let run = sandbox.apr("import m.bin -o m.apr");
    assert_eq!(run.code, Some(4), "{run}");
    assert_eq!(sandbox.files(), ["m.bin"]);
}

#[test]
fn falsification_20_quantization_makes_files_smaller() {
    let weights: Vec<f32> =
        (0..4096).map(|i| (scrambled(i) % 2001) as f32 / 50_000.0 - 0.02).collect();
    let sandbox = Sandbox::new()
        .with("m.safetensors", safetensors(&[("h.weight", "F32", &[64, 64], f32s(&weights))]));
    sandbox.apr("convert m.safetensors -o m.apr").ok();
    let full = sandbox.read("m.apr").len();
    for scheme in ["int8", "int4", "fp16", "q8_0", "q4_0"] {
        for more in ["", "--compress"] {
            let line =
                format!("convert m.safetensors -o q.apr -f --relaxed --quantize {scheme} {more}");
            sandbox.apr(&line).ok();
            assert!(sandbox.read("q.apr").len() < full, "{scheme} {more}");
        }
    }
}

#[test]
fn falsification_21_the_same_model_in_any_two_containers_does_not_differ() {
    let sandbox = every_kind();
    for kind in &KINDS {
        for other in ["plain.apr", "m.safetensors", kind.model] {
            let line = format!("diff {other} {} --tolerance 0 --exit-code --key owner", kind.model);
            sandbox.apr(&line).ok();
        }
    }
}
