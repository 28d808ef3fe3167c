//! Tokens, beside those of the `tokenizers` library (`fixtures/tokenizers/ids.py`) and of
//! llama.cpp.

use apr_core::{Code, KeyValues, Limits};
use apr_gguf::{KeyValue, Value};
use apr_inputs::text::{TextStream, TextTokens, TokenizerSource};
use apr_testkit::locate;
use apr_tokenizer::gguf::{Options, tokenizer_key_values};
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

/// Compares with ids from tiktoken and mistral-common (`fixtures/ranks/make.py`).
#[test]
fn ranks_give_the_tokens_of_their_libraries() {
    let all = json("ranks/expected.json");
    let list = all["list"].as_str().unwrap();
    for case in all["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let mut files = Vec::new();
        match case["list"].as_str() {
            Some(file) => files.push((file.to_owned(), list.as_bytes().to_vec())),
            None => {
                let token = |line: &str| {
                    let (bytes, rank) = line.split_once(' ').unwrap();
                    let rank: u64 = rank.parse().unwrap();
                    serde_json::json!({ "rank": rank, "token_bytes": bytes, "token_str": null })
                };
                let vocab: Vec<Json> = list.lines().map(token).collect();
                let mut file = serde_json::json!({ "config": case["config"], "vocab": vocab });
                if !case["special"].is_null() {
                    file["special_tokens"] = case["special"].clone();
                }
                files.push(("tekken.json".to_owned(), file.to_string().into_bytes()));
            }
        }
        if !case["settings"].is_null() {
            let settings = case["settings"].to_string().into_bytes();
            files.push(("tokenizer_config.json".to_owned(), settings));
        }
        // A file of Mistral's says how texts are split, which a GGUF file then names.
        let in_gguf = case["list"].is_null().then(|| {
            let options = Options::default();
            let pairs = tokenizer_key_values("llama", &files, None, &options).expect(name);
            let pairs: KeyValues = pairs.key_values.iter().collect();
            read(&TokenizerSource::new(Some(pairs), Vec::new()))
        });
        let tokens = read(&TokenizerSource::new(None, files));
        let first = ids(&case["first"]);
        let rows = all["texts"].as_array().unwrap().iter().zip(case["ids"].as_array().unwrap());
        for (text, expected) in rows {
            let (text, expected) = (text.as_str().unwrap(), ids(expected));
            assert_eq!(tokens.encode(text, false).unwrap(), expected, "{name}: {text:?}");
            if let Some(in_gguf) = &in_gguf {
                assert_eq!(in_gguf.encode(text, false).unwrap(), expected, "{name}: {text:?}");
            }
            let whole = [&first[..], &expected].concat();
            assert_eq!(tokens.encode(text, true).unwrap(), whole, "{name}: {text:?}");
        }
    }
}

#[test]
fn files_that_are_not_lists_of_ranks_are_rejected() {
    let list = json("ranks/expected.json")["list"].as_str().unwrap().to_owned();
    let of = |name: &str, bytes: &[u8]| {
        TokenizerSource::new(None, vec![(name.to_owned(), bytes.to_vec())]).read()
    };
    let cut = list.lines().skip(1).collect::<Vec<_>>().join("\n");
    let error = of("qwen.tiktoken", cut.as_bytes()).unwrap_err();
    assert!(error.message().contains("is not a token"), "{error}");
    let wrong = format!("{list}!! 7\n");
    let error = of("qwen.tiktoken", wrong.as_bytes()).unwrap_err();
    assert!(error.message().contains("is not a base64 token and its rank"), "{error}");
    for json in ["{", "{}", r#"{"config": {}, "vocab": []}"#] {
        assert!(of("tekken.json", json.as_bytes()).is_err(), "{json}");
    }
    let many = r#"{"config": {"pattern": "a", "default_vocab_size": 1,
        "default_num_special_tokens": 99999999999}, "vocab": []}"#;
    assert_eq!(of("tekken.json", many.as_bytes()).unwrap_err().code(), Code::Memory);
    // A long token would take long to be taken apart.
    let long = format!("{list}{} 400\n", "YWFh".repeat(20_000));
    assert_eq!(of("qwen.tiktoken", long.as_bytes()).unwrap_err().code(), Code::Memory);
    for end in (0..list.len()).step_by(97) {
        let _ = of("qwen.tiktoken", &list.as_bytes()[..end]);
        let _ = of("tekken.json", &many.as_bytes()[..end.min(many.len())]);
        let mut flipped = list.clone().into_bytes();
        flipped[end] ^= 1;
        let _ = of("tokenizer.model", &flipped);
    }
    // Nothing says how the texts of a model that is not known are split.
    assert!(of("other.tiktoken", list.as_bytes()).unwrap().is_none());
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
fn positions_in_a_text_match_the_library() {
    let (library, merging) = (from_files("spm"), from_keys("spm"));
    for row in json("tokenizers/ids.json")["spm"].as_array().unwrap() {
        let text = row["of"].as_str().unwrap();
        let theirs = library.pieces(text, true).unwrap();
        assert_eq!(theirs.iter().map(|piece| piece.id).collect::<Vec<_>>(), ids(&row["whole"]));
        assert_eq!(merging.pieces(text, true).unwrap(), theirs, "{text}");
    }
}
