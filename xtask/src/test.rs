//! Everything that goldens, properties and small reference libraries prove; what live peers prove
//! is in `interop`.

use std::{fs, io};

use crate::process::{cargo, find_program, program, run as run_program, target_dir, workspace};
use crate::steps::{Outcome, Steps, Stop};
use crate::system::install_packages;
use crate::{builds, reference};

pub(crate) fn run(steps: &mut Steps) {
    // The page itself is built beside the tests, so that the program gets a stand-in for it.
    let page = workspace().join("fixtures/page");
    // candle, which apr-interop compares with, takes as long to build as everything else.
    let tests = || {
        let mut tests = cargo(
            "test",
            ["--workspace", "--exclude", "apr-interop", "--all-features", "--no-fail-fast"],
        );
        tests.env("APR_PAGE", &page);
        tests
    };

    let written = target_dir().join("tmp/written-onnx");
    let (mut python, mut built) = (None, None);
    let fetch = |steps: &mut Steps| {
        python = steps.run("the Python reference environment", reference::set_up_python);
        steps.run("the model all-MiniLM-L6-v2", reference::fetch_model);
        builds::set_up(steps);
        steps.run("tmux, for tests of screens", set_up_tmux);
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
                steps.run("tests of the workspace", || {
                    fs::remove_dir_all(&written).or_else(unless_absent).map_err(Stop::failed)?;
                    run_program(tests().env("APR_WRITTEN_ONNX", &written))
                });
            }
        });
    });
    if python.is_some() && built.is_some() {
        steps.run("onnx's checker takes the files that tests wrote", || {
            reference::check_written(&written)
        });
    }
}

fn set_up_tmux() -> Outcome {
    match find_program(|name| name == "tmux") {
        Some(_) => Ok(()),
        None => install_packages(&["tmux"], "install tmux 3.0 or later"),
    }
}

/// Ignores the error of removing a missing file.
fn unless_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
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
