//! Norms beside those of the other layers: one that is scaled far up still lies within the range
//! of its kind, and only its siblings show it (`docs/families.md`, "Ranges").

use std::collections::BTreeMap;

use apr_arch::{FamilyModel, TensorExpectation, TensorKind};
use apr_registry::TensorInfo;
use apr_tensor::stats::Stats;
use serde::{Deserialize, Serialize};

use super::{FEWEST_VALUES, Violation, expectation};

/// Layers that have to share a place before one of them can be an outlier.
const FEWEST_LAYERS: usize = 4;

/// Minimum ratio of an outlier's gain to the median.
///
/// The last norms of Whisper's encoders, as trained, are 5 to 6 times the median of their layers
/// (`fixtures/statistics`).
const MANY_TIMES: f64 = 10.0;

/// Minimum distance of an outlier, in robust standard deviations of the logarithms.
///
/// Norms behind the feed-forward layers of Gemma 3 reach 13 times their median at a distance of
/// 1.1: these layers differ widely as trained.
const FAR_OUT: f64 = 5.0;

/// Turns a median absolute deviation into the standard deviation of normal values.
const MAD_TO_STD: f64 = 1.4826;

/// The mean gain of a norm that has siblings in other layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Gain {
    /// Canonical name with `#` for the number of the layer, which is the same for all siblings.
    pub place: String,
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// Mean of the factors that the model multiplies with.
    pub mean: f64,
}

impl Gain {
    /// The gain of the tensor at this position; `None` if it is not the norm of a layer of a known
    /// family.
    #[must_use]
    pub fn of(
        model: Option<&FamilyModel<'_>>,
        position: usize,
        info: &TensorInfo,
        stats: &Stats,
    ) -> Option<Self> {
        let place = model?.place_in_layer(position)?;
        Self::at(&place, &info.name, expectation(model, position, info)?, stats)
    }

    /// The gain of a tensor in this place of its layer; `None` if it is not a norm.
    pub(crate) fn at(
        place: &str,
        tensor: &str,
        expected: TensorExpectation,
        stats: &Stats,
    ) -> Option<Self> {
        let mean = stats.mean? + expected.offset;
        let is_judged = expected.kind == TensorKind::NormGamma
            && stats.count >= FEWEST_VALUES
            && mean.is_finite();
        is_judged.then(|| Self { place: place.to_owned(), tensor: tensor.to_owned(), mean })
    }
}

/// Returns norms whose gains are far above the gains of the same norm in the other layers.
///
/// They are ordered by their places.
#[must_use]
pub fn outliers(gains: &[Gain]) -> Vec<(&str, Violation)> {
    let mut places: BTreeMap<&str, Vec<&Gain>> = BTreeMap::new();
    for gain in gains {
        places.entry(gain.place.as_str()).or_default().push(gain);
    }
    places.values().flat_map(|layers| among(layers)).collect()
}

/// The outliers of one place.
fn among<'g>(layers: &[&'g Gain]) -> Vec<(&'g str, Violation)> {
    // Gains of zero and below have no logarithm; they count as the smallest, so that many of them
    // make no norm look large beside the rest.
    let log = |gain: &Gain| gain.mean.max(f64::MIN_POSITIVE).ln();
    let logs: Vec<f64> = layers.iter().map(|gain| log(gain)).collect();
    let Some(center) = median(logs.clone()).filter(|_| layers.len() >= FEWEST_LAYERS) else {
        return Vec::new();
    };
    let deviations = logs.iter().map(|log| (log - center).abs()).collect();
    let spread = MAD_TO_STD * median(deviations).unwrap_or_default();

    let is_far = |log: f64| log - center > MANY_TIMES.ln() && log - center > FAR_OUT * spread;
    let far = layers.iter().zip(&logs).filter(|(_, log)| is_far(**log));
    let violation = |gain: &Gain| Violation::Siblings {
        mean: gain.mean,
        median: center.exp(),
        siblings: layers.len() - 1,
    };
    far.map(|(gain, _)| (gain.tensor.as_str(), violation(gain))).collect()
}

/// The median of numbers; of an even number of them the mean of the middle two.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *values.get(middle.checked_sub(1)?)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gains(means: &[f64]) -> Vec<Gain> {
        let gain = |(layer, mean): (usize, &f64)| Gain {
            place: "layers.#.attn_norm.weight".to_owned(),
            tensor: format!("layers.{layer}.attn_norm.weight"),
            mean: *mean,
        };
        means.iter().enumerate().map(gain).collect()
    }

    fn found(means: &[f64]) -> Vec<String> {
        let gains = gains(means);
        outliers(&gains).into_iter().map(|(tensor, found)| format!("{tensor}: {found}")).collect()
    }

    #[test]
    fn a_norm_at_fifty_times_its_siblings_is_reported_with_their_median() {
        assert_eq!(
            found(&[1.0, 1.1, 50.0, 0.9, 1.0]),
            ["layers.2.attn_norm.weight: the mean of this norm weight (gamma) is 50, 50 times \
              the median of this norm in all layers, 1 (4 siblings)"]
        );
    }

    #[test]
    fn layers_that_differ_widely_and_few_layers_have_no_outliers() {
        assert_eq!(found(&[0.5, 1.0, 4.0, 12.0, 40.0]), Vec::<String>::new(), "a wide spread");
        assert_eq!(found(&[1.0, 1.0, 50.0]), Vec::<String>::new(), "three layers");
        assert_eq!(found(&[1.0, 1.0, 9.9, 1.0]), Vec::<String>::new(), "below ten times");
        assert_eq!(found(&[1.0, 1.0, 0.001, 1.0]), Vec::<String>::new(), "a small one");
        assert_eq!(found(&[1.0, 1.0, -50.0, 1.0]), Vec::<String>::new(), "a negative one");
    }

    #[test]
    fn an_outlier_is_found_among_equal_siblings_without_spread() {
        assert_eq!(found(&[1.0, 1.0, 50.0, 1.0]).len(), 1);
    }

    #[test]
    fn norms_in_different_places_are_not_siblings() {
        let mut gains = gains(&[1.0, 1.0, 1.0, 50.0]);
        gains[3].place = "norm.weight".to_owned();
        assert_eq!(outliers(&gains), []);
    }
}
