//! Ranges of activations, and the scales that follow from them.

use std::collections::BTreeMap;
use std::fmt;

/// Smallest and largest element that a value had in calibration runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The smallest element.
    pub min: f32,
    /// The largest element.
    pub max: f32,
}

impl Range {
    /// Returns the range of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// Returns the scale and the zero point of signed 8-bit integers for the range, extended to
    /// include 0.
    ///
    /// The arithmetic is that of onnxruntime's `compute_scale_zp`, in double precision.
    #[expect(clippy::cast_possible_truncation, reason = "rounded to the types of the file")]
    pub(crate) fn scale(self) -> (f32, i8) {
        let (min, max) = (f64::from(self.min.min(0.0)), f64::from(self.max.max(0.0)));
        let scale = (max - min) / 255.0;
        if scale < f64::from(f32::MIN_POSITIVE) {
            return (1.0, 0);
        }
        let zero_point = (-128.0 - min / scale).round_ties_even();
        (scale as f32, zero_point.clamp(-128.0, 127.0) as i8)
    }
}

/// Method that chooses the range of an activation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Calibration {
    /// From the smallest to the largest element.
    #[default]
    MinMax,
    /// The range with the least relative entropy, by a histogram of 2,048 bins.
    Entropy,
    /// The range of this share of the magnitudes, in percent.
    Percentile(f64),
}

impl Calibration {
    /// Share of the magnitudes that onnxruntime's quantizer keeps.
    const USUAL: f64 = 99.999;

    /// Parses `minmax`, `entropy`, `percentile` or `percentile:99.9`.
    ///
    /// # Errors
    /// A message if the text has another form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, share) = text.split_once(':').map_or((text, None), |(n, s)| (n, Some(s)));
        match (name, share) {
            ("minmax", None) => Ok(Self::MinMax),
            ("entropy", None) => Ok(Self::Entropy),
            ("percentile", None) => Ok(Self::Percentile(Self::USUAL)),
            ("percentile", Some(share)) => {
                let share: Option<f64> = share.parse().ok();
                let share = share.filter(|share| *share > 0.0 && *share <= 100.0);
                share.map(Self::Percentile).ok_or("a percentile is above 0, and at most 100".into())
            }
            _ => Err("expected minmax, entropy, percentile or percentile:99.9".into()),
        }
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MinMax => f.write_str("minmax"),
            Self::Entropy => f.write_str("entropy"),
            Self::Percentile(share) => write!(f, "percentile:{share}"),
        }
    }
}

/// Ranges of the values of a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ranges {
    /// By the part's name, and by the value's name in the part's graph. A model of one part has one
    /// entry, of any name.
    pub parts: BTreeMap<String, BTreeMap<String, Range>>,
    /// The method that chose the ranges.
    pub method: Calibration,
    /// The calibration data, for reports.
    pub data: String,
}

impl Ranges {
    /// Returns the ranges of a part's values.
    pub(crate) fn of_part(&self, name: &str) -> &BTreeMap<String, Range> {
        static NONE: BTreeMap<String, Range> = BTreeMap::new();
        let only = self.parts.values().next().filter(|_| self.parts.len() == 1);
        only.or_else(|| self.parts.get(name)).unwrap_or(&NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_parsed_as_they_are_written() {
        for text in ["minmax", "entropy", "percentile:99.9"] {
            assert_eq!(Calibration::parse(text).expect("a method").to_string(), text);
        }
        assert_eq!(Calibration::parse("percentile"), Ok(Calibration::Percentile(99.999)));
        for text in ["percentile:0", "percentile:101", "percentile:x", "entropy:2", "max"] {
            Calibration::parse(text).expect_err(text);
        }
    }

    #[test]
    fn scales_are_those_of_onnxruntime() {
        // compute_scale_zp of onnxruntime 1.32 for QInt8, asymmetric.
        for (min, max, scale, zero_point) in [
            (-1.0, 1.0, 0.007_843_138, 0),
            (0.0, 6.0, 0.023_529_412, -128),
            (0.5, 2.0, 0.007_843_138, -128),
            (-3.3, 0.7, 0.015_686_274, 82),
            (0.0, 0.0, 1.0, 0),
        ] {
            assert_eq!(Range { min, max }.scale(), (scale, zero_point), "{min} to {max}");
        }
    }
}
