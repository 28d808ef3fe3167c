//! Adapters that are no LoRA: `fixtures/lora/kinds` has what PEFT merges them to.

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::{Sandbox, tensors};

fn numbers(dtype: &Value, bytes: &[u8]) -> Vec<f32> {
    match dtype.as_str() {
        Some("F32") => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        _ => bytes
            .as_chunks()
            .0
            .iter()
            .map(|half| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16))
            .collect(),
    }
}

#[test]
fn adapters_of_other_kinds_are_merged_as_peft_merges_them() {
    let folder = locate::fixture("lora/kinds");
    let cases = fs::read(folder.join("cases.json")).expect("the cases");
    let cases: Value = serde_json::from_slice(&cases).expect("JSON");
    let goldens = tensors(&fs::read(folder.join("goldens.safetensors")).expect("goldens"));
    let sandbox = Sandbox::new();
    for (case, of) in cases.as_object().expect("an object") {
        let base = locate::fixture("lora").join(of["base"].as_str().expect("a name"));
        let adapter = folder.join(of["adapter"].as_str().expect("a name"));
        let (base, adapter) = (base.display().to_string(), adapter.display().to_string());
        let line = ["merge", &base, "--lora", &adapter, "-o", "out.safetensors", "-f"];
        sandbox.run(&line).ok();
        let found = tensors(&sandbox.read("out.safetensors"));
        let before = fs::read(
            locate::fixture("lora")
                .join(of["base"].as_str().expect("a name"))
                .join("model.safetensors"),
        );
        let mut expected = tensors(&before.expect("the base"));
        let golden = goldens.iter().filter_map(|(name, tensor)| {
            Some((name.strip_prefix(&format!("{case}/"))?.to_owned(), tensor.clone()))
        });
        let golden: Vec<_> = golden.collect();
        assert!(!golden.is_empty(), "{case} changes something");
        expected.extend(golden);
        assert!(found.keys().eq(expected.keys()), "{case}: {:?}", found.keys());
        for (name, (dtype, shape, bytes)) in &expected {
            let (own, own_shape, own_bytes) = &found[name];
            assert_eq!((own, own_shape), (dtype, shape), "{case}: {name}");
            // A half float may round the other way.
            let most = if dtype == "F32" { 2e-6 } else { 8e-3 };
            let pairs = numbers(dtype, bytes).into_iter().zip(numbers(own, own_bytes));
            for (one, other) in pairs {
                let is_close = (one - other).abs() <= most * one.abs().max(1.0);
                assert!(is_close, "{case}: {name}: {one} and {other}");
            }
        }
    }
    assert_eq!(cases.as_object().map(serde_json::Map::len), Some(37), "a case of each kind");
}

#[test]
fn a_change_that_multiplies_is_not_scaled() {
    let lora = |name: &str| locate::fixture("lora").join(name).display().to_string();
    let sandbox = Sandbox::new();
    let adapter = format!("{}:0.5", lora("kinds/oft"));
    let line = ["merge", &lora("llama"), "--lora", &adapter, "-o", "out"];
    sandbox.run(&line).fails(4, &["E001", "multiplies weights", "0.5 times"]);
}
