//! Figures as ratios to a peer's, measured in the same run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::process::{cargo, output, program, run as run_program, say, target_dir, workspace};
use crate::reference;
use crate::steps::{Outcome, Steps, Stop};

/// Runs `bench/bench.py`; `arguments` are passed on to it.
pub(crate) fn run(steps: &mut Steps, arguments: &[&str]) {
    steps.run("the Python reference environment", reference::set_up_python);
    steps.run("all-MiniLM-L6-v2, for its weights", reference::fetch_model);
    steps.run("llama.cpp, to compare with", reference::set_up_llama_cpp);
    steps.run("transformers and onnxruntime, to compare with", reference::set_up_transformers);
    steps.run("compressed-tensors, to compare with", reference::set_up_codes);
    steps.run("llama.cpp's converter, to compare with", reference::set_up_llama_source);
    steps.run("build as it is shipped", || {
        let what = [
            "--profile",
            "dist",
            "-p",
            "apr-cli",
            "-p",
            "apr-io",
            "-p",
            "apr-tensor",
            "-p",
            "apr-format",
            "-p",
            "apr-testkit",
            "-p",
            "apr-graph",
            "--bins",
            "--examples",
        ];
        run_program(&mut cargo("build", what))
    });
    steps.run("figures", || {
        let folder = folder();
        fs::create_dir_all(&folder).map_err(Stop::failed)?;
        let release = target_dir().join("dist");
        let mut command = program(reference::python());
        command.arg(workspace().join("xtask/bench/bench.py"));
        command.arg("--apr").arg(release.join("apr"));
        command.arg("--read-all").arg(release.join("examples/read_all"));
        command.arg("--block-speed").arg(release.join("examples/block_speed"));
        command.arg("--large-graph").arg(release.join("examples/large_graph"));
        command.arg("--codec-speed").arg(release.join("examples/codec_speed"));
        command.arg("--run-speed").arg(release.join("examples/run_speed"));
        command.env("APR_GRAPH_PYTHON", reference::graph_python());
        command.arg("--hub").arg(release.join("examples/hub"));
        command.arg("--minilm").arg(reference::minilm().join("model.safetensors"));
        command.arg("--python").arg(reference::python());
        command.arg("--dir").arg(&folder).args(arguments);
        let result = run_program(&mut command);
        fs::remove_dir_all(&folder).map_err(Stop::failed)?;
        result
    });
}

/// Compares `apr scan` with four other scanners on the same files: some with payloads, and files of
/// this system.
pub(crate) fn scanners(steps: &mut Steps, arguments: &[&str]) {
    steps.run("four other scanners", reference::set_up_scanners);
    steps.run("build as it is shipped", || build(&["-p", "apr-cli", "--bins"]));
    steps.run("verdicts and times", || {
        let mut command = program(reference::scanner_python());
        command.arg(workspace().join("xtask/bench/scanners.py"));
        command.arg("--apr").arg(target_dir().join("dist/apr"));
        command.arg("--python").arg(reference::scanner_python());
        command.arg("--modelscan").arg(reference::modelscan_python());
        let shared = workspace().join("../shared/data");
        if shared.is_dir() {
            command.arg("--shared").arg(shared);
        }
        let system = ["/usr/share", "/usr/lib", "/etc"];
        let system: Vec<&str> = system.into_iter().filter(|it| Path::new(it).is_dir()).collect();
        if !system.is_empty() {
            command.arg("--benign").arg(format!("system={}", system.join(",")));
        }
        run_program(command.args(arguments))
    });
}

/// The features of the binary without its screens.
const WITHOUT_SCREENS: [&str; 3] =
    ["--no-default-features", "--features", "simd,hub,text,chat,audio,images,linalg,qa,seals"];

/// Measures the cost of screens in binary size and build time, and their speed.
pub(crate) fn screens(steps: &mut Steps, arguments: &[&str]) {
    let binary = || target_dir().join("dist/apr");
    let mut sizes = Vec::new();
    let mut measure = |steps: &mut Steps, what: &str, features: &[&str]| {
        steps.run(&format!("size of the binary {what} screens"), || {
            let begun = Instant::now();
            build(&[&["-p", "apr-cli", "--bins"], features].concat())?;
            let seconds = begun.elapsed().as_secs();
            let size = fs::metadata(binary()).map_err(Stop::failed)?.len();
            let crates = crates_of(features)?;
            sizes.push(size);
            say(format_args!("    {size} bytes, {crates} crates; built in {seconds} s"));
            Ok(())
        });
    };
    measure(steps, "without", &WITHOUT_SCREENS);
    measure(steps, "with", &[]);
    if let [without, with] = sizes[..] {
        say(format_args!("    screens add {} bytes", with.saturating_sub(without)));
    }
    steps.run("the first screen of 100 GB, and pictures while a tensor is read", || {
        let mut command = program("python3");
        command.arg(workspace().join("xtask/bench/screens.py"));
        run_program(command.arg("--apr").arg(binary()).args(arguments))
    });
}

/// Returns the number of crates in the binary.
fn crates_of(features: &[&str]) -> Result<usize, Stop> {
    let tree = ["-p", "apr-cli", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let listed = output(cargo("tree", tree).args(features));
    let listed = listed.ok_or_else(|| Stop::failed("cargo tree lists no crates"))?;
    // A crate that is listed again has a mark.
    let names = listed.lines().map(|line| line.trim_end_matches(" (*)").trim());
    Ok(names.collect::<BTreeSet<_>>().len())
}

/// Runs every command on files that cause excessive work (denial of service).
pub(crate) fn excessive(steps: &mut Steps, arguments: &[&str]) {
    steps.run("build as it is shipped", || {
        build(&["-p", "apr-cli", "-p", "apr-testkit", "--bins", "--examples"])
    });
    steps.run("every command ends in time or with E008", || {
        let (folder, release) = (folder(), target_dir().join("dist"));
        run_program(program(release.join("examples/excessive")).arg(&folder).arg("1000000"))?;
        let mut command = program("python3");
        command.arg(workspace().join("xtask/bench/excessive.py"));
        command.arg("--apr").arg(release.join("apr")).arg(&folder).args(arguments);
        let result = run_program(&mut command);
        fs::remove_dir_all(&folder).map_err(Stop::failed)?;
        result
    });
}

fn build(what: &[&str]) -> Outcome {
    run_program(cargo("build", ["--profile", "dist"]).args(what))
}

/// Returns a folder in memory if possible, so that the disk does not affect the measurement.
fn folder() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { target_dir() };
    parent.join(format!("apr-bench-{}", std::process::id()))
}
