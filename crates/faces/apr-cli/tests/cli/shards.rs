//! Models in several .apr files: `shard`, `join`, `convert --shard-size`, and every command on a
//! manifest.

use apr_testkit::corrupt;
use serde_json::{Value, json};

use crate::support::{
    Sandbox, f32s, model_folder, safetensors, safetensors_header, small_safetensors, wait_until,
};

/// Five tensors in `whole.apr`, and the same in three shards under `cut.apr`.
fn sharded() -> Sandbox {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o whole.apr").clean();
    sandbox.apr("shard whole.apr --size 130 -o cut.apr").clean();
    sandbox
}

const SHARDS: [&str; 3] =
    ["cut-00001-of-00003.apr", "cut-00002-of-00003.apr", "cut-00003-of-00003.apr"];

fn manifest(sandbox: &Sandbox) -> Value {
    serde_json::from_slice(&sandbox.read("cut.apr")).expect("a manifest is JSON")
}

#[test]
fn joining_shards_restores_the_original_file() {
    let sandbox = sharded();
    assert_eq!(manifest(&sandbox)["shard_count"], 3);
    sandbox.apr("join cut.apr -o joined.apr").clean().says(&["cut.apr", "joined.apr", "5 tensors"]);
    assert_eq!(sandbox.read("joined.apr"), sandbox.read("whole.apr"));
    // By way of `convert`, too.
    sandbox.apr("convert m.safetensors -o by.apr --shard-size 130").clean();
    sandbox.apr("join by.apr -o by-joined.apr").clean();
    assert_eq!(sandbox.read("by-joined.apr"), sandbox.read("whole.apr"));
    // Of the size that a plain file has, there is a plain file.
    sandbox.apr("shard whole.apr --size 1GB -o one.apr").clean();
    assert_eq!(sandbox.read("one.apr"), sandbox.read("whole.apr"));
}

#[cfg(unix)]
#[test]
fn a_manifest_has_the_ending_by_which_readers_know_it() {
    let sandbox = sharded();
    let advice = "the name of a manifest ends in .apr; an export with --shard-size writes";
    sandbox.apr("shard whole.apr --size 130 -o cut").fails(4, &["E001", advice]);
    sandbox.apr("export whole.apr --format safetensors --shard-size 130 -o folder").ok();
    assert!(sandbox.path("folder/model.safetensors.index.json").is_file());
}

#[test]
fn a_model_from_a_pipe_is_cut_too() {
    let sandbox = sharded();
    for model in ["m.safetensors", "whole.apr"] {
        sandbox
            .shell(&format!(r#"cat {model} | "$APR" shard - --size 130 -o piped.apr -f"#))
            .clean();
        sandbox.apr("join piped.apr -o joined.apr -f").clean();
        sandbox.apr("diff joined.apr whole.apr --exit-code").clean();
    }
}

#[test]
fn alignment_and_streaming_survive() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o whole.apr --align 32 --streaming").clean();
    sandbox.apr("shard whole.apr --size 130 -o cut.apr").clean();
    sandbox.apr("inspect cut.apr").clean().says(&["ALIGNED_32", "SHARDED", "STREAMING"]);
    sandbox.apr("join cut.apr -o joined.apr").clean();
    assert_eq!(sandbox.read("joined.apr"), sandbox.read("whole.apr"));
}

#[test]
fn a_folder_with_its_companions_is_cut_and_comes_back() {
    let sandbox = Sandbox::new();
    model_folder(&sandbox, "folder");
    sandbox.apr("convert folder -o whole.apr").ok();
    sandbox.apr("shard whole.apr --size 100 -o cut/model.apr").ok();
    let inspected = sandbox.apr("inspect cut --json").ok().json();
    let whole = sandbox.apr("inspect whole.apr --json").ok().json();
    assert_eq!(
        (&inspected["companions"], &inspected["metadata"]),
        (&whole["companions"], &whole["metadata"])
    );
    sandbox.apr("join cut -o joined.apr").ok();
    assert_eq!(sandbox.read("joined.apr"), sandbox.read("whole.apr"));
}

#[test]
fn every_command_reads_a_manifest_as_one_model() {
    let sandbox = sharded();
    let inspected = sandbox.apr("inspect cut.apr --json").clean().json();
    let whole = sandbox.apr("inspect whole.apr --json").clean().json();
    for key in ["parameters", "tensor_count", "tensor_bytes", "dtypes", "metadata", "companions"] {
        assert_eq!(inspected[key], whole[key], "{key}");
    }
    assert_eq!(inspected["format"], json!(&apr_registry::apr2::FORMAT));
    sandbox.apr("inspect cut.apr").clean().says(&["Manifest and shards", "cut-00002-of-00003.apr"]);
    let names = |model: &str| {
        let listed = sandbox.apr(&format!("tensors {model} --stats --json")).clean().json();
        let rows = listed["tensors"].as_array().expect("rows").clone();
        rows.into_iter().map(|row| (row["name"].clone(), row["stats"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(names("cut.apr"), names("whole.apr"));
    sandbox.apr("validate cut.apr").clean().says(&[
        "CRC-32 of 3 shards",
        "BLAKE3 of 5 tensors",
        "VALID",
    ]);
    sandbox.apr("diff cut.apr whole.apr --exit-code").clean();
    sandbox.apr("debug cut.apr").clean();
    sandbox.apr("lint cut.apr").ok();
    sandbox.apr("export cut.apr -o back.safetensors").ok();
    assert_eq!(sandbox.read("back.safetensors"), small_safetensors());
}

#[test]
fn a_folder_of_shards_opens_by_its_manifest() {
    let sandbox = sharded();
    let files = SHARDS.iter().chain(&["cut.apr"]);
    files.for_each(|name| sandbox.write(&format!("folder/{name}"), sandbox.read(name)));
    sandbox.apr("validate folder").clean().says(&["VALID", "5 tensors"]);
    std::fs::remove_file(sandbox.path("folder/cut.apr")).expect("it is there");
    sandbox
        .apr("inspect folder")
        .fails(3, &["E007", "shard 1 of 3", "does not contain the manifest"]);
}

#[test]
fn a_shard_alone_opens_as_what_it_is() {
    let sandbox = sharded();
    sandbox.apr("tensors cut-00002-of-00003.apr").ok();
    sandbox.apr("inspect cut-00002-of-00003.apr").ok().says(&["shard 2 of 3 only", "manifest"]);
    sandbox.apr("validate cut-00002-of-00003.apr").says(&["shard 2 of 3 only"]);
}

#[test]
fn a_missing_shard_is_reported_and_the_other_shards_are_shown() {
    for absent in SHARDS {
        let sandbox = sharded();
        std::fs::remove_file(sandbox.path(absent)).expect("it is there");
        sandbox.apr("inspect cut.apr").ok().says(&[
            absent,
            "E007",
            "Parameters:",
            "one of 3 shards",
        ]);
        sandbox.apr("tensors cut.apr").ok().says(&["layers.1.weight", "steps"]);
        sandbox
            .apr("tensors cut.apr --stats")
            .fails(3, &["E007", absent, "cut.apr names this shard"]);
        sandbox.apr("validate cut.apr").fails(5, &["E007", absent, "INVALID"]);
        sandbox.apr("diff cut.apr whole.apr").fails(3, &["E007", absent]);
        let before = sandbox.files();
        sandbox.apr("convert cut.apr -o t.safetensors").fails(3, &["E007", absent]);
        sandbox.apr("join cut.apr -o t.apr").fails(3, &["E007", absent]);
        sandbox.apr("shard cut.apr --size 50 -o t.apr").fails(3, &["E007", absent]);
        assert_eq!(sandbox.files(), before);
        let lost = manifest(&sandbox)["tensor_shard_map"].clone();
        let number = SHARDS.iter().position(|shard| *shard == absent).expect("one of three");
        for (name, shard) in lost.as_object().expect("an object") {
            let run = sandbox.apr(&format!("tensors cut.apr --stats --filter {name}"));
            let expected = if *shard == json!(number) { 3 } else { 0 };
            assert_eq!(run.code, Some(expected), "{name}: {run}");
        }
    }
}

/// A model in shards of a layout: how it is opened, and the files of its shards.
fn layouts(sandbox: &Sandbox) -> [(&'static str, Vec<String>); 2] {
    let llama = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    let folder = "--format safetensors --shard-size 200KB -o st";
    sandbox.apr(&format!("convert {llama} {folder}")).ok();
    sandbox.apr(&format!("convert {llama} --shard-size 300KB -o g.gguf")).ok();
    let shards = |stem: &str, count: usize, extension: &str| -> Vec<String> {
        (1..=count).map(|at| format!("{stem}-{at:05}-of-{count:05}.{extension}")).collect()
    };
    [
        ("st", shards("st/model", 4, "safetensors")),
        ("g-00001-of-00003.gguf", shards("g", 3, "gguf")),
    ]
}

#[test]
fn a_missing_shard_of_any_layout_is_named_and_the_others_are_checked() {
    let sandbox = Sandbox::new();
    for (model, shards) in layouts(&sandbox) {
        let absent = shards[1].rsplit('/').next().expect("a name");
        let whole = sandbox.apr(&format!("tensors {model} --json")).ok().json();
        let listed = |report: &Value| report["tensors"].as_array().expect("an array").len();
        let bytes = sandbox.read(&shards[1]);
        std::fs::remove_file(sandbox.path(&shards[1])).expect("it is there");

        let shown = sandbox.apr(&format!("tensors {model} --json")).ok().json();
        let gone = listed(&whole) - listed(&shown);
        assert!(gone > 0 && listed(&shown) > 0, "{model}");
        let run = sandbox.apr(&format!("validate {model}"));
        let unread = format!("{gone} tensors not read: their shards are absent or damaged");
        run.fails(5, &["E007", absent, "INVALID", "Names and shapes", &unread]);
        let findings = sandbox.apr(&format!("validate {model} --json")).json();
        let findings = findings["findings"].as_array().expect("an array").clone();
        let errors: Vec<&Value> = findings.iter().filter(|it| it["level"] == "error").collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!((&errors[0]["code"], &errors[0]["file"]), (&json!("E007"), &json!(absent)));
        for command in ["inspect", "tensors", "lint", "explain"] {
            sandbox.apr(&format!("{command} {model}")).ok().says(&["E007", absent, "shards"]);
        }

        let before = sandbox.files();
        for job in [
            "convert MODEL -o t.apr",
            "convert MODEL --dry-run -o t.apr",
            "import MODEL -o t.apr",
            "tensors MODEL --stats",
            "run MODEL --tokens 1,2",
            "diff MODEL MODEL",
            "merge MODEL MODEL -o t.apr",
        ] {
            let run = sandbox.apr(&job.replace("MODEL", model));
            run.fails(3, &["E007", absent]);
        }
        assert_eq!(sandbox.files(), before);

        // A damaged shard is no reason to say nothing of the others either.
        sandbox.write(&shards[1], &bytes[..bytes.len() / 2]);
        sandbox.apr(&format!("validate {model}")).fails(5, &["E002", absent, "INVALID", &unread]);
        sandbox.write(&shards[1], bytes);
        sandbox.apr(&format!("validate {model}")).ok();
    }
}

#[test]
fn a_folder_without_the_first_part_of_its_gguf_model_has_a_report() {
    let sandbox = Sandbox::new();
    let llama = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    sandbox.apr(&format!("convert {llama} --shard-size 300KB -o g/m.gguf")).ok();
    std::fs::remove_file(sandbox.path("g/m-00001-of-00003.gguf")).expect("it is there");
    let absent = "m-00001-of-00003.gguf";
    sandbox.apr("validate g").fails(5, &["E007", absent, "INVALID", "pass  Zero tensors"]);
    sandbox.apr("inspect g").ok().says(&["one of 3 shards can't be read", absent]);
    sandbox.apr("convert g -o t.apr").fails(3, &["E007", absent]);
    // Another model beside it is another model.
    sandbox.write("g/other.gguf", sandbox.read("g/m-00003-of-00003.gguf"));
    sandbox.apr("validate g").fails(4, &["2 models", "m-00002-of-00003.gguf, other.gguf"]);
}

#[test]
fn the_library_opens_a_model_without_a_shard_for_reports_only() {
    let sandbox = Sandbox::new();
    for (model, shards) in layouts(&sandbox) {
        std::fs::remove_file(sandbox.path(&shards[1])).expect("it is there");
        let path = sandbox.path(model);
        let open = || apr::Model::open(&path).expect("the other shards");
        assert!(!open().validate(apr::report::ValidateOptions::default()).expect("one").valid);
        let failed = apr::convert(open()).write(sandbox.path("t.apr")).expect_err("a part");
        assert!(failed.to_string().contains("E007"), "{failed}");
    }
}

#[test]
fn validate_names_every_shard_that_is_wrong() {
    let sandbox = sharded();
    std::fs::remove_file(sandbox.path(SHARDS[0])).expect("it is there");
    let longer = [sandbox.read(SHARDS[1]), vec![0]].concat();
    sandbox.write(SHARDS[1], longer);
    let mut other = sandbox.read(SHARDS[2]);
    let crc_at = other.len() - 16;
    other[crc_at] ^= 1;
    sandbox.write(SHARDS[2], other);
    let report = sandbox.apr("validate cut.apr --json");
    assert_eq!(report.code, Some(5));
    let report = report.json();
    let findings = report["findings"].as_array().expect("an array");
    let named: Vec<_> = findings.iter().map(|f| (f["code"].as_str(), f["file"].as_str())).collect();
    let expected = [("E007", SHARDS[0]), ("E002", SHARDS[1]), ("E004", SHARDS[2])];
    assert_eq!(named, expected.map(|(code, file)| (Some(code), Some(file))));
}

#[test]
fn no_flipped_bit_of_a_shard_passes_validation() {
    let sandbox = sharded();
    let sound = sandbox.read(SHARDS[1]);
    // One bit of each stretch of the file: each run is a process.
    for (at, flipped) in
        corrupt::bit_flips(&sound, 0..sound.len()).enumerate().step_by(sound.len() * 8 / 24 + 1)
    {
        sandbox.write(SHARDS[1], flipped);
        let run = sandbox.apr("validate cut.apr");
        assert!([Some(4), Some(5)].contains(&run.code), "bit {at}: {run}");
        assert!(run.to_string().contains(SHARDS[1]), "bit {at}: {run}");
    }
}

#[test]
fn a_file_that_is_not_a_manifest_is_not_joined_and_no_shard_is_overwritten() {
    let sandbox = sharded();
    sandbox.apr("join whole.apr -o t.apr").fails(2, &["not a manifest", "apr convert"]);
    sandbox.apr(&format!("join cut.apr -o {} -f", SHARDS[0])).fails(2, &["one of the shards"]);
    sandbox.apr("join cut.apr -o whole.apr").fails(1, &["already exists"]);
    sandbox.apr("shard whole.apr --size 130 -o cut.apr").fails(1, &["already exists"]);
    sandbox
        .apr("shard whole.apr --size 0 -o t.apr")
        .fails(2, &["shard size must be 1 byte or more"]);
    sandbox.apr("shard whole.apr --size 130 -o t").fails(4, &["ends in .apr"]);
    sandbox.apr("shard whole.apr --size 130 -o -").fails(2, &["several files"]);
    sandbox.apr("convert whole.apr -o t.pt --shard-size 130").fails(2, &["--shard-size works for"]);
    sandbox
        .apr("convert whole.apr -o t.gguf --streaming")
        .fails(2, &["--streaming works for .apr"]);
    sandbox.apr("validate cut.apr").clean();
}

#[test]
fn the_joined_file_can_replace_the_manifest_and_the_manifest_the_file() {
    let sandbox = sharded();
    let whole = sandbox.read("whole.apr");
    sandbox.apr("join cut.apr -o cut.apr -f").clean();
    assert_eq!(sandbox.read("cut.apr"), whole);
    sandbox.apr("shard whole.apr --size 130 -o whole.apr -f").clean();
    sandbox.apr("diff whole.apr cut.apr --exit-code").clean();
}

#[cfg(unix)]
#[test]
fn a_join_or_split_that_dies_halfway_loses_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write_sparse("m.safetensors", 64 << 20);
    sandbox.apr("export m.safetensors --format apr -o whole.apr").ok();
    let tensors: Vec<_> = (0..4)
        .map(|i| (["a", "b", "c", "d"][i], "F32", &[1_u64 << 19][..], f32s(&[0.5; 1 << 19])))
        .collect();
    sandbox.write("n.safetensors", safetensors(&tensors));
    sandbox.apr("export n.safetensors --format apr -o n.apr").ok();
    let before = sandbox.files();
    sandbox.shell(r#"ulimit -f 5000; exec "$APR" shard n.apr --size 3MB -o cut.apr"#).fails(0, &[]);
    sandbox.apr("validate cut.apr").ok();
    let after = sandbox.files();
    assert_eq!(after.len(), before.len() + 5);
    let manifest = sandbox.read("cut.apr");
    sandbox
        .shell(r#"ulimit -f 5000; exec "$APR" join cut.apr -o cut.apr -f"#)
        .fails(1, &["E007", "File too large"]);
    assert_eq!((sandbox.files(), sandbox.read("cut.apr")), (after.clone(), manifest.clone()));
    sandbox
        .shell(r#"ulimit -f 5000; exec "$APR" shard n.apr --size 6MB -o cut.apr -f"#)
        .fails(1, &["E007", "File too large"]);
    assert_eq!((sandbox.files(), sandbox.read("cut.apr")), (after, manifest));
    sandbox.apr("validate cut.apr").ok();
    wait_until("nothing is left behind", || {
        sandbox.files().iter().all(|name| !name.contains("partial"))
    });
}

#[test]
fn hostile_manifests_are_refused_by_every_command() {
    let sandbox = sharded();
    let changes: [(&str, Value, &str); 5] = [
        ("/shards/0/file", json!("../whole.apr"), "plain file name"),
        ("/shards/0/file", json!("/etc/passwd"), "plain file name"),
        ("/shards/0/file", json!("cut.apr"), "names itself"),
        ("/shard_count", json!(1_u64 << 32), "but lists 3"),
        ("/shards/0/crc32", json!("xyz"), "8 hexadecimal digits"),
    ];
    let sound = manifest(&sandbox);
    for (pointer, value, says) in changes {
        let mut hostile = sound.clone();
        *hostile.pointer_mut(pointer).expect("it is there") = value;
        sandbox.write("cut.apr", hostile.to_string());
        for command in ["inspect", "tensors", "validate", "debug", "lint"] {
            sandbox.apr(&format!("{command} cut.apr")).fails(4, &[says]);
        }
        sandbox.apr("join cut.apr -o t.apr").fails(4, &[says]);
        sandbox.apr("convert cut.apr -o t.safetensors").fails(4, &[says]);
    }
    assert!(sandbox.files().iter().all(|name| !name.starts_with("t.")));
}

#[test]
fn streaming_puts_tensors_in_the_order_of_their_use() {
    let one = |name| (name, "F32", &[1_u64][..], f32s(&[1.0]));
    let names = [
        "lm_head.weight",
        "model.layers.10.w",
        "model.layers.9.w",
        "model.norm.weight",
        "model.wte",
    ];
    let sandbox = Sandbox::new().with("m.safetensors", safetensors(&names.map(one)));
    sandbox.apr("convert m.safetensors -o m.apr --streaming").ok();
    let listed = sandbox.apr("tensors m.apr --json").clean().json();
    let listed: Vec<_> =
        listed["tensors"].as_array().expect("rows").iter().map(|row| row["name"].clone()).collect();
    assert_eq!(
        listed,
        [
            "model.wte",
            "model.layers.9.w",
            "model.layers.10.w",
            "model.norm.weight",
            "lm_head.weight"
        ]
    );
    sandbox.apr("inspect m.apr").clean().says(&["STREAMING"]);
    // A front that is not within the first 8 MiB makes no such file, and that is said.
    let header = json!({
        "__metadata__": {"note": "w".repeat(9 << 20)},
        "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
    });
    sandbox.write("long.safetensors", [safetensors_header(&header), vec![1, 2, 3, 4]].concat());
    sandbox
        .apr("convert long.safetensors -o long.apr --streaming")
        .ok()
        .says(&["STREAMING", "8 MiB"]);
    let flags = sandbox.apr("inspect long.apr --json").clean().json()["header"]["flags"].clone();
    assert_eq!(flags, json!(["ALIGNED_64"]));
}
