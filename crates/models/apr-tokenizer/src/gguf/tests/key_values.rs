//! Key-value pairs are those of llama.cpp's converter, however the files say it.

use apr_gguf::{Array, KeyValue, Value};
use apr_testkit::locate;
use serde_json::{Value as Json, json};

use super::{CASES, Case, Change, of, texts};
use crate::gguf::{Options, Tokenizer, TokenizerJson, tokenizer_files, tokenizer_key_values};

#[test]
fn key_values_match_the_converter_including_their_order() {
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
fn files_older_than_tokenizer_json_give_the_same_result() {
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
fn a_model_without_a_tokenizer_has_neither_key_values_nor_files() {
    let tokenizer = tokenizer_key_values("llama", &[], Some(9), &Options::default()).unwrap();
    assert!(tokenizer.key_values.is_empty() && tokenizer.warnings.len() == 1);
    assert_eq!(tokenizer_files(&[]).unwrap(), (Vec::new(), Vec::new()));
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
fn equivalent_files_have_the_same_key_values() {
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
