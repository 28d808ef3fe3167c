//! A checkpoint that is pruned as it is read.

use apr_core::{
    CheckpointReader, Container, DType, Error, Metadata, Phase, Pipeline, Progress, Result, Stored,
    TensorInfo, keys, pass_on,
};
use apr_quantize::record_dequantized;
use apr_tensor::cast::cast_float;
use apr_view::View;
use serde_json::{Map, json};

use crate::mask::Mask;
use crate::plan::Scope;
use crate::report::{Counts, PruneReport, PruneTotal, PrunedTensor};
use crate::weights::{Buffers, in_memory, pieces, read};

/// A checkpoint with weights that are zero.
pub(crate) struct Pruned<'b> {
    base: Box<dyn CheckpointReader + 'b>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    masks: Vec<Option<Mask>>,
}

impl<'b> Pruned<'b> {
    /// The base with these tensors pruned, quantized ones as floats of `dequantize`.
    pub(crate) fn new(
        base: Box<dyn CheckpointReader + 'b>,
        masks: Vec<(usize, Mask)>,
        dequantize: Option<DType>,
    ) -> Result<Self> {
        let (mut tensors, mut metadata) = (base.tensors().to_vec(), base.metadata().clone());
        if let Some(dtype) = dequantize.filter(|_| tensors.iter().any(is_quantized)) {
            let mut view = View::new(&*base);
            record_dequantized(&mut view, dtype)?;
            metadata = view.metadata().clone();
            let quantized = tensors.iter_mut().filter(|info| is_quantized(info));
            quantized.for_each(|info| info.dtype = dtype);
        }
        let mut of_all = vec![None; tensors.len()];
        masks.into_iter().for_each(|(position, mask)| of_all[position] = Some(mask));
        Ok(Self { base, metadata, tensors, masks: of_all })
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
        self.metadata.set(keys::SPARSITY, entry);
        self
    }

    /// Counts zeros and measures the difference between the tensors before and after.
    pub(crate) fn measure<P: Pipeline>(
        &self,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<(PruneTotal, Vec<PrunedTensor>)> {
        let of_mask = |(tensor, mask): (usize, &Option<Mask>)| {
            let elements = self.tensors[tensor].shape.elements().unwrap_or_default();
            let unit = mask.as_ref()?.unit();
            Some(pieces(elements, unit).map(move |range| (tensor, range)))
        };
        let tasks: Vec<_> = self.masks.iter().enumerate().filter_map(of_mask).flatten().collect();
        let elements = tasks.iter().map(|(_, range)| range.end - range.start);
        progress.begin(Phase::Measuring, elements.sum::<u64>() * 4);

        let mut found = vec![Counts::default(); self.tensors.len()];
        pipeline.run(
            tasks.len(),
            |task, (buffers, counts): &mut (Buffers, Counts)| {
                let (tensor, range) = &tasks[task];
                read(&*self.base, *tensor, range.clone(), buffers)?;
                *counts = count(self.masks[*tensor].as_ref(), range.start, &buffers.values);
                Ok(())
            },
            |task, (_, counts)| {
                let (tensor, range) = &tasks[task];
                found[*tensor].add(counts);
                progress.advance((range.end - range.start) * 4);
                Ok(())
            },
        )?;

        let mut total = Counts::default();
        found.iter().for_each(|counts| total.add(counts));
        let pruned = self.masks.iter().zip(&found).zip(&self.tensors);
        let tensors = pruned.filter(|((mask, _), _)| mask.is_some());
        let tensors = tensors.map(|((_, counts), info)| counts.of_tensor(&info.name)).collect();
        Ok((total.total(), tensors))
    }
}

fn is_quantized(info: &TensorInfo) -> bool {
    info.dtype.is_quantized()
}

fn count(mask: Option<&Mask>, start: u64, values: &[f32]) -> Counts {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    let zeros_before = values.iter().filter(|value| **value == 0.0).count() as u64;
    let mut counts = Counts {
        elements: values.len() as u64,
        zeros_before,
        zeros: zeros_before,
        energy: values.iter().map(square).sum(),
        lost: 0.0,
    };
    if let Some(mask) = mask {
        mask.each_gone(start, values, &mut |place| {
            counts.zeros += u64::from(values[place] != 0.0);
            counts.lost += square(&values[place]);
        });
    }
    counts
}

impl CheckpointReader for Pruned<'_> {
    pass_on!(base: format, files, companions, read_companion, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.is_as_stored(tensor) {
            true => self.base.stored(tensor),
            false => Stored::derived_from(&*self.base, &[tensor]),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.is_as_stored(tensor) {
            return self.base.read_tensor(tensor, offset, buf);
        }
        let info = &self.tensors[tensor];
        let past = || Error::corrupt("the read ends past the tensor").for_tensor(&info.name);
        let end = offset.checked_add(buf.len() as u64).ok_or_else(past)?;
        if end > info.byte_len()? {
            return Err(past().at(offset));
        }

        let mask = self.masks[tensor].as_ref();
        let width = info.dtype.block_bytes();
        let unit = mask.map_or(1, Mask::unit).max(1);
        let start = offset / width / unit * unit;
        let elements = info.shape.elements().unwrap_or_default();
        let stop = end.div_ceil(width).next_multiple_of(unit).min(elements);
        let mut buffers = Buffers::default();
        read(&*self.base, tensor, start..stop, &mut buffers)?;
        let Buffers { mut bytes, values, .. } = buffers;
        if is_quantized(&self.base.tensors()[tensor]) {
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
        buf.copy_from_slice(
            bytes.get(from..).and_then(|rest| rest.get(..buf.len())).ok_or_else(past)?,
        );
        Ok(())
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        self.is_as_stored(tensor).then(|| self.base.tensor_slice(tensor))?
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }
}

impl Pruned<'_> {
    /// Returns `true` if a tensor's bytes are unchanged.
    fn is_as_stored(&self, tensor: usize) -> bool {
        self.masks[tensor].is_none()
            && self.tensors[tensor].dtype == self.base.tensors()[tensor].dtype
    }
}
