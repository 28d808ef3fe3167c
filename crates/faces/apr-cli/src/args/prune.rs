use std::num::NonZeroU64;

use apr_prune::{LayerChoice, SparseLayout};
use clap::{Args, ValueEnum};

/// A share from 0 to 1. Nothing is pruned for 0.
fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a share above 0 and up to 1, such as 0.5".to_owned()),
    }
}

fn parse_threshold(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(threshold) if threshold.is_finite() && threshold > 0.0 => Ok(threshold),
        _ => Err("expected a positive number, such as 0.01".to_owned()),
    }
}

/// How many of how many weights stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatternNm {
    pub(crate) keep: usize,
    pub(crate) of: usize,
}

fn parse_pattern(text: &str) -> Result<PatternNm, String> {
    let numbers = text.split_once(':').map(|(keep, of)| (keep.parse(), of.parse()));
    match numbers {
        Some((Ok(keep), Ok(of))) if 0 < keep && keep < of && of <= 256 => {
            Ok(PatternNm { keep, of })
        }
        _ => Err("expected N:M with N below M, such as 2:4".to_owned()),
    }
}

/// How tensors are stored without zeros.
fn parse_sparse(text: &str) -> Result<SparseLayout, String> {
    let block = text.strip_prefix("block:").map(str::parse::<u32>);
    match (text, block) {
        ("csr", _) => Ok(SparseLayout::Csr),
        (_, Some(Ok(block))) if (1..=256).contains(&block) => Ok(SparseLayout::Bsr { block }),
        _ => Err("expected csr, or block:B with B from 1 to 256".to_owned()),
    }
}

/// A number of layers, or a list of them: `2`, or `3,7,9-11`.
pub(super) fn parse_layers(text: &str) -> Result<LayerChoice, String> {
    const EXPECTED: &str = "expected a number of layers, such as 2, or a list, such as 3,7,9-11 or \
                            3, (with a comma) for one";
    const MOST: u64 = 1 << 16;

    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|number| *number < MOST);
    if let Some(count) = number(text) {
        return usize::try_from(count).map(LayerChoice::Count).map_err(|_| EXPECTED.to_owned());
    }
    let mut listed = Vec::new();
    for part in text.trim_end_matches(',').split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => listed.extend(first..=last),
            _ => return Err(EXPECTED.to_owned()),
        }
    }
    Ok(LayerChoice::Listed(listed))
}

/// What a share of weights is a share of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PruneScope {
    /// Each tensor
    Tensor,
    /// All tensors together; tensors with smaller weights lose more
    Global,
}

/// What a calibration run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PruneMethod {
    /// Weigh magnitudes by the norms of inputs
    Wanda,
    /// Use second-order statistics of the inputs and update the remaining weights, layer by layer
    Sparsegpt,
    /// Weigh magnitudes by the gradients of the texts' next tokens
    Fisher,
}

/// Options about pruning that the help of `convert` leaves to that of `prune`.
pub(crate) const IN_PRUNE: [&str; 9] = [
    "prune_scope",
    "prune_method",
    "prune_nm",
    "prune_threshold",
    "prune_layers",
    "prune_heads",
    "prune_neurons",
    "sparse",
    "threshold",
];

/// The option that chooses tensors, which `factorize` has, too.
pub(crate) const TARGET: &str = "target";

/// Arguments about pruning.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Pruning")]
pub(crate) struct PruneArgs {
    /// Set this share of each matrix to zero, smallest first; with --calibration, by Wanda
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub(crate) prune: Option<f64>,
    /// Scope of --prune: each tensor, or all tensors together [default: tensor]
    #[arg(long, value_enum, value_name = "SCOPE", requires = "prune", hide_short_help = true)]
    pub(crate) prune_scope: Option<PruneScope>,
    /// Use of the --calibration data [default: wanda]
    #[arg(long, alias = "prune-by", value_enum, value_name = "METHOD", hide_short_help = true)]
    pub(crate) prune_method: Option<PruneMethod>,
    /// Keep N of each M consecutive weights of a row, such as 2:4
    #[arg(
        long, value_name = "N:M", value_parser = parse_pattern,
        conflicts_with_all = ["prune", "prune_threshold"], hide_short_help = true
    )]
    pub(crate) prune_nm: Option<PatternNm>,
    /// Set weights of smaller magnitude to zero
    #[arg(
        long, value_name = "X", value_parser = parse_threshold, conflicts_with = "prune",
        hide_short_help = true
    )]
    pub(crate) prune_threshold: Option<f32>,
    /// Remove layers: a number (before the last layer; with --calibration, the layers that change
    /// their input least), or a list such as 3,7,9-11, counted from 0
    #[arg(long, value_name = "LAYERS", value_parser = parse_layers, hide_short_help = true)]
    pub(crate) prune_layers: Option<LayerChoice>,
    /// Remove N attention heads per layer, smallest weights first; heads that share keys and values
    /// are removed together
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub(crate) prune_heads: Option<NonZeroU64>,
    /// Remove N feed-forward neurons per layer, smallest weights first
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub(crate) prune_neurons: Option<NonZeroU64>,
    /// Store tensors in .apr output without their zeros if that is smaller: csr, or block:B for
    /// square blocks of B rows
    #[arg(long, value_name = "LAYOUT", value_parser = parse_sparse, hide_short_help = true)]
    pub(crate) sparse: Option<SparseLayout>,
    /// Same as --prune-threshold, with --sparse
    #[arg(
        long, value_name = "X", value_parser = parse_threshold, requires = "sparse",
        conflicts_with_all = ["prune", "prune_nm", "prune_threshold"], hide_short_help = true
    )]
    pub(crate) threshold: Option<f32>,
    /// Tensors to prune or factorize, by name [default: matrices and convolution kernels, without
    /// embeddings and the output projection]
    #[arg(long, value_name = "GLOB", hide_short_help = true)]
    pub(crate) target: Option<String>,
}

impl PruneArgs {
    /// Whether weights become zero.
    pub(crate) fn has_zeros(&self) -> bool {
        self.prune.is_some() || self.prune_nm.is_some() || self.threshold().is_some()
    }

    /// Whether layers go that inputs may choose.
    pub(crate) fn counts_layers(&self) -> bool {
        matches!(self.prune_layers, Some(LayerChoice::Count(_)))
    }

    /// Whether heads or neurons go, and nothing else, by gradients.
    pub(crate) fn weighs_units(&self) -> bool {
        (self.prune_heads.is_some() || self.prune_neurons.is_some())
            && !self.has_zeros()
            && self.prune_layers.is_none()
            && self.prune_method == Some(PruneMethod::Fisher)
    }

    /// Whether layers, heads or neurons go.
    pub(crate) fn has_less(&self) -> bool {
        let of_layers = self.prune_heads.is_some() || self.prune_neurons.is_some();
        of_layers || self.prune_layers.is_some()
    }

    /// The magnitude below which weights become zero.
    pub(crate) fn threshold(&self) -> Option<f32> {
        self.prune_threshold.or(self.threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_a_number_or_a_list() {
        assert_eq!(parse_layers("2"), Ok(LayerChoice::Count(2)));
        assert_eq!(parse_layers("2,"), Ok(LayerChoice::Listed(vec![2])));
        assert_eq!(parse_layers("3,7,9-11"), Ok(LayerChoice::Listed(vec![3, 7, 9, 10, 11])));
        for wrong in ["", "a", "3-1", "1,,2", "-1", "0-99999999", "18446744073709551616"] {
            assert!(parse_layers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_keep_fewer_than_there_are() {
        assert_eq!(parse_pattern("2:4"), Ok(PatternNm { keep: 2, of: 4 }));
        for wrong in ["", "2", "4:4", "0:4", "2:0", "2:4:8", "-1:4"] {
            assert!(parse_pattern(wrong).is_err(), "{wrong}");
        }
    }
}
