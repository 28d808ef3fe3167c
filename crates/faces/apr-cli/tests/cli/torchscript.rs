//! Models exported to TorchScript. torch runs them in `cargo xtask interop`, beside the ONNX file
//! of the same model; the files that it agreed with are the ones that are written here.

use std::path::PathBuf;
use std::process::Command;

use apr_graph::{ElementType, GraphBuilder, Meaning};
use apr_ops::job::JobError;
use apr_registry::onnx::write::{Model, WriteOptions};
use apr_registry::{CheckpointWriter, Notes};
use apr_testkit::locate;
use apr_testkit::peers::agreed;

use crate::onnx_families::made_up;
use crate::support::{Sandbox, small_safetensors};

fn tiny_llama() -> String {
    locate::fixture("tiny-llama").to_str().expect("a plain name").to_owned()
}

/// Runs a script of the peers.
#[track_caller]
fn python(sandbox: &Sandbox, script: &str, arguments: &[&str]) {
    python_with(sandbox, &[], script, arguments);
}

/// Runs a script of the peers with additional environment variables.
#[track_caller]
fn python_with(sandbox: &Sandbox, env: &[(&str, &str)], script: &str, arguments: &[&str]) {
    let python = std::env::var("APR_GRAPH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = locate::workspace().join("xtask/interop").join(script);
    let mut command = Command::new(python);
    let output = command
        .arg(script)
        .args(arguments)
        .envs(env.iter().copied())
        .current_dir(sandbox.path(""))
        .output()
        .expect("a Python");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_program_computes_what_the_graph_computes() {
    let sandbox = Sandbox::new();
    let mut files = Vec::new();
    for (name, options) in [("plain", ""), ("past", "--with-past")] {
        for (format, file) in
            [("torchscript", format!("{name}.pt")), ("onnx", format!("{name}.onnx"))]
        {
            let source = tiny_llama();
            let mut line = vec!["export", &*source, "--format", format, "-o", &file];
            line.extend(options.split_whitespace());
            sandbox.run(&line).ok();
        }
        files.push((format!("{name}.pt"), sandbox.read(&format!("{name}.pt"))));
    }
    agreed("torch/torchscript", &files, || {
        for name in ["plain", "past"] {
            let [script, graph, inputs, outputs] =
                ["pt", "onnx", "in.npz", "out.npz"].map(|extension| format!("{name}.{extension}"));
            python(&sandbox, "onnx_models.py", &["record", &graph, &inputs, &outputs]);
            python(&sandbox, "torchscript.py", &[&script, &inputs, &outputs]);
        }
    });
}

/// Encoders with decoders are one program with a method for each part, and a `forward` for both;
/// the others have operators that most programs have not.
#[test]
fn programs_of_families_compute_what_transformers_computes() {
    const CASES: [&str; 8] =
        ["t5", "whisper", "mixtral", "clip", "wav2vec2_ctc", "mamba", "swin", "dinov2"];

    let sandbox = Sandbox::new();
    let mut files = Vec::new();
    for case in CASES {
        made_up(&sandbox, case);
        for (way, option) in [("plain", ""), ("past", "--with-past")] {
            let out = format!("{case}_out/{way}");
            sandbox.apr(&format!("export {case} --format onnx -o {out} {option}")).ok();
            let script = format!("export {case} --format torchscript -o {out}.pt {option}");
            let run = sandbox.apr(&script).ok();
            assert!(!run.to_string().contains("no program"), "{run}");
            let idle = way == "past" && ["clip", "wav2vec2_ctc", "swin", "dinov2"].contains(&case);
            assert_eq!(run.to_string().contains("--with-past has no effect"), idle, "{run}");
            files.push((format!("{out}.pt"), sandbox.read(&format!("{out}.pt"))));
        }
    }
    agreed("torch/families", &files, || {
        for case in CASES {
            let arguments = ["--exported", case, &format!("{case}_out")];
            python_with(&sandbox, &[("APR_GRAPH_ENGINE", "torchscript")], "graphs.py", &arguments);
        }
    });
}

/// The task and the KV cache do not change what a file computes by itself.
#[test]
fn options_that_a_file_with_a_graph_can_not_follow_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.run(&["export", &tiny_llama(), "--format", "onnx", "-o", "m.onnx"]).ok();
    for option in ["--with-past", "--task CausalLM"] {
        let name = option.split(' ').next().unwrap_or_default();
        let message =
            format!("the file has its own graph: {name} applies to graphs of model families");
        sandbox
            .apr(&format!("export m.onnx --format torchscript -o m.pt {option}"))
            .fails(2, &[message.as_str()]);
    }
}

#[test]
fn a_program_is_a_checkpoint_too() {
    let sandbox = Sandbox::new();
    sandbox.run(&["export", &tiny_llama(), "--format", "torchscript", "-o", "m.pt"]).ok();
    sandbox.run(&["diff", "m.pt", &tiny_llama(), "--exit-code"]).ok().says(&["21 of 21 tensors"]);
    sandbox.apr("validate m.pt").ok().says(&["VALID"]);
    sandbox.apr("convert m.pt -o m.apr").ok();
    sandbox.apr("inspect m.apr").ok().says(&["torchscript/__torch__.py"]);
}

#[test]
fn a_model_without_a_graph_reports_parameters_only() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let run = sandbox.apr("export m.safetensors --format torchscript -o m.pt").ok();
    run.says(&["the output has parameters only, no program", "--arch NAME"]);
    sandbox.apr("diff m.pt m.safetensors --exit-code").ok();
}

/// Models below a folder of the collection.
fn models_in(folder: &str) -> Option<Vec<PathBuf>> {
    let mut folders = vec![locate::shared_data(folder)?];
    let mut models = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "onnx") {
                models.push(path);
            }
        }
    }
    models.sort();
    Some(models)
}

/// Most files contain one operator each.
#[test]
fn programs_of_operators_compute_what_onnxruntime_computes() {
    let folders = ["onnx/onnx_onnx__backend", "onnx/tracel-ai_burn-onnx__crates/onnx-tests"];
    let Some(models) = folders.map(models_in).into_iter().collect::<Option<Vec<_>>>() else {
        return;
    };
    let sandbox = Sandbox::new();
    let (mut files, mut pairs, mut refused) = (Vec::new(), String::new(), 0);
    for model in models.concat() {
        let path = model.to_str().expect("a plain name");
        let (folder, label) = path.split_once("/onnx/").expect("in the collection");
        let program = format!("{}.pt", files.len());
        // By the library: five hundred starts of the program would prove no more. Some have graphs
        // that no runtime takes, and their programs run all the same.
        match apr::convert(&model)
            .format(&apr_registry::torchscript::FORMAT)
            .validate(apr::report::ValidationConfig::relaxed())
            .write(sandbox.path(&program))
        {
            Ok(_) => {
                files.push((label.to_owned(), sandbox.read(&program)));
                pairs.push_str(&format!("{folder}/onnx/{label}\t{program}\n"));
            }
            Err(JobError::Model(_)) => refused += 1,
            Err(error) => panic!("{label}: {error}"),
        }
    }
    sandbox.write("gelu.onnx", gelu_by_tanh());
    sandbox.apr("export gelu.onnx --format torchscript -o gelu.pt").ok();
    files.push(("gelu by tanh".to_owned(), sandbox.read("gelu.pt")));
    pairs.push_str("gelu.onnx\tgelu.pt\n");
    assert!(files.len() > 290 && refused < 240, "{} programs, {refused} refused", files.len());
    sandbox.write("pairs", &pairs);
    agreed("torch/operators", &files, || {
        python(&sandbox, "torchscript_sweep.py", &["--pairs", "pairs"]);
    });
}

/// A model of one node, which the collection does not have in this form.
fn gelu_by_tanh() -> Vec<u8> {
    let mut graph = GraphBuilder::new(20);
    let main = graph.body();
    let x = main.input("x", ElementType::F32, [3.into(), 5.into()], Meaning::Unknown);
    let y = main.op("Gelu", [x]).attribute("approximate", "tanh").output("y");
    main.output("y", y, Meaning::Unknown);
    let models = [Model::new("gelu.onnx", graph.finish())];
    let mut writer =
        apr_registry::onnx::write::plan(&models, &[], WriteOptions::default()).expect("a plan");
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory");
    writer.finish(&mut file, &Notes::default()).expect("memory");
    file
}
