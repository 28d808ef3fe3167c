//! Jobs in parts: `plan`, `run-part`, `finish`. What they write and report is what one process
//! writes and reports.

mod codes;
mod refused;

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::symlink;

use apr_testkit::hub::TestHub;
use apr_testkit::locate;
use serde_json::{Value, json};

use crate::container::{PASSWORD, workshop};
use crate::hub::{at, hub_with_llama, sent};
use crate::support::{
    Run, Sandbox, f32s, model_folder, safetensors, safetensors_header, scrambled, small_safetensors,
};

/// Eight tensors of 32 rows, and one that is smaller.
fn weights(scale: f32) -> Vec<u8> {
    let values = |seed: u64, count: u64| -> Vec<f32> {
        let value = |i| (scrambled(seed * 10_000 + i) % 2000) as f32 / 1000.0 - 1.0;
        (0..count).map(|i| value(i) * scale).collect()
    };
    let names: Vec<String> = (0..8).map(|number| format!("layers.{number}.weight")).collect();
    let mut tensors = vec![("head.bias", "F32", &[7_u64][..], f32s(&values(99, 7)))];
    for (number, name) in (0..).zip(&names) {
        tensors.push((name.as_str(), "F32", &[32, 32], f32s(&values(number, 1024))));
    }
    safetensors(&tensors)
}

/// A sandbox with `m.safetensors`.
fn model() -> Sandbox {
    Sandbox::new().with("m.safetensors", weights(0.1))
}

fn plan(sandbox: &Sandbox) -> Value {
    serde_json::from_slice(&sandbox.read("plan.json")).expect("a plan is JSON")
}

fn parts(sandbox: &Sandbox) -> usize {
    plan(sandbox)["parts"].as_array().expect("a list").len()
}

/// Does the parts of `plan.json` from the last to the first, with these options.
fn run_parts(sandbox: &Sandbox, options: &str) {
    for part in (0..parts(sandbox)).rev() {
        sandbox.apr(&format!("run-part plan.json {part} {options}")).ok();
    }
}

fn run_parts_of(sandbox: &Sandbox, path: &str) {
    let plan: Value = serde_json::from_slice(&sandbox.read(path)).expect("a plan is JSON");
    for part in 0..plan["parts"].as_array().expect("a list").len() {
        sandbox.apr(&format!("run-part {path} {part}")).ok();
    }
}

/// Does a job in parts into `out.apr` and in one process into `one/out.apr`, and compares all
/// files.
#[track_caller]
fn same_files(sandbox: &Sandbox, wanted: usize, command: &str, options: &str) {
    sandbox
        .apr(&format!("plan --parts {wanted} -o plan.json -f {command} -o out.apr {options}"))
        .ok();
    let shard_size = plan(sandbox)["output"]["shard_size"].as_u64().expect("a number");
    assert!(parts(sandbox) > 1, "{command}");
    run_parts(sandbox, "");
    sandbox.apr("finish plan.json").ok();
    let size = if command.starts_with("import") {
        String::new()
    } else {
        format!("--shard-size {shard_size}")
    };
    sandbox.apr(&format!("{command} -o one/out.apr {options} {size} -f")).ok();
    if size.is_empty() {
        // An import writes one file, which the parts joined are, too.
        sandbox.apr("join out.apr -o joined.apr -f").ok();
        assert_eq!(sandbox.read("joined.apr"), sandbox.read("one/out.apr"), "{command} {options}");
    } else {
        let files: Vec<String> =
            sandbox.files().into_iter().filter(|name| name.starts_with("one/out")).collect();
        assert_eq!(files.len(), parts(sandbox) + 1);
        for file in files {
            let own = file.strip_prefix("one/").expect("in that folder");
            assert!(sandbox.read(own) == sandbox.read(&file), "{own} of {command} {options}");
        }
    }
    let all = sandbox
        .files()
        .into_iter()
        .filter(|name| name.starts_with("out") || name.starts_with("one/"));
    all.for_each(|name| fs::remove_file(sandbox.path(&name)).expect("it is there"));
}

#[test]
fn a_plan_requires_parts_or_their_size() {
    let sandbox = model();
    let line = "-o plan.json convert m.safetensors -o x.apr";
    sandbox.apr(&format!("plan {line}")).fails(2, &["--parts N", "--max-part SIZE"]);
    sandbox.apr("plan -o plan.json run m.safetensors").fails(2, &["'run'"]);
    sandbox.apr(&format!("plan --max-part 5KB {line}")).ok();
}

#[test]
fn parts_in_any_order_are_the_files_of_one_process() {
    let sandbox = model();
    for (command, options) in [
        ("convert m.safetensors", ""),
        ("convert m.safetensors", "--precision bf16 --align 32"),
        ("convert m.safetensors", "--compress"),
        ("convert m.safetensors", "--compress=zstd:3 --streaming"),
        ("convert m.safetensors", "--quantize int8 --tensor-type layers.1.*=q4_0 --max-drift 0.5"),
        ("quantize m.safetensors", "-t q8_0 --compress"),
        // What quantization cost too much is noted in the manifest.
        ("quantize m.safetensors", "-t q4_0"),
    ] {
        same_files(&sandbox, 4, command, options);
    }
}

#[test]
fn merges_in_parts_are_the_files_of_one_process() {
    let sandbox = model();
    sandbox.write("n.safetensors", weights(0.2));
    sandbox.write("o.safetensors", weights(0.3));
    let models = "m.safetensors n.safetensors o.safetensors";
    for options in [
        "",
        "--weights 1,2,3 --precision bf16",
        "--strategy ties --base m.safetensors --density 0.5 --compress",
        "--strategy dare --base m.safetensors --density 0.5 --seed 7 --quantize int8",
    ] {
        same_files(&sandbox, 3, &format!("merge {models}"), options);
    }
    sandbox.write(
        "merge.yml",
        "merge_method: linear\nparameters: {weight: 1}\nmodels: [{model: m.safetensors}, {model: \
                                n.safetensors, parameters: {weight: 3}}]\n",
    );
    same_files(&sandbox, 3, "merge --config merge.yml", "");

    // Each model is one of the plan's inputs, and none may change.
    sandbox.apr(&format!("plan --parts 3 -o plan.json -f merge {models} -o out.apr")).ok();
    let plan = plan(&sandbox);
    assert_eq!(plan["inputs"].as_array().map(Vec::len), Some(3));
    sandbox.apr("run-part plan.json 1").ok();
    sandbox.write("n.safetensors", weights(0.4));
    sandbox.apr("run-part plan.json 2").fails(5, &["n.safetensors", "make a new plan"]);
    sandbox.write("merge.yml", "merge_method: linear\nmodels: [{model: m.safetensors}]\n");
    sandbox.apr("plan --parts 3 -o p.json merge merge.yml -o o.apr").fails(2, &["--config FILE"]);
}

#[cfg(unix)]
#[test]
fn adapters_are_merged_in_parts_from_any_folder() {
    let sandbox = Sandbox::new();
    for folder in ["llama", "lora", "dora"] {
        let path = locate::fixture("lora").join(folder);
        for file in fs::read_dir(path).expect("a fixture").map(|entry| entry.expect("an entry")) {
            let name = file.file_name().into_string().expect("UTF-8");
            let bytes = fs::read(file.path()).expect("a file");
            sandbox.write(&format!("work/{folder}/{name}"), bytes);
        }
    }
    sandbox
        .apr(
            "plan --parts 3 -o work/plan.json merge work/llama --lora work/lora:0.5 --lora \
             work/dora -o work/out.apr",
        )
        .ok();
    run_parts_of(&sandbox, "work/plan.json");
    sandbox.apr("finish work/plan.json").ok();
    sandbox.apr("join work/out.apr -o joined.apr").ok();
    sandbox.shell("cd work && $APR merge llama --lora lora:0.5 --lora dora -o whole.apr").ok();
    let tensors = |model: &str| {
        let report = sandbox.apr(&format!("tensors {model} --stats --json")).ok().json();
        let mut tensors = report["tensors"].as_array().expect("a list").clone();
        tensors.iter_mut().for_each(|tensor| tensor["file"] = Value::Null);
        tensors
    };
    assert!(tensors("joined.apr") == tensors("work/whole.apr"));
}

#[test]
fn losses_and_problems_are_noted_as_in_one_process() {
    let sandbox = Sandbox::new().with("m.safetensors", weights(1e5));
    // Values become infinite: losses of several tensors, in the order of the model.
    same_files(&sandbox, 3, "convert m.safetensors", "--precision fp16 --relaxed");
    let broken = safetensors(&[
        ("a.weight", "F32", &[4, 4], f32s(&[f32::NAN; 16])),
        ("b.weight", "F32", &[4, 4], f32s(&[1.0; 16])),
        ("c.weight", "F32", &[4, 4], f32s(&[f32::INFINITY; 16])),
    ]);
    sandbox.write("m.safetensors", broken);
    same_files(&sandbox, 3, "convert m.safetensors", "--relaxed");
    sandbox.apr("plan --parts 3 -o plan.json -f convert m.safetensors -o out.apr").ok();
    sandbox.apr("run-part plan.json 1").ok();
    sandbox.apr("run-part plan.json 2").fails(5, &["c.weight"]);
    sandbox
        .apr("finish plan.json")
        .fails(5, &["2 parts of 3", "part 0 is missing: apr run-part plan.json 0"]);
}

#[test]
fn a_folder_with_companions_and_ties_is_imported_in_parts() {
    let sandbox = Sandbox::new();
    let llama = locate::fixture("tiny-llama");
    for file in fs::read_dir(llama).expect("a fixture").map(|entry| entry.expect("an entry").path())
    {
        let name = file.file_name().expect("a name").to_str().expect("UTF-8");
        sandbox.write(&format!("llama/{name}"), fs::read(&file).expect("a file"));
    }
    same_files(&sandbox, 4, "import llama", "");
    same_files(&sandbox, 4, "convert llama", "");
    same_files(&sandbox, 3, "quantize llama", "-t q8_0");
    model_folder(&sandbox, "toy");
    sandbox.apr("plan --max-part 200 -o plan.json -f import toy -o out.apr -f").ok();
    run_parts(&sandbox, "");
    sandbox.apr("finish plan.json").ok();
    sandbox.apr("import toy -o whole.apr").ok();
    sandbox.apr("join out.apr -o joined.apr -f").ok();
    assert_eq!(sandbox.read("joined.apr"), sandbox.read("whole.apr"));
}

#[cfg(unix)]
#[test]
fn parts_at_the_same_time_are_the_same_files() {
    let sandbox = model();
    sandbox.apr("plan --parts 8 -o plan.json quantize m.safetensors -o out.apr -t q8_0").ok();
    // Each part twice, so that two processes write the same file.
    let script = r#"(seq 0 7; seq 0 7) | xargs -P 4 -I K "$APR" -q run-part plan.json K"#;
    sandbox.shell(script).ok();
    sandbox.apr("finish plan.json").ok();
    let size = plan(&sandbox)["output"]["shard_size"].clone();
    sandbox.apr(&format!("quantize m.safetensors -o one/out.apr -t q8_0 --shard-size {size}")).ok();
    let files = sandbox.files().into_iter().filter(|name| name.starts_with("one/out"));
    for file in files {
        assert!(sandbox.read(&file[4..]) == sandbox.read(&file), "{file}");
    }
}

#[test]
fn a_plan_is_the_same_each_time_and_runs_from_other_folders() {
    let sandbox = model();
    let line =
        "plan --parts 4 -o plan.json -f convert m.safetensors -o out/model.apr --precision fp16";
    sandbox.apr(line).ok();
    let first = sandbox.read("plan.json");
    sandbox.apr(line).ok();
    assert_eq!(sandbox.read("plan.json"), first);
    let plan = plan(&sandbox);
    assert_eq!(plan["job"]["options"]["model"], "m.safetensors");
    assert_eq!(plan["inputs"][0]["files"][0]["size"], sandbox.read("m.safetensors").len());
    // Every byte of the weights is read by one part.
    let reads = plan["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .flat_map(|part| part["reads"].as_array().expect("reads"));
    let read: u64 = reads.map(|read| read["len"].as_u64().expect("a number")).sum();
    assert_eq!(read, 4 * (7 + 8 * 1024));
    // The folder may be another one where the parts run.
    fs::rename(sandbox.path("m.safetensors"), sandbox.path("elsewhere.safetensors")).expect("ours");
    for name in ["plan.json", "elsewhere.safetensors"] {
        let to = if name == "plan.json" { "far/away/plan.json" } else { "far/away/m.safetensors" };
        sandbox.write(to, sandbox.read(name));
    }
    for part in 0..4 {
        sandbox.apr(&format!("run-part far/away/plan.json {part}")).ok();
    }
    sandbox.apr("finish far/away/plan.json").ok();
    sandbox.apr("validate far/away/out/model.apr").clean().says(&["VALID"]);
}

#[test]
fn a_finished_part_is_skipped_and_one_with_a_wrong_file_is_repeated() {
    let sandbox = model();
    sandbox.apr("plan --parts 3 -o plan.json convert m.safetensors -o out.apr").ok();
    sandbox.apr("finish plan.json").fails(5, &["3 parts of 3", "apr run-part plan.json 2"]);
    run_parts(&sandbox, "");
    sandbox.apr("run-part plan.json 1").ok().says(&["already finished; skipped"]);
    let skipped = sandbox.apr("run-part plan.json 1 --json").ok().json();
    assert_eq!(
        (&skipped["skipped"], &skipped["part"], &skipped["of"]),
        (&json!(true), &json!(1), &json!(3))
    );
    let shard = "out-00002-of-00003.apr";
    let good = sandbox.read(shard);
    let mut bad = good.clone();
    bad[200] ^= 1;
    sandbox.write(shard, bad);
    sandbox.apr("finish plan.json").fails(5, &["part 1 is wrong: apr run-part plan.json 1"]);
    let told = sandbox.apr("finish plan.json --json").fails(5, &[]).json();
    assert_eq!(
        told["missing"],
        json!([{ "part": 1, "state": "wrong", "command": "apr run-part plan.json 1" }])
    );
    assert!(!sandbox.path("out.apr").exists());
    sandbox.apr("run-part plan.json 1").ok();
    assert_eq!(sandbox.read(shard), good);
    fs::remove_file(sandbox.path(shard)).expect("it is there");
    sandbox.apr("finish plan.json").fails(5, &["part 1 is wrong"]);
    sandbox.apr("run-part plan.json 1").ok();
    sandbox.apr("finish plan.json").ok();
    let manifest = sandbox.read("out.apr");
    sandbox.apr("finish plan.json").ok();
    assert_eq!(sandbox.read("out.apr"), manifest);
    // Results of one plan are no results of another.
    sandbox
        .apr("plan --parts 3 -o plan.json -f convert m.safetensors -o out.apr -f --relaxed")
        .ok();
    sandbox.apr("finish plan.json").fails(5, &["3 parts of 3"]);
}

#[test]
fn the_printed_commands_can_be_typed() {
    let sandbox = model();
    let job = ["convert", "m.safetensors", "-o", "out.apr"];
    let run = sandbox.run(&[&["plan", "--parts", "2", "-o", "my plan.json"][..], &job].concat());
    run.ok().says(&["apr run-part 'my plan.json' 0", "apr finish 'my plan.json'"]);
    let report = sandbox.run(&["finish", "my plan.json", "--json"]).json();
    assert_eq!(report["missing"][1]["command"], "apr run-part 'my plan.json' 1", "{report}");
}

#[test]
fn an_input_that_changed_is_refused_and_named() {
    let sandbox = model();
    sandbox.write("imatrix.dat", imatrix());
    sandbox
        .apr(
            "plan --parts 3 -o plan.json quantize m.safetensors -o out.apr -t q4_0 --imatrix \
        imatrix.dat",
        )
        .ok();
    let good = sandbox.read("m.safetensors");
    let with = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let before = sandbox.files();
    // A value of the last tensor: seen by the part that reads it, and by no other.
    sandbox.write("m.safetensors", with(good.len() - 4));
    sandbox.apr("run-part plan.json 2").fails(
        5,
        &[
            "E004",
            "m.safetensors",
            "layers.7.weight",
            "its digest differs from the plan's; make a new plan",
        ],
    );
    assert_eq!(sandbox.files(), before);
    // The header.
    let at = good.windows(9).position(|bytes| bytes == b"head.bias").expect("a name");
    sandbox.write("m.safetensors", with(at));
    sandbox.apr("run-part plan.json 0").fails(
        5,
        &["E004", "m.safetensors", "metadata, or names, shapes or offsets of tensors, changed"],
    );
    sandbox.write("m.safetensors", small_safetensors());
    sandbox.apr("run-part plan.json 0").fails(5, &["E004", "m.safetensors", "its length changed"]);
    sandbox.write("m.safetensors", &good);
    sandbox.write("imatrix.dat", [&imatrix()[..], b"x"].concat());
    sandbox
        .apr("run-part plan.json 0")
        .fails(5, &["E004", "imatrix.dat", "changed since the plan was made"]);
    sandbox.write("imatrix.dat", imatrix());
    run_parts(&sandbox, "");
    sandbox.apr("finish plan.json").ok();
    // A companion.
    model_folder(&sandbox, "toy");
    sandbox.apr("plan --parts 2 -o toy.json import toy -o toy.apr").ok();
    sandbox.write("toy/tokenizer_config.json", b"[]\n");
    sandbox.apr("run-part toy.json 0").fails(5, &["E004", "tokenizer_config.json"]);
    // Without digests the time counts.
    sandbox
        .apr("plan --no-digests --parts 3 -o quick.json convert m.safetensors -o quick.apr")
        .ok();
    sandbox.write("m.safetensors", with(good.len() - 4));
    sandbox.apr("run-part quick.json 0").fails(5, &["E004", "m.safetensors", "it was modified"]);
}

/// Returns a legacy importance matrix without entries for these tensors.
fn imatrix() -> Vec<u8> {
    let name = b"other.weight";
    let mut bytes = 1_i32.to_le_bytes().to_vec();
    bytes.extend(12_i32.to_le_bytes());
    bytes.extend(name);
    bytes.extend(1_i32.to_le_bytes());
    bytes.extend(2_i32.to_le_bytes());
    bytes.extend(f32s(&[1.0, 1.0]));
    bytes
}

#[test]
fn a_gate_is_for_the_whole_model_and_leaves_no_manifest() {
    let sandbox = model();
    sandbox
        .apr(
            "plan --parts 3 -o plan.json quantize m.safetensors -o out.apr -t q4_0 --max-drift \
        0.001",
        )
        .ok();
    run_parts(&sandbox, "");
    let refused = sandbox.apr("finish plan.json").fails(5, &["quality gate failed", "L2 drift"]);
    let one = sandbox
        .apr("quantize m.safetensors -o one.apr -t q4_0 --max-drift 0.001")
        .fails(5, &["quality gate"]);
    let failures = |run: &Run| run.stderr.lines().filter(|line| line.starts_with("  - ")).count();
    assert_eq!(failures(&refused), failures(&one));
    assert!(!sandbox.path("out.apr").exists());
}

#[test]
fn parts_are_encrypted_alike_and_the_plan_holds_no_secret() {
    let sandbox = workshop();
    for (options, keys) in [
        ("encrypt m.safetensors -o sealed.apr --recipient owner.pub", "--key owner"),
        ("convert m.safetensors -o sealed.apr --compress --encrypt", "--password-file password"),
    ] {
        let given = if keys.starts_with("--key") { "" } else { keys };
        sandbox.apr(&format!("plan --parts 3 -o plan.json -f {given} {options} -f")).ok();
        assert!(parts(&sandbox) > 1);
        let text = String::from_utf8(sandbox.read("plan.json")).expect("UTF-8");
        assert!(!text.contains(PASSWORD) && !text.contains("PRIVATE"), "{text}");
        sandbox.apr("run-part plan.json 0").fails(4, &["E005"]);
        sandbox.apr("run-part plan.json 0 --key other").fails(4, &["E005"]);
        run_parts(&sandbox, keys);
        // The second time, nothing is encrypted as before: the content could be another.
        let shard = plan(&sandbox)["parts"][1]["file"].as_str().expect("a name").to_owned();
        let bytes = sandbox.read(&shard);
        fs::remove_file(sandbox.path(&shard)).expect("it is there");
        sandbox.apr(&format!("run-part plan.json 1 {keys}")).ok();
        let again = sandbox.read(&shard);
        assert_eq!(again.len(), bytes.len());
        let blocks: std::collections::HashSet<&[u8]> = bytes.chunks_exact(16).collect();
        let sealed = &again.chunks_exact(16).collect::<Vec<_>>()[again.len() / 32..];
        let shared = sealed.iter().filter(|block| blocks.contains(*block)).count();
        assert!(shared * 4 < sealed.len(), "{shared} of {} blocks", sealed.len());
        // No key is needed to put them together.
        sandbox.apr("finish plan.json").ok();
        sandbox.apr(&format!("decrypt sealed.apr -o open.apr -f {keys}")).ok();
        sandbox.apr("validate sealed.apr").ok();
        sandbox.apr("diff open.apr plain.apr --tolerance 0 --exit-code --read").ok();
        // A plan that was changed would use one key for two things.
        let changed = text.replace("\"shard_size\": ", "\"shard_size\": 1");
        sandbox.write("changed.json", changed);
        sandbox.apr(&format!("run-part changed.json 0 {keys}")).fails(4, &["E005"]);
    }
}

#[test]
fn a_validation_in_parts_reports_what_one_process_reports() {
    let sandbox = workshop();
    sandbox.apr("convert m.safetensors -o cut.apr --shard-size 3000").ok();
    sandbox.apr("convert m.safetensors -o small.apr --compress").ok();
    sandbox.apr("convert m.safetensors -o m.gguf --relaxed").says(&[]);
    let mut damaged = sandbox.read("plain.apr");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 4;
    sandbox.write("damaged.apr", damaged);
    sandbox.apr("encrypt plain.apr -o sealed.apr --recipient owner.pub").clean();
    let shard =
        sandbox.files().into_iter().find(|name| name.starts_with("cut-00002")).expect("a shard");
    let mut wrong = sandbox.read(&shard);
    let at = wrong.len() / 2;
    wrong[at] ^= 1;
    for (name, options) in [
        ("m.safetensors", ""),
        ("m.safetensors", "--nan-check --strict"),
        ("plain.apr", ""),
        ("small.apr", ""),
        ("damaged.apr", ""),
        ("sealed.apr", ""),
        ("cut.apr", ""),
        ("cut.apr", "--checksum"),
    ] {
        same_report(&sandbox, "validate", name, options);
    }
    sandbox.write(&shard, wrong);
    same_report(&sandbox, "validate", "cut.apr", "");
    fs::remove_file(sandbox.path(&shard)).expect("it is there");
    // What is gone can't be planned; one process reports it.
    sandbox.apr("validate cut.apr").fails(5, &[&shard]);
}

/// Does a job that reports in parts and in one process, and compares reports and exit codes.
#[track_caller]
fn same_report(sandbox: &Sandbox, command: &str, models: &str, options: &str) {
    for wanted in [1, 3] {
        sandbox
            .apr(&format!("plan --parts {wanted} -o plan.json -f {command} {models} {options}"))
            .ok();
        let is_one = wanted == 1 || options.contains("--tensors");
        assert!(parts(sandbox) <= wanted && (is_one || parts(sandbox) > 1), "{models}");
        run_parts(sandbox, "");
        sandbox.apr("run-part plan.json 0").ok().says(&["skipped"]);
        for form in ["--json", ""] {
            let whole = sandbox.apr(&format!("{command} {models} {options} {form}"));
            let finished = sandbox.apr(&format!("finish plan.json {form}"));
            let by_command = finished.to_string().replace("\"finish\"", &format!("\"{command}\""));
            assert_eq!(by_command, whole.to_string(), "{command} {models} {options}");
        }
    }
}

#[test]
fn a_comparison_in_parts_reports_what_one_process_reports() {
    let sandbox = workshop();
    sandbox.apr("convert m.safetensors -o half.apr --precision fp16").ok();
    sandbox.apr("convert m.safetensors -o same.apr").ok();
    sandbox.write("other.safetensors", weights(0.1));
    let mut nan = sandbox.read("m.safetensors");
    let end = nan.len() - 4;
    nan[end..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    sandbox.write("inf.safetensors", nan);
    for (models, options) in [
        ("m.safetensors half.apr", ""),
        ("m.safetensors same.apr", "--exit-code"),
        ("m.safetensors inf.safetensors", "--exit-code"),
        ("same.apr half.apr", "--max-l2 0.0001 --read"),
        ("m.safetensors half.apr", "--tensors *0* --tolerance 0.01"),
    ] {
        same_report(&sandbox, "diff", models, options);
    }
}

#[test]
fn parts_of_a_remote_model_are_of_the_commit_of_the_plan() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    at(&hub, &sandbox, "plan --parts 4 -o plan.json convert hf://tiny/llama -o out.apr --no-cache")
        .fails(2, &["--no-cache"]);
    at(
        &hub,
        &sandbox,
        "plan --parts 4 -o plan.json convert hf://tiny/llama/model.safetensors -o out.apr",
    )
    .ok();
    let known = plan(&sandbox);
    let commit = hub.commit("tiny/llama");
    assert_eq!(known["inputs"][0]["path"], format!("hf://tiny/llama@{commit}/model.safetensors"));
    assert!(known["inputs"][0]["files"][0]["etag"].is_string(), "{known}");
    for part in 0..parts(&sandbox) {
        at(&hub, &sandbox, &format!("run-part plan.json {part}")).ok();
    }
    at(&hub, &sandbox, "finish plan.json").ok();
    let size = known["output"]["shard_size"].clone();
    let pinned = format!("hf://tiny/llama@{commit}/model.safetensors");
    at(&hub, &sandbox, &format!("convert {pinned} -o one/out.apr --shard-size {size}")).ok();
    sandbox.apr("diff out.apr one/out.apr --exit-code").ok();

    // No part reads all of the file, so that none says what its digest is.
    let source = |file: &str| {
        sandbox.apr(&format!("inspect {file} --json")).ok().json()["metadata"]["source"].clone()
    };
    let (parts, one) = (source("out.apr"), source("one/out.apr"));
    assert!(parts["sha256_of"].is_null() && one["sha256_of"].is_object(), "{parts} {one}");
    assert_eq!(parts["revision"], one["revision"]);
}

#[test]
fn a_part_of_a_large_remote_model_leaves_the_rest_where_it_is() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let (small, len) = (1_000_000_u64, 400_000_000_u64);
    let header = safetensors_header(&json!({
        "a": { "dtype": "U8", "shape": [small], "data_offsets": [0, small] },
        "b": { "dtype": "U8", "shape": [len - small], "data_offsets": [small, len] },
    }));
    hub.put_sparse("big/model", "model.safetensors", &header, header.len() as u64 + len);
    at(&hub, &sandbox, "plan --max-part 2MB -o plan.json convert hf://big/model -o out.apr").ok();
    let planned = sent(&hub.requests());
    assert!(planned < 1_000_000, "{planned} bytes for a plan");
    at(&hub, &sandbox, "run-part plan.json 0").ok();
    let moved = sent(&hub.requests());
    // What is read ahead is bounded.
    assert!((small..100_000_000).contains(&moved), "{moved}");
}
