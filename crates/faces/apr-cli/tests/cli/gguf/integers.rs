//! Weights of integers in groups that others quantized, in GGUF's blocks of integers: the codes
//! move where the blocks hold the same values.

use std::collections::BTreeMap;
use std::fs;

use apr_testkit::locate::shared_case;
use serde_json::{Value, json};

use crate::support::{Sandbox, tensors};

fn case(name: &str) -> Option<String> {
    let path = shared_case(&format!("codes/{name}"))?;
    Some(path.to_str().expect("text").to_owned())
}

/// Bits of the values of a file's tensors of `f32`, by name.
fn bits(file: &[u8]) -> BTreeMap<String, Vec<u32>> {
    let of =
        |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bits| u32::from_le_bytes(*bits)).collect();
    let tensors = tensors(file).into_iter().filter(|(_, (dtype, ..))| dtype == "F32");
    tensors.map(|(name, (_, _, bytes))| (name, of(&bytes))).collect()
}

/// Rounds to `bf16`, to the nearest and to even.
fn round_to_bf16(bits: u32) -> u32 {
    (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000
}

/// Folders, a type, and whether the library's values are rounded to `bf16` after the product, which
/// a block does not do.
const EXACT: [(&str, &str, bool); 14] = [
    ("autoround4", "q4_0", false),
    ("autoround4", "q4_1", false),
    ("autoround4", "q8_0", false),
    ("gptq4-sym-v2", "q4_0", false),
    ("gptq4-sym-v2", "q4_1", false),
    ("gptq4-sym-v2", "q8_0", false),
    ("gptq3", "q4_0", false),
    ("gptq3", "q8_0", false),
    ("gptq4", "q8_0", false),
    ("awq4", "q8_0", false),
    ("ct-w4a16", "q4_0", true),
    ("ct-w4a16", "q4_1", true),
    ("ct-w4a16", "q8_0", true),
    ("ct-w4a16-asym", "q8_0", true),
];

#[test]
fn codes_that_fit_blocks_have_their_values_bit_for_bit() {
    let sandbox = Sandbox::new();
    for (name, dtype, is_rounded) in &EXACT {
        let Some(source) = case(name) else { return };
        let line = format!("convert {source} -o m.gguf --quantize {dtype} -f");
        let report = sandbox.apr(&format!("{line} --json")).ok().json();
        let coded = &report["coded"];
        let found = (&coded["weight_count"], &coded["in_blocks"]["weight_count"]);
        assert_eq!(found, (&json!(0), &json!(14)), "{name} {dtype}");
        let quantized = |row: &&Value| row["dtype"] == **dtype;
        let rows = sandbox.apr("tensors m.gguf --json").ok().json();
        let rows = rows["tensors"].as_array().expect("rows");
        assert!(rows.iter().filter(quantized).count() >= 14, "{name} {dtype}");

        sandbox.apr("convert m.gguf --dequantize f32 --format safetensors -o m -f").ok();
        let ours = bits(&sandbox.read("m/model.safetensors"));
        let known = bits(&fs::read(format!("{source}.ref.safetensors")).expect("values"));
        assert!(!known.is_empty());
        for (tensor, known) in known {
            let ours = ours[&tensor].iter();
            let ours = ours.map(|&bits| if *is_rounded { round_to_bf16(bits) } else { bits });
            assert!(ours.eq(known), "{name} {dtype}: {tensor}");
        }
        let answer = sandbox.apr("run m.gguf --prompt 12+34=").ok().text();
        assert_eq!(answer.trim(), "46", "{name} {dtype}");
    }
}

#[test]
fn codes_that_do_not_fit_are_rounded_with_a_warning() {
    let sandbox = Sandbox::new();
    for (name, dtype, why) in [
        ("gptq4", "q4_0", "zero points are not in the middle"),
        ("awq4", "q4_1", "scales times zero points are not half floats"),
        ("ct-w4a16-asym", "q4_0", "zero points are not in the middle"),
        ("gptq4-actorder", "q4_0", "groups are spread over the columns"),
        ("gptq8", "q8_0", "can be outside of -127 to 127"),
    ] {
        let Some(source) = case(name) else { return };
        let run = sandbox.apr(&format!("quantize {source} -o m.gguf --type {dtype} -f"));
        let said = format!("14 weights of integers rounded again to {dtype}");
        run.ok().says(&[&said, why, "14 weights decoded"]);
    }
    // Codes of more bits than the blocks have are rounded as floats are.
    let Some(source) = case("gptq8") else { return };
    let run = sandbox.apr(&format!("quantize {source} -o m.gguf --type q4_0 -f --json"));
    let report = run.ok().json();
    assert_eq!(report["coded"].get("in_blocks"), None);
    assert!(!report["warnings"].to_string().contains("rounded again"));
}

#[test]
fn a_quantization_that_moves_codes_states_its_type_as_any_other() {
    let Some(source) = case("autoround4") else { return };
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("quantize {source} --type q4_0 -o m.gguf")).ok();
    let report = sandbox.apr("inspect m.gguf --quantization --json").ok().json();
    assert_eq!(report["quantization"]["scheme"], "q4_0", "{report}");
    // Without a type, GGUF gets values.
    let run = sandbox.apr(&format!("convert {source} -o v.gguf"));
    run.ok().says(&["14 weights decoded"]);
}
