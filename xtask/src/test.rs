//! Everything that is run.

use crate::process::{cargo, program, run as run_program, target_dir, workspace};
use crate::steps::Steps;
use crate::{reference, targets};

pub(crate) fn run(steps: &mut Steps) {
    let python = steps.run("the Python reference environment", reference::set_up_python);
    steps.run("torch, for PyTorch's files", reference::set_up_torch);
    let minilm = steps.run("the model all-MiniLM-L6-v2", reference::fetch_model);
    let llama_cpp = steps.run("llama.cpp, to compare with", reference::set_up_llama_cpp);
    steps.run("tests of the workspace", || {
        run_program(&mut cargo("test", ["--workspace", "--all-features", "--no-fail-fast"]))
    });
    targets::no_std(steps);
    targets::wasm(steps);
    targets::features(steps);
    if llama_cpp.and(minilm).is_some() {
        steps.run("llama.cpp loads, runs and equals what apr writes", || {
            reference::check_with_llama_cpp(&target_dir().join("debug/apr"))
        });
    }
    if python.is_some() {
        steps.run("Python reads what apr encrypts, signs and licenses", || {
            reference::check_sealed(&target_dir().join("debug/apr"))
        });
    }
    let model = "fixtures/tiny-llama/model.safetensors";
    if workspace().join(model).exists() {
        steps.run("the model tiny-llama computes sums, by NumPy", || {
            run_program(program(reference::python()).arg("fixtures/tiny-llama/check.py"))
        });
    }
}
