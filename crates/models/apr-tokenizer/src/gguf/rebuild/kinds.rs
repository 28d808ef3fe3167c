//! Pipelines that do what llama.cpp's tokenizers do.

use apr_core::{Error, Escaped, Result};
use apr_gguf::{Array, Value};
use serde_json::{Value as Json, json};

use super::super::pre;
use super::super::tokens::{BYTE, CONTROL, SPACE, UNKNOWN};
use super::super::unigram::{AROUND, REPEATED};
use super::keys::TokenizerKeys;
use super::merges;
use super::tokenizer_json::{Ids, Model, OwnedIds, TokenizerFile};

fn file<'a>(keys: &TokenizerKeys<'a>, model: Model<'a>) -> TokenizerFile<'a> {
    TokenizerFile {
        version: "1.0",
        truncation: Json::Null,
        padding: Json::Null,
        added_tokens: keys.added(),
        normalizer: Json::Null,
        pre_tokenizer: Json::Null,
        post_processor: Json::Null,
        decoder: Json::Null,
        model,
    }
}

fn ids<'a>(keys: &TokenizerKeys<'a>) -> Ids<'a> {
    Ids(keys.filled().map(|(id, text, _)| (text, id)).collect())
}

/// `gpt2`: BPE on bytes.
pub(super) fn bytes<'a>(
    keys: &TokenizerKeys<'a>,
    warnings: &mut Vec<String>,
) -> Result<TokenizerFile<'a>> {
    let name = keys.text("pre")?;
    let Some(pre) = pre::named(name.unwrap_or("default")) else {
        let name = Escaped::short(name.unwrap_or_default()).to_string();
        return Err(Error::format(format!(
            "tokenizer.ggml.pre is '{name}', whose way to split a text is not known here"
        )));
    };

    if name.is_none_or(|name| name == "default") {
        warnings.push(
            "tokenizer.ggml.pre is missing: text is split by llama.cpp's default, not as the \
             model's tokenizer does"
                .to_owned(),
        );
    }

    let model = Model::Bpe {
        dropout: Json::Null,
        unk_token: None,
        continuing_subword_prefix: Json::Null,
        end_of_word_suffix: Json::Null,
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: pre.ignore_merges,
        vocab: ids(keys),
        merges: listed_merges(keys)?,
    };

    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    Ok(TokenizerFile {
        normalizer: pre.normalizer(),
        pre_tokenizer: pre.pre_tokenizer(),
        post_processor: ends(keys, pre.adds_bos, false),
        decoder: bytes,
        ..file(keys, model)
    })
}

fn listed_merges<'a>(keys: &TokenizerKeys<'a>) -> Result<Vec<(&'a str, &'a str)>> {
    let merges = match keys.value("merges") {
        Some(Value::Array(Array::String(merges))) => merges.as_slice(),
        None => &[],
        Some(other) => {
            return Err(Error::format(format!(
                "tokenizer.ggml.merges is {}, not strings",
                other.type_name()
            )));
        }
    };
    let pair = |merge: &'a String| {
        // A token may begin with a space, as llama.cpp reads them.
        let cut = merge.bytes().skip(1).position(|byte| byte == b' ').map(|cut| cut + 1);
        let pair = cut.and_then(|cut| Some((merge.get(..cut)?, merge.get(cut + 1..)?)));
        pair.ok_or_else(|| {
            Error::format(format!("the merge '{}' is not two tokens", Escaped::short(merge)))
        })
    };
    merges.iter().map(pair).collect()
}

/// `llama`: BPE on characters, by scores.
pub(super) fn characters<'a>(
    keys: &TokenizerKeys<'a>,
    warnings: &mut Vec<String>,
) -> TokenizerFile<'a> {
    let (merges, open) = merges::from_scores(keys);
    if open {
        warnings.push(
            "tokens of equal scores merge in the order of their ids, in llama.cpp from the left"
                .to_owned(),
        );
    }

    let mut scores = keys.scores.unwrap_or_default().iter().copied();
    if scores.any(|score| score != 0.0) {
        warnings.push(
            "tokenizer.ggml.scores: the files keep their order, as the order of merges, not the \
             numbers"
                .to_owned(),
        );
    }

    let prefix = keys.flag("add_space_prefix").unwrap_or(true);
    let space = SPACE.to_string();
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": space });
    let prepend = json!({ "type": "Prepend", "prepend": space });
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": space }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        // The space that was put before the text goes away again.
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }

    let model = Model::Bpe {
        dropout: Json::Null,
        unk_token: unknown(keys),
        continuing_subword_prefix: Json::Null,
        end_of_word_suffix: Json::Null,
        fuse_unk: true,
        byte_fallback: keys.filled().any(|(.., token_type)| token_type == BYTE),
        ignore_merges: false,
        vocab: ids(keys),
        merges,
    };

    TokenizerFile {
        normalizer: if prefix {
            json!({ "type": "Sequence", "normalizers": [prepend, replace] })
        } else {
            replace
        },
        post_processor: ends(keys, true, false),
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        ..file(keys, model)
    }
}

fn unknown<'a>(keys: &TokenizerKeys<'a>) -> Option<&'a str> {
    let marked =
        || keys.filled().find(|(.., token_type)| *token_type == UNKNOWN).map(|(_, text, _)| text);
    keys.token("unknown_token_id").or_else(marked)
}

/// `bert`: WordPiece.
pub(super) fn words<'a>(keys: &TokenizerKeys<'a>, warnings: &mut Vec<String>) -> TokenizerFile<'a> {
    // GGUF marks the pieces that begin a word, BERT's files those that go on.
    let text = |text: &str, token_type: i32| match (text.strip_prefix(SPACE), token_type) {
        (_, CONTROL | UNKNOWN) => text.to_owned(),
        (Some(word), _) => word.to_owned(),
        (None, _) => format!("##{text}"),
    };
    let vocab =
        keys.filled().map(|(id, token, token_type)| (text(token, token_type), id)).collect();
    let model = Model::WordPiece {
        unk_token: keys
            .token("unknown_token_id")
            .map_or("[UNK]", |text| text.strip_prefix(SPACE).unwrap_or(text)),
        continuing_subword_prefix: "##",
        max_input_chars_per_word: 100,
        vocab: OwnedIds(vocab),
    };

    let lowers = keys.flag("normalizer.lowercase").unwrap_or(true);
    let post_processor = match (
        keys.id("bos_token_id").or_else(|| keys.id("cls_token_id")),
        // GGUF spells the key so.
        keys.id("seperator_token_id"),
    ) {
        (Some(cls), Some(sep)) => template(keys, Some(cls), Some(sep), [None, None]),
        _ => {
            warnings.push("the tokens around a text are not stated".to_owned());
            Json::Null
        }
    };

    TokenizerFile {
        normalizer: json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": keys.flag("normalizer.strip_accents"), "lowercase": lowers,
        }),
        pre_tokenizer: json!({ "type": "BertPreTokenizer" }),
        post_processor,
        decoder: json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        ..file(keys, model)
    }
}

/// Returns the Unigram tokenizer of a GGUF file whose tokenizer model is `t5`.
pub(super) fn unigram<'a>(
    keys: &TokenizerKeys<'a>,
    warnings: &mut Vec<String>,
) -> Result<TokenizerFile<'a>> {
    let scores = keys
        .scores
        .ok_or_else(|| Error::format("tokenizer.ggml.scores is missing, which Unigram requires"))?;

    // Ids are positions: only what fills up the end can be left out.
    let count = keys.filled().last().map_or(0, |(id, ..)| id + 1);
    let vocab: Vec<_> =
        keys.tokens.iter().map(String::as_str).zip(scores.iter().copied()).take(count).collect();
    if vocab.iter().any(|(_, score)| !score.is_finite()) {
        return Err(Error::format("tokenizer.ggml.scores are not all numbers"));
    }

    let marked =
        || keys.filled().find(|(.., token_type)| *token_type == UNKNOWN).map(|(id, ..)| id);
    let unk_id = keys.id("unknown_token_id").or_else(marked).filter(|&id| id < count);
    if unk_id.is_none() {
        warnings.push(
            "the token for unknown characters is not stated: a text with them can't be tokenized"
                .to_owned(),
        );
    }

    let scheme = if keys.flag("add_space_prefix").unwrap_or(true) { "always" } else { "never" };
    let metaspace = json!({
        "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true,
    });
    let model = Model::Unigram { unk_id, vocab, byte_fallback: false };
    Ok(TokenizerFile {
        normalizer: normalizer(keys)?,
        pre_tokenizer: metaspace.clone(),
        post_processor: ends(keys, false, true),
        decoder: metaspace,
        ..file(keys, model)
    })
}

fn normalizer(keys: &TokenizerKeys<'_>) -> Result<Json> {
    let mut steps = Vec::new();
    match keys.value("precompiled_charsmap") {
        None => {}
        Some(Value::Array(Array::U8(charsmap))) => steps.push(precompiled(charsmap)),
        Some(Value::Array(Array::I8(charsmap))) => {
            let charsmap: Vec<u8> = charsmap.iter().map(|byte| byte.cast_unsigned()).collect();
            steps.push(precompiled(&charsmap));
        }
        Some(other) => {
            let message =
                format!("tokenizer.ggml.precompiled_charsmap is {}, not bytes", other.type_name());
            return Err(Error::format(message));
        }
    }

    if keys.flag("remove_extra_whitespaces").unwrap_or(false) {
        for (pattern, content) in [(AROUND, ""), (REPEATED, " ")] {
            steps.push(
                json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": content }),
            );
        }
    }

    Ok(if steps.is_empty() {
        Json::Null
    } else {
        json!({ "type": "Sequence", "normalizers": steps })
    })
}

fn precompiled(charsmap: &[u8]) -> Json {
    json!({
        "type": "Precompiled", "precompiled_charsmap": crate::vocabulary::encode_base64(charsmap),
    })
}

/// Returns the post-processor that adds special tokens.
///
/// The keys or llama.cpp's defaults determine these tokens.
fn ends(keys: &TokenizerKeys<'_>, bos: bool, eos: bool) -> Json {
    let adds = |key: &str, default: bool, id: &str| {
        keys.flag(key).unwrap_or(default).then(|| keys.id(id)).flatten()
    };
    let (bos, eos) =
        (adds("add_bos_token", bos, "bos_token_id"), adds("add_eos_token", eos, "eos_token_id"));
    if bos.is_none() && eos.is_none() {
        return Json::Null;
    }

    // The second of two texts begins as the first, unless a token keeps them apart. An encoder's
    // file says that it needs no other than the one that ends a text.
    let between = match keys.flag("add_sep_token") {
        Some(true) => [keys.id("seperator_token_id").or_else(|| keys.id("eos_token_id")), None],
        Some(false) if eos.is_some() => [None, None],
        _ => [None, bos],
    };
    template(keys, bos, eos, between)
}

/// A template with `first` before a text and `last` behind it, and of a pair two tokens `between`
/// besides.
fn template(
    keys: &TokenizerKeys<'_>,
    first: Option<usize>,
    last: Option<usize>,
    between: [Option<usize>; 2],
) -> Json {
    let text = |id: usize| keys.tokens.get(id).map_or("", String::as_str);
    let special = |id: Option<usize>, kind: u8| {
        id.map(|id| json!({ "SpecialToken": { "id": text(id), "type_id": kind } }))
    };
    let sequence =
        |name: &str, kind: u8| Some(json!({ "Sequence": { "id": name, "type_id": kind } }));
    let single = [special(first, 0), sequence("A", 0), special(last, 0)];
    let [apart, again] = between;
    let second = [special(apart, 0), special(again, 1), sequence("B", 1), special(last, 1)];
    let pair: Vec<_> = single.iter().cloned().chain(second).flatten().collect();
    let mut tokens = serde_json::Map::new();
    for id in [first, last, apart, again].into_iter().flatten() {
        tokens.insert(
            text(id).to_owned(),
            json!({ "id": text(id), "ids": [id], "tokens": [text(id)] }),
        );
    }

    let single: Vec<_> = single.into_iter().flatten().collect();
    json!({
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens,
    })
}
