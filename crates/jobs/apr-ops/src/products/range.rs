//! Ranges of activations, and the scales that follow from them.

use std::collections::BTreeMap;

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

/// Ranges of the values of a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ranges {
    /// By the part's name, and by the value's name in the part's graph. A model of one part has one
    /// entry, of any name.
    pub parts: BTreeMap<String, BTreeMap<String, Range>>,
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
