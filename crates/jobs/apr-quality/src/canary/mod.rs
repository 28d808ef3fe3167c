//! Canaries: inputs with the answers that a model is expected to give (seed 001 §4.8.4).
//!
//! A canary file is JSON:
//!
//! ```json
//! {
//!   "format": "apr-canary",
//!   "version": 1,
//!   "model": { "file": "tiny-llama", "model_type": "llama", "vocab_size": 64 },
//!   "cases": [{
//!     "name": "12+34=",
//!     "input": { "kind": "text", "prompt": "12+34=" },
//!     "input_tokens": [2, 3, 5, 4, 6, 8],
//!     "max_tokens": 32,
//!     "expected": {
//!       "kind": "text", "text": "46", "tokens": [7, 9], "first": [{ "id": 7, "logprob": -0.01 }]
//!     },
//!     "tolerance": { "character_error_rate": 0.0, "probability": 0.1 }
//!   }]
//! }
//! ```
//!
//! [`record`] makes the cases of one with a model, [`check`] gives them to another. Audio, images
//! and arrays are in the file, or named with their SHA-256 and handed in by the caller.

mod answer;
mod check;
mod input;
mod prompts;

use apr_registry::{Error, Result};
use serde::{Deserialize, Serialize};

pub use answer::record;
pub use check::{CanaryReport, CaseReport, check};
pub use input::{AUDIO_EXTENSIONS, CanaryInput, IMAGE_EXTENSIONS, Load};
pub use prompts::{ChosenPrompts, choose_prompts};

/// Value of the field `format`.
const FORMAT: &str = "apr-canary";

/// The version that is written and read.
const VERSION: u32 = 1;

/// Bytes or tokens of the longest answer, and tokens of the longest input.
const LONGEST: usize = 100_000;

/// Canary: a file of recorded answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Canary {
    format: String,
    version: u32,
    /// Model that the answers were recorded with.
    pub model: CanaryModel,
    /// Inputs and answers.
    pub cases: Vec<CanaryCase>,
}

/// Model of a canary, which distinguishes it from other models.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CanaryModel {
    /// File or folder.
    pub file: String,
    /// Model type from the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_type: Option<String>,
    /// Vocabulary size from the configuration or the metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<u64>,
}

/// An input, and the answer to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CanaryCase {
    /// Name in reports.
    pub name: String,
    /// Input of the model.
    pub input: CanaryInput,
    /// Tokens of an input that is text, by the tokenizer of the model that answered; not compared
    /// if empty. A vocabulary with exchanged tokens can give the same answer to another question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_tokens: Vec<i64>,
    /// Maximum number of tokens to generate; by default the model's own maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Answer when the case was recorded, if it differs from the expected answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// Expected answer.
    pub expected: Expected,
    /// Maximum deviation from the expected answer.
    #[serde(default)]
    pub tolerance: Tolerance,
}

/// Expected answer to an input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Expected {
    /// Generated text, greedily; also transcriptions, and answers to questions.
    Text {
        /// The text; ids of tokens for an input of tokens.
        text: String,
        /// Tokens of the answer, if the model generates any; not compared if empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<i64>,
        /// Likeliest tokens at the first position; not compared if empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        first: Vec<TokenProbability>,
    },
    /// Labels, the likeliest first; the first one must be the same.
    Labels {
        /// Labels with their probabilities.
        labels: Vec<LabelScore>,
    },
    /// The tokens of masks, or labels of tokens, in the order of the text.
    Tokens {
        /// The likeliest of each.
        tokens: Vec<String>,
    },
    /// A vector, or the outputs of a graph.
    Arrays {
        /// Arrays with their names.
        arrays: Vec<Numbers>,
    },
}

/// A token and the natural logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenProbability {
    /// Token id in the vocabulary.
    pub id: i64,
    /// Natural logarithm.
    pub logprob: f64,
}

/// A label and its probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelScore {
    /// Label name from the configuration.
    pub label: String,
    /// Probability from 0 to 1.
    pub score: f64,
}

/// An array of single-precision numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Numbers {
    /// Name of the output, or `embedding`.
    pub name: String,
    /// Outermost first.
    pub shape: Vec<usize>,
    /// Values in row-major order.
    pub values: Vec<f32>,
}

/// Maximum deviation of an answer from the expected answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tolerance {
    /// Maximum number of insertions, deletions and changes of characters, divided by the expected
    /// characters.
    pub character_error_rate: f64,
    /// Maximum change in the probability of a token at the first position, or of the expected
    /// label.
    pub probability: f64,
    /// Least cosine similarity of vectors and arrays.
    pub cosine: f64,
    /// Maximum relative L2 distance of vectors and arrays.
    pub relative_l2: f64,
    /// Maximum change in the natural logarithm of a probability at the first position.
    ///
    /// `None` disables the comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f64>,
}

impl Tolerance {
    /// Returns the tolerance for the recorded model itself.
    ///
    /// It accepts only different rounding, as on other processors or with other numbers of threads.
    #[must_use]
    pub fn strict() -> Self {
        Self {
            character_error_rate: 0.0,
            probability: 0.001,
            cosine: 0.999_99,
            relative_l2: 0.005,
            logprob: Some(0.01),
        }
    }
}

impl Default for Tolerance {
    fn default() -> Self {
        // Vectors of one length with this cosine are 0.141 apart.
        Self {
            character_error_rate: 0.0,
            probability: 0.1,
            cosine: 0.99,
            relative_l2: 0.15,
            logprob: None,
        }
    }
}

impl Canary {
    /// A canary of these cases.
    #[must_use]
    pub fn new(model: CanaryModel, cases: Vec<CanaryCase>) -> Self {
        Self { format: FORMAT.to_owned(), version: VERSION, model, cases }
    }

    /// Reads a canary file.
    ///
    /// ```
    /// use apr_quality::Canary;
    ///
    /// let error = Canary::from_json(b"{\"format\": \"apr-canary\"").unwrap_err();
    /// assert!(error.to_string().contains("not a canary file"));
    /// ```
    ///
    /// # Errors
    /// E001 for what is no canary file, has no case, or expects what can't be; E003 for a later
    /// version.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let wrong = |error: serde_json::Error| {
            Error::format(format!("not a canary file: {}", apr_core::foreign(&error)))
        };
        let head: Head = serde_json::from_slice(bytes).map_err(wrong)?;
        if head.format != FORMAT {
            return Err(Error::format(format!("not a canary file: 'format' is not {FORMAT}")));
        }
        if head.version != VERSION {
            return Err(Error::version(format!(
                "the canary file has version {}, and this reads {VERSION}",
                head.version
            )));
        }
        let canary: Self = serde_json::from_slice(bytes).map_err(wrong)?;
        canary.check()?;
        Ok(canary)
    }

    /// Refuses what can't be a reference.
    fn check(&self) -> Result<()> {
        if self.cases.is_empty() {
            return Err(Error::format("the canary file does not contain cases"));
        }
        for case in &self.cases {
            let wrong = |what: &str| {
                let name = apr_core::Escaped::short(&case.name);
                Err(Error::format(format!("the canary '{name}' {what}")))
            };
            let Tolerance { character_error_rate, probability, cosine, relative_l2, logprob } =
                case.tolerance;
            let most = [character_error_rate, probability, relative_l2, logprob.unwrap_or(0.0)];
            if most.iter().any(|most| most.is_nan() || *most < 0.0) {
                return wrong("has a tolerance that is not 0 or more");
            }
            if !(-1.0..=1.0).contains(&cosine) {
                return wrong("has a cosine that is not between -1 and 1");
            }
            if let Some(what) = case.input.fault().or_else(|| case.expected.fault()) {
                return wrong(what);
            }
        }
        Ok(())
    }

    /// The file's bytes.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = apr_core::json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

impl CanaryInput {
    /// Returns the fault of the input, if there is one.
    fn fault(&self) -> Option<&'static str> {
        let Self::Tokens { ids } = self else { return None };
        if ids.len() > LONGEST {
            return Some("has an input of over 100,000 tokens");
        }
        ids.iter().any(|id| *id < 0).then_some("has a token below 0")
    }
}

impl Expected {
    /// Returns the fault of the expected answer, if there is one.
    fn fault(&self) -> Option<&'static str> {
        match self {
            Self::Text { text, tokens, first } => {
                if text.len().max(tokens.len()) > LONGEST {
                    return Some("has an answer of over 100,000 bytes or tokens");
                }
                let is_log = |one: &TokenProbability| one.logprob <= 0.0;
                (!first.iter().all(is_log)).then_some("has invalid probabilities")
            }
            Self::Labels { labels } if labels.is_empty() => {
                Some("expects labels, but lists none: every answer would pass")
            }
            Self::Labels { labels } => {
                let is_share = |one: &LabelScore| (0.0..=1.0).contains(&one.score);
                (!labels.iter().all(is_share)).then_some("has invalid probabilities")
            }
            Self::Tokens { tokens } if tokens.is_empty() => {
                Some("expects tokens, but lists none: every answer would pass")
            }
            Self::Tokens { tokens } => {
                let len: usize = tokens.iter().map(|token| token.len().max(1)).sum();
                (len > LONGEST).then_some("has an answer of over 100,000 bytes or tokens")
            }
            Self::Arrays { arrays } if arrays.iter().all(|array| array.values.is_empty()) => {
                Some("expects arrays, but has no values: every answer would pass")
            }
            Self::Arrays { arrays } if !arrays.iter().all(Numbers::fits) => {
                Some("has an array whose shape does not fit its values")
            }
            Self::Arrays { arrays } => {
                let mut values = arrays.iter().flat_map(|array| &array.values);
                let is_odd = values.any(|value| !value.is_finite());
                is_odd.then_some("has an array with NaN or infinity, which can't be a reference")
            }
        }
    }
}

impl Numbers {
    fn fits(&self) -> bool {
        let len = self.shape.iter().try_fold(1_usize, |len, size| len.checked_mul(*size));
        len == Some(self.values.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canary() -> Canary {
        let case = |input, expected| CanaryCase {
            name: "a".to_owned(),
            input,
            input_tokens: Vec::new(),
            max_tokens: Some(4),
            original: None,
            expected,
            tolerance: Tolerance::default(),
        };
        let text = Expected::Text {
            text: "46".to_owned(),
            tokens: vec![7, 9],
            first: vec![TokenProbability { id: 7, logprob: -0.25 }],
        };
        let numbers =
            Numbers { name: "out".to_owned(), shape: vec![1, 2], values: vec![0.5, -2.0] };
        let label = LabelScore { label: "yes".to_owned(), score: 0.75 };
        let cases = vec![
            case(CanaryInput::text("12+34="), text),
            case(
                CanaryInput::file("a.npy", b"bytes", true),
                Expected::Arrays { arrays: vec![numbers] },
            ),
            case(CanaryInput::Tokens { ids: vec![1] }, Expected::Labels { labels: vec![label] }),
        ];
        Canary::new(CanaryModel::default(), cases)
    }

    #[test]
    fn what_is_written_is_read() {
        let canary = canary();
        assert_eq!(Canary::from_json(&canary.to_json()).unwrap(), canary);
    }

    #[test]
    fn a_cut_file_is_rejected() {
        let bytes = canary().to_json();
        for cut in 0..bytes.len() - 2 {
            assert!(Canary::from_json(&bytes[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error_or_another_canary_that_can_be_one() {
        let bytes = canary().to_json();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Ok(canary) = Canary::from_json(&bytes) else { continue };
            assert!(canary.check().is_ok() && !canary.cases.is_empty(), "{bit}");
            for case in &canary.cases {
                let load = |_: &str| Err(Error::format("there are no files"));
                let _ = case.input.sample(&case.name, &load);
            }
        }
    }

    #[test]
    fn invalid_references_are_rejected() {
        let text = String::from_utf8(canary().to_json()).unwrap();
        let longest = "9".repeat(LONGEST + 1);
        let deep = "[".repeat(100_000);
        for (from, to) in [
            ("-2.0", "1e39"),
            ("-2.0", "null"),
            ("-0.25", "0.25"),
            ("0.75", "1.5"),
            ("0.99", "2"),
            ("\"46\"", &format!("\"{longest}\"")),
            ("[\n              1,\n              2", "[18446744073709551615, 3"),
            ("\"ids\": [", &format!("\"ids\": {deep}")),
            ("\"max_tokens\": 4", "\"max_tokens\": -1"),
            ("\"relative_l2\": 0.15", "\"relative_l2\": -1"),
        ] {
            assert!(text.contains(from), "{from} in {text}");
            let changed = text.replacen(from, to, 1);
            assert!(Canary::from_json(changed.as_bytes()).is_err(), "{from} -> {to:.40}");
        }
    }
    #[test]
    fn answers_that_every_model_would_give_are_refused() {
        let refused = |expected: Expected| {
            let mut canary = canary();
            canary.cases[0].expected = expected;
            let error = Canary::from_json(&canary.to_json()).unwrap_err().to_string();
            assert!(error.contains("the canary 'a' "), "{error}");
            error
        };
        let empty = Numbers { name: "out".to_owned(), shape: vec![1, 0], values: Vec::new() };
        for expected in [
            Expected::Labels { labels: Vec::new() },
            Expected::Tokens { tokens: Vec::new() },
            Expected::Arrays { arrays: Vec::new() },
            Expected::Arrays { arrays: vec![empty] },
        ] {
            assert!(refused(expected).contains("every answer would pass"));
        }
        let many = Expected::Tokens { tokens: vec![String::new(); LONGEST + 1] };
        assert!(refused(many).contains("over 100,000"));
    }

    #[test]
    fn the_number_of_input_tokens_is_limited() {
        let mut canary = canary();
        canary.cases[2].input = CanaryInput::Tokens { ids: vec![1; LONGEST + 1] };
        let error = Canary::from_json(&canary.to_json()).unwrap_err().to_string();
        assert!(error.contains("over 100,000 tokens"), "{error}");
    }
}
