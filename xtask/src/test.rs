//! Everything that goldens, properties and small reference libraries prove; what live peers prove is in `interop`.

use crate::process::{cargo, program, run as run_program, target_dir, workspace};
use crate::steps::Steps;
use crate::{reference, targets};

pub(crate) fn run(steps: &mut Steps) {
    let python = steps.run("the Python reference environment", reference::set_up_python);
    steps.run("the model all-MiniLM-L6-v2", reference::fetch_model);
    // Two at a time, as cargo builds them in two folders: either alone leaves processors idle, linking or waiting.
    steps.beside(targets::without_a_system, |steps| {
        steps.run("tests of the workspace", || {
            // candle, which apr-interop compares with, takes as long to build as everything else.
            let tests = ["--workspace", "--exclude", "apr-interop", "--all-features", "--no-fail-fast"];
            run_program(&mut cargo("test", tests))
        });
        if python.is_some() {
            python_checks(steps);
        }
        targets::features(steps);
    });
}

fn python_checks(steps: &mut Steps) {
    let model = "fixtures/tiny-llama/model.safetensors";
    let sealed = |steps: &mut Steps| {
        steps.run("Python reads what apr encrypts, signs and licenses", || {
            reference::check_sealed(&target_dir().join("debug/apr"))
        });
    };
    steps.beside(sealed, |steps| {
        if workspace().join(model).exists() {
            steps.run("the model tiny-llama computes sums, by NumPy", || {
                run_program(program(reference::python()).arg("fixtures/tiny-llama/check.py"))
            });
        }
    });
}
