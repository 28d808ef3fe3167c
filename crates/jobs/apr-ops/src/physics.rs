//! Whether a tensor's values are plausible for a valid model (`docs/families.md`, "Ranges").

mod orientation;
mod siblings;

use apr_arch::{FamilyModel, Range, TensorExpectation, TensorKind};
use apr_registry::{DType, TensorInfo};
use apr_source::adapter::starts_at_zero;
use apr_tensor::stats::Stats;
use serde::{Deserialize, Serialize};

use apr_core::{Escaped, NotFinite, number};

pub use orientation::{Orientation, TurnedPair, orientation};
pub use siblings::{Sibling, outliers};

/// End of what is said of a weight beside the same weight in other layers.
pub const IN_OTHER_LAYERS: &str = "in other layers";

/// Minimum number of values for which mean and deviation are meaningful.
const FEWEST_VALUES: u64 = 8;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The model should not be used.
    Error,
    /// Odd, worth a look.
    Warning,
}

/// Error found in a tensor's values.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Violation {
    /// Values that are not a number.
    Nan {
        /// Number of such values.
        count: u64,
        /// Total number of values.
        of: u64,
    },
    /// Infinite values.
    Infinite {
        /// Number of such values.
        count: u64,
        /// Total number of values.
        of: u64,
    },
    /// The bytes do not match the checksum that the source gives for them.
    Checksum {
        /// Checksum stated by the source.
        stated: u32,
        /// Checksum of the bytes.
        found: u32,
    },
    /// Every value is zero.
    Zero,
    /// The mean is outside the range for this kind of tensor.
    Mean {
        /// Mean of the tensor.
        mean: f64,
        /// Expected range of the mean.
        expected: Range,
        /// Kind of the tensor.
        kind: TensorKind,
        /// `true` if the tensor is corrupt and not only unusual.
        ///
        /// Its values are nearly the same, which no training produces.
        must: bool,
    },
    /// The standard deviation is outside the range for this kind of tensor.
    Std {
        /// The standard deviation.
        std: f64,
        /// Expected range of the standard deviation.
        expected: Range,
        /// Kind of the tensor.
        kind: TensorKind,
    },
    /// A norm's mean gain is many times the mean gain of the norm in the other layers
    /// ([`outliers`]).
    Siblings {
        /// Mean of the factors that the model multiplies with.
        mean: f64,
        /// The median of these means in all layers.
        median: f64,
        /// The number of other layers with this norm.
        siblings: usize,
    },
    /// A matrix is many times larger or smaller than in every other layer ([`outliers`]).
    Size {
        /// Root mean square of its values.
        size: f64,
        /// The root mean square that is nearest to it in the other layers.
        nearest: f64,
        /// The number of other layers with this matrix.
        siblings: usize,
        /// The matrix of the other one of two layers. Which of them is wrong is not known.
        of_two: Option<String>,
    },
    /// A matrix has the statistics of the same matrix in another layer: one is a copy
    /// ([`outliers`]).
    Repeated {
        /// The first matrix that it equals.
        sibling: String,
    },
    /// A part of a matrix is zero, and hardly any value in the other layers ([`outliers`]).
    Zeros {
        /// Share of the values that are zero.
        share: f64,
        /// The largest share in the other layers.
        most: f64,
        /// The number of other layers with this matrix.
        siblings: usize,
    },
    /// Quants that no symmetric quantizer writes: -128 where values lie in [-127, 127].
    Quants {
        /// Number of such values.
        count: u64,
        /// The tensor's dtype.
        dtype: DType,
    },
    /// Truth values that are neither 0 nor 1: libraries take them for true, and may write 1
    /// instead.
    Bool {
        /// Number of such values.
        count: u64,
    },
    /// A filterbank has negative values.
    Negative {
        /// The smallest one.
        min: f64,
    },
}

impl Violation {
    /// Returns the violation for a number of values that no writer of their dtype produces.
    pub(crate) fn beyond_range(count: u64, dtype: DType) -> Self {
        if dtype == DType::BOOL { Self::Bool { count } } else { Self::Quants { count, dtype } }
    }

    /// Returns the violation that prevents quantizing a tensor: NaN or infinite values.
    pub(crate) fn not_finite(nan: u64, infinite: u64, info: &TensorInfo) -> Option<Self> {
        let of = info.shape.elements().unwrap_or_default();
        match (nan, infinite) {
            (0, 0) => None,
            (0, count) => Some(Self::Infinite { count, of }),
            (count, _) => Some(Self::Nan { count, of }),
        }
    }

    /// Returns the severity of the violation.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::Nan { .. }
            | Self::Infinite { .. }
            | Self::Checksum { .. }
            | Self::Quants { .. }
            | Self::Mean { must: true, .. } => Level::Error,
            Self::Bool { .. }
            | Self::Zero
            | Self::Mean { .. }
            | Self::Std { .. }
            | Self::Siblings { .. }
            | Self::Size { .. }
            | Self::Repeated { .. }
            | Self::Zeros { .. }
            | Self::Negative { .. } => Level::Warning,
        }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nan { count: nan, of } => {
                write!(f, "{}", NotFinite { nan: *nan, infinite: 0, of: *of, first: 0 })
            }
            Self::Infinite { count: infinite, of } => {
                write!(f, "{}", NotFinite { nan: 0, infinite: *infinite, of: *of, first: 0 })
            }
            Self::Checksum { stated, found } => {
                write!(
                    f,
                    "the CRC-32 of its bytes is {found:#010x}, the file states {stated:#010x}"
                )
            }
            Self::Quants { count, dtype } => {
                write!(
                    f,
                    "{} of -128; quants of {dtype} must be in [-127, 127]",
                    apr_core::counted(*count, "quant")
                )
            }
            Self::Bool { count } => {
                write!(
                    f,
                    "{} of BOOL are neither 0 nor 1; they are kept unchanged",
                    apr_core::counted(*count, "value")
                )
            }
            Self::Zero => f.write_str("every value is zero"),
            Self::Mean { mean, expected, kind, must } => {
                write!(
                    f,
                    "the mean of this {} is {}, outside the expected {}",
                    kind.name(),
                    number(*mean),
                    expected
                )?;
                if *must { f.write_str(", and its values are nearly the same") } else { Ok(()) }
            }
            Self::Std { std, expected, kind } => {
                let (name, std) = (kind.name(), number(*std));
                write!(f, "the standard deviation of this {name} is {std}, ")?;
                write!(f, "outside the expected {expected}")
            }
            Self::Siblings { mean, median, siblings } => {
                let (kind, times) = (TensorKind::NormGamma.name(), number((mean / median).round()));
                let (mean, median) = (number(*mean), number(*median));
                let siblings = apr_core::counted(*siblings as u64, "sibling");
                write!(
                    f,
                    "the mean of this {kind} is {mean}, {times} times the median of this norm in \
                     all layers, {median} ({siblings})"
                )
            }
            Self::Size { size, nearest, siblings, of_two } => {
                let times = match size / nearest {
                    ratio if ratio >= 1.0 => format!("{} times", number(ratio.round())),
                    ratio => format!("a {}th of", number(ratio.recip().round())),
                };
                let (size, nearest) = (number(*size), number(*nearest));
                write!(f, "the root mean square of this weight is {size}, {times} that of ")?;
                match of_two {
                    Some(other) => write!(
                        f,
                        "its only sibling {IN_OTHER_LAYERS}, '{}', {nearest}: one of them is \
                         wrong",
                        Escaped::short(other)
                    ),
                    None => write!(
                        f,
                        "the nearest of {} {IN_OTHER_LAYERS}, {nearest}",
                        apr_core::counted(*siblings as u64, "sibling")
                    ),
                }
            }
            Self::Repeated { sibling } => {
                write!(
                    f,
                    "this weight has exactly the mean, deviation and range of a sibling \
                     {IN_OTHER_LAYERS}, '{}': one is a copy of the other",
                    Escaped::short(sibling)
                )
            }
            Self::Zeros { share, most, siblings } => {
                let percent = |share: f64| number((share * 1000.0).round() / 10.0);
                write!(
                    f,
                    "{} % of the values of this weight are zero, at most {} % in {} \
                     {IN_OTHER_LAYERS}",
                    percent(*share),
                    percent(*most),
                    apr_core::counted(*siblings as u64, "sibling")
                )
            }
            Self::Negative { min } => {
                write!(f, "negative values in a filterbank, down to {}", number(*min))
            }
        }
    }
}

/// Violations to check for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Physics {
    /// NaN and infinite values.
    pub finite: bool,
    /// Tensors of zeros.
    pub zeros: bool,
    /// Means and deviations outside the ranges of the tensor's kind.
    pub ranges: bool,
}

impl Physics {
    /// All checks.
    pub const ALL: Self = Self { finite: true, zeros: true, ranges: true };

    /// No checks.
    pub const NONE: Self = Self { finite: false, zeros: false, ranges: false };

    /// Returns the violations shown by the statistics of a tensor, worst first.
    #[must_use]
    pub fn violations(
        self,
        name: &str,
        stats: &Stats,
        expectation: Option<TensorExpectation>,
    ) -> Vec<Violation> {
        let mut violations = Vec::new();
        let of = stats.count;
        if self.finite {
            let nan = (stats.nan > 0).then_some(Violation::Nan { count: stats.nan, of });
            let infinite = (stats.inf > 0).then_some(Violation::Infinite { count: stats.inf, of });
            violations.extend(nan.into_iter().chain(infinite));
        }

        if self.ranges {
            violations.extend(expectation.and_then(|expectation| mean(stats, expectation)));
            violations.extend(expectation.and_then(|expectation| deviation(stats, expectation)));
            let min = stats.min.filter(|min| is_filterbank(name) && *min < 0.0);
            violations.extend(min.map(|min| Violation::Negative { min }));
        }

        // A single number may well be zero.
        if self.zeros && of > 1 && stats.zeros == of && is_never_zero(name, expectation) {
            violations.push(Violation::Zero);
        }

        violations
    }
}

fn mean(stats: &Stats, expectation: TensorExpectation) -> Option<Violation> {
    let (mean, kind) = (stats.mean?, expectation.kind);
    if stats.count < FEWEST_VALUES {
        return None;
    }
    if let Some(expected) = stats.std.and_then(|std| expectation.corrupt(mean, std)) {
        return Some(Violation::Mean { mean, expected, kind, must: !expectation.guessed });
    }
    let expected = expectation.mean.filter(|expected| !expected.contains(mean))?;
    Some(Violation::Mean { mean, expected, kind, must: false })
}

fn deviation(
    stats: &Stats,
    TensorExpectation { kind, std, .. }: TensorExpectation,
) -> Option<Violation> {
    let (std, expected) = (stats.std?, std?);
    // Nothing but zeros is a violation of its own.
    let wrong =
        stats.count >= FEWEST_VALUES && stats.zeros < stats.count && !expected.contains(std);
    wrong.then_some(Violation::Std { std, expected, kind })
}

/// Returns `true` if a tensor is a mel filterbank according to its name.
#[must_use]
pub fn is_filterbank(name: &str) -> bool {
    name.ends_with("mel_filterbank") || name.ends_with("mel_filters")
}

/// Returns `true` if a tensor that contains only zeros is damaged.
fn is_never_zero(name: &str, expectation: Option<TensorExpectation>) -> bool {
    // A gamma that is stored as its distance from one starts at zero.
    let is_from_one = expectation.is_some_and(|expectation| expectation.offset != 0.0);
    !is_from_one && may_not_be_zero(name, expectation.map(|expectation| expectation.kind))
}

/// Returns `true` if a tensor of zeros was never filled.
///
/// A bias and a beta start at zero and may stay zero, like half of an adapter. A buffer is not
/// learnt, and codes that are symmetric have zero points of zero.
fn may_not_be_zero(name: &str, kind: Option<TensorKind>) -> bool {
    if starts_at_zero(name) {
        return false;
    }
    match kind {
        Some(kind) => !matches!(
            kind,
            TensorKind::Bias | TensorKind::NormBeta | TensorKind::Buffer | TensorKind::Scale
        ),
        None => {
            let name = name.to_ascii_lowercase();
            const MAY_BE_ZERO: [&str; 5] =
                ["bias", "beta", "running_mean", "zero_point", "zero_points"];
            !MAY_BE_ZERO.iter().any(|zero| name.ends_with(zero))
        }
    }
}

/// Returns the expected statistics of a tensor without a known family, guessed from its name.
///
/// Layer norms and projections have typical names. The guess includes how a norm is stored, so it
/// only leads to warnings.
#[must_use]
pub fn expectation_by_name(name: &str) -> Option<TensorExpectation> {
    let expectation = TensorKind::of_name(name)?.expectation();
    Some(TensorExpectation { guessed: true, ..expectation })
}

/// Returns the expected statistics of the tensor at this position, by its family or its name.
///
/// Integers and 8-bit floats have their scales in other tensors, so their deviations are not
/// meaningful.
#[must_use]
pub fn expectation(
    model: Option<&FamilyModel<'_>>,
    position: usize,
    info: &TensorInfo,
) -> Option<TensorExpectation> {
    let expected = match model {
        Some(model) => model.expectation(position)?,
        None => {
            let outputs = info.shape.dims().first().copied().unwrap_or(1);
            let inputs =
                info.shape.elements().unwrap_or(u64::MAX).checked_div(outputs).unwrap_or(1);
            expectation_by_name(&info.name)?.for_width(inputs)
        }
    };
    let dtype = info.dtype;
    let is_scaled_elsewhere =
        !dtype.is_quantized() && (!dtype.is_float() || dtype.block_bytes() == 1);
    Some(if is_scaled_elsewhere { TensorExpectation { std: None, ..expected } } else { expected })
}

#[cfg(test)]
mod tests {
    use apr_registry::DType;
    use apr_tensor::stats::{Moments, Scratch};

    use super::*;

    fn violations(values: &[f32], kind: Option<TensorKind>, name: &str) -> Vec<Violation> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let stats = Moments::of(DType::F32, &bytes, &mut Scratch::default()).finish();
        Physics::ALL.violations(name, &stats, kind.map(TensorKind::expectation))
    }

    #[test]
    fn a_gamma_at_eleven_is_wrong_and_one_at_one_is_not() {
        let found = violations(&[11.0; 16], Some(TensorKind::NormGamma), "norm.weight");
        assert!(matches!(found[..], [Violation::Mean { mean: 11.0, must: true, .. }]), "{found:?}");
        assert_eq!(found[0].level(), Level::Error);
        assert_eq!(
            found[0].to_string(),
            "the mean of this norm weight (gamma) is 11, outside the expected [0.5, 3], and its \
             values are nearly the same"
        );
        assert!(violations(&[1.0; 16], Some(TensorKind::NormGamma), "norm.weight").is_empty());
    }

    #[test]
    fn values_that_are_not_numbers_are_listed_first() {
        let found = violations(
            &[f32::NAN, f32::INFINITY, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0],
            Some(TensorKind::Linear),
            "w",
        );
        assert!(matches!(
            found[..],
            [
                Violation::Nan { count: 1, of: 8 },
                Violation::Infinite { .. },
                Violation::Mean { .. },
                Violation::Std { .. }
            ]
        ));
        assert_eq!(found[2].level(), Level::Warning, "a linear layer's mean should be near zero");
    }

    #[test]
    fn zeros_are_odd_except_where_they_belong() {
        assert_eq!(violations(&[0.0; 8], Some(TensorKind::Linear), "w"), [Violation::Zero]);
        assert_eq!(violations(&[0.0; 8], None, "w"), [Violation::Zero]);
        for (kind, name) in [
            (Some(TensorKind::Bias), "b"),
            (Some(TensorKind::NormBeta), "b"),
            (None, "fc.bias"),
            (None, "fc.weight_zero_point"),
        ] {
            assert_eq!(violations(&[0.0; 8], kind, name), [], "{name}");
        }
        assert_eq!(violations(&[0.0], None, "scalar"), [], "a single zero is a value");
    }

    #[test]
    fn few_values_have_no_typical_mean() {
        assert_eq!(violations(&[5.0; 7], Some(TensorKind::Linear), "w"), []);
    }

    #[test]
    fn a_filterbank_has_no_negative_values() {
        let found = violations(&[0.0, 0.5, -0.25], None, "audio.mel_filterbank");
        assert_eq!(found, [Violation::Negative { min: -0.25 }]);
    }
}
