use super::*;

fn file(text: &str) -> GgufFile {
    toml::from_str(text).expect("a table")
}

const BASE: &str = r#"
    architecture = "base"
    keys = [
        { key = "block_count", type = "u32", value = "layers", required = true },
        { key = "rope.type", type = "string", value = "'a'", when = "kind == 1" },
        { key = "rope.type", type = "string", value = "'b'", when = "kind == 2" },
        { key = "general.file_type", type = "u32", value = ["file_type", "0"] },
    ]
    config = [
        { key = "num_hidden_layers", value = "block_count" },
        { key = "rope_scaling.type", value = "rope.type" },
        { key = "rope_scaling.factor", value = "rope.factor" },
    ]
    layouts = { "a.weight" = { add = 1.0 } }
"#;

fn lookup(name: &str) -> Option<Value> {
    match name {
        "layers" | "block_count" => Some(Value::Number(3.0)),
        "kind" => Some(Value::Number(2.0)),
        "rope.factor" => Some(Value::Number(1.5)),
        _ => None,
    }
}

fn no_defaults(were_used: &Cell<bool>) -> Defaults<'_> {
    Defaults { were_used, stated: &|_| None }
}

#[test]
fn keys_are_written_if_their_condition_is_true() {
    let gguf = Gguf::parse(&file(BASE)).expect("parses").expect("a table");
    let keys =
        gguf.keys(&mut lookup, no_defaults(&Cell::new(false)), str::to_owned).expect("all there");
    let expected = [
        ("base.block_count", GgufValue::U32(3)),
        ("base.rope.type", GgufValue::String("b".to_owned())),
        ("general.file_type", GgufValue::U32(0)),
    ];
    assert_eq!(keys, expected.map(|(key, value)| (key.to_owned(), value)));
}

#[test]
fn lists_are_computed_item_by_item() {
    let text = r#"
        architecture = "a"
        keys = [
            { key = "heads", type = "i32s", each = "layers", value = "layer%2 == 1 ? layers : 0" },
        ]
        config = [
            { key = "kinds", each = "layers", value = "layer == 1 ? 'x' : 'y'" },
            { key = "factors", value = "[1, 0.5]", real = true },
        ]
    "#;
    let gguf = Gguf::parse(&file(text)).expect("parses").expect("a table");
    let keys =
        gguf.keys(&mut lookup, no_defaults(&Cell::new(false)), str::to_owned).expect("all there");
    assert_eq!(keys, [("a.heads".to_owned(), GgufValue::I32s(vec![0, 3, 0]))]);
    let config = gguf.config(&mut lookup);
    assert_eq!(config["kinds"], serde_json::json!(["y", "x", "y"]));
    assert_eq!(config["factors"].to_string(), "[1.0,0.5]");

    // A file may state any number of layers.
    let mut many = |name: &str| (name == "layers").then_some(Value::Number(1e9));
    assert!(!gguf.config(&mut many).contains_key("kinds"));
}

#[test]
fn a_missing_hyperparameter_is_reported_by_name() {
    let gguf = Gguf::parse(&file(BASE)).expect("parses").expect("a table");
    let error = gguf
        .keys(&mut |_| None, no_defaults(&Cell::new(false)), |name| format!("num_{name}"))
        .expect_err("layers are unknown");
    assert_eq!(
        error.to_string(),
        "E001: missing 'num_layers' in config.json, which llama.cpp needs as base.block_count"
    );
}

#[test]
fn a_child_replaces_keys_where_they_stand() {
    let child = file(
        r#"
        architecture = "child"
        without_keys = ["general.file_type"]
        keys = [
            { key = "rope.type", type = "string", value = "'c'" },
            { key = "new", type = "bool", value = "true" },
        ]
    "#,
    );
    let gguf = Gguf::parse(&child.on_top_of(&file(BASE))).expect("parses").expect("a table");
    let keys: Vec<String> = gguf
        .keys(&mut lookup, no_defaults(&Cell::new(false)), str::to_owned)
        .expect("all there")
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    assert_eq!(keys, ["child.block_count", "child.rope.type", "child.new"]);
    assert_eq!(gguf.layouts.len(), 1, "layouts are inherited");
}

#[test]
fn a_configuration_is_built_from_the_keys_of_the_file() {
    let gguf = Gguf::parse(&file(BASE)).expect("parses").expect("a table");
    let config = Json::from(gguf.config(&mut lookup));
    assert_eq!(
        config,
        serde_json::json!({"num_hidden_layers": 3, "rope_scaling": {"factor": 1.5}})
    );
}

/// ggml leaves out outermost sizes of 1: the head of `Qwen3ForSequenceClassification` with one
/// label, `[1, 64]` in transformers, is a vector in a file of llama-quantize.
#[test]
fn a_head_of_one_label_is_a_matrix_of_one_row() {
    let shapes: [(&str, &[u64]); 13] = [
        ("token_embd.weight", &[100, 64]),
        ("output_norm.weight", &[64]),
        ("blk.0.attn_norm.weight", &[64]),
        ("blk.0.attn_q.weight", &[64, 64]),
        ("blk.0.attn_k.weight", &[32, 64]),
        ("blk.0.attn_v.weight", &[32, 64]),
        ("blk.0.attn_q_norm.weight", &[32]),
        ("blk.0.attn_k_norm.weight", &[32]),
        ("blk.0.attn_output.weight", &[64, 64]),
        ("blk.0.ffn_norm.weight", &[64]),
        ("blk.0.ffn_gate.weight", &[96, 64]),
        ("blk.0.ffn_up.weight", &[96, 64]),
        ("blk.0.ffn_down.weight", &[64, 96]),
    ];
    let families = crate::Families::builtin();
    let mut metadata = apr_core::Metadata::new();
    metadata.set(apr_core::keys::MODEL_TYPE, "qwen3");
    let config = serde_json::json!({
        "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 32,
        "num_key_value_heads": 1, "intermediate_size": 96, "vocab_size": 100,
        "architectures": ["Qwen3ForSequenceClassification"],
    });
    metadata.set(apr_core::keys::ARCHITECTURE, config);
    for (head, whole) in [(&[64][..], Some(vec![1, 64])), (&[3, 64], None), (&[1, 64], None)] {
        let tensors = shapes.iter().copied().chain([("cls.output.weight", head)]);
        let tensors: Vec<apr_core::TensorInfo> = tensors
            .map(|(name, dims)| apr_core::TensorInfo {
                name: name.to_owned(),
                dtype: apr_core::DType::F32,
                shape: dims.to_vec().into(),
            })
            .collect();
        let model = families.apply("qwen3", &tensors, &metadata).expect("the family");
        assert!(model.is_in_gguf_layout());
        let found = model.with_outer_ones("score.weight", &head.to_vec().into());
        assert_eq!(found.map(|shape| shape.dims().to_vec()), whole, "{head:?}");
    }
}
