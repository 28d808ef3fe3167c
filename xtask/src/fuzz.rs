//! Fuzz targets, each for a while.

use std::fs;
use std::path::Path;

use crate::process::{find_program, output, program, run as run_program, workspace};
use crate::steps::{Outcome, Steps, Stop};

const TARGETS: [&str; 33] = [
    "decode_block",
    "dequantize_any",
    "open_encrypted",
    "probe_any",
    "read_adapter",
    "read_answers",
    "read_apr1",
    "read_apr2",
    "read_aprn",
    "read_coded",
    "read_coreml",
    "read_flax",
    "read_ggml",
    "read_gguf",
    "read_keras",
    "read_manifest",
    "read_merge",
    "read_numpy",
    "read_onnx",
    "read_openvino",
    "read_orbax",
    "read_ort",
    "read_plan",
    "read_pytorch",
    "read_safetensors",
    "read_tensorflow",
    "read_tflite",
    "read_trees",
    "read_vectors",
    "read_ctranslate2",
    "roundtrip_apr2",
    "roundtrip_gguf",
    "scan_any",
];

/// Runs every target for `seconds`, starting from valid files. Findings are in `fuzz/artifacts/`.
pub(crate) fn run(steps: &mut Steps, seconds: &str) {
    for target in TARGETS {
        steps.run(&format!("fuzz target {target}, {seconds} s"), || fuzz(target, seconds));
    }
}

fn fuzz(target: &str, seconds: &str) -> Outcome {
    if find_program(|name| name == "cargo-fuzz").is_none() {
        return Err(Stop::skipped(
            "cargo-fuzz is not installed",
            "run `cargo install --locked cargo-fuzz`",
        ));
    }

    if output(program("cargo").args(["+nightly", "--version"])).is_none() {
        return Err(Stop::skipped(
            "there is no nightly toolchain",
            "run `rustup toolchain install nightly`",
        ));
    }

    let corpus = workspace().join("fuzz/corpus").join(target);
    seed(&corpus)?;
    let limits =
        [format!("-max_total_time={seconds}"), "-rss_limit_mb=1024".into(), "-timeout=10".into()];
    let mut command = program("cargo");
    command.args(["+nightly", "fuzz", "run", target, "--"]).args(limits);
    run_program(&mut command)
}

/// Valid files and former findings to start from.
fn seed(corpus: &Path) -> Outcome {
    fs::create_dir_all(corpus).map_err(Stop::failed)?;
    let fixtures = [
        "fixtures/valid/apr2",
        "fixtures/valid/aprn",
        "fixtures/valid/safetensors",
        "fixtures/codec",
        "crates/formats/apr-pytorch/tests/golden",
        "fixtures/coded",
        "fixtures/coreml",
        "fixtures/flax",
        "fixtures/keras",
        "fixtures/numpy",
        "fixtures/onnx",
        "fixtures/openvino",
        "fixtures/orbax/deep/d",
        "fixtures/orbax/ocdbt",
        "fixtures/ort",
        "fixtures/paddle",
        "fixtures/scan",
        "fixtures/tensorflow",
        "fixtures/tflite",
        "fixtures/torch",
        "fixtures/trees",
        "fixtures/vectors",
        "fixtures/wrapped",
        "fixtures/merge",
        "fixtures/lora/patterns",
        "fixtures/lora/tokens",
    ];
    for folder in fixtures {
        let Ok(files) = fs::read_dir(workspace().join(folder)) else { continue };
        for file in files.flatten().filter(|file| file.path().is_file()) {
            fs::copy(file.path(), corpus.join(file.file_name())).map_err(Stop::failed)?;
        }
    }

    Ok(())
}
