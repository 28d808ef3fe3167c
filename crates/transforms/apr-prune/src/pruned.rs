//! A checkpoint that is pruned as it is read.

use apr_core::{
    CheckpointReader, DType, Error, Phase, Pipeline, Progress, Result, TensorInfo, keys,
};
use apr_quantize::record_dequantized;
use apr_tensor::cast::cast_float;
use apr_view::{Computation, Derived, Target};
use serde_json::{Map, json};

use crate::mask::Mask;
use crate::plan::Scope;
use crate::report::{Counts, PruneReport, PruneTotal, PrunedTensor};
use crate::weights::{Buffers, in_memory, pieces, read};

/// A checkpoint with weights that are zero.
pub(crate) struct Pruned<'b> {
    pub(crate) reader: Derived<'b, Masked>,
}

/// A tensor with zeros where a mask says so, and as floats if it was quantized.
pub(crate) struct Masked {
    mask: Option<Mask>,
}

impl<'b> Pruned<'b> {
    /// The base with these tensors pruned, quantized ones as floats of `dequantize`.
    pub(crate) fn new(
        base: Box<dyn CheckpointReader + 'b>,
        masks: Vec<(usize, Mask)>,
        dequantize: Option<DType>,
    ) -> Result<Self> {
        let mut reader = Derived::new(base);
        let infos = reader.tensors().iter().enumerate();
        let quantized: Vec<usize> =
            infos.filter(|(_, info)| is_quantized(info)).map(|(tensor, _)| tensor).collect();
        if let Some(dtype) = dequantize.filter(|_| !quantized.is_empty()) {
            record_dequantized(reader.metadata_mut(), dtype)?;
            for tensor in quantized {
                reader.info_mut(tensor).dtype = dtype;
                reader.compute(tensor, Masked { mask: None });
            }
        }
        for (tensor, mask) in masks {
            reader.compute(tensor, Masked { mask: Some(mask) });
        }
        Ok(Self { reader })
    }

    /// Adds a record of the pruning to the metadata.
    pub(crate) fn recorded(mut self, report: &PruneReport, scope: Option<Scope>) -> Self {
        let mut entry = Map::new();
        entry.insert("method".to_owned(), report.method.as_str().into());
        if let Some(share) = report.share {
            entry.insert("share".to_owned(), json!(share));
        }
        if let Some(scope) = scope {
            let scope = if scope == Scope::Global { "global" } else { "tensor" };
            entry.insert("scope".to_owned(), scope.into());
        }
        entry.insert("tensors".to_owned(), report.tensors.len().into());
        entry.insert("elements".to_owned(), report.total.elements.into());
        entry.insert("zeros".to_owned(), report.total.zeros.into());
        self.reader.metadata_mut().set(keys::SPARSITY, entry);
        self
    }

    /// Counts zeros and measures the difference between the tensors before and after.
    pub(crate) fn measure<P: Pipeline>(
        &self,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<(PruneTotal, Vec<PrunedTensor>)> {
        let infos = self.reader.tensors();
        let mask = |tensor: usize| self.reader.computation(tensor)?.mask.as_ref();
        let masked: Vec<(usize, &Mask)> =
            (0..infos.len()).filter_map(|tensor| Some((tensor, mask(tensor)?))).collect();
        let of_mask = |(at, (tensor, mask)): (usize, &(usize, &Mask))| {
            let elements = infos[*tensor].shape.elements().unwrap_or_default();
            pieces(elements, mask.unit()).map(move |range| (at, range))
        };
        let tasks: Vec<_> = masked.iter().enumerate().flat_map(of_mask).collect();
        let elements = tasks.iter().map(|(_, range)| range.end - range.start);
        progress.begin(Phase::Measuring, elements.sum::<u64>() * 4);

        let mut found = vec![Counts::default(); masked.len()];
        pipeline.run(
            tasks.len(),
            |task, (buffers, counts): &mut (Buffers, Counts)| {
                let (at, range) = &tasks[task];
                let (tensor, mask) = masked[*at];
                read(self.reader.base(), tensor, range.clone(), buffers)?;
                *counts = count(mask, range.start, &buffers.values);
                Ok(())
            },
            |task, (_, counts)| {
                let (at, range) = &tasks[task];
                found[*at].add(counts);
                progress.advance((range.end - range.start) * 4);
                Ok(())
            },
        )?;

        let mut total = Counts::default();
        found.iter().for_each(|counts| total.add(counts));
        let pruned = masked.iter().zip(&found);
        let tensors = pruned.map(|((tensor, _), counts)| counts.of_tensor(&infos[*tensor].name));
        let tensors = tensors.collect();
        Ok((total.total(), tensors))
    }
}

fn is_quantized(info: &TensorInfo) -> bool {
    info.dtype.is_quantized()
}

fn count(mask: &Mask, start: u64, values: &[f32]) -> Counts {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    let zeros_before = values.iter().filter(|value| **value == 0.0).count() as u64;
    let mut counts = Counts {
        elements: values.len() as u64,
        zeros_before,
        zeros: zeros_before,
        energy: values.iter().map(square).sum(),
        lost: 0.0,
    };
    mask.each_gone(start, values, &mut |place| {
        counts.zeros += u64::from(values[place] != 0.0);
        counts.lost += square(&values[place]);
    });
    counts
}

impl Computation for Masked {
    fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (info, mask) = (target.info, self.mask.as_ref());
        let width = info.dtype.block_bytes();
        let unit = mask.map_or(1, Mask::unit).max(1);
        let start = offset / width / unit * unit;
        let elements = info.shape.elements().unwrap_or_default();
        let end = offset + buf.len() as u64;
        let stop = end.div_ceil(width).next_multiple_of(unit).min(elements);
        let mut buffers = Buffers::default();
        read(target.base, target.tensor, start..stop, &mut buffers)?;
        let Buffers { mut bytes, values, .. } = buffers;
        if is_quantized(target.source()) {
            let wide: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            cast_float(DType::F32, info.dtype, &wide, &mut bytes);
        }
        let width = in_memory(width)?;
        if let Some(mask) = mask {
            // All bits of a zero are zero, whatever the float.
            mask.each_gone(start, &values, &mut |place| {
                bytes[place * width..][..width].fill(0);
            });
        }
        let from = in_memory(offset - start * width as u64)?;
        let wanted = bytes.get(from..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(wanted.ok_or_else(|| Error::corrupt("the tensor ends too early"))?);
        Ok(())
    }
}
