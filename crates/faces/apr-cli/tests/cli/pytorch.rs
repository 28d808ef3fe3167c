//! PyTorch checkpoints through the command: read where they are harmless, reported where they are
//! not.

use std::fs;
use std::path::PathBuf;

use apr_testkit::locate;
use serde_json::json;

use crate::support::{Sandbox, small_safetensors};

/// A pickle of protocol 0 that makes a file when it is loaded.
const CANARY: &[u8] = b"cos\nsystem\n(S'touch canary'\ntR.";

#[test]
fn qa_77_a_malicious_pickle_is_refused_named_and_not_run() {
    let sandbox = Sandbox::new().with("m.pt", CANARY).with("m.bin", [b"\x80\x02", CANARY].concat());
    for file in ["m.pt", "m.bin"] {
        for line in ["inspect", "tensors", "debug", "convert -o x.apr", "import -o x.apr"] {
            let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
            sandbox
                .apr(&format!("{command} {file} {rest}"))
                .fails(4, &["E001", "os.system", "nothing was executed"]);
        }
        let run = sandbox.apr(&format!("validate {file}")).fails(5, &["DANGEROUS", "INVALID"]);
        run.says(&["import  os.system", "call    os.system", "GLOBAL at byte", "REDUCE at byte"]);
    }
    let report = sandbox.apr("validate m.pt --json").fails(5, &[]).json();
    let finding = &report["scan"]["pickles"][0]["findings"][0];
    assert_eq!((&finding["module"], &finding["name"]), (&json!("os"), &json!("system")));
    assert_eq!((&report["valid"], &finding["verdict"]), (&json!(false), &json!("dangerous")));
    assert_eq!(
        sandbox.files(),
        ["m.bin", "m.pt"],
        "the canary was not made, and nothing was written"
    );
}

/// `torch.jit.freeze` leaves no weight in the state dict.
#[test]
fn constants_of_a_frozen_program_are_counted_read_and_verified() {
    let file = locate::fixture("torch/frozen.pt");
    let bytes = fs::read(&file).expect("the fixture");
    let sandbox = Sandbox::new().with("m.pt", &bytes);
    let says = ["5 tensors, 1 file", "CRC-32 of 5 tensors", "none in 5 tensors", "\nVALID"];
    sandbox.apr("validate m.pt").ok().says(&says);
    let report = sandbox.apr("validate m.pt --json").ok().json();
    assert_eq!(report["bytes_read"], 432 + 16 + 320 + 20 + 40);

    let tensor = sandbox.apr("tensors m.pt --json").ok().json()["tensors"][2].clone();
    let at = tensor["offset"].as_u64().and_then(|at| usize::try_from(at).ok()).expect("an offset");
    let mut changed = bytes;
    changed[at] ^= 1;
    sandbox.write("m.pt", changed);
    sandbox.apr("validate m.pt").fails(5, &["E004", "CONSTANTS.c2", "INVALID"]);
}

#[test]
fn a_model_without_tensors_is_never_valid_without_a_warning() {
    let empty = [&2_u64.to_le_bytes()[..], b"{}"].concat();
    let sandbox = Sandbox::new().with("m.safetensors", empty);
    sandbox.apr("validate m.safetensors").ok().says(&["no weights were checked"]);
    sandbox
        .apr("validate m.safetensors --strict")
        .fails(5, &["no weights were checked", "INVALID"]);
}

#[test]
fn checkpoints_convert_to_the_same_tensors_in_every_format() {
    let golden = locate::workspace().join("crates/formats/apr-pytorch/tests/golden");
    let sandbox = Sandbox::new();
    for name in [
        "kinds.pt",
        "strided.pt",
        "strided_legacy.pt",
        "tied.pt",
        "module.pt",
        "script.pt",
        "nested.pt",
    ] {
        let path = golden.join(name);
        let path = path.to_str().expect("the workspace has a plain name");
        sandbox.run(&["import", path, "--from", "pytorch", "-o", "m.apr", "-f"]).ok();
        sandbox.apr("validate m.apr").ok();
        sandbox.run(&["diff", path, "m.apr", "--exit-code"]).ok().says(&["Similarity: 100%"]);
        sandbox.run(&["convert", path, "-o", "m.safetensors", "-f"]).ok();
        sandbox.run(&["diff", "m.safetensors", "m.apr", "--exit-code"]).ok().says(&["SAME"]);
    }
}

#[test]
fn the_checkpoints_of_others_are_valid() {
    let Some(folder) = locate::shared_data("pytorch") else { return };
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let path = path.to_str().expect("plain names");
        let run = sandbox.run(&["validate", path]);
        if path.ends_with("broken.pt") {
            run.fails(4, &["E001", "not a PyTorch file"]);
        } else {
            run.ok().says(&["VALID"]);
        }
    }
}

#[test]
fn a_folder_without_a_safer_format_is_read_from_its_pickle() {
    let weights =
        fs::read(locate::workspace().join("crates/formats/apr-pytorch/tests/golden/tied.pt"))
            .expect("a fixture");
    let sandbox = Sandbox::new()
        .with("model/pytorch_model.bin", weights)
        .with("model/config.json", r#"{"model_type": "bert", "vocab_size": 7}"#);
    sandbox.apr("inspect model").clean().says(&["bert", "PyTorch", "config.json"]);
}

#[test]
fn a_broken_file_of_another_format_is_not_taken_for_a_pickle() {
    let file = [b"APR2\x02\0\0\0\0\0\0\0\x20\0\0\0", CANARY].concat();
    let run = Sandbox::new().with("m.apr", file).apr("validate m.apr").fails(4, &["E002"]);
    assert!(!run.to_string().contains("os.system"), "{run}");
}

#[test]
fn a_bit_that_flipped_in_a_storage_is_noticed_by_its_checksum() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o m.pt").clean();
    sandbox.apr("validate m.pt").clean().says(&["pass  Tensor digests", "CRC-32 of "]);
    let info = sandbox.apr("tensors m.pt --json").ok().json()["tensors"][0].clone();
    let offset = usize::try_from(info["offset"].as_u64().expect("an offset")).expect("small");
    let mut bytes = sandbox.read("m.pt");
    bytes[offset] ^= 1;
    sandbox.write("m.pt", bytes);
    let name = info["name"].as_str().expect("a name");
    let what = format!("tensor '{name}': the CRC-32 of its bytes is ");
    sandbox.apr("validate m.pt").fails(5, &["E004", &what, "INVALID"]);
    for line in
        ["import m.pt -o m.apr", "convert m.pt -o x.safetensors", "export m.pt -o y.safetensors"]
    {
        sandbox.apr(line).fails(5, &["E004", &what]);
    }
    let error = sandbox.apr("convert m.pt -o x.apr --json").fails(5, &[]).json()["error"].clone();
    assert_eq!((&error["code"], &error["tensor"]), (&json!("E004"), &json!(name)));
    assert_eq!(error["offset"], offset, "{error}");
    sandbox.apr("import m.pt -o m.apr --relaxed").ok().says(&["1 error"]);
}

/// Returns a checkpoint with one bit of an entry's content flipped and the old checksum.
fn damaged(file: &[u8], entry: &str) -> Vec<u8> {
    let mut file = file.to_vec();
    let name = file
        .windows(entry.len())
        .position(|window| window == entry.as_bytes())
        .expect("the entry is there");
    let extra = usize::from(u16::from_le_bytes([file[name - 2], file[name - 1]]));
    file[name + entry.len() + extra] ^= 1;
    file
}

#[test]
fn weights_with_a_wrong_storage_checksum_are_rejected_by_every_command() {
    let golden = locate::workspace().join("crates/formats/apr-pytorch/tests/golden");
    let sandbox = Sandbox::new();
    for (name, entry) in [
        ("kinds.pt", "kinds/data/0"),
        ("strided.pt", "strided/data/0"),
        ("strided.pt", "strided/data/1"),
        ("quantized.pt", "quantized/data/0"),
        ("quantized_channels.pt", "quantized_channels/data/0"),
        ("sparse.pt", "sparse/data/2"),
        ("script.pt", "script/data/0"),
    ] {
        sandbox.write("m.pt", damaged(&fs::read(golden.join(name)).expect("a golden file"), entry));
        for line in [
            "convert m.pt -o x.apr",
            "export m.pt -o x.safetensors",
            "tensors m.pt --stats",
            "validate m.pt",
        ] {
            sandbox.apr(line).fails(5, &["E004", "the CRC-32 of its bytes is"]);
        }
        assert_eq!(sandbox.files(), ["m.pt"], "nothing was written");
    }
    sandbox.write(
        "m.pt",
        damaged(&fs::read(golden.join("strided.pt")).expect("a golden file"), "strided/data/0"),
    );
    for line in ["convert m.pt -o x.apr --relaxed", "export m.pt -o x.safetensors --relaxed"] {
        sandbox.apr(line).ok().says(&["the CRC-32 of its bytes is"]);
    }
}

#[test]
fn a_torch_script_program_is_copied_and_copies_of_shared_bytes_are_reported() {
    let golden = locate::workspace().join("crates/formats/apr-pytorch/tests/golden");
    let golden = golden.to_str().expect("the workspace has a plain name");
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("convert {golden}/script.pt -o x.apr")).ok();
    sandbox.apr("inspect x.apr").ok().says(&["torchscript/__torch__.py"]);
    sandbox.apr("convert x.apr --format safetensors -o folder").ok();
    let source =
        String::from_utf8(sandbox.read("folder/torchscript/__torch__.py")).expect("a source");
    assert!(source.contains("def forward"), "{source}");
    sandbox
        .apr(&format!("convert {golden}/strided.pt -o z.apr"))
        .ok()
        .says(&["conversions write separate copies"]);
    sandbox.apr(&format!("inspect {golden}/strided.pt")).ok().says(&["share bytes"]);
    sandbox.apr(&format!("convert {golden}/tied.pt -o t.apr")).clean();
}

/// A fixture by its place in `fixtures/`.
fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures").join(name);
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn compressed_entries_programs_arrays_and_mesh_shards_convert_alike() {
    let sandbox = Sandbox::new();
    for (name, tensors) in [
        ("torch/deflated.pt", 5),
        ("torch/program.pt2", 3),
        ("torch/lightning.ckpt", 2),
        ("torch/later.pt", 9),
        ("torch/mesh", 8),
        ("numpy/deflated.npz", 11),
        ("numpy/f4_F.npy", 1),
    ] {
        let model = fixture(name);
        sandbox.run(&["validate", &model]).ok().says(&["\nVALID"]);
        for target in ["out.apr", "out.safetensors"] {
            sandbox.run(&["convert", &model, "-o", target, "-f"]).ok();
            let report = sandbox.run(&["diff", &model, target, "--json"]).ok().json();
            assert_eq!(report["same"], true, "{name} -> {target}: {report:#}");
            assert_eq!(
                report["tensors"].as_array().map(Vec::len),
                Some(tensors),
                "{name} -> {target}"
            );
        }
    }
}

#[test]
fn eight_bit_floats_go_into_a_state_dict_and_come_back() {
    let sandbox = Sandbox::new();
    sandbox.run(&["convert", &fixture("torch/later.pt"), "-o", "a.apr"]).clean();
    sandbox.apr("convert a.apr -o b.pt").clean();
    sandbox.apr("convert b.pt -o c.apr").clean();
    let tensors =
        |name: &str| sandbox.run(&["tensors", name, "--json"]).clean().json()["tensors"].clone();
    let dtypes = |list: &serde_json::Value| {
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter()
            .map(|tensor| tensor["dtype"].as_str().unwrap_or("?").to_owned())
            .collect::<Vec<_>>()
    };
    let (a, c) = (dtypes(&tensors("a.apr")), dtypes(&tensors("c.apr")));
    assert_eq!(a, c);
    assert!(
        ["f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0"]
            .iter()
            .all(|dtype| a.contains(&(*dtype).into()))
    );
    assert_eq!(sandbox.apr("diff a.apr c.apr --json").clean().json()["same"], true);
}

#[test]
fn a_file_of_a_distributed_checkpoint_points_to_its_folder() {
    let sandbox = Sandbox::new();
    let run = sandbox.run(&["inspect", &fixture("torch/mesh/__0_0.distcp")]);
    run.fails(4, &["E001", "one file of a distributed checkpoint", ".metadata"]);
    sandbox.run(&["inspect", &fixture("torch/mesh/.metadata")]).clean().says(&["Tensors:     8"]);
    let kind = |name: &str| sandbox.run(&["inspect", &fixture(name)]).ok().says(&["Kind:"]);
    kind("torch/mesh").says(&["distributed checkpoint of PyTorch"]);
    kind("torch/lightning.ckpt").says(&["Lightning checkpoint"]);
    kind("torch/mp_rank_00_model_states.pt").says(&["DeepSpeed model states"]);
    kind("torch/program.pt2").says(&["program of torch.export"]);
}
