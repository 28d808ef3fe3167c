//! Which weights of a model get a layout, and what its configuration then states.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, DType, keys};
use apr_quantize::{Laid, Layout, Scheme};
use apr_testkit::safetensors::SafeTensor;
use serde_json::{Value, json};

use crate::{DTYPES, SCHEMES, model, tensor};

/// A LLaMA of one layer whose second matrix of the feed-forward network has 100 columns.
fn llama() -> Box<dyn CheckpointReader> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
        "intermediate_size": 100, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 64, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
    });
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let matrix = |name: String, rows: usize, columns: usize| {
        tensor(&name, DTYPES[2], &vec![vec![0.5; columns]; rows])
    };
    let norm = |name: String| SafeTensor { shape: vec![128], ..matrix(name, 1, 128) };
    let attention = ["q", "k", "v", "o"].map(|name| layer(&format!("self_attn.{name}_proj")));
    let mut tensors = vec![
        matrix("lm_head.weight".to_owned(), 64, 128),
        matrix("model.embed_tokens.weight".to_owned(), 64, 128),
        matrix(layer("mlp.gate_proj"), 100, 128),
        matrix(layer("mlp.up_proj"), 100, 128),
        matrix(layer("mlp.down_proj"), 128, 100),
        norm("model.norm.weight".to_owned()),
        norm(layer("input_layernorm")),
        norm(layer("post_attention_layernorm")),
    ];
    tensors.extend(attention.map(|name| matrix(name, 128, 128)));
    model(&tensors, &config)
}

#[test]
fn dense_tensors_are_listed_and_the_configuration_is_complete() {
    let families = apr_arch::Families::builtin();
    for scheme in SCHEMES {
        let layout = Layout::of(scheme).expect("a layout");
        let base = llama();
        let mut metadata = base.metadata().clone();
        metadata.set(keys::MODEL_TYPE, "llama");
        let model = families.identify(base.tensors(), &metadata);
        let chosen = layout.choose(&*base, model.as_ref(), BTreeMap::new(), &[]);
        let names = base.tensors().iter().map(|info| info.name.clone()).collect::<Vec<_>>();
        let laid = Laid::new(base.into(), layout, chosen).expect("a layout");
        let config = laid.companions().iter().position(|companion| companion.name == "config.json");
        let config = laid.read_companion(config.expect("a configuration")).expect("bytes");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        assert_eq!(config["hidden_size"], 128);
        let stated = &config["quantization_config"];
        let is_dense = |name: &str| {
            laid.tensors().iter().any(|info| info.name == name && info.dtype == DType::BF16)
        };
        let down = "model.layers.0.mlp.down_proj";
        let is_whole = matches!(scheme, Scheme::Fp8 | Scheme::W8A8);
        assert_eq!(is_dense(&format!("{down}.weight")), !is_whole, "{scheme:?}");
        let kept: Vec<&String> = names.iter().filter(|name| is_dense(name)).collect();
        if let Some(bits) = [Scheme::Mlx4, Scheme::Mlx6, Scheme::Mlx8]
            .iter()
            .zip([4, 6, 8])
            .find_map(|(mlx, bits)| (*mlx == scheme).then_some(bits))
        {
            assert_eq!(*stated, json!({ "group_size": 64, "bits": bits, "mode": "affine" }));
            assert_eq!(config["quantization"], *stated);
            assert_eq!(kept.len(), 4, "norms and one matrix: {kept:?}");
            continue;
        }

        let ignore: Vec<&str> = stated["ignore"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|module| module.as_str().expect("a name"))
            .collect();
        for name in kept.iter().filter(|name| !name.contains("norm") && !name.contains("embed")) {
            let module = name.strip_suffix(".weight").expect("a weight");
            assert!(ignore.contains(&module), "{scheme:?}: {module} is dense, but not ignored");
        }
        assert!(ignore.contains(&"lm_head") && is_dense("lm_head.weight"));
        assert!(is_dense("model.embed_tokens.weight"));
        assert_eq!(*stated, expected(scheme, &ignore));
    }
}

/// The quantization entry of `config.json` of a model with matrices of these shapes, and the
/// weights that stay in floats with the reasons.
fn left(config: &Value, shapes: &[(&str, usize, usize)], scheme: Scheme) -> (Value, Vec<String>) {
    let weight = |(name, rows, columns): &(&str, usize, usize)| {
        tensor(&format!("{name}.weight"), DTYPES[2], &vec![vec![0.5; *columns]; *rows])
    };
    let base = model(&shapes.iter().map(weight).collect::<Vec<_>>(), config);
    let families = apr_arch::Families::builtin();
    let mut metadata = base.metadata().clone();
    metadata.set(keys::MODEL_TYPE, config["model_type"].clone());
    let model = families.identify(base.tensors(), &metadata);
    let layout = Layout::of(scheme).expect("a layout");
    let chosen = layout.choose(&*base, model.as_ref(), BTreeMap::new(), &[]);
    let reasons = chosen.left.iter().map(|left| format!("{}: {}", left.module, left.why)).collect();
    let laid = Laid::new(base.into(), layout, chosen).expect("a layout");
    let config: Value =
        serde_json::from_slice(&laid.read_companion(0).expect("bytes")).expect("JSON");
    (config["quantization_config"].clone(), reasons)
}

#[test]
fn routers_and_gates_of_shared_experts_are_ignored_by_name() {
    let common = json!({
        "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 64,
    });
    let config = |model_type: &str| {
        let mut config = common.clone();
        config["model_type"] = json!(model_type);
        config
    };
    let layer = "model.layers.0";
    for (model_type, routers, quantized) in [
        (
            "qwen2_moe",
            &["mlp.gate", "mlp.shared_expert_gate"][..],
            &["mlp.experts.0.up_proj", "mlp.shared_expert.up_proj"][..],
        ),
        ("qwen3_moe", &["mlp.gate"], &["mlp.experts.0.up_proj"]),
        ("mixtral", &["block_sparse_moe.gate"], &["block_sparse_moe.experts.0.w1"]),
    ] {
        let names = |modules: &[&str]| -> Vec<String> {
            modules.iter().map(|module| format!("{layer}.{module}")).collect()
        };
        let (routers, quantized) = (names(routers), names(quantized));
        let rows = |name: &str| if name.ends_with("shared_expert_gate") { 1 } else { 4 };
        let small = routers.iter().map(|name| (&**name, rows(name), 128));
        let shapes: Vec<_> =
            small.chain(quantized.iter().map(|name| (&**name, 128, 128))).collect();
        for scheme in [Scheme::W4A16, Scheme::Fp8, Scheme::Gptq4] {
            let (stated, reasons) = left(&config(model_type), &shapes, scheme);
            let ignored: Vec<String> = match scheme {
                Scheme::Gptq4 => {
                    let patterns = stated["dynamic"].as_object().expect("patterns");
                    let module = |pattern: &String| {
                        pattern.trim_start_matches("-:^").trim_end_matches('$').replace("\\.", ".")
                    };
                    patterns.keys().map(module).collect()
                }
                _ => {
                    let modules = stated["ignore"].as_array().expect("a list");
                    let modules = modules.iter().map(|name| name.as_str().expect("a name"));
                    modules.filter(|name| *name != "lm_head").map(str::to_owned).collect()
                }
            };
            assert_eq!(ignored, routers, "{model_type} {scheme:?}");
            let named = |(router, reason): (&String, &String)| reason.starts_with(&**router);
            assert!(routers.iter().zip(&reasons).all(named), "{reasons:?}");
            assert_eq!(reasons[0], format!("{}: expert router", routers[0]));
        }
    }
}

#[test]
fn matrices_with_inputs_as_rows_and_wrong_shapes_stay_in_floats() {
    let config = json!({
        "model_type": "gpt2", "n_embd": 128, "n_layer": 1, "n_head": 4, "vocab_size": 64,
    });
    let shapes = [
        ("transformer.wte", 64, 128),
        ("transformer.h.0.attn.c_attn", 128, 384),
        // As high as wide: the shape says nothing.
        ("transformer.h.0.attn.c_proj", 128, 128),
        ("transformer.h.0.mlp.c_fc", 128, 512),
        ("transformer.h.0.mlp.c_proj", 512, 128),
    ];
    for scheme in SCHEMES.into_iter().chain([Scheme::Gptq4]) {
        let (_, reasons) = left(&config, &shapes, scheme);
        let expected: Vec<String> =
            shapes[1..].iter().map(|(name, ..)| format!("{name}: Conv1D weights")).collect();
        assert_eq!(reasons, expected, "{scheme:?}");
    }

    let config = json!({ "model_type": "llama", "hidden_size": 96 });
    let shapes =
        [("model.layers.0.mlp.up_proj", 128, 96), ("model.layers.0.mlp.gate_proj", 8, 128)];
    let (stated, reasons) = left(&config, &shapes, Scheme::Gptq4);
    let expected = [
        "model.layers.0.mlp.up_proj: columns not a multiple of 128",
        "model.layers.0.mlp.gate_proj: rows not a multiple of 32",
    ];
    assert_eq!(reasons, expected);
    assert_eq!(stated["dynamic"].as_object().expect("patterns").len(), 2);
}

/// Returns the expected quantization entry of `config.json`, as libraries that load the folder
/// require it.
fn expected(scheme: Scheme, ignore: &[&str]) -> Value {
    let (format, weights) = match scheme {
        Scheme::W4A16 => (
            "pack-quantized",
            json!({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                "group_size": 128, "dynamic": false}),
        ),
        Scheme::W4A16Asym => (
            "pack-quantized",
            json!({"num_bits": 4, "type": "int", "symmetric": false, "strategy": "group",
                "group_size": 128, "dynamic": false}),
        ),
        Scheme::MXFP4 => (
            "mxfp4-pack-quantized",
            json!({"num_bits": 4, "type": "float", "symmetric": true, "strategy": "group",
                "group_size": 32, "dynamic": false, "scale_dtype": "torch.uint8",
                "zp_dtype": "torch.uint8"}),
        ),
        Scheme::NVFP4 => (
            "nvfp4-pack-quantized",
            json!({"num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group",
                "group_size": 16, "dynamic": false, "scale_dtype": "torch.float8_e4m3fn"}),
        ),
        _ => {
            let (format, kind) = match scheme {
                Scheme::Fp8 => ("float-quantized", "float"),
                _ => ("int-quantized", "int"),
            };
            (
                format,
                json!({"num_bits": 8, "type": kind, "symmetric": true, "strategy": "channel",
                    "dynamic": false}),
            )
        }
    };
    let mut activations = Value::Null;
    if weights["num_bits"] == 8 {
        activations = json!({"num_bits": 8, "type": weights["type"], "symmetric": true,
            "strategy": "token", "dynamic": true});
    }
    json!({
        "quant_method": "compressed-tensors", "format": format,
        "quantization_status": "compressed", "ignore": ignore,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
            "input_activations": activations, "output_activations": null, "format": format}},
    })
}
