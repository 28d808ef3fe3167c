//! Keys as other programs write them.

use apr_gguf::{Array, KeyValue, Value};

use super::super::tests::Case;
use super::tokenizer_files;

#[test]
fn key_values_of_other_programs_give_the_same_files_or_a_warning() {
    let change = |name: &str, key: &str, change: &dyn Fn(Value) -> Option<Value>| {
        let (key, mut key_values) = (format!("tokenizer.ggml.{key}"), Case::read(name).key_values);
        let at = key_values.iter().position(|there| there.key == key).unwrap();
        match change(key_values[at].value.clone()) {
            Some(value) => key_values[at].value = value,
            None => drop(key_values.remove(at)),
        }
        tokenizer_files(&key_values).unwrap()
    };
    let plain = |name: &str| tokenizer_files(&Case::read(name).key_values).unwrap();
    let signed = |value: Value| match value {
        Value::U32(id) => Some(Value::I32(id.cast_signed())),
        Value::Array(Array::U8(bytes)) => {
            Some(Value::from(bytes.iter().map(|b| b.cast_signed()).collect::<Vec<_>>()))
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(change("gpt2", "eos_token_id", &signed), plain("gpt2"));
    assert_eq!(change("xlm_roberta", "precompiled_charsmap", &signed), plain("xlm_roberta"));
    // Without types, the tokens that have a role are the special ones.
    assert_eq!(change("gpt2", "token_type", &|_| None).0, plain("gpt2").0);
    let warned = |(_, warnings): (Vec<(String, Vec<u8>)>, Vec<String>), words: &str| {
        assert!(warnings.iter().any(|warning| warning.contains(words)), "{words}: {warnings:?}");
    };
    warned(change("gpt2", "pre", &|_| None), "tokenizer.ggml.pre is missing");
    let texts = |value: Value, at: usize, text: &str| {
        let Value::Array(Array::String(mut texts)) = value else { panic!("strings") };
        texts[at] = text.to_owned();
        Some(Value::from(texts))
    };
    warned(
        change("gpt2", "merges", &|merges| texts(merges, 0, "no token")),
        "1 merge of unknown tokens",
    );
    warned(
        change("gpt2", "tokens", &|tokens| texts(tokens, 3, "\"")),
        "with the text of an earlier one",
    );
    let mut key_values = Case::read("gpt2").key_values;
    key_values.push(KeyValue::new("tokenizer.chat_template", 7_u32));
    warned(tokenizer_files(&key_values).unwrap(), "tokenizer.chat_template is u32, no template");
}
