//! Points 26, 27, 31 and 41 of `docs/qa.md`, B: tensor physics and statistics.

use apr_registry::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use serde_json::json;

use crate::support::{Run, Sandbox, f32s, safetensors, sound};

/// Returns the run on a model with one more tensor, after the command accepted the model without
/// it.
#[track_caller]
fn accepted_then(line: &str, entry: Apr2Entry) -> Run {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    sandbox.apr(line).clean();
    sandbox.write("m.apr", sound().entry(entry).build());
    sandbox.apr(line)
}

/// Four values, the third with these bits.
fn one_odd(bits: u32) -> Vec<u8> {
    f32s(&[0.5, 1.0, f32::from_bits(bits), -2.0])
}

#[test]
fn qa_26_a_nan_is_an_error_that_names_its_tensor() {
    for bits in [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001] {
        for line in ["validate m.apr --nan-check", "validate m.apr"] {
            let odd = Apr2Entry::new("odd", DType::F32, &[4], &one_odd(bits));
            accepted_then(line, odd).fails(5, &["tensor 'odd': 1 of 4 values are NaN", "INVALID"]);
        }
    }
    // Nobody asked for it here.
    let odd = Apr2Entry::new("odd", DType::F32, &[4], &one_odd(0x7fc0_0000));
    accepted_then("validate m.apr --zero-check", odd).clean();
}

#[test]
fn qa_26_a_nan_is_found_in_every_float_and_every_format() {
    let cases = [
        ("F16", 0x7e00_u16.to_le_bytes().to_vec()),
        ("BF16", 0x7fc0_u16.to_le_bytes().to_vec()),
        ("F32", f32s(&[f32::NAN])),
        ("F64", f64::NAN.to_le_bytes().to_vec()),
        ("F8_E4M3", vec![0x7f]),
        ("F8_E5M2", vec![0x7e]),
    ];
    for (dtype, bytes) in cases {
        let sandbox =
            Sandbox::new().with("m.safetensors", safetensors(&[("odd", dtype, &[1], bytes)]));
        let run = sandbox.apr("validate m.safetensors --nan-check");
        run.fails(5, &["tensor 'odd': 1 of 1 values are NaN"]);
    }
}

#[test]
fn qa_27_an_infinity_is_an_error_that_names_its_tensor() {
    for bits in [0x7f80_0000, 0xff80_0000] {
        for line in ["validate m.apr --nan-check", "validate m.apr"] {
            let odd = Apr2Entry::new("odd", DType::F32, &[4], &one_odd(bits));
            accepted_then(line, odd)
                .fails(5, &["tensor 'odd': 1 of 4 values are infinite", "INVALID"]);
        }
    }
}

#[test]
fn qa_31_a_tensor_of_zeros_warns() {
    let zeros = |name: &str| Apr2Entry::new(name, DType::F32, &[4], &f32s(&[0.0, -0.0, 0.0, 0.0]));
    for line in ["validate m.apr --zero-check", "validate m.apr"] {
        let run = accepted_then(line, zeros("d.weight"));
        run.ok().says(&["warning", "tensor 'd.weight': every value is zero", "\nVALID"]);
    }
    accepted_then("validate m.apr --zero-check --strict", zeros("d.weight"))
        .fails(5, &["every value is zero"]);
    // A bias starts at zero and may stay there.
    accepted_then("validate m.apr --zero-check", zeros("d.bias")).clean();
    // Quantized blocks without a bit set are zero as well.
    let blocks = Apr2Entry::new("d.q8", DType::Q8_0, &[32], &[0; 34]);
    accepted_then("validate m.apr --zero-check", blocks)
        .ok()
        .says(&["tensor 'd.q8': every value is zero"]);
}

/// Values around the largest fp16 number, 65504; values nearer to the next power of two become
/// infinite.
const AROUND_F16: [f32; 8] =
    [65504.0, 65505.0, 65519.0, -65504.0, 65520.0, -65520.0, 1e6, f32::MAX];

fn around_f16() -> Apr2Builder {
    Apr2Builder::new()
        .entry(Apr2Entry::new("fits", DType::F32, &[2], &f32s(&[65504.0, 1.0])))
        .entry(Apr2Entry::new("large", DType::F32, &[8], &f32s(&AROUND_F16)))
}

#[test]
fn qa_41_values_past_the_range_of_fp16_become_infinite_and_that_is_told() {
    let sandbox = Sandbox::new().with("m.apr", around_f16().build());
    let run = sandbox.apr("convert m.apr --precision fp16 -o h.safetensors").ok();
    run.says(&[
        "4 values became infinite",
        "lost: large (4 values became infinite): they exceed the range of f16",
    ]);
    let file = sandbox.read("h.safetensors");
    let halves: Vec<u16> = file[file.len() - 16..]
        .chunks_exact(2)
        .map(|two| u16::from_le_bytes([two[0], two[1]]))
        .collect();
    assert_eq!(halves, [0x7bff, 0x7bff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c00, 0x7c00]);
    sandbox.apr("validate h.safetensors").fails(5, &["tensor 'large': 4 of 8 values are infinite"]);
    // The same values fit bf16, whose range is that of f32 except for the very end.
    sandbox
        .apr("convert m.apr --precision bf16 -o b.safetensors")
        .ok()
        .says(&["1 value became infinite"]);
}

#[test]
fn qa_41_the_loss_is_recorded_in_the_file() {
    let sandbox = Sandbox::new().with("m.apr", around_f16().build());
    let report = sandbox.apr("convert m.apr --precision fp16 -o h.apr --json").ok().json();
    let loss = json!([{
        "name": "large", "what": "4 values became infinite", "why": "they exceed the range of f16",
    }]);
    assert_eq!((&report["losses"], &report["rounding"]["overflowed"]), (&loss, &4.into()));
    assert_eq!(sandbox.apr("inspect h.apr --json").ok().json()["metadata"]["loss"], loss);
    // The note was patched into the front, and the checksums know.
    sandbox.apr("validate h.apr --checksum").clean();
    // What the sound part of the model is, is not called a loss.
    sandbox.write("m.apr", sound().build());
    sandbox.apr("convert m.apr --precision fp16 -o s.apr").clean();
    assert!(sandbox.apr("inspect s.apr --json").ok().json()["metadata"].get("loss").is_none());
}

#[test]
fn truth_values_other_than_0_and_1_are_odd_and_kept() {
    let file = safetensors(&[("mask", "BOOL", &[4], vec![0, 1, 2, 255])]);
    let sandbox = Sandbox::new().with("m.safetensors", &file);
    sandbox
        .apr("validate m.safetensors")
        .ok()
        .says(&["2 values of BOOL are neither 0 nor 1", "VALID"]);
    sandbox.apr("convert m.safetensors -o m.apr").ok().says(&["2 values of BOOL"]);
    let report = sandbox.apr("export m.apr -o back.safetensors --json").ok().json();
    assert!(report["validation"]["warnings"].to_string().contains("2 values of BOOL"), "{report}");
    assert!(sandbox.read("back.safetensors") == file);
}
