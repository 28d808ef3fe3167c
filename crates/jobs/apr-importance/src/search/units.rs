//! The tensors that get a type, and the types that each may have.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, DType, Error, IoCause, Result};
use apr_quantize::{
    Imatrix, Layout, Quantization, Scheme, TensorType, Weighting, global_scale, importance, joined,
    plan,
};
use apr_run::{Host, RunError, RunResult};
use apr_source::Source;

use super::member::{Encoded, Member};

/// Types for rows of a multiple of 256, the smallest first.
const LONG_ROWS: [DType; 7] =
    [DType::Q2_K, DType::Q3_K, DType::IQ4_XS, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::Q8_0];
/// Types for rows of a multiple of 32.
const SHORT_ROWS: [DType; 5] = [DType::IQ4_NL, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0];
/// Effect of a tensor whose measured one is rounding.
const LEAST_EFFECT: f64 = 1e-12;
/// The type in blocks of tensors that the data do not reach.
const UNREACHED: TensorType = TensorType::Dtype(DType::Q8_0);
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
/// Tensors that have one type, which is chosen.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    /// One tensor, or those that servers join.
    pub(crate) members: Vec<Member>,
    pub(crate) choices: Vec<Choice>,
    alignment: u64,
    /// Effect of an error of 1.
    share: f64,
}

/// A type that a unit may have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Choice {
    pub(crate) wanted: TensorType,
    pub(crate) bytes: u64,
    /// Effect on the outputs.
    pub(crate) effect: f64,
    /// Squares of the weights' errors, each weighed by the mean square of its inputs.
    error: f64,
}

/// What the tensors of a model are stored as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Storage {
    /// The layout of codes and scales with the fewest bits; `None` for blocks.
    pub(crate) layout: Option<Layout>,
    /// Alignment to which the length of each tensor in the file is rounded up.
    pub(crate) alignment: u64,
}

/// All tensors that `apr quantize` would quantize, with the types that each may have.
pub(crate) fn units(
    source: &Source<'_>,
    matrix: &Imatrix,
    storage: Storage,
    most: u64,
    host: &dyn Host,
) -> RunResult<Vec<Unit>> {
    let reader = source.reader();
    let units = match storage.layout {
        Some(layout) => units_of_layout(source, matrix, layout)?,
        None => units_of_blocks(source, matrix)?,
    };
    let mut found = Vec::new();
    for (members, types) in units {
        let needed = |member: &Member| member.elements.saturating_mul(3 * size_of::<f64>() as u64);
        if let Some(large) = members.iter().find(|member| needed(member) > most) {
            let needed = needed(large);
            let message = format!("trying its types takes {needed} bytes, more than the limit");
            return Err(Error::memory(message).for_tensor(&large.info.name).into());
        }
        let alignment = storage.alignment.max(1);
        let mut unit = Unit { members, choices: Vec::new(), alignment, share: 0.0 };
        let mut errors = vec![0.0; types.len()];
        for member in &unit.members {
            check_not_cancelled(host)?;
            let values = member.values(reader)?;
            for (error, wanted) in errors.iter_mut().zip(&types) {
                *error += member.error(&values, &member.encoded(&values, *wanted));
            }
        }
        for (wanted, error) in types.into_iter().zip(errors) {
            // Half precision may not hold a value.
            if error.is_finite() {
                let bytes = unit.stored_len(wanted)?;
                unit.choices.push(Choice { wanted, bytes, effect: 0.0, error });
            }
        }
        found.push(unit);
    }
    if found.is_empty() {
        return Err(RunError::request("the model does not have tensors whose types can be chosen"));
    }
    Ok(found)
}

/// Tensors that have one type, and the types that are tried.
type Tried = (Vec<Member>, Vec<TensorType>);

/// Each tensor that would be quantized to blocks.
fn units_of_blocks(source: &Source<'_>, matrix: &Imatrix) -> RunResult<Vec<Tried>> {
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
        let types: &[DType] = match info.shape.row_len() {
            len if len.is_multiple_of(256) => &LONG_ROWS,
            len if len.is_multiple_of(32) => &SHORT_ROWS,
            _ => continue,
        };
        let types = types.iter().chain([&DType::F16]).copied().map(TensorType::Dtype);
        let member = Member::new(position, info, target.importance, 1.0);
        found.push((vec![member], types.collect()));
    }
    Ok(found)
}

/// The weights that have codes and scales in a layout: those that servers join are one unit.
fn units_of_layout(source: &Source<'_>, matrix: &Imatrix, layout: Layout) -> RunResult<Vec<Tried>> {
    let (reader, family) = (source.reader(), source.family()?);
    let chosen = layout.choose(reader, family, BTreeMap::new(), &[]);
    let importance = importance(reader, family, matrix)?;
    let sets = joined(layout, reader, &BTreeMap::new());
    let mut units: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (tensor, set) in sets.into_iter().enumerate() {
        if chosen.weights[tensor].is_some() {
            units.entry(set).or_default().push(tensor);
        }
    }
    let mut found = Vec::new();
    for tensors in units.into_values() {
        let global = match layout.has_global() {
            true => global_scale(reader, tensors.iter().copied())?,
            false => 1.0,
        };
        let member = |tensor: &usize| {
            Member::new(*tensor, &reader.tensors()[*tensor], importance[*tensor].clone(), global)
        };
        let members: Vec<Member> = tensors.iter().map(member).collect();
        let own = members[0].info.dtype;
        let layouts = [layout].into_iter().chain(layout.larger().iter().copied());
        let types = layouts.map(TensorType::Layout).chain([TensorType::Dtype(own)]);
        found.push((members, types.collect()));
    }
    // In the order of the model.
    found.sort_by_key(|(members, _): &Tried| members[0].position);
    Ok(found)
}

/// One choice for each unit, with the bytes of all units: all weights in one layout, or
/// llama.cpp's mixes.
pub(crate) fn fixed(
    source: &Source<'_>,
    layout: Option<Layout>,
    units: &mut [Unit],
) -> RunResult<Vec<(Vec<usize>, u64)>> {
    let Some(layout) = layout else { return mixes(source, units) };
    let mut found = Vec::new();
    for wanted in [layout].iter().chain(layout.larger()) {
        let (mut chosen, mut bytes) = (Vec::new(), 0);
        for unit in units.iter_mut() {
            let at = unit.choice(source.reader(), TensorType::Layout(*wanted))?;
            bytes += unit.choices[at].bytes;
            chosen.push(at);
        }
        found.push((chosen, bytes));
    }
    Ok(found)
}

/// The choices of llama.cpp's mixes, with the bytes of all units. Types that a unit does not have
/// yet become choices of it.
fn mixes(source: &Source<'_>, units: &mut [Unit]) -> RunResult<Vec<(Vec<usize>, u64)>> {
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
            let target = planned.targets[unit.members[0].position].as_ref();
            let dtype = target.map_or(DType::F16, |target| target.dtype);
            let at = unit.choice(reader, TensorType::Dtype(dtype))?;
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
    fn choice(&mut self, reader: &dyn CheckpointReader, wanted: TensorType) -> Result<usize> {
        let known = self.choices.iter().position(|choice| choice.wanted == wanted);
        if let Some(at) = known {
            return Ok(at);
        }
        let mut error = 0.0;
        for member in &self.members {
            let values = member.values(reader)?;
            error += member.error(&values, &member.encoded(&values, wanted));
        }
        let (bytes, effect) = (self.stored_len(wanted)?, self.share * error);
        self.choices.push(Choice { wanted, bytes, effect, error });
        Ok(self.choices.len() - 1)
    }

    /// Bytes that the tensors take in the file.
    fn stored_len(&self, wanted: TensorType) -> Result<u64> {
        let lens = self.members.iter().map(|member| member.stored_len(wanted, self.alignment));
        lens.sum()
    }

    /// The tensors as another type, each with its position.
    pub(crate) fn as_type<'u>(
        &'u self,
        reader: &'u dyn CheckpointReader,
        wanted: TensorType,
    ) -> impl Iterator<Item = Result<(usize, Encoded)>> + 'u {
        self.members.iter().map(move |member| {
            let values = member.values(reader)?;
            Ok((member.position, member.encoded(&values, wanted)))
        })
    }

    /// Returns the largest quantized type of at most `bits` bits per weight that changes the
    /// weights, or else the smallest, with its error. Half precision may change weights so little
    /// that only rounding would be measured.
    pub(crate) fn near(&self, bits: f64) -> (TensorType, f64) {
        let elements = self.members.iter().map(|member| member.elements).sum::<u64>().max(1);
        let of = |choice: &Choice| choice.bytes as f64 * 8.0 / elements as f64;
        let quantized = || {
            self.choices.iter().filter(|choice| is_quantized(choice.wanted) && choice.error > 0.0)
        };
        let found = quantized().rev().find(|choice| of(choice) <= bits).or(quantized().next());
        found.map_or((self.safe(), 0.0), |choice| (choice.wanted, choice.error))
    }

    /// The type of a unit that the data do not reach: of 8 bits, where there is one.
    fn safe(&self) -> TensorType {
        let layouts = self.choices.iter().filter(|choice| is_layout(choice.wanted));
        let largest = layouts.max_by_key(|choice| choice.bytes);
        largest.map_or(UNREACHED, |choice| choice.wanted)
    }

    /// Keeps a single safe choice, for a tensor that the data do not reach and whose effect is
    /// unknown.
    pub(crate) fn keep_safe(&mut self) {
        let safe = self.safe();
        self.choices.retain(|choice| choice.wanted == safe);
    }

    /// Sets the effects of all types from the effect of one type with a known error.
    pub(crate) fn scale(&mut self, effect: f64, error: f64) {
        self.share = if error > 0.0 { effect.max(LEAST_EFFECT) / error } else { 0.0 };
        for choice in &mut self.choices {
            choice.effect = self.share * choice.error;
        }
    }
}

/// Returns `true` for blocks, and for codes and scales.
fn is_quantized(wanted: TensorType) -> bool {
    match wanted {
        TensorType::Dtype(dtype) => dtype.is_quantized(),
        TensorType::Layout(_) => true,
    }
}

fn is_layout(wanted: TensorType) -> bool {
    matches!(wanted, TensorType::Layout(_))
}

#[cfg(test)]
impl Unit {
    /// One with choices of these bytes and effects.
    pub(crate) fn of_choices(choices: &[(u64, f64)]) -> Self {
        let choice = |&(bytes, effect): &(u64, f64)| Choice {
            wanted: UNREACHED,
            bytes,
            effect,
            error: effect,
        };
        let choices = choices.iter().map(choice).collect();
        Self { members: Vec::new(), choices, alignment: 1, share: 1.0 }
    }
}
