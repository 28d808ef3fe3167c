//! Arguments of `run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::look::parse_named_file;

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// What goes in, several times where there are several: arrays (.npy, .npz, .safetensors,
    /// .json, ONNX's .pb), texts (.txt), sounds (.wav, .flac, .mp3, .ogg), pictures (.png, .jpg,
    /// .webp); NAME= says which input an array is for
    #[arg(short, long, value_name = "[NAME=]FILE", value_parser = parse_named_file)]
    pub(crate) input: Vec<(Option<String>, PathBuf)>,
    /// What should come out: outputs, or any other value by its path, such as
    /// layers.3/attention/shares [default: the outputs]
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["max_tokens", "top_k", "top_p", "seed", "pooling", "top"],
    )]
    pub(crate) want: Vec<String>,
    /// Write what comes out as arrays: .npy, .npz, .safetensors, .json
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(short = 'f', long, requires = "output")]
    pub(crate) overwrite: bool,
    /// The part of a model that has several, such as encoder_model
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// A text that goes in, read by the model's own tokenizer; a pipe gives one as well
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    pub(crate) prompt: Vec<String>,
    /// Give the text as a message of a chat, by the model's own template
    #[arg(long, conflicts_with = "tokens")]
    pub(crate) chat: bool,
    /// What the chat begins with: who the model is to be
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(crate) system: Option<String>,
    /// Go on from these tokens, ids with commas between them
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "input")]
    pub(crate) tokens: Vec<i64>,
    /// Most tokens to add
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) max_tokens: usize,
    /// How freely tokens are chosen; 0 takes the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = parse_temperature)]
    pub(crate) temperature: f32,
    /// Choose among this many tokens; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = parse_probability)]
    pub(crate) top_p: f32,
    /// Where the random numbers begin
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Stop before this text, or with --tokens after this id
    #[arg(
        long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) stop: Vec<String>,
    /// Leave out the end of a text that is longer than the model's context
    #[arg(long)]
    pub(crate) truncate: bool,
    /// The language that is spoken, such as en [default: what the model hears]
    #[arg(long, value_name = "CODE")]
    pub(crate) language: Option<String>,
    /// Write down in English what is said in another language
    #[arg(long)]
    pub(crate) translate: bool,
    /// Write down when each part is said
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// How the vectors of tokens become one [default: what the model says, else mean]
    #[arg(long, value_name = "WAY")]
    pub(crate) pooling: Option<PoolingWay>,
    /// How many labels, or words for a gap, are shown
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,
    /// Steps of work that each run of a graph may take, such as 1e12; a step is about a nanosecond
    /// [default: by the sizes of the weights and of what goes in]
    #[arg(long, value_name = "N", value_parser = parse_steps)]
    pub(crate) max_work: Option<u64>,
    /// What the head is for, such as CausalLM [default: what the configuration says]
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,
}

/// How the vectors of tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolingWay {
    Mean,
    Cls,
    Max,
    Last,
}

/// A whole number, as `1000000000` or `1e9`.
fn parse_steps(text: &str) -> Result<u64, String> {
    let whole = text.parse().ok();
    let float = || text.parse::<f64>().ok().filter(|steps| (1.0..=u64::MAX as f64).contains(steps));
    whole
        .or_else(|| float().map(|steps| steps as u64))
        .filter(|&steps| steps > 0)
        .ok_or_else(|| format!("'{text}' is not a number of steps from 1 on"))
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if number.is_finite() && number >= 0.0 {
        Ok(number)
    } else {
        Err("it is a number from 0 on".to_owned())
    }
}

fn parse_probability(text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if number > 0.0 && number <= 1.0 {
        Ok(number)
    } else {
        Err("it is a number above 0, up to 1".to_owned())
    }
}
