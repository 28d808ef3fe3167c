//! Judging tensors while their chunks pass by.

use apr_registry::CheckpointReader;
use apr_tensor::stats::Moments;

use super::work::{ChunkBuffers, ChunkTask};
use crate::inline::{InlineValidator, ValidationError};

/// Puts the parts of a tensor together and hands it to the validator when it is complete.
pub(super) struct Judge {
    pub(super) validator: InlineValidator,
    moments: Moments,
    /// Values outside of the range of their dtype.
    beyond: u64,
}

impl Judge {
    pub(super) fn new(validator: InlineValidator) -> Self {
        Self { validator, moments: Moments::default(), beyond: 0 }
    }

    pub(super) fn see(
        &mut self,
        reader: &dyn CheckpointReader,
        task: ChunkTask,
        slot: &ChunkBuffers,
    ) -> Result<(), ValidationError> {
        let ChunkTask { tensor, chunk, .. } = task;
        let name = &reader.tensors()[tensor].name;
        self.beyond += slot.beyond;
        if chunk.last {
            // The tensors come one after the other, so that one count serves all.
            let beyond = std::mem::take(&mut self.beyond);
            self.validator.validate_range(
                tensor,
                name,
                (beyond, reader.tensors()[tensor].dtype),
            )?;
        }

        if let Some(part) = &slot.moments {
            self.moments.merge(part);
            if chunk.last {
                let stats = std::mem::take(&mut self.moments).finish();
                self.validator.validate_stats(reader, tensor, name, stats)?;
            }
        }

        Ok(())
    }
}
