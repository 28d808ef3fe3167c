//! Files rebuilt from key-value pairs, and pairs that lead to none.

use apr_core::Code;
use apr_gguf::{Array, KeyValue, Value};
use apr_testkit::locate;
use serde_json::Value as Json;

use super::{CASES, Case, of, texts};
use crate::gguf::{Options, tokenizer_files, tokenizer_key_values};

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

/// Returns the special tokens around one text and around two, with the texts as `A` and `B`.
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
        ([Some(true), Some(true), Some(false)], &[bos, a, eos], &[bos, a, eos, b, eos]),
        ([Some(true), Some(false), Some(false)], &[bos, a], &[bos, a, bos, b]),
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
