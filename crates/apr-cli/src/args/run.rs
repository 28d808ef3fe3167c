//! Arguments of `run`.

use std::path::PathBuf;

use clap::Args;

use super::look::parse_named_file;

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// File, folder, shard index, or - for standard input
    pub(crate) model: PathBuf,
    /// Arrays that go in: .npy, .npz, .safetensors, .json, ONNX's .pb; NAME= says which input a file is for
    #[arg(short, long, value_name = "[NAME=]FILE", value_parser = parse_named_file)]
    pub(crate) input: Vec<(Option<String>, PathBuf)>,
    /// What should come out: outputs, or any other value of the graph [default: the outputs]
    #[arg(long, value_name = "NAME")]
    pub(crate) want: Vec<String>,
    /// The part of a model that has several, such as encoder_model
    #[arg(long, value_name = "NAME")]
    pub(crate) part: Option<String>,
    /// Go on with a text; the model's own tokenizer reads it
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["input", "want"])]
    pub(crate) prompt: Option<String>,
    /// Go on from these tokens, ids with commas between them
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["input", "want", "prompt"])]
    pub(crate) tokens: Vec<i64>,
    /// Most tokens to add
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) max_tokens: usize,
    /// How freely tokens are chosen; 0 takes the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Choose among this many tokens; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) top_k: usize,
    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub(crate) top_p: f32,
    /// Where the random numbers begin
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Stop before this text, or with --tokens after this id
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// What the head is for, such as CausalLM [default: what the configuration says]
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,
}
