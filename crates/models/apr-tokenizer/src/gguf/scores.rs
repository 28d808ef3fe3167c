//! Scores that make llama.cpp's `llama` tokenizer merge what a BPE with ranked merges merges.
//!
//! Both join two neighbours at a time. BPE takes the pair of the lowest rank of those that its
//! merges list; llama.cpp takes the pair whose joint text is the token of the highest score,
//! whatever the pair. With a token's score the negative of the first rank that forms it, the two
//! agree where
//!
//! 1. all pairs that form a token are merges, so that nothing merges in llama.cpp that BPE leaves
//!    apart, and
//! 2. the ranks that form one token are not mixed with those of another, so that one order of
//!    tokens says it all.
//!
//! Both hold for the merges that the libraries derive from a SentencePiece model, whose scores come
//! out as they were, up to gaps. Merges that were trained as such list one pair a token, and the
//! first does not hold in general: how many pairs are missing is counted.

use std::collections::{HashMap, HashSet};

use super::hugging_face::Merge;

/// Characters of a token whose pairs are looked at; the longest in use are runs of spaces.
const MAX_CHARS: usize = 128;

/// Scores by token, and the properties of merges that they cannot represent.
#[derive(Debug, Default)]
pub(super) struct Scores {
    /// Scores of merged tokens by text: 0 for the first, then decreasing by one.
    pub(super) by_text: HashMap<String, f32>,
    /// Pairs that llama.cpp joins and the merges don't, with one of them.
    pub(super) unlisted: (usize, Option<Merge>),
    /// Tokens whose merges are mixed with another's, with one of them.
    pub(super) mixed: (usize, Option<String>),
}

/// Computes scores from merges. `tokens` are the possible results of merges.
pub(super) fn from_merges<'a>(merges: &[Merge], tokens: impl Iterator<Item = &'a str>) -> Scores {
    let tokens: HashSet<&str> = tokens.collect();
    let mut scores = Scores { unlisted: unlisted(merges, &tokens), ..Scores::default() };
    let mut last: Option<String> = None;
    for Merge(left, right) in merges {
        let formed = format!("{left}{right}");
        if last.as_ref() == Some(&formed) || !tokens.contains(formed.as_str()) {
            continue;
        }

        match scores.by_text.get(&formed) {
            Some(_) => {
                scores.mixed.0 += 1;
                scores.mixed.1.get_or_insert_with(|| formed.clone());
            }
            None => {
                // Fewer than 2^24 tokens: exact.
                #[expect(clippy::cast_precision_loss)]
                let score = -(scores.by_text.len() as f32);

                // The sum makes the first score 0, and not negative zero.
                scores.by_text.insert(formed.clone(), 0.0 + score);
            }
        }

        last = Some(formed);
    }

    scores
}

fn unlisted(merges: &[Merge], tokens: &HashSet<&str>) -> (usize, Option<Merge>) {
    let listed: HashSet<(&str, &str)> =
        merges.iter().map(|Merge(left, right)| (left.as_str(), right.as_str())).collect();
    let mut missing = (0, None);
    for &token in tokens {
        let cuts = token.char_indices().skip(1).take(MAX_CHARS);
        let pairs = cuts.map(|(cut, _)| token.split_at(cut));
        for pair in pairs.filter(|(left, right)| tokens.contains(left) && tokens.contains(right)) {
            if !listed.contains(&pair) {
                missing.0 += 1;

                // The set has no order: the largest pair is the same in every run.
                missing.1 = missing.1.max(Some((pair.0, pair.1)));
            }
        }
    }

    (
        missing.0,
        missing.1.map(|(left, right): (&str, &str)| Merge(left.to_owned(), right.to_owned())),
    )
}
