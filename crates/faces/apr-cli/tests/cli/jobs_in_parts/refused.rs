//! Jobs and plans that are refused.

use super::*;

#[test]
fn jobs_that_cannot_be_split_are_rejected_with_a_reason() {
    let sandbox = model().with("plan.json", "{}");
    let plan = |job: &str| sandbox.apr(&format!("plan --parts 2 -o new.json {job}"));
    plan("inspect m.safetensors")
        .fails(2, &["inspect' can't be split into parts; supported", "convert"]);
    plan("convert m.safetensors -o out.gguf").fails(2, &["parts are shards of an .apr model"]);
    plan("convert m.safetensors -o -")
        .fails(2, &["a job in parts reads and writes files, not streams"]);
    plan("convert - -o out.apr").fails(2, &["a job in parts reads and writes files, not streams"]);
    plan("convert m.safetensors -o /elsewhere/out.apr").fails(2, &["below the folder of the plan"]);
    plan("convert m.safetensors -o out.apr --threads 2")
        .fails(2, &["--threads is an option of the run, not of the job: pass it to"]);
    plan("convert m.safetensors -o out.apr --sign key").fails(2, &["`apr sign`"]);
    plan("convert m.safetensors -o out.apr --parts 2")
        .fails(2, &["write options of `apr plan` before the job"]);
    plan("convert m.safetensors -o out.apr --dry-run").fails(2, &["writes only the plan"]);
    plan("convert gone.safetensors -o out.apr").fails(3, &["gone.safetensors"]);
    sandbox.write("out-00001-of-00002.apr", "mine");
    plan("convert m.safetensors -o out.apr").fails(1, &["already exists"]);
    sandbox
        .apr("plan --parts 2 -o plan.json convert m.safetensors -o new.apr")
        .fails(1, &["already exists", "plan.json"]);
    sandbox
        .apr("plan --parts 0 -o new.json convert m.safetensors -o new.apr")
        .fails(2, &["1 to 99999"]);
    sandbox
        .apr("plan --parts 100000 -o new.json convert m.safetensors -o new.apr")
        .fails(2, &["1 to 99999"]);
    sandbox.apr("plan -o new.json convert m.safetensors -o new.apr").fails(2, &["--parts"]);
    sandbox
        .apr("plan --arch llama --parts 2 -o new.json convert m.safetensors -o new.apr")
        .fails(2, &["after its name"]);
    // Fewer parts than were asked for are told.
    sandbox
        .apr("plan --parts 50 -o new.json convert m.safetensors -o new.apr")
        .ok()
        .says(&["instead of 50"]);
}

#[test]
fn an_invalid_plan_is_rejected_and_nothing_outside_its_folder_is_touched() {
    let sandbox = model();
    sandbox.apr("plan --parts 3 -o in/plan.json convert m.safetensors -o in/out.apr").ok();
    let text = String::from_utf8(sandbox.read("in/plan.json")).expect("UTF-8");
    sandbox.apr("run-part in/plan.json 3").fails(2, &["no part 3: the plan has", "from 0 to 2"]);
    sandbox.apr("run-part in/plan.json -1").fails(2, &[]);
    let changed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        sandbox.write("in/changed.json", text.replace(from, to));
        sandbox.apr("run-part in/changed.json 0")
    };
    let before = sandbox.files().len() + 1;
    changed("\"path\": \"out.apr\"", "\"path\": \"../out.apr\"")
        .fails(4, &["E001", "not below the folder"]);
    changed("\"path\": \"out.apr\"", "\"path\": \"/tmp/out.apr\"")
        .fails(4, &["E001", "not below the folder"]);
    changed("out-00001-of-00003.apr", "../out-00001-of-00003.apr").fails(4, &["E001"]);
    changed("\"apr_plan\": 1", "\"apr_plan\": 2").fails(4, &["E003", "version 2"]);
    changed(&format!("\"apr\": \"{}\"", env!("CARGO_PKG_VERSION")), "\"apr\": \"99.0.0\"")
        .fails(4, &["E003", "99.0.0"]);
    changed("\"command\": \"convert\"", "\"command\": \"edit\"").fails(4, &["E001", "'edit'"]);
    changed("\"command\": \"convert\"", "\"command\": \"inspect\"")
        .fails(4, &["E001", "'inspect'"]);
    changed("\"output\": \"out.apr\"", "\"output\": \"out.apr\", \"sign\": \"x\"")
        .fails(4, &["E001", "sign"]);
    changed("\"output\": \"out.apr\"", "\"output\": \"out.apr\", \"precision\": \"fp16\"")
        .fails(5, &["E004", "part 0"]);
    assert_eq!(sandbox.files().len(), before);
}

#[test]
fn a_plan_that_leaves_something_out_makes_no_model_valid() {
    let sandbox = model();
    for job in ["validate m.safetensors", "diff m.safetensors m.safetensors --read"] {
        sandbox.apr(&format!("plan --parts 3 -o plan.json -f {job}")).ok();
        let mut shorter = plan(&sandbox);
        let units = &mut shorter["parts"][2]["units"][1];
        *units = json!(units.as_u64().expect("a number") - 1);
        sandbox.write("plan.json", shorter.to_string());
        run_parts(&sandbox, "");
        sandbox.apr("finish plan.json").fails(4, &["E001", " of 9 "]);
        shorter["parts"][2]["units"][1] = json!(1000);
        sandbox.write("plan.json", shorter.to_string());
        sandbox.apr("run-part plan.json 2").fails(4, &["E001", "that the model"]);
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_of_a_plan_are_not_followed() {
    let sandbox = model();
    sandbox.write("precious", "mine");
    sandbox.apr("plan --parts 2 -o job/plan.json convert m.safetensors -o job/out.apr").ok();
    let plan = sandbox.read("job/plan.json");
    let plan: Value = serde_json::from_slice(&plan).expect("JSON");
    let shard = plan["parts"][0]["file"].as_str().expect("a name");
    let refused = ["E007", "a link leads out of the plan's folder, and parts write only below it"];

    for (link, target) in [
        (format!("job/{shard}"), "../precious"),
        (format!("job/{shard}"), "../not-there"),
        ("job/plan.parts".to_owned(), ".."),
    ] {
        symlink(target, sandbox.path(&link)).expect("links");
        sandbox.apr("run-part job/plan.json 0").fails(1, &refused);
        assert_eq!(sandbox.read("precious"), b"mine");
        assert!(!sandbox.path("not-there").exists() && !sandbox.path("00000.json").exists());
        fs::remove_file(sandbox.path(&link)).expect("ours");
        let _ = fs::remove_file(sandbox.path(&format!("job/{shard}")));
    }

    sandbox.apr("run-part job/plan.json 0").ok();
    sandbox.apr("run-part job/plan.json 1").ok();
    symlink("../precious", sandbox.path("job/out.apr")).expect("links");
    sandbox.apr("finish job/plan.json").fails(1, &refused);
    assert_eq!(sandbox.read("precious"), b"mine");
    fs::remove_file(sandbox.path("job/out.apr")).expect("ours");
    sandbox.apr("finish job/plan.json").ok();
    sandbox.apr("validate job/out.apr").ok();
}
