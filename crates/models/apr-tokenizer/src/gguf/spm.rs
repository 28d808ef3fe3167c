//! BPE on characters, with bytes for those that are not tokens: SentencePiece's, and Hugging Face's
//! with `byte_fallback`.

use apr_core::{Error, Escaped, Result, counted};
use serde_json::Value as Json;

use super::bpe::{check_normalizer, read_tokens};
use super::context::Context;
use super::hugging_face::{Merge, TokenizerJson};
use super::pieces::{read_metaspace, read_pieces};
use super::scores::{self, Scores};
use super::special::{kind, list, unreadable};
use super::tokens::{BYTE, NORMAL, SPACE, Tokens, UNKNOWN};
use super::unigram;
use crate::vocabulary::SentencePiece;

/// Roles with the ids that llama.cpp uses by default.
const DEFAULTS: &[(&str, u64)] = &[("bos", 1), ("eos", 2), ("unk", 0)];

pub(super) fn from_sentencepiece(context: &mut Context<'_>, bytes: &[u8]) -> Result<()> {
    let model = SentencePiece::read(bytes).map_err(|why| unreadable("tokenizer.model", &why))?;
    if model.is_unigram() {
        return unigram::from_sentencepiece(context, &model);
    }

    if model.kind() != "BPE" {
        context.warn(format!(
            "llama.cpp does not support the SentencePiece type {} and merges pieces instead: \
             most texts get other ids",
            model.kind()
        ));
    }

    if model.removes_spaces {
        context.warn(
            "llama.cpp keeps leading, trailing and repeated spaces, which SentencePiece removes",
        );
    }

    if !model.charsmap.is_empty() {
        context.warn(
            "llama.cpp does not normalize text: the ids differ for letters that SentencePiece \
             replaces",
        );
    }

    write_prefix_setting(context);
    let mut tokens = read_pieces(context, &model)?;
    context.write_tokens("llama", "default", &mut tokens, true);
    let json = context.json.take();
    let special = context.write_special(json.as_ref(), &tokens)?;
    for (role, id) in model.roles() {
        special.write_missing(context, role, Some(id), DEFAULTS);
    }

    write_for_architecture(context, &tokens);
    write_prefix(context, model.adds_prefix);
    check_bytes(context, &tokens);
    Ok(())
}

pub(super) fn from_tokenizer_json(context: &mut Context<'_>, json: &TokenizerJson) -> Result<()> {
    if json.model.ignore_merges {
        context.warn(
            "the tokenizer keeps a text that is a token, llama.cpp merges it: ids differ if \
             merges differ",
        );
    }

    write_prefix_setting(context);
    let mut tokens = read_tokens(context, json)?;
    set_types(json, &mut tokens);
    let prefix = read_normalizer(context, &json.normalizer)?
        | read_pre_tokenizer(context, &json.pre_tokenizer, &tokens)?;
    set_scores(context, json, &mut tokens);
    context.write_tokens("llama", "default", &mut tokens, true);
    let special = context.write_special(Some(json), &tokens)?;
    let unknown = json.model.unk_token.as_deref().and_then(|text| tokens.find(text));
    special.write_missing(context, "unk", unknown, DEFAULTS);
    special.settle(context, json, true, false);
    write_for_architecture(context, &tokens);
    write_prefix(context, prefix);
    check_bytes(context, &tokens);
    Ok(())
}

fn set_types(json: &TokenizerJson, tokens: &mut Tokens) {
    let unknown = json.model.unk_token.as_deref();
    for (text, token_type) in tokens.texts.iter().zip(&mut tokens.types) {
        if is_byte(text) {
            *token_type = BYTE;
        } else if Some(text.as_str()) == unknown {
            *token_type = UNKNOWN;
        }
    }
}

/// Returns `true` for the text of a byte token, such as `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
    digits.is_some_and(|digits| {
        digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// Sets the scores: tokens formed by merges first, then the other tokens of texts, in order of id.
fn set_scores(context: &mut Context<'_>, json: &TokenizerJson, tokens: &mut Tokens) {
    let of_text = |token_type: i32| token_type == NORMAL;
    let texts =
        tokens.texts.iter().zip(&tokens.types).filter(|(_, token_type)| of_text(**token_type));
    let Scores { by_text, unlisted, mixed } =
        scores::from_merges(&json.model.merges, texts.map(|(text, _)| text.as_str()));
    let mut next = by_text.len();
    for ((text, token_type), score) in
        tokens.texts.iter().zip(&tokens.types).zip(&mut tokens.scores)
    {
        if !of_text(*token_type) {
            continue;
        }
        *score = by_text.get(text).copied().unwrap_or_else(|| {
            next += 1;
            // Fewer than 2^24 tokens: exact.
            #[expect(clippy::cast_precision_loss)]
            let score = -((next - 1) as f32);
            score
        });
    }
    if let (count, Some(Merge(left, right))) = unlisted {
        let (left, right) = (Escaped::short(&left).to_string(), Escaped::short(&right).to_string());
        let pairs = counted(count as u64, "pair");
        context.warn(format!(
            "llama.cpp merges {pairs} of tokens that no merge lists, as '{left}' with '{right}': \
             texts with them get other ids"
        ));
    }

    if let (count, Some(text)) = mixed {
        let (tokens, text) = (counted(count as u64, "merge"), Escaped::short(&text).to_string());
        context.warn(format!(
            "{tokens} of a token with others in between can't be ordered by scores, such as of \
             '{text}'"
        ));
    }
}

/// Returns `true` if the normalizer adds a space before a text.
fn read_normalizer(context: &mut Context<'_>, normalizer: &Json) -> Result<bool> {
    match kind(normalizer) {
        "Sequence" => list(normalizer, "normalizers")
            .iter()
            .try_fold(false, |prefix, step| Ok(read_normalizer(context, step)? | prefix)),
        "Prepend" => {
            Ok(normalizer.get("prepend").and_then(Json::as_str) == Some(SPACE.to_string().as_str()))
        }
        "Replace" if replaces_spaces(normalizer) => Ok(false),
        _ => check_normalizer(context, normalizer).map(|()| false),
    }
}

fn replaces_spaces(step: &Json) -> bool {
    let pattern = step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
    pattern == Some(" ")
        && step.get("content").and_then(Json::as_str) == Some(SPACE.to_string().as_str())
}

/// Returns `true` if the pre-tokenizer adds a space before a text.
///
/// A rule has no effect if no token contains the character at which it splits.
fn read_pre_tokenizer(context: &mut Context<'_>, step: &Json, tokens: &Tokens) -> Result<bool> {
    match kind(step) {
        "" => Ok(false),
        "Sequence" => list(step, "pretokenizers").iter().try_fold(false, |prefix, step| {
            Ok(read_pre_tokenizer(context, step, tokens)? | prefix)
        }),
        "Metaspace" => Ok(read_metaspace(context, step, tokens, true)),
        // The normalizer left no spaces.
        "Split"
            if step.get("pattern").and_then(|pattern| pattern.get("String")?.as_str())
                == Some(" ") =>
        {
            Ok(false)
        }
        other => {
            let message = format!(
                "llama.cpp's SentencePiece does not split a text, this one does by {}",
                Escaped::short(other)
            );
            Err(Error::format(message).in_file("tokenizer.json"))
        }
    }
}

/// Writes the setting that llama.cpp's converter reads before all others.
fn write_prefix_setting(context: &mut Context<'_>) {
    let setting = context.settings.get("add_prefix_space").and_then(Json::as_bool);
    if let Some(adds) = setting.filter(|_| context.architecture == "llama") {
        context.set("add_space_prefix", adds);
    }
}

/// Writes the space prefix setting, unless it is llama.cpp's default: a space before a text.
fn write_prefix(context: &mut Context<'_>, adds: bool) {
    if !adds || context.has("add_space_prefix") || context.architecture.starts_with("gemma") {
        context.set("add_space_prefix", adds);
    }
}

/// Writes the keys that llama.cpp's converter adds for some models.
fn write_for_architecture(context: &mut Context<'_>, tokens: &Tokens) {
    let eot = match (context.architecture, tokens.len()) {
        // CodeLlama.
        ("llama", 32016) => 32010_u32,
        // Gemma ends a turn so.
        ("gemma", 108..) if tokens.texts[107] == "<end_of_turn>" => 107,
        _ => return,
    };
    context.set("eot_token_id", eot);
}

/// Warns about missing byte tokens.
///
/// llama.cpp needs them for characters that are not tokens, and fails without them.
fn check_bytes(context: &mut Context<'_>, tokens: &Tokens) {
    let bytes = tokens.types.iter().filter(|&&token_type| token_type == BYTE).count();
    if bytes < 256 {
        let bytes = counted(bytes as u64, "byte");
        context.warn(format!(
            "only {bytes} of 256 have tokens: llama.cpp fails on a text with characters that are \
             not tokens"
        ));
    }
}
