//! Warnings of what llama.cpp does another way.

use serde_json::{Value as Json, json};

use super::{Case, Change};

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
fn differences_in_the_behaviour_of_llama_cpp_give_warnings() {
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
