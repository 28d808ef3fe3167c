//! Keys of exports to GGUF against those of llama.cpp's converter (`fixtures/gguf`).

use std::collections::BTreeMap;

use apr_gguf::KeyValue;
use apr_registry::CheckpointReader;
use serde_json::{Value, json};

use crate::gguf::POOLED;
use crate::support::{Case, cases, exported};

/// Keys that apr writes and the converter does not. They are from its vocabulary step, which the
/// fixtures omit; the file type, which it forgets for one family; and a key for ModernBERT, which
/// it reads from a key that not all configurations have.
const MORE: [&str; 5] = [
    "tokenizer.ggml.token_type_count",
    "general.file_type",
    "modern-bert.attention.layer_norm_epsilon",
    // The converter leaves out what the configuration does not state; llama.cpp's defaults are
    // those of other families.
    "deepseek2.expert_gating_func",
    "glm4moe.leading_dense_block_count",
];

/// Keys that the converter assumes, although the configuration states otherwise: that the
/// feed-forward network is four times as wide, that there are as many keys as queries, and that the
/// width of shared experts follows from other sizes.
const STATED: [(&str, &str); 3] = [
    ("phi", "phi2.feed_forward_length"),
    ("phi", "phi2.attention.head_count_kv"),
    ("ernie4_5_moe", "ernie4_5-moe.expert_shared_feed_forward_length"),
];

#[test]
fn keys_are_the_converters() {
    for Case { name, json, reader } in cases() {
        let export = exported(&reader, &name);
        let written =
            apr_gguf::key_values(export.view.metadata()).expect("pairs").expect("keys").to_vec();
        let written: Vec<Value> = written.iter().map(KeyValue::to_json).collect();
        let written: BTreeMap<String, (String, Value)> = written
            .iter()
            .map(|pair| {
                let kind = match pair.get("items") {
                    Some(items) => format!("array/{}", items.as_str().expect("a type")),
                    None => pair["type"].as_str().expect("a type").to_owned(),
                };
                (pair["key"].as_str().expect("a key").to_owned(), (kind, pair["value"].clone()))
            })
            .collect();
        let mut expected: BTreeMap<String, (String, Value)> = BTreeMap::new();
        for key in json["keys"].as_array().expect("keys") {
            let text = |at: usize| key[at].as_str().expect("text").to_owned();
            let kind =
                text(1).replace("uint32", "u32").replace("int32", "i32").replace("float32", "f32");
            expected.insert(text(0), (kind, key[2].clone()));
        }
        for (key, (kind, value)) in &expected {
            // It counts the pooler.
            let is_larger = name == POOLED && key == "general.size_label";
            if STATED.contains(&(name.as_str(), key.as_str())) || is_larger {
                continue;
            }
            let (found_kind, found) =
                written.get(key).unwrap_or_else(|| panic!("{name}: {key} is missing"));
            assert_eq!(found_kind, kind, "{name}: {key}");
            match (kind.as_str(), value.as_f64(), found.as_f64()) {
                ("f32", Some(value), Some(found)) => {
                    assert!(
                        (value - found).abs() <= f64::from(f32::EPSILON) * value.abs(),
                        "{name}: {key} is {found}"
                    );
                }
                _ => assert_eq!(found, value, "{name}: {key}"),
            }
        }
        for key in written.keys().filter(|key| !expected.contains_key(*key)) {
            // The converter leaves it to whoever runs a classifier.
            if key.ends_with(".pooling_type") && name.ends_with("_classifier") {
                assert_eq!(written[key].1, json!(4), "{name}");
                continue;
            }
            assert!(MORE.contains(&key.as_str()), "{name}: {key} is one too many");
        }
    }
}
