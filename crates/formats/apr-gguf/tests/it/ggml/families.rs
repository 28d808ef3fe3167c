//! Every family and every container is told apart, and its hyperparameters get their names.

use super::*;

#[test]
fn llama_opens_in_every_container() {
    for (magic, version) in CONTAINERS {
        let reader = open(llama(magic, version).build()).expect("a sound file");
        assert_eq!(reader.architecture(), "llama");
        let tensors = reader.tensors();
        assert_eq!(tensors[0].shape.dims(), [3, 4], "{version:?}: outermost first");
        assert_eq!((tensors[0].dtype.name(), tensors[1].dtype.name()), ("f16", "f32"));
        assert_eq!(bytes_of(&reader, 0), [0, 0x3c].repeat(12));
        assert_eq!(floats_of(&reader, 1), [0.0, 1.0, 2.0, 3.0]);
        let name = ["ggml", "ggmf", "ggjt"].into_iter().find(|name| name.bytes().rev().eq(magic));
        let expected = json!({
            "magic": name, "version": version, "ftype": 1,
            "quantization_version": match version { Some(at @ 2..) => at - 1, _ => 0 },
            "hyperparameters": {
                "n_vocab": 3, "n_embd": 4, "n_mult": 7, "n_head": 2, "n_layer": 1, "n_rot": 2,
                "ftype": 1,
            },
        });
        assert_eq!(*field(&reader, "ggml"), expected);
        let scores = version.is_some().then_some(&[0.0, -1.0, -2.0][..]);
        assert_eq!(reader.vocabulary_scores(), scores);
        assert_eq!(reader.warnings(), [""; 0]);
    }
}

#[test]
fn llama_gets_the_keys_of_hugging_face() {
    let with_layers = |reader: &GgmlReader| field(reader, "architecture").clone();
    let plain = open(llama(*b"tjgg", Some(3)).build()).expect("a sound file");
    let expected = json!({
        "vocab_size": 3, "hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1,
        "head_dim": 2,
        // Two thirds of 16 are 10; the next multiple of 7 is 14.
        "intermediate_size": 14,
    });
    assert_eq!(with_layers(&plain), expected);

    let grouped = llama(*b"tjgg", Some(3))
        .tensor(GgmlTensor::f16("layers.0.attention.wk.weight", &[4, 2]))
        .tensor(GgmlTensor::f16("layers.0.feed_forward.w1.weight", &[4, 24]));
    let grouped = with_layers(&open(grouped.build()).expect("a sound file"));
    assert_eq!(
        (&grouped["num_key_value_heads"], &grouped["intermediate_size"]),
        (&json!(1), &json!(24))
    );
}

#[test]
fn whisper_has_its_filterbank_as_a_tensor() {
    let file = GgmlBuilder::whisper()
        .tensor(GgmlTensor::f32("encoder.blocks.0.attn_ln.bias", &[4]))
        .tensor(GgmlTensor::f16("decoder.blocks.0.attn.key.weight", &[4, 4]));
    let reader = open(file.build()).expect("a sound file");
    assert_eq!(reader.architecture(), "whisper");
    assert_eq!(reader.metadata().auxiliary_tensor(), Some("audio.mel_filterbank"));
    assert_eq!(reader.tensors()[0].name, "audio.mel_filterbank");
    assert_eq!(reader.tensors()[0].shape.dims(), [2, 3]);
    assert_eq!(floats_of(&reader, 0), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]);
    assert_eq!(*field(&reader, "mel_filterbank_shape"), json!([2, 3]));
    let expected = json!({
        "vocab_size": 5, "max_source_positions": 6, "d_model": 4, "encoder_attention_heads": 2,
        "encoder_layers": 1, "max_target_positions": 7, "decoder_attention_heads": 2,
        "decoder_layers": 1, "num_mel_bins": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
    });
    assert_eq!(*field(&reader, "architecture"), expected);
    assert_eq!(*field(&reader, "tokenizer.vocabulary"), json!(["!", " the", ""]));
    assert_eq!(*field(&reader, "tokenizer.vocab_size"), 3);
    assert_eq!(reader.vocabulary_scores(), None);
}

/// Returns a file of each family that is detected by its contents, with a tensor name of that
/// family.
fn found() -> Vec<(&'static str, GgmlBuilder, &'static str)> {
    vec![
        ("llama", GgmlBuilder::llama(*b"lmgg", None), "layers.0.ffn_norm.weight"),
        ("whisper", GgmlBuilder::whisper(), "encoder.blocks.0.attn_ln.bias"),
        ("silero-vad", GgmlBuilder::silero(), "_model.encoder.0.reparam_conv.bias"),
        ("gpt2", GgmlBuilder::gpt2(), "model/h0/ln_1/g"),
        ("gptj", GgmlBuilder::gptj(), "transformer.h.0.ln_1.weight"),
        ("gptneox", GgmlBuilder::gptneox(), "gpt_neox.layers.0.input_layernorm.weight"),
        ("mpt", GgmlBuilder::mpt(), "transformer.blocks.0.norm_1.weight"),
        ("falcon", GgmlBuilder::falcon(), "transformer.h.0.input_layernorm.weight"),
        ("bert", GgmlBuilder::bert(), "encoder.layer.0.output.dense.bias"),
        ("rwkv", GgmlBuilder::rwkv(100), "blocks.0.ln1.weight"),
        ("rwkv", GgmlBuilder::rwkv(101), "blocks.0.ln1.weight"),
    ]
}

#[test]
fn families_are_detected_by_their_contents() {
    for (family, builder, tensor) in found() {
        let file = builder.tensor(GgmlTensor::f32(tensor, &[4])).build();
        for reader in [open(file.clone()), open_as(file, family)] {
            let reader = reader.unwrap_or_else(|error| panic!("{family}: {error}"));
            assert_eq!(reader.architecture(), family);
            assert_eq!(reader.tensors().last().map(|info| info.name.as_str()), Some(tensor));
            assert_eq!(
                reader.warnings().len(),
                usize::from(family == "whisper"),
                "{family}: {:?}",
                reader.warnings()
            );
        }
    }
}

#[test]
fn an_architecture_can_be_named_where_tensors_have_other_names() {
    let file = GgmlBuilder::gptneox().tensor(GgmlTensor::f32("h.0.w", &[4])).build();
    let error = refused(file.clone());
    assert_eq!(error.code(), Code::Format);
    assert!(
        error.message().contains("`architecture` NAME, one of llama, whisper, silero-vad, gpt2"),
        "{error}"
    );
    for name in ["gptneox", "GPT-NeoX", "gpt_neox", "stablelm"] {
        assert_eq!(open_as(file.clone(), name).expect("a sound file").architecture(), "gptneox");
    }
    let error = open_as(file, "gpt5").expect_err("no such architecture");
    assert!(error.message().contains("'gpt5' is not an architecture known"), "{error}");
}

#[test]
fn starcoder_is_gpt2_unless_it_is_specified() {
    let file = GgmlBuilder::gpt2().tensor(GgmlTensor::f32("model/h0/ln_1/g", &[4])).build();
    let reader = open_as(file, "starcoder").expect("a sound file");
    assert_eq!(*field(&reader, "model_type"), "gpt_bigcode");
}

#[test]
fn a_bloom_is_not_detected_as_gpt2() {
    let file = GgmlBuilder::gpt2()
        .tensor(GgmlTensor::f32("model/h0/ln_1/g", &[4]))
        .tensor(GgmlTensor::f32("model/ln_wte/g", &[4]));
    assert_eq!(refused(file.build()).code(), Code::Format);
}

#[test]
fn neox_gets_its_share_of_rotation() {
    let reader = open(GgmlBuilder::gptneox().build()).expect("a vocabulary");
    let architecture = field(&reader, "architecture");
    assert_eq!(architecture["rotary_pct"], 0.25);
    assert_eq!(architecture["use_parallel_residual"], true);
    assert_eq!(reader.warnings().len(), 1, "it has no tensors");
}

#[test]
fn scores_are_found_in_containers_of_other_programs() {
    for scored in [true, false] {
        let base = GgmlBuilder::gpt2().tensor(GgmlTensor::f32("model/h0/ln_1/g", &[4]));
        let file = GgmlBuilder { magic: *b"tjgg", version: Some(3), scored, aligned: true, ..base };
        let reader = open(file.build()).expect("a sound file");
        assert_eq!(reader.architecture(), "gpt2");
        assert_eq!(reader.vocabulary_scores().is_some(), scored);
    }
}

#[test]
fn tokens_that_are_not_text_are_written_like_gpt2s_bytes() {
    let reader = open(GgmlBuilder::gpt2().build()).expect("a vocabulary");
    assert!(reader.vocabulary_tokens().take(3).eq([&b"x"[..], b"\xc4y", b""]));
    assert_eq!(field(&reader, "tokenizer.vocabulary")[1], "\u{c4}y");
    assert_eq!(*field(&reader, "tokenizer.vocabulary_encoding"), "byte_to_unicode");

    let mut every_byte = GgmlBuilder::gpt2();
    every_byte.tokens[0] = (0..=255).collect();
    let reader = open(every_byte.build()).expect("a vocabulary");
    let text = field(&reader, "tokenizer.vocabulary")[0].as_str().expect("text").to_owned();
    // Of GPT-2's vocab.json: a space is Ġ, a line feed Ċ, byte 0xad is the last of those that do
    // not print.
    let characters: Vec<char> = text.chars().collect();
    assert_eq!(
        [characters[32], characters[10], characters[0xad], characters[0x7f]],
        ['Ġ', 'Ċ', 'Ń', 'ġ']
    );
}

#[test]
fn missing_layers_are_noticed() {
    let file = GgmlBuilder::gpt2().tensor(GgmlTensor::f32("model/wte", &[4])).build();
    let reader = open(file).expect("it can be read");
    assert_eq!(
        reader.warnings(),
        ["n_layer is 1, but no tensor starts with 'model/h0/': the file is cut, or one of \
             several parts"]
    );
}

#[test]
fn a_scalar_has_no_dimensions() {
    let file =
        GgmlBuilder::silero().tensor(GgmlTensor::f32("_model.decoder.decoder.2.bias", &[])).build();
    let reader = open(file).expect("a sound file");
    assert_eq!(reader.tensors()[0].shape.dims(), [0_u64; 0]);
    assert_eq!(floats_of(&reader, 0), [0.0]);
}
