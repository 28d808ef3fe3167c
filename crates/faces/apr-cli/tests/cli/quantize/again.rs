//! Models that are quantized already: kept, dequantized, and quantized again when told.

use std::fs;

use super::{dtypes, sandbox};

#[test]
fn qa_81_quantized_tensors_stay_as_they_are_until_asked() {
    let sandbox = sandbox();
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.apr").clean();
    let lines = [
        "convert q.apr -o r.apr",
        "import q.apr -o r.apr",
        "convert q.apr --keep-quantization -o r.apr",
        "export q.apr -o r.apr",
    ];
    for line in lines {
        sandbox.apr(&format!("{line} -f")).clean();
        assert_eq!(dtypes(&sandbox, "r.apr"), ["q8_0", "q8_0", "f16", "f32"], "{line}");
        sandbox
            .apr("diff q.apr r.apr --exit-code")
            .clean()
            .says(&["SAME: 4 of 4 tensors match (0 B read)"]);
    }
    let original = |model: &str| {
        sandbox.apr(&format!("inspect {model} --quantization --json")).ok().json()["quantization"]
            .take()
    };
    assert_eq!(original("r.apr"), original("q.apr"));
    assert_eq!(original("r.apr")["original"], "f32");
}

#[test]
fn qa_82_qa_83_dequantized_tensors_have_the_float_asked_for() {
    let sandbox = sandbox();
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.apr").clean();
    for (dtype, tolerance) in [("f32", "0.0003"), ("f16", "0.0003"), ("bf16", "0.0005")] {
        for output in ["d.apr", "d.safetensors", "d.pt"] {
            sandbox.apr(&format!("convert q.apr --dequantize {dtype} -o {output} -f")).ok();
            // Tensors that were no blocks keep their types.
            assert_eq!(dtypes(&sandbox, output), [dtype, dtype, "f16", "f32"]);
            let run = sandbox
                .apr(&format!("diff m.safetensors {output} --tolerance {tolerance} --exit-code"));
            run.ok().says(&["SAME"]);
        }
    }
    let none = sandbox.apr("inspect d.apr --quantization").clean();
    none.says(&["Quantization\n  none"]);
    for (scheme, expected) in
        [("bf16", "bf16"), ("fp32", "f32"), ("f16", "f16"), ("f8_e4m3", "f8_e4m3")]
    {
        sandbox.apr(&format!("quantize m.safetensors --type {scheme} -o cast.apr -f")).ok();
        assert_eq!(dtypes(&sandbox, "cast.apr"), [expected; 4]);
    }
}

#[test]
fn quantized_weights_are_quantized_again_only_on_request() {
    let sandbox = sandbox();
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.apr").clean();
    for line in ["quantize q.apr --type q4_0 -o r.apr", "convert q.apr --quantize q4_0 -o r.apr"] {
        let run = sandbox.apr(line);
        run.fails(
            2,
            &[
                "tensor 'a.weight'",
                "already quantized as q8_0",
                "pass --requantize to quantize it to q4_0",
                "--requantize",
            ],
        );
        assert_eq!(sandbox.files(), ["m.safetensors", "q.apr"]);
        sandbox.apr(&format!("{line} --requantize")).clean();
        assert_eq!(dtypes(&sandbox, "r.apr"), ["q4_0", "q4_0", "f16", "f32"]);
        fs::remove_file(sandbox.path("r.apr")).expect("it is there");
    }
    // The type that it has already is not a change, so nothing would be done.
    let run = sandbox.apr("quantize q.apr --type q8_0 -o same.apr");
    run.fails(4, &["quantization to q8_0", "2 of them: q8_0 already"]);
}
