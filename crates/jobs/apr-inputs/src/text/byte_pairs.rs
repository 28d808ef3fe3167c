//! BPE in tables that are quick to fill: the library's own takes the most time of a start, as it
//! keeps each text of a large vocabulary three times.
//!
//! The texts lie one after another, ids and merges in hash tables over them. Tokens are those of
//! the library's `BPE`, with its order of merges.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};

use hashbrown::{DefaultHashBuilder, HashTable};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Token};

/// Result type of the library.
type Result<T> = tokenizers::Result<T>;

/// Ids beyond the number of tokens, up to which a list by id is kept.
const MOST_GAPS: usize = 1 << 16;

/// Choices of a BPE model, called as in `tokenizer.json`.
#[derive(Debug, Clone, Default)]
pub(super) struct Choices {
    pub(super) unk_token: Option<String>,
    pub(super) fuse_unk: bool,
    pub(super) byte_fallback: bool,
    pub(super) ignore_merges: bool,
}

/// A vocabulary and its merges.
#[derive(Clone)]
pub(super) struct BytePairs {
    vocabulary: Vocabulary,
    /// Rank and id of the token into which a pair of ids is merged.
    merges: hashbrown::HashMap<(u32, u32), (u32, u32)>,
    choices: Choices,
}

impl BytePairs {
    /// Creates the tables, and returns the number of merges that they omit because they are not of
    /// tokens. Returns `None` for vocabularies that the tables can't hold: ids that are far apart
    /// or occur twice, and texts that are empty or occur twice.
    pub(super) fn new<'t>(
        tokens: impl ExactSizeIterator<Item = (&'t str, u32)>,
        merges: impl ExactSizeIterator<Item = (&'t str, &'t str)>,
        choices: Choices,
    ) -> Option<(Self, usize)> {
        let vocabulary = Vocabulary::new(tokens)?;
        let mut joint = String::new();
        let mut table = hashbrown::HashMap::with_capacity(merges.len());
        let (mut last, mut left_out) = (0, 0);
        for (rank, (left, right)) in merges.enumerate() {
            joint.clear();
            joint.push_str(left);
            joint.push_str(right);
            // Tokens are mostly in the order of the merges that they come from.
            let new = vocabulary.id_behind(last, &joint);
            match (vocabulary.id(left), vocabulary.id(right), new) {
                (Some(left), Some(right), Some(new)) => {
                    last = new;
                    // Of a pair that is listed twice the last rank counts.
                    table.insert((left, right), (u32::try_from(rank).ok()?, new));
                }
                _ => left_out += 1,
            }
        }
        Some((Self { vocabulary, merges: table, choices }, left_out))
    }

    /// The word's letters as tokens, with the bytes of each.
    fn letters(&self, word: &str) -> Result<Vec<Part>> {
        let mut parts: Vec<Part> = Vec::with_capacity(word.len());
        let mut unknown: Option<Part> = None;
        for (at, letter) in word.char_indices() {
            let text = &word[at..at + letter.len_utf8()];
            if let Some(id) = self.vocabulary.id(text) {
                parts.extend(unknown.take());
                parts.push(Part::new(id, text.len()));
                continue;
            }
            if self.choices.byte_fallback
                && let Some(ids) = self.bytes(text)
            {
                parts.extend(ids.into_iter().map(|id| Part::new(id, 1)));
                continue;
            }
            let Some(name) = &self.choices.unk_token else { continue };
            if let Some(unknown) = unknown.as_mut().filter(|_| self.choices.fuse_unk) {
                unknown.bytes += text.len();
                continue;
            }
            parts.extend(unknown.take());
            let id = self
                .vocabulary
                .id(name)
                .ok_or_else(|| format!("Unk token `{name}` not found in the vocabulary"))?;
            unknown = Some(Part::new(id, text.len()));
        }
        parts.extend(unknown);
        Ok(parts)
    }

    fn bytes(&self, text: &str) -> Option<Vec<u32>> {
        text.bytes().map(|byte| self.vocabulary.id(&format!("<{byte:#04X}>"))).collect()
    }

    /// Merges neighbours, the lowest rank first, of equal ranks the leftmost.
    fn merge(&self, parts: &mut Vec<Part>) {
        let last = parts.len();
        for (at, part) in parts.iter_mut().enumerate() {
            part.next = at + 1;
            part.previous = at.checked_sub(1);
        }
        let rank_of = |parts: &[Part], at: usize, next: usize| {
            let &(rank, id) = self.merges.get(&(parts[at].id, parts[next].id))?;
            Some(Reverse((rank, at, id)))
        };
        let mut queue: BinaryHeap<_> =
            (1..last).filter_map(|next| rank_of(parts, next - 1, next)).collect();
        while let Some(Reverse((_, at, id))) = queue.pop() {
            let next = parts[at].next;
            // One of the two was merged with another meanwhile.
            let stands = parts[at].bytes > 0
                && next < last
                && self.merges.get(&(parts[at].id, parts[next].id)).is_some_and(|new| new.1 == id);
            if !stands {
                continue;
            }
            let right = std::mem::replace(&mut parts[next], Part::new(id, 0));
            parts[at].id = id;
            parts[at].bytes += right.bytes;
            parts[at].next = right.next;
            if right.next < last {
                parts[right.next].previous = Some(at);
                queue.extend(rank_of(parts, at, right.next));
            }
            if let Some(previous) = parts[at].previous {
                queue.extend(rank_of(parts, previous, at));
            }
        }
        parts.retain(|part| part.bytes > 0);
    }
}

impl fmt::Debug for BytePairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BytePairs")
            .field("tokens", &self.vocabulary.ids.len())
            .field("merges", &self.merges.len())
            .field("choices", &self.choices)
            .finish()
    }
}

/// A part of a word on its way to a token.
#[derive(Debug, Clone, Copy)]
struct Part {
    id: u32,
    /// Bytes of the word; 0 after a merge into the previous part.
    bytes: usize,
    /// Positions of the neighbours; past the end if there is no neighbour.
    next: usize,
    previous: Option<usize>,
}

impl Part {
    fn new(id: u32, bytes: usize) -> Self {
        Self { id, bytes, next: 0, previous: None }
    }
}

/// Texts by id and ids by text.
#[derive(Clone)]
struct Vocabulary {
    texts: String,
    /// First byte of the text, and the byte after it, by id. They are equal for an id without a
    /// token.
    spans: Vec<(u32, u32)>,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Vocabulary {
    fn new<'t>(tokens: impl ExactSizeIterator<Item = (&'t str, u32)>) -> Option<Self> {
        let count = tokens.len();
        let mut vocabulary = Self {
            texts: String::new(),
            spans: Vec::with_capacity(count),
            ids: HashTable::with_capacity(count),
            hasher: DefaultHashBuilder::default(),
        };
        for (text, id) in tokens {
            vocabulary.add(text, id, count)?;
        }
        Some(vocabulary)
    }

    fn add(&mut self, text: &str, id: u32, count: usize) -> Option<()> {
        let place = usize::try_from(id).ok().filter(|place| *place < count + MOST_GAPS)?;
        if place >= self.spans.len() {
            self.spans.resize(place + 1, (0, 0));
        }
        let start = u32::try_from(self.texts.len()).ok()?;
        let end = u32::try_from(self.texts.len() + text.len()).ok()?;
        if self.text(id).is_some() || text.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one(text);
        if self.find(text, hash).is_some() {
            return None;
        }
        self.texts.push_str(text);
        self.spans[place] = (start, end);
        let Self { texts, spans, ids, hasher } = self;
        ids.insert_unique(hash, id, |id| hasher.hash_one(text_of(texts, spans, *id)));
        Some(())
    }

    fn find(&self, text: &str, hash: u64) -> Option<u32> {
        self.ids.find(hash, |id| text_of(&self.texts, &self.spans, *id) == text).copied()
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.find(text, self.hasher.hash_one(text))
    }

    /// The id of a text that is likely to be the next one.
    fn id_behind(&self, last: u32, text: &str) -> Option<u32> {
        let next = last.saturating_add(1);
        if self.text(next) == Some(text) { Some(next) } else { self.id(text) }
    }

    fn text(&self, id: u32) -> Option<&str> {
        Some(text_of(&self.texts, &self.spans, id)).filter(|text| !text.is_empty())
    }
}

/// Empty for an id of no token.
fn text_of<'t>(texts: &'t str, spans: &[(u32, u32)], id: u32) -> &'t str {
    let (start, end) = spans.get(id as usize).copied().unwrap_or_default();
    &texts[start as usize..end as usize]
}

impl Model for BytePairs {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> Result<Vec<Token>> {
        if self.choices.ignore_merges
            && let Some(id) = self.vocabulary.id(word)
        {
            return Ok(vec![Token::new(id, word.to_owned(), (0, word.len()))]);
        }
        let mut parts = self.letters(word)?;
        self.merge(&mut parts);
        let mut start = 0;
        let token = |part: Part| {
            let end = start + part.bytes;
            let text = self.vocabulary.text(part.id).unwrap_or_default().to_owned();
            Token::new(part.id, text, (std::mem::replace(&mut start, end), end))
        };
        Ok(parts.into_iter().map(token).collect())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.vocabulary.id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.vocabulary.text(id).map(str::to_owned)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        let entry = |id: &u32| Some((self.id_to_token(*id)?, *id));
        self.vocabulary.ids.iter().filter_map(entry).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.vocabulary.ids.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> Result<Vec<PathBuf>> {
        Err("these tables are not written".into())
    }

    fn get_trainer(&self) -> TrainerWrapper {
        BpeTrainer::default().into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::models::bpe::{BPE, Vocab};

    use super::*;

    /// Letters, pairs of which become tokens: by place among the tokens before, for each merge.
    fn tokens_of(letters: usize, pairs: &[(usize, usize)]) -> (Vec<String>, Vec<(String, String)>) {
        let mut tokens: Vec<String> =
            ["a", "b", "c", "é", "\u{120}"][..letters].iter().map(ToString::to_string).collect();
        let mut merges = Vec::new();
        for (left, right) in pairs {
            let (left, right) = (&tokens[left % tokens.len()], &tokens[right % tokens.len()]);
            let (pair, joint) = ((left.clone(), right.clone()), format!("{left}{right}"));
            if !tokens.contains(&joint) {
                tokens.push(joint);
            }
            merges.push(pair);
        }
        (tokens, merges)
    }

    proptest! {
        #[test]
        fn tokens_match_the_library(
            letters in 1_usize..=5,
            pairs in prop::collection::vec((0_usize..40, 0_usize..40), 0..24),
            word in "[abcdéĠ]{0,24}",
            unknown in prop::option::of(prop::sample::select(vec!["a", "missing"])),
            (fuse_unk, byte_fallback, ignore_merges) in any::<(bool, bool, bool)>(),
            bytes in any::<bool>(),
        ) {
            let (mut tokens, merges) = tokens_of(letters, &pairs);
            if bytes {
                tokens.extend(["<0xC4>", "<0xA0>", "<0x64>"].map(str::to_owned));
            }
            let ids = || tokens.iter().map(String::as_str).zip(10_u32..);
            let vocab: Vocab = ids().map(|(token, id)| (token.to_owned(), id)).collect();
            let mut library = BPE::builder()
                .vocab_and_merges(vocab, merges.clone())
                .fuse_unk(fuse_unk)
                .byte_fallback(byte_fallback)
                .ignore_merges(ignore_merges);
            if let Some(unknown) = unknown {
                library = library.unk_token(unknown.to_owned());
            }
            let library = library.build().unwrap();
            let choices = Choices {
                unk_token: unknown.map(str::to_owned), fuse_unk, byte_fallback, ignore_merges,
            };
            let pairs = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
            let tokens: Vec<_> = ids().collect();
            let (own, left_out) = BytePairs::new(tokens.into_iter(), pairs, choices).unwrap();
            prop_assert_eq!(left_out, 0);

            let (theirs, ours) = (library.tokenize(&word), own.tokenize(&word));
            match (theirs, ours) {
                (Ok(theirs), Ok(ours)) => prop_assert_eq!(theirs, ours),
                (theirs, ours) => prop_assert_eq!(
                    theirs.unwrap_err().to_string(), ours.unwrap_err().to_string()
                ),
            }
            prop_assert_eq!(library.get_vocab(), Model::get_vocab(&own));
            prop_assert_eq!(library.get_vocab_size(), own.get_vocab_size());
            for id in 0..60 {
                prop_assert_eq!(library.id_to_token(id), own.id_to_token(id));
            }
        }
    }

    #[test]
    fn vocabularies_that_the_tables_do_not_hold_are_left_to_the_library() {
        let tables = |tokens: &[(&'static str, u32)], merges: &[(&'static str, &'static str)]| {
            let (tokens, merges) = (tokens.to_vec(), merges.to_vec());
            BytePairs::new(tokens.into_iter(), merges.into_iter(), Choices::default())
        };
        assert!(tables(&[("a", 0), ("b", 70_000)], &[]).is_none(), "ids far apart");
        assert!(tables(&[("a", 0), ("b", 0)], &[]).is_none(), "an id that occurs twice");
        assert!(tables(&[("a", 0), ("a", 1)], &[]).is_none(), "a text that occurs twice");
        assert!(tables(&[("", 0)], &[]).is_none(), "an empty text");
        let (own, left_out) =
            tables(&[("a", 3), ("b", 1), ("ab", 9)], &[("b", "a"), ("a", "b"), ("ab", "c")])
                .unwrap();
        assert_eq!(left_out, 2, "one makes no token, one is of no token");
        assert_eq!(own.tokenize("ab").unwrap()[0].id, 9);
    }
}
