//! Adapters that are merged into a model: `fixtures/lora` has what PEFT makes of them.

use std::fs;
use std::path::Path;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::{Sandbox, Tensor, f32s, safetensors, tensors};

fn fixture(path: &str) -> Vec<u8> {
    fs::read(locate::fixture("lora").join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn copy(from: &Path, sandbox: &Sandbox, to: &str) {
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("text");
        sandbox.write(&format!("{to}/{name}"), fs::read(entry.path()).expect("readable"));
    }
}

/// Folders of the fixtures under their names.
fn with(folders: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new();
    for folder in folders {
        copy(&locate::fixture("lora").join(folder), &sandbox, folder);
    }
    sandbox
}

#[test]
fn every_kind_of_adapter_gives_the_bytes_that_peft_gives() {
    let cases: Value = serde_json::from_slice(&fixture("cases.json")).expect("JSON");
    let cases = cases.as_object().expect("an object");
    let goldens = tensors(&fixture("goldens.safetensors"));
    let folder = locate::fixture("lora");
    let sandbox = Sandbox::new();
    for (case, description) in cases {
        let base = description["base"].as_str().expect("a name");
        let mut expected = tensors(&fixture(&format!("{base}/model.safetensors")));
        let before = expected.clone();
        let changed = goldens.iter().filter_map(|(name, tensor)| {
            Some((name.strip_prefix(&format!("{case}/"))?.to_owned(), tensor.clone()))
        });
        expected.extend(changed);
        assert_ne!(expected, before, "{case} changes something");
        let base = folder.join(base).display().to_string();
        let mut args =
            vec!["merge".to_owned(), base, "-o".to_owned(), "out.safetensors".to_owned()];
        let adapters = description["adapters"].as_array().expect("a list");
        for (adapter, weight) in adapters.iter().zip(description["weights"].as_array().expect("")) {
            let adapter = folder.join(adapter.as_str().expect("a name")).display().to_string();
            args.extend(["--lora".to_owned(), format!("{adapter}:{weight}")]);
        }
        args.push("-f".to_owned());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        sandbox.run(&args).ok();
        let found = tensors(&sandbox.read("out.safetensors"));
        assert!(found.keys().eq(expected.keys()), "{case}: {:?}", found.keys());
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{case}: {name} differs");
        }
    }
    assert_eq!(cases.len(), 27, "a case of each kind");
}

#[test]
fn adapters_merge_into_models_of_every_format_and_keep_it() {
    let sandbox = with(&["llama", "lora"]);
    sandbox.apr("merge llama --lora lora -o expected.safetensors").ok();
    let expected = tensors(&sandbox.read("expected.safetensors"));
    for format in ["apr", "gguf", "pt"] {
        sandbox.apr(&format!("convert llama -o base.{format} -f")).ok();
        sandbox.apr(&format!("merge base.{format} --lora lora -o merged.{format} -f")).ok();
        sandbox.apr(&format!("convert merged.{format} -o back.safetensors -f")).ok();
        let found = tensors(&sandbox.read("back.safetensors"));
        for (name, tensor) in &expected {
            assert!(found[name] == *tensor, "{format}: {name} differs");
        }
    }

    // Quantized weights are decoded, and quantized anew where that is asked for.
    sandbox.apr("quantize llama -o q8.apr --type q8_0 -f").ok();
    let report = sandbox.apr("merge q8.apr --lora lora -o q8_merged.apr --json").ok().json();
    assert_eq!(report["adapters"][0]["changed_count"], 8);
}

#[test]
fn the_report_lists_the_merged_tensors_and_their_changes() {
    let sandbox = with(&["llama", "dora", "saved"]);
    sandbox.apr("merge llama --lora dora:-0.5 --lora saved -o out").ok().says(&[
        "DoRA of rank 4 from dora, times -0.5: 4 modules, trained on llama",
        "LoRA of rank 2 from saved: 2 modules, 6 tensors trained as a whole",
        "10 tensors changed, 11 copied",
        "changed most:",
    ]);
    let report = sandbox.apr("merge llama --lora dora:-0.5 -o out -f --json").ok().json();
    let adapters = &report["adapters"][0];
    assert_eq!(adapters["adapters"][0]["scales"], json!([2.0]));
    assert_eq!(adapters["adapters"][0]["weight"], -0.5);
    assert_eq!(adapters["tensors"].as_array().map(Vec::len), Some(4));
    assert!(adapters["total"]["relative_error"].as_f64().expect("a number") > 0.1);

    let card = String::from_utf8(sandbox.read("out/README.md")).expect("text");
    assert!(card.starts_with("---\nbase_model:\n- llama\n"), "{card}");
    assert!(card.contains("| `dora` | DoRA | -0.5 | 4 | 4 |"), "{card}");
    let header = String::from_utf8_lossy(&sandbox.read("out/model.safetensors")[8..]).into_owned();
    assert!(header.contains(r#"\"tool\":\"apr "#) && header.contains(r#"\"name\":\"dora\""#));

    // A later one that was trained on whole tensors replaces what an earlier one changed.
    copy(&locate::fixture("lora").join("embeddings"), &sandbox, "embeddings");
    sandbox
        .apr("merge llama --lora embeddings --lora saved -o both")
        .ok()
        .says(&["'lm_head.weight' replaces the changes of earlier adapters"]);

    // What a tensor that was trained as a whole can't do.
    sandbox.apr("merge llama --lora saved:0.5 -o half").ok().says(&["copied, not scaled by 0.5"]);
}

#[test]
fn configurations_of_mergekit_name_adapters_after_a_plus() {
    let sandbox = with(&["llama", "lora", "dora"]).with(
        "merge.yml",
        "merge_method: linear\nmodels:\n  - model: llama+lora\n    parameters: {weight: 0.5}\n  - \
         model: {model: llama, lora: dora}\n    parameters: {weight: 0.5}\n",
    );
    sandbox.apr("merge merge.yml -o merged.safetensors").ok().says(&[
        "LoRA of rank 4 from",
        "DoRA of rank 4 from",
        "linear of 2 models: 21 tensors merged",
    ]);
    for adapter in ["lora", "dora"] {
        sandbox.apr(&format!("merge llama --lora {adapter} -o {adapter}.safetensors")).ok();
    }
    sandbox
        .apr("merge lora.safetensors dora.safetensors --weights 0.5,0.5 -o by_hand.safetensors")
        .ok();
    let [found, expected] =
        ["merged", "by_hand"].map(|name| tensors(&sandbox.read(&format!("{name}.safetensors"))));
    assert!(found == expected);
}

#[test]
fn an_adapter_of_the_tied_output_gives_it_a_tensor_of_its_own() {
    let sandbox = with(&["llama", "embeddings"]);
    let mut weights = tensors(&fixture("llama/model.safetensors"));
    weights.remove("lm_head.weight");
    let shapes: Vec<Vec<u64>> = weights
        .values()
        .map(|(_, shape, _)| serde_json::from_value(shape.clone()).expect("numbers"))
        .collect();
    let tied: Vec<Tensor<'_>> = weights
        .iter()
        .zip(&shapes)
        .map(|((name, (_, _, bytes)), shape)| (name.as_str(), "F32", &shape[..], bytes.clone()))
        .collect();
    sandbox.write("llama/model.safetensors", safetensors(&tied));
    let config = String::from_utf8(sandbox.read("llama/config.json")).expect("text");
    let before = "\"tie_word_embeddings\": false";
    assert!(config.contains(before));
    sandbox.write("llama/config.json", config.replace(before, "\"tie_word_embeddings\": true"));
    sandbox
        .apr("merge llama --lora embeddings -o out")
        .ok()
        .says(&["lm_head.weight is no longer tied to model.embed_tokens.weight"]);
    let config: Value = serde_json::from_slice(&sandbox.read("out/config.json")).expect("JSON");
    assert_eq!(config["tie_word_embeddings"], false);
    let found = tensors(&sandbox.read("out/model.safetensors"));
    assert!(found["lm_head.weight"] != found["model.embed_tokens.weight"]);
}

#[test]
fn what_can_not_be_merged_is_refused_before_anything_is_written() {
    let sandbox = with(&["llama", "lora", "gpt2_lora", "dora"]);
    let config = |sandbox: &Sandbox, change: &dyn Fn(&mut Value)| {
        let mut config: Value =
            serde_json::from_slice(&fixture("lora/adapter_config.json")).expect("");
        change(&mut config);
        sandbox.write("lora/adapter_config.json", config.to_string());
    };
    let cases: [(&str, i32, &[&str]); 7] = [
        ("merge llama --lora gpt2_lora -o out", 4, &["E001", "belongs to another model", "lora_A"]),
        (
            "merge llama --lora llama -o out",
            4,
            &["E001", "not an adapter: missing adapter_config.json"],
        ),
        ("merge llama llama --lora lora -o out", 2, &["into one model, not 2"]),
        ("merge --lora lora -o out", 2, &["--lora needs the model"]),
        ("merge llama --lora lora --density 0.5 -o out", 2, &["--density and --lora exclude"]),
        ("merge llama --lora :2 -o out", 2, &["expected ADAPTER or ADAPTER:X"]),
        ("merge llama --lora absent -o out", 3, &["absent"]),
    ];
    for (line, code, parts) in cases {
        sandbox.apr(line).fails(code, parts);
    }
    for (change, part) in [
        (json!({"init_lora_weights": "pissa"}), "init_lora_weights is 'pissa'"),
        (json!({"alora_invocation_tokens": [1, 2]}), "from some tokens on only"),
        (json!({"peft_type": "PROMPT_TUNING"}), "'PROMPT_TUNING' can't be merged"),
        (json!({"r": 8}), "rank 4, but adapter_config.json states 8"),
        (json!({"lora_alpha": "x"}), "lora_alpha must be a number"),
    ] {
        config(&sandbox, &|config| {
            for (key, value) in change.as_object().expect("an object") {
                config[key] = value.clone();
            }
        });
        sandbox.apr("merge llama --lora lora -o out").fails(4, &["E001", part]);
    }
    config(&sandbox, &|_| {});

    // Matrices that are no pair, of other shapes, and with values that are not finite.
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let (a, b) = (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
    let good = vec![1.0_f32; 64];
    let cases: [(Vec<Tensor<'_>>, i32, &str); 3] = [
        (vec![(&a, "F32", &[4, 16], f32s(&good))], 4, "the other matrix of the pair is missing"),
        (
            vec![(&a, "F32", &[4, 16], f32s(&good)), (&b, "F32", &[8, 4], f32s(&good[..32]))],
            4,
            "do not make a change of the base's [16, 16]",
        ),
        (
            vec![(&a, "F32", &[4, 16], f32s(&[f32::NAN; 64])), (&b, "F32", &[16, 4], f32s(&good))],
            4,
            "element 0 is NaN",
        ),
    ];
    for (adapter, code, part) in cases {
        sandbox.write("lora/adapter_model.safetensors", safetensors(&adapter));
        sandbox.apr("merge llama --lora lora -o out").fails(code, &[part]);
    }
    assert!(!sandbox.files().iter().any(|file| file.starts_with("out")));

    // What the base lacks is left out where that is asked for.
    copy(&locate::fixture("lora").join("lora"), &sandbox, "lora");
    let llama = tensors(&fixture("llama/model.safetensors"));
    let (_, shape, bytes) = &llama["model.layers.0.self_attn.q_proj.weight"];
    let shape: Vec<u64> = serde_json::from_value(shape.clone()).expect("numbers");
    let name = "model.layers.0.self_attn.q_proj.weight";
    sandbox.write("part.safetensors", safetensors(&[(name, "F32", &shape, bytes.clone())]));
    sandbox
        .apr("merge part.safetensors --lora lora -o out.safetensors --relaxed")
        .ok()
        .says(&["left out, as the base lacks it", "and 6 more"]);
}

#[test]
fn truncated_and_flipped_adapters_end_with_an_error_or_a_model() {
    let sandbox = with(&["llama", "lora"]);
    let config = fixture("lora/adapter_config.json");
    for len in (0..config.len()).step_by(config.len() / 12) {
        sandbox.write("lora/adapter_config.json", &config[..len]);
        sandbox.apr("merge llama --lora lora -o out -f").fails(4, &["E001"]);
    }
    sandbox.write("lora/adapter_config.json", &config);
    let weights = fixture("lora/adapter_model.safetensors");
    for at in (0..weights.len()).step_by(weights.len() / 24) {
        let mut flipped = weights.clone();
        flipped[at] ^= 1 << (at % 8);
        sandbox.write("lora/adapter_model.safetensors", flipped);
        let code = sandbox.apr("merge llama --lora lora -o out -f --relaxed").code;
        assert!([Some(0), Some(4), Some(5)].contains(&code), "byte {at}: {code:?}");
    }
}

#[test]
fn adapters_of_peft_and_llama_cpp_become_one_another() {
    let sandbox = with(&[
        "llama",
        "lora",
        "patterns",
        "rslora",
        "head",
        "dora",
        "saved",
        "gpt2",
        "gpt2_lora",
    ]);
    copy(&locate::fixture("lora").join("embeddings"), &sandbox, "embeddings");
    sandbox.apr("convert llama -o base.gguf").ok();
    for adapter in ["head", "lora", "patterns", "rslora"] {
        // The base may be of either convention.
        sandbox.apr(&format!("lora convert {adapter} --base llama -o a.gguf -f")).ok();
        sandbox.apr("lora convert a.gguf --base base.gguf -o back -f").ok();
        sandbox.apr(&format!("merge llama --lora {adapter} -o expected.safetensors -f")).ok();
        let expected = tensors(&sandbox.read("expected.safetensors"));
        sandbox.apr("merge llama --lora back -o found.safetensors -f").ok();
        assert!(tensors(&sandbox.read("found.safetensors")) == expected, "{adapter}");
        // Its rows lie as those of the GGUF file that it is merged into.
        sandbox.apr("merge base.gguf --lora a.gguf -o merged.gguf -f").ok();
        sandbox.apr("convert merged.gguf -o found.safetensors -f").ok();
        assert!(tensors(&sandbox.read("found.safetensors")) == expected, "{adapter}");
    }
    let report = sandbox.apr("inspect a.gguf --json").ok().json();
    assert_eq!(report["adapter"]["alpha"], 16.0);

    for (line, code, part) in [
        ("lora convert dora --base llama -o no.gguf", 4, "only pairs of LoRA's matrices"),
        ("lora convert saved --base llama -o no.gguf", 4, "was trained as a whole"),
        ("lora convert embeddings --base llama -o no.gguf", 4, "LoRA of token embeddings"),
        (
            "lora convert gpt2_lora --base gpt2 -o no.gguf",
            4,
            "has another layout in the other form",
        ),
        ("lora convert lora --base gpt2 -o no.gguf", 4, "the base has no weight"),
        ("lora convert lora --base llama -o no", 2, "the adapter is a folder already"),
        ("lora convert a.gguf --base llama -o no.gguf", 2, "the adapter is a GGUF file already"),
        ("merge llama --lora a.gguf -o no.apr", 4, "convert the base to GGUF first"),
    ] {
        sandbox.apr(line).fails(code, &[part]);
    }
    assert!(!sandbox.files().iter().any(|file| file.starts_with("no")));
}

#[test]
fn an_adapter_may_have_a_rank_for_each_of_ten_thousand_modules() {
    const MODULES: usize = 10_000;

    let names: Vec<String> =
        (0..MODULES).map(|at| format!("model.layers.{at}.q_proj.weight")).collect();
    let model = |tuned: bool| {
        let tensors = names.iter().enumerate().map(|(at, name)| {
            // What was learnt has rank 1 or 2.
            let mut values = [1.0_f32; 16];
            if tuned {
                values[0] += 1.0;
                values[5] += f32::from(u8::from(at % 2 == 1));
            }
            (name.as_str(), "F32", &[4_u64, 4][..], f32s(&values))
        });
        safetensors(&tensors.collect::<Vec<_>>())
    };
    let sandbox = Sandbox::new()
        .with("base.safetensors", model(false))
        .with("tuned.safetensors", model(true));
    sandbox
        .apr("lora extract tuned.safetensors --base base.safetensors --energy 0.99 -o adapter")
        .ok();
    let config = sandbox.read("adapter/adapter_config.json");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!(config["rank_pattern"].as_object().map(serde_json::Map::len), Some(MODULES / 2));
    sandbox.apr("merge base.safetensors --lora adapter -o merged.safetensors").ok();
    let (merged, tuned) =
        (tensors(&sandbox.read("merged.safetensors")), tensors(&sandbox.read("tuned.safetensors")));
    assert!(merged == tuned);
}

/// A base of one tensor, `weight`, and an adapter of rank 1 for it, times 1.
fn one_weight(
    config: &Value,
    weight: &Tensor<'_>,
    adapter: &Value,
    pair: [Tensor<'_>; 2],
) -> Sandbox {
    let [first, second] = pair;
    Sandbox::new()
        .with("base/config.json", config.to_string())
        .with("base/model.safetensors", safetensors(std::slice::from_ref(weight)))
        .with("adapter/adapter_config.json", adapter.to_string())
        .with("adapter/adapter_model.safetensors", safetensors(&[first, second]))
}

#[test]
fn experts_that_are_squares_change_as_their_family_has_them() {
    let config = json!({
        "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "hidden_size": 2,
        "intermediate_size": 2, "num_local_experts": 2, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2, "vocab_size": 4,
    });
    let adapter = json!({
        "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [],
        "target_parameters": ["mlp.experts.down_proj"],
    });
    let name = "model.layers.0.mlp.experts.down_proj";
    let module = "base_model.model.model.layers.0.mlp.experts";
    let (a, b) = (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
    let sandbox = one_weight(
        &config,
        &(name, "F32", &[2, 2, 2], f32s(&[0.0; 8])),
        &adapter,
        [
            (&a, "F32", &[2, 2], f32s(&[1.0, 2.0, 3.0, 4.0])),
            (&b, "F32", &[2, 2], f32s(&[5.0, 6.0, 7.0, 8.0])),
        ],
    );
    sandbox.apr("merge base --lora adapter -o out.safetensors --relaxed").ok();
    let (_, _, bytes) = &tensors(&sandbox.read("out.safetensors"))[name];
    // Of each expert, rows are inputs: `A[expert, in] * B[out, expert]`, as PEFT's ParamWrapper has
    // it ("o r e, e r i -> e i o").
    assert_eq!(*bytes, f32s(&[5.0, 7.0, 10.0, 14.0, 18.0, 24.0, 24.0, 32.0]));
}

#[test]
fn a_sum_that_is_cast_is_rounded_once() {
    let config = json!({"model_type": "llama", "hidden_size": 2, "num_hidden_layers": 1});
    let adapter = json!({
        "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"],
    });
    let name = "model.layers.0.self_attn.q_proj.weight";
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let (a, b) = (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
    let ones = [0x80, 0x3f].repeat(4);
    let sandbox = one_weight(
        &config,
        &(name, "BF16", &[2, 2], ones.clone()),
        &adapter,
        [
            (&a, "F32", &[1, 2], f32s(&[0.031_25, 0.0])),
            (&b, "F32", &[2, 1], f32s(&[0.031_25, 0.0])),
        ],
    );
    let merge = "merge base --lora adapter -o out.safetensors --relaxed -f";
    sandbox.apr(&format!("{merge} --precision fp32")).ok();
    let (dtype, _, bytes) = &tensors(&sandbox.read("out.safetensors"))[name];
    assert_eq!((dtype, bytes), (&json!("F32"), &f32s(&[1.000_976_6, 1.0, 1.0, 1.0])));
    // Without a cast, as PEFT merges: into the weight's dtype, in which the change is too small.
    sandbox.apr(merge).ok();
    let (dtype, _, bytes) = &tensors(&sandbox.read("out.safetensors"))[name];
    assert_eq!((dtype, bytes), (&json!("BF16"), &ones));
}

#[test]
fn a_run_with_adapters_is_a_run_of_the_merged_model() {
    let sandbox = with(&["llama", "lora", "dora"]);
    let logits = |line: &str| {
        sandbox.apr(&format!("run {line} --tokens 1,2,3 --want logits --json")).ok().json()
    };
    let values = |line: &str| logits(line)["outputs"].clone();
    for adapters in ["--lora lora", "--lora lora:0.5", "--lora lora:0.5 --lora dora"] {
        sandbox.apr(&format!("merge llama {adapters} -o merged -f --format safetensors")).ok();
        let merged = values("merged");
        assert_eq!(values(&format!("llama {adapters}")), merged, "{adapters}");
        assert_ne!(values("llama"), merged, "{adapters}");
    }
    sandbox.apr("convert llama -o base.gguf").ok();
    sandbox.apr("run base.gguf --lora lora --tokens 1,2,3 --want logits").ok();
    sandbox.apr("run llama --lora llama --tokens 1").fails(4, &["llama"]);
    sandbox.apr("run llama --lora nowhere --tokens 1").fails(3, &["nowhere"]);
}
