//! Merges that yield what llama.cpp merges by scores.
//!
//! Every pair of tokens whose joint text is a token merges, those of a higher score before others.
//! Of the pairs of one token the one with the longer left part comes first: llama.cpp merges from
//! the left, where runs of a letter grow.

use std::collections::HashSet;

use super::super::tokens::NORMAL;
use super::keys::TokenizerKeys;

/// Places in a token that are tried; the longest tokens in use are runs of spaces.
const MAX_CHARS: usize = 128;

/// Pairs by rank, and whether scores leave the order of some tokens open.
pub(super) fn from_scores<'a>(keys: &TokenizerKeys<'a>) -> (Vec<(&'a str, &'a str)>, bool) {
    let normal = || keys.filled().filter(|(.., token_type)| *token_type == NORMAL);
    let texts: HashSet<&str> = normal().map(|(_, text, _)| text).collect();
    let score =
        |id: usize| keys.scores.and_then(|scores| scores.get(id)).copied().unwrap_or_default();
    let mut formed: Vec<(f32, Vec<(&str, &str)>)> = normal()
        .map(|(id, text, _)| (score(id), pairs(text, &texts)))
        .filter(|(_, pairs)| !pairs.is_empty())
        .collect();

    // Stable: of equal scores the lower id first.
    formed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let open = formed
        .windows(2)
        .any(|tokens| matches!(tokens, [(a, _), (b, _)] if a.total_cmp(b).is_eq()));
    (formed.into_iter().flat_map(|(_, pairs)| pairs).collect(), open)
}

fn pairs<'a>(text: &'a str, texts: &HashSet<&str>) -> Vec<(&'a str, &'a str)> {
    let cuts = text.char_indices().skip(1).take(MAX_CHARS).map(|(cut, _)| text.split_at(cut));
    let mut pairs: Vec<_> =
        cuts.filter(|(left, right)| texts.contains(left) && texts.contains(right)).collect();
    pairs.reverse();
    pairs
}
