//! Exports to GGUF against what llama.cpp's converter writes (`fixtures/gguf`), and the way back.

use std::collections::BTreeMap;

use apr_arch::Families;
use apr_gguf::KeyValue;
use apr_llama::{GgufExport, Restored, export, restore};
use apr_registry::{CheckpointReader, DType, Metadata, TensorInfo};
use apr_source::{Architecture, Source};
use apr_tensor::cast::cast_float;
use apr_testkit::llama_cpp::AsGguf;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{
    Case, assert_adjacent, assert_close, cases, exported, exported_with_tokens, families, named,
    read, with_config,
};

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The case whose configuration has factors that GGUF has multiplied into weights.
const SCALED: &str = "falcon_h1";

/// The case whose pooler the converter leaves out, although the classifier reads it.
pub(crate) const POOLED: &str = "bert_classifier";

#[test]
fn tensors_are_the_converters_bit_for_bit() {
    for Case { name, json, reader } in cases() {
        let GgufExport { view, dtypes, losses, .. } = exported(&reader, &name);
        let mut expected = json["written"].as_object().expect("tensors").clone();
        assert_eq!(dtypes.len(), view.tensors().len(), "{name}");
        for (position, info) in view.tensors().iter().enumerate() {
            if name == POOLED && ["cls.weight", "cls.bias"].contains(&info.name.as_str()) {
                continue;
            }
            let golden = expected
                .remove(&info.name)
                .unwrap_or_else(|| panic!("{name}: {} is one too many", info.name));
            assert_eq!(json!(info.shape), golden[1], "{name}: {}", info.name);
            let mut bytes = read(&view, position);
            let dtype = dtypes[position].unwrap_or(info.dtype);
            if dtype != info.dtype {
                let mut cast = Vec::new();
                cast_float(info.dtype, dtype, &bytes, &mut cast);
                bytes = cast;
            }
            assert_eq!(dtype.name(), golden[0], "{name}: {}", info.name);
            if let Some(values) = golden[2].as_array() {
                assert_adjacent(&format!("{name}: {}", info.name), &bytes, values);
                continue;
            }
            assert_eq!(
                hex(&bytes),
                golden[2],
                "{name}: {} differs from the converter's",
                info.name
            );
        }
        assert!(
            expected.is_empty(),
            "{name}: {:?} are missing",
            expected.keys().collect::<Vec<_>>()
        );
        assert!(losses.iter().all(|loss| is_head(&loss.name)), "{name}: {losses:?}");
    }
}

/// Returns `true` for heads of pretraining and poolers, which the converter also omits.
fn is_head(name: &str) -> bool {
    ["pooler.", "cls.", "vocab_"].iter().any(|part| name.contains(part))
}

#[test]
fn any_range_reads_as_part_of_the_whole() {
    for name in [
        "llama_bias",
        "mixtral",
        "gpt2",
        "gpt2_f16",
        "gemma_bf16",
        "gpt_neox",
        "roberta",
        "falcon_grouped",
        "deepseek_v3",
        "gpt_oss",
        "falcon_h1",
        "qwen3_next",
        "qwen3_5",
    ] {
        let case = named(name);
        let view = exported(&case.reader, name).view;
        for (position, info) in view.tensors().iter().enumerate() {
            let whole = read(&view, position);
            let len = whole.len();
            for (offset, take) in [
                (0, len),
                (1, len - 1),
                (3, 5),
                (len / 3, len / 2),
                (len - 1, 1),
                (len, 0),
                (7, 257),
            ] {
                let take = take.min(len - offset.min(len));
                let mut part = vec![0; take];
                view.read_tensor(position, offset as u64, &mut part).expect("bytes");
                assert!(
                    part == whole[offset..offset + take],
                    "{name}: {} from {offset}, {take} bytes",
                    info.name
                );
            }
            assert!(
                view.read_tensor(position, len as u64, &mut [0]).is_err(),
                "{name}: {}",
                info.name
            );
            assert!(
                view.read_tensor(position, u64::MAX, &mut [0]).is_err(),
                "{name}: {}",
                info.name
            );
        }
    }
}

#[test]
fn restoring_an_export_returns_the_original() {
    // Four-bit floats come back as floats, once they are dequantized.
    // Experts of Qwen3-VL come back one by one.
    let comes_back = |case: &Case| !case.name.ends_with("_mxfp4") && case.name != "qwen3_vl_moe";
    for case in cases().into_iter().filter(comes_back) {
        let export = exported_with_tokens(&case);
        let Case { name, json, reader } = &case;
        let restored = restore(&export.view, families(), &Architecture::Auto);
        let Restored { view, config, losses, .. } =
            restored.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(losses, [], "{name}");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        let mut original = json["config"].clone();
        if ["mistral", "internlm3", "iquestcoder"].contains(&name.as_str()) {
            // Without a sliding window, llama.cpp's files do not tell them from a LLaMA.
            original["model_type"] = "llama".into();
            original["architectures"] = json!(["LlamaForCausalLM"]);
        }
        if name == "glm4_moe_lite" {
            // Nor those of smaller models from DeepSeek V3's, which compute the same.
            original["model_type"] = "deepseek_v3".into();
            original["architectures"] = json!(["DeepseekV3ForCausalLM"]);
        }
        check_config(name, &config, &original);
        let sources: BTreeMap<&str, usize> = reader
            .tensors()
            .iter()
            .enumerate()
            .map(|(at, info)| (info.name.as_str(), at))
            .collect();
        for (position, info) in view.tensors().iter().enumerate() {
            let bare =
                info.name.strip_prefix("model.").or_else(|| info.name.strip_prefix("gpt_neox."));
            let prefixed = format!("transformer.{}", info.name);
            let bert = format!("bert.{}", info.name);
            let encoder = bare_encoder(&info.name);
            let names = [Some(info.name.as_str()), bare, Some(&prefixed), Some(&bert), encoder];
            let source = names.iter().flatten().find_map(|name| sources.get(name));
            let source = *source.unwrap_or_else(|| panic!("{name}: {} is new", info.name));
            let original = &reader.tensors()[source];
            let mut expected = read(reader, source);
            if name.starts_with("gemma3n") && info.name.ends_with("embed_tokens_per_layer.weight") {
                // The file has zeros for tokens that the layers have no vectors of.
                let mut found = read(&view, position);
                let more = found.split_off(expected.len());
                assert!(found == expected && more.iter().all(|byte| *byte == 0), "{name}");
                continue;
            }
            assert_eq!(info.shape, original.shape, "{name}: {}", info.name);
            if info.dtype != original.dtype {
                let mut wide = Vec::new();
                cast_float(original.dtype, info.dtype, &expected, &mut wide);
                expected = wide;
            }
            if name.starts_with("roberta") && info.name.ends_with("position_embeddings.weight") {
                // The row of padding is not in the file, and not used.
                expected[..32 * 4].fill(0);
            }
            let found = read(&view, position);
            if info.name.ends_with("A_log") {
                assert_close(&format!("{name}: {}", info.name), &found, &expected);
                continue;
            }
            // Its factors stay within the weights, which are compared with the converter's.
            if name == SCALED && info.shape.dims().len() == 2 {
                continue;
            }
            assert!(found == expected, "{name}: {} has other values", info.name);
        }
        let gone = reader.tensors().len() - view.tensors().len();
        let is_gone =
            |name_of: &str| is_head(name_of) && !(name == POOLED && name_of.contains("pooler."));
        let heads = reader.tensors().iter().filter(|info| is_gone(&info.name)).count();
        assert_eq!(gone, heads, "{name}: tensors are missing");
    }
}

fn bare_encoder(name: &str) -> Option<&str> {
    name.strip_prefix("roberta.").or_else(|| name.strip_prefix("distilbert."))
}

/// Entries that shapes and computation depend on.
fn check_config(name: &str, config: &Value, original: &Value) {
    const KEYS: [&str; 82] = [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "rope_theta",
        "sliding_window",
        "num_local_experts",
        "num_experts",
        "num_experts_per_tok",
        "head_dim",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "n_embd",
        "n_layer",
        "n_head",
        "n_positions",
        "rotary_pct",
        "partial_rotary_factor",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_act",
        "tie_word_embeddings",
        "type_vocab_size",
        "d_model",
        "d_kv",
        "d_ff",
        "num_layers",
        "num_decoder_layers",
        "num_heads",
        "relative_attention_num_buckets",
        "attention_bias",
        "mlp_bias",
        "use_parallel_residual",
        "rope_local_base_freq",
        "original_max_position_embeddings",
        "is_encoder_decoder",
        "feed_forward_proj",
        "torch_dtype",
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
        "logit_scale",
        "use_qk_norm",
        "layer_types",
        "use_qkv_bias",
        "qk_layernorm",
        "norm_epsilon",
        "norm_eps",
        "use_bias",
        "scale_emb",
        "scale_depth",
        "dim_model_base",
        "num_kv_heads",
        "new_decoder_architecture",
        "num_ln_in_parallel_attn",
        "ffn_hidden_size",
        "n_routed_experts",
        "n_shared_experts",
        "first_k_dense_replace",
        "kv_lora_rank",
        "q_lora_rank",
        "qk_rope_head_dim",
        "qk_nope_head_dim",
        "v_head_dim",
        "n_group",
        "topk_group",
        "routed_scaling_factor",
        "scoring_func",
        "local_attention",
        "hidden_activation",
        "classifier_pooling",
        "norm_bias",
        "classifier_bias",
        "no_rope_layer_interval",
    ];
    for key in KEYS {
        let (Some(found), Some(expected)) =
            (config.get(key), original.get(key).filter(|value| !value.is_null()))
        else {
            continue;
        };
        // The converter writes that models without positions, and those of a family whose
        // configurations are wrong, read longer texts. LFM2's width is computed there.
        let longer = [json!(1_u64 << 20), json!(1_u64 << 18)];
        let is_length = key == "max_position_embeddings" && longer.contains(found);
        let is_width = key == "intermediate_size" && name.starts_with("lfm2");
        if is_length || is_width || name == SCALED && key.ends_with("_multiplier") {
            continue;
        }
        // Files of models without a head look like those of tied ones.
        if key == "tie_word_embeddings"
            && original["architectures"][0].as_str().is_some_and(|c| c.ends_with("Model"))
        {
            continue;
        }
        let alike = match (found.as_f64(), expected.as_f64()) {
            (Some(found), Some(expected)) => (found - expected).abs() <= 1e-6 * expected.abs(),
            _ => found == expected,
        };
        assert!(alike, "{name}: {key} is {found}, was {expected}");
    }
    let classes = [&config["architectures"][0], &original["architectures"][0]];
    let class = |value: &Value| value.as_str().expect("a class").replace("ForMaskedLM", "Model");
    let [found, expected] = classes.map(class);
    // Files of models without a head do not tell.
    assert!(found == expected || expected.ends_with("Model"), "{name}: {found} was {expected}");
}

#[test]
fn settings_of_stretched_positions_come_back() {
    for name in ["llama3", "llama_linear", "qwen2_yarn", "phi3_long"] {
        let case = named(name);
        let export = exported(&case.reader, name);
        let restored =
            restore(&export.view, families(), &Architecture::Auto).expect("it comes back");
        let config: Value = serde_json::from_slice(&restored.config).expect("JSON");
        for (key, value) in case.json["config"]["rope_scaling"].as_object().expect("settings") {
            let found = if key == "type" { config["rope_scaling"].get("rope_type") } else { None };
            let found = found.unwrap_or(&config["rope_scaling"][key]);
            assert_eq!(json!(found), *value, "{name}: {key}");
        }
    }
}

#[test]
fn exported_tensors_have_no_mismatches() {
    let families = Families::builtin();
    for case in cases() {
        let (name, export) = (&case.name, exported_with_tokens(&case));
        let metadata =
            apr_llama::described(&AsGguf::new(&export.view), &families, &Architecture::Auto);
        let metadata = metadata.unwrap_or_else(|| panic!("{name} is not described"));
        let model = families.identify(export.view.tensors(), &metadata);
        let model = model.unwrap_or_else(|| panic!("{name} is not identified"));
        assert!(model.is_in_gguf_layout(), "{name}");
        assert_eq!(
            model.mismatches(export.view.tensors()),
            [],
            "{name} as {}",
            model.family().name()
        );

        // Which kind each layer has is in the keys alone.
        if name == "nemotron_h" {
            continue;
        }
        // Several families have tensors of these names.
        if ["minicpm3", "minicpm3_long", "youtu"].contains(&name.as_str()) {
            continue;
        }

        // Names alone may leave open what it is, but must not make anything look wrong.
        let nothing = Metadata::new();
        let guessed = families.identify(export.view.tensors(), &nothing);
        let guessed = guessed.unwrap_or_else(|| panic!("{name} is not known by its names"));
        assert_eq!(
            guessed.mismatches(export.view.tensors()),
            [],
            "{name} as {}",
            guessed.family().name()
        );
    }
}

#[test]
fn the_file_type_follows_the_recorded_scheme() {
    let case = named("llama");
    let mut view = apr_view::View::new(&case.reader);
    view.metadata_mut().set("quantization", json!({"type": "q4_k_s"}));
    let export = export(&Source::new(&view, families()), Vec::new()).expect("it can be written");
    let pairs = apr_gguf::key_values(export.view.metadata()).expect("pairs").expect("there");
    assert_eq!(pairs.get("general.file_type").expect("a file type").as_u64(), Some(14));
}

#[test]
fn one_value_a_layer_is_the_value_where_all_are_equal() {
    let case = named("llama");
    let mut export = exported(&case.reader, "llama");
    let pairs =
        apr_gguf::key_values(export.view.metadata()).expect("pairs").expect("keys").to_vec();
    let mut pairs: Vec<Value> = pairs.iter().map(KeyValue::to_json).collect();
    let config = restore(&export.view, families(), &Architecture::Auto).expect("restored").config;
    for pair in &mut pairs {
        let key = pair["key"].as_str().expect("a key");
        if ["head_count", "head_count_kv", "feed_forward_length"]
            .iter()
            .any(|end| key.ends_with(end))
        {
            *pair = json!({
                "key": key, "type": "array", "items": "u32",
                "value": [pair["value"], pair["value"]],
            });
        }
    }
    export.view.metadata_mut().set("gguf", json!({ "kv": pairs }));
    let again = restore(&export.view, families(), &Architecture::Auto).expect("restored").config;
    assert_eq!(String::from_utf8(again), String::from_utf8(config));
}

/// Checks factors of `transformers.modeling_rope_utils` for other bounds than LLaMA 3's: `(1 /
/// theta ** (arange(0, 8, 2) / 8)) / ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]`.
#[test]
fn factors_that_no_llama_3_has_come_back_as_lists() {
    const FACTORS: [f64; 4] = [1.0, 2.412_509_441_375_732_4, 8.0, 8.0];

    let settings = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0,
        "high_freq_factor": 5.0, "original_max_position_embeddings": 500});
    let case = with_config("llama3", &json!({"rope_scaling": settings}));
    let export = exported(&case.reader, "llama3");
    let restored = restore(&export.view, families(), &Architecture::Auto).expect("it comes back");
    assert_eq!(restored.losses, []);
    let scaling = &restored.entries["rope_scaling"];
    assert_eq!(
        (&scaling["rope_type"], &scaling["attention_factor"], &scaling["factor"]),
        (&json!("longrope"), &json!(1.0), &json!(1.0))
    );
    for key in ["long_factor", "short_factor"] {
        let found = scaling[key].as_array().expect("a list").iter().filter_map(Value::as_f64);
        let found: Vec<f64> = found.collect();
        assert_eq!(found.len(), FACTORS.len());
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6 * b;
        assert!(found.iter().zip(&FACTORS).all(is_close), "{found:?}");
    }
}

/// GGML tensors have no outermost dimensions of 1, so a file that llama.cpp quantized has none
/// either. The score of the shared expert is a vector there.
#[test]
fn dimensions_of_one_come_back() {
    let case = named("qwen2_moe");
    let mut export = exported_with_tokens(&case);
    export.view.drop_outer_ones();
    let restored = restore(&export.view, families(), &Architecture::Auto).expect("it comes back");
    for info in case.reader.tensors() {
        let found = restored.view.tensors().iter().find(|found| found.name == info.name);
        assert_eq!(found.map(|found| &found.shape), Some(&info.shape), "{}", info.name);
    }
    let file = AsGguf::new(&export.view);
    let described = apr_llama::described(&file, families(), &Architecture::Auto);
    let described = described.expect("a family");
    let model = families().apply("qwen2_moe", file.tensors(), &described).expect("known");
    assert_eq!(model.mismatches(file.tensors()), []);
}

/// Files of DeepSeek from before llama.cpp cut the projection of keys and values in two.
#[test]
fn a_projection_that_was_not_cut_comes_back() {
    let case = named("deepseek_v2_lite");
    let mut export = exported_with_tokens(&case);
    let original = case.reader.tensors().iter().enumerate();
    let original: Vec<_> =
        original.filter(|(_, info)| info.name.ends_with("kv_b_proj.weight")).collect();
    export.view.drop_tensors(|name| name.ends_with("_b.weight"));
    for (layer, (position, info)) in original.iter().enumerate() {
        let whole = TensorInfo { name: format!("blk.{layer}.attn_kv_b.weight"), ..(*info).clone() };
        export.view.add(whole, read(&case.reader, *position));
    }

    // A key's length then was that of a head.
    let pairs =
        apr_gguf::key_values(export.view.metadata()).expect("pairs").expect("keys").to_vec();
    let mut pairs: Vec<KeyValue> =
        pairs.into_iter().filter(|pair| !pair.key.ends_with("_length_mla")).collect();
    for (key, length) in [("key", 18_u32), ("value", 7)] {
        let key = format!("deepseek2.attention.{key}_length");
        pairs.retain(|pair| pair.key != key);
        pairs.push(KeyValue::new(key, length));
    }
    export.view.metadata_mut().set_key_values(pairs.iter().collect());

    let restored = restore(&export.view, families(), &Architecture::Auto).expect("it comes back");
    for key in ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"] {
        assert_eq!(restored.entries[key], case.json["config"][key], "{key}");
    }
    assert_eq!(restored.entries["q_lora_rank"], Value::Null, "its class has another default");
    for (position, info) in original {
        let at = restored.view.tensors().iter().position(|found| found.name == info.name);
        assert_eq!(read(&restored.view, at.expect("it is there")), read(&case.reader, position));
    }
}

/// The numbers are those of `LlamaFileType` in the package gguf 0.18, except `Q2_0`, which it does
/// not have yet.
#[test]
fn the_file_type_is_the_dtype_of_most_elements_of_matrices() {
    let info = |dims: &[u64]| TensorInfo {
        name: "t".into(),
        dtype: DType::F32,
        shape: dims.to_vec().into(),
    };
    let (matrix, large, row) = (info(&[2, 256]), info(&[3, 256]), info(&[4096]));
    let numbers = [
        (DType::F32, 0),
        (DType::F16, 1),
        (DType::Q4_0, 2),
        (DType::Q4_1, 3),
        (DType::Q8_0, 7),
        (DType::Q5_0, 8),
        (DType::Q5_1, 9),
        (DType::Q2_K, 10),
        (DType::Q3_K, 12),
        (DType::Q4_K, 15),
        (DType::Q5_K, 17),
        (DType::Q6_K, 18),
        (DType::IQ2_XXS, 19),
        (DType::IQ2_XS, 20),
        (DType::IQ3_XXS, 23),
        (DType::IQ1_S, 24),
        (DType::IQ4_NL, 25),
        (DType::IQ3_S, 26),
        (DType::IQ2_S, 28),
        (DType::IQ4_XS, 30),
        (DType::IQ1_M, 31),
        (DType::BF16, 32),
        (DType::TQ1_0, 36),
        (DType::TQ2_0, 37),
        (DType::MXFP4, 38),
        (DType::NVFP4, 39),
        (DType::Q1_0, 40),
        (DType::Q2_0, 41),
    ];
    for (dtype, number) in numbers {
        // Rows of numbers beside matrices, and larger matrices of single precision, say nothing.
        let tensors = [(&matrix, dtype), (&row, DType::Q8_0), (&large, DType::F32)];
        assert_eq!(apr_llama::file_type(tensors.into_iter()), number, "{dtype}");
        let most = [(&matrix, dtype), (&large, DType::Q6_K)];
        assert_eq!(apr_llama::file_type(most.into_iter()), 18, "{dtype} beside more of Q6_K");
    }
}
