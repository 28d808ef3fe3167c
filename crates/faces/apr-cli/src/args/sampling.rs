//! Samplers of llama.cpp, for `run`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::run::{
    Separator, number, parse_finite, parse_probability, parse_separator, parse_share, parse_token,
};

/// Options of sampling as llama.cpp has them.
#[derive(Debug, Clone, PartialEq, Default, Args)]
pub(crate) struct SamplingArgs {
    /// Frequency penalty for tokens of the answer: X for each time that a token was generated
    /// [default: 0]
    #[arg(long, value_name = "X", value_parser = parse_finite, allow_hyphen_values = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Number of last tokens of the prompt and the answer that the penalties consider; 0 = none
    /// [default: all for --repeat-penalty, all of the answer for the others]
    #[arg(long, value_name = "N")]
    pub(crate) repeat_last_n: Option<usize>,
    /// Add X to the logit of a token, given as its id or its text; -inf bans it; may be given
    /// several times
    #[arg(
        long, value_name = "TOKEN=X", value_parser = parse_bias, allow_hyphen_values = true
    )]
    pub(crate) logit_bias: Vec<(BiasedToken, f32)>,
    /// Locally typical sampling: keep the tokens whose surprise is nearest to the entropy, with
    /// total probability P [default: the model's own, else 1]
    #[arg(
        long, value_name = "P", value_parser = parse_probability, visible_alias = "typical"
    )]
    pub(crate) typical_p: Option<f32>,
    /// Mirostat version 1 or 2: keep the surprise of the text near --mirostat-tau, in place of
    /// top-k, top-p, min-p, typical and XTC sampling
    #[arg(
        long, value_name = "VERSION",
        value_parser = PossibleValuesParser::new(["1", "2"]).map(|it| u8::from(it == "2") + 1),
        conflicts_with_all = ["top_k", "top_p", "min_p", "typical_p", "xtc_probability"]
    )]
    pub(crate) mirostat: Option<u8>,
    /// Target surprise of Mirostat in bits [default: 5]
    #[arg(
        long, value_name = "X", value_parser = parse_positive, requires = "mirostat",
        visible_alias = "mirostat-ent"
    )]
    pub(crate) mirostat_tau: Option<f32>,
    /// Learning rate of Mirostat [default: 0.1]
    #[arg(
        long, value_name = "X", value_parser = parse_positive, requires = "mirostat",
        visible_alias = "mirostat-lr"
    )]
    pub(crate) mirostat_eta: Option<f32>,
    /// DRY penalty for tokens that continue a repetition: X * base ^ (length - allowed length)
    /// [default: 0]
    #[arg(long, value_name = "X", value_parser = parse_positive)]
    pub(crate) dry_multiplier: Option<f32>,
    /// Base of the DRY penalty [default: 1.75]
    #[arg(long, value_name = "X", value_parser = parse_base, requires = "dry_multiplier")]
    pub(crate) dry_base: Option<f32>,
    /// Length of a repetition in tokens from which the DRY penalty applies [default: 2]
    #[arg(long, value_name = "N", requires = "dry_multiplier")]
    pub(crate) dry_allowed_length: Option<usize>,
    /// Number of last tokens of the prompt and the answer that the DRY penalty considers [default:
    /// all]
    #[arg(
        long, value_name = "N", requires = "dry_multiplier",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub(crate) dry_penalty_last_n: Option<u64>,
    /// Text that ends a repetition for the DRY penalty, or none; \n, \t, \0 and \\ are escapes; may
    /// be given several times [default: \n : " *]
    #[arg(
        long, value_name = "TEXT", value_parser = parse_breaker, requires = "dry_multiplier"
    )]
    pub(crate) dry_sequence_breaker: Vec<Separator>,
    /// XTC sampling: probability that the likeliest tokens are excluded, all but the least likely
    /// of those above --xtc-threshold [default: 0]
    #[arg(long, value_name = "P", value_parser = parse_share)]
    pub(crate) xtc_probability: Option<f32>,
    /// Probability from which XTC sampling excludes a token, up to 0.5 [default: 0.1]
    #[arg(
        long, value_name = "P", value_parser = parse_threshold, requires = "xtc_probability"
    )]
    pub(crate) xtc_threshold: Option<f32>,
    /// Ban the tokens that end a text: generate --max-tokens tokens
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Minimum number of tokens to generate [default: the model's own, else 0]
    #[arg(long, value_name = "N", conflicts_with = "ignore_eos")]
    pub(crate) min_tokens: Option<usize>,
}

impl SamplingArgs {
    /// Whether there is any.
    pub(crate) fn are_given(&self) -> bool {
        *self != Self::default()
    }

    /// Tokens that have a bias and are given as ids.
    pub(crate) fn biased_ids(&self) -> Vec<i64> {
        let id = |(token, _): &(BiasedToken, f32)| match token {
            BiasedToken::Id(id) => Some(*id),
            BiasedToken::Text(_) => None,
        };
        self.logit_bias.iter().filter_map(id).collect()
    }
}

/// A token, by its id or its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BiasedToken {
    Id(i64),
    Text(String),
}

/// A token and what is added to its logit.
fn parse_bias(text: &str) -> Result<(BiasedToken, f32), String> {
    let (token, bias) = text
        .rsplit_once('=')
        .filter(|(token, _)| !token.is_empty())
        .ok_or_else(|| "it must be TOKEN=X".to_owned())?;
    let bias = match bias {
        "-inf" => f32::NEG_INFINITY,
        bias => number(bias, "a number, or -inf", |_| true)?,
    };
    let is_id = token.bytes().all(|byte| byte.is_ascii_digit());
    let token = match is_id {
        true => BiasedToken::Id(parse_token(token)?),
        false => BiasedToken::Text(token.to_owned()),
    };
    Ok((token, bias))
}

/// Longest sequence breaker, as in llama.cpp.
const LONGEST_BREAKER: usize = 40;

fn parse_breaker(text: &str) -> Result<Separator, String> {
    let breaker = parse_separator(text)?;
    match breaker.0.len() {
        1..=LONGEST_BREAKER => Ok(breaker),
        _ => Err(format!("it has 1 to {LONGEST_BREAKER} bytes")),
    }
}

fn parse_positive(text: &str) -> Result<f32, String> {
    number(text, "a number above 0", |number| number > 0.0)
}

fn parse_base(text: &str) -> Result<f32, String> {
    number(text, "1 or more", |number| number >= 1.0)
}

fn parse_threshold(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 0.5", |number| (0.0..=0.5).contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_name_a_token_by_id_or_text() {
        let text = |text: &str, bias| Ok((BiasedToken::Text(text.to_owned()), bias));
        assert_eq!(parse_bias("15=-2.5"), Ok((BiasedToken::Id(15), -2.5)));
        assert_eq!(parse_bias(" llama=1"), text(" llama", 1.0));
        assert_eq!(parse_bias("===-inf"), text("==", f32::NEG_INFINITY));
        for wrong in ["", "15", "=1", "15=", "15=inf", "15=nan", "5000000000=1"] {
            assert!(parse_bias(wrong).is_err(), "{wrong}");
        }
    }
}
