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
