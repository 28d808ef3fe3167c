//! Word and character error rates of texts.

use apr_run::{GenerationOptions, RunResult, Runner, Transcriber, TranscriptionOptions};
use serde::Serialize;

use crate::samples::Sample;

/// How far texts are from others that are taken for right.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ErrorRates {
    /// Insertions, deletions and changes of words, divided by the right words.
    pub word: f64,
    /// The same of characters.
    pub character: f64,
}

/// Edits and lengths of the texts so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Edits {
    words: [usize; 2],
    characters: [usize; 2],
}

impl Edits {
    /// Adds a text.
    pub(crate) fn add(&mut self, right: &str, found: &str) {
        let words = [right, found].map(|text| text.split_whitespace().collect::<Vec<_>>());
        self.words[0] += edits(&words[0], &words[1]);
        self.words[1] += words[0].len();
        self.characters[0] += strsim::levenshtein(right, found);
        self.characters[1] += right.chars().count();
    }

    /// Of all texts; edits where the right ones are empty.
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

/// Levenshtein distance of two lists.
pub(crate) fn edits<T: PartialEq>(right: &[T], found: &[T]) -> usize {
    strsim::generic_levenshtein(&List(right), &List(found))
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
    fn rates_are_those_of_all_texts_together() {
        let mut sums = Edits::default();
        // jiwer.wer(["the cat sat down", "yes"], ["the cat sit", "yes"]) == 0.4, jiwer.cer 6 / 19
        sums.add("the cat sat down", "the cat sit");
        sums.add("yes", "yes");
        let found = sums.rates();
        assert!((found.word - 0.4).abs() < 1e-12, "{found:?}");
        assert!((found.character - 6.0 / 19.0).abs() < 1e-12, "{found:?}");
    }
}
