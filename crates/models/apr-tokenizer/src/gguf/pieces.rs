//! What the kinds of tokenizers share whose tokens are pieces of SentencePiece: tokens, their
//! types, and spaces.

use std::collections::HashSet;

use apr_core::{Escaped, Result, counted};
use serde_json::Value as Json;

use super::bpe::{added_beside, decoder_tokens};
use super::context::Context;
use super::hugging_face::{AddedToken, TokenizerJson};
use super::tokens::{ADDED_SCORE, BYTE, CONTROL, NORMAL, SPACE, Tokens, UNKNOWN, UNUSED};
use crate::vocabulary::{Piece, SentencePiece};

/// Pieces, then the tokens that other files add.
pub(super) fn read_pieces(context: &mut Context<'_>, model: &SentencePiece<'_>) -> Result<Tokens> {
    let mut added = added_beside(context)?;
    if let Some(json) = &context.json {
        // Those of a slot that is filled are known as pieces, which tell their types.
        let fills = |token: &&AddedToken| {
            token.id >= model.pieces.len() as u64 || context.architecture == "phi3"
        };
        let known: HashSet<_> =
            added.iter().map(|token| (token.id, token.content.as_str())).collect();
        let unknown = |token: &&AddedToken| !known.contains(&(token.id, token.content.as_str()));
        let more: Vec<_> =
            json.added_tokens.iter().filter(fills).filter(unknown).cloned().collect();
        added.extend(more);
    }

    let ids = (0..model.pieces.len() as u64).chain(added.iter().map(|token| token.id));
    let mut tokens = context.padding("tokenizer.model", ids)?;
    let mut beyond = 0;
    for (id, piece) in (0..).zip(&model.pieces) {
        beyond +=
            usize::from(!tokens.set(id, piece.text.to_owned(), piece.score, token_type(piece)));
    }

    if beyond > 0 {
        context.warn(format!(
            "{} beyond the rows of the embedding: left out",
            counted(beyond as u64, "piece")
        ));
    }

    let dropped = added.iter().filter(|token| !tokens.set_added(token, ADDED_SCORE)).count();
    context.check_added(&added, dropped);
    Ok(tokens)
}

pub(super) fn token_type(piece: &Piece<'_>) -> i32 {
    match piece.piece_type {
        2 => UNKNOWN,
        3 => CONTROL,
        5 => UNUSED,
        6 => BYTE,
        _ => NORMAL,
    }
}

/// Spaces become letters, words are pieces, and the first gets a space: always, or not behind
/// special tokens.
pub(super) fn read_metaspace(
    context: &mut Context<'_>,
    step: &Json,
    tokens: &Tokens,
    keeps_spaces: bool,
) -> bool {
    let splits = step.get("split").and_then(Json::as_bool).unwrap_or(true);
    let across = |(text, token_type): &(&String, &i32)| {
        **token_type == NORMAL && text.chars().skip(1).any(|letter| letter == SPACE)
    };
    if let Some((text, _)) = tokens.texts.iter().zip(&tokens.types).find(across).filter(|_| splits)
    {
        let text = Escaped::short(text).to_string();
        context.warn(format!(
            "llama.cpp does not split text at spaces: it forms tokens across words, such as \
             '{text}', unlike the tokenizer"
        ));
    }
    let scheme = step.get("prepend_scheme").and_then(Json::as_str);
    let adds = step.get("add_prefix_space").and_then(Json::as_bool).unwrap_or(true);
    match scheme {
        Some("never") => false,
        None if !adds => false,
        scheme if !keeps_spaces && scheme != Some("first") => true,
        scheme => {
            let first =
                if scheme == Some("first") { ", and not behind special tokens" } else { "" };
            context.warn(format!(
                "the tokenizer puts a space before a text without one{first}; llama.cpp puts one \
                 before every text"
            ));
            true
        }
    }
}

/// Tokens that the settings list for slots that no file fills.
pub(super) fn fill_unused(
    context: &mut Context<'_>,
    tokens: &mut Tokens,
    json: Option<&TokenizerJson>,
) -> Result<()> {
    let mut added = decoder_tokens(context)?;
    added.extend(json.iter().flat_map(|json| &json.added_tokens).cloned());
    let unused = |tokens: &Tokens, id| {
        usize::try_from(id).ok().and_then(|id| tokens.types.get(id)) == Some(&UNUSED)
    };
    for token in &added {
        if unused(tokens, token.id) {
            tokens.set_added(token, ADDED_SCORE);
        }
    }
    Ok(())
}
