//! What GGUF or llama.cpp has no place for is refused, or reported as lost.

use apr_arch::Families;
use apr_gguf::KeyValue;
use apr_llama::{GgufExport, Restored, export, restore};
use apr_registry::CheckpointReader;
use apr_source::{Architecture, Source};
use apr_testkit::llama_cpp::{self, Model};
use apr_testkit::locate::fixture;
use serde_json::{Value, json};

use crate::support::{
    Case, case, cases, exported, exported_with_tokens, families, named, open, read, with_config,
};

/// Mistral's class defaults to a window of 4096 tokens if the configuration has none.
#[test]
fn a_window_that_gguf_does_not_hold_is_reported() {
    let case = named("mistral");
    let mut export = exported_with_tokens(&case);
    let mut pairs =
        apr_gguf::key_values(export.view.metadata()).expect("pairs").expect("there").to_vec();
    pairs.retain(|pair| pair.key != "general.name");
    pairs.push(KeyValue::new("general.name", "Mistral 7B v0.1"));
    let restored =
        |pairs: &[KeyValue], view: &mut apr_view::View<'_>, architecture: &Architecture| {
            let json: Vec<Value> = pairs.iter().map(KeyValue::to_json).collect();
            view.metadata_mut().set("gguf", json!({ "version": 3, "kv": json }));
            let Restored { config, losses, .. } =
                restore(view, families(), architecture).expect("a folder");
            (serde_json::from_slice::<Value>(&config).expect("JSON"), losses)
        };
    let (config, losses) = restored(&pairs, &mut export.view, &Architecture::Auto);
    assert_eq!(
        losses.iter().map(|loss| loss.name.as_str()).collect::<Vec<_>>(),
        ["sliding_window"]
    );
    assert_eq!(config["model_type"], "llama");
    let (config, losses) =
        restored(&pairs, &mut export.view, &Architecture::Named("mistral".to_owned()));
    assert_eq!((losses.len(), config.get("sliding_window")), (1, Some(&Value::Null)));
    // Later models, whose base is another one, never had a window.
    let mut later = pairs.clone();
    later.retain(|pair| pair.key != "llama.rope.freq_base");
    later.push(KeyValue::new("llama.rope.freq_base", 1e6_f32));
    assert_eq!(restored(&later, &mut export.view, &Architecture::Auto).1, []);
    pairs.push(KeyValue::new("llama.attention.sliding_window", 4096_u32));
    let (config, losses) = restored(&pairs, &mut export.view, &Architecture::Auto);
    assert_eq!(
        (losses.len(), &config["sliding_window"], &config["model_type"]),
        (0, &json!(4096), &json!("mistral"))
    );
}

fn refused(name: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut model = llama_cpp::model(name);
    change(&mut model.json);
    let reader = open(&model);
    let result = export(&Source::new(&reader, families()), Vec::new());
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn errors_name_missing_configuration_entries() {
    let without = |key: &'static str| {
        move |json: &mut Value| drop(json["config"].as_object_mut().map(|c| c.remove(key)))
    };
    // transformers has no class of this family, and so no default.
    let message = refused("minicpm", without("num_attention_heads"));
    assert_eq!(
        message,
        "E001: missing 'num_attention_heads' in config.json, which llama.cpp needs as \
         minicpm.attention.head_count"
    );
    // Mistral's class has 32 heads, which these tensors are not of.
    let message = refused("mistral", without("num_attention_heads"));
    assert!(message.contains("does not have 32 x 2 x"), "{message}");
}

#[test]
fn a_family_that_llama_cpp_does_not_have_is_refused() {
    let vit: Value = serde_json::from_slice(
        &std::fs::read(fixture("families/vit.json")).expect("it can be read"),
    )
    .expect("JSON");
    let json = json!({
        "config": vit["config"], "tensors": vit["tensors"], "dtype": "float32", "beside": {},
        "card": "",
    });
    let reader = open(&Model { name: "vit".to_owned(), json });
    let error =
        export(&Source::new(&reader, families()), Vec::new()).err().expect("no such models");
    assert!(
        error.to_string().starts_with("E001: llama.cpp does not support the family"),
        "{error}"
    );
}

#[test]
fn an_unknown_family_is_refused() {
    let message = refused("llama", |json| {
        json["config"] = json!({"model_type": "strange"});
        json["tensors"] = json!({"a.weight": [3, 4]});
    });
    assert_eq!(message, "E001: GGUF requires the model family, and 'strange' is unknown");
}

/// Names as LLaVA's models have them.
#[test]
fn vision_tensors_are_rejected_or_omitted_by_name() {
    let projector = "multi_modal_projector.linear_1.weight";
    let message = refused("llama", |json| {
        json["config"]["model_type"] = json!("llava");
        json["tensors"][projector] = json!([3, 4]);
    });
    assert!(
        message.contains(projector) && message.contains("part of a larger model does not show"),
        "{message}"
    );

    let mut model = llama_cpp::model("gemma3");
    model.json["tensors"]["vision_tower.vision_model.post_layernorm.weight"] = json!([4]);
    let case = case(model);
    let losses = exported(&case.reader, "gemma3").losses;
    assert_eq!(losses[0].name, "vision_tower.vision_model.post_layernorm.weight");
    assert!(losses[0].why.contains("mmproj"), "{losses:?}");
}

#[test]
fn an_adapter_is_not_a_model() {
    let message = refused("llama", |json| {
        json["tensors"] = json!({"q_proj.lora_A.weight": [2, 4], "q_proj.lora_B.weight": [4, 2]});
    });
    assert_eq!(message, "E001: adapters can't be exported to GGUF, only complete models");
}

/// All settings of `transformers` 5 are under `rope_parameters`. Settings of a kind that GGUF lacks
/// are reported.
#[test]
fn scalings_of_transformers_5_are_restored_or_reported() {
    for name in ["llama_5", "llama_linear_5", "mixtral_yarn_5", "phi3_long_5"] {
        let case = named(name);
        let export = exported(&case.reader, name);
        assert!(export.warnings.iter().all(|warning| !warning.contains("rope_scaling")), "{name}");
        let restored =
            restore(&export.view, families(), &Architecture::Auto).expect("it comes back");
        let config: Value = serde_json::from_slice(&restored.config).expect("JSON");
        let told = &case.json["config"]["rope_parameters"];
        for key in [
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "long_factor",
            "short_factor",
        ] {
            if let Some(value) = told.get(key) {
                assert_eq!(config["rope_scaling"][key], *value, "{name}: {key}");
            }
        }
        assert_eq!(config["rope_theta"].as_f64(), told["rope_theta"].as_f64(), "{name}");
    }
    let dynamic = json!({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0});
    let case = with_config("llama_5", &json!({ "rope_parameters": dynamic }));
    assert!(
        exported(&case.reader, "llama_5")
            .warnings
            .iter()
            .any(|warning| warning.contains("'dynamic'"))
    );
}

#[test]
fn layers_without_a_place_are_refused() {
    let dense: Value = serde_json::from_slice(
        &std::fs::read(fixture("families/qwen3_moe_dense.json")).expect("there"),
    )
    .expect("JSON");
    let message = refused("qwen3_moe", |json| {
        json["config"] = dense["config"].clone();
        json["tensors"] = dense["tensors"].clone();
    });
    assert!(message.contains("llama.cpp's qwen3moe has no such tensor"), "{message}");
}

#[test]
fn a_missing_expert_is_noticed() {
    let message = refused("mixtral", |json| {
        let tensors = json["tensors"].as_object_mut().expect("tensors");
        tensors.remove("model.layers.1.block_sparse_moe.experts.1.w2.weight").expect("it is there");
    });
    assert!(message.contains("has 2 experts, but llama.cpp needs all 3"), "{message}");
}

#[test]
fn rows_without_a_token_are_cut() {
    let case = named("gemma");
    let tokens: Vec<String> = (0..90).map(|token| format!("t{token}")).collect();
    let tokenizer = vec![KeyValue::new("tokenizer.ggml.tokens", tokens)];
    let families = Families::builtin();
    let GgufExport { view, losses, .. } =
        export(&Source::new(&case.reader, &families), tokenizer).expect("it can be cut");
    let position = view
        .tensors()
        .iter()
        .position(|info| info.name == "token_embd.weight")
        .expect("embeddings");
    assert_eq!(view.tensors()[position].shape.dims(), [90, 32]);
    let source = case
        .reader
        .tensors()
        .iter()
        .position(|info| info.name == "model.embed_tokens.weight")
        .expect("there");
    assert!(read(&view, position) == read(&case.reader, source)[..90 * 32 * 4]);
    assert_eq!(losses.len(), 1, "{losses:?}");

    let tokens: Vec<String> = (0..110).map(|token| format!("t{token}")).collect();
    let tokenizer = vec![KeyValue::new("tokenizer.ggml.tokens", tokens)];
    let error =
        export(&Source::new(&case.reader, &families), tokenizer).err().expect("too few rows");
    assert!(
        error.to_string().contains("the tokenizer has 110 tokens, but it has 101 rows"),
        "{error}"
    );
}

#[test]
fn numbers_that_llama_cpp_can_not_compute_with_are_refused() {
    for (entries, expected) in [
        (
            json!({"rms_norm_eps": 1e300}),
            "E001: config.json's 'rms_norm_eps' is 1e+300, so llama.attention.layer_norm_rms",
        ),
        (json!({"rms_norm_eps": 0}), "'rms_norm_eps' is 0, so"),
        (json!({"rms_norm_eps": 1e-60}), "would be 0 in single precision"),
        (
            json!({"rope_theta": 1e300}),
            "'rope_theta' is 1e+300, so llama.rope.freq_base would be inf",
        ),
        (json!({"rope_theta": -1.0}), "'rope_theta' is -1.0, so llama.rope.freq_base"),
        (json!({"rope_theta": {}}), "'rope_theta' is {}"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": -2.0}}),
            "'rope_scaling.factor' is -2.0, so llama.rope.scal",
        ),
        (json!({"rope_scaling": {"type": "linear"}}), "'factor' has to be a number above 0"),
        (json!({"rope_scaling": "x"}), "'rope_scaling' is \"x\""),
        (
            json!({"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}),
            "'long_factor' and 'short_factor'",
        ),
    ] {
        let case = with_config("llama", &entries);
        let error = export(&Source::new(&case.reader, families()), Vec::new());
        let error = error.err().unwrap_or_else(|| panic!("{entries} is taken")).to_string();
        assert!(error.contains(expected), "{entries}: {error}");
    }
    let short =
        json!({"rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}});
    let case = with_config("phi3_long", &short);
    let error = export(&Source::new(&case.reader, families()), Vec::new()).err().expect("refused");
    assert!(error.to_string().contains("has 1 factor, but 8 dimensions"), "{error}");
}

#[test]
fn settings_that_llama_cpp_does_not_compute_are_refused_by_name() {
    let linear = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0});
    for (name, entries, expected) in [
        ("eurobert", json!({"rope_parameters": linear}), "(rope_parameters.rope_type)"),
        ("eurobert", json!({"rope_scaling": {"type": "linear", "factor": 2.0}}), "(rope_scaling."),
        ("eurobert", json!({"attention_bias": true}), "(attention_bias, mlp_bias)"),
        ("eurobert", json!({"hidden_act": "gelu"}), "(hidden_act)"),
        ("glm", json!({"rope_parameters": linear}), "(rope_parameters.rope_type)"),
        ("glm", json!({"head_dim": 12}), "(head_dim)"),
        ("granite_swa", json!({"layer_rope_theta": [0.0, 5.0]}), "(layer_rope_theta)"),
    ] {
        let case = with_config(name, &entries);
        let error = export(&Source::new(&case.reader, families()), Vec::new());
        let error = error.err().unwrap_or_else(|| panic!("{name} {entries} is taken")).to_string();
        assert!(error.contains(expected), "{name} {entries}: {error}");
    }
}

#[test]
fn positions_that_are_not_scaled_are_reported() {
    let lists = json!({"type": "longrope", "long_factor": [1.5, 2.0], "short_factor": [1.0, 1.0]});
    for (name, rope, kind) in [
        ("llama", json!({"type": "dynamic", "factor": 2.0}), "'dynamic'"),
        ("llama", json!({"rope_type": "foo"}), "'foo'"),
        ("llama", lists, "'longrope'"),
        ("gemma", json!({"type": "linear", "factor": 2.0}), "'linear'"),
        ("cohere", json!({"type": "linear", "factor": 2.0}), "'linear'"),
        ("cohere", json!({"type": "yarn", "factor": 2.0}), "'yarn'"),
    ] {
        let case =
            with_config(name, &json!({"rope_scaling": rope, "max_position_embeddings": 2048}));
        let GgufExport { losses, warnings, .. } = exported(&case.reader, name);
        assert!(losses.iter().any(|loss| loss.name == "rope_scaling"), "{name} {kind}: {losses:?}");
        let [warning] = &warnings[..] else { panic!("{name} {kind}: {warnings:?}") };
        assert!(warning.contains(kind) && warning.contains("beyond 2048"), "{warning}");
    }
    for Case { name, reader, .. } in cases() {
        let GgufExport { losses, warnings, .. } = exported(&reader, &name);
        assert!(losses.iter().all(|loss| loss.name != "rope_scaling"), "{name}: {losses:?}");
        assert!(
            warnings.iter().all(|warning| !warning.contains("rope_scaling")),
            "{name}: {warnings:?}"
        );
    }
}

#[test]
fn every_family_states_scaled_positions_or_reports_them() {
    for (kind, rope) in [
        ("linear", json!({"rope_type": "linear", "factor": 2.0})),
        ("yarn", json!({"rope_type": "yarn", "factor": 2.0})),
    ] {
        for Case { name, .. } in cases() {
            let case = with_config(&name, &json!({"rope_scaling": rope, "rope_parameters": null}));
            // What is refused is not silent.
            let Ok(made) = export(&Source::new(&case.reader, families()), Vec::new()) else {
                continue;
            };
            let keys = made.view.metadata().key_values().expect("valid").unwrap_or_default();
            let mut keys = keys.iter().filter(|pair| pair.key.ends_with(".rope.scaling.type"));
            let is_stated = keys.any(|pair| pair.json().as_str() == Some(kind));
            let is_reported = made.losses.iter().any(|loss| loss.name.starts_with("rope_scaling"));
            assert!(is_stated || is_reported, "{name}: {kind} is left out without a word");
        }
    }
}

#[test]
fn another_activation_than_that_of_llama_cpp_is_reported() {
    for (name, key, told, computed) in [
        ("llama", "hidden_act", "gelu", "silu"),
        ("mixtral", "hidden_act", "relu", "silu"),
        ("gemma2", "hidden_activation", "silu", "gelu_pytorch_tanh"),
        ("bert", "hidden_act", "relu", "gelu"),
        ("gpt2", "activation_function", "relu", "gelu_new"),
        ("distilbert", "activation", "relu", "gelu"),
        ("t5", "feed_forward_proj", "gelu", "relu"),
        ("t5_gated", "feed_forward_proj", "gated-silu", "gated-gelu"),
    ] {
        let case = with_config(name, &json!({ key: told }));
        let warnings = exported(&case.reader, name).warnings;
        let expected = format!("'{key}' is '{told}', but llama.cpp computes '{computed}'");
        assert!(warnings.iter().any(|warning| warning.contains(&expected)), "{name}: {warnings:?}");
    }
    for Case { name, reader, .. } in cases() {
        let warnings = exported(&reader, &name).warnings;
        assert!(
            warnings.iter().all(|warning| !warning.contains("computes '")),
            "{name}: {warnings:?}"
        );
    }
    // One GELU is as good as another for llama.cpp.
    let case = with_config("gemma", &json!({"hidden_act": "gelu", "hidden_activation": null}));
    assert_eq!(exported(&case.reader, "gemma").warnings, Vec::<String>::new());
}

/// Covers what llama.cpp computes differently in its `models/*.cpp` and `llama-context.cpp`:
///
/// - no windows for LLaMA's architecture, Qwen2, StarCoder2 and Phi-3
/// - Gemma's scale by the width of heads, and a pattern of 6
/// - every fourth layer of SmolLM3 without positions
/// - GPT-2's scale without regard to layers
/// - T5's distance of 128
/// - YaRN's ramp in whole dimensions, and one `mscale`
/// - groups of experts ranked by their two best
#[test]
fn differences_in_llama_cpp_are_reported() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
        "rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 0.5});
    let windows = json!({"use_sliding_window": true, "sliding_window": 5, "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"]});
    let cases = [
        ("mistral", json!({"sliding_window": 5}), "'sliding_window' is 5"),
        ("qwen2", windows, "'sliding_window' is 5"),
        ("starcoder2", json!({"sliding_window": 5}), "'sliding_window' is 5"),
        ("phi3", json!({"sliding_window": 5}), "'sliding_window' is 5"),
        ("gemma2", json!({"query_pre_attn_scalar": 100}), "'query_pre_attn_scalar' is 100"),
        ("gemma3", json!({"query_pre_attn_scalar": 100}), "'query_pre_attn_scalar' is 100"),
        (
            "gpt2",
            json!({"scale_attn_by_inverse_layer_idx": true}),
            "'scale_attn_by_inverse_layer_idx'",
        ),
        ("smollm3", json!({"no_rope_layers": [0, 1]}), "'no_rope_layers' is [0,1]"),
        (
            "t5",
            json!({"relative_attention_max_distance": 20}),
            "'relative_attention_max_distance' is 20",
        ),
        ("gpt_oss", json!({}), "'truncate' of rotary positions is false"),
        (
            "deepseek_v2_lite",
            json!({"rope_parameters": yarn}),
            "'mscale' of rotary positions is 1.0",
        ),
        ("deepseek_v2", json!({}), "another 'router_group_score'"),
        ("qwen3_moe", json!({"norm_topk_prob": false}), "'norm_topk_prob' is false"),
    ];
    for (name, entries, expected) in cases {
        let case = with_config(name, &entries);
        let GgufExport { warnings, .. } = exported(&case.reader, name);
        assert!(warnings.iter().any(|warning| warning.contains(expected)), "{name}: {warnings:?}");
    }

    // A window that no text is longer than, and the numbers of released models.
    for (name, entries) in [
        ("mistral", json!({"sliding_window": 40})),
        ("gemma2", json!({"query_pre_attn_scalar": 12})),
        ("deepseek_v2_lite", json!({})),
    ] {
        let case = with_config(name, &entries);
        assert_eq!(exported(&case.reader, name).warnings, [""; 0], "{name}");
    }
}
