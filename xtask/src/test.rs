//! Everything that goldens, properties and small reference libraries prove; what live peers prove
//! is in `interop`.

use crate::process::{cargo, program, run as run_program, target_dir, workspace};
use crate::steps::Steps;
use crate::{builds, reference};

pub(crate) fn run(steps: &mut Steps) {
    // candle, which apr-interop compares with, takes as long to build as everything else.
    let tests = || {
        cargo(
            "test",
            ["--workspace", "--exclude", "apr-interop", "--all-features", "--no-fail-fast"],
        )
    };

    let (mut python, mut built) = (None, None);
    let fetch = |steps: &mut Steps| {
        python = steps.run("the Python reference environment", reference::set_up_python);
        steps.run("the model all-MiniLM-L6-v2", reference::fetch_model);
        builds::set_up(steps);
    };
    steps.beside(fetch, |steps| {
        built =
            steps.run("the workspace's tests are built", || run_program(tests().arg("--no-run")));
    });
    // They use one processor each, and need the program that is built.
    let checks = |steps: &mut Steps| {
        if python.is_some() {
            python_checks(steps);
        }
    };

    // Tests wait for each other and for files; compiling meanwhile uses the processors.
    steps.beside(builds::web, |steps| {
        steps.beside(checks, |steps| {
            if built.is_some() {
                steps.run("tests of the workspace", || run_program(&mut tests()));
            }
        });
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
