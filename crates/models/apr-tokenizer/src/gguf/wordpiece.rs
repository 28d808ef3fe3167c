//! WordPiece: the longest tokens that words consist of, from their beginning.
//!
//! GGUF marks the tokens that begin a word, with the letter for a space, where the files mark those
//! that go on in one.

use apr_core::{Error, Escaped, Result};
use serde_json::Value as Json;

use super::bpe::{added_beside, fill, read_tokens};
use super::context::Context;
use super::hugging_face::TokenizerJson;
use super::special::{ends, kind, list};
use super::tokens::{ADDED_SCORE, CONTROL, SPACE, Tokens};

/// Pre-tokenizer name of BERT models. llama.cpp's converter distinguishes families that it treats
/// alike.
const PRE: &str = "bert-bge";

/// Roles with the ids that llama.cpp uses by default.
const DEFAULTS: &[(&str, u64)] =
    &[("bos", 101), ("unk", 100), ("sep", 102), ("pad", 0), ("mask", 103)];

/// Roles by the names that BERT's tokens have.
const NAMES: [(&str, &str); 5] =
    [("bos", "[CLS]"), ("unk", "[UNK]"), ("sep", "[SEP]"), ("pad", "[PAD]"), ("mask", "[MASK]")];

pub(super) fn from_tokenizer_json(context: &mut Context<'_>, json: &TokenizerJson) -> Result<()> {
    check_normalizer(context, &json.normalizer)?;
    check_pre_tokenizer(&json.pre_tokenizer)?;
    if ends(&json.post_processor) != (true, true) {
        context.warn(
            "llama.cpp puts [CLS] before and [SEP] behind every text, the tokenizer does not",
        );
    }
    let tokens = read_tokens(context, json)?;
    let prefix = json.model.continuing_subword_prefix.as_deref().unwrap_or("##").to_owned();
    write(context, tokens, Some(json), &prefix)
}

/// Words and pieces a line each; whether letters are lowered is in the settings.
pub(super) fn from_vocab_txt(context: &mut Context<'_>) -> Result<()> {
    const FILE: &str = "vocab.txt";

    let text = context.files.text(FILE)?.unwrap_or_default();
    let vocab: Vec<_> = text.lines().map(str::to_owned).zip(0..).collect();
    let added = added_beside(context)?;
    let mut tokens =
        context.padding(FILE, vocab.iter().map(|(_, id)| *id).chain(added.iter().map(|t| t.id)))?;
    fill(context, FILE, &mut tokens, vocab)?;
    let dropped = added.iter().filter(|token| !tokens.set_added(token, ADDED_SCORE)).count();
    context.check_added(&added, dropped);
    for (text, token_type) in tokens.texts.iter().zip(&mut tokens.types) {
        if NAMES.iter().any(|(_, name)| name == text) {
            *token_type = CONTROL;
        }
    }

    write(context, tokens, None, "##")?;
    if let Some(lowers) = context.settings.get("do_lower_case").and_then(Json::as_bool) {
        context.set("normalizer.lowercase", lowers);
        warn_of_case(context, lowers);
    }

    Ok(())
}

fn write(
    context: &mut Context<'_>,
    mut tokens: Tokens,
    json: Option<&TokenizerJson>,
    prefix: &str,
) -> Result<()> {
    let types = context
        .config
        .get("type_vocab_size")
        .and_then(Json::as_u64)
        .and_then(|types| u32::try_from(types).ok());
    context.set("token_type_count", types.unwrap_or(1));
    let named = NAMES.map(|(role, name)| (role, tokens.find(name)));
    for (text, _) in
        tokens.texts.iter_mut().zip(&tokens.types).filter(|(_, token_type)| **token_type != CONTROL)
    {
        // GGUF marks the pieces that begin a word, and not those that go on.
        *text = match text.strip_prefix(prefix).filter(|_| !prefix.is_empty()) {
            Some(piece) => piece.to_owned(),
            None => format!("{SPACE}{text}"),
        };
    }
    context.write_tokens("bert", PRE, &mut tokens, false);
    let special = context.write_special(json, &tokens)?;
    for (role, id) in named {
        special.write_missing(context, role, id, DEFAULTS);
    }

    Ok(())
}

fn check_normalizer(context: &mut Context<'_>, normalizer: &Json) -> Result<()> {
    match kind(normalizer) {
        "Sequence" => list(normalizer, "normalizers")
            .iter()
            .try_for_each(|step| check_normalizer(context, step))?,
        "BertNormalizer" => {
            let flag = |name: &str, default: bool| {
                normalizer.get(name).and_then(Json::as_bool).unwrap_or(default)
            };
            warn_of_case(context, flag("lowercase", true));

            // Where it is not stated, `BertNormalizer` does as with case.
            if flag("strip_accents", flag("lowercase", true)) {
                context.warn(
                    "llama.cpp leaves Hangul syllables whole and drops vowel signs of Indic \
                     scripts: such texts get other ids",
                );
            }
            if !flag("handle_chinese_chars", true) {
                context.warn(
                    "llama.cpp takes each Chinese character for a word, the tokenizer does not",
                );
            }
            if !flag("clean_text", true) {
                context.warn("llama.cpp leaves control characters out, the tokenizer does not");
            }
        }
        "" => warn_of_case(context, false),
        "Lowercase" | "StripAccents" | "NFD" => {}
        "NFC" | "NFKC" | "NFKD" => super::bpe::check_normalizer(context, normalizer)?,
        other => {
            let message = format!(
                "llama.cpp's WordPiece does not support the normalizer {}",
                Escaped::short(other)
            );
            return Err(Error::format(message).in_file("tokenizer.json"));
        }
    }

    Ok(())
}

fn warn_of_case(context: &mut Context<'_>, lowers: bool) {
    if !lowers {
        context.warn(
            "letters keep their case, which llama.cpp releases from before 2026 lower regardless",
        );
    }
}

fn check_pre_tokenizer(step: &Json) -> Result<()> {
    match kind(step) {
        "BertPreTokenizer" => Ok(()),
        "Sequence" => list(step, "pretokenizers").iter().try_for_each(check_pre_tokenizer),
        other => {
            let other = if other.is_empty() { "nothing" } else { other };
            let message = format!(
                "llama.cpp's WordPiece splits a text as BERT's, this one by {}",
                Escaped::short(other)
            );
            Err(Error::format(message).in_file("tokenizer.json"))
        }
    }
}
