//! Files that are refused: of another form, hostile, broken, or beyond llama.cpp.

use apr_core::Code;
use apr_gguf::Value;
use serde_json::json;

use super::{Case, Change, of, texts};
use crate::gguf::{Options, tokenizer_files, tokenizer_key_values};

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
fn a_splitting_without_a_name_is_rejected_unless_the_user_gives_one() {
    let unknown = || {
        Case::read("llama3").with(|json| {
            json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(r"\w+");
        })
    };
    let error = unknown().error();
    assert_eq!(error.code(), Code::Format);
    assert!(
        error.message().contains(r"\w+") && error.message().contains("llama.cpp has no known name"),
        "{error}"
    );
    let case = unknown();
    let options = Options { pre: Some("gpt-4o") };
    let given = tokenizer_key_values("llama", &case.files, Some(case.rows), &options).unwrap();
    assert_eq!(of(&given.key_values, "pre"), &Value::from("gpt-4o"));
}

#[test]
fn features_that_llama_cpp_lacks_are_rejected() {
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
fn an_added_token_with_a_huge_id_does_not_allocate_memory() {
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
