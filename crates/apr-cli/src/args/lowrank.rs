use std::num::NonZeroU64;

use apr_lowrank::{Amount, Method};
use clap::{Args, ValueEnum};

/// A share above 0 and at most 1.
pub(super) fn parse_energy(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("expected a share above 0 and at most 1, such as 0.95".to_owned()),
    }
}

/// What the factors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LowRank {
    /// Each has the roots of the singular values
    Svd,
    /// As B and A of a LoRA adapter: A has orthonormal rows, B the singular values
    Lora,
}

/// Options about factors that the help of `convert` leaves to that of `factorize`.
pub(crate) const IN_FACTORIZE: [&str; 4] = ["lowrank", "rank", "energy", "dense"];

/// Arguments about low-rank factors.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Low-rank factorization")]
pub(crate) struct LowRankArgs {
    /// What the factors are [default: svd, where --rank or --energy is given]
    #[arg(long, value_enum, value_name = "METHOD")]
    pub(crate) lowrank: Option<LowRank>,
    /// Keep so many singular values of each matrix
    #[arg(long, value_name = "R", conflicts_with = "energy")]
    pub(crate) rank: Option<NonZeroU64>,
    /// Keep as many singular values as have this share of the sum of their squares
    #[arg(long, value_name = "E", value_parser = parse_energy)]
    pub(crate) energy: Option<f64>,
    /// Store sparse tensors and factors of an .apr file dense again
    #[arg(long, conflicts_with_all = ["lowrank", "rank", "energy", "sparse"])]
    pub(crate) dense: bool,
}

impl LowRankArgs {
    /// Whether weights are factorized.
    pub(crate) fn is_asked(&self) -> bool {
        self.lowrank.is_some() || self.amount().is_some()
    }

    /// How much is kept.
    pub(crate) fn amount(&self) -> Option<Amount> {
        amount(self.rank, self.energy)
    }

    /// What the factors are.
    pub(crate) fn method(&self) -> Method {
        match self.lowrank {
            Some(LowRank::Lora) => Method::Lora,
            Some(LowRank::Svd) | None => Method::Svd,
        }
    }
}

/// How much is kept by a rank or a share of the energy.
pub(super) fn amount(rank: Option<NonZeroU64>, energy: Option<f64>) -> Option<Amount> {
    rank.map(|rank| Amount::Rank(rank.get())).or(energy.map(Amount::Energy))
}
