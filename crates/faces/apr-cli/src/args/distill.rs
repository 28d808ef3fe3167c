use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

fn parse_positive(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a positive number, such as 2 or 1e-3".to_owned()),
    }
}

fn parse_weight(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => Err("expected a number of at least 0, such as 0.1".to_owned()),
    }
}

fn parse_alpha(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a share from 0 to 1, such as 0.5".to_owned()),
    }
}

/// Which layers a student begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StudentLayers {
    Count(u64),
    Listed(Vec<u64>),
}

/// A number of layers, or a list of those that stay: `4`, or `0,2,4-6`.
fn parse_layers(text: &str) -> Result<StudentLayers, String> {
    use apr_prune::LayerChoice;

    Ok(match super::prune::parse_layers(text)? {
        LayerChoice::Count(count) => StudentLayers::Count(count as u64),
        LayerChoice::Listed(layers) => StudentLayers::Listed(layers),
    })
}

/// How layers, heads and neurons of a student are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StudentBy {
    /// Evenly spaced layers; heads and neurons with the largest weights
    Spacing,
    /// Layers that change their input most; heads and neurons with the largest gradients on the
    /// data
    Effect,
}

/// Options about distillation that the help of `convert` leaves to that of `distill`.
pub(crate) const IN_DISTILL: [&str; 16] = [
    "distill",
    "distill_layers",
    "distill_by",
    "data",
    "temperature",
    "alpha",
    "hidden_loss",
    "epochs",
    "steps",
    "batch",
    "lr",
    "warmup",
    "seed",
    "held_out",
    "checkpoint",
    "resume",
];

/// Arguments about distillation.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Distillation")]
pub(crate) struct DistillArgs {
    /// Size of the student: small (half of the layers), tiny (a quarter of the layers, half of the
    /// heads and neurons), or a CONFIG.json with the counts
    #[arg(long, value_name = "SIZE", conflicts_with = "distill_layers", requires = "data")]
    pub(crate) distill: Option<String>,
    /// Layers of the student: a number of evenly spaced layers, or a list such as 0,2,4-6, counted
    /// from 0
    #[arg(long, value_name = "LAYERS", value_parser = parse_layers, requires = "data")]
    pub(crate) distill_layers: Option<StudentLayers>,
    /// Method that chooses the layers, heads and neurons to keep [default: spacing]
    #[arg(long, value_name = "MEASURE", value_enum, requires = "data")]
    pub(crate) distill_by: Option<StudentBy>,
    /// Training data: JSON lines with text, text and text_pair, prompt and completion, messages,
    /// tokens, or audio and text; any other file: a text or the path of an audio file per line
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// Temperature: divides the logits before predictions are compared [default: 2]
    #[arg(long, value_name = "T", value_parser = parse_positive, requires = "data")]
    pub(crate) temperature: Option<f32>,
    /// Share of the teacher's predictions in the loss; the rest is the next-token loss [default: 1]
    #[arg(long, value_name = "A", value_parser = parse_alpha, requires = "data")]
    pub(crate) alpha: Option<f32>,
    /// Weight of the mean squared difference of hidden states after each layer [default: 0]
    #[arg(long, value_name = "W", value_parser = parse_weight, requires = "data")]
    pub(crate) hidden_loss: Option<f32>,
    /// Passes over the data [default: 3]
    #[arg(long, value_name = "N", requires = "data")]
    pub(crate) epochs: Option<NonZeroU64>,
    /// Total number of steps; overrides --epochs
    #[arg(long, value_name = "N", requires = "data", conflicts_with = "epochs")]
    pub(crate) steps: Option<NonZeroU64>,
    /// Batch size in rows [default: 16]
    #[arg(long, value_name = "N", requires = "data")]
    pub(crate) batch: Option<NonZeroUsize>,
    /// Maximum learning rate [default: 1e-3]
    #[arg(long, value_name = "RATE", value_parser = parse_positive, requires = "data")]
    pub(crate) lr: Option<f32>,
    /// Warm-up steps of the learning rate [default: a twentieth of all]
    #[arg(long, value_name = "N", requires = "data")]
    pub(crate) warmup: Option<u64>,
    /// Random seed of the order of rows [default: 0]
    #[arg(long, value_name = "N", requires = "data")]
    pub(crate) seed: Option<u64>,
    /// Share of the rows held out for evaluation [default: 0.05]
    #[arg(long, value_name = "SHARE", value_parser = parse_alpha, requires = "data")]
    pub(crate) held_out: Option<f32>,
    /// Folder for the 20 training checkpoints; kept after the training [default: OUTPUT.training,
    /// removed when the output is written]
    #[arg(long, value_name = "DIR", requires = "data")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Resume an interrupted training from its last checkpoint
    #[arg(long, requires = "data")]
    pub(crate) resume: bool,
}

impl DistillArgs {
    /// Whether a smaller model is trained.
    pub(crate) fn is_asked(&self) -> bool {
        self.distill.is_some() || self.distill_layers.is_some()
    }
}
