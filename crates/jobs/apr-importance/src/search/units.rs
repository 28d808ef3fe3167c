//! The tensors that get a type, and the types that each may have.

use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, IoCause, Result};
use apr_quantize::{Imatrix, Quantization, Scheme, Weighting, plan};
use apr_run::{Host, RunError, RunResult};
use apr_source::Source;
use apr_tensor::block::{dequantize, quantize};
use apr_tensor::half_float::{f32_to_f16, round_to_f16};
use apr_view::values::read;

/// Types for rows of a multiple of 256, the smallest first.
const LONG_ROWS: [DType; 7] =
    [DType::Q2_K, DType::Q3_K, DType::IQ4_XS, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::Q8_0];
/// Types for rows of a multiple of 32.
const SHORT_ROWS: [DType; 5] = [DType::IQ4_NL, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0];
/// Effect of a tensor whose measured one is rounding.
const LEAST_EFFECT: f64 = 1e-12;
/// The type of tensors that the data do not reach.
const UNREACHED: DType = DType::Q8_0;
/// llama.cpp's mixes that are tried.
const MIXES: [Scheme; 13] = [
    Scheme::Q2_K,
    Scheme::Q3_K_S,
    Scheme::Q3_K_M,
    Scheme::Q3_K_L,
    Scheme::Q4_0,
    Scheme::Q4_1,
    Scheme::IQ4_XS,
    Scheme::Q4_K_S,
    Scheme::Q4_K_M,
    Scheme::Q5_0,
    Scheme::Q5_K_S,
    Scheme::Q5_K_M,
    Scheme::Q6_K,
];
/// Elements that are compared at a time.
const STEP: usize = 1 << 20;

/// A tensor whose type is chosen.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) position: usize,
    pub(crate) name: String,
    pub(crate) choices: Vec<Choice>,
    pub(crate) importance: Option<Arc<[f32]>>,
    elements: u64,
    row_len: usize,
    alignment: u64,
    /// Effect of an error of 1.
    share: f64,
}

/// A type that a tensor may have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    pub(crate) dtype: DType,
    pub(crate) bytes: u64,
    /// Effect on the outputs.
    pub(crate) effect: f64,
    /// Squares of the weights' errors, each weighed by the mean square of its inputs.
    error: f64,
}

/// All tensors that `apr quantize` would quantize.
pub(crate) fn units(
    source: &Source<'_>,
    matrix: &Imatrix,
    alignment: u64,
    most: u64,
    host: &dyn Host,
) -> RunResult<Vec<Unit>> {
    let reader = source.reader();
    let mut quantization = Quantization::to(Scheme::Q8_0);
    let weighting = Weighting::Matrix { matrix: matrix.clone(), file: String::new() };
    quantization.weighting = Some(weighting);
    let planned = plan(reader, source.family()?, &quantization)?;
    let mut found = Vec::new();
    for (position, target) in planned.targets.into_iter().enumerate() {
        let Some(target) = target.filter(|target| target.dtype.is_quantized()) else { continue };
        let info = &reader.tensors()[position];
        if info.dtype.is_quantized() || info.shape.elements().is_none_or(|count| count == 0) {
            continue;
        }
        check_not_cancelled(host)?;
        let types: &[DType] = match info.shape.row_len() {
            len if len.is_multiple_of(256) => &LONG_ROWS,
            len if len.is_multiple_of(32) => &SHORT_ROWS,
            _ => continue,
        };
        let elements = info.shape.elements().unwrap_or_default();
        let needed = elements.saturating_mul(3 * size_of::<f64>() as u64);
        if needed > most {
            let message = format!("trying its types takes {needed} bytes, more than the limit");
            return Err(Error::memory(message).for_tensor(&info.name).into());
        }
        let mut unit = Unit {
            position,
            name: info.name.clone(),
            choices: Vec::new(),
            importance: target.importance,
            elements,
            row_len: usize::try_from(info.shape.row_len()).unwrap_or(usize::MAX),
            alignment: alignment.max(1),
            share: 0.0,
        };
        let values = unit.values(reader)?;
        let choice = |dtype: &DType| {
            let encoded = unit.encoded(&values, *dtype);
            let error = unit.error(&values, &encoded, *dtype);
            Choice { dtype: *dtype, bytes: unit.stored(encoded.len() as u64), effect: 0.0, error }
        };
        unit.choices = types.iter().map(choice).collect();
        unit.choices.push(Choice {
            dtype: DType::F16,
            bytes: unit.stored(elements * 2),
            effect: 0.0,
            error: unit.rounded(&values),
        });
        // Half precision may not hold a value.
        unit.choices.retain(|choice| choice.error.is_finite());
        found.push(unit);
    }
    if found.is_empty() {
        return Err(RunError::request("the model does not have tensors whose types can be chosen"));
    }
    Ok(found)
}

/// The choices of llama.cpp's mixes, with the bytes of all units. Types that a unit does not have
/// yet become choices of it.
pub(crate) fn fixed(source: &Source<'_>, units: &mut [Unit]) -> RunResult<Vec<(Vec<usize>, u64)>> {
    let reader = source.reader();
    let mut found = Vec::new();
    for scheme in MIXES {
        let mut quantization = Quantization::to(scheme);
        let weighting = Weighting::Matrix { matrix: Imatrix::default(), file: String::new() };
        quantization.weighting = Some(weighting);
        // Some need importance, which others have.
        let Ok(planned) = plan(reader, source.family()?, &quantization) else { continue };
        let (mut chosen, mut bytes) = (Vec::new(), 0);
        for unit in units.iter_mut() {
            let target = planned.targets[unit.position].as_ref();
            let dtype = target.map_or(DType::F16, |target| target.dtype);
            let at = unit.choice(reader, dtype)?;
            bytes += unit.choices[at].bytes;
            chosen.push(at);
        }
        found.push((chosen, bytes));
    }
    Ok(found)
}

/// Ends a search that the host cancels between two runs of the model.
pub(crate) fn check_not_cancelled(host: &dyn Host) -> Result<()> {
    match host.is_cancelled() {
        true => Err(Error::io(IoCause::Interrupted, "interrupted")),
        false => Ok(()),
    }
}

impl Unit {
    /// The position of a type among the choices, which it is added to.
    fn choice(&mut self, reader: &dyn CheckpointReader, dtype: DType) -> Result<usize> {
        let known = self.choices.iter().position(|choice| choice.dtype == dtype);
        if let Some(at) = known {
            return Ok(at);
        }
        let values = self.values(reader)?;
        let encoded = self.encoded(&values, dtype);
        let error = self.error(&values, &encoded, dtype);
        let effect = self.share * error;
        let bytes = self.stored(encoded.len() as u64);
        self.choices.push(Choice { dtype, bytes, effect, error });
        Ok(self.choices.len() - 1)
    }

    /// Bytes that a tensor takes in the file.
    fn stored(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.alignment)
    }

    /// The tensor in single precision.
    fn values(&self, reader: &dyn CheckpointReader) -> Result<Vec<f32>> {
        let values = read(reader, self.position, 0..self.elements)?;
        #[expect(clippy::cast_possible_truncation, reason = "quantizers take single precision")]
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(Error::format("it has NaN or infinite values").for_tensor(&self.name)),
        }
    }

    /// The tensor as another type.
    pub(crate) fn as_type(&self, reader: &dyn CheckpointReader, dtype: DType) -> Result<Vec<u8>> {
        let values = self.values(reader)?;
        Ok(self.encoded(&values, dtype))
    }

    fn encoded(&self, values: &[f32], dtype: DType) -> Vec<u8> {
        if dtype == DType::F16 {
            return values.iter().flat_map(|value| f32_to_f16(*value).to_le_bytes()).collect();
        }
        let mut out = Vec::new();
        for (values, importance) in self.matrices(values) {
            quantize(dtype, values, self.row_len, importance, &mut out);
        }
        out
    }

    /// Matrices of a stack, each with the importance of its columns.
    fn matrices<'u>(
        &'u self,
        values: &'u [f32],
    ) -> impl Iterator<Item = (&'u [f32], Option<&'u [f32]>)> {
        let rows_of = |importance: &Arc<[f32]>| importance.len() / self.row_len;
        let matrices = self.importance.as_ref().map_or(1, rows_of).max(1);
        values.chunks(values.len().div_ceil(matrices).max(1)).enumerate().map(|(at, values)| {
            let importance = self.importance.as_deref();
            (values, importance.map(|all| &all[at * self.row_len..(at + 1) * self.row_len]))
        })
    }

    fn error(&self, values: &[f32], encoded: &[u8], dtype: DType) -> f64 {
        let rows = (STEP / self.row_len).max(1);
        let row_bytes = encoded.len() / (values.len() / self.row_len).max(1);
        let (mut error, mut back) = (0.0, Vec::new());
        let mut offset = 0;
        for (matrix, importance) in self.matrices(values) {
            for values in matrix.chunks(rows * self.row_len) {
                let len = values.len() / self.row_len * row_bytes;
                dequantize(dtype, &encoded[offset..offset + len], self.row_len, &mut back);
                offset += len;
                error += self.squares(values, &back, importance);
            }
        }
        error
    }

    /// The error of half precision.
    fn rounded(&self, values: &[f32]) -> f64 {
        let of_matrix = |(values, importance): (&[f32], Option<&[f32]>)| {
            let halves = values.iter().map(|value| round_to_f16(*value));
            self.squares(values, &halves.collect::<Vec<_>>(), importance)
        };
        self.matrices(values).map(of_matrix).sum()
    }

    fn squares(&self, values: &[f32], back: &[f32], importance: Option<&[f32]>) -> f64 {
        let weight = |at: usize| {
            importance.map_or(1.0, |importance| f64::from(importance[at % self.row_len]))
        };
        let pairs = values.iter().zip(back).enumerate();
        pairs.map(|(at, (a, b))| weight(at) * (f64::from(*a) - f64::from(*b)).powi(2)).sum()
    }

    /// Returns the largest block type of at most `bits` bits per weight that changes the weights,
    /// or else the smallest, with its error. Half precision may change weights so little that only
    /// rounding would be measured.
    pub(crate) fn near(&self, bits: f64) -> (DType, f64) {
        let of = |choice: &Choice| choice.bytes as f64 * 8.0 / self.elements.max(1) as f64;
        let blocks = || {
            self.choices.iter().filter(|choice| choice.dtype.is_quantized() && choice.error > 0.0)
        };
        let found = blocks().rev().find(|choice| of(choice) <= bits).or(blocks().next());
        found.map_or((UNREACHED, 0.0), |choice| (choice.dtype, choice.error))
    }

    /// Keeps a single safe choice, for a tensor that the data do not reach and whose effect is
    /// unknown.
    pub(crate) fn keep_safe(&mut self) {
        self.choices.retain(|choice| choice.dtype == UNREACHED);
    }

    /// Sets the effects of all types from the effect of one type with a known error.
    pub(crate) fn scale(&mut self, effect: f64, error: f64) {
        self.share = if error > 0.0 { effect.max(LEAST_EFFECT) / error } else { 0.0 };
        for choice in &mut self.choices {
            choice.effect = self.share * choice.error;
        }
    }
}

#[cfg(test)]
impl Unit {
    /// One with choices of these bytes and effects.
    pub(crate) fn of_choices(choices: &[(u64, f64)]) -> Self {
        let choice = |&(bytes, effect): &(u64, f64)| Choice {
            dtype: DType::Q8_0,
            bytes,
            effect,
            error: effect,
        };
        Self {
            position: 0,
            name: String::new(),
            choices: choices.iter().map(choice).collect(),
            importance: None,
            elements: 1,
            row_len: 1,
            alignment: 1,
            share: 1.0,
        }
    }
}
