//! Against llama.cpp's converter: `fixtures/tokenizers`.

use apr_core::Code;
use apr_gguf::{Array, KeyValue, Value};
use apr_testkit::locate;
use serde_json::{Value as Json, json};

use super::*;

type Change = fn(&mut Json);

pub(super) struct Case {
    architecture: String,
    rows: u64,
    files: Vec<(String, Vec<u8>)>,
    pub(super) key_values: Vec<KeyValue>,
}

const CASES: [&str; 12] = [
    "bert",
    "bert_cased",
    "gpt2",
    "llama3",
    "qwen2",
    "smollm",
    "spm",
    "spm_model",
    "spm_trained",
    "t5_gaps",
    "t5_model",
    "xlm_roberta",
];

impl Case {
    pub(super) fn read(name: &str) -> Self {
        let bytes = std::fs::read(locate::fixture(&format!("tokenizers/{name}.json"))).unwrap();
        let case: Json = serde_json::from_slice(&bytes).unwrap();
        let files = case["files"].as_object().unwrap();
        let mut files: Vec<_> = files
            .iter()
            .map(|(name, file)| (name.clone(), file.to_string().into_bytes()))
            .collect();
        if let Some(model) = case["sentencepiece"].as_str() {
            let name = if name.starts_with("t5") { "spiece.model" } else { "tokenizer.model" };
            let model = std::fs::read(locate::fixture(&format!("sentencepiece/{model}"))).unwrap();
            files.push((name.to_owned(), model));
        }
        Self {
            architecture: case["architecture"].as_str().unwrap().to_owned(),
            rows: case["rows"].as_u64().unwrap(),
            files,
            key_values: case["key_values"].as_array().unwrap().iter().map(key_value).collect(),
        }
    }

    fn write(&self) -> Tokenizer {
        tokenizer_key_values(&self.architecture, &self.files, Some(self.rows), &Options::default())
            .unwrap()
    }

    /// The case with its `tokenizer.json` changed.
    fn with(self, change: impl FnOnce(&mut Json)) -> Self {
        self.with_file("tokenizer.json", change)
    }

    fn with_file(mut self, name: &str, change: impl FnOnce(&mut Json)) -> Self {
        let file = self.files.iter_mut().find(|(there, _)| there == name).unwrap();
        let mut json = serde_json::from_slice(&file.1).unwrap();
        change(&mut json);
        file.1 = json.to_string().into_bytes();
        self
    }

    fn error(&self) -> Error {
        tokenizer_key_values(&self.architecture, &self.files, Some(self.rows), &Options::default())
            .unwrap_err()
    }
}

fn key_value(entry: &Json) -> KeyValue {
    let value = &entry[2];
    let value = match entry[1].as_str().unwrap() {
        "string" => Value::from(value.as_str().unwrap()),
        "bool" => Value::from(value.as_bool().unwrap()),
        "u32" => Value::from(u32::try_from(value.as_u64().unwrap()).unwrap()),
        "[string" => Value::from(serde_json::from_value::<Vec<String>>(value.clone()).unwrap()),
        "[f32" => Value::from(serde_json::from_value::<Vec<f32>>(value.clone()).unwrap()),
        "[i32" => Value::from(serde_json::from_value::<Vec<i32>>(value.clone()).unwrap()),
        "[u8" => Value::from(serde_json::from_value::<Vec<u8>>(value.clone()).unwrap()),
        other => panic!("{other}"),
    };
    KeyValue::new(entry[0].as_str().unwrap(), value)
}

fn of<'a>(key_values: &'a [KeyValue], name: &str) -> &'a Value {
    let key = format!("tokenizer.ggml.{name}");
    &key_values.iter().find(|there| there.key == key).unwrap_or_else(|| panic!("no {key}")).value
}

fn texts(key_values: &[KeyValue]) -> &[String] {
    let Value::Array(Array::String(texts)) = of(key_values, "tokens") else {
        panic!("tokens are strings")
    };
    texts
}

#[test]
fn key_values_are_those_of_the_converter_in_its_order() {
    for name in CASES {
        let case = Case::read(name);
        let mut expected = case.key_values.clone();
        let mut written = case.write().key_values;
        if name == "spm" || name == "spm_trained" {
            // The converter gives all tokens one score, and marks the unknown token as a control
            // token.
            let scores = |there: &KeyValue| there.key != "tokenizer.ggml.scores";
            expected.retain(scores);
            written.retain(scores);
            for there in &mut expected {
                if let Value::Array(Array::I32(types)) = &mut there.value {
                    types[0] = 2;
                }
            }
        }
        assert_eq!(written, expected, "{name}");
    }
}

#[test]
fn scores_fall_with_the_rank_of_the_first_merge() {
    let key_values = Case::read("spm").write().key_values;
    let Value::Array(Array::F32(scores)) = of(&key_values, "scores") else {
        panic!("scores are numbers")
    };
    let (_, bytes) =
        Case::read("spm").files.into_iter().find(|(name, _)| name == "tokenizer.json").unwrap();
    let json: TokenizerJson = serde_json::from_slice(&bytes).unwrap();
    let id = |text: &str| texts(&key_values).iter().position(|there| there == text).unwrap();
    let mut last = 1.0;
    for merge in &json.model.merges {
        let score = scores[id(&format!("{}{}", merge.0, merge.1))];
        assert!(score <= last, "{merge:?}");
        last = score;
    }
    // The SentencePiece model's own, whose pieces have the same order.
    let model = Case::read("spm_model").write().key_values;
    let Value::Array(Array::F32(own)) = of(&model, "scores") else { panic!("scores are numbers") };
    assert_eq!(scores[3..], own[3..380]);
}

#[test]
fn merges_that_leave_pairs_out_are_warned_of() {
    assert!(Case::read("spm").write().warnings.is_empty());
    let warnings = Case::read("spm_trained").write().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("no merge lists")), "{warnings:?}");
    let mixed = Case::read("spm").with(|json| {
        let merges = json["model"]["merges"].as_array_mut().unwrap();
        let several = (0..merges.len())
            .find(|&i| i > 0 && joint(&merges[i]) == joint(&merges[i - 1]))
            .unwrap();
        let merge = merges.remove(several);
        merges.push(merge);
    });
    let warnings = mixed.write().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("can't be ordered")), "{warnings:?}");
}

fn joint(merge: &Json) -> String {
    merge.as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect()
}

#[test]
fn files_from_key_values_yield_the_same_key_values() {
    for name in CASES {
        let case = Case::read(name);
        let written = case.write();
        let (mut files, _) = tokenizer_files(&written.key_values).unwrap();
        files.extend(case.files.iter().filter(|(name, _)| name == "config.json").cloned());
        let again =
            tokenizer_key_values(&case.architecture, &files, Some(case.rows), &Options::default())
                .unwrap();
        for there in &written.key_values {
            // The special pieces of a SentencePiece model have a score of their own.
            if name != "spm_model" || there.key != "tokenizer.ggml.scores" {
                assert!(again.key_values.contains(there), "{name}: {}", there.key);
            }
        }
    }
}

#[test]
fn files_from_before_tokenizer_json_tell_the_same() {
    let json = |name: &str| {
        let (_, bytes) =
            Case::read(name).files.into_iter().find(|(name, _)| name == "tokenizer.json").unwrap();
        serde_json::from_slice::<Json>(&bytes).unwrap()
    };
    let gpt2 = json("gpt2");
    let merges: Vec<_> = gpt2["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    let files = [
        ("vocab.json".to_owned(), gpt2["model"]["vocab"].to_string().into_bytes()),
        ("merges.txt".to_owned(), format!("#version: 0.2\n{}\n", merges.join("\n")).into_bytes()),
        ("added_tokens.json".to_owned(), br#"{"<|endoftext|>": 286}"#.to_vec()),
        ("special_tokens_map.json".to_owned(), br#"{"eos_token": "<|endoftext|>"}"#.to_vec()),
    ];
    let written =
        tokenizer_key_values("gpt2", &files, None, &Options::default()).unwrap().key_values;
    let expected = Case::read("gpt2").key_values;
    for name in ["model", "pre", "tokens", "token_type", "merges", "eos_token_id"] {
        assert_eq!(of(&written, name), of(&expected, name), "{name}");
    }
    let bert = json("bert");
    let mut vocab: Vec<_> = bert["model"]["vocab"].as_object().unwrap().iter().collect();
    vocab.sort_by_key(|(_, id)| id.as_u64());
    let lines: Vec<_> = vocab.into_iter().map(|(text, _)| text.as_str()).collect();
    let files = [
        ("vocab.txt".to_owned(), lines.join("\n").into_bytes()),
        ("tokenizer_config.json".to_owned(), br#"{"do_lower_case": true}"#.to_vec()),
    ];
    let written =
        tokenizer_key_values("bert", &files, None, &Options::default()).unwrap().key_values;
    let expected = Case::read("bert").key_values;
    for name in [
        "tokens",
        "token_type",
        "bos_token_id",
        "unknown_token_id",
        "seperator_token_id",
        "normalizer.lowercase",
    ] {
        assert_eq!(of(&written, name), of(&expected, name), "{name}");
    }
}

fn merge(merge: &Json) -> String {
    merge
        .as_array()
        .unwrap()
        .iter()
        .map(|part| part.as_str().unwrap())
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn bytes_without_merges_have_an_empty_list_of_them() {
    let folder = locate::fixture("tiny-llama");
    let read = |name: &str| (name.to_owned(), std::fs::read(folder.join(name)).unwrap());
    let files = ["tokenizer.json", "tokenizer_config.json", "config.json"].map(read);
    let Tokenizer { key_values, warnings } =
        tokenizer_key_values("llama", &files, Some(259), &Options::default()).unwrap();
    assert_eq!(of(&key_values, "merges"), &Value::from(Vec::<String>::new()));
    assert_eq!(of(&key_values, "model"), &Value::from("gpt2"));
    assert_eq!(of(&key_values, "bos_token_id"), &Value::from(256_u32));
    assert_eq!(of(&key_values, "add_bos_token"), &Value::from(true));
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn json_of_another_form_is_refused_in_terms_of_the_file() {
    for (text, expected) in [
        ("[]", "an object with a tokenizer's 'model'"),
        ("3", "an object with a tokenizer's 'model'"),
        (r#"{"model": []}"#, "a tokenizer's model as an object with its 'vocab'"),
        (r#"{"added_tokens": [7], "model": {"vocab": {}}}"#, "an added token as an object"),
    ] {
        let files = [("tokenizer.json".to_owned(), text.as_bytes().to_vec())];
        let error = tokenizer_key_values("llama", &files, None, &Options::default()).unwrap_err();
        assert!(
            error.message().contains(expected) && !error.message().contains("struct"),
            "{text}: {error}"
        );
    }
}

#[test]
fn a_way_to_split_that_has_no_name_is_refused_unless_one_is_given() {
    let unknown = || {
        Case::read("llama3").with(|json| {
            json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(r"\w+");
        })
    };
    let error = unknown().error();
    assert_eq!(error.code(), Code::Format);
    assert!(
        error.message().contains(r"\w+") && error.message().contains("llama.cpp has no name"),
        "{error}"
    );
    let case = unknown();
    let options = Options { pre: Some("gpt-4o") };
    let given = tokenizer_key_values("llama", &case.files, Some(case.rows), &options).unwrap();
    assert_eq!(of(&given.key_values, "pre"), &Value::from("gpt-4o"));
}

#[test]
fn what_llama_cpp_has_not_is_refused() {
    let changes: [(&str, Change); 8] = [
        ("gpt2", |json| json["model"]["end_of_word_suffix"] = json!("</w>")),
        ("gpt2", |json| json["normalizer"] = json!({ "type": "Lowercase" })),
        ("gpt2", |json| json["pre_tokenizer"] = json!({ "type": "Whitespace" })),
        ("gpt2", |json| json["model"]["type"] = json!("WordLevel")),
        ("spm", |json| json["pre_tokenizer"] = json!({ "type": "Digits" })),
        ("bert", |json| json["pre_tokenizer"] = json!({ "type": "Whitespace" })),
        ("xlm_roberta", |json| json["normalizer"] = json!({ "type": "Lowercase" })),
        ("xlm_roberta", |json| json["normalizer"]["precompiled_charsmap"] = json!("AAAAAA==")),
    ];
    for (name, change) in changes {
        let error = Case::read(name).with(change).error();
        assert_eq!(error.code(), Code::Format, "{name}: {error}");
    }
}

#[test]
fn hostile_files_are_errors() {
    let changes: [Change; 9] = [
        |json| json["model"]["vocab"]["x"] = json!(1_u64 << 40),
        |json| json["model"]["vocab"]["x"] = json!(-1),
        |json| json["model"]["vocab"]["x"] = json!(7),
        |json| json["model"]["vocab"] = json!({}),
        |json| json["model"]["vocab"] = json!(null),
        |json| json["model"]["merges"] = json!(["a b c"]),
        |json| json["model"]["merges"] = json!([["a"]]),
        |json| json["added_tokens"] = json!([{ "id": 1 }]),
        |json| *json = json!({}),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let case = Case::read("gpt2").with(change).with(|json| {
            if number == 3 {
                json["added_tokens"] = json!([]);
            }
        });
        assert_eq!(case.error().code(), Code::Format, "change {number}");
    }
    for text in ["", "[", "{}", "[]", &"[".repeat(100_000), &"{\"model\":".repeat(100_000), "\u{0}"]
    {
        let files = [("tokenizer.json".to_owned(), text.as_bytes().to_vec())];
        let error = tokenizer_key_values("llama", &files, None, &Options::default()).unwrap_err();
        assert_eq!(error.code(), Code::Format, "{error}");
    }
}

#[test]
fn an_added_token_far_beyond_allocates_nothing() {
    let far = || Case::read("gpt2").with(|json| json["added_tokens"][0]["id"] = json!(1_u64 << 31));
    // Beyond the rows: left out.
    let tokenizer = far().write();
    assert_eq!(texts(&tokenizer.key_values).len() as u64, far().rows);
    assert!(
        tokenizer.warnings.iter().any(|warning| warning.contains("left out")),
        "{:?}",
        tokenizer.warnings
    );
    // Without rows: out of range.
    let error = tokenizer_key_values("gpt2", &far().files, None, &Options::default()).unwrap_err();
    assert_eq!(error.code(), Code::Format);
    // Rows themselves are bounded.
    let error =
        tokenizer_key_values("gpt2", &Case::read("gpt2").files, Some(1 << 40), &Options::default())
            .unwrap_err();
    assert_eq!(error.code(), Code::Format);
}

#[test]
fn tokens_of_one_text_become_distinct() {
    let case = Case::read("gpt2").with(|json| {
        let token = json["added_tokens"][0].clone();
        json["added_tokens"].as_array_mut().unwrap().push(token);
        json["added_tokens"][1]["id"] = json!(5);
    });
    let tokenizer = case.write();
    let texts = texts(&tokenizer.key_values);
    assert_eq!(texts.iter().collect::<std::collections::HashSet<_>>().len(), texts.len());
    assert!(
        tokenizer.warnings.iter().any(|warning| warning.contains("twice")),
        "{:?}",
        tokenizer.warnings
    );
}

#[test]
fn rows_beyond_the_tokens_are_padded_and_left_out_again() {
    let case = Case::read("llama3");
    let written = case.write();
    assert_eq!(texts(&written.key_values).last().unwrap(), "[PAD291]");
    let (files, _) = tokenizer_files(&written.key_values).unwrap();
    assert!(!String::from_utf8_lossy(&files[0].1).contains("[PAD"));
}

#[test]
fn contradicting_key_values_are_errors() {
    for (name, value) in [
        ("tokens", Value::from(vec!["a".to_owned()])),
        ("tokens", Value::from(Vec::<String>::new())),
        ("tokens", Value::from(1_u32)),
        ("token_type", Value::from(vec![1_i32])),
        ("token_type", Value::from("x")),
        ("model", Value::from("rwkv")),
        ("model", Value::from(1_u32)),
        ("pre", Value::from("no-such")),
        ("merges", Value::from(vec!["ab".to_owned()])),
        ("merges", Value::from(true)),
    ] {
        let mut key_values = Case::read("gpt2").key_values;
        let key = format!("tokenizer.ggml.{name}");
        key_values.iter_mut().find(|there| there.key == key).unwrap().value = value;
        assert_eq!(tokenizer_files(&key_values).unwrap_err().code(), Code::Format, "{name}");
    }
    let mut key_values = Case::read("gpt2").key_values;
    key_values.retain(|there| there.key != "tokenizer.ggml.tokens");
    assert_eq!(tokenizer_files(&key_values).unwrap_err().code(), Code::Format);
}

#[test]
fn scores_and_charsmaps_that_unigram_can_not_go_by_are_errors() {
    for (name, value) in [
        ("scores", None),
        ("scores", Some(Value::from("high"))),
        ("scores", Some(Value::from(vec![f32::NAN; 2]))),
        ("precompiled_charsmap", Some(Value::from(vec![1.5_f32]))),
    ] {
        let mut key_values = Case::read("t5_model").key_values;
        let key = format!("tokenizer.ggml.{name}");
        let count = texts(&key_values).len();
        key_values.retain(|there| there.key != key);
        let value = value.map(|value| match value {
            Value::Array(Array::F32(scores)) if scores.len() == 2 => {
                Value::from(vec![scores[0]; count])
            }
            value => value,
        });
        key_values.extend(value.map(|value| KeyValue { key, value }));
        assert_eq!(tokenizer_files(&key_values).unwrap_err().code(), Code::Format, "{name}");
    }
}

/// What stands around one text and around two, as texts of special tokens and `A` and `B`.
fn around(key_values: &[KeyValue]) -> Option<[Vec<String>; 2]> {
    let (files, _) = tokenizer_files(key_values).unwrap();
    let json: Json = serde_json::from_slice(&files[0].1).unwrap();
    let template = json["post_processor"].as_object()?;
    let shown = |name: &str| {
        let pieces = template[name].as_array().unwrap().iter();
        let id = |piece: &Json| {
            piece.as_object().unwrap().values().next().unwrap()["id"].as_str().unwrap().to_owned()
        };
        pieces.map(id).collect::<Vec<_>>()
    };
    Some([shown("single"), shown("pair")])
}

/// llama.cpp puts tokens around a text by the same flags. The second of two texts begins as the
/// first, unless a token keeps them apart.
#[test]
fn the_flags_of_special_tokens_decide_what_stands_around_a_text() {
    let mut base = Case::read("spm").key_values;
    let flags = ["add_bos_token", "add_eos_token", "add_sep_token", "seperator_token_id"]
        .map(|name| format!("tokenizer.ggml.{name}"));
    base.retain(|there| !flags.contains(&there.key));
    let text = |name: &str| {
        let Value::U32(id) = of(&base, name) else { panic!("an id") };
        texts(&base)[*id as usize].clone()
    };
    let (bos, eos) = (text("bos_token_id"), text("eos_token_id"));
    let with = |set: [Option<bool>; 3]| {
        let mut key_values = base.clone();
        let set = flags
            .iter()
            .zip(set)
            .filter_map(|(key, flag)| Some(KeyValue::new(key.as_str(), flag?)));
        key_values.extend(set);
        around(&key_values)
    };
    let (bos, eos, a, b) = (bos.as_str(), eos.as_str(), "A", "B");
    for (set, single, pair) in [
        ([None, None, None], &[bos, a][..], &[bos, a, bos, b][..]),
        ([Some(true), Some(true), None], &[bos, a, eos], &[bos, a, eos, bos, b, eos]),
        ([Some(false), Some(true), None], &[a, eos], &[a, eos, b, eos]),
        ([Some(true), Some(false), Some(true)], &[bos, a], &[bos, a, eos, b]),
    ] {
        let [found_single, found_pair] = with(set).expect("a template");
        assert_eq!(
            (found_single, found_pair),
            (
                single.iter().map(|s| (*s).to_owned()).collect(),
                pair.iter().map(|s| (*s).to_owned()).collect()
            ),
            "{set:?}"
        );
    }
    assert_eq!(with([Some(false), Some(false), None]), None, "nothing");
}

#[test]
fn ids_of_no_token_are_left_out_with_a_warning() {
    let mut key_values = Case::read("gpt2").key_values;
    let there =
        key_values.iter_mut().find(|there| there.key == "tokenizer.ggml.bos_token_id").unwrap();
    there.value = Value::from(u32::MAX);
    let (files, warnings) = tokenizer_files(&key_values).unwrap();
    assert!(warnings.iter().any(|warning| warning.contains("bos_token_id")), "{warnings:?}");
    assert!(!String::from_utf8_lossy(&files[2].1).contains("bos_token"));
}

#[test]
fn a_model_without_a_tokenizer_has_no_key_values_and_no_files() {
    let tokenizer = tokenizer_key_values("llama", &[], Some(9), &Options::default()).unwrap();
    assert!(tokenizer.key_values.is_empty() && tokenizer.warnings.len() == 1);
    assert_eq!(tokenizer_files(&[]).unwrap(), (Vec::new(), Vec::new()));
}

#[test]
fn files_from_key_values_yield_the_same_ids() {
    let Some(python) = locate::reference_python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for name in CASES {
        let case = Case::read(name);
        let Some((_, original)) = case.files.iter().find(|(name, _)| name == "tokenizer.json")
        else {
            continue;
        };
        let (files, _) = tokenizer_files(&case.write().key_values).unwrap();
        std::fs::write(folder.path().join(format!("{name}.original.json")), original).unwrap();
        std::fs::write(folder.path().join(format!("{name}.rebuilt.json")), &files[0].1).unwrap();
        compared += 1;
    }
    let check = locate::fixture("tokenizers/check.py");
    let output = std::process::Command::new(python).arg(check).arg(folder.path()).output().unwrap();
    let (out, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out, format!("{compared} tokenizers, alike\n"), "{errors}");
}

#[test]
fn broken_files_are_errors_or_tokenizers() {
    for (name, file) in
        [("bert", "tokenizer.json"), ("spm_model", "tokenizer.model"), ("t5_model", "spiece.model")]
    {
        let case = Case::read(name);
        let position = case.files.iter().position(|(name, _)| name == file).unwrap();
        let bytes = case.files[position].1.clone();
        let mut files = case.files;
        let cut = apr_testkit::corrupt::truncations(&bytes).step_by(7);
        for broken in cut.chain(apr_testkit::corrupt::bit_flips(&bytes, 0..bytes.len()).step_by(37))
        {
            files[position].1 = broken.clone();
            let options = Options::default();
            let Ok(tokenizer) =
                tokenizer_key_values(&case.architecture, &files, Some(case.rows), &options)
            else {
                continue;
            };
            // What was written can be read.
            if let Err(error) = tokenizer_files(&tokenizer.key_values) {
                assert_eq!(error.code(), Code::Format, "{error}");
            }
        }
    }
}

/// llama.cpp's converter takes T5's types from its SentencePiece model, and calls what
/// `added_tokens.json` adds to it user-defined, whatever flags the libraries give these tokens.
#[test]
fn t5_s_gaps_are_user_defined_and_its_pieces_keep_their_types() {
    let mut case = Case::read("t5_model");
    let pieces = texts(&case.key_values).len() - 8;
    let special = |content: &str| json!({"content": content, "special": true});
    let gap = |id: usize| (format!("<extra_id_{}>", id - pieces + 1), id);
    let gaps: Vec<(String, usize)> = (pieces..pieces + 8).map(gap).collect();
    let mut decoder: serde_json::Map<String, Json> =
        gaps.iter().map(|(text, id)| (id.to_string(), special(text))).collect();
    decoder.extend([("0".to_owned(), special("<pad>")), ("2".to_owned(), special("<unk>"))]);
    let settings = json!({"added_tokens_decoder": decoder}).to_string().into_bytes();
    case.files.push(("tokenizer_config.json".to_owned(), settings));
    let written = case.write().key_values;
    let Value::Array(Array::I32(types)) = of(&written, "token_type") else {
        panic!("types are numbers")
    };
    assert_eq!(types[..3], [3, 3, 2], "<pad>, </s> and <unk> as the pieces are");
    assert_eq!(types[pieces..], [4; 8]);
    assert_eq!(texts(&written)[pieces], "<extra_id_1>");

    // On the way back they are special again, and then the same as before.
    let (mut files, warnings) = tokenizer_files(&written).unwrap();
    let json: Json = serde_json::from_slice(&files[0].1).unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    assert!(added.iter().all(|token| token["special"] == true), "{added:?}");
    assert!(
        warnings.iter().any(|warning| warning.contains("legacy: GGUF has no key for it")),
        "{warnings:?}"
    );
    files.extend(case.files.iter().filter(|(name, _)| name == "config.json").cloned());
    let again = tokenizer_key_values("t5", &files, Some(case.rows), &Options::default()).unwrap();
    assert_eq!(of(&again.key_values, "token_type"), of(&written, "token_type"));
}

#[test]
fn what_llama_cpp_does_another_way_is_warned_of() {
    let changes: [(&str, &str, Change, &str); 10] = [
        (
            "spm",
            "tokenizer.json",
            |json| json["model"]["ignore_merges"] = json!(true),
            "llama.cpp merges it",
        ),
        (
            "xlm_roberta",
            "tokenizer.json",
            |json| json["model"]["byte_fallback"] = json!(true),
            "has no bytes",
        ),
        (
            "xlm_roberta",
            "tokenizer.json",
            |json| json["normalizer"] = json!({ "type": "NFKC" }),
            "only as a charsmap",
        ),
        (
            "bert",
            "tokenizer.json",
            |json| json["normalizer"]["handle_chinese_chars"] = json!(false),
            "Chinese",
        ),
        (
            "bert",
            "tokenizer.json",
            |json| json["normalizer"]["clean_text"] = json!(false),
            "control characters",
        ),
        (
            "gpt2",
            "tokenizer.json",
            |json| json["added_tokens"][0]["lstrip"] = json!(true),
            "does not take spaces off",
        ),
        (
            "gpt2",
            "tokenizer.json",
            |json| json["pre_tokenizer"]["add_prefix_space"] = json!(true),
            "put a space",
        ),
        (
            "llama3",
            "tokenizer_config.json",
            |json| json["add_bos_token"] = json!(false),
            "denies that a bos token",
        ),
        (
            "gpt2",
            "config.json",
            |json| json["pad_token_id"] = json!(-1),
            "pad_token_id is -1, no id",
        ),
        (
            "gpt2",
            "tokenizer_config.json",
            |json| {
                json["chat_template"] =
                    (0..1000).map(|n| json!({ "name": n.to_string(), "template": "" })).collect();
            },
            "chat templates are kept",
        ),
    ];
    for (name, file, change, words) in changes {
        assert!(
            !Case::read(name).write().warnings.iter().any(|warning| warning.contains(words)),
            "{name}: {words}"
        );
        let warnings = Case::read(name).with_file(file, change).write().warnings;
        assert!(
            warnings.iter().any(|warning| warning.contains(words)),
            "{name}: {words}: {warnings:?}"
        );
    }
}

#[test]
fn files_that_say_the_same_in_another_way_have_the_same_key_values() {
    let same: [(&str, Change); 6] = [
        ("gpt2", |json| drop(json["model"].as_object_mut().unwrap().remove("type"))),
        ("bert", |json| drop(json["model"].as_object_mut().unwrap().remove("type"))),
        ("xlm_roberta", |json| drop(json["model"].as_object_mut().unwrap().remove("type"))),
        ("llama3", |json| {
            json["post_processor"] =
                json!({ "type": "Sequence", "processors": [json["post_processor"].clone()] });
        }),
        ("xlm_roberta", |json| {
            json["pre_tokenizer"] =
                json!({ "type": "Sequence", "pretokenizers": [json["pre_tokenizer"].clone()] });
        }),
        ("xlm_roberta", |json| {
            let (cls, sep) = (json!(["<s>", 0]), json!(["</s>", 2]));
            json["post_processor"] = json!({ "type": "RobertaProcessing", "cls": cls, "sep": sep });
        }),
    ];
    for (name, change) in same {
        assert_eq!(
            Case::read(name).with(change).write().key_values,
            Case::read(name).write().key_values,
            "{name}"
        );
    }
    let refused: [(&str, Change, &str); 4] = [
        ("gpt2", |json| json["pre_tokenizer"] = Json::Null, "has no pre-tokenizer"),
        ("gpt2", |json| json["model"]["vocab"] = json!([["a", 0.5]]), "not a map of tokens to ids"),
        (
            "xlm_roberta",
            |json| json["model"]["vocab"] = json!({ "a": 0 }),
            "not a list of tokens with scores",
        ),
        (
            "xlm_roberta",
            |json| json["pre_tokenizer"] = json!({ "type": "Digits" }),
            "does not split a text",
        ),
    ];
    for (name, change, words) in refused {
        let error = Case::read(name).with(change).error();
        assert!(error.message().contains(words), "{name}: {error}");
    }
    let mut case = Case::read("gpt2");
    case.files.push(("chat_template.jinja".to_owned(), b"{{ text }}".to_vec()));
    let written = case.write().key_values;
    let template = written.iter().find(|there| there.key == "tokenizer.chat_template");
    assert_eq!(template.map(|there| &there.value), Some(&Value::from("{{ text }}")));
}
