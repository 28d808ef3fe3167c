//! `apr lora extract`, whose adapters have the names that peft gives them
//! (`fixtures/lowrank/adapter.py`).

use std::collections::BTreeMap;
use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::{Sandbox, f32s, safetensors};

fn expected(model: &str) -> Value {
    let text = fs::read(locate::fixture("lowrank/adapter.json")).expect("a fixture");
    serde_json::from_slice::<Value>(&text).expect("JSON")[model].clone()
}

/// Shape and elements of each tensor of single or half precision of a safetensors file.
type Tensors = BTreeMap<String, (Vec<u64>, Vec<f32>)>;

fn tensors(file: &[u8]) -> Tensors {
    let size = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    let data = 8 + usize::try_from(size).expect("a small file");
    let header: Value = serde_json::from_slice(&file[8..data]).expect("a header");
    let number = |value: &Value| usize::try_from(value.as_u64().expect("a number")).expect("small");
    let tensor = |(name, entry): (&String, &Value)| {
        let [start, end] = [0, 1].map(|at| number(&entry["data_offsets"][at]));
        let bytes = &file[data..][start..end];
        let values = match entry["dtype"].as_str() {
            Some("F32") => {
                bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
            }
            Some("BF16") => {
                let wide = |value: &[u8; 2]| u32::from(u16::from_le_bytes(*value)) << 16;
                bytes.as_chunks().0.iter().map(|value| f32::from_bits(wide(value))).collect()
            }
            other => panic!("{name} is {other:?}"),
        };
        let shape = entry["shape"].as_array().expect("a shape").iter();
        (name.clone(), (shape.map(|dim| dim.as_u64().expect("a number")).collect(), values))
    };
    let entries = header.as_object().expect("an object").iter();
    entries.filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

fn noise(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// tiny-llama, and the same with more in each linear layer: a matrix of rank 4, but for one layer
/// of rank 2 and one without. A norm differs, too.
fn with_tuned() -> (Sandbox, Tensors) {
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(locate::fixture("tiny-llama")).expect("a fixture") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        if !name.ends_with(".py") {
            sandbox.write(&format!("base/{name}"), fs::read(&path).expect("a file"));
            sandbox.write(&format!("tuned/{name}"), fs::read(&path).expect("a file"));
        }
    }
    let (mut differences, mut state) = (Tensors::new(), 5);
    let mut tuned = tensors(&sandbox.read("base/model.safetensors"));
    for (name, (shape, values)) in &mut tuned {
        if name == "model.norm.weight" {
            values.iter_mut().for_each(|value| *value *= 1.25);
        }
        if !name.ends_with("_proj.weight") || name.contains("1.self_attn.k_proj") {
            continue;
        }
        let rank = if name.contains("0.mlp.up_proj") { 2 } else { 4 };
        let [rows, columns] = [0, 1].map(|at| usize::try_from(shape[at]).expect("small"));
        let mut difference = vec![0.0; values.len()];
        for _ in 0..rank {
            let of_rows: Vec<f32> = (0..rows).map(|_| noise(&mut state) * 0.1).collect();
            let of_columns: Vec<f32> = (0..columns).map(|_| noise(&mut state)).collect();
            for (at, value) in difference.iter_mut().enumerate() {
                *value += of_rows[at / columns] * of_columns[at % columns];
            }
        }
        values.iter_mut().zip(&difference).for_each(|(value, more)| *value += more);
        differences.insert(name.clone(), (shape.clone(), difference));
    }
    let written: Vec<_> = tuned
        .iter()
        .map(|(name, (shape, values))| (name.as_str(), "F32", &shape[..], f32s(values)))
        .collect();
    sandbox.write("tuned/model.safetensors", safetensors(&written));
    (sandbox, differences)
}

fn config(sandbox: &Sandbox, folder: &str) -> Value {
    serde_json::from_slice(&sandbox.read(&format!("{folder}/adapter_config.json"))).expect("JSON")
}

/// The product of the matrices of a layer.
fn product(adapter: &Tensors, module: &str) -> Vec<f32> {
    let half = |half: &str| &adapter[&format!("base_model.model.{module}.lora_{half}.weight")];
    let ((of_a, a), (of_b, b)) = (half("A"), half("B"));
    let [rank, inputs] = [0, 1].map(|at| usize::try_from(of_a[at]).expect("small"));
    assert_eq!(of_b[1], of_a[0], "{module}");
    let element = |row: usize, column: usize| {
        (0..rank).map(|k| b[row * rank + k] * a[k * inputs + column]).sum::<f32>()
    };
    (0..b.len() / rank * inputs).map(|at| element(at / inputs, at % inputs)).collect()
}

fn distance(values: &[f32], others: &[f32]) -> f32 {
    let norm =
        |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>();
    let lost = norm(&mut values.iter().zip(others).map(|(value, other)| value - other));
    (lost / norm(&mut values.iter().copied())).sqrt()
}

#[test]
fn an_adapter_has_pefts_names_and_the_differences() {
    let (sandbox, differences) = with_tuned();
    let line = "lora extract tuned --base base --rank 4 --save-others -o adapter --json";
    let report = sandbox.apr(line).ok().json();
    let extracted = &report["extracted"];
    assert_eq!(extracted["saved"], json!(["model.norm"]));
    assert_eq!((&extracted["unchanged_count"], &extracted["left"]), (&json!(7), &json!([])));

    let expected = expected("llama");
    let adapter = tensors(&sandbox.read("adapter/adapter_model.safetensors"));
    let names = expected["tensors"].as_object().expect("tensors").iter();
    // What is the same in both models has no matrices.
    let names: BTreeMap<&String, &Value> =
        names.filter(|(name, _)| !name.contains("1.self_attn.k_proj")).collect();
    let found: BTreeMap<&String, Value> =
        adapter.iter().map(|(name, (shape, _))| (name, json!(shape))).collect();
    assert!(names.keys().eq(found.keys()), "{found:?}");
    for (name, shape) in names {
        assert_eq!(&found[name], shape, "{name}");
    }
    let written = config(&sandbox, "adapter");
    for (key, value) in expected["config"].as_object().expect("a configuration") {
        assert_eq!(&written[key], value, "{key}");
    }
    assert_eq!(written["modules_to_save"], json!(["model.norm"]));
    // k_proj alone would mean both layers.
    let targets = written["target_modules"].as_array().expect("names");
    assert_eq!(targets.len(), 13);
    assert!(targets.contains(&json!("model.layers.0.self_attn.k_proj")));

    for (name, (_, difference)) in &differences {
        let module = name.strip_suffix(".weight").expect("a weight");
        let lost = distance(difference, &product(&adapter, module));
        assert!(lost < 1e-4, "{name}: {lost}");
    }
    let of_adapter = sandbox.apr("inspect adapter").ok();
    of_adapter.says(&["LoRA adapter for base: rank 4, alpha 4", "Pairs:       13"]);
    assert!(String::from_utf8_lossy(&sandbox.read("adapter/README.md")).contains("peft"));
}

#[test]
fn a_share_of_the_energy_gives_each_layer_its_own_rank() {
    let (sandbox, differences) = with_tuned();
    let line = "lora extract tuned --base base --energy 0.9999 -o adapter";
    let run = sandbox.apr(line).ok();
    let run = run.says(&["13 layers of base", "not in the adapter: model.norm.weight"]);
    run.says(&["rank 2", "energy 100.00 %"]);
    let written = config(&sandbox, "adapter");
    let pattern = json!({ "model.layers.0.mlp.up_proj": 2 });
    assert_eq!((&written["rank_pattern"], &written["alpha_pattern"]), (&pattern, &pattern));
    assert_eq!((&written["r"], &written["lora_alpha"]), (&json!(4), &json!(4)));
    assert_eq!(written["modules_to_save"], Value::Null);

    // One direction of four: what the report says of it is what is lacking.
    let line = "lora extract tuned --base base --rank 1 -o adapter -f --precision bf16 --json";
    let report = sandbox.apr(line).ok().json();
    let adapter = tensors(&sandbox.read("adapter/adapter_model.safetensors"));
    for tensor in report["extracted"]["tensors"].as_array().expect("a list") {
        let name = tensor["name"].as_str().expect("a name");
        let module = name.strip_suffix(".weight").expect("a weight");
        let lost = f64::from(distance(&differences[name].1, &product(&adapter, module)));
        let (error, energy) = (tensor["relative_error"].as_f64(), tensor["energy"].as_f64());
        let (error, energy) = (error.expect("a number"), energy.expect("a number"));
        assert!((error - lost).abs() < 1e-3, "{name}: {error}, not {lost}");
        assert!((error - (1.0 - energy).sqrt()).abs() < 5e-3, "{name}: {error}, {energy}");
    }
}

#[test]
fn models_of_other_formats_have_the_same_adapter() {
    let (sandbox, _) = with_tuned();
    sandbox.apr("convert tuned -o tuned.apr").ok();
    sandbox.apr("convert base -o base.gguf").ok();
    sandbox.apr("lora extract tuned --base base --rank 4 -o one").ok();
    let line = "lora extract tuned.apr --base base.gguf --base-name base --rank 4 -o two";
    sandbox.apr(line).ok();
    assert_eq!(config(&sandbox, "one"), config(&sandbox, "two"));
    let [one, two] = ["one", "two"]
        .map(|folder| tensors(&sandbox.read(&format!("{folder}/adapter_model.safetensors"))));
    assert!(one.keys().eq(two.keys()));
    for module in ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"] {
        assert!(distance(&product(&one, module), &product(&two, module)) < 1e-4, "{module}");
    }
}

#[test]
fn weights_with_inputs_first_have_turned_matrices() {
    let tensors = expected("gpt2")["tensors"].clone();
    let sandbox = Sandbox::new();
    let config = json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_layer": 1,
        "n_head": 2, "n_positions": 16, "vocab_size": 32,
    });
    let value = |seed: u64| {
        let mut state = seed;
        (0..16 * 48).flat_map(move |_| noise(&mut state).to_le_bytes()).collect::<Vec<u8>>()
    };
    let other = "transformer.h.0.mlp.c_fc.weight";
    for (folder, seed) in [("base", 1), ("tuned", 2)] {
        let (attention, rest) = (value(seed), vec![0; 16 * 64 * 4]);
        let file = safetensors(&[
            ("transformer.h.0.attn.c_attn.weight", "F32", &[16, 48], attention),
            (other, "F32", &[16, 64], rest),
        ]);
        sandbox.write(&format!("{folder}/model.safetensors"), file);
        sandbox.write(&format!("{folder}/config.json"), config.to_string());
    }
    sandbox.apr("lora extract tuned --base base --rank 4 -o adapter").ok();
    let written = self::config(&sandbox, "adapter");
    assert_eq!(
        (&written["fan_in_fan_out"], &written["task_type"]),
        (&json!(true), &json!("CAUSAL_LM"))
    );
    let adapter = self::tensors(&sandbox.read("adapter/adapter_model.safetensors"));
    assert_eq!(adapter.len(), 2);
    for (name, (shape, _)) in &adapter {
        assert_eq!(tensors[name], json!(shape), "{name}");
    }
}

#[test]
fn models_that_do_not_go_together_are_refused_and_nothing_is_written() {
    let (sandbox, _) = with_tuned();
    let name = "model.layers.0.self_attn.q_proj.weight";
    let small: &[_] = &[(name, "F32", &[2_u64, 2][..], vec![0; 16])];
    sandbox.write("small.safetensors", safetensors(small));
    let base = "lora extract tuned --base base";
    for (line, code, said) in [
        (base.to_owned(), 2, "the following required arguments were not provided"),
        (format!("{base} --rank 4 --energy 0.5"), 2, "cannot be used with"),
        (format!("{base} --rank 0"), 2, "--rank must be 1 or more"),
        (format!("{base} --rank 4 --target nothing*"), 2, "no linear layer's name matches"),
        (format!("{base} --rank 4 --target *lm_head*"), 2, "of both models are the same"),
        (format!("{base} --rank 4 --precision f8_e4m3"), 2, "choose one by --precision"),
        ("lora extract base --base base --rank 4".to_owned(), 2, "of both models are the same"),
        (
            "lora extract tuned --base small.safetensors --rank 4".to_owned(),
            4,
            "the base does not have it",
        ),
        (
            "lora extract small.safetensors --base base --rank 4".to_owned(),
            4,
            "its shape is [2, 2], and the base's [128, 128]",
        ),
    ] {
        sandbox.apr(&format!("{line} -o out")).fails(code, &[said]);
        assert!(!sandbox.path("out").exists(), "{line}");
    }
    sandbox
        .apr(&format!("{base} --rank 4 -o small.safetensors"))
        .fails(2, &["an adapter is a folder: pass -o DIR"]);
    sandbox.apr(&format!("{base} --rank 4 --dry-run")).ok().says(&["lora_A.weight"]);
}
