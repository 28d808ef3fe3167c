//! What an export writes.

use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use serde_json::Value;

use super::parsed::Parsed;
use super::trained;
use crate::support::{Sandbox, small_safetensors};

/// The bytes of a tensor of a safetensors file.
fn of_safetensors(file: &[u8], name: &str) -> Vec<u8> {
    let len = usize::try_from(u64::from_le_bytes(file[..8].try_into().expect("eight bytes")))
        .expect("small");
    let header: Value = serde_json::from_slice(&file[8..8 + len]).expect("JSON");
    let offset = |end: usize| {
        usize::try_from(header[name]["data_offsets"][end].as_u64().expect("an offset"))
            .expect("small")
    };
    file[8 + len + offset(0)..8 + len + offset(1)].to_vec()
}

#[test]
fn qa_61_an_export_is_what_the_specification_of_gguf_says() {
    let sandbox = trained();
    sandbox.apr("import llama -o m.apr").ok();
    for line in ["export llama --format gguf -o direct", "export m.apr -o m.gguf"] {
        sandbox.apr(line).ok();
    }
    let source = sandbox.read("llama/model.safetensors");
    for name in ["direct", "m.gguf"] {
        let file = Parsed::new(&sandbox.read(name), 32);
        assert_eq!(file.text("general.architecture"), "llama");
        for (key, value) in [
            ("llama.block_count", 2),
            ("llama.context_length", 64),
            ("llama.embedding_length", 128),
            ("llama.feed_forward_length", 256),
            ("llama.attention.head_count", 4),
            ("llama.attention.head_count_kv", 2),
            ("tokenizer.ggml.bos_token_id", 256),
            ("tokenizer.ggml.eos_token_id", 257),
            ("general.file_type", 32),
        ] {
            assert_eq!(file.number(key), value, "{key}");
        }
        assert_eq!(file.text("tokenizer.ggml.model"), "gpt2");
        assert_eq!(file.tensors.len(), 21);
        // Dimensions innermost first; BF16 is number 30, and vectors are F32, number 0.
        let (dims, kind, _) = &file.tensors["blk.1.ffn_down.weight"];
        assert_eq!((&dims[..], *kind), (&[256, 128][..], 30));
        let (dims, kind, _) = &file.tensors["output_norm.weight"];
        assert_eq!((&dims[..], *kind), (&[128][..], 0));
        for (gguf, hf) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
            ("blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
            ("output.weight", "lm_head.weight"),
        ] {
            let expected = of_safetensors(&source, hf);
            assert!(file.bytes(gguf, expected.len()) == expected, "{gguf}");
        }
        // llama.cpp rotates neighbours where transformers rotates halves: the rows of each head
        // change places.
        let (query, head) =
            (of_safetensors(&source, "model.layers.0.self_attn.q_proj.weight"), 32 * 256);
        let rotated = file.bytes("blk.0.attn_q.weight", query.len());
        for row in 0..32 {
            let from = (row % 2 * 16 + row / 2) * 256;
            assert!(rotated[head + row * 256..][..256] == query[head + from..][..256], "row {row}");
        }
    }
}

#[test]
fn qa_82_qa_83_gguf_files_hold_the_floats_asked_for() {
    let sandbox = trained();
    // Vectors stay F32, as llama.cpp wants them.
    for (options, kind, file_type) in [
        ("--precision fp32", 0, 0),
        ("--precision fp16", 1, 1),
        ("--precision bf16", 30, 32),
        ("", 30, 32),
    ] {
        sandbox.apr(&format!("export llama -o m.gguf {options} -f")).ok();
        let file = Parsed::new(&sandbox.read("m.gguf"), 32);
        assert_eq!(
            (file.tensors["token_embd.weight"].1, file.tensors["output_norm.weight"].1),
            (kind, 0),
            "{options}"
        );
        assert_eq!(file.number("general.file_type"), file_type, "{options}");
    }
    sandbox.apr("quantize llama --type q8_0 -o q.gguf").ok();
    for (dtype, kind) in [("f32", 0), ("f16", 1), ("bf16", 30)] {
        sandbox.apr(&format!("convert q.gguf --dequantize {dtype} -o d.gguf -f")).ok();
        let file = Parsed::new(&sandbox.read("d.gguf"), 32);
        assert_eq!(
            (file.tensors["blk.0.attn_q.weight"].1, file.tensors["output_norm.weight"].1),
            (kind, 0),
            "{dtype}"
        );
        sandbox.apr("diff q.gguf d.gguf --tolerance 0.001 --exit-code").ok();
    }
}

#[cfg(unix)]
#[test]
fn a_folder_is_rejected_as_the_output_for_one_file() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.write("m.gguf", GgufBuilder::new().entry(GgufEntry::i8("a", &[1])).build());
    sandbox.shell("mkdir there").clean();
    let before = sandbox.files();
    for output in ["there", "there/", "absent/"] {
        for (model, format) in
            [("m.gguf", "gguf"), ("m.safetensors", "apr"), ("m.safetensors", "pytorch")]
        {
            let run = sandbox.apr(&format!("convert {model} -o {output} --format {format} -f"));
            run.fails(2, &[output, "is a folder, but the output is one file", "/model."]);
        }
    }
    assert_eq!(sandbox.files(), before);
}
