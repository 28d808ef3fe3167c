//! The elements of one tensor in all models, a block at a time.

use std::ops::Range;
use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, Result, Shape};
use apr_view::values;

use crate::grid::{Grid, on_grid};

/// Number of elements of a block: 128 KiB per model, so that the blocks of several models fit the
/// caches.
const BLOCK: u64 = 1 << 14;

/// Maximum number of elements in a row for methods that need whole rows: 32 MiB per model.
const MAX_ROW: u64 = 1 << 22;

/// Bytes of two tensors that are compared at a time.
const COMPARED: u64 = 1 << 20;

/// A tensor of a model.
#[derive(Clone)]
pub(crate) struct Input<'a> {
    pub(crate) reader: Arc<dyn CheckpointReader + 'a>,
    pub(crate) tensor: usize,
    /// Name of the model in errors.
    pub(crate) model: Arc<str>,
}

impl Input<'_> {
    /// Returns `true` if another tensor has the same dtype, shape and bytes.
    ///
    /// # Errors
    /// Returns the errors of the readers and of `poll`.
    pub(crate) fn is_same(&self, other: &Self, poll: &dyn Fn() -> Result<()>) -> Result<bool> {
        let (one, two) =
            (&self.reader.tensors()[self.tensor], &other.reader.tensors()[other.tensor]);
        if (one.dtype, &one.shape) != (two.dtype, &two.shape) {
            return Ok(false);
        }
        let len = one.byte_len()?;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let mut offset = 0;
        while offset < len {
            poll()?;
            let count = usize::try_from((len - offset).min(COMPARED)).unwrap_or_default();
            for (input, bytes) in [(self, &mut left), (other, &mut right)] {
                bytes.resize(count, 0);
                let read = input.reader.read_tensor(input.tensor, offset, bytes);
                read.map_err(|error| error.in_file(&*input.model))?;
            }
            if left != right {
                return Ok(false);
            }
            offset += count as u64;
        }
        Ok(true)
    }
}

/// A tensor in all models that have a part in it.
pub(crate) struct Elements<'a> {
    pub(crate) inputs: Vec<Input<'a>>,
    pub(crate) shape: Shape,
    /// The dtype that all are brought to.
    pub(crate) dtype: DType,
    /// `true` to fail the merge on NaN and infinity.
    pub(crate) finite: bool,
    /// Function that is called between blocks; an error ends the merge.
    pub(crate) poll: Arc<dyn Fn() -> Result<()> + Send + Sync + 'a>,
}

/// Consecutive elements of a tensor in each model.
pub(crate) struct Block {
    /// The first one's position in the tensor.
    pub(crate) start: u64,
    pub(crate) inputs: Vec<Vec<f64>>,
}

impl Block {
    pub(crate) fn len(&self) -> usize {
        self.inputs.first().map_or(0, Vec::len)
    }
}

impl Elements<'_> {
    /// Number of elements.
    pub(crate) fn count(&self) -> u64 {
        self.shape.elements().unwrap_or_default()
    }

    /// Elements of a row: those along the last dimension.
    pub(crate) fn row_len(&self) -> u64 {
        self.shape.row_len().max(1)
    }

    /// Returns the number of elements to read in one step: whole rows if `by_row`.
    ///
    /// # Errors
    /// E008 if a row does not fit.
    pub(crate) fn step(&self, by_row: bool) -> Result<u64> {
        let row = self.row_len();
        match by_row {
            true if row > MAX_ROW => {
                Err(Error::memory(format!("a row of {row} elements does not fit in memory")))
            }
            true => Ok((BLOCK / row).max(1) * row),
            false => Ok(BLOCK),
        }
    }

    /// Reads a range of elements.
    ///
    /// # Errors
    /// E002 with model and tensor for values that are not finite, and the errors of the readers.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Block> {
        let inputs = self.inputs.iter().map(|input| self.read_one(input, range.clone()));
        Ok(Block { start: range.start, inputs: inputs.collect::<Result<_>>()? })
    }

    fn read_one(&self, input: &Input<'_>, range: Range<u64>) -> Result<Vec<f64>> {
        let place = |error: Error| error.in_file(&*input.model);
        let info = &input.reader.tensors()[input.tensor];
        let mut values =
            values::read(&*input.reader, input.tensor, range.clone()).map_err(place)?;
        if self.finite
            && let Some(at) = values.iter().position(|value| !value.is_finite())
        {
            let first = range.start + at as u64;
            return Err(place(values::not_finite(&*input.reader, input.tensor, first)));
        }
        if info.dtype != self.dtype {
            on_grid!(self.dtype, round(&mut values));
        }
        Ok(values)
    }

    /// Calls `take` with all elements in order, in blocks. The blocks consist of whole rows if
    /// `by_row`.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read), `take` and the poll function.
    pub(crate) fn each(
        &self,
        by_row: bool,
        mut take: impl FnMut(&Block) -> Result<()>,
    ) -> Result<()> {
        let (count, step) = (self.count(), self.step(by_row)?);
        let mut start = 0;
        while start < count {
            (self.poll)()?;
            let end = (start + step).min(count);
            take(&self.read(start..end)?)?;
            start = end;
        }
        Ok(())
    }
}

fn round<G: Grid>(values: &mut [f64]) {
    values.iter_mut().for_each(|value| *value = G::q(*value));
}
