//! Values that blocks can't hold, and quants that they may not have.

use std::fs;

use apr_registry::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};

use super::weights;
use crate::support::{Sandbox, f32s, safetensors};

/// Two blocks of Q8_0: a scale of one and quants from one end of the range to the other.
fn q8_0_blocks() -> Vec<u8> {
    let quants = (-127_i8..=127).step_by(8).map(|quant| quant.to_le_bytes()[0]);
    let block: Vec<u8> = [0x00, 0x3c].into_iter().chain(quants).collect();
    assert_eq!(block.len(), 34);
    block.repeat(2)
}

#[test]
fn qa_34_a_quant_of_minus_128_is_an_error_that_names_its_tensor() {
    let apr = |bytes: &[u8]| {
        Apr2Builder::new().entry(Apr2Entry::new("w", DType::Q8_0, &[2, 32], bytes)).build()
    };
    let gguf =
        |bytes: &[u8]| GgufBuilder::new().entry(GgufEntry::new("w", 8, &[32, 2], bytes)).build();
    let mut wrong = q8_0_blocks();
    // The last quant of the second block.
    wrong[67] = 0x80;
    let sandbox = Sandbox::new();
    for line in ["validate m --physics", "validate m"] {
        for (sound, odd) in
            [(apr(&q8_0_blocks()), apr(&wrong)), (gguf(&q8_0_blocks()), gguf(&wrong))]
        {
            sandbox.write("m", sound);
            sandbox.apr(line).clean();
            sandbox.write("m", odd);
            sandbox.apr(line).fails(
                5,
                &["tensor 'w': 1 quant of -128", "quants of q8_0 must be in [-127, 127]"],
            );
        }
    }
    // Nothing is written of such a model either, unless that is what is wanted.
    fs::remove_file(sandbox.path("m")).expect("it is there");
    sandbox.write("m.apr", apr(&wrong));
    for line in ["import m.apr -o i.apr", "convert m.apr -o i.apr"] {
        sandbox.apr(line).fails(5, &["tensor 'w': 1 quant of -128", "nothing was written"]);
        assert_eq!(sandbox.files(), ["m.apr"]);
        sandbox
            .apr(&format!("{line} --relaxed"))
            .ok()
            .says(&["error: tensor 'w': 1 quant of -128"]);
        fs::remove_file(sandbox.path("i.apr")).expect("it is there");
    }
    // The same byte in a scale, and in blocks whose quants do take it, is no error.
    let mut negative = q8_0_blocks();
    negative[34] = 0x80;
    sandbox.write("m", apr(&negative));
    sandbox.apr("validate m").clean();
    let k = Apr2Entry::new(
        "w",
        DType::Q8_K,
        &[1, 256],
        &[&1_f32.to_le_bytes()[..], &[0x80; 288]].concat(),
    );
    sandbox.write("m", Apr2Builder::new().entry(k).build());
    sandbox.apr("validate m --physics").ok();
}

#[test]
fn qa_34_rows_of_int8_have_the_same_range() {
    let mut row = [&1_f32.to_le_bytes()[..], &[0x7f, 0x81, 0x00, 0x05]].concat();
    let apr = |row: &[u8]| {
        Apr2Builder::new().entry(Apr2Entry::new("w", DType::I8_ROW, &[1, 4], row)).build()
    };
    let sandbox = Sandbox::new().with("m.apr", apr(&row));
    sandbox.apr("validate m.apr").clean();
    row[5] = 0x80;
    sandbox.write("m.apr", apr(&row));
    sandbox.apr("validate m.apr").fails(5, &["tensor 'w': 1 quant of -128", "i8_row"]);
}

#[test]
fn a_value_that_blocks_cannot_hold_is_refused_by_name() {
    for (value, what) in
        [(f32::NAN, "1 of 1,024 values are NaN"), (f32::INFINITY, "1 of 1,024 values are infinite")]
    {
        let mut odd = weights(1024);
        odd[700] = value;
        let tensors = [
            ("a.weight", "F32", &[4, 256][..], f32s(&weights(1024))),
            ("b.weight", "F32", &[4, 256], f32s(&odd)),
        ];
        let sandbox = Sandbox::new().with("m.safetensors", safetensors(&tensors));
        for scheme in ["q8_0", "q4_k_m", "int8", "iq4_xs"] {
            for option in ["", "--relaxed", "--force"] {
                let line = format!("quantize m.safetensors --type {scheme} -o q.apr {option}");
                let run = sandbox
                    .apr(&line)
                    .fails(5, &["tensor 'b.weight'", what, "can't hold", "nothing was written"]);
                assert!(!run.stderr.contains("--relaxed writes it nevertheless"), "{run}");
                assert_eq!(sandbox.files(), ["m.safetensors"], "{line}");
            }
        }
        // A float can.
        let run = sandbox
            .apr("quantize m.safetensors --type fp16 -o q.apr")
            .fails(5, &["--relaxed writes it nevertheless"]);
        assert!(!run.stderr.contains("can't hold"), "{run}");
        sandbox.apr("quantize m.safetensors --type fp16 -o q.apr --relaxed").ok();
    }
}
