//! Values that are changed one by one, in single precision.

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_tensor::cast::cast_float;

use crate::strided::usize_of;
use crate::transform::{Change, ChangeKind, needs_floats, read::SCRATCH};
use crate::windows::Windows;

/// Change of each value of a tensor.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Formula {
    /// `-exp(x)`.
    NegativeExponential,
    /// `ln(-x)`, the inverse of [`NegativeExponential`](Self::NegativeExponential).
    LogarithmOfNegative,
    /// Products with factors, one after another; each applies to a number of elements from the
    /// first on. Each list has its own elements: the second begins where the first ends.
    Product(Vec<(u64, Vec<f32>)>),
}

/// Values of another change, changed one by one.
#[derive(Debug, Clone)]
pub(crate) struct Mapped {
    pub(crate) kind: Box<ChangeKind>,
    from: DType,
    pub(crate) to: DType,
    formula: Formula,
}

impl Change {
    /// The same tensor with each value changed, as floats of the dtype `to`. `info` is of the
    /// tensor that this change makes.
    ///
    /// # Errors
    /// E001 when its elements are not plain floats.
    pub fn mapped(self, info: &mut TensorInfo, formula: Formula, to: DType) -> Result<Self> {
        let from = info.dtype;
        if !from.is_float() {
            return Err(needs_floats(info, "values can be computed"));
        }
        info.dtype = to;
        Ok(Self(ChangeKind::Mapped(Mapped { kind: Box::new(self.0), from, to, formula })))
    }
}

impl Mapped {
    /// Reads whole elements from byte `offset` on.
    pub(crate) fn read(
        &self,
        base: &dyn CheckpointReader,
        windows: Option<&Windows>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let (narrow, element) = (self.from.block_bytes(), self.to.block_bytes());
        let mut first = offset / element;
        let (mut input, mut wide, mut output) = (Vec::new(), Vec::new(), Vec::new());
        for target in buf.chunks_mut(SCRATCH / 8 * usize_of(element)?) {
            let count = target.len() as u64 / element;
            input.resize(usize_of(count * narrow)?, 0);
            self.kind.read(base, windows, first * narrow, &mut input)?;
            cast_float(self.from, DType::F32, &input, &mut wide);
            self.formula.apply(first, &mut wide)?;
            if self.to == DType::F32 {
                target.copy_from_slice(&wide);
            } else {
                cast_float(DType::F32, self.to, &wide, &mut output);
                target.copy_from_slice(&output);
            }
            first += count;
        }
        Ok(())
    }
}

impl Formula {
    /// Changes values in single precision, of which the first is element `first` of the tensor.
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    fn apply(&self, first: u64, values: &mut [u8]) -> Result<()> {
        let values = values.as_chunks_mut::<4>().0;
        match self {
            Self::NegativeExponential => {
                for value in values {
                    let exponential = f64::from(f32::from_le_bytes(*value)).exp();
                    *value = (-exponential as f32).to_le_bytes();
                }
            }
            Self::LogarithmOfNegative => {
                for value in values {
                    let negative = f32::from_le_bytes(*value);
                    if negative.is_nan() || negative > 0.0 {
                        let what = format!("it has the value {negative}, not one below 0");
                        return Err(Error::corrupt(what));
                    }
                    *value = ((-f64::from(negative)).ln() as f32).to_le_bytes();
                }
            }
            Self::Product(runs) => {
                let mut runs = runs.iter();
                let mut run = runs.next();
                let mut end = run.map_or(u64::MAX, |(count, _)| *count);
                for (at, value) in (first..).zip(values) {
                    while at >= end {
                        run = runs.next();
                        end = run.map_or(u64::MAX, |(count, _)| end.saturating_add(*count));
                    }
                    let factors = run.map_or(&[][..], |(_, factors)| factors);
                    let product = factors
                        .iter()
                        .fold(f32::from_le_bytes(*value), |product, factor| product * factor);
                    *value = product.to_le_bytes();
                }
            }
        }
        Ok(())
    }
}
