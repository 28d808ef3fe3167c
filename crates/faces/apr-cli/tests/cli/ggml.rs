//! The formats of GGML before GGUF, which are read. Point 95 of `docs/qa.md`.

use apr_testkit::ggml::{GgmlBuilder, GgmlTensor};

use crate::families::{metadata, names};
use crate::support::{Run, Sandbox, f32s};

/// A LLaMA of one layer in llama.cpp's format before GGUF, whose weights count up from zero.
fn legacy() -> Vec<u8> {
    let names = [
        ("tok_embeddings.weight", [4, 3]),
        ("layers.0.attention.wq.weight", [4, 4]),
        ("layers.0.attention.wk.weight", [4, 4]),
        ("layers.0.attention.wv.weight", [4, 4]),
        ("layers.0.attention.wo.weight", [4, 4]),
        ("layers.0.feed_forward.w1.weight", [4, 14]),
        ("layers.0.feed_forward.w2.weight", [14, 4]),
        ("layers.0.feed_forward.w3.weight", [4, 14]),
        ("output.weight", [4, 3]),
    ];
    let ones = |name: &str| GgmlTensor::new(name, 0, &[4], &f32s(&[1.0; 4]));
    let matrix = |(name, dims): (&str, [i32; 2])| {
        let count = u16::try_from(dims[0] * dims[1]).expect("small");
        let values: Vec<f32> = (0..count).map(|at| f32::from(at % 7) / 100.0 - 0.03).collect();
        GgmlTensor::new(name, 0, &dims, &f32s(&values))
    };
    let norms = ["layers.0.attention_norm.weight", "layers.0.ffn_norm.weight", "norm.weight"];
    let tensors = names.into_iter().map(matrix).chain(norms.map(ones));
    tensors.fold(GgmlBuilder::llama(*b"tjgg", Some(3)), GgmlBuilder::tensor).build()
}

#[test]
fn every_command_reads_a_legacy_ggml_file() {
    let sandbox = Sandbox::new().with("m.bin", legacy());
    let cases: [(&str, &[&str]); 8] = [
        (
            "inspect m.bin",
            &["Type:        LLaMA", "Format:      legacy GGML", "Vocab Size:  3", "hidden_size"],
        ),
        ("tensors m.bin --stats", &["layers.0.feed_forward.w2.weight", "[4, 14]", "12 tensors"]),
        ("validate m.bin", &["pass  Names and shapes  shapes of the LLaMA family", "\nVALID"]),
        ("explain m.bin", &["This is a **LLaMA** model.", "layers 1, hidden 4, heads 2"]),
        ("lint m.bin", &["Missing 'license' field"]),
        (
            "debug m.bin",
            &[
                "Magic:           tjgg",
                "Format:          legacy GGML",
                "magic:           ggjt",
                "valid, 0 findings",
            ],
        ),
        ("debug --drama m.bin", &["PRODUCTION READY"]),
        ("diff m.bin m.bin --exit-code", &["SAME"]),
    ];
    for (line, parts) in cases {
        sandbox.apr(line).ok().says(parts);
    }
}

#[test]
fn qa_95_a_legacy_ggml_file_is_known_by_its_hyperparameters_or_by_what_the_user_says() {
    let sandbox = Sandbox::new().with("m.bin", legacy());
    for arch in ["", "--arch llama"] {
        let run: Run = sandbox.apr(&format!("import m.bin -o m.apr -f {arch}"));
        run.ok().says(&["LLaMA family", "11 tensors renamed"]);
        assert!(names(&sandbox, "m.apr").contains(&"layers.0.attn.q_proj.weight".to_owned()));
        sandbox.apr("validate m.apr").ok();
    }
    assert_eq!(metadata(&sandbox, "m.apr")["model_type"], "llama");
    sandbox.apr("diff m.bin m.apr --exit-code").ok().says(&["SAME: 12 of 12"]);
    sandbox
        .apr("import m.bin -o x.apr --arch bert")
        .fails(5, &["the tensors do not match the BERT family", "nothing was written"]);
    sandbox.write("cut.bin", &legacy()[..300]);
    sandbox.apr("inspect cut.bin").fails(4, &["cut.bin"]);
}
