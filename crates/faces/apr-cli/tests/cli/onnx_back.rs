//! ONNX files that `apr` exported, read as checkpoints again.

use crate::onnx_families::made_up;
use crate::support::Sandbox;

/// Linear layers multiply by the transpose of the checkpoint's tensor, and the file records that.
#[test]
fn an_exported_file_has_the_tensors_of_its_folder() {
    const CASES: [&str; 10] = [
        "llama",
        "bert_mlm",
        "gpt2",
        "opt",
        "vit",
        "wav2vec2_ctc",
        "mamba",
        "swin",
        "albert",
        "bloom",
    ];

    let sandbox = Sandbox::new();
    for case in CASES {
        made_up(&sandbox, case);
        sandbox.apr(&format!("export {case} -o {case}.onnx")).ok();
        let same = sandbox.apr(&format!("diff {case}.onnx {case} --exit-code")).ok();
        assert!(same.to_string().contains("SAME: "), "{case}: {same}");
    }
}

/// A value that is only a part of a tensor does not have the tensor's name.
#[test]
fn parts_of_tensors_are_not_taken_for_them() {
    let sandbox = Sandbox::new();
    for case in ["phi3", "gpt_neox", "gemma", "whisper"] {
        made_up(&sandbox, case);
        sandbox.apr(&format!("export {case} -o {case}_out --format onnx")).ok();
        let part = if case == "whisper" { "encoder_model" } else { "model" };
        let run = sandbox.apr(&format!("diff {case}_out/{part}.onnx {case}"));
        let text = run.to_string();
        assert!(!text.contains("DRIFT") && !text.contains("INCOMPARABLE"), "{case}: {text}");
    }
}

/// The way back is the way there: to the folder's names, and to the same file.
#[test]
fn an_exported_file_becomes_a_folder_and_comes_back() {
    let sandbox = Sandbox::new();
    made_up(&sandbox, "llama");
    sandbox.apr("export llama -o model.onnx").ok();
    sandbox.apr("export model.onnx -o folder").ok();
    let listed = sandbox.apr("tensors folder").ok().to_string();
    assert!(listed.contains("model.layers.0.self_attn.q_proj.weight"), "{listed}");
    sandbox.apr("diff folder llama --exit-code").ok();

    sandbox.apr("import model.onnx -o packed.apr").ok();
    sandbox.apr("export packed.apr -o back.onnx").ok();
    assert_eq!(sandbox.read("back.onnx"), sandbox.read("model.onnx"));

    sandbox.apr("convert model.onnx -o half.onnx --precision fp16").ok();
    sandbox.apr("convert half.onnx -o newer.onnx --opset 21").ok();
    sandbox.apr("diff newer.onnx llama --tolerance 0.01 --exit-code").ok();
}

/// The original file has floats, so quantized tensors become floats, transposed ones too.
#[test]
fn a_quantized_model_comes_back_as_floats() {
    let sandbox = Sandbox::new();
    made_up(&sandbox, "llama");
    sandbox.apr("export llama -o model.onnx").ok();
    sandbox.apr("quantize model.onnx --type int8 -o small.apr").ok();
    sandbox.apr("export small.apr -o plain.onnx").ok();
    let compare = |file: &str, tolerance: f64| {
        let report = sandbox.apr(&format!("diff {file} small.apr --json")).json();
        let most = report["max_delta"].as_f64().expect("a number");
        assert!(most <= tolerance, "{file}: {most}");
        assert!(report["tensors"].as_array().is_some_and(|all| all.len() > 10), "{report}");
    };
    compare("plain.onnx", 0.0);
    for (dtype, tolerance) in [("f32", 0.0), ("f16", 1e-3)] {
        sandbox.apr(&format!("export small.apr -o {dtype}.onnx --dequantize {dtype}")).ok();
        compare(&format!("{dtype}.onnx"), tolerance);
        let dtypes = sandbox.apr(&format!("inspect {dtype}.onnx --json")).ok().json();
        assert!(dtypes["dtypes"].to_string().contains(&format!("\"{dtype}\"")), "{dtypes}");
    }
}
