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
    /// Both factors contain the square roots of the singular values
    Svd,
    /// B and A of a LoRA adapter: A has orthonormal rows, B contains the singular values
    Lora,
}

/// Options about factors that the help of `convert` leaves to that of `factorize`.
pub(crate) const IN_FACTORIZE: [&str; 4] = ["lowrank", "rank", "energy", "dense"];

/// Arguments about low-rank factors.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Low-rank factorization")]
pub(crate) struct LowRankArgs {
    /// Form of the factors [default: svd, with --rank or --energy]
    #[arg(long, value_enum, value_name = "METHOD")]
    pub(crate) lowrank: Option<LowRank>,
    /// Number of singular values to keep per matrix
    #[arg(long, value_name = "R", conflicts_with = "energy")]
    pub(crate) rank: Option<NonZeroU64>,
    /// Share of the sum of squared singular values to keep
    #[arg(long, value_name = "E", value_parser = parse_energy)]
    pub(crate) energy: Option<f64>,
    /// Store sparse and factorized tensors of an .apr file as dense tensors
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
