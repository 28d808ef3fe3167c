//! The scripts of `examples/cluster`: run where what they need is here, imitated where it is not.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::{Run, Sandbox, safetensors, small_safetensors};

/// A file of the examples.
fn example(name: &str) -> PathBuf {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples/cluster").join(name);
    path.canonicalize().expect("an example")
}

fn text(name: &str) -> String {
    fs::read_to_string(example(name)).expect("UTF-8")
}

/// Returns a plan with three parts in `plan.json`, and the output of the job in one process in
/// `one`.
fn planned() -> Sandbox {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("plan --parts 3 -o plan.json convert m.safetensors -o out.apr").ok();
    let plan: Value = serde_json::from_slice(&sandbox.read("plan.json")).expect("a plan is JSON");
    assert_eq!(plan["parts"].as_array().expect("a list").len(), 3);
    let size = &plan["output"]["shard_size"];
    sandbox.apr(&format!("convert m.safetensors -o one/out.apr --shard-size {size}")).clean();
    sandbox
}

/// Asserts that all files of the output exist and equal those that one process writes.
#[track_caller]
fn is_done(sandbox: &Sandbox) {
    let files: Vec<String> =
        sandbox.files().into_iter().filter(|name| name.starts_with("one/")).collect();
    assert_eq!(files.len(), 4);
    files.iter().for_each(|file| assert!(sandbox.read(&file[4..]) == sandbox.read(file), "{file}"));
}

fn shell(sandbox: &Sandbox, script: &str) -> Run {
    sandbox.shell(&format!("export APR; {script}"))
}

#[test]
fn the_script_for_one_machine_does_all_parts() {
    let sandbox = planned();
    let script = example("local.sh");
    shell(&sandbox, &format!("sh {} plan.json 3 2", script.display()))
        .ok()
        .says(&["finished", "3 parts"]);
    is_done(&sandbox);
    // A second time, all parts are skipped.
    shell(&sandbox, &format!("sh {} plan.json 3", script.display())).ok();
    // A part that can't be done ends it.
    fs::remove_file(sandbox.path("m.safetensors")).expect("it is there");
    fs::remove_file(sandbox.path("out-00002-of-00003.apr")).expect("it is there");
    let run = shell(&sandbox, &format!("sh {} plan.json 3", script.display()));
    assert_ne!(run.code, Some(0), "{run}");
}

#[test]
fn the_script_for_slurm_submits_an_array_and_a_job_that_waits_for_it() {
    let sandbox = planned();
    // Notes its arguments, and runs the script as Slurm would: for each index of the array, or
    // once.
    let sbatch = r#"#!/bin/bash
set -eu
echo "$*" >>submitted
array=""
while [[ $1 == --* ]]; do
    [[ $1 == --array=* ]] && array=${1#--array=}
    shift
done
export SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=2
if [[ -n $array ]]; then
    for SLURM_ARRAY_TASK_ID in $(seq "${array%-*}" "${array#*-}"); do
        export SLURM_ARRAY_TASK_ID
        bash "$@" >&2
    done
    echo "7;cluster"
else
    bash "$@"
fi
"#;
    sandbox.write("bin/sbatch", sbatch);
    let script = example("slurm.sh");
    shell(
        &sandbox,
        &format!("chmod +x bin/sbatch; PATH=$PWD/bin:$PATH bash {} plan.json 3", script.display()),
    )
    .ok();
    is_done(&sandbox);
    let submitted = String::from_utf8(sandbox.read("submitted")).expect("UTF-8");
    let script = script.display();
    let expected = [
        format!("--parsable --array=0-2 {script} plan.json part"),
        format!("--dependency=afterok:7 --cpus-per-task=1 {script} plan.json finish"),
    ];
    assert_eq!(submitted.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_jobs_for_kubernetes_run_the_part_of_their_index() {
    let Some(python) = locate::reference_python() else { return };
    let sandbox = planned();
    let job = |name: &str| -> Value {
        let script =
            "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
        let printed = Command::new(&python)
            .args(["-c", script])
            .arg(example(name))
            .output()
            .expect("python starts");
        assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        serde_json::from_slice(&printed.stdout).expect("JSON")
    };
    let (parts, finish) = (job("kubernetes.yaml"), job("kubernetes-finish.yaml"));
    for (job, mode) in [(&parts, "Indexed"), (&finish, "")] {
        assert_eq!((&job["apiVersion"], &job["kind"]), (&"batch/v1".into(), &"Job".into()));
        assert_eq!(job["spec"]["completionMode"].as_str().unwrap_or_default(), mode);
        assert_eq!(job["spec"]["template"]["spec"]["restartPolicy"], "Never");
        let mounts = &job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0];
        assert_eq!(mounts["name"], job["spec"]["template"]["spec"]["volumes"][0]["name"]);
    }
    assert!(parts["spec"]["parallelism"].as_u64() <= parts["spec"]["completions"].as_u64());
    let command = |job: &Value| -> String {
        let words = job["spec"]["template"]["spec"]["containers"][0]["command"]
            .as_array()
            .expect("words")
            .clone();
        assert_eq!((&words[0], &words[1]), (&"sh".into(), &"-c".into()));
        let line = words[2].as_str().expect("a text").replace("/data/", "");
        format!("mkdir -p bin; ln -sf \"$APR\" bin/apr; PATH=$PWD/bin:$PATH; {line}")
    };
    for index in 0..3 {
        shell(&sandbox, &format!("export JOB_COMPLETION_INDEX={index}; {}", command(&parts))).ok();
    }
    shell(
        &sandbox,
        "export JOB_COMPLETION_INDEX=3; \"$APR\" run-part plan.json $JOB_COMPLETION_INDEX",
    )
    .fails(2, &[]);
    shell(&sandbox, &command(&finish)).ok();
    is_done(&sandbox);
}

#[test]
fn tasks_of_ray_do_the_parts() {
    let script = example("ray_parts.py");
    let Some(python) = std::env::var_os("APR_RAY_PYTHON") else {
        eprintln!("skipped: APR_RAY_PYTHON names no Python with Ray; the script is only parsed");
        let parse = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
        let parsed = Command::new("python3").args(["-c", parse]).arg(&script).status();
        assert!(parsed.is_ok_and(|status| status.success()));
        return;
    };
    let sandbox = planned();
    let line = format!("{} {} plan.json", python.to_string_lossy(), script.display());
    shell(&sandbox, &line).ok().says(&["part 2 of 3 done", "finished"]);
    is_done(&sandbox);
}

#[test]
fn a_catalogue_has_one_line_per_model_with_the_reports_of_three_commands() {
    let sandbox = Sandbox::new().with("sound one.safetensors", small_safetensors());
    sandbox.write(
        "nan.safetensors",
        safetensors(&[("a.weight", "F32", &[1], f32::NAN.to_le_bytes().to_vec())]),
    );
    let tiny = locate::fixture("tiny-llama");
    let models = [
        "sound one.safetensors",
        "nan.safetensors",
        "gone \"here\".gguf",
        tiny.to_str().expect("UTF-8"),
    ];
    sandbox.write("list", format!("# models\n{}\n\n", models.join("\n")));
    let script = example("catalogue.sh");
    let line = format!("bash {} list report.jsonl 3", script.display());
    shell(&sandbox, &line).ok();
    let report = String::from_utf8(sandbox.read("report.jsonl")).expect("UTF-8");
    let lines: Vec<Value> =
        report.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        lines.iter().map(|line| line["model"].as_str().expect("a name")).collect::<Vec<_>>(),
        models
    );
    for (line, model) in lines.iter().zip(models) {
        for command in ["validate", "lint", "scan"] {
            let alone = sandbox.run(&[command, model, "--json"]);
            let document: Value = serde_json::from_slice(&alone.stdout).expect("JSON");
            assert_eq!(line[command], document, "{command} {model}");
            assert_eq!(line["exit"][command], alone.code.expect("a code"), "{command} {model}");
        }
    }
    assert_eq!(
        (&lines[0]["exit"]["validate"], &lines[1]["exit"]["validate"]),
        (&0.into(), &5.into())
    );
    assert!(!sandbox.files().iter().any(|name| name.starts_with("report.jsonl.")));
    // Begun reports are gone on with: what is there is not looked at again.
    sandbox.write("report.jsonl.d/00000001.json", "{\"model\": \"known\"}\n");
    shell(&sandbox, &line).ok();
    assert!(
        String::from_utf8(sandbox.read("report.jsonl"))
            .expect("UTF-8")
            .starts_with("{\"model\": \"known\"}\n")
    );
}

#[test]
fn every_example_is_mentioned_on_the_page() {
    let page = text("README.md");
    let folder = example("README.md").with_file_name("");
    for entry in fs::read_dir(folder).expect("a folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        assert!(
            page.contains(&name)
                || ["README.md", "kubernetes-finish.yaml"].contains(&name.as_str()),
            "{name}"
        );
    }
    assert!(text("kubernetes.yaml").contains("kubernetes-finish.yaml"));
}
