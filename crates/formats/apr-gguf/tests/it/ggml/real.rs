//! Files that llama.cpp and whisper.cpp published. What they hold was read from them with a few
//! lines of Python that follow the converters which wrote them.

use super::*;

fn real(name: &str) -> Option<GgmlReader> {
    let path = apr_testkit::locate::shared_data(&format!("ggml/{name}"))?;
    Some(open(std::fs::read(path).expect("it can be read")).expect("a sound file"))
}

#[test]
fn vocabularies_of_llama_are_as_llama_cpp_converts_them() {
    for (name, magic) in [("ggmf-v1", "ggmf"), ("ggjt-v1", "ggjt")] {
        let Some(reader) = real(&format!("ggerganov_llama.cpp__{name}_vocab.bin")) else { return };
        assert_eq!(reader.architecture(), "llama");
        assert_eq!((reader.tensors().len(), reader.vocabulary_tokens().len()), (0, 32_000));
        assert_eq!(
            (&field(&reader, "ggml")["magic"], &field(&reader, "ggml")["version"]),
            (&json!(magic), &json!(1))
        );
        let expected = json!({
            "vocab_size": 32000, "hidden_size": 4096, "num_attention_heads": 32,
            "num_hidden_layers": 32, "head_dim": 128, "intermediate_size": 11008,
        });
        assert_eq!(*field(&reader, "architecture"), expected);
        let vocabulary = field(&reader, "tokenizer.vocabulary");
        assert_eq!(*field(&reader, "tokenizer.vocabulary_encoding"), "sentencepiece");
        for (id, token, score) in [
            (0, "<unk>", 0.0),
            (2, "</s>", 0.0),
            (3, "<0x00>", 0.0),
            (258, "<0xFF>", 0.0),
            (31_999, "给", -31_740.0),
        ] {
            assert_eq!(vocabulary[id], token);
            assert_eq!(field(&reader, "tokenizer.scores")[id], score);
        }
        assert!(reader.vocabulary_tokens().nth(259).is_some_and(|token| token.starts_with(b" ")));
    }
}

#[test]
fn test_models_of_whisper_have_a_filterbank_and_a_vocabulary_alone() {
    for (name, vocab_size, last) in [("tiny", 51_865, ""), ("tiny.en", 51_864, "<|endoftext|>")] {
        let Some(reader) = real(&format!("ggml-org_whisper.cpp__for-tests-ggml-{name}.bin")) else {
            return;
        };
        assert_eq!(reader.architecture(), "whisper");
        let [filterbank] = reader.tensors() else { panic!("{name} has one tensor") };
        assert_eq!(
            (filterbank.name.as_str(), filterbank.shape.dims()),
            ("audio.mel_filterbank", &[80, 201][..])
        );
        // The second value; OpenAI's filterbank begins 0, 0.0249.
        assert_eq!(floats_of(&reader, 0)[1], f32::from_le_bytes([0xa4, 0xac, 0xcb, 0x3c]));
        assert_eq!(reader.vocabulary_tokens().len(), 50_257);
        let vocabulary = field(&reader, "tokenizer.vocabulary");
        assert_eq!((&vocabulary[0], &vocabulary[50_256]), (&json!("!"), &json!(last)));
        assert_eq!(field(&reader, "architecture")["vocab_size"], vocab_size);
        assert_eq!(reader.warnings().len(), 1, "{:?}", reader.warnings());
    }
}

#[test]
fn silero_has_all_its_tensors() {
    let Some(reader) = real("ggml-org_whisper.cpp__for-tests-silero-v6.2.0-ggml.bin") else {
        return;
    };
    assert_eq!(reader.architecture(), "silero-vad");
    let tensors: Vec<_> = reader
        .tensors()
        .iter()
        .map(|info| (info.name.as_str(), info.shape.dims().to_vec()))
        .collect();
    assert_eq!(tensors.len(), 15);
    assert_eq!(tensors[0], ("_model.encoder.0.reparam_conv.weight", vec![128, 129, 3]));
    assert_eq!(tensors[13], ("_model.decoder.decoder.2.bias", vec![]));
    assert_eq!(tensors[14], ("_model.stft.forward_basis_buffer", vec![258, 1, 256]));
    assert_eq!((reader.stored(14).range.offset, reader.stored(14).range.len), (753_002, 132_096));
    assert_eq!(field(&reader, "ggml")["ftype"], Value::Null);
    assert_eq!(field(&reader, "ggml")["hyperparameters"]["version"], json!([6, 2, 0]));
    assert_eq!(
        field(&reader, "ggml")["hyperparameters"]["encoder_out_channels"],
        json!([128, 64, 64, 128])
    );
    assert_eq!(reader.warnings(), [""; 0]);
    apr_testkit::read_everything(&reader).expect("all of it is there");
}
