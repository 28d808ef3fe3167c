//! Arguments of `trace`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use super::look::parse_named_file;
use super::onnx::parse_task;
use super::run::{parse_steps, parse_token};

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("outputs").multiple(true),
    group = ArgGroup::new("values").args(["trace_payload", "interactive"]),
)]
pub(crate) struct TraceArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Second model of --diff
    #[arg(requires = "diff")]
    pub(crate) other: Option<PathBuf>,
    /// Compare two models step by step; report the first step with unusual drift and its weights
    #[arg(
        long, requires = "other",
        conflicts_with_all = ["trace_payload", "export", "dump_activations"]
    )]
    pub(crate) diff: bool,
    /// Step through the run in a full-screen view; with --diff, show the drift of each step
    #[arg(long, conflicts_with_all = ["trace_payload", "detect_anomalies"])]
    pub(crate) interactive: bool,
    /// With --diff, exit with 5 if a step has unusual drift or a setting of the graph differs
    #[arg(long, requires = "diff")]
    pub(crate) exit_code: bool,
    /// Do not capture the mouse, so that the terminal can select text
    #[arg(long, requires = "interactive")]
    pub(crate) no_mouse: bool,
    /// With --diff, replace single weights of the second model by the first model's, and show the
    /// effect on the outputs: for the N weights that add most drift
    #[arg(long, value_name = "N", requires = "diff", default_value_t = 0)]
    pub(crate) blame: usize,
    /// Input file, may be given several times: arrays (.npy, .npz, .safetensors, .json, ONNX .pb),
    /// text (.txt), audio (.wav, .flac, .mp3, ...), image (.png, .jpg, ...); NAME= sets the graph
    /// input of an array
    #[arg(short, long, value_name = "[NAME=]FILE", value_parser = parse_named_file)]
    pub(crate) input: Vec<(Option<String>, PathBuf)>,
    /// Prompt; also read from a pipe
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Text that contains the answer to --prompt, for extractive question answering
    #[arg(long, value_name = "TEXT", requires = "prompt", allow_hyphen_values = true)]
    pub(crate) context: Option<String>,
    /// Apply the model's chat template to the prompt
    #[arg(long, conflicts_with_all = ["tokens", "context"])]
    pub(crate) chat: bool,
    /// System prompt of the chat
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Prompt as token ids, comma-separated
    #[arg(
        long, value_name = "IDS", value_delimiter = ',', conflicts_with = "input",
        allow_hyphen_values = true, value_parser = parse_token
    )]
    pub(crate) tokens: Vec<i64>,
    /// Number of tokens to generate greedily and trace after the prompt [default: 0; 16 for
    /// encoder-decoder models and with --diff; 64 with --detect-anomalies]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,
    /// Granularity of a step: an operator, a block such as attention, or a layer
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = StepLevel::Block)]
    pub(crate) level: StepLevel,
    /// Show every step with shape, statistics, distribution and attention, and the top predictions
    #[arg(long, visible_alias = "payload")]
    pub(crate) trace_payload: bool,
    /// With --trace-payload, add statistics of the weights of each step (reads them again)
    #[arg(long, requires = "trace_payload")]
    pub(crate) weights: bool,
    /// Detect anomalies: NaN and its first step, exploding activations, dead neurons, collapsed
    /// attention, repetition, speech in silence, confident answers to noise; exit with 5 if one is
    /// found
    #[arg(long, conflicts_with_all = ["diff", "trace_payload"])]
    pub(crate) detect_anomalies: bool,
    /// Write the trace: .json, or .perfetto for ui.perfetto.dev and chrome://tracing
    #[arg(long, value_name = "FILE", group = "outputs")]
    pub(crate) export: Option<PathBuf>,
    /// Write every activation as DIR/PART/PATH.npy
    #[arg(long, value_name = "DIR", group = "outputs")]
    pub(crate) dump_activations: Option<PathBuf>,
    /// Overwrite existing outputs
    #[arg(short = 'f', long, requires = "outputs")]
    pub(crate) overwrite: bool,
    /// Part of a model that has several, such as encoder_model
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// Number of predictions that --trace-payload and --interactive show [default: 5]
    #[arg(
        long, value_name = "N", requires = "values",
        conflicts_with_all = ["diff", "detect_anomalies"]
    )]
    pub(crate) top: Option<usize>,
    /// Truncate text to the model's context
    #[arg(long)]
    pub(crate) truncate: bool,
    /// Work limit of each graph run in steps of about a nanosecond, such as 1e12 [default: by the
    /// sizes of weights and inputs]
    #[arg(long, value_name = "N", value_parser = parse_steps)]
    pub(crate) max_work: Option<u64>,
    /// Task of the head, such as text-generation or CausalLM [default: by the configuration]
    #[arg(long, value_name = "TASK", value_parser = parse_task)]
    pub(crate) task: Option<String>,
}

/// What one step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StepLevel {
    Op,
    Block,
    Layer,
}

#[cfg(feature = "infer")]
impl From<StepLevel> for apr_trace::Level {
    fn from(level: StepLevel) -> Self {
        match level {
            StepLevel::Op => Self::Op,
            StepLevel::Block => Self::Block,
            StepLevel::Layer => Self::Layer,
        }
    }
}
