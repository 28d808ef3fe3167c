//! Tells six languages apart, with the model inside the program.
//!
//! [`LanguageModel`] is an ordinary serde type. `train.py` learns its weights, the program `pack`
//! saves them as an APRN file, [`include_bytes!`] embeds that file, and [`embedded`] loads it with
//! one call.
//!
//! ```
//! let model = single_binary::embedded()?;
//! assert_eq!(model.predict("Where did you put the keys?").language, "en");
//! # Ok::<(), apr_format::aprn::Andon>(())
//! ```

use apr_format::aprn::{Andon, ModelType, load_from_bytes};
use serde::{Deserialize, Serialize};

mod wasm;

/// The file that `pack` wrote.
const MODEL: &[u8] = include_bytes!("../languages.apr");

/// Softmax regression over hashed character n-grams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LanguageModel {
    /// ISO 639-1 codes, one for each class.
    pub languages: Vec<String>,
    /// A row for each class, a column for each bucket that n-grams are hashed into.
    pub weights: Vec<f32>,
    /// One for each class.
    pub bias: Vec<f32>,
}

/// What a text was taken for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction<'a> {
    /// ISO 639-1 code.
    pub language: &'a str,
    /// Probability that the model gives it, 0 to 1.
    pub confidence: f32,
}

/// The model inside this program.
///
/// # Errors
/// When the embedded file is damaged, or not of this version of the program.
pub fn embedded() -> Result<LanguageModel, Andon> {
    load_from_bytes(MODEL, ModelType::LogisticRegression)
}

impl LanguageModel {
    /// The most probable language; of an empty model none.
    #[must_use]
    pub fn predict(&self, text: &str) -> Prediction<'_> {
        let buckets = self.weights.len() / self.languages.len().max(1);
        let features = features(text, buckets);
        let rows = self.weights.chunks_exact(buckets.max(1)).zip(&self.bias);
        let logits: Vec<f32> = rows
            .map(|(row, bias)| bias + row.iter().zip(&features).map(|(w, x)| w * x).sum::<f32>())
            .collect();
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        let best = logits.iter().zip(&self.languages).find(|(logit, _)| **logit == largest);
        Prediction { language: best.map_or("", |(_, language)| language), confidence: 1.0 / sum }
    }
}

/// Square roots of the counts of all 1-, 2- and 3-grams, hashed into buckets, scaled to length 1;
/// as in `train.py`.
fn features(text: &str, buckets: usize) -> Vec<f32> {
    let mut letters = vec![' '];
    for c in text.chars().flat_map(char::to_lowercase) {
        match c.is_alphabetic() {
            true => letters.push(c),
            false if letters.last() != Some(&' ') => letters.push(' '),
            false => {}
        }
    }

    if letters.last() != Some(&' ') {
        letters.push(' ');
    }

    let mut counts = vec![0.0_f32; buckets];
    for n in 1..=3 {
        for gram in letters.windows(n) {
            if let Some(count) =
                (fnv1a(gram) as usize).checked_rem(buckets).and_then(|at| counts.get_mut(at))
            {
                *count += 1.0;
            }
        }
    }

    counts.iter_mut().for_each(|count| *count = count.sqrt());
    let length = counts.iter().map(|count| count * count).sum::<f32>().sqrt();
    if length > 0.0 {
        counts.iter_mut().for_each(|count| *count /= length);
    }

    counts
}

/// FNV-1a over the UTF-8 of some characters.
fn fnv1a(gram: &[char]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    for &c in gram {
        for &byte in c.encode_utf8(&mut [0; 4]).as_bytes() {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
    }
    hash
}
