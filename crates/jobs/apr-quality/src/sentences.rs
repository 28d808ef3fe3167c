//! Whether a model learnt what sentences mean: sentences beside others that share their words or
//! their meaning.

use std::collections::BTreeMap;

use apr_run::{Prepared, RunResult};

use crate::distance::l2_and_cosine;
use crate::samples::Sample;
use crate::subject::Subject;

/// Factor of the cosines before the softmax over sentences, as sentence-transformers has it
/// (`MultipleNegativesRankingLoss`).
const SCALE: f64 = 20.0;

/// Sentences of which the second means what the first does, and the third has its words and its
/// form.
const SENTENCES: [[&str; 3]; 8] = [
    [
        "How do I reset my password?",
        "I can't log in any more and need new credentials.",
        "How do I repair my bicycle?",
    ],
    [
        "The stock market fell sharply today.",
        "Shares lost much of their value this afternoon.",
        "The apple fell from the tree today.",
    ],
    [
        "He is playing the guitar on the stage.",
        "A musician performs in front of an audience.",
        "He is playing football on the field.",
    ],
    [
        "The doctor told her to take the medicine twice a day.",
        "She was prescribed pills by her physician.",
        "The teacher told her to take the bus twice a week.",
    ],
    [
        "It is raining heavily outside.",
        "You will need an umbrella in this downpour.",
        "It is standing quietly outside.",
    ],
    [
        "The kitten is asleep on the sofa.",
        "A young cat naps on the couch.",
        "The letter is open on the desk.",
    ],
    [
        "The company hired three new engineers.",
        "The firm recruited additional technical staff.",
        "The company sold three old buildings.",
    ],
    [
        "This soup is far too salty.",
        "The broth has been seasoned too much.",
        "This road is far too narrow.",
    ],
];

/// Number of sentences whose meaning a model recognizes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MeaningScore {
    /// Number of sentences that are closer to their paraphrase.
    pub right: usize,
    /// Number of all sentences.
    pub of: usize,
    /// Mean negative log-likelihood of the paraphrase among all other sentences, in nats.
    pub loss: f64,
}

/// Counts the built-in sentences that are closer to a paraphrase than to a sentence of similar
/// words.
///
/// Closeness is the cosine of the embeddings. Returns `None` for a model without text embeddings.
///
/// # Errors
/// Returns the errors of [`Prepared::run`].
pub fn meanings(model: &Subject<'_>) -> RunResult<Option<MeaningScore>> {
    let Some(sentences) = Sentences::of(model)? else { return Ok(None) };
    match model.parts() {
        [part] => sentences.score(model, part),
        _ => Ok(None),
    }
}

/// Tokens of the built-in sentences, in groups of three.
pub(crate) struct Sentences(Vec<[Vec<i64>; 3]>);

impl Sentences {
    /// Returns the tokens for a model, or `None` for a model without text embeddings.
    pub(crate) fn of(model: &Subject<'_>) -> RunResult<Option<Self>> {
        let reading = model.reading();
        if reading.pooling.is_none() || model.tokenizer().is_none() {
            return Ok(None);
        }
        let ids = |text: &str| {
            let (name, text) = (text.to_owned(), Some(text.to_owned()));
            reading.ids(&Sample { name, text, ..Sample::default() }, false)
        };
        let of_group =
            |[one, meaning, words]: &[&str; 3]| Ok([ids(one)?, ids(meaning)?, ids(words)?]);
        Ok(Some(Self(SENTENCES.iter().map(of_group).collect::<RunResult<_>>()?)))
    }

    /// Number of tokens that one run over all sentences reads.
    pub(crate) fn tokens(&self) -> usize {
        self.0.iter().flatten().map(Vec::len).sum()
    }

    /// Scores a part of the model, which can have other weights than the model. Returns `None` for
    /// a part without an embedding.
    pub(crate) fn score(
        &self,
        model: &Subject<'_>,
        part: &Prepared<'_>,
    ) -> RunResult<Option<MeaningScore>> {
        let mut lengths: BTreeMap<usize, Vec<(usize, &[i64])>> = BTreeMap::new();
        for (at, ids) in self.0.iter().flatten().enumerate() {
            lengths.entry(ids.len()).or_default().push((at, ids));
        }
        let mut vectors = vec![Vec::new(); 3 * self.0.len()];
        for sentences in lengths.values() {
            let rows: Vec<&[i64]> = sentences.iter().map(|(_, ids)| *ids).collect();
            let Some(found) = model.vectors(part, &rows)? else { return Ok(None) };
            sentences.iter().zip(found).for_each(|((at, _), vector)| vectors[*at] = vector);
        }
        let cosine = |one: usize, other: usize| l2_and_cosine(&vectors[one], &vectors[other]).1;
        let groups = (0..self.0.len()).map(|group| 3 * group);
        let right = groups.clone().filter(|at| cosine(*at, at + 1) > cosine(*at, at + 2)).count();
        let losses = groups.map(|at| {
            let others = (0..vectors.len()).filter(|other| *other != at);
            let sum: f64 = others.map(|other| (SCALE * cosine(at, other)).exp()).sum();
            sum.ln() - SCALE * cosine(at, at + 1)
        });
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let loss = losses.sum::<f64>() / self.0.len() as f64;
        Ok(Some(MeaningScore { right, of: self.0.len(), loss }))
    }
}
