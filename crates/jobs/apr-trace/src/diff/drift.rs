//! How far a value of one model is from that of another.

use apr_graph::ElementType;
use apr_infer::Value;
use apr_tensor::drift::Drift;
use serde::Serialize;

/// The difference of a value of two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ValueDrift {
    /// Norm of the difference divided by the norm of the original.
    ///
    /// It is infinite (`null` in JSON) if the original is zero, the other value has NaN, or only
    /// one of both is infinite.
    pub relative_l2: f64,
    /// Cosine similarity of both; 1 if both are zero.
    pub cosine: f64,
    /// The largest difference of two elements.
    pub max_abs: f64,
    /// Mean of the original.
    pub mean: f64,
    /// Mean of the other one.
    pub other_mean: f64,
    /// Dimensions of the original.
    pub shape: Vec<usize>,
    /// Dimensions of the other value, if they differ. Nothing else is measured then, and the drift
    /// is infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_shape: Option<Vec<usize>>,
    /// NaN in the original.
    #[serde(skip_serializing_if = "is_zero")]
    pub nan: u64,
    /// NaN in the other one.
    #[serde(skip_serializing_if = "is_zero")]
    pub other_nan: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl ValueDrift {
    /// Returns the drift of the floats in the outputs of two steps, or `None` if they have no
    /// floats.
    pub(crate) fn of(original: &[Value], other: &[Value]) -> Option<Self> {
        let (mut sums, mut is_infinite) = (Drift::default(), false);
        let mut found: Option<Self> = None;
        for (one, two) in original.iter().zip(other) {
            let (Ok(one), Ok(two)) = (one.tensor(), two.tensor()) else { continue };
            if !(one.element().is_float() && two.element().is_float()) {
                continue;
            }
            let entry = found.get_or_insert_with(|| Self {
                relative_l2: 0.0,
                cosine: 1.0,
                max_abs: 0.0,
                mean: 0.0,
                other_mean: 0.0,
                shape: one.shape().to_vec(),
                other_shape: None,
                nan: 0,
                other_nan: 0,
            });
            if one.shape() != two.shape() {
                entry.other_shape = Some(two.shape().to_vec());
                entry.relative_l2 = f64::INFINITY;
                entry.cosine = 0.0;
                return found;
            }
            let single = |tensor: &apr_infer::Tensor| tensor.cast(ElementType::F32).ok();
            let (Some(one), Some(two)) = (single(one), single(two)) else { continue };
            let (Ok(one), Ok(two)) = (one.values::<f32>(), two.values::<f32>()) else { continue };
            sums.merge(&Drift::of(one, two));
            if sums.non_finite > 0 {
                let nan = |values: &[f32]| values.iter().filter(|value| value.is_nan()).count();
                entry.nan += nan(one) as u64;
                entry.other_nan += nan(two) as u64;
                is_infinite |= one.iter().zip(two).any(|(one, two)| differ_by_infinity(*one, *two));
            }
            entry.mean += one.iter().map(|value| f64::from(*value)).sum::<f64>();
            entry.other_mean += two.iter().map(|value| f64::from(*value)).sum::<f64>();
        }

        let entry = found.as_mut()?;
        let count = sums.count.max(1) as f64;
        entry.mean /= count;
        entry.other_mean /= count;
        entry.relative_l2 = sums.relative_error().unwrap_or(f64::INFINITY);
        entry.cosine = sums.cosine().unwrap_or(f64::from(u8::from(sums.sum_squared_error == 0.0)));
        entry.max_abs = sums.max_error();
        is_infinite |= entry.other_nan > entry.nan;
        if is_infinite {
            entry.relative_l2 = f64::INFINITY;
            entry.cosine = 0.0;
        }
        found
    }

    /// Returns `true` if the drift was measured.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.other_shape.is_none()
    }
}

/// Largest finite number of half precision.
const LARGEST_HALF: f32 = 65_504.0;

/// Returns `true` if only one of two elements is infinite.
///
/// Masks contain the largest number of some type, or infinity, and are treated as equal.
fn differ_by_infinity(one: f32, two: f32) -> bool {
    let is_as_large =
        one.signum() == two.signum() && one.abs() >= LARGEST_HALF && two.abs() >= LARGEST_HALF;
    (one.is_infinite() || two.is_infinite()) && !(one.is_nan() || two.is_nan()) && !is_as_large
}

#[cfg(test)]
mod tests {
    use apr_infer::Tensor;

    use super::*;

    #[test]
    fn values_of_other_shapes_are_not_equal() {
        let values = |shape: &[usize]| -> Vec<Value> {
            let zeros = vec![0.0_f32; shape.iter().product()];
            vec![Tensor::new(shape.to_vec(), zeros).expect("as many as its shape").into()]
        };
        let drift = ValueDrift::of(&values(&[1, 2]), &values(&[2, 1])).expect("floats");
        assert!(!drift.is_measured() && drift.relative_l2.is_infinite());
        let drift = ValueDrift::of(&values(&[1, 2]), &values(&[1, 2])).expect("floats");
        assert!(drift.is_measured() && drift.relative_l2 == 0.0);
    }

    #[test]
    fn a_step_that_makes_infinity_or_nan_has_infinite_drift() {
        let values = |values: &[f32]| -> Vec<Value> {
            vec![Tensor::new(vec![values.len()], values.to_vec()).expect("a vector").into()]
        };
        let drift = |one: &[f32], two: &[f32]| {
            ValueDrift::of(&values(one), &values(two)).expect("floats").relative_l2
        };
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert!(drift(&[1.0, 2.0], &[1.0, value]).is_infinite(), "{value}");
        }
        assert!(drift(&[1.0, f32::INFINITY], &[1.0, f32::NEG_INFINITY]).is_infinite());
        // Masks of several types.
        for mask in [f32::NEG_INFINITY, f32::MIN, -65_504.0] {
            assert_eq!(drift(&[1.0, mask], &[1.0, f32::NEG_INFINITY]), 0.0, "{mask}");
        }
        assert_eq!(drift(&[1.0, f32::NAN], &[1.0, f32::NAN]), 0.0);
    }
}
