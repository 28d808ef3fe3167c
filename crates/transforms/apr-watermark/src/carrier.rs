//! Which tensors carry a mark, and how large their weights are.

use std::collections::HashSet;
use std::ops::Range;

use apr_arch::FamilyModel;
use apr_core::{CheckpointReader, Error, Phase, Pipeline, Progress, Result, TensorInfo, keys};
use apr_tensor::stats::{Moments, Scratch};
use apr_view::check_decodable;
use apr_view::chunks::take;
use apr_view::values::{decode, read_quantized};

use super::chips::GROUP;

/// Elements below which a tensor is left alone: it has more to lose than to carry.
pub(super) const SMALLEST: u64 = 4096;

/// Elements of a task: whole groups, and whole blocks of every dtype.
pub(super) const TASK_ELEMENTS: u64 = 1 << 18;

const _: () = assert!(TASK_ELEMENTS.is_multiple_of(GROUP as u64), "tasks begin at a group");

/// Deviations beyond which a weight counts no more than at that distance: few large ones would
/// drown the rest.
const CLIP: f32 = 3.0;

/// A tensor that carries a part of the mark.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Carrier {
    /// Position in the checkpoint.
    pub tensor: usize,
    /// The name that its family has for it, or its own.
    pub name: String,
    /// Number of elements.
    pub elements: u64,
    /// Elements that are not zero.
    pub weights: u64,
    /// Arithmetic mean of its elements.
    pub mean: f64,
    /// Standard deviation of its elements.
    pub std: f64,
    /// Euclidean norm.
    pub l2: f64,
    /// `true` if another carrier has the same bytes, so that this one adds no information.
    pub tied: bool,
}

/// Tensors that carry a mark.
///
/// These are floats (or blocks of floats) of two or more dimensions and 4096 or more elements, with
/// finite values that are not all equal.
#[derive(Debug, Clone, PartialEq)]
pub struct Carriers(Vec<Carrier>);

impl Carriers {
    /// Finds them, and reads them once for mean and deviation. `model` gives names that conversions
    /// don't change.
    ///
    /// # Errors
    /// E003 for weights in codes that can't be decoded, and what the reader says.
    pub fn survey<P: Pipeline>(
        reader: &dyn CheckpointReader,
        model: Option<&FamilyModel<'_>>,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Self> {
        check_decodable(reader)?;
        let mut carriers = candidates(reader, model);
        let tasks = tasks(&carriers);
        let mut moments = vec![Moments::default(); carriers.len()];
        let lens = tasks.iter().map(|(carrier, elements)| {
            bytes_of(&reader.tensors()[carriers[*carrier].tensor], elements)
        });
        progress.begin(Phase::Watermarking, lens.sum());
        pipeline.run(
            tasks.len(),
            |at, slot: &mut Survey| {
                let (carrier, elements) = &tasks[at];
                slot.values.read(reader, carriers[*carrier].tensor, elements.clone())?;
                slot.moments = Some(Moments::of_values(&slot.values.values, &mut slot.scratch));
                Ok(())
            },
            |at, slot| {
                let (carrier, elements) = &tasks[at];
                if let Some(part) = slot.moments.take() {
                    moments[*carrier].merge(&part);
                }
                progress.advance(bytes_of(&reader.tensors()[carriers[*carrier].tensor], elements));
                Ok(())
            },
        )?;
        for (carrier, moments) in carriers.iter_mut().zip(moments) {
            let stats = moments.finish();
            (carrier.mean, carrier.std) =
                (stats.mean.unwrap_or_default(), stats.std.unwrap_or_default());
            (carrier.l2, carrier.weights) =
                (stats.l2, carrier.elements.saturating_sub(stats.zeros));
        }

        // Weights that are all equal have no deviation to move them by.
        carriers.retain(|carrier| carrier.std > 0.0 && carrier.std.is_finite());
        Ok(Self(carriers))
    }

    /// The carriers, in the checkpoint's order.
    #[must_use]
    pub fn list(&self) -> &[Carrier] {
        &self.0
    }

    /// Iterates over the carriers that are not copies of another carrier.
    pub(super) fn apart(&self) -> impl Iterator<Item = &Carrier> {
        self.0.iter().filter(|carrier| !carrier.tied)
    }

    /// Weights that can carry a mark.
    #[must_use]
    pub fn weights(&self) -> u64 {
        self.apart().map(|carrier| carrier.weights).sum()
    }
}

impl Carrier {
    /// Brings elements of the tensor to mean 0 and deviation 1, at most 3 from the mean; 0 for
    /// those that are not finite.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "statistics of f32 values are rounded to f32"
    )]
    pub fn normalize(&self, values: &mut [f32]) {
        let (mean, scale) = (self.mean as f32, (1.0 / self.std) as f32);
        for value in values {
            let normal = ((*value - mean) * scale).clamp(-CLIP, CLIP);
            *value = if value.is_finite() && normal.is_finite() { normal } else { 0.0 };
        }
    }
}

/// Tensors that may carry, without their statistics.
fn candidates(reader: &dyn CheckpointReader, model: Option<&FamilyModel<'_>>) -> Vec<Carrier> {
    let ties = reader.metadata().object(keys::TIED);
    let name_of = |position: usize, info: &TensorInfo| {
        model.and_then(|model| model.canonical(position)).unwrap_or(&info.name).to_owned()
    };
    let positions = || reader.tensors().iter().enumerate();
    let mut seen = HashSet::new();
    // What an import adds is no weight of the model, and exports make it anew.
    let auxiliary = reader.metadata().auxiliary_tensor();
    positions()
        .filter(|(_, info)| is_carrier(info) && auxiliary != Some(info.name.as_str()))
        .map(|(tensor, info)| {
            let target = ties.and_then(|ties| ties.get(&info.name)?.as_str());
            let target =
                target.and_then(|target| positions().find(|(_, other)| other.name == target));

            // Both have the same bytes, which can bear the mark of one name alone.
            let (at, named) = target.unwrap_or((tensor, info));
            let elements = info.shape.elements().unwrap_or_default();
            let carrier = Carrier {
                tensor,
                name: name_of(at, named),
                elements,
                weights: elements,
                mean: 0.0,
                std: 0.0,
                l2: 0.0,
                tied: target.is_some(),
            };
            (carrier, target.is_some())
        })
        // Two tensors under one name would carry the same chips, which are then no longer
        // independent.
        .filter(|(carrier, tied)| *tied || seen.insert(carrier.name.clone()))
        .map(|(carrier, _)| carrier)
        .collect()
}

fn is_carrier(info: &TensorInfo) -> bool {
    (info.dtype.is_float() || info.dtype.is_quantized())
        && info.shape.dims().len() >= 2
        && info.shape.elements().is_some_and(|elements| elements >= SMALLEST)
}

/// Pieces of the carriers, by position in their list.
pub(super) fn tasks<'a>(
    carriers: impl IntoIterator<Item = &'a Carrier>,
) -> Vec<(usize, Range<u64>)> {
    let pieces = |carrier: &Carrier| {
        let elements = carrier.elements;
        (0..elements.div_ceil(TASK_ELEMENTS))
            .map(move |piece| piece * TASK_ELEMENTS..((piece + 1) * TASK_ELEMENTS).min(elements))
    };
    carriers
        .into_iter()
        .enumerate()
        .flat_map(|(at, carrier)| pieces(carrier).map(move |piece| (at, piece)))
        .collect()
}

/// Bytes of a range of elements, about.
pub(super) fn bytes_of(info: &TensorInfo, elements: &Range<u64>) -> u64 {
    (elements.end - elements.start) / info.dtype.block_len() * info.dtype.block_bytes()
}

#[derive(Default)]
struct Survey {
    values: Values,
    scratch: Scratch,
    moments: Option<Moments>,
}

/// Elements of a tensor as floats, in buffers that are used again.
#[derive(Default)]
pub(super) struct Values {
    bytes: Vec<u8>,
    row: Vec<f32>,
    pub(super) values: Vec<f32>,
}

impl Values {
    /// Replaces the values by a range of a tensor's.
    pub(super) fn read(
        &mut self,
        reader: &dyn CheckpointReader,
        tensor: usize,
        elements: Range<u64>,
    ) -> Result<()> {
        let info = &reader.tensors()[tensor];
        if info.dtype.is_quantized() {
            return read_quantized(
                reader,
                tensor,
                elements,
                (&mut self.bytes, &mut self.row),
                &mut self.values,
            );
        }

        let element = info.dtype.block_bytes();
        let len = usize::try_from((elements.end - elements.start) * element)
            .map_err(|_| Error::memory("a range is larger than memory can be"))?;
        let bytes = take(&mut self.bytes, len);
        reader.read_tensor(tensor, elements.start * element, bytes)?;
        decode(info.dtype, bytes, len, &mut self.values);
        Ok(())
    }
}
