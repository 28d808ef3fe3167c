//! Models in codes and scales of which tensors are left out, pruned or merged, in one process and
//! in parts.

use std::fs;

use crate::codes::path;
use crate::support::{Sandbox, tensors};

/// A sandbox with tiny-llama in two layouts.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let model = apr_testkit::locate::fixture("tiny-llama").display().to_string();
    for layout in ["fp8", "mlx-4"] {
        let line = ["quantize", &model, "--type", layout, "--format", "safetensors", "-o", layout];
        sandbox.run(&line).ok();
    }
    sandbox
}

/// Runs a job in three parts, and returns the bytes of its output.
fn in_parts(sandbox: &Sandbox, job: &str) -> Vec<u8> {
    fs::remove_dir_all(sandbox.path("p.parts")).ok();
    fs::remove_file(sandbox.path("m.apr")).ok();
    sandbox.apr(&format!("plan --parts 3 -f -o p.json {job} -o m.apr -f")).ok();
    for part in 0..3 {
        sandbox.apr(&format!("run-part p.json {part}")).ok();
    }
    sandbox.apr("finish p.json").ok();
    sandbox.apr("convert m.apr -o parts.safetensors -f --relaxed").ok();
    sandbox.read("parts.safetensors")
}

#[test]
fn parts_write_what_one_process_writes_of_edited_and_pruned_codes() {
    let sandbox = sandbox();
    for model in ["fp8", "mlx-4"] {
        for job in [
            "convert MODEL --drop *lm_head*",
            "convert MODEL --keep *mlp* --rename mlp=ffn --relaxed",
            "prune MODEL --prune-layers 1",
            "prune MODEL --prune 0.5",
            "factorize MODEL --rank 4",
        ] {
            let job = job.replace("MODEL", model);
            sandbox.apr(&format!("{job} -o whole.apr -f")).ok();
            sandbox.apr("convert whole.apr -o whole.safetensors -f --relaxed").ok();
            let whole = tensors(&sandbox.read("whole.safetensors"));
            assert!(tensors(&in_parts(&sandbox, &job)) == whole, "{job}");
        }
    }
}

#[test]
fn a_part_of_an_edited_job_finds_codes_that_changed_after_the_plan() {
    let sandbox = sandbox();
    for job in ["convert fp8 --drop *lm_head*", "prune fp8 --prune 0.5"] {
        sandbox.apr(&format!("plan --parts 1 -f -o p.json {job} -o m.apr -f")).ok();
        let whole = sandbox.read("fp8/model.safetensors");
        let mut bytes = whole.clone();
        let last = bytes.len() - 40_000;
        bytes[last] ^= 1;
        sandbox.write("fp8/model.safetensors", bytes);
        sandbox.apr("run-part p.json 0").fails(5, &["E004", "digest differs"]);
        sandbox.write("fp8/model.safetensors", whole);
        fs::remove_dir_all(sandbox.path("p.parts")).ok();
    }
}

#[test]
fn tensors_that_are_left_out_leave_the_codes_of_the_others() {
    let sandbox = sandbox();
    sandbox.apr("convert fp8 --drop *lm_head* --format safetensors -o less").ok();
    let mut all = tensors(&sandbox.read("fp8/model.safetensors"));
    all.remove("lm_head.weight").expect("a head");
    assert!(tensors(&sandbox.read("less/model.safetensors")) == all);
    let config = String::from_utf8(sandbox.read("less/config.json")).expect("text");
    assert!(config.contains("quantization_config"), "{config}");

    // A configuration may name modules.
    let renamed =
        sandbox.apr("convert fp8 --rename mlp=ffn --relaxed --format safetensors -o renamed").ok();
    renamed.says(&["14 weights decoded"]);
}

#[test]
fn values_of_a_graph_have_the_dtype_that_codes_are_decoded_to() {
    let Some(path) = path("fp8-block") else { return };
    let sandbox = Sandbox::new();
    for (format, file) in [("onnx", "m.onnx"), ("torchscript", "m.pt")] {
        let size = |more: &str| {
            let line = format!("convert {path} --format {format} -o {file} -f {more}");
            sandbox.apr(line.trim()).ok();
            sandbox.read(file).len()
        };
        let (whole, halves) = (size(""), size("--dequantize bf16"));
        assert!(halves < whole * 2 / 3, "{format}: {halves} of {whole}");
    }
}

#[test]
fn a_merge_in_another_precision_has_an_effect() {
    let sandbox = sandbox();
    let merged = sandbox.apr("merge fp8 mlx-4 --precision bf16 -o m").ok();
    assert!(!merged.stderr.contains("has no effect"), "{}", merged.stderr);
    let written = tensors(&sandbox.read("m/model.safetensors"));
    assert!(written.values().all(|(dtype, ..)| dtype == "BF16"));
}

#[test]
fn codes_of_three_bits_move_to_blocks_with_a_minimum() {
    let Some(path) = path("gptq3") else { return };
    let sandbox = Sandbox::new();
    let made = sandbox.apr(&format!("convert {path} --quantize q4_1 -o m.gguf")).ok();
    made.says(&["14 weights moved to blocks with the same codes"]);
    sandbox.apr(&format!("convert {path} --quantize q4_0 -o q.gguf")).ok();
    let same = sandbox.apr("diff m.gguf q.gguf --tensors *attn_q* --read").text();
    assert!(same.contains("SAME"), "{same}");
}
