//! `apr convert --prune` and its kin, compared with what numpy and transformers make of the same
//! weights (`fixtures/prune/pruning.py`).

use std::fs;

use apr_testkit::hub::sha256;
use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::Sandbox;

/// Returns the expected results of pruning.
fn expected() -> Value {
    let text = fs::read(locate::fixture("prune/pruning.json")).expect("a fixture");
    serde_json::from_slice(&text).expect("JSON")
}

/// Name and bytes of each tensor of a safetensors file.
fn tensors(file: &[u8]) -> Vec<(String, Vec<u8>)> {
    let size = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    let data = 8 + usize::try_from(size).expect("a small file");
    let header: Value = serde_json::from_slice(&file[8..data]).expect("a header");
    let entries = header.as_object().expect("an object").iter();
    let offset = |entry: &Value, at: usize| {
        usize::try_from(entry["data_offsets"][at].as_u64().expect("a number")).expect("small")
    };
    let tensor = |(name, entry): (&String, &Value)| {
        (name.clone(), file[data..][offset(entry, 0)..offset(entry, 1)].to_vec())
    };
    entries.filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

/// A folder with tiny-llama in it.
fn with_llama() -> Sandbox {
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(locate::fixture("tiny-llama")).expect("a fixture") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        if !name.ends_with(".py") {
            sandbox.write(&format!("llama/{name}"), fs::read(&path).expect("a file"));
        }
    }
    sandbox
}

fn zeros(bytes: &[u8]) -> usize {
    bytes.chunks(2).filter(|value| **value == [0, 0]).count()
}

#[test]
fn a_folder_becomes_a_folder() {
    let sandbox = Sandbox::new();
    let folder = apr_testkit::locate::fixture("tiny-llama");
    let line = format!("prune {} --prune 0.5 -o pruned", folder.display());
    sandbox.apr(&line).ok();
    assert!(sandbox.path("pruned/config.json").is_file());
    sandbox.apr("inspect pruned --json").ok().says(&["safetensors"]);
    sandbox.apr("convert pruned -o again").ok();
    assert_eq!(sandbox.read("again/config.json"), sandbox.read("pruned/config.json"));
}

#[test]
fn a_type_without_an_exact_zero_is_named_if_pruned_weights_get_it() {
    const Q: &str = "model.layers.0.self_attn.q_proj.weight";
    let sandbox = with_llama();
    for (scheme, keeps) in [
        ("q8_0", true),
        ("q4_0", true),
        ("fp8", true),
        ("w4a16", true),
        ("w4a16-asym", true),
        ("gptq-4", true),
        ("mxfp4", true),
        ("q4_1", false),
        ("mlx-4", false),
        ("mlx-8", false),
    ] {
        let line = format!("prune llama --prune-nm 2:4 --quantize {scheme} -o o.apr -f");
        let run = sandbox.apr(&line).ok();
        let is_named = run.to_string().contains(&format!("{scheme} can't represent zero"));
        assert_eq!(is_named, !keeps, "{scheme}: {run}");
        sandbox.apr("convert o.apr --dequantize bf16 --format safetensors -o d -f").ok();
        let all = tensors(&sandbox.read("d/model.safetensors"));
        let bytes = &all.iter().find(|(name, _)| name == Q).expect("a weight").1;
        let is_zero = |value: &&[u8]| value[0] == 0 && value[1] & 0x7f == 0;
        let none = bytes.chunks(2).filter(is_zero).count();
        assert_eq!(2 * none >= bytes.len() / 2, keeps, "{scheme}: {none}");
    }
}

#[test]
fn qa_63_pruning_sets_exactly_the_weights_to_zero_that_numpy_does() {
    let (sandbox, expected) = (with_llama(), expected());
    let before = tensors(&sandbox.read("llama/model.safetensors"));
    for (name, options) in [
        ("prune 0.5", "--prune 0.5"),
        ("prune 0.731", "--prune 0.731"),
        ("global 0.8", "--prune 0.8 --prune-scope global"),
        ("2:4", "--prune-nm 2:4"),
        ("1:8", "--prune-nm 1:8"),
        ("threshold 0.03", "--prune-threshold 0.03"),
    ] {
        sandbox.apr(&format!("convert llama -o m.safetensors -f {options}")).ok();
        let after = tensors(&sandbox.read("m.safetensors"));
        assert_eq!(before.len(), after.len());
        let digests = expected[name].as_object().expect("digests");
        for ((tensor, old), (_, new)) in before.iter().zip(&after) {
            match digests.get(tensor) {
                Some(digest) => assert_eq!(digest, &sha256(new), "{name}: {tensor}"),
                None => assert!(old == new, "{name}: {tensor} is not pruned"),
            }
        }
    }
    sandbox.apr("convert llama -o m.safetensors -f --prune 0.5").ok();
    for (tensor, bytes) in tensors(&sandbox.read("m.safetensors")) {
        if expected["prune 0.5"].get(&tensor).is_some() {
            assert_eq!(zeros(&bytes) * 2, bytes.len() / 2, "{tensor}");
        }
    }
}

#[test]
fn activations_weigh_weights_as_transformers_measures_them() {
    let (sandbox, expected) = (with_llama(), expected());
    let wanda = &expected["wanda"];
    sandbox.write("text.txt", wanda["text"].as_str().expect("a text"));
    let line = "convert llama -o m.safetensors --prune 0.4 --calibration text.txt --json";
    let report = sandbox.apr(line).ok().json();
    assert_eq!(report["pruning"]["method"], "wanda");
    let name = wanda["tensor"].as_str().expect("a name");
    let mask = wanda["mask"].as_str().expect("bits");
    let mask: Vec<u8> = (0..mask.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&mask[at..at + 2], 16).expect("hexadecimal"))
        .collect();
    let after = tensors(&sandbox.read("m.safetensors"));
    let (_, bytes) = after.iter().find(|(tensor, _)| tensor == name).expect("the tensor");
    let gone = bytes
        .chunks(2)
        .enumerate()
        .filter(|(at, value)| (**value == [0, 0]) == (mask[at / 8] >> (7 - at % 8) & 1 == 1));
    // Sums in another order may turn round two scores that are equal but for that.
    let (same, all) = (gone.count(), bytes.len() / 2);
    assert!(same * 10_000 >= all * 9_995, "{same} of {all} weights as expected");
}

#[test]
fn gradients_weigh_weights_as_torch_measures_them() {
    let sandbox = with_llama();
    let expected = fs::read(locate::fixture("gradients/fisher.json")).expect("a fixture");
    let expected: Value = serde_json::from_slice(&expected).expect("JSON");
    let rows = expected["rows"].as_array().expect("rows").iter();
    let rows: String = rows.map(|row| format!("{{\"text\": {row}}}\n")).collect();
    let sandbox = sandbox.with("rows.jsonl", rows);
    let line = "prune llama -o m.safetensors -f --calibration rows.jsonl --prune-method fisher";
    for (name, places) in expected["lowest"].as_object().expect("tensors") {
        let places: Vec<u64> = places.as_array().expect("a list").iter().map(number).collect();
        let (_, before) = tensor(&sandbox.read("llama/model.safetensors"), name);
        // In floating point, the share is the count again.
        let share = places.len() as f64 / (before.len() / 2) as f64;
        let report = sandbox.apr(&format!("{line} --target {name} --prune {share} --json")).ok();
        assert_eq!(report.json()["pruning"]["method"], "fisher");
        let (_, after) = tensor(&sandbox.read("m.safetensors"), name);
        let weights = before.chunks(2).zip(after.chunks(2)).zip(0..);
        let gone = weights.filter(|((old, new), _)| old != new).map(|(_, place)| place);
        assert_eq!(gone.collect::<Vec<u64>>(), places, "{name}");
    }

    // Units go by the sums of their weights.
    let report = sandbox.apr(&format!("{line} --prune-heads 2 --prune-neurons 64 --json")).ok();
    let widths = &report.json()["widths"];
    assert_eq!(widths["method"], "fisher");
    for (layer, units) in expected["units"].as_array().expect("layers").iter().enumerate() {
        for (key, count) in [("groups", 1), ("neurons", 64)] {
            let saliency: Vec<f64> =
                units[key].as_array().expect("numbers").iter().filter_map(Value::as_f64).collect();
            let mut order: Vec<usize> = (0..saliency.len()).collect();
            order.sort_by(|a, b| saliency[*a].total_cmp(&saliency[*b]));
            order.truncate(count);
            order.sort_unstable();
            assert_eq!(widths["layers"][layer][key], json!(order), "layer {layer}, {key}");
        }
    }
    let magnitude = sandbox.apr("prune llama -o n.apr -f --prune-neurons 64 --json").ok().json();
    assert_eq!(magnitude["widths"]["method"], "magnitude");
    assert_ne!(magnitude["widths"]["layers"], widths["layers"]);

    let of_all = sandbox.apr(&format!("{line} --prune 0.3 --prune-scope global --json")).ok();
    assert_eq!(of_all.json()["pruning"]["share"], 0.3);
    sandbox.apr(&format!("{line} --prune-nm 2:4")).ok();
    sandbox.apr("convert llama -o m.gguf").ok();
    sandbox
        .apr("prune m.gguf -o n.gguf --calibration rows.jsonl --prune-by fisher --prune 0.5")
        .fails(2, &["convert the GGUF file in an earlier run"]);
    sandbox
        .apr("prune llama -o n.apr --prune-method fisher --prune 0.5")
        .fails(2, &["--prune-method requires --calibration"]);
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

fn tensor(file: &[u8], name: &str) -> (String, Vec<u8>) {
    tensors(file).into_iter().find(|(tensor, _)| tensor == name).expect("the tensor")
}

#[test]
fn pruned_tensors_are_reported_and_the_others_are_listed() {
    let sandbox = with_llama();
    let run = sandbox.apr("convert llama -o m.apr --prune 0.5 --dry-run");
    run.ok().says(&["pruned 14 tensors by magnitude: 50.00 %", "largest errors:", "not pruned:"]);
    assert!(!sandbox.path("m.apr").exists());

    let line = "convert llama -o m.apr --prune 0.25 --target *.q_proj.* --json";
    let report = sandbox.apr(line).ok().json();
    let pruning = &report["pruning"];
    assert_eq!(pruning["tensors"].as_array().map(Vec::len), Some(2));
    assert_eq!(pruning["tensors"][0]["zeros"], 128 * 128 / 4);
    assert_eq!(pruning["share"], 0.25);
    let inspected = sandbox.apr("inspect m.apr --json").ok().json();
    assert_eq!(inspected["metadata"]["sparsity"]["method"], "magnitude");
    assert_eq!(inspected["metadata"]["sparsity"]["scope"], "tensor");
    sandbox.apr("validate m.apr").clean();
}

#[test]
fn a_gate_judges_what_pruning_cost() {
    let sandbox = with_llama();
    let line = "convert llama -o m.apr --prune 0.5 --max-drift";
    sandbox.apr(&format!("{line} 0.1")).fails(5, &["quality gate failed", "L2 drift: 0.24"]);
    assert!(!sandbox.path("m.apr").exists());
    sandbox.apr(&format!("{line} 0.1 --force")).ok().says(&["L2 drift: 0.24"]);
    sandbox.apr(&format!("{line} 0.3 -f")).ok();
    sandbox.apr("convert llama -o m.apr --prune 0.5 --quality-check -f").fails(5, &["cosine"]);
}

#[test]
fn quantized_weights_are_pruned_as_floats() {
    let sandbox = with_llama();
    sandbox.apr("quantize llama --type q8_0 -o q.gguf").ok();
    sandbox
        .apr("convert q.gguf -o m.gguf --prune 0.5")
        .fails(2, &["blk.0.", "q8_0", "--dequantize f16"]);
    let line = "convert q.gguf -o m.gguf --prune 0.5 --dequantize f16 --json";
    let report = sandbox.apr(line).ok().json();
    let total = &report["pruning"]["total"];
    assert_eq!(total["zeros"].as_u64().map(|zeros| zeros * 2), total["elements"].as_u64());
    let tensors = sandbox.apr("tensors m.gguf --stats --json").ok().json();
    let tensors = tensors["tensors"].as_array().expect("a list").clone();
    let queries = tensors.iter().find(|tensor| tensor["name"] == "blk.0.attn_q.weight");
    assert_eq!(queries.expect("it is there")["dtype"], "f16");
    // Pruned before it is quantized: zeros stay zeros.
    sandbox.apr("convert llama -o z.gguf --prune 0.5 --quantize q8_0").ok().says(&["pruned 14"]);
}

#[test]
fn layers_go_and_the_rest_computes_what_a_shorter_model_does() {
    let sandbox = with_llama();
    let run = sandbox.apr("convert llama -o short --format safetensors --prune-layers 0,");
    run.ok().says(&["dropped 1 of 2 layers (0)", "num_hidden_layers"]);
    let config: Value = serde_json::from_slice(&sandbox.read("short/config.json")).expect("JSON");
    assert_eq!(config["num_hidden_layers"], 1);
    let before = tensors(&sandbox.read("llama/model.safetensors"));
    let after = tensors(&sandbox.read("short/model.safetensors"));
    let old = |name: &str| before.iter().find(|(other, _)| other == name).expect(name);
    for (name, bytes) in &after {
        assert!(old(&name.replace("layers.0.", "layers.1.")).1 == *bytes, "{name}");
    }
    assert_eq!(after.len(), 12);
    sandbox.apr("run short --tokens 256,49,50 --want logits --json").ok();

    let packed = sandbox.apr("convert llama -o short.apr --prune-layers 1 --json").ok().json();
    assert_eq!(packed["layers"]["dropped"], serde_json::json!([0]));
    sandbox.apr("validate short.apr").clean();
    sandbox.apr("convert short.apr -o short.gguf").ok();
    let inspected = sandbox.apr("inspect short.gguf --json").ok().json();
    assert_eq!(inspected["tensor_count"], 12);
}

#[test]
fn pruned_heads_and_neurons_match_numpy_and_transformers_loads_the_rest() {
    let (sandbox, expected) = (with_llama(), expected());
    let line = "convert llama -o narrow --format safetensors --prune-heads 2 --prune-neurons 64";
    sandbox.apr(line).ok().says(&[
        "2 of 4 heads and 192 of 256 neurons left in each of 2 layers",
        "chosen by magnitude",
    ]);
    let after = tensors(&sandbox.read("narrow/model.safetensors"));
    let digests = expected["narrow"].as_object().expect("digests");
    for (name, digest) in digests {
        let (_, bytes) = after.iter().find(|(tensor, _)| tensor == name).expect(name);
        assert_eq!(digest, &sha256(bytes), "{name}");
    }
    let config: Value = serde_json::from_slice(&sandbox.read("narrow/config.json")).expect("JSON");
    let counts = ["num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim"];
    assert_eq!(counts.map(|key| config[key].as_u64()), [2, 1, 192, 32].map(Some));

    // The rest computes what it does in transformers.
    sandbox.apr("run narrow --tokens 256,49,50,43 --want logits -o logits.npy").ok();
    let file = sandbox.read("logits.npy");
    let values: Vec<f32> = file[file.len() - 259 * 4..]
        .chunks(4)
        .map(|value| f32::from_le_bytes(value.try_into().expect("four bytes")))
        .collect();
    let logits = expected["logits"].as_array().expect("numbers");
    for (found, wanted) in values.iter().zip(logits) {
        let wanted = wanted.as_f64().expect("a number");
        assert!((f64::from(*found) - wanted).abs() < 1e-3, "{found} {wanted}");
    }
    for (line, said) in [
        ("--prune-heads 4", "no head would be left of 4"),
        ("--prune-neurons 256", "no neuron would be left of 256"),
    ] {
        sandbox.apr(&format!("convert llama -o out.apr {line}")).fails(2, &[said]);
    }
    // Two heads of queries share one of keys and values.
    let report = sandbox.apr("convert llama -o out.apr --prune-heads 1 --json").ok();
    let report = report.says(&["2 heads dropped instead of 1"]);
    assert_eq!(report.json()["widths"]["heads"], serde_json::json!([4, 2]));
}

#[test]
fn sparse_tensors_come_back_as_they_were() {
    let sandbox = with_llama();
    for (layout, pruned) in [("csr", "--prune 0.9"), ("block:2", "--prune-threshold 0.2")] {
        sandbox.apr(&format!("convert llama -o dense.apr -f {pruned}")).ok();
        let line = format!("convert llama -o sparse.apr -f {pruned} --sparse {layout} --json");
        let report = sandbox.apr(&line).ok().json();
        let stored = report["sparse"]["tensors"].as_array().expect("a list");
        assert!(!stored.is_empty(), "{layout}: {report}");
        assert!(sandbox.read("sparse.apr").len() < sandbox.read("dense.apr").len(), "{layout}");
        sandbox.apr("validate sparse.apr").ok();
        sandbox.apr("diff sparse.apr dense.apr").ok();
        // A stored form is made of a dense one by another program: this one reads it.
        sandbox.apr("convert sparse.apr -o back.safetensors -f").ok();
        sandbox.apr("convert dense.apr -o front.safetensors -f").ok();
        assert!(
            tensors(&sandbox.read("back.safetensors"))
                == tensors(&sandbox.read("front.safetensors")),
            "{layout}"
        );
    }
    sandbox
        .apr("convert llama -o sparse.apr -f --sparse csr")
        .ok()
        .says(&["--sparse has no effect"]);
    sandbox.apr("convert llama -o m.apr --sparse csr --quantize q8_0").fails(2, &["choose one"]);
    sandbox.apr("convert llama -o m.safetensors --sparse csr").fails(2, &[".apr output"]);
    sandbox
        .apr("convert llama -o m.apr --sparse csr --precision fp16")
        .fails(2, &["cast or dequantize them in an earlier run"]);
}

#[test]
fn what_can_not_be_pruned_is_refused_before_anything_is_written() {
    let sandbox = with_llama();
    sandbox.apr("convert llama -o m.gguf").ok();
    sandbox.apr("prune llama -o out.apr").fails(2, &["nothing to prune: pass --prune"]);
    for (line, said) in [
        ("llama --prune 1.5", "expected a share above 0 and up to 1"),
        ("llama --prune 0", "expected a share above 0 and up to 1"),
        ("llama --prune-nm 4:2", "expected N:M"),
        ("llama --prune-threshold 0", "expected a positive number"),
        ("llama --prune 0.5 --prune-nm 2:4", "cannot be used with"),
        ("llama --prune 0.5 --target nothing*", "no tensor's name matches 'nothing*'"),
        ("llama --target *.q_proj.*", "--target applies to"),
        ("llama --prune-layers 2", "no layer would be left"),
        ("llama --prune-layers 0", "no layer is to be dropped"),
        ("llama --prune-layers 7,", "unknown layer 7"),
        ("m.gguf --prune-layers 1", "layers of GGUF files can't be dropped"),
        ("llama --prune-nm 2:3", "is not a multiple of 3"),
    ] {
        sandbox.apr(&format!("convert {line} -o out.apr")).fails(2, &[said]);
        // Where nothing else is asked for, that is what it says.
        let asks = line.contains("--prune");
        let said = if asks { said } else { "nothing to prune" };
        sandbox.apr(&format!("prune {line} -o out.apr")).fails(2, &[said]);
        assert!(!sandbox.path("out.apr").exists(), "{line}");
    }
}

#[test]
fn sparsegpt_prunes_a_model_as_a_transcription_of_the_paper_does() {
    let folder = locate::fixture("prune");
    let sandbox = Sandbox::new();
    let text = fs::read(folder.join("sparsegpt.txt")).expect("a fixture");
    sandbox.write("text.txt", text);
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let bytes = fs::read(locate::fixture("tiny-llama").join(file)).expect("a fixture");
        sandbox.write(&format!("llama/{file}"), bytes);
    }
    let line = "prune llama -o m.safetensors --calibration text.txt --prune-method sparsegpt";
    let report = sandbox.apr(&format!("{line} --prune 0.5 --json")).ok().json();
    assert_eq!(report["pruning"]["method"], "sparsegpt");
    assert_eq!(report["pruning"]["total"]["zeros"], 147_456);
    for tensor in report["pruning"]["tensors"].as_array().expect("a list") {
        let error = tensor["output_error"].as_f64().expect("a number");
        assert!(error > 0.0 && error < 0.06, "{tensor}");
        assert!(tensor["relative_error"].as_f64() > Some(0.2), "{tensor}");
    }

    let name = "model.layers.1.self_attn.k_proj";
    let of = |file: &[u8], name: &str| {
        let found = tensors(file).into_iter().find(|(known, _)| known == name);
        let (_, bytes) = found.unwrap_or_else(|| panic!("no tensor {name}"));
        let value = |pair: &[u8]| f32::from_bits(u32::from_le_bytes([0, 0, pair[0], pair[1]]));
        bytes.chunks(2).map(value).collect::<Vec<f32>>()
    };
    let golden = fs::read(folder.join("sparsegpt.safetensors")).expect("a fixture");
    let expected = of(&golden, &format!("llama/{name}"));
    let found = of(&sandbox.read("m.safetensors"), &format!("{name}.weight"));
    let other = found.iter().zip(&expected).filter(|(a, b)| (**a == 0.0) != (**b == 0.0)).count();
    // Sums in another order may choose another weight of two that cost the same.
    assert!(other <= 8, "{other} of {} weights", found.len());
    let far = found.iter().zip(&expected).filter(|(a, b)| (**a - **b).abs() > 0.01).count();
    assert!(far <= 64, "{far} of {} weights", found.len());

    sandbox.apr(&format!("{line} -f --prune-nm 2:4")).ok().says(&["sparsegpt 2:4", "outputs"]);
    sandbox.apr(&format!("{line} -f --prune 0.5 --max-memory 1MB")).fails(4, &["E008"]);
    for (line, expected) in [
        ("prune llama -o m.apr --prune 0.5 --prune-method sparsegpt", "--calibration"),
        (&format!("{line} --prune 0.5 --prune-scope global"), "--prune-scope tensor"),
        (&format!("{line} --prune 0.5 --dequantize f16"), "dequantize in an earlier run"),
    ] {
        sandbox.apr(line).fails(2, &[expected]);
    }
}

#[test]
fn calibration_data_choose_the_layers_that_change_least_as_in_transformers() {
    let folder = locate::fixture("prune");
    let sandbox = with_llama();
    sandbox.write("text.txt", fs::read(folder.join("sparsegpt.txt")).expect("a fixture"));
    let expected = fs::read(folder.join("influence.json")).expect("a fixture");
    let expected: Vec<f64> = serde_json::from_slice(&expected).expect("numbers");
    let line = "prune llama -o m.apr --prune-layers 1 --calibration text.txt";
    let report = sandbox.apr(&format!("{line} --json")).ok().json();
    let found = report["layers"]["influence"].as_array().expect("a list").iter();
    let found: Vec<f64> = found.map(|value| value.as_f64().expect("a number")).collect();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
    // The last layer of this model changes less than the first, which would go without inputs.
    assert_eq!(report["layers"]["dropped"], serde_json::json!([1]));
    sandbox.apr("prune llama -o n.apr --prune-layers 1").ok().says(&["dropped 1 of 2 layers (0)"]);
    sandbox.apr(&format!("{line} -f --prune-neurons 1")).fails(2, &["--prune-layers N alone"]);
    sandbox.apr(&format!("{line} -f --quality-check")).fails(5, &["which was removed"]);
    let listed = "prune llama -o m.apr -f --prune-layers 0, --calibration text.txt";
    sandbox.apr(listed).fails(2, &["--calibration"]);
}

#[test]
fn calibration_goes_with_rows_of_the_whole_model() {
    let sandbox = with_llama().with("t.txt", "12+34=46\n".repeat(60));
    for (line, said) in [
        ("--prune 0.5 --prune-scope global", "--prune-scope tensor"),
        ("--prune-threshold 0.1", "--prune-threshold applies to magnitudes only"),
        ("--prune 0.5 --prune-layers 1", "use two runs"),
        ("--prune-heads 2", "and --prune-method fisher)"),
        ("--prune-layers 1, --prune-neurons 8", "use two runs"),
    ] {
        let line = format!("prune llama -o m.apr --calibration t.txt {line}");
        sandbox.apr(&line).fails(2, &[said]);
    }
    sandbox.apr("prune llama -o m.apr --calibration t.txt --prune 0.5 --prune-scope tensor").ok();
    sandbox.apr("prune llama -o n.apr --calibration t.txt --prune-nm 2:4").ok();
    sandbox.apr("prune llama -o short.apr --prune-layers 1").ok();
    sandbox.apr("prune short.apr -o s.apr --prune 0.5 --calibration t.txt").ok();
}

/// `hidden.weight` has a row for each output (`transB`), `head.weight` one for each input.
#[test]
fn a_weight_whose_rows_are_inputs_is_not_weighed_as_if_they_were_outputs() {
    let sandbox = Sandbox::new();
    let fixture = |name: &str| locate::fixture("products").join(name).display().to_string();
    let (net, data) = (fixture("net.onnx"), fixture("calibration.npz"));
    for method in ["wanda", "sparsegpt"] {
        let line = format!("prune {net} --prune 0.5 --prune-method {method} --calibration {data}");
        let report = sandbox.apr(&format!("{line} -o m.onnx -f --json")).ok().json();
        let pruned = &report["pruning"]["tensors"];
        assert_eq!(pruned.as_array().map(Vec::len), Some(1), "{report}");
        assert_eq!(pruned[0]["name"], "hidden.weight");
        let left = report["pruning"]["left"].as_array().expect("a list");
        let why = left.iter().find(|left| left["name"] == "head.weight").map(|left| &left["why"]);
        assert_eq!(why, Some(&"its inputs were not measured".into()), "{report}");
        sandbox.apr(&format!("{line} --target hidden.weight -o m.onnx -f")).ok();
        let only = sandbox.apr(&format!("{line} --target head.weight -o n.onnx"));
        only.fails(2, &["nothing to prune"]);
    }
}

#[test]
fn parts_of_a_pruned_model_equal_the_whole() {
    let sandbox = with_llama();
    sandbox.apr("convert llama -o whole.apr --prune 0.5").ok();
    sandbox.apr("plan --parts 2 -o plan.json convert llama -o parts.apr --prune 0.5").ok();
    for part in 0..2 {
        sandbox.apr(&format!("run-part plan.json {part}")).ok();
    }
    sandbox.apr("finish plan.json").ok();
    let report = sandbox.apr("diff whole.apr parts.apr --json").ok().json();
    assert_eq!(report["same"], true);
}
