use std::path::PathBuf;

use apr_merge::Method;
use apr_registry::Format;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::write::{WriteArgs, parse_shard_size, parse_target};
use super::{ContainerArgs, RequantizeArgs};

/// The other names of methods.
const ALIASES: [(&str, &str); 2] = [("linear", "weighted"), ("dare_linear", "dare")];

/// The methods, by their names and other names.
fn parse_method() -> impl TypedValueParser<Value = Method> {
    let values = Method::ALL.map(|method| {
        let alias = ALIASES.iter().find(|(name, _)| *name == method.name());
        PossibleValue::new(method.name())
            .help(method.title())
            .aliases(alias.map(|(_, alias)| *alias))
    });
    PossibleValuesParser::new(values).map(|name| name.parse().unwrap_or(Method::Average))
}

/// An adapter's location, and the number after its last colon.
pub(super) fn parse_adapter(text: &str) -> Result<(PathBuf, f64), String> {
    let scale = |text: &str| text.parse().ok().filter(|scale: &f64| scale.is_finite());
    let split = text.rsplit_once(':').and_then(|(path, end)| Some((path, scale(end)?)));
    match split {
        Some(("", _)) => Err("expected ADAPTER or ADAPTER:X, such as adapter:0.5".to_owned()),
        Some((path, scale)) => Ok((PathBuf::from(path), scale)),
        None => Ok((PathBuf::from(text), 1.0)),
    }
}

fn parse_parameter(text: &str) -> Result<(String, f64), String> {
    let expected = || "expected NAME=NUMBER, such as select_topk=0.5".to_owned();
    let (name, value) = text.split_once('=').ok_or_else(expected)?;
    let value = match value {
        "true" => 1.0,
        "false" => 0.0,
        number => {
            number.parse().ok().filter(|value: &f64| value.is_finite()).ok_or_else(expected)?
        }
    };
    Ok((name.to_owned(), value))
}

/// Arguments of `merge`.
#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// Models: files, folders, shard indexes or hf:// locations; or a mergekit configuration (.yml,
    /// .yaml)
    #[arg(value_name = "MODEL")]
    pub(crate) models: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) write: WriteArgs,
    /// LoRA, DoRA, LoHa or LoKr adapter to merge into the model, multiplied by X [default: 1]; may
    /// be given several times
    #[arg(long, value_name = "ADAPTER[:X]", value_parser = parse_adapter)]
    pub(crate) lora: Vec<(PathBuf, f64)>,
    /// Merge method [default: average]
    #[arg(short, long, alias = "method", value_name = "METHOD", value_parser = parse_method())]
    pub(crate) strategy: Option<Method>,
    /// Base model of the other models [default for slerp, nearswap and arcee_fusion: the first
    /// model]
    #[arg(long, value_name = "MODEL")]
    pub(crate) base: Option<PathBuf>,
    /// Weight of each model except the base [default: 1]
    #[arg(long, value_name = "W,W,...", value_delimiter = ',')]
    pub(crate) weights: Vec<f64>,
    /// Share of differences to keep, above 0: one for all models or one for each [default: 1]
    #[arg(long, value_name = "D,D,...", value_delimiter = ',')]
    pub(crate) density: Vec<f64>,
    /// Position between the base (0) and the other model (1) for slerp [default: 0.5]; threshold of
    /// nearswap
    #[arg(long, value_name = "T")]
    pub(crate) t: Option<f64>,
    /// Factor of the differences from the base [default: 1]
    #[arg(long, value_name = "X")]
    pub(crate) lambda: Option<f64>,
    /// Divide by the sum of the weights [default: by the method]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) normalize: Option<bool>,
    /// Vocabulary of the result: union, base, or one of the models; rows of embeddings are moved to
    /// its ids [default: rows are merged by position]
    #[arg(long, value_name = "SOURCE")]
    pub(crate) tokenizer: Option<String>,
    /// Random seed of dare and della [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Another parameter of the method; may be given several times
    #[arg(long, value_name = "NAME=X", value_parser = parse_parameter, hide_short_help = true)]
    pub(crate) parameter: Vec<(String, f64)>,
    /// Folder of a configuration's models [default: the current folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
    /// Folder of a plan, which its paths begin with and names of models do not.
    #[arg(skip)]
    pub(crate) plan_folder: PathBuf,
    /// Target format [default: by the output's extension, else the first model's format]
    #[arg(long, value_name = "FORMAT", value_parser = parse_target())]
    pub(crate) format: Option<&'static Format>,
    /// Maximum tensor bytes per shard of .apr, safetensors or GGUF output, such as 5GB
    #[arg(long, value_name = "SIZE", value_parser = parse_shard_size)]
    pub(crate) shard_size: Option<u64>,
    // What has a heading of its own comes last: what follows it would stand under it.
    #[command(flatten)]
    pub(crate) requantize: RequantizeArgs,
    #[command(flatten)]
    pub(crate) container: ContainerArgs,
}
