//! Everything that is run.

use crate::process::{cargo, program, run as run_program, workspace};
use crate::steps::Steps;
use crate::{reference, targets};

pub(crate) fn run(steps: &mut Steps) {
    steps.run("the Python reference environment", reference::set_up_python);
    steps.run("torch, for PyTorch's files", reference::set_up_torch);
    steps.run("the model all-MiniLM-L6-v2", reference::fetch_model);
    steps.run("tests of the workspace", || {
        run_program(&mut cargo("test", ["--workspace", "--all-features", "--no-fail-fast"]))
    });
    targets::no_std(steps);
    targets::wasm(steps);
    let model = "fixtures/tiny-llama/model.safetensors";
    if workspace().join(model).exists() {
        steps.run("the model tiny-llama computes sums, by NumPy", || {
            run_program(program(reference::python()).arg("fixtures/tiny-llama/check.py"))
        });
    }
}
