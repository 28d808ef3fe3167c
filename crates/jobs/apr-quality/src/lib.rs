//! Judges models by what they compute.
//!
//! [`perplexity`] scores a text with one model, [`divergence`] compares the predictions of two on
//! the same text: the figures of llama-perplexity, on the same tokens and [`Windows`]. [`compare`]
//! gives two models of any kind the same [`Sample`]s, and [`check`] gives one the inputs of a
//! [`Canary`], whose answers another gave.
//!
//! Models come as [`Prepared`](apr_run::Prepared) parts; threads, warnings and the interrupt come
//! from their [`Host`](apr_run::Host). Weights are dequantized and multiplied by single-precision
//! activations, so that what is compared are the weights.
//!
//! # How models are compared by what they compute
//!
//! `apr_quality` runs two models side by side and keeps only the outputs of one input. `Windows`
//! cuts a text as llama-perplexity does. `perplexity` and `divergence` sum over the second halves
//! of the windows. `compare` gives two `Subject`s the same `Sample`s, and compares logits, the
//! embedding of a text, or states; a tap records the output of each layer, by the paths of
//! `Sites`. A `Canary` is a file of inputs and answers. For a gate, the job's output is `Written`:
//! complete and on disk, without a name. `PendingFiles` opens it as it will be opened. Then it is
//! put in place.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod canary;
mod comparison;
mod distance;
mod error_rates;
mod layers;
mod learnt;
mod media;
mod moments;
mod perplexity;
mod rows;
mod samples;
mod scores;
mod sentences;
mod subject;
mod text_part;
mod trials;
mod windows;

pub use canary::{
    AUDIO_EXTENSIONS, Canary, CanaryCase, CanaryInput, CanaryModel, CanaryReport, CaseReport,
    ChosenPrompts, Expected, IMAGE_EXTENSIONS, LabelScore, Load, Numbers, TokenProbability,
    Tolerance, check, choose_prompts, record,
};
pub use comparison::{ComparisonReport, OutputDistance, Thresholds, compare};
pub use error_rates::{ErrorRates, transcription_errors};
pub use layers::LayerDrift;
pub use learnt::{PassageScore, passages};
pub use media::{bmp, wav};
pub use moments::{Distribution, Estimate, Percentile};
pub use perplexity::{
    Distance, DivergenceReport, Done, PerplexityReport, Predictions, divergence, perplexity,
};
pub use samples::{SAMPLES, Sample, built_in};
pub use sentences::{MeaningScore, meanings};
pub use subject::Subject;
pub use trials::{LayerChange, LayerTrials, layer_trials, sentence_trials};
pub use windows::{WindowOptions, Windows};
