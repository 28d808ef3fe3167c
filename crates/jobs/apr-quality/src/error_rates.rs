//! Word and character error rates of texts.

use apr_run::{GenerationOptions, RunResult, Runner, Transcriber, TranscriptionOptions};
use serde::Serialize;

use crate::samples::Sample;

/// Error rates of texts, measured against reference texts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ErrorRates {
    /// Insertions, deletions and changes of words, divided by the right words.
    pub word: f64,
    /// Insertions, deletions and changes of characters, divided by the right characters.
    pub character: f64,
}

/// Edits and lengths of the texts so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Edits {
    words: [usize; 2],
    characters: [usize; 2],
}

impl Edits {
    /// Adds the edits from a found text to the right text.
    pub(crate) fn add(&mut self, right: &str, found: &str) {
        let words = [right, found].map(|text| text.split_whitespace().collect::<Vec<_>>());
        self.words[0] += edits(&words[0], &words[1]);
        self.words[1] += words[0].len();
        let characters = [right, found].map(|text| text.chars().collect::<Vec<_>>());
        self.characters[0] += edits(&characters[0], &characters[1]);
        self.characters[1] += characters[0].len();
    }

    /// Returns the error rates of all texts together, or the number of edits if the references are
    /// empty.
    pub(crate) fn rates(self) -> ErrorRates {
        let rate = |[edits, len]: [usize; 2]| ratio(edits, len.max(1));
        ErrorRates { word: rate(self.words), character: rate(self.characters) }
    }
}

/// Transcribes the sounds of samples with two models, and takes the first one's texts for right;
/// `None` where there is no sound, or a model transcribes none.
///
/// # Errors
/// Those of [`Transcriber::transcribe`].
pub fn transcription_errors(
    a: &Runner<'_>,
    b: &Runner<'_>,
    samples: &[Sample],
) -> RunResult<Option<ErrorRates>> {
    let has_sound = samples.iter().any(|sample| sample.audio.is_some());
    let transcribes = |runner: &&Runner<'_>| runner.has_decoder() && Transcriber::fits(runner);
    if !has_sound || ![a, b].iter().all(transcribes) {
        return Ok(None);
    }
    let (a, b) = (transcriber(a)?, transcriber(b)?);
    let mut sums = Edits::default();
    for sample in samples {
        let Some(audio) = &sample.audio else { continue };
        let [right, found] = [&a, &b].map(|model| model.transcribe(&sample.name, audio.clone()));
        sums.add(right?.text.trim(), found?.text.trim());
    }
    Ok(Some(sums.rates()))
}

/// Takes the likeliest tokens.
fn transcriber<'t>(runner: &Runner<'t>) -> RunResult<Transcriber<'t>> {
    let sampling = GenerationOptions { temperature: Some(0.0), ..Default::default() };
    Transcriber::of(runner, TranscriptionOptions { sampling, ..Default::default() })
}

/// Items of a list that are compared with all of another one's.
const PIECE: usize = 8192;

/// Returns the Levenshtein distance of two lists.
///
/// If the lists are long, the part between their common beginning and end is cut into pieces. Time
/// then grows linearly with the length, and memory does not grow. In this case the distance is an
/// upper bound, because an edit across two pieces counts twice.
pub(crate) fn edits<T: PartialEq>(right: &[T], found: &[T]) -> usize {
    edits_by_pieces(right, found, PIECE)
}

fn edits_by_pieces<T: PartialEq>(right: &[T], found: &[T], longest: usize) -> usize {
    let [right, found] = without_common_ends(right, found);
    let pieces = right.len().max(found.len()).div_ceil(longest);
    let piece = |list: &[T], at: usize| {
        let (each, rest) = (list.len() / pieces, list.len() % pieces);
        let cut = |at: usize| each * at + rest * at / pieces;
        cut(at)..cut(at + 1)
    };
    let distance = |at: usize| {
        let [right, found] = [&right[piece(right, at)], &found[piece(found, at)]];
        strsim::generic_levenshtein(&List(right), &List(found))
    };
    (0..pieces).map(distance).sum()
}

/// Returns two lists without their common beginning and end.
fn without_common_ends<'l, T: PartialEq>(left: &'l [T], right: &'l [T]) -> [&'l [T]; 2] {
    let begin = left.iter().zip(right).take_while(|(one, other)| one == other).count();
    let (left, right) = (&left[begin..], &right[begin..]);
    let pairs = left.iter().rev().zip(right.iter().rev());
    let end = pairs.take_while(|(one, other)| one == other).count();
    [&left[..left.len() - end], &right[..right.len() - end]]
}

pub(crate) fn ratio(part: usize, whole: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
    let ratio = part as f64 / whole as f64;
    ratio
}

/// A slice by whose reference `strsim` iterates.
struct List<'l, T>(&'l [T]);

impl<'l, T> IntoIterator for &'l List<'_, T> {
    type Item = &'l T;
    type IntoIter = std::slice::Iter<'l, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_all_texts_together() {
        let mut sums = Edits::default();
        // jiwer.wer(["the cat sat down", "yes"], ["the cat sit", "yes"]) == 0.4, jiwer.cer 6 / 19
        sums.add("the cat sat down", "the cat sit");
        sums.add("yes", "yes");
        let found = sums.rates();
        assert!((found.word - 0.4).abs() < 1e-12, "{found:?}");
        assert!((found.character - 6.0 / 19.0).abs() < 1e-12, "{found:?}");
    }
    #[test]
    fn long_lists_are_compared_piece_by_piece() {
        // Levenshtein distance of all 36 items: 2.
        let right: Vec<u32> = (0..36).collect();
        let found: Vec<u32> = [99].into_iter().chain(1..35).chain([98]).collect();
        assert_eq!(edits_by_pieces(&right, &found, 100), 2);
        assert_eq!(edits_by_pieces(&right, &found, 8), 2);
        let found: Vec<u32> = (0..18).chain(19..35).chain([98]).collect();
        assert_eq!(edits_by_pieces(&right, &found, 100), 2);
        assert!((2..=6).contains(&edits_by_pieces(&right, &found, 8)));
        assert_eq!(edits_by_pieces(&right, &[], 8), 36);
        assert_eq!(edits_by_pieces::<u32>(&[], &[], 8), 0);
    }

    #[test]
    fn an_edit_between_a_million_items_is_fast() {
        let right = vec![0_u8; 1_000_000];
        let mut found = right.clone();
        found[500_000] = 1;
        assert_eq!(edits(&right, &found), 1);
    }
}
