//! Checksums on every way to an answer or an output.

use std::fs;

use apr_registry::digest::Crc32;
use apr_testkit::apr2::Apr2Builder;
use apr_testkit::locate;
use apr_testkit::older::{Apr1Builder, dialect_a, f32s};

use crate::support::{Run, Sandbox, small_safetensors, sound};

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
    run.to_string().contains("E004")
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
    sandbox.write("secret", "a secret of more than sixteen bytes");
    for line in [
        "run changed.apr --prompt 12+34=",
        "run changed.apr --prompt 12+34= --json",
        "trace changed.apr --prompt 1+1=",
        "canary create changed.apr --prompt 12+34= -o canary.json",
        "imatrix changed.apr --text text.txt -o i.gguf",
        "convert changed.apr -o x.safetensors",
        "prune changed.apr --prune 0.5 --target lm_head.weight --dry-run",
        "convert changed.apr --prune 0.5 --target lm_head.weight --dry-run -o x.apr",
        "factorize changed.apr --rank 4 --target lm_head.weight --dry-run",
        "watermark detect changed.apr --key secret",
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

/// A copy of a fixture with a bit of a byte changed, and the file as it was.
fn changed_fixture(name: &str, at: usize, bit: u8) -> (Vec<u8>, Vec<u8>) {
    let sound = fs::read(locate::fixture(name)).expect("a fixture");
    let mut changed = sound.clone();
    changed[at] ^= bit;
    (sound, changed)
}

#[test]
fn commands_that_copy_tensors_write_no_damaged_ones() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors()).with("pw", "word\n");
    sandbox.apr("convert m.safetensors -o m.pt").ok();
    // Without digests, only the CRC-32 of the file covers the tensors.
    sandbox.write("m.apr", Apr2Builder { digests: false, ..sound() }.build());
    sandbox.write("damaged.pt", flip(&sandbox, "m.pt"));
    sandbox.write("damaged.apr", flip(&sandbox, "m.apr"));
    let saved = locate::fixture("lora/lora");
    let config = fs::read(saved.join("adapter_config.json")).expect("a configuration");
    let weights = saved.join("adapter_model.safetensors");
    sandbox.apr(&format!("convert {} -o adapter_model.bin", weights.display())).ok();
    sandbox.write("adapter/adapter_config.json", config);
    sandbox.write("adapter/adapter_model.bin", flip(&sandbox, "adapter_model.bin"));
    let base = locate::fixture("lora/llama");
    let before = [sandbox.read("damaged.pt"), sandbox.read("damaged.apr")];
    for line in [
        "edit damaged.pt --rename steps=step".to_owned(),
        "edit damaged.pt --drop steps -o out.pt".to_owned(),
        format!("edit damaged.apr --set description={}", "x".repeat(4000)),
        "encrypt damaged.pt -o out.apr --password-file pw".to_owned(),
        "encrypt damaged.apr -o out.apr --password-file pw".to_owned(),
        "shard damaged.apr --size 1KB -o out.apr".to_owned(),
        "shard damaged.pt --size 1KB -o out.apr".to_owned(),
        format!("lora convert adapter --base {} -o out.gguf", base.display()),
    ] {
        let run = sandbox.apr(&line).fails(5, &["CRC-32"]);
        assert!(is_told(&run), "{line}: {run}");
    }
    // The plan was made of the damaged file, which another plan would not mend.
    for damaged in ["damaged.pt", "damaged.apr"] {
        sandbox.apr(&format!("plan --parts 1 -o p.json -f convert {damaged} -o out.apr")).ok();
        let run = sandbox.apr("run-part p.json 0").fails(5, &["E004", "CRC-32"]);
        assert!(!run.stderr.contains("plan"), "{run}");
    }
    assert_eq!(before, [sandbox.read("damaged.pt"), sandbox.read("damaged.apr")]);
    let written = sandbox.files();
    assert!(!written.iter().any(|name| name.starts_with("out")), "{written:?}");
}

#[test]
fn a_damaged_adapter_is_blamed_and_not_its_base() {
    let sandbox = Sandbox::new();
    let saved = locate::fixture("lora/lora");
    let weights = saved.join("adapter_model.safetensors");
    sandbox.apr(&format!("convert {} -o adapter_model.bin", weights.display())).ok();
    let config = fs::read(saved.join("adapter_config.json")).expect("a configuration");
    sandbox.write("adapter/adapter_config.json", config);
    sandbox.write("adapter/adapter_model.bin", flip(&sandbox, "adapter_model.bin"));
    let base = locate::fixture("lora/llama");
    let line = format!("merge {} --lora adapter -o out.apr", base.display());
    sandbox.apr(&line).fails(5, &["E004", "adapter_model.bin"]);
}

/// numpy: "Bad CRC-32 for file 'f4_C.npy'".
#[test]
fn a_damaged_stream_of_an_npz_is_an_error_and_no_array_is_dropped() {
    let (sound, changed) = changed_fixture("numpy/deflated.npz", 232, 1);
    let sandbox = Sandbox::new().with("m.npz", sound).with("changed.npz", changed);
    sandbox.apr("validate m.npz").ok();
    for line in ["validate changed.npz", "convert changed.npz -o out.safetensors"] {
        let run = sandbox.apr(line);
        assert!(![Some(0)].contains(&run.code), "{line}: {run}");
        run.says(&["E00"]);
    }
    assert!(!sandbox.path("out.safetensors").exists());
}

/// Python's zipfile: "Error -3 while decompressing data" or "Bad CRC-32" for the same entries.
#[test]
fn a_damaged_entry_of_an_archive_is_a_finding_and_the_others_are_checked() {
    let sandbox = Sandbox::new();
    for (fixture, at, bit, code, name, checked) in [
        // The stream of an array, whose header is read with it.
        ("numpy/deflated.npz", 198, 1, "E002", "f4_C", 10),
        // The stream of a storage, and a text beside the weights.
        ("torch/deflated.pt", 2893, 1, "E002", "long", 4),
        ("keras/small.keras", 3727, 1, "E004", "config.json", 9),
    ] {
        let file = fixture.replace('/', "-");
        sandbox.write(&file, changed_fixture(fixture, at, bit).1);
        let run = sandbox.apr(&format!("validate {file}"));
        run.fails(5, &["FAIL  Structure         1 error", code, name, "INVALID"]);
        let report = sandbox.apr(&format!("validate {file} --json")).fails(5, &[]).json();
        let errors = report["findings"].as_array().expect("a list").iter();
        let errors: Vec<_> = errors.filter(|it| it["level"] == "error").collect();
        assert_eq!((errors.len(), &errors[0]["code"]), (1, &code.into()), "{report}");
        let checks = report["checks"].as_array().expect("a list");
        let of = |check: &str, status: &str| {
            let mut found = checks.iter().filter(|it| it["check"] == check);
            let found = found.find(|it| it["status"] == status).map(|it| it["detail"].to_string());
            found.unwrap_or_default()
        };
        assert!(of("finite", "pass").contains(&format!("in {checked} tensors")), "{report}");
        let is_tensor = name != "config.json";
        assert_eq!(of("finite", "skipped").contains("1 tensor not read"), is_tensor, "{report}");
        for line in ["convert FILE -o out.apr", "import FILE -o out.apr", "tensors FILE --stats"] {
            let run = sandbox.apr(&line.replace("FILE", &file));
            assert!([Some(4), Some(5)].contains(&run.code), "{line}: {run}");
            run.says(&[code, name]);
        }
        sandbox.apr(&format!("inspect {file}")).ok();
    }
    assert!(!sandbox.path("out.apr").exists());
}

#[test]
fn a_copy_of_damaged_tensors_is_refused_and_a_change_in_place_states_what_was_not_read() {
    let sandbox = signed_and_changed();
    for line in [
        "edit MODEL --set description=x",
        "sign MODEL --key key.pem",
        "license issue MODEL --key key.pem --licensee Anna",
    ] {
        let line = line.replace("MODEL", "changed.apr");
        sandbox.apr(&format!("{line} -o out.apr")).fails(5, &["E004", "digest"]);
        assert!(!sandbox.path("out.apr").exists(), "{line}");
        sandbox.apr(&line).ok().says(&["unverified: the tensors were not read"]);
        let json = sandbox.apr(&format!("{} --json", line.replace("=x", "=y"))).ok().json();
        assert_eq!(json["unverified"], "tensors", "{json}");

        let line = line.replace("changed.apr", "m.apr");
        let json = sandbox.apr(&format!("{line} -o out.apr --json")).ok().json();
        assert!(json.get("unverified").is_none(), "the copy was compared: {json}");
        fs::remove_file(sandbox.path("out.apr")).expect("it was written");
    }
}

/// Python's gzip and h5py refuse the same files.
#[test]
fn checksums_of_compressed_chunks_and_of_hdf5_structures_are_compared() {
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(locate::fixture("orbax/codecs")).expect("a fixture").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        if entry.path().is_file() {
            sandbox.write(&format!("z/{name}"), fs::read(entry.path()).expect("a file"));
            continue;
        }
        for file in fs::read_dir(entry.path()).expect("a folder").flatten() {
            let inner = file.file_name().into_string().expect("a name");
            sandbox.write(&format!("z/{name}/{inner}"), fs::read(file.path()).expect("a file"));
        }
    }
    sandbox.apr("validate z").ok();
    let chunk = sandbox.read("z/params.gzip/0.0");
    // The checksum at the end, and a byte of the stream that decodes to other values.
    for (at, bit) in [(16, 4), (chunk.len() - 8, 1)] {
        let mut changed = chunk.clone();
        changed[at] ^= bit;
        sandbox.write("z/params.gzip/0.0", changed);
        sandbox.apr("validate z").fails(5, &["E004", "params.gzip"]);
        sandbox.apr("convert z -o out.safetensors").fails(5, &["E004", "params.gzip"]);
    }
    // h5py: "incorrect metadata checksum".
    for at in [25414, 4151, 8079, 10238, 11284] {
        let (_, changed) = changed_fixture("keras/newest.h5", at, 4);
        sandbox.write("changed.h5", changed);
        let run = sandbox.apr("convert changed.h5 -o out.safetensors").fails(5, &["E004"]);
        run.says(&["the checksum of an HDF5 structure does not match its bytes"]);
    }
    assert!(!sandbox.path("out.safetensors").exists());
}

/// The first shard has the metadata under its CRC-32, and the manifest only repeats them.
#[test]
fn a_manifest_that_contradicts_its_first_shard_is_an_error() {
    let sandbox = Sandbox::new();
    let model = locate::fixture("tiny-llama");
    sandbox.apr(&format!("convert {} --shard-size 300KB -o m.apr", model.display())).ok();
    sandbox.apr("validate m.apr").ok();
    let manifest = String::from_utf8(sandbox.read("m.apr")).expect("JSON");
    let changed = manifest.replace("\"rope_theta\":10000.0", "\"rope_theta\":50000.0");
    assert_ne!(manifest, changed);
    sandbox.write("m.apr", changed);
    sandbox.apr("validate m.apr").fails(5, &["E004", "'architecture'"]);
    sandbox.apr("run m.apr --prompt 12+34=").fails(5, &["E004"]);
    sandbox.apr("convert m.apr -o out.safetensors").fails(5, &["E004", "m.apr"]);
}
