//! Unigram: the most probable tokens that a text consists of.

use apr_core::{Error, Escaped, Result};
use apr_gguf::{Array, Value};
use serde_json::Value as Json;

use super::context::Context;
use super::hugging_face::{TokenizerJson, Vocab};
use super::pieces::{fill_unused, read_metaspace, read_pieces, token_type};
use super::special::{kind, list};
use super::tokens::{ADDED_SCORE, CONTROL, GAP, NORMAL, Tokens, UNKNOWN, USER_DEFINED};
use crate::vocabulary::{SentencePiece, decode_base64};

/// Roles with the ids that llama.cpp uses by default.
const DEFAULTS: &[(&str, u64)] = &[("eos", 1), ("unk", 2), ("pad", 0)];

/// Spaces that are left out, as patterns of `tokenizers`: around a text, and all but one of
/// several.
pub(super) const AROUND: &str = r"\A +| +\z";
pub(super) const REPEATED: &str = " {2,}";

/// Normalization of a text before it is split into tokens.
#[derive(Debug, Default)]
struct Normalization {
    /// Empty for none.
    charsmap: Vec<u8>,
    adds_prefix: bool,
    removes_spaces: bool,
}

pub(super) fn from_sentencepiece(
    context: &mut Context<'_>,
    model: &SentencePiece<'_>,
) -> Result<()> {
    let normalization = Normalization {
        charsmap: model.charsmap.to_owned(),
        adds_prefix: model.adds_prefix,
        removes_spaces: model.removes_spaces,
    };
    let mut tokens = read_pieces(context, model)?;
    let json = context.json.take();
    fill_unused(context, &mut tokens, json.as_ref())?;
    if is_t5(context) {
        keep_types(model, &mut tokens);
    }
    write(context, tokens, json.as_ref(), &normalization, &model.roles())
}

/// Returns `true` for T5 and its encoder, whose converter ignores the flags of tokens.
fn is_t5(context: &Context<'_>) -> bool {
    context.architecture.starts_with("t5")
}

/// Sets the types of the model's pieces. Tokens that are not pieces are found in texts.
///
/// llama.cpp's converter does the same: the gaps `<extra_id_0>` that T5 fills are part of texts.
fn keep_types(model: &SentencePiece<'_>, tokens: &mut Tokens) {
    for (id, piece) in model.pieces.iter().enumerate() {
        if tokens.texts.get(id).is_some_and(|text| text == piece.text) {
            (tokens.types[id], tokens.scores[id]) = (token_type(piece), piece.score);
        }
    }
    let beside = tokens
        .types
        .iter_mut()
        .skip(model.pieces.len())
        .filter(|token_type| **token_type == CONTROL);
    beside.for_each(|token_type| *token_type = USER_DEFINED);
}

pub(super) fn from_tokenizer_json(context: &mut Context<'_>, json: &TokenizerJson) -> Result<()> {
    const FILE: &str = "tokenizer.json";

    let Vocab::Scores(vocab) = &json.model.vocab else {
        return Err(
            Error::format("its vocabulary is not a list of tokens with scores").in_file(FILE)
        );
    };
    if json.model.byte_fallback {
        context.warn(
            "llama.cpp's Unigram has no bytes for characters that are not tokens: they \
                become the unknown token",
        );
    }

    let added = json.added_tokens.iter().map(|token| token.id);
    let mut tokens = context.padding(FILE, (0..vocab.len() as u64).chain(added))?;
    for (id, (text, score)) in (0..).zip(vocab) {
        // GGUF's scores are of single precision.
        #[expect(clippy::cast_possible_truncation)]
        let score = *score as f32;
        if !tokens.set(id, text.clone(), score, NORMAL) {
            return Err(Error::format(format!("its id {id} is beyond the rows of the embedding"))
                .in_file(FILE));
        }
    }

    set_added(context, json, &mut tokens);
    let mut normalization = Normalization::default();
    read_normalizer(context, &json.normalizer, &mut normalization)?;
    read_pre_tokenizer(context, &json.pre_tokenizer, &tokens, &mut normalization)?;
    let unknown: Vec<_> = json.model.unk_id.iter().map(|&id| ("unk", id)).collect();
    write(context, tokens, Some(json), &normalization, &unknown)
}

/// Tokens of the vocabulary keep their scores.
fn set_added(context: &mut Context<'_>, json: &TokenizerJson, tokens: &mut Tokens) {
    let mut dropped = 0;
    for token in &json.added_tokens {
        let score = usize::try_from(token.id).ok().and_then(|id| {
            let there = tokens.types.get(id)? == &NORMAL;
            tokens.scores.get(id).copied().filter(|_| there)
        });
        dropped += usize::from(!tokens.set_added(token, score.unwrap_or(ADDED_SCORE)));
        let is_gap = is_t5(context) && token.content.starts_with(GAP);
        let gap = usize::try_from(token.id)
            .ok()
            .and_then(|id| tokens.types.get_mut(id))
            .filter(|_| is_gap);
        gap.into_iter().for_each(|token_type| *token_type = USER_DEFINED);
    }

    context.check_added(&json.added_tokens, dropped);
    let unknown = json.model.unk_id.and_then(|id| tokens.types.get_mut(usize::try_from(id).ok()?));
    unknown.into_iter().for_each(|token_type| *token_type = UNKNOWN);
}

fn write(
    context: &mut Context<'_>,
    mut tokens: Tokens,
    json: Option<&TokenizerJson>,
    normalization: &Normalization,
    roles: &[(&'static str, u64)],
) -> Result<()> {
    context.write_tokens("t5", "default", &mut tokens, true);
    context.set("add_space_prefix", normalization.adds_prefix);
    if context.architecture.contains("bert") {
        let types = context
            .config
            .get("type_vocab_size")
            .and_then(Json::as_u64)
            .and_then(|n| u32::try_from(n).ok());
        context.set("token_type_count", types.unwrap_or(1));
    }

    context.set("remove_extra_whitespaces", normalization.removes_spaces);
    if !normalization.charsmap.is_empty() {
        context
            .set("precompiled_charsmap", Value::Array(Array::U8(normalization.charsmap.clone())));
    }

    let special = context.write_special(json, &tokens)?;
    for &(role, id) in roles {
        special.write_missing(context, role, Some(id), DEFAULTS);
    }

    // SentencePiece itself adds none; T5 adds its eos, as llama.cpp does.
    json.into_iter().for_each(|json| special.settle(context, json, false, true));
    if tokens.types.iter().all(|&token_type| token_type != UNKNOWN && token_type != CONTROL) {
        context.warn("no token is marked as the unknown one");
    }

    Ok(())
}

fn read_normalizer(
    context: &mut Context<'_>,
    step: &Json,
    normalization: &mut Normalization,
) -> Result<()> {
    match kind(step) {
        "" => Ok(()),
        "Sequence" => list(step, "normalizers")
            .iter()
            .try_for_each(|step| read_normalizer(context, step, normalization)),
        "Precompiled" => {
            normalization.charsmap = read_charsmap(step)?;
            Ok(())
        }
        "Strip" => Ok(()),
        "Replace" if pattern(step) == Some(AROUND) => Ok(()),
        "Replace" if pattern(step) == Some(REPEATED) => {
            normalization.removes_spaces = true;
            Ok(())
        }
        "Nmt" | "NFKC" => {
            context.warn(
                "llama.cpp has NFKC and SentencePiece's rules only as a charsmap, which is missing",
            );
            Ok(())
        }
        _ => super::bpe::check_normalizer(context, step),
    }
}

fn read_charsmap(step: &Json) -> Result<Vec<u8>> {
    let text = step.get("precompiled_charsmap").and_then(Json::as_str).unwrap_or_default();
    let charsmap = if text.is_empty() { Some(Vec::new()) } else { decode_base64(text) };
    let invalid = || {
        Error::format("its precompiled_charsmap is not a table in base64").in_file("tokenizer.json")
    };
    let charsmap = charsmap.ok_or_else(invalid)?;
    // Length of a trie, the trie, its texts; a length that leaves none makes llama.cpp refuse the
    // file.
    let Some((len, rest)) = charsmap.split_first_chunk() else {
        return if charsmap.is_empty() { Ok(charsmap) } else { Err(invalid()) };
    };
    if u32::from_le_bytes(*len) as usize >= rest.len() { Err(invalid()) } else { Ok(charsmap) }
}

fn pattern(step: &Json) -> Option<&str> {
    step.get("pattern")?.get("Regex")?.as_str()
}

fn read_pre_tokenizer(
    context: &mut Context<'_>,
    step: &Json,
    tokens: &Tokens,
    normalization: &mut Normalization,
) -> Result<()> {
    match kind(step) {
        "" => Ok(()),
        "Sequence" => list(step, "pretokenizers")
            .iter()
            .try_for_each(|step| read_pre_tokenizer(context, step, tokens, normalization)),
        "WhitespaceSplit" => {
            normalization.removes_spaces = true;
            Ok(())
        }
        "Metaspace" => {
            normalization.adds_prefix =
                read_metaspace(context, step, tokens, !normalization.removes_spaces);
            Ok(())
        }
        other => {
            let message = format!(
                "llama.cpp's Unigram does not split a text, this one does by {}",
                Escaped::short(other)
            );
            Err(Error::format(message).in_file("tokenizer.json"))
        }
    }
}
