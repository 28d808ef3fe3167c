//! Tokens, beside those of the `tokenizers` library (`fixtures/tokenizers/ids.py`) and of
//! llama.cpp.

use apr_core::{KeyValues, Limits};
use apr_gguf::{KeyValue, Value};
use apr_inputs::text::{TextStream, TextTokens, TokenizerSource};
use apr_testkit::locate;
use serde_json::Value as Json;

fn json(path: &str) -> Json {
    serde_json::from_slice(&std::fs::read(locate::fixture(path)).unwrap()).unwrap()
}

fn ids(json: &Json) -> Vec<i64> {
    json.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
}

fn read(source: &TokenizerSource) -> TextTokens {
    source.read().unwrap().expect("a tokenizer").0
}

fn from_files(name: &str) -> TextTokens {
    let case = json(&format!("tokenizers/{name}.json"));
    let files = case["files"].as_object().unwrap().iter();
    read(&TokenizerSource::new(
        None,
        files.map(|(name, file)| (name.clone(), file.to_string().into_bytes())).collect(),
    ))
}

fn from_keys(name: &str) -> TextTokens {
    let mut keys = KeyValues::new();
    for entry in json(&format!("tokenizers/{name}.json"))["key_values"].as_array().unwrap() {
        let value = entry[2].clone();
        let value = match entry[1].as_str().unwrap() {
            "string" => Value::from(value.as_str().unwrap()),
            "bool" => Value::from(value.as_bool().unwrap()),
            "u32" => Value::from(u32::try_from(value.as_u64().unwrap()).unwrap()),
            "[string" => Value::from(serde_json::from_value::<Vec<String>>(value).unwrap()),
            "[f32" => Value::from(serde_json::from_value::<Vec<f32>>(value).unwrap()),
            "[i32" => Value::from(serde_json::from_value::<Vec<i32>>(value).unwrap()),
            "[u8" => Value::from(serde_json::from_value::<Vec<u8>>(value).unwrap()),
            other => panic!("{other}"),
        };
        keys.push(&KeyValue::new(entry[0].as_str().unwrap(), value)).unwrap();
    }
    read(&TokenizerSource::new(Some(keys), Vec::new()))
}

#[test]
fn tokenizer_files_give_the_tokens_of_the_library() {
    for (name, rows) in json("tokenizers/ids.json").as_object().unwrap() {
        let tokens = from_files(name);
        for row in rows.as_array().unwrap() {
            let text = row["of"].as_str().unwrap();
            assert_eq!(tokens.encode(text, false).unwrap(), ids(&row["plain"]), "{name}: {text}");
            assert_eq!(tokens.encode(text, true).unwrap(), ids(&row["whole"]), "{name}: {text}");
            assert_eq!(
                tokens.decode(&ids(&row["plain"])).unwrap(),
                row["text"].as_str().unwrap(),
                "{name}: {text}"
            );
        }
    }
}

#[test]
fn keys_of_gguf_give_the_same_tokens() {
    let expected = json("tokenizers/ids.json");
    for name in ["bert", "bert_cased", "gpt2", "llama3", "qwen2", "smollm", "xlm_roberta"] {
        let tokens = from_keys(name);
        for row in expected[name].as_array().unwrap() {
            let text = row["of"].as_str().unwrap();
            assert_eq!(tokens.encode(text, true).unwrap(), ids(&row["whole"]), "{name}: {text}");
        }
    }
}

/// The texts and tokens that llama.cpp's own test has beside three vocabularies.
#[test]
fn vocabularies_of_llama_cpp_give_its_tokens() {
    let Some(folder) = locate::shared_data("gguf") else { return };
    for name in ["bert-bge", "gpt-2", "llama-spm"] {
        let path = folder.join(format!("ggerganov_llama.cpp__ggml-vocab-{name}.gguf"));
        let bytes = std::fs::read(&path).unwrap();
        let reader = apr_gguf::open(bytes, "vocabulary.gguf", &Limits::default()).unwrap();
        let tokens = read(&TokenizerSource::of(&reader).unwrap());
        let read =
            |end: &str| std::fs::read_to_string(format!("{}.{end}", path.display())).unwrap();
        let (texts, expected) = (read("inp"), read("out"));
        let mut count = 0;
        for (text, line) in texts.split("\n__ggml_vocab_test__\n").zip(expected.lines()) {
            let ids: Vec<i64> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokens.encode(text, false).unwrap(), ids, "{name}: {text:?}");
            count += 1;
        }
        assert!(count > 40, "{count} texts");
    }
}

#[test]
fn a_text_that_comes_token_by_token_is_the_text() {
    for name in ["gpt2", "spm", "bert", "qwen2"] {
        let tokens = from_files(name);
        let text = "hello wörld 日本 🚀 it is 12345 long enough to be shifted, some more words so \
            that it is";
        let ids = tokens.encode(text, false).unwrap();
        let (given, added) = ids.split_at(3);
        let mut stream = TextStream::behind(&tokens, given).unwrap();
        let shown = added.iter().flat_map(|id| stream.push(*id).unwrap()).collect();
        let shown = String::from_utf8(shown).unwrap();
        let whole = tokens.decode(&ids).unwrap();
        assert!(whole.ends_with(&shown), "{name}: {shown:?}");
        assert_eq!(format!("{}{shown}", tokens.decode(given).unwrap()), whole, "{name}");
    }
}

#[test]
fn tokens_are_the_bytes_of_their_text_where_characters_are_cut() {
    for name in ["gpt2", "spm", "qwen2"] {
        let tokens = from_files(name);
        let text = "a 🚀\u{fffd}🦙日é 𒀀𒀁";
        let ids = tokens.encode(text, false).unwrap();
        let mut cut = 0;
        for end in 0..=ids.len() {
            let bytes = tokens.decode_bytes(&ids[..end]).unwrap();
            assert!(text.as_bytes().starts_with(&bytes), "{name} {end}: {bytes:?}");
            cut += usize::from(std::str::from_utf8(&bytes).is_err());
        }
        assert_eq!(tokens.decode_bytes(&ids).unwrap(), text.as_bytes(), "{name}");
        assert!(cut > 3, "{name}: {cut}");
        // Bytes that begin and end in the middle of characters.
        let mut stream = TextStream::behind(&tokens, &ids[..1]).unwrap();
        let end = ids.len() - 1;
        let shown: Vec<u8> = ids[1..end].iter().flat_map(|id| stream.push(*id).unwrap()).collect();
        let whole = [tokens.decode_bytes(&ids[..1]).unwrap(), shown].concat();
        assert_eq!(whole, tokens.decode_bytes(&ids[..end]).unwrap(), "{name}");
    }
}

#[test]
fn a_text_that_is_too_long_loses_its_end_and_keeps_the_tokens_around_it() {
    let tokens = from_files("bert");
    let whole = tokens.encode("one two three four five", true).unwrap();
    let (cut, left_out) =
        tokens.encode_at_most("one two three four five", whole.len() - 2).unwrap();
    let expected = [&whole[..whole.len() - 3], &whole[whole.len() - 1..]].concat();
    assert_eq!((cut, left_out), (expected, 2));
    assert_eq!(tokens.encode_at_most("one", 100).unwrap().1, 0);
}

#[test]
fn a_damaged_tokenizer_is_an_error_and_no_panic() {
    let case = json("tokenizers/bert.json");
    let whole = case["files"]["tokenizer.json"].to_string().into_bytes();
    let of = |bytes: &[u8]| {
        TokenizerSource::new(None, vec![("tokenizer.json".to_owned(), bytes.to_vec())]).read()
    };
    for len in (0..whole.len()).step_by(61) {
        assert!(of(&whole[..len]).is_err(), "cut at {len}");
    }
    for at in (0..whole.len()).step_by(37) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        if let Ok(Some((tokens, _))) = of(&bytes) {
            let _ = tokens.encode("Hello, [MASK] world!", true);
        }
    }
}

#[test]
fn places_in_a_text_are_those_of_the_library() {
    let (library, merging) = (from_files("spm"), from_keys("spm"));
    for row in json("tokenizers/ids.json")["spm"].as_array().unwrap() {
        let text = row["of"].as_str().unwrap();
        let theirs = library.pieces(text, true).unwrap();
        assert_eq!(theirs.iter().map(|piece| piece.id).collect::<Vec<_>>(), ids(&row["whole"]));
        assert_eq!(merging.pieces(text, true).unwrap(), theirs, "{text}");
    }
}
