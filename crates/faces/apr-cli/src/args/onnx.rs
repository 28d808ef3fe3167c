//! Options about the graph of an output that has one.

use apr_bind::Blocks;
use apr_ops::job::GraphWishes;
use apr_ops::simplify::NamedShape;
use apr_registry::onnx::write::ExternalData;
use clap::{Args, ValueEnum};

/// A task of Optimum, or the end of a class.
pub(super) fn parse_task(text: &str) -> Result<String, String> {
    apr_blocks::check_task(text).map_err(|error| error.message().to_owned())?;
    Ok(text.to_owned())
}

/// Options of output that says what the model computes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Options of ONNX output")]
pub(crate) struct OnnxArgs {
    /// ONNX opset version [default: the source's, else 17, or 21 with quantized blocks]
    #[arg(
        long, hide_short_help = true, value_name = "N",
        value_parser = clap::value_parser!(i64).range(1..=1000)
    )]
    pub(crate) opset: Option<i64>,
    /// Fold constants, remove nodes that do nothing, and compare the outputs before and after
    #[arg(long)]
    pub(crate) simplify: bool,
    /// Shape of an input, such as x=1,3,224,224 or x=batch,3,224,224; repeatable
    #[arg(
        long,
        hide_short_help = true,
        value_name = "NAME=DIMS",
        value_parser = NamedShape::parse
    )]
    pub(crate) shape: Vec<NamedShape>,
    /// Begin at this value or node; repeatable [default: the inputs]
    #[arg(long, hide_short_help = true, value_name = "NAME")]
    pub(crate) from: Vec<String>,
    /// End at this value or node; repeatable [default: the outputs]
    #[arg(long, hide_short_help = true, value_name = "NAME", value_parser = end)]
    pub(crate) to: Vec<String>,
    /// Keep inputs and outputs in single precision, with --precision fp16 of an ONNX file
    #[arg(long, hide_short_help = true)]
    pub(crate) keep_io: bool,
    /// Operators to compute in single precision, with --precision fp16 of an ONNX file
    #[arg(long, hide_short_help = true, value_name = "OP")]
    pub(crate) exclude_op: Vec<String>,
    /// External data: from 2 GiB on, always, or never [default: auto]
    #[arg(
        long,
        hide_short_help = true,
        value_enum,
        value_name = "WHEN",
        hide_possible_values = true
    )]
    pub(crate) external_data: Option<DataPlace>,
    /// Add the KV cache as inputs and outputs, to generate token by token
    #[arg(long)]
    pub(crate) with_past: bool,
    /// Write one decoder, decoder_model_merged.onnx, for transformers.js; implies --with-past
    #[arg(long, hide_short_help = true)]
    pub(crate) merged: bool,
    /// Cache of DeepSeek's attention: latents, or heads, as Optimum expects [default: latents]
    #[arg(
        long,
        hide_short_help = true,
        value_enum,
        hide_possible_values = true,
        value_name = "FORM"
    )]
    pub(crate) latent_cache: Option<LatentCache>,
    /// Task of the head, such as fill-mask or CausalLM; empty for no head [default: as configured]
    #[arg(long, hide_short_help = true, value_name = "TASK", value_parser = parse_task)]
    pub(crate) task: Option<String>,
    /// Use onnxruntime's MatMulNBits for quantized matrices, without a dequantized copy
    #[arg(long, hide_short_help = true)]
    pub(crate) matmul_nbits: bool,
}

/// What is kept of earlier tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LatentCache {
    /// The compressed vector and the rotated part of the key, once for all heads
    Latents,
    /// Keys and values of each head, as Optimum's ORTModelForCausalLM expects them
    Heads,
}

impl From<LatentCache> for apr_blocks::LatentCache {
    fn from(cache: LatentCache) -> Self {
        match cache {
            LatentCache::Latents => Self::Latents,
            LatentCache::Heads => Self::Heads,
        }
    }
}

/// Where the bytes of tensors go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataPlace {
    /// In a second file if the model has 2 GiB or more
    Auto,
    /// In a second file
    Always,
    /// In the model's file
    Never,
}

/// Returns the name of a value or node. Other programs take a format there.
fn end(name: &str) -> Result<String, String> {
    let is_format = apr_registry::targets().any(|format| format.option == Some(name));
    match is_format {
        true => Err(format!("it names the end of a part of a graph; pass --format {name}")),
        false => Ok(name.to_owned()),
    }
}

impl OnnxArgs {
    /// What a job is to do.
    pub(crate) fn wishes(&self) -> GraphWishes {
        GraphWishes {
            opset: self.opset,
            with_past: self.with_past,
            merged: self.merged,
            latent_cache: self.latent_cache.map(Into::into),
            task: self.task.clone(),
            shapes: self.shape.clone(),
            from: self.from.clone(),
            to: self.to.clone(),
            renames: Vec::new(),
            keep_io: self.keep_io,
            exclude_ops: self.exclude_op.clone(),
            simplify: self.simplify,
            blocks: if self.matmul_nbits { Blocks::MatMulNBits } else { Blocks::Dequantized },
        }
    }

    /// Where the bytes of tensors go.
    pub(crate) fn external_data(&self) -> ExternalData {
        match self.external_data {
            None | Some(DataPlace::Auto) => ExternalData::Auto,
            Some(DataPlace::Always) => ExternalData::Always,
            Some(DataPlace::Never) => ExternalData::Never,
        }
    }
}
