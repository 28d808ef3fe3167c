use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use apr_testkit::{corrupt, locate};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Learnt, learn};

fn files<const N: usize>(list: [(&str, &str); N]) -> Vec<(String, Vec<u8>)> {
    list.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).into()
}

fn folder(path: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let entries =
        std::fs::read_dir(path).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file());
    let small = entries.filter(|entry| {
        entry.path().extension().is_none_or(|extension| extension != "safetensors")
    });
    small
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

fn get<'a>(learnt: &'a Learnt, key: &str) -> &'a Value {
    learnt.metadata.iter().find(|(there, _)| there == key).map_or(&Value::Null, |(_, value)| value)
}

fn keys(learnt: &Learnt) -> BTreeMap<&str, &Value> {
    let keys: BTreeMap<_, _> =
        learnt.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    assert_eq!(keys.len(), learnt.metadata.len(), "a key stands twice");
    keys
}

/// Returns the warnings, except for the one about the licence that most of these files lack.
fn warnings(learnt: &Learnt) -> Vec<&str> {
    learnt
        .warnings
        .iter()
        .map(String::as_str)
        .filter(|warning| !warning.contains("no licence stated"))
        .collect()
}

/// Runs a script of the reference libraries on a JSON text.
fn reference(script: &str, argument: &std::path::Path, input: &Value) -> Option<String> {
    let mut command = Command::new(locate::reference_python()?);
    let command =
        command.args(["-c", script]).arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&serde_json::to_vec(input).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn minilm_has_the_vocabulary_of_bert() {
    let Some(path) = locate::minilm() else { return };
    let learnt = learn(&folder(&path));
    assert_eq!(learnt.warnings, [""; 0]);
    for (key, expected) in [
        ("tokenizer.vocab_size", json!(30522)),
        ("tokenizer.model_type", json!("WordPiece")),
        (
            "tokenizer.special_tokens",
            json!({"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}),
        ),
        ("tokenizer.pad_token_id", json!(0)),
        ("tokenizer.unk_token_id", json!(100)),
        ("tokenizer.cls_token_id", json!(101)),
        ("tokenizer.sep_token_id", json!(102)),
        ("tokenizer.mask_token_id", json!(103)),
        ("tokenizer.mask_token", json!("[MASK]")),
        ("tokenizer.bos_token", Value::Null),
        ("license", json!("apache-2.0")),
    ] {
        assert_eq!(*get(&learnt, key), expected, "{key}");
    }
    let card = get(&learnt, "model_card");
    assert_eq!(
        (&card["language"], &card["pipeline_tag"]),
        (&json!("en"), &json!("sentence-similarity"))
    );
    assert_eq!(card["datasets"].as_array().unwrap().len(), 21);
    // The library's own reading of the same file.
    let script = "import sys, json, tokenizers\nours = json.load(sys.stdin)\nvocab = \
        tokenizers.Tokenizer.from_file(sys.argv[1]).get_vocab()\nprint(len(vocab), all(ours[i] == \
        token for token, i in vocab.items()), len(ours))";
    let answer =
        reference(script, &path.join("tokenizer.json"), get(&learnt, "tokenizer.vocabulary"));
    assert!(answer.is_none_or(|answer| answer == "30522 True 30522\n"));
}

#[test]
fn without_tokenizer_json_the_same_tokens_come_from_vocab_txt() {
    let Some(path) = locate::minilm() else { return };
    let mut list = folder(&path);
    let whole = learn(&list);
    list.retain(|(name, _)| name != "tokenizer.json");
    assert_eq!(keys(&learn(&list)), keys(&whole));
}

#[test]
fn tiny_llama_has_its_259_tokens() {
    let learnt = learn(&folder(&locate::fixture("tiny-llama")));
    assert_eq!(learnt.warnings, [""; 0]);
    let vocabulary = get(&learnt, "tokenizer.vocabulary").as_array().unwrap();
    assert_eq!((vocabulary.len(), &vocabulary[257]), (259, &json!("</s>")));
    for (key, expected) in [
        ("tokenizer.vocab_size", json!(259)),
        ("tokenizer.model_type", json!("BPE")),
        ("tokenizer.special_tokens", json!({"<s>": 256, "</s>": 257, "<pad>": 258})),
        ("tokenizer.bos_token_id", json!(256)),
        ("tokenizer.eos_token", json!("</s>")),
        ("tokenizer.pad_token_id", json!(258)),
        ("license", json!("mit")),
    ] {
        assert_eq!(*get(&learnt, key), expected, "{key}");
    }
}

#[test]
fn sentencepiece_models_match_their_library() {
    let expected = std::fs::read(locate::fixture("sentencepiece/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for (name, file, model_type) in
        [("bpe", "tokenizer.model", "BPE"), ("unigram", "spiece.model", "Unigram")]
    {
        let bytes = std::fs::read(locate::fixture(&format!("sentencepiece/{name}.model"))).unwrap();
        let learnt = learn(&[(file.to_owned(), bytes)]);
        assert_eq!(warnings(&learnt), [""; 0]);
        let expected = &expected[name];
        let vocabulary = get(&learnt, "tokenizer.vocabulary");
        assert_eq!(*vocabulary, expected["pieces"]);
        assert_eq!(
            *get(&learnt, "tokenizer.vocab_size"),
            expected["pieces"].as_array().unwrap().len()
        );
        assert_eq!(*get(&learnt, "tokenizer.model_type"), format!("SentencePiece {model_type}"));
        for role in ["unk", "bos", "eos", "pad"] {
            assert_eq!(
                *get(&learnt, &format!("tokenizer.{role}_token_id")),
                expected["ids"][role],
                "{name}: {role}"
            );
        }
        let mut special: Vec<_> =
            get(&learnt, "tokenizer.special_tokens").as_object().unwrap().values().collect();
        special.sort_by_key(|id| id.as_u64());
        assert_eq!(json!(special), expected["special"]);
    }
}

#[test]
fn ranks_read_as_the_letters_of_byte_level_bpe() {
    for (name, count) in [("gpt2", 50_256), ("multilingual", 50_257)] {
        let Some(path) = locate::shared_data(&format!("whisper/openai_whisper__{name}.tiktoken"))
        else {
            return;
        };
        let learnt = learn(&[(format!("{name}.tiktoken"), std::fs::read(&path).unwrap())]);
        assert_eq!(*get(&learnt, "tokenizer.vocab_size"), count);
        let vocabulary = get(&learnt, "tokenizer.vocabulary");
        assert_eq!((&vocabulary[0], &vocabulary[220]), (&json!("!"), &json!("\u{120}")));
        // Every token that is text decodes to it by the library.
        let script = "import sys, json, base64, tokenizers\nours, decode = json.load(sys.stdin), \
            tokenizers.decoders.ByteLevel().decode\nranks = [line.split() for line in \
            open(sys.argv[1], 'rb')]\nraw = [(base64.b64decode(token), int(rank)) for token, rank \
            in ranks]\nprint(len(ours), all(len(ours[rank]) == len(token) and decode([ours[rank]]) \
            == token.decode(errors='replace') for token, rank in raw))";
        let answer = reference(script, &path, vocabulary);
        assert!(answer.is_none_or(|answer| answer == format!("{count} True\n")));
    }
}

#[test]
fn a_vocabulary_over_a_mebibyte_stays_in_its_file() {
    let tokens: BTreeMap<_, _> =
        (0..60_000).map(|id| (format!("a token with the number {id}"), id)).collect();
    let learnt = learn(&[("vocab.json".to_owned(), serde_json::to_vec(&tokens).unwrap())]);
    assert_eq!(*get(&learnt, "tokenizer.vocabulary"), json!({"file": "vocab.json"}));
    assert_eq!(*get(&learnt, "tokenizer.vocab_size"), 60_000);
}

#[test]
fn slow_tokenizers_take_added_tokens_from_the_files_beside() {
    let learnt = learn(&files([
        ("vocab.json", r#"{"a": 0, "b": 1, "<|end|>": 2}"#),
        ("merges.txt", "#version: 0.2\na b\n"),
        ("added_tokens.json", r#"{"<mine>": 5}"#),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"3": {"content": "<s>", "special": true}},
                "bos_token": {"content": "<s>"}}"#,
        ),
        (
            "special_tokens_map.json",
            r#"{"bos_token": "ignored", "additional_special_tokens": ["<mine>", "absent"]}"#,
        ),
        (
            "config.json",
            r#"{"eos_token_id": 2, "pad_token_id": -1, "bos_token_id": 0, "vocab_size": 6}"#,
        ),
    ]));
    assert_eq!(warnings(&learnt), [""; 0]);
    for (key, expected) in [
        ("tokenizer.vocabulary", json!(["a", "b", "<|end|>", "<s>", null, "<mine>"])),
        ("tokenizer.vocab_size", json!(5)),
        ("tokenizer.model_type", json!("BPE")),
        ("tokenizer.bos_token", json!("<s>")),
        ("tokenizer.bos_token_id", json!(3)),
        ("tokenizer.eos_token", json!("<|end|>")),
        ("tokenizer.eos_token_id", json!(2)),
        ("tokenizer.pad_token_id", Value::Null),
        ("tokenizer.special_tokens", json!({"<mine>": 5, "<s>": 3, "<|end|>": 2})),
    ] {
        assert_eq!(*get(&learnt, key), expected, "{key}");
    }
}

#[test]
fn several_ends_are_all_kept() {
    let learnt =
        learn(&files([("generation_config.json", r#"{"eos_token_id": [128001, 128009]}"#)]));
    assert_eq!(*get(&learnt, "tokenizer.eos_token_id"), 128_001);
    assert_eq!(*get(&learnt, "tokenizer.eos_token_ids"), json!([128_001, 128_009]));
}

#[test]
fn chat_templates_are_text_or_named() {
    let config = r#"{"chat_template": [{"name": "default", "template": "{{a}}"},
        {"name": "rag", "template": "{{b}}"}]}"#;
    let named = learn(&files([("tokenizer_config.json", config)]));
    let expected =
        json!([{"name": "default", "template": "{{a}}"}, {"name": "rag", "template": "{{b}}"}]);
    assert_eq!(*get(&named, "tokenizer.chat_template"), expected);
    let jinja =
        learn(&files([("tokenizer_config.json", config), ("chat_template.jinja", "{{c}}")]));
    assert_eq!(*get(&jinja, "tokenizer.chat_template"), "{{c}}");
    let json = learn(&files([("chat_template.json", r#"{"chat_template": "{{d}}"}"#)]));
    assert_eq!(*get(&json, "tokenizer.chat_template"), "{{d}}");
    let wrong = learn(&files([("tokenizer_config.json", r#"{"chat_template": 7}"#)]));
    let why =
        "tokenizer_config.json: its chat_template is neither text nor a list of named templates";
    assert_eq!(warnings(&wrong), [why]);
}

#[test]
fn labels_match_the_configuration() {
    let learnt = learn(&files([(
        "config.json",
        r#"{"id2label": {"0": "cat", "1": "LABEL_1", "10": 5}, "num_labels": 2}"#,
    )]));
    assert_eq!(*get(&learnt, "labels"), json!({"0": "cat", "1": "LABEL_1", "10": "5"}));
    assert_eq!(*get(&learnt, "num_labels"), 3);
    assert_eq!(warnings(&learnt), ["config.json: its num_labels is 2, but id2label names 3"]);
    for wrong in
        [r#"{"id2label": ["cat"]}"#, r#"{"id2label": {"cat": "0"}}"#, r#"{"id2label": {"0": []}}"#]
    {
        let learnt = learn(&files([("config.json", wrong)]));
        assert_eq!((warnings(&learnt).len(), get(&learnt, "labels")), (1, &Value::Null), "{wrong}");
    }
}

#[test]
fn image_sizes_are_what_the_network_sees() {
    for (processor, size) in [
        (r#"{"image_mean": [0.5], "size": 224}"#, json!(224)),
        (r#"{"do_resize": true, "size": {"height": 224, "width": 224}}"#, json!(224)),
        (r#"{"do_resize": true, "size": {"height": 384, "width": 128}}"#, json!([384, 128])),
        (
            r#"{"do_center_crop": true, "crop_size": {"height": 224, "width": 224},
                "size": {"shortest_edge": 256}}"#,
            json!(224),
        ),
        (
            r#"{"do_center_crop": false, "crop_size": 224, "size": {"shortest_edge": 256}}"#,
            json!(256),
        ),
        (r#"{"do_resize": true, "size": {"longest_edge": 256}}"#, Value::Null),
        (r#"{"do_resize": true, "size": {"shortest_edge": 9}, "merge_size": 2}"#, Value::Null),
    ] {
        let learnt = learn(&files([("preprocessor_config.json", processor)]));
        assert_eq!(
            (&get(&learnt, "image_config")["image_size"], warnings(&learnt).len()),
            (&size, 0),
            "{processor}"
        );
    }
    let timm = r#"{"pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.485, 0.456, 0.406],
        "std": [1, 1, 0], "crop_pct": 0.9}}"#;
    let learnt = learn(&files([("config.json", timm)]));
    let expected = json!({
        "image_size": 224, "mean": [0.485, 0.456, 0.406], "std": [1, 1, 0], "crop_pct": 0.9,
    });
    assert_eq!(*get(&learnt, "image_config"), expected);
    assert_eq!(
        warnings(&learnt),
        ["config.json: its std has a zero, which inputs would be divided by"]
    );
}

const WHISPER: &str = r#"{"feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128, "sampling_rate": 16000, "chunk_length": 30.0, "hop_length": 160,
    "n_fft": 400}"#;

#[test]
fn whisper_has_its_filterbank() {
    let learnt = learn(&files([
        ("preprocessor_config.json", WHISPER),
        ("config.json", r#"{"num_mel_bins": 80}"#),
    ]));
    let config = get(&learnt, "audio_config");
    assert_eq!(
        (&config["sample_rate"], &config["n_mels"], &config["chunk_length"]),
        (&json!(16_000), &json!(128), &json!(30))
    );
    assert_eq!(*get(&learnt, "mel_filterbank"), json!({"tensor": "audio.mel_filterbank"}));
    assert_eq!(*get(&learnt, "mel_filterbank_shape"), json!([128, 201]));
    let [filterbank] = learnt.tensors.as_slice() else { panic!("one tensor") };
    assert_eq!(filterbank.info.byte_len().unwrap(), filterbank.bytes.len() as u64);
    assert_eq!(
        warnings(&learnt),
        ["preprocessor_config.json: it has 128 mel bins, but config.json's num_mel_bins is 80"]
    );
    assert_eq!(*get(&learnt, "image_config"), Value::Null);
}

#[test]
fn filterbanks_in_the_file_are_used_unchanged() {
    let negative = r#"{"sampling_rate": 8000, "feature_size": 2, "n_fft": 4,
        "mel_filters": [[1, -2], [3, 4], [5, 6]]}"#;
    let learnt = learn(&files([("preprocessor_config.json", negative)]));
    let values: Vec<u8> =
        [1.0_f32, 3.0, 5.0, -2.0, 4.0, 6.0].into_iter().flat_map(f32::to_le_bytes).collect();
    assert_eq!(learnt.tensors[0].bytes, values);
    let why =
        "preprocessor_config.json: its mel_filters have negative values, which no filterbank has";
    assert_eq!(warnings(&learnt), [why]);
    let waveform = r#"{"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1,
        "sampling_rate": 16000}"#;
    let learnt = learn(&files([("preprocessor_config.json", waveform)]));
    assert_eq!((learnt.tensors.len(), &get(&learnt, "audio_config")["n_mels"]), (0, &Value::Null));
}

#[test]
fn the_licence_is_the_cards_else_the_texts() {
    let apache = "Apache License\nVersion 2.0, January 2004";
    for (card, text, license) in [
        ("---\nlicense: CC-BY-NC-4.0\n---\n", apache, json!("cc-by-nc-4.0")),
        ("---\nlicense: other\nlicense_name: Qwen-Research\n---\n", apache, json!("qwen-research")),
        ("---\nlicense: other\n---\n", apache, json!("apache-2.0")),
        ("---\nlicense: other\n---\n", "ours", json!("other")),
        ("---\nlicense: [mit, apache-2.0]\n---\n", "", json!("mit, apache-2.0")),
        ("# Card\n", apache, json!("apache-2.0")),
    ] {
        assert_eq!(
            *get(&learn(&files([("README.md", card), ("LICENSE", text)])), "license"),
            license,
            "{card}"
        );
    }
    let none = learn(&files([("README.md", "---\nlicense:\n---\n")]));
    assert_eq!(none.warnings, [super::NO_LICENSE]);
    assert_eq!(learn(&[]), Learnt::default());
}

#[test]
fn malformed_companions_are_reported() {
    for (name, text, why) in [
        ("tokenizer.json", "{", "not valid JSON: EOF"),
        ("tokenizer.json", "{}", "missing field 'model'"),
        (
            "tokenizer.json",
            r#"{"model": {"vocab": {"a": 1099511627776}}}"#,
            "the token id 1,099,511,627,776 is out of range for 1 token",
        ),
        ("tokenizer.json", r#"{"model": {"vocab": {"a": -1}}}"#, "invalid value: integer '-1'"),
        ("tokenizer.json", r#"{"model": {"vocab": {}}}"#, "it holds no tokens"),
        (
            "vocab.json",
            r#"{"a": 3, "b": 3}"#,
            "the token id 3 is assigned to both 'a' and 'b'; the vocabulary is ignored",
        ),
        ("vocab.txt", "", "it holds no tokens"),
        ("tokenizer.model", "\u{7f}\u{7f}", "not a SentencePiece model, or cut short"),
        ("x.tiktoken", "IQ== 0\nIg 1\n", "line 2 is not a base64 token and its rank"),
        (
            "x.tiktoken",
            "IQ== 0\nIg== 0\n",
            "the token id 0 is assigned to both '!' and '\"'; the vocabulary is ignored",
        ),
        ("x.tiktoken", "IQ== 99999999\n", "the token id 99,999,999 is out of range for 1 token"),
        ("config.json", "[]", "JSON, but not an object"),
        (
            "config.json",
            r#"{"bos_token_id": 1099511627776}"#,
            "the bos_token_id 1099511627776 is not the id of a token",
        ),
        (
            "preprocessor_config.json",
            r#"{"image_mean": "x"}"#,
            "its image_mean is not a list of numbers, one a channel",
        ),
        (
            "preprocessor_config.json",
            r#"{"sampling_rate": -1}"#,
            "its sampling_rate is not a positive integer",
        ),
        ("README.md", "---\na: [\n---\n", "its front matter is not valid YAML: "),
    ] {
        let learnt = learn(&files([(name, text)]));
        let found =
            warnings(&learnt).iter().any(|warning| warning.starts_with(&format!("{name}: {why}")));
        assert!(found, "{name}: {why}: {:?}", learnt.warnings);
        assert_eq!(*get(&learnt, "tokenizer.vocabulary"), Value::Null, "{name} {text}");
    }
}

#[test]
fn a_broken_file_leaves_the_others_to_be_read() {
    let learnt = learn(&files([
        ("tokenizer.json", "{"),
        ("vocab.txt", "a\nb\n"),
        ("tokenizer_config.json", "{"),
    ]));
    assert_eq!(*get(&learnt, "tokenizer.vocabulary"), json!(["a", "b"]));
    assert_eq!(warnings(&learnt).len(), 2, "{:?}", learnt.warnings);
}

#[test]
fn truncated_and_exceeding_vocabularies_are_noticed() {
    let tokens: String = (0..900).map(|id| format!("t{id}\n")).collect();
    for (rows, why) in [
        (
            1000,
            Some(
                "vocab.txt: it has 900 tokens, but config.json's vocab_size is 1,000; is it \
                 complete?",
            ),
        ),
        (899, Some("vocab.txt: its largest id is 899, but config.json's vocab_size is 899")),
        (900, None),
        (940, None),
    ] {
        let config = format!(r#"{{"vocab_size": {rows}}}"#);
        let learnt = learn(&files([("vocab.txt", &tokens), ("config.json", &config)]));
        assert_eq!(warnings(&learnt), Vec::from_iter(why), "{rows}");
    }
}

const NAMES: [&str; 18] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "x.tiktoken",
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template.json",
    "chat_template.jinja",
    "README.md",
    "LICENSE",
];

/// Returns one small file of each format.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let fixture = |path: &str| std::fs::read(locate::fixture(path)).unwrap();
    vec![
        (
            "tokenizer.json",
            br#"{"added_tokens":[{"id":2,"content":"<s>","special":true}],
"model":{"type":"Unigram","unk_id":0,"vocab":[["a",-1.5],["b",0]]}}"#
                .to_vec(),
        ),
        ("vocab.json", br#"{"a": 0, "b": 1}"#.to_vec()),
        ("tokenizer.model", fixture("sentencepiece/unigram.model")),
        ("x.tiktoken", b"IQ== 0\nIg== 1\n4pai 2\n".to_vec()),
        ("preprocessor_config.json", WHISPER.replace("128", "8").into_bytes()),
        (
            "config.json",
            br#"{"id2label": {"0": "cat"}, "eos_token_id": [1, 2], "vocab_size": 3}"#.to_vec(),
        ),
        (
            "tokenizer_config.json",
            br#"{"bos_token": {"content": "a"}, "chat_template": [{"name": "a", "template": "b"}]}"#
                .to_vec(),
        ),
        (
            "README.md",
            "---\nlicense: [mit, 'x']\ntags:\n- é\nmodel-index: {a: [b]}\nx: |\n  y\n\
             ---\n# Card\n"
                .into(),
        ),
    ]
}

#[test]
fn cut_and_flipped_files_give_warnings_at_most() {
    for (name, bytes) in samples() {
        let whole = learn(&[(name.to_owned(), bytes.clone())]);
        assert_eq!(warnings(&whole), [""; 0]);
        let flipped = corrupt::bit_flips(&bytes, 0..bytes.len().min(400));
        for broken in corrupt::truncations(&bytes).chain(flipped) {
            keys(&learn(&[(name.to_owned(), broken)]));
        }
    }
}

#[test]
fn nesting_is_refused_or_passed_over() {
    for name in NAMES {
        for open in ["[", "{\"a\":", "---\na: [", "{\"model\":{\"vocab\":["] {
            keys(&learn(&[(name.to_owned(), open.repeat(10_000).into_bytes())]));
        }
    }
}

/// Keys that are looked up in companions, with values that they hardly ever have.
const KEYS: [&str; 15] = [
    "model",
    "vocab",
    "added_tokens",
    "id2label",
    "eos_token_id",
    "size",
    "mel_filters",
    "n_fft",
    "feature_size",
    "sampling_rate",
    "image_mean",
    "chat_template",
    "bos_token",
    "added_tokens_decoder",
    "num_mel_bins",
];
const VALUES: [&str; 10] = [
    "null",
    "1e300",
    "-1",
    "[[1,2]]",
    "[]",
    "{}",
    "{\"0\":{}}",
    "\"a\"",
    "18446744073709551615",
    "[{\"id\":9}]",
];

proptest! {
    #[test]
    fn any_bytes_under_any_name_are_survived(
        name in prop::sample::select(&NAMES),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        keys(&learn(&[(name.to_owned(), bytes)]));
    }

    #[test]
    fn any_text_of_the_formats_is_survived(
        name in prop::sample::select(&NAMES),
        text in "(---\n)?([{}\\[\\]:,\"]|id2label|license: \
            |model|vocab|mel_filters|sampling_rate|n_fft|size|[0-9]{1,20}|-|\n|a| ){0,60}(\n---)?",
    ) {
        keys(&learn(&[(name.to_owned(), text.into_bytes())]));
    }

    #[test]
    fn any_json_of_the_known_keys_is_survived(
        name in prop::sample::select(&NAMES[..]),
        keys_used in prop::collection::vec(prop::sample::select(&KEYS[..]), 1..5),
        values in prop::collection::vec(prop::sample::select(&VALUES[..]), 5),
    ) {
        let field = |(key, value)| format!("\"{key}\": {value}");
        let fields: Vec<_> = keys_used.iter().zip(&values).map(field).collect();
        keys(&learn(&[(name.to_owned(), format!("{{{}}}", fields.join(",")).into_bytes())]));
    }
}
