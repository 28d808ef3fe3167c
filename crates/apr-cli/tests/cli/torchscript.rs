//! Models exported to TorchScript. torch runs them in `cargo xtask interop`, beside the ONNX file of the same model; the
//! files that it agreed with are the ones that are written here.

use std::process::Command;

use apr_testkit::locate;
use apr_testkit::peers::agreed;

use crate::support::{Sandbox, small_safetensors};

fn tiny_llama() -> String {
    locate::fixture("tiny-llama").to_str().expect("a plain name").to_owned()
}

/// Runs a script of the peers.
#[track_caller]
fn python(sandbox: &Sandbox, script: &str, arguments: &[&str]) {
    let python = std::env::var("APR_GRAPH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = locate::workspace().join("xtask/interop").join(script);
    let mut command = Command::new(python);
    let output = command.arg(script).args(arguments).current_dir(sandbox.path("")).output().expect("a Python");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_program_computes_what_the_graph_computes() {
    let sandbox = Sandbox::new();
    let mut files = Vec::new();
    for (name, options) in [("plain", ""), ("past", "--with-past")] {
        for (format, file) in [("torchscript", format!("{name}.pt")), ("onnx", format!("{name}.onnx"))] {
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
fn a_model_without_a_graph_has_parameters_only_and_says_so() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let run = sandbox.apr("export m.safetensors --format torchscript -o m.pt").ok();
    run.says(&["parameters, and no program", "--arch NAME"]);
    sandbox.apr("diff m.pt m.safetensors --exit-code").ok();
}
