//! Arguments of `run`.

use std::num::{NonZeroU8, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::look::parse_named_file;
use super::merge::parse_adapter;
use super::onnx::parse_task;
use super::sampling::SamplingArgs;
use crate::engine::MOST_BEAMS;

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Input file, may be given several times: arrays (.npy, .npz, .safetensors, .json, ONNX .pb),
    /// text (.txt), audio (.wav, .aiff, .flac, .mp3, .ogg), images (.png, .jpg, .webp, .gif, .bmp,
    /// .tiff); NAME= sets the graph input of an array
    #[arg(short, long, value_name = "[NAME=]FILE", value_parser = parse_named_file)]
    pub(crate) input: Vec<(Option<String>, PathBuf)>,
    /// Image for the prompt, may be given several times; for models that read images and text, such
    /// as LLaVA and Gemma 3
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = [
            "input", "want", "part", "query", "lines", "batch", "context", "tokens",
            "prompt_cache", "beams", "output",
        ],
    )]
    pub(crate) image: Vec<PathBuf>,
    /// GGUF file with the vision tower and projector (mmproj) of the model
    #[arg(long, value_name = "FILE", requires = "image")]
    pub(crate) mmproj: Option<PathBuf>,
    /// Value to return: an output, an activation by its path, such as layers.3/attention/probs, or
    /// `features`, the preprocessed input [default: all outputs]
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = [
            "max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty",
            "presence_penalty", "logprobs", "seed", "pooling", "prompt_name", "dimensions", "top",
            "beams", "length_penalty", "subtitles", "word_timestamps", "fallback", "SamplingArgs",
        ],
    )]
    pub(crate) want: Vec<String>,
    /// Write the outputs as arrays: .npy, .npz, .safetensors, .json
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing output
    #[arg(short = 'f', long, requires = "output")]
    pub(crate) overwrite: bool,
    /// Part of a model that has several, such as encoder_model
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// LoRA, DoRA, LoHa or LoKr adapter to apply, multiplied by X [default: 1], without writing a
    /// merged model; may be given several times
    #[arg(long, value_name = "ADAPTER[:X]", value_parser = parse_adapter)]
    pub(crate) lora: Vec<(PathBuf, f64)>,
    /// Prompt; also read from a pipe
    #[arg(long, value_name = "TEXT", conflicts_with = "tokens")]
    pub(crate) prompt: Vec<String>,
    /// Query of a reranker: each prompt is scored as a document, best first
    #[arg(
        long, value_name = "TEXT",
        conflicts_with_all = ["tokens", "want", "context", "chat", "part", "prompt_cache"]
    )]
    pub(crate) query: Option<String>,
    /// Treat each line of text files and of a pipe as a separate prompt
    #[arg(long, conflicts_with = "tokens")]
    pub(crate) lines: bool,
    /// Batch size for several prompts [default: 8]; 1 = no batching, results are identical to
    /// separate runs
    #[arg(long, value_name = "N", conflicts_with_all = ["tokens", "prompt_cache", "want"])]
    pub(crate) batch: Option<NonZeroU8>,
    /// Text that contains the answer to --prompt, for extractive question answering
    #[arg(long, value_name = "TEXT", requires = "prompt")]
    pub(crate) context: Option<String>,
    /// Allow "no answer" to a question, with its probability (SQuAD 2.0 models)
    #[arg(long, requires = "context")]
    pub(crate) no_answer: bool,
    /// Apply the model's chat template to the prompt; on a terminal, without a prompt, hold a
    /// conversation
    #[arg(long, conflicts_with = "tokens")]
    pub(crate) chat: bool,
    /// System prompt of the chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(crate) system: Option<String>,
    /// Messages of a chat in a JSON file: a list of objects with `role` and `content`, or an object
    /// with `messages`, `tools` and `documents`
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = [
            "prompt", "input", "tokens", "lines", "batch", "want", "context", "chat", "system",
            "separator",
        ],
    )]
    pub(crate) messages: Option<PathBuf>,
    /// Tools for the chat template, in a JSON file: a list of objects
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub(crate) tools: Option<PathBuf>,
    /// Variable of the chat template, such as enable_thinking=false; the value is JSON or text
    #[arg(
        long, value_name = "NAME=VALUE", value_parser = parse_argument, conflicts_with = "tokens"
    )]
    pub(crate) template_arg: Vec<(String, String)>,
    /// File with a JSON schema that constrains the generated text
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = ["tokens", "want", "query", "regex", "grammar"]
    )]
    pub(crate) json_schema: Option<PathBuf>,
    /// Regular expression that the whole generated text must match
    #[arg(
        long, value_name = "PATTERN",
        conflicts_with_all = ["tokens", "want", "query", "grammar"]
    )]
    pub(crate) regex: Option<String>,
    /// File with a grammar that constrains the generated text: Lark, or llama.cpp's GBNF
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens", "want", "query"])]
    pub(crate) grammar: Option<PathBuf>,
    /// Prompt as token ids, comma-separated
    #[arg(
        long, value_name = "IDS", value_delimiter = ',', conflicts_with = "input",
        allow_hyphen_values = true, value_parser = parse_token
    )]
    pub(crate) tokens: Vec<i64>,
    /// Save the KV cache of the prompt in FILE, and reuse it for the common beginning of the next
    /// prompt
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_cache: Option<PathBuf>,
    /// Maximum number of tokens to generate, per audio file for speech [default: the model's own,
    /// else 128; none for speech and conversations]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// Sampling temperature; 0 = greedy [default: the model's own, else 0]
    #[arg(long, value_name = "T", value_parser = parse_temperature)]
    pub(crate) temperature: Option<f32>,
    /// Top-k sampling: keep the K likeliest tokens; 0 = all [default: the model's own, else 0]
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<usize>,
    /// Nucleus sampling: keep the smallest set of tokens with total probability P [default: the
    /// model's own, else 1]
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub(crate) top_p: Option<f32>,
    /// Min-p sampling: keep tokens of at least P times the largest probability [default: the
    /// model's own, else 0]
    #[arg(long, value_name = "P", value_parser = parse_share)]
    pub(crate) min_p: Option<f32>,
    /// Repetition penalty for tokens of the prompt and the answer [default: the model's own, else
    /// 1]
    #[arg(
        long, value_name = "X", value_parser = parse_penalty,
        visible_alias = "repetition-penalty"
    )]
    pub(crate) repeat_penalty: Option<f32>,
    /// Presence penalty for tokens of the answer [default: 0]
    #[arg(long, value_name = "X", value_parser = parse_finite)]
    pub(crate) presence_penalty: Option<f32>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Beam search with N beams, up to 64; 1 = off [default: the model's own, else 1]
    #[arg(
        long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=MOST_BEAMS as i64),
        conflicts_with = "temperature"
    )]
    pub(crate) beams: Option<u8>,
    /// Length penalty of beam search; values above 0 favour longer texts [default: the model's own,
    /// else 1]
    #[arg(
        long, value_name = "X", value_parser = parse_finite, allow_hyphen_values = true,
        conflicts_with = "temperature"
    )]
    pub(crate) length_penalty: Option<f32>,
    /// Log probabilities of each generated token and of the N likeliest at its position; on
    /// standard error without --json
    #[arg(long, value_name = "N")]
    pub(crate) logprobs: Option<usize>,
    /// Random seed [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Stop text; with --tokens, a stop id
    #[arg(
        long, value_name = "TEXT",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) stop: Vec<String>,
    /// Separator printed between answers; \n, \t, \0 and \\ are escapes [default: \n]
    #[arg(long, value_name = "TEXT", value_parser = parse_separator)]
    pub(crate) separator: Option<Separator>,
    /// Truncate text to the model's context
    #[arg(long)]
    pub(crate) truncate: bool,
    /// Source language of speech, such as en [default: detected]
    #[arg(long, value_name = "CODE")]
    pub(crate) language: Option<String>,
    /// Translate speech into English
    #[arg(long)]
    pub(crate) translate: bool,
    /// Print timestamps of segments
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Print timestamps of words
    #[arg(long, conflicts_with = "timestamps")]
    pub(crate) word_timestamps: bool,
    /// Print the transcription as subtitles
    #[arg(long, value_name = "FORMAT", conflicts_with = "timestamps")]
    pub(crate) subtitles: Option<SubtitleFormat>,
    /// Transcribe a window again at higher temperatures if its text is repetitive or unlikely, and
    /// skip silence
    #[arg(long, conflicts_with = "temperature")]
    pub(crate) fallback: bool,
    /// Pooling of token embeddings [default: the model's own, else mean]
    #[arg(long, value_name = "WAY")]
    pub(crate) pooling: Option<PoolingWay>,
    /// Prompt of a sentence-transformers model to put before each text, such as query [default: the
    /// model's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt_name: Option<String>,
    /// Keep the first N numbers of each embedding (Matryoshka models)
    #[arg(long, value_name = "N")]
    pub(crate) dimensions: Option<NonZeroUsize>,
    /// Number of labels, answers, mask tokens or ranked documents to return [default: 5; all
    /// documents]
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,
    /// Work limit of each graph run in steps of about a nanosecond, such as 1e12 [default: by the
    /// sizes of weights and inputs]
    #[arg(long, value_name = "N", value_parser = parse_steps)]
    pub(crate) max_work: Option<u64>,
    /// Task of the head, such as text-generation or CausalLM [default: by the configuration]
    #[arg(long, value_name = "TASK", value_parser = parse_task)]
    pub(crate) task: Option<String>,
    /// Dtype of the KV cache
    #[arg(long, value_name = "TYPE", conflicts_with = "want")]
    pub(crate) cache_type: Option<CacheTypeName>,
    /// Generate with decoded weights in single precision, instead of 8-bit activations for weights
    /// that are quantized in blocks
    #[arg(long, conflicts_with = "want")]
    pub(crate) exact: bool,
}

/// What keys and values are kept as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheTypeName {
    /// Single precision, the default
    F32,
    /// Half precision, half the memory
    F16,
    /// 8-bit blocks, a quarter of the memory
    #[value(name = "q8_0")]
    Q8_0,
}

#[cfg(feature = "infer")]
impl From<CacheTypeName> for apr_run::CacheType {
    fn from(name: CacheTypeName) -> Self {
        match name {
            CacheTypeName::F32 => Self::F32,
            CacheTypeName::F16 => Self::F16,
            CacheTypeName::Q8_0 => Self::Q8_0,
        }
    }
}

/// What subtitles are written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SubtitleFormat {
    /// SubRip
    Srt,
    /// WebVTT
    Vtt,
}

/// How the vectors of tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolingWay {
    /// The mean of all tokens
    Mean,
    /// The first token
    Cls,
    /// The maximum of each dimension
    Max,
    /// The last token
    Last,
    /// The sum divided by the square root of the number of tokens
    #[value(name = "mean_sqrt")]
    MeanSqrt,
    /// The mean weighted by position
    #[value(name = "weighted_mean")]
    WeightedMean,
}

/// A whole number, as `1000000000` or `1e9`.
pub(super) fn parse_steps(text: &str) -> Result<u64, String> {
    let whole = text.parse().ok();
    let float = || text.parse::<f64>().ok().filter(|steps| (1.0..=u64::MAX as f64).contains(steps));
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it is within the range, and may be rounded"
    )]
    let rounded = |steps: f64| steps as u64;
    whole
        .or_else(|| float().map(rounded))
        .filter(|&steps| steps > 0)
        .ok_or_else(|| format!("expected a number of steps, not '{text}'"))
}

/// A name and a value.
fn parse_argument(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str| {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        name.chars().all(is_part) && name.starts_with(|letter: char| !letter.is_ascii_digit())
    };
    match text.split_once('=').filter(|(name, _)| is_name(name)) {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err("it must be NAME=VALUE".to_owned()),
    }
}

/// What stands between answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Separator(pub(crate) String);

pub(super) fn parse_separator(text: &str) -> Result<Separator, String> {
    let mut made = String::new();
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        made.push(match (letter, letter == '\\') {
            (_, true) => match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('0') => '\0',
                Some('\\') => '\\',
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(format!("\\{other} is not known: \\n, \\t, \\0 and \\\\ are"));
                }
            },
            (letter, false) => letter,
        });
    }
    Ok(Separator(made))
}

/// An id of a token.
pub(super) fn parse_token(text: &str) -> Result<i64, String> {
    // Graphs and tokenizers have ids of 32 bits.
    let id: Option<u32> = text.trim().parse().ok();
    id.map(i64::from).ok_or_else(|| "expected a token id, 0 or larger".to_owned())
}

pub(super) fn number(text: &str, what: &str, fits: impl Fn(f32) -> bool) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if number.is_finite() && fits(number) { Ok(number) } else { Err(format!("expected {what}")) }
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    number(text, "0 or more", |number| number >= 0.0)
}

pub(super) fn parse_probability(text: &str) -> Result<f32, String> {
    number(text, "a number above 0, up to 1", |number| number > 0.0 && number <= 1.0)
}

pub(super) fn parse_share(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |number| (0.0..=1.0).contains(&number))
}

fn parse_penalty(text: &str) -> Result<f32, String> {
    number(text, "a number above 0", |number| number > 0.0)
}

pub(super) fn parse_finite(text: &str) -> Result<f32, String> {
    number(text, "a number", |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_names() {
        let of = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(parse_argument("a=b=c"), of("a", "b=c"));
        assert_eq!(parse_argument("_a1="), of("_a1", ""));
        for wrong in ["", "a", "=b", "1a=b", "a-b=c"] {
            assert!(parse_argument(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn separators_may_be_what_is_hard_to_type() {
        assert_eq!(parse_separator("a\\n\\0-\\\\"), Ok(Separator("a\n\0-\\".to_owned())));
        assert!(parse_separator("\\x").is_err());
        assert!(parse_separator("\\").is_err());
    }
}
