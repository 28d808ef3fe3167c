//! Families write behind tokens what they write in transformers (`fixtures/run/families.json`).

use std::collections::BTreeMap;

use apr_testkit::locate::fixture;
use serde_json::Value;

use crate::support::{Sandbox, f32s, safetensors, scrambled};

/// Writes the folder of a case, with the weights that `fixtures/run/families.py` makes.
fn made_up(sandbox: &Sandbox, case: &Value) -> String {
    let name = case["case"].as_str().expect("a name").to_owned();
    let text = std::fs::read(fixture("families").join(&name).with_extension("json"));
    let json: Value = serde_json::from_slice(&text.expect("a fixture")).expect("JSON");
    let shapes: BTreeMap<String, Vec<u64>> =
        serde_json::from_value(json["tensors"].clone()).expect("shapes");

    let mut drawn = 0;
    let tensors: Vec<_> = shapes
        .iter()
        .map(|(name, shape)| {
            let middle = if shape.len() == 1 && name.ends_with("weight") { 1.0 } else { 0.0 };
            let value = |_| {
                drawn += 1;
                let step = u16::try_from(scrambled(drawn) % 2001).expect("a small number");
                middle + (f32::from(step) - 1000.0) / 1024.0
            };
            let values: Vec<f32> = (0..shape.iter().product::<u64>()).map(value).collect();
            (name.as_str(), "F32", shape.as_slice(), f32s(&values))
        })
        .collect();
    sandbox.write(&format!("{name}/model.safetensors"), safetensors(&tensors));
    sandbox.write(&format!("{name}/config.json"), json["config"].to_string());
    sandbox.write(&format!("{name}/generation_config.json"), case["generation"].to_string());
    name
}

fn cases() -> Vec<Value> {
    let text = std::fs::read(fixture("run/families.json")).expect("it is there");
    serde_json::from_slice(&text).expect("JSON")
}

fn written(sandbox: &Sandbox, model: &str, case: &Value) -> Value {
    let given: Vec<String> =
        case["given"].as_array().expect("tokens").iter().map(Value::to_string).collect();
    let line = format!("run {model} --tokens {} --max-tokens 12 --json", given.join(","));
    sandbox.apr(&line).ok().json()
}

#[test]
fn families_write_what_they_write_in_transformers() {
    for case in cases() {
        let sandbox = Sandbox::new();
        let name = made_up(&sandbox, &case);
        let report = written(&sandbox, &name, &case);
        assert_eq!(report["added"], case["added"], "{name}");
        assert_eq!(report["ended"], case["ended"], "{name}");
    }
}

/// llama.cpp supports some of these families: their GGUF files compute the same results.
#[test]
fn families_of_llama_cpp_write_the_same_from_gguf() {
    for case in cases() {
        let sandbox = Sandbox::new();
        let name = made_up(&sandbox, &case);
        if ["bloom", "exaone4", "olmoe"].contains(&name.as_str()) {
            sandbox.apr(&format!("convert {name} -o {name}.gguf --force")).ok();
            let report = written(&sandbox, &format!("{name}.gguf"), &case);
            assert_eq!(report["added"], case["added"], "{name}");
        } else {
            sandbox
                .apr(&format!("convert {name} -o {name}.gguf"))
                .says(&["llama.cpp does not support the family"]);
            assert!(!sandbox.path(&format!("{name}.gguf")).exists(), "{name}");
        }
    }
}
