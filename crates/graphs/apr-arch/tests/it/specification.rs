//! The names of `docs/families.md`, "Canonical names", to the letter.

use apr_arch::{Families, GGUF, HUGGING_FACE, ONNX, TensorNameMapper};

#[test]
fn qa_87_whisper_names_are_normalized() {
    let families = Families::builtin();
    let whisper = families.find("whisper").expect("built in");
    let table = [
        ("model.encoder.conv1.weight", "encoder.conv1.weight"),
        ("model.encoder.conv1.bias", "encoder.conv1.bias"),
        ("model.encoder.conv2.weight", "encoder.conv2.weight"),
        ("model.encoder.conv2.bias", "encoder.conv2.bias"),
        ("model.encoder.embed_positions.weight", "encoder.positional_embedding"),
        ("model.encoder.layer_norm.weight", "encoder.layer_norm.weight"),
        ("model.encoder.layer_norm.bias", "encoder.layer_norm.bias"),
        (
            "model.encoder.layers.3.self_attn_layer_norm.weight",
            "encoder.layers.3.self_attn_layer_norm.weight",
        ),
        (
            "model.encoder.layers.3.self_attn.q_proj.weight",
            "encoder.layers.3.self_attn.q_proj.weight",
        ),
        ("model.decoder.embed_tokens.weight", "decoder.token_embedding"),
        ("model.decoder.embed_positions.weight", "decoder.positional_embedding"),
        ("model.decoder.layer_norm.weight", "decoder.layer_norm.weight"),
        ("model.decoder.layer_norm.bias", "decoder.layer_norm.bias"),
        (
            "model.decoder.layers.0.self_attn_layer_norm.weight",
            "decoder.layers.0.self_attn_layer_norm.weight",
        ),
        (
            "model.decoder.layers.0.encoder_attn_layer_norm.weight",
            "decoder.layers.0.encoder_attn_layer_norm.weight",
        ),
        (
            "model.decoder.layers.0.final_layer_norm.weight",
            "decoder.layers.0.final_layer_norm.weight",
        ),
    ];
    let naming = whisper.default_naming(HUGGING_FACE).expect("a naming");
    for (source, canonical) in table {
        assert_eq!(whisper.map_name(source).as_deref(), Some(canonical));
        assert_eq!(whisper.source_name(canonical, &naming).as_deref(), Some(source));
    }
    // PyTorch and GGUF name it so already; ONNX has slashes.
    for source in ["encoder.conv1.weight", "/encoder/conv1/weight"] {
        assert_eq!(whisper.map_name(source).as_deref(), Some("encoder.conv1.weight"), "{source}");
    }
    let onnx = whisper.default_naming(ONNX).expect("a naming");
    assert_eq!(
        whisper.source_name("encoder.conv1.weight", &onnx).as_deref(),
        Some("/encoder/conv1/weight")
    );
    let gguf = whisper.default_naming(GGUF).expect("a naming");
    assert_eq!(
        whisper.source_name("encoder.conv1.weight", &gguf).as_deref(),
        Some("encoder.conv1.weight")
    );
}

#[test]
fn qa_80_llama_names_are_mapped() {
    let families = Families::builtin();
    let llama = families.find("llama").expect("built in");
    let table = [
        (HUGGING_FACE, "model.embed_tokens.weight", "token_embedding"),
        (HUGGING_FACE, "model.layers.0.self_attn.q_proj.weight", "layers.0.attn.q_proj.weight"),
        (GGUF, "token_embd.weight", "token_embedding"),
        (GGUF, "blk.0.attn_q.weight", "layers.0.attn.q_proj.weight"),
    ];
    for (convention, source, canonical) in table {
        let naming = llama.default_naming(convention).expect("a naming");
        assert_eq!(llama.map_name(source).as_deref(), Some(canonical));
        assert_eq!(llama.source_name(canonical, &naming).as_deref(), Some(source));
    }
    assert_eq!(llama.map_name("model.layers.0.self_attn.query.weight"), None, "no tensor of LLaMA");
}
