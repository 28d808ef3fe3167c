//! Weights beside those in the same place of the other layers: a norm that is scaled far up still
//! lies within the range of its kind, and so does a matrix that is ten times too large. A weight
//! that equals another layer's is a copy. Only their siblings show it (`docs/families.md`,
//! "Ranges").

use std::collections::BTreeMap;

use apr_arch::{FamilyModel, TensorExpectation, TensorKind};
use apr_registry::{DType, TensorInfo};
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

/// Minimum ratio of a matrix's size to the size of the layer that is nearest to it.
///
/// Over the matrices of seven trained models with 4 to 30 layers (`fixtures/statistics`) the
/// largest is 2.4: values of SmolLM2's first layer.
const TIMES_THE_NEAREST: f64 = 4.0;
/// The same ratio among fewer than four layers, of which none is near in depth.
const TIMES_THE_NEAREST_OF_FEW: f64 = 8.0;

/// Minimum share of zeros in a matrix with a part that was lost.
const MANY_ZEROS: f64 = 0.03;
/// Maximum share of zeros in the other layers. Pruned and coarsely quantized models have more.
const FEW_ZEROS: f64 = 0.01;

/// Minimum number of values of a matrix. Statistics of fewer can be equal by chance.
const FEWEST_OF_MATRIX: u64 = 256;

/// A weight with siblings: the weights in the same place of other layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Sibling {
    /// Canonical name with `#` for the number of the layer, which is the same for all siblings.
    pub place: String,
    /// The tensor's name in the checkpoint.
    pub tensor: String,
    /// `true` for a norm, `false` for a matrix.
    pub is_norm: bool,
    /// Mean of the values; of a norm, the mean of the factors that the model multiplies with.
    pub mean: f64,
    /// Root mean square.
    pub size: f64,
    /// Smallest and largest value.
    pub extrema: [f64; 2],
    /// Type of the values as stored: types with few steps have more zeros than others.
    pub dtype: String,
    /// Number of zeros.
    pub zeros: u64,
    /// Number of values.
    pub count: u64,
}

impl Sibling {
    /// The tensor at this position; `None` if it is not a norm or a matrix in a layer of a known
    /// family.
    #[must_use]
    pub fn of(
        model: Option<&FamilyModel<'_>>,
        position: usize,
        info: &TensorInfo,
        stats: &Stats,
    ) -> Option<Self> {
        let place = model?.place_in_layer(position)?;
        Self::at(&place, (&info.name, info.dtype), expectation(model, position, info)?, stats)
    }

    /// A tensor in this place of its layer; `None` if it is neither a norm nor a matrix.
    pub(crate) fn at(
        place: &str,
        (tensor, dtype): (&str, DType),
        expected: TensorExpectation,
        stats: &Stats,
    ) -> Option<Self> {
        let mean = stats.mean? + expected.offset;
        let (is_norm, fewest) = match expected.kind {
            TensorKind::NormGamma => (true, FEWEST_VALUES),
            TensorKind::Linear => (false, FEWEST_OF_MATRIX),
            _ => return None,
        };
        let is_judged = stats.count >= fewest && mean.is_finite() && stats.nan + stats.inf == 0;
        #[expect(clippy::cast_precision_loss, reason = "a mean takes no exact count")]
        let size = stats.l2 / (stats.count as f64).sqrt();
        is_judged.then(|| Self {
            place: place.to_owned(),
            tensor: tensor.to_owned(),
            is_norm,
            mean,
            size,
            extrema: [stats.min.unwrap_or_default(), stats.max.unwrap_or_default()],
            dtype: dtype.to_string(),
            zeros: stats.zeros,
            count: stats.count,
        })
    }

    /// Share of zeros.
    #[expect(clippy::cast_precision_loss, reason = "a share takes no exact count")]
    fn zero_share(&self) -> f64 {
        self.zeros as f64 / self.count as f64
    }

    /// Returns `true` if all statistics are equal, of values that are not all the same.
    fn equals(&self, other: &Self) -> bool {
        let told = |it: &Self| (it.mean, it.size, it.extrema, it.zeros, it.count);
        self.extrema[0] < self.extrema[1] && told(self) == told(other)
    }
}

/// Returns weights that differ from the same weight in the other layers as no training makes them,
/// and matrices that equal another layer's.
///
/// They are ordered by their places.
#[must_use]
pub fn outliers<'g>(siblings: &'g [Sibling]) -> Vec<(&'g str, Violation)> {
    let mut places: BTreeMap<&str, Vec<&Sibling>> = BTreeMap::new();
    for sibling in siblings {
        places.entry(sibling.place.as_str()).or_default().push(sibling);
    }
    let judged = |layers: &Vec<&'g Sibling>| match layers.first() {
        Some(Sibling { is_norm: false, .. }) => matrices(layers),
        _ => norms(layers),
    };
    places.values().flat_map(judged).collect()
}

/// The outliers among the norms of one place.
fn norms<'g>(layers: &[&'g Sibling]) -> Vec<(&'g str, Violation)> {
    // Gains of zero and below have no logarithm; they count as the smallest, so that many of them
    // make no norm look large beside the rest.
    let log = |gain: &Sibling| gain.mean.max(f64::MIN_POSITIVE).ln();
    let logs: Vec<f64> = layers.iter().map(|gain| log(gain)).collect();
    let Some(center) = median(logs.clone()).filter(|_| layers.len() >= FEWEST_LAYERS) else {
        return Vec::new();
    };
    let deviations = logs.iter().map(|log| (log - center).abs()).collect();
    let spread = MAD_TO_STD * median(deviations).unwrap_or_default();

    let is_far = |log: f64| log - center > MANY_TIMES.ln() && log - center > FAR_OUT * spread;
    let far = layers.iter().zip(&logs).filter(|(_, log)| is_far(**log));
    let violation = |gain: &Sibling| Violation::Siblings {
        mean: gain.mean,
        median: center.exp(),
        siblings: layers.len() - 1,
    };
    far.map(|(gain, _)| (gain.tensor.as_str(), violation(gain))).collect()
}

/// The outliers among the matrices of one place, and those that equal another.
///
/// Where nothing shows which of two is wrong, there is one violation for both: each would be
/// reported for the other's damage.
fn matrices<'g>(layers: &[&'g Sibling]) -> Vec<(&'g str, Violation)> {
    let is_deepened = is_deepened(layers);
    let judged = layers.iter().enumerate().filter_map(|(at, layer)| {
        let copied = layers[..at].iter().find(|before| !is_deepened && layer.equals(before));
        if let Some(copied) = copied {
            let repeated = Violation::Repeated { sibling: copied.tensor.clone() };
            return Some((layer.tensor.as_str(), repeated));
        }
        let others = layers.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<&Sibling> = others.map(|(_, other)| *other).collect();
        Some((layer.tensor.as_str(), beside(layer, &others)?))
    });
    let mut judged: Vec<(&str, Violation)> = judged.collect();
    if let ([first, second], [(_, Violation::Size { .. }), (_, Violation::Size { .. })]) =
        (layers, &*judged)
    {
        // It is reported for the larger one.
        let (kept, other) = if second.size > first.size { (1, first) } else { (0, second) };
        judged.swap(0, kept);
        judged.truncate(1);
        if let (_, Violation::Size { of_two, .. }) = &mut judged[0] {
            *of_two = Some(other.tensor.clone());
        }
    }
    judged
}

/// Returns `true` if several different layers occur twice: a merge that repeats layers makes a
/// model deeper so. A mistake repeats one.
fn is_deepened(layers: &[&Sibling]) -> bool {
    let mut repeated: Vec<&Sibling> = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        let is_again = layers[..at].iter().any(|before| layer.equals(before));
        if is_again && !repeated.iter().any(|known| known.equals(layer)) {
            repeated.push(layer);
        }
    }
    repeated.len() > 1
}

/// What is odd about a matrix beside the others of its place.
fn beside(layer: &Sibling, others: &[&Sibling]) -> Option<Violation> {
    let stored = others.iter().filter(|other| other.dtype == layer.dtype);
    let shares: Vec<f64> = stored.map(|other| other.zero_share()).collect();
    let share = layer.zero_share();
    if let Some(most) = shares.iter().copied().reduce(f64::max)
        && share >= MANY_ZEROS
        && most <= FEW_ZEROS
    {
        return Some(Violation::Zeros { share, most, siblings: shares.len() });
    }
    let few = others.len() + 1 < FEWEST_LAYERS;
    let times = if few { TIMES_THE_NEAREST_OF_FEW } else { TIMES_THE_NEAREST };
    let ratio = |other: &&&Sibling| (layer.size / other.size).ln().abs();
    let sized = others.iter().filter(|other| other.size > 0.0 && layer.size > 0.0);
    let nearest = sized.min_by(|one, other| ratio(one).total_cmp(&ratio(other)))?;
    (ratio(&nearest) > times.ln()).then_some(Violation::Size {
        size: layer.size,
        nearest: nearest.size,
        siblings: others.len(),
        of_two: None,
    })
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

    fn gains(means: &[f64]) -> Vec<Sibling> {
        let gain = |(layer, mean): (usize, &f64)| Sibling {
            place: "layers.#.attn_norm.weight".to_owned(),
            tensor: format!("layers.{layer}.attn_norm.weight"),
            is_norm: true,
            mean: *mean,
            size: *mean,
            extrema: [*mean, *mean],
            dtype: DType::F32.to_string(),
            zeros: 0,
            count: 64,
        };
        means.iter().enumerate().map(gain).collect()
    }

    /// Matrices with these sizes and numbers of zeros in a thousand values.
    fn matrices(layers: &[(f64, u64)]) -> Vec<Sibling> {
        let matrix = |(layer, (size, zeros)): (usize, &(f64, u64))| Sibling {
            place: "layers.#.up_proj.weight".to_owned(),
            tensor: format!("layers.{layer}"),
            is_norm: false,
            mean: 0.0,
            size: *size,
            extrema: [-3.0 * size, 3.0 * size],
            dtype: DType::F32.to_string(),
            zeros: *zeros,
            count: 1000,
        };
        layers.iter().enumerate().map(matrix).collect()
    }

    fn odd(layers: &[(f64, u64)]) -> Vec<String> {
        let matrices = matrices(layers);
        outliers(&matrices).into_iter().map(|(name, found)| format!("{name}: {found}")).collect()
    }

    #[test]
    fn a_matrix_ten_times_as_large_or_small_as_in_any_other_layer_is_reported() {
        assert_eq!(
            odd(&[(0.5, 0), (0.04, 0), (0.05, 0), (0.02, 0)]),
            ["layers.0: the root mean square of this weight is 0.5, 10 times that of the nearest \
              of 3 siblings in other layers, 0.05"]
        );
        assert_eq!(
            odd(&[(0.002, 0), (0.04, 0), (0.05, 0), (0.02, 0)]),
            ["layers.0: the root mean square of this weight is 0.002, a 10th of that of the \
              nearest of 3 siblings in other layers, 0.02"]
        );
    }

    #[test]
    fn matrices_that_grow_from_layer_to_layer_and_two_that_differ_are_sound() {
        assert_eq!(odd(&[(0.01, 0), (0.03, 0), (0.1, 0), (0.3, 0)]), Vec::<String>::new());
        assert_eq!(odd(&[(0.01, 0), (0.05, 0)]), Vec::<String>::new());
    }

    #[test]
    fn two_layers_that_differ_are_one_violation_that_names_both() {
        assert_eq!(
            odd(&[(0.01, 0), (0.1, 0)]),
            ["layers.1: the root mean square of this weight is 0.1, 10 times that of its only \
              sibling in other layers, 'layers.0', 0.01: one of them is wrong"]
        );
    }

    #[test]
    fn a_copy_of_a_layer_is_reported_with_what_it_was_copied_from() {
        let copies = odd(&[(0.04, 1), (0.05, 0), (0.05, 0), (0.02, 0)]);
        assert_eq!(
            copies,
            ["layers.2: this weight has exactly the mean, deviation and range of a sibling in \
              other layers, 'layers.1': one is a copy of the other"]
        );
        assert_eq!(odd(&[(0.05, 0), (0.05, 0)]).len(), 1);
    }

    #[test]
    fn several_layers_that_occur_twice_are_a_deeper_model() {
        let repeated = [(0.04, 1), (0.05, 0), (0.04, 1), (0.05, 0), (0.02, 0)];
        assert_eq!(odd(&repeated), Vec::<String>::new());
        let all_the_same = [(0.04, 1), (0.04, 1), (0.04, 1), (0.05, 0)];
        assert_eq!(odd(&all_the_same).len(), 2, "two copies of the first");
    }

    #[test]
    fn zeros_are_compared_among_layers_of_one_type() {
        let mut layers = matrices(&[(0.04, 62), (0.05, 0), (0.06, 1)]);
        layers[0].dtype = DType::Q4_0.to_string();
        assert_eq!(outliers(&layers), [], "no other of its type");
        layers[1].dtype = DType::Q4_0.to_string();
        assert_eq!(outliers(&layers).len(), 1);
    }

    #[test]
    fn a_part_of_zeros_is_reported_where_other_layers_have_none() {
        assert_eq!(
            odd(&[(0.04, 62), (0.05, 0), (0.06, 1)]),
            ["layers.0: 6.2 % of the values of this weight are zero, at most 0.1 % in 2 siblings \
              in other layers"]
        );
        assert_eq!(odd(&[(0.04, 62), (0.05, 20), (0.06, 1)]), Vec::<String>::new(), "pruned");
        assert_eq!(odd(&[(0.0, 1000), (0.05, 2), (0.06, 1)]).len(), 1, "all of them");
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
