//! Perplexity of a text, and how far the predictions of one model are from those of another.

use std::sync::OnceLock;

use apr_core::Error;
use apr_run::{Prepared, RunError, RunResult};
use serde::Serialize;

use crate::moments::{Distribution, Estimate, PairMoments, mean_of};
use crate::scores::{LogProbabilities, Logits, no_number};
use crate::windows::{Window, Windows};

/// Per cents of the distribution of divergences, as llama-perplexity prints them.
const DIVERGENCE_PERCENTS: [f64; 8] = [99.9, 99.0, 95.0, 90.0, 10.0, 5.0, 1.0, 0.1];

/// Per cents of the distribution of a probability's changes, as llama-perplexity prints them.
const CHANGE_PERCENTS: [f64; 10] = [99.9, 99.0, 95.0, 90.0, 75.0, 25.0, 10.0, 5.0, 1.0, 0.1];

/// Receives the number of windows that are done.
pub type Done<'d> = dyn FnMut(usize) + 'd;

/// Perplexity of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PerplexityReport {
    /// Windows of the text.
    pub chunks: usize,
    /// Tokens of a window.
    pub context: usize,
    /// Tokens that were scored.
    pub scored: usize,
    /// Mean negative log-likelihood of a token, natural logarithm.
    pub negative_log_likelihood: Estimate,
    /// Exponential of the mean loss.
    pub perplexity: Estimate,
}

/// Difference between the predictions of a model (Q) and of another (base) on the same text.
///
/// The statistics are those of `llama-perplexity --kl-divergence`, computed from probabilities
/// without rounding to 16 bits.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DivergenceReport {
    /// Perplexity of the base.
    pub base: PerplexityReport,
    /// Perplexity of the other.
    pub other: PerplexityReport,
    /// Correlation of the logarithms of the two perplexities, from -1 to 1.
    pub correlation: f64,
    /// ln(PPL(Q) / PPL(base)).
    pub log_ratio: Estimate,
    /// PPL(Q) / PPL(base).
    pub ratio: Estimate,
    /// PPL(Q) - PPL(base).
    pub difference: Estimate,
    /// Kullback-Leibler divergence of a token's predictions from the base's, in nats.
    pub kl_divergence: Distribution,
    /// Change of the right token's probability, from -1 to 1.
    pub probability_change: Distribution,
    /// Root mean square of that change.
    pub probability_rms: Estimate,
    /// Share of tokens for which both models find the same token likeliest.
    pub same_top: Estimate,
}

impl PerplexityReport {
    fn of(windows: &Windows, scored: usize, likelihood: Estimate) -> Self {
        Self {
            chunks: windows.len(),
            context: windows.context(),
            scored,
            negative_log_likelihood: likelihood,
            perplexity: likelihood.exp(),
        }
    }
}

/// The perplexity of a text.
///
/// # Errors
/// E003 for a model that does not continue texts, E001 where it gives no probabilities, and those
/// of [`Prepared::run`].
pub fn perplexity(
    part: &Prepared<'_>,
    windows: &Windows,
    done: &mut Done<'_>,
) -> RunResult<PerplexityReport> {
    let (mut moments, mut scored) = (PairMoments::default(), 0);
    for (chunk, window) in windows.iter().enumerate() {
        let logits = Logits::of(part, &window)?;
        let floats = logits.floats()?;
        let likelihood = |at: usize, token: i64| -logits.row(&floats, at).get(token);
        for likelihood in of_targets(part, &window, likelihood) {
            if !likelihood.is_finite() {
                return Err(no_number("the model", chunk));
            }
            moments.add([likelihood, 0.0]);
            scored += 1;
        }
        done(chunk + 1);
    }
    Ok(PerplexityReport::of(windows, scored, moments.mean(0)))
}

/// Computes a value for each target of a window on the model's workers, and returns them in order.
fn of_targets<T: Send + Sync>(
    part: &Prepared<'_>,
    window: &Window,
    of: impl Fn(usize, i64) -> T + Sync,
) -> Vec<T> {
    let found: Vec<OnceLock<T>> = window.targets.iter().map(|_| OnceLock::new()).collect();
    part.runner().host().workers().run(found.len(), &|at| {
        found[at].get_or_init(|| of(at, window.targets[at]));
    });
    found.into_iter().filter_map(OnceLock::into_inner).collect()
}

/// Sums over a comparison of two models.
#[derive(Default)]
struct Sums {
    /// Negative log-likelihoods of Q and of the base.
    likelihoods: PairMoments,
    divergences: Vec<f64>,
    changes: Vec<f64>,
    same: usize,
}

/// Compares the predictions of two models; their vocabularies are the same, and one window of each
/// is in memory at a time.
///
/// # Errors
/// [`RunError::Request`] for vocabularies of different sizes; else as [`perplexity`].
pub fn divergence(
    base: &Prepared<'_>,
    other: &Prepared<'_>,
    windows: &Windows,
    done: &mut Done<'_>,
) -> RunResult<DivergenceReport> {
    let vocabulary = other.runner().facts().vocabulary().unwrap_or(usize::MAX);
    let is_beyond = |token: &&i64| usize::try_from(**token).map_or(true, |at| at >= vocabulary);
    if let Some(token) = windows.tokens().iter().find(is_beyond) {
        return Err(RunError::request(format!(
            "the vocabularies differ: the text has token {token}, and B has {vocabulary} tokens"
        )));
    }

    let mut sums = Sums::default();
    for (chunk, window) in windows.iter().enumerate() {
        let (left, right) = (Logits::of(base, &window)?, Logits::of(other, &window)?);
        check_widths(&left, &right)?;
        let floats = [left.floats()?, right.floats()?];
        let compared = of_targets(base, &window, |at, token| {
            Compared::of(&left.row(&floats[0], at), &right.row(&floats[1], at), token)
        });
        compared.iter().try_for_each(|token| sums.add(token, chunk))?;
        done(chunk + 1);
    }
    Ok(sums.report(windows))
}

/// Predictions of a model on a text, to compare other models with.
pub struct Predictions(Vec<Logits>);

impl Predictions {
    /// Computes the predictions of a model, in at most `most` bytes.
    ///
    /// # Errors
    /// E008 if they need more memory; otherwise the errors of [`perplexity`].
    pub fn of(part: &Prepared<'_>, windows: &Windows, most: u64) -> RunResult<Self> {
        let (mut kept, mut bytes) = (Vec::new(), 0);
        for window in windows.iter() {
            let logits = Logits::of_all(part, &window)?;
            bytes += logits.bytes();
            if bytes > most {
                return Err(Error::memory(format!(
                    "predictions of {} windows of {} tokens take more than {most} bytes",
                    windows.len(),
                    windows.context()
                ))
                .into());
            }
            kept.push(logits);
        }
        Ok(Self(kept))
    }
}

/// Distance between predictions, by two measures.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Distance {
    /// KL divergence in nats, as [`divergence`] finds it: over the second half of each window.
    pub divergence: f64,
    /// KL divergence of predictions that are softened by a temperature, times its square, over all
    /// positions. Where a model is nearly certain, divergence is a matter of few tokens, whose mean
    /// over a short text says little; softened predictions differ by the logits of all of them
    /// (Hinton et al. 2015, "Distilling the Knowledge in a Neural Network").
    pub softened: f64,
}

impl Predictions {
    /// Returns the distance to the predictions of another model with the same vocabulary.
    ///
    /// # Errors
    /// Returns the errors of [`divergence`].
    pub fn distance(
        &self,
        other: &Prepared<'_>,
        windows: &Windows,
        temperature: f64,
    ) -> RunResult<Distance> {
        let mut found = [(0.0, 0_usize); 2];
        for ((chunk, window), left) in windows.iter().enumerate().zip(&self.0) {
            let right = Logits::of_all(other, &window)?;
            check_widths(left, &right)?;
            let floats = [left.floats()?, right.floats()?];
            for (row, (p, q)) in
                left.all_rows(&floats[0]).zip(right.all_rows(&floats[1])).enumerate()
            {
                found[1].0 += divergence_of(&p.softened(temperature), &q.softened(temperature));
                found[1].1 += 1;
                if left.is_scored(row) {
                    found[0].0 += divergence_of(&p, &q);
                    found[0].1 += 1;
                }
            }
            if found.iter().any(|(sum, _)| !sum.is_finite()) {
                return Err(no_number("B", chunk));
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "counts fit a double")]
        let [divergence, softened] = found.map(|(sum, count)| sum / count.max(1) as f64);
        Ok(Distance { divergence, softened: softened * temperature.powi(2) })
    }
}

/// Returns the KL divergence.
///
/// A token with probability zero in the base does not contribute.
fn divergence_of(base: &LogProbabilities<'_>, other: &LogProbabilities<'_>) -> f64 {
    let terms = base.iter().zip(other.iter()).filter(|(p, _)| *p > f64::NEG_INFINITY);
    terms.map(|(p, q)| p.exp() * (p - q)).sum()
}

fn check_widths(left: &Logits, right: &Logits) -> RunResult<()> {
    if left.width() == right.width() {
        return Ok(());
    }
    Err(RunError::request(format!(
        "the vocabularies differ: {} tokens and {}",
        left.width(),
        right.width()
    )))
}

/// Predictions of two models for a token.
struct Compared {
    /// Logarithms of the right token's probability, by the base and by the other.
    log_probabilities: [f64; 2],
    divergence: f64,
    has_same_top: bool,
}

impl Compared {
    fn of(base: &LogProbabilities<'_>, other: &LogProbabilities<'_>, token: i64) -> Self {
        Self {
            log_probabilities: [base.get(token), other.get(token)],
            divergence: divergence_of(base, other),
            has_same_top: base.top == other.top,
        }
    }
}

impl Sums {
    fn add(&mut self, token: &Compared, chunk: usize) -> RunResult<()> {
        let [p, q] = token.log_probabilities;
        for (name, value) in [("A", p), ("B", q), ("B", token.divergence)] {
            if !value.is_finite() {
                return Err(no_number(name, chunk));
            }
        }
        self.likelihoods.add([-q, -p]);
        self.divergences.push(token.divergence);
        self.changes.push(q.exp() - p.exp());
        self.same += usize::from(token.has_same_top);
        Ok(())
    }

    fn report(mut self, windows: &Windows) -> DivergenceReport {
        let scored = self.divergences.len();
        let [q, base] = [0, 1].map(|at| self.likelihoods.mean(at));
        let covariance = self.likelihoods.covariance();
        let [other, base_report] =
            [q, base].map(|likelihood| PerplexityReport::of(windows, scored, likelihood));
        let spread = |error: [f64; 2], covariance: f64| {
            (error[0].powi(2) + error[1].powi(2) - 2.0 * covariance).max(0.0).sqrt()
        };

        let log_ratio = Estimate {
            value: q.value - base.value,
            error: spread([q.error, base.error], covariance),
        };
        let [ppl, base_ppl] = [other.perplexity, base_report.perplexity];
        let difference = Estimate {
            value: ppl.value - base_ppl.value,
            error: spread([ppl.error, base_ppl.error], ppl.value * base_ppl.value * covariance),
        };

        let product = q.error * base.error;
        let squares = mean_of(self.changes.iter().map(|change| change * change));
        let same_flags = (0..scored).map(|at| if at < self.same { 1.0 } else { 0.0 });
        DivergenceReport {
            correlation: if product > 0.0 { covariance / product } else { 1.0 },
            log_ratio,
            ratio: log_ratio.exp(),
            difference,
            kl_divergence: Distribution::of(&mut self.divergences, &DIVERGENCE_PERCENTS),
            probability_rms: squares.sqrt(),
            probability_change: Distribution::of(&mut self.changes, &CHANGE_PERCENTS),
            same_top: mean_of(same_flags),
            base: base_report,
            other,
        }
    }
}
