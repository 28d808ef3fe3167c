//! What becomes of chunks that a thread is done with, one after the other: checked, judged,
//! written, counted.

use apr_core::{Progress, StoredRange, counted};
use apr_quantize::QualityLog;
use apr_quantize::recode::{Recode, RecodeFindings};
use apr_registry::digest::{Crc32, TensorDigest};
use apr_registry::{CheckpointWriter, DType, DTypeKind, Error, Loss, Result, Sink, TensorInfo};
use apr_tensor::cast::CastCounts;

use super::error::{ConvertError, digest_mismatch};
use super::judge::Judge;
use super::recipe::Recipe;
use super::report::Rounding;
use super::work::{ChunkBuffers, ChunkTask, TaskKind, Worker};
use crate::inline::{InlineValidator, ValidationError};
use crate::integrity::{Checks, Mismatch, Tally};
use crate::physics::Violation;

/// Destination of finished chunks.
pub(super) struct Target<'a> {
    pub(super) writer: &'a mut dyn CheckpointWriter,
    pub(super) sink: &'a mut dyn Sink,
    pub(super) progress: &'a dyn Progress,
}

/// Receives the chunks of all tensors in order and collects the data for the report.
pub(super) struct Receiver<'a> {
    worker: Worker<'a>,
    checks: &'a Checks<'a>,
    target: Target<'a>,
    judge: Judge,
    tally: Tally,
    /// CRC-32 of the current tensor, if the file states one.
    crc: Crc32,
    digest: TensorDigest,
    /// Findings in the tensor whose chunks are being received.
    found: RecodeFindings,
    /// The error that ended the conversion, and the position of its tensor.
    violation: Option<(usize, ValidationError)>,
    rounding: Rounding,
    quality: QualityLog,
    losses: Vec<Loss>,
    mismatches: u64,
}

/// Results collected over all chunks.
pub(super) struct Received {
    pub(super) validator: InlineValidator,
    pub(super) rounding: Rounding,
    pub(super) quality: QualityLog,
    pub(super) losses: Vec<Loss>,
    /// Number of blocks that did not decode to their original bytes.
    pub(super) mismatches: u64,
}

impl<'a> Receiver<'a> {
    pub(super) fn new(
        worker: Worker<'a>,
        checks: &'a Checks<'a>,
        target: Target<'a>,
        judge: Judge,
    ) -> Self {
        Self {
            worker,
            checks,
            target,
            judge,
            tally: Tally::default(),
            crc: Crc32::new(),
            digest: TensorDigest::new(),
            found: RecodeFindings::default(),
            violation: None,
            rounding: Rounding::default(),
            quality: QualityLog::default(),
            losses: Vec::new(),
            mismatches: 0,
        }
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// What is wrong with the file's bytes, what the sink says, and an error that stands for a
    /// violation: see [`finish`](Self::finish).
    pub(super) fn receive(&mut self, task: ChunkTask, slot: &ChunkBuffers) -> Result<()> {
        if let TaskKind::Part(part) = task.kind {
            return self.check_part(task, part, slot);
        }
        self.check_bytes(task, slot)?;
        if task.kind == TaskKind::Check {
            return Ok(());
        }
        self.check_crc(task, slot)?;
        let judged = self.judge.see(self.worker.reader, task, slot);
        judged.map_err(|error| self.stop(task.tensor, error))?;
        self.found.merge(&slot.found);
        self.write(task, slot)?;
        self.target.progress.advance(task.chunk.len as u64);
        if task.chunk.last { self.end_tensor(task.tensor) } else { Ok(()) }
    }

    /// Adds a chunk to the checksum of the part of the file that it is of.
    fn check_part(&mut self, task: ChunkTask, part: usize, slot: &ChunkBuffers) -> Result<()> {
        let part = self.checks.list[part].part;
        self.tally.append(part.sum, &slot.input[..task.chunk.len], slot.input_sums);
        let mismatch = if task.chunk.last { self.tally.finish(part.sum) } else { None };
        mismatch.map_or(Ok(()), |mismatch| self.find(mismatch, task.tensor, part.place))
    }

    /// Adds a chunk to the tensor's CRC-32 if the file states one.
    ///
    /// Compares the two after the last chunk of the tensor.
    fn check_crc(&mut self, task: ChunkTask, slot: &ChunkBuffers) -> Result<()> {
        let ChunkTask { tensor, chunk, .. } = task;
        let stored = self.worker.reader.stored(tensor);
        let Some(stated) = stored.crc32() else { return Ok(()) };
        match slot.input_sums {
            Some(sums) => self.crc.append(sums),
            None => self.crc.update(&slot.input[..chunk.len]),
        }
        if !chunk.last {
            return Ok(());
        }
        let found = std::mem::take(&mut self.crc).value();
        match stated == found {
            true => Ok(()),
            false => self.find(Mismatch::Crc32 { stated, found }, tensor, stored.range),
        }
    }

    /// Ends the conversion because of a mismatch, or records one of a CRC-32 if errors do not end
    /// it.
    fn find(&mut self, mismatch: Mismatch, tensor: usize, place: StoredRange) -> Result<()> {
        let (reader, validator) = (self.worker.reader, &mut self.judge.validator);
        let name = &reader.tensors()[tensor].name;
        match mismatch {
            Mismatch::Crc32 { stated, found } if !validator.config().stop => {
                let judged = validator.validate_checksum(tensor, name, (stated, found));
                judged.map_err(|error| self.stop(tensor, error))
            }
            _ => Err(mismatch.into_error_about(reader, validator.name(tensor, name), place)),
        }
    }

    /// Adds a chunk to the tensor's digest if the file states a digest.
    ///
    /// Compares the digests after the last chunk of the tensor.
    fn check_bytes(&mut self, task: ChunkTask, slot: &ChunkBuffers) -> Result<()> {
        let ChunkTask { tensor, chunk, kind, .. } = task;
        let along = self.worker.is_checked_along(tensor);
        let is_checked = along || kind == TaskKind::Check || !self.worker.is_checked_apart(tensor);
        let Some(expected) = self.worker.reader.stored(tensor).digest().filter(|_| is_checked)
        else {
            return Ok(());
        };
        match slot.input_sums {
            // Digests are of the bytes in the file, and the input was decoded from them.
            _ if along => self.digest.append_part(&slot.part),
            Some(sums) => self.digest.append(sums),
            None => self.digest.update(&slot.input[..chunk.len]),
        }

        if chunk.last && std::mem::take(&mut self.digest).value() != expected {
            return Err(digest_mismatch(self.worker.reader, tensor));
        }

        Ok(())
    }

    /// Writes a chunk, unless its values make it one that is never written.
    fn write(&mut self, task: ChunkTask, slot: &ChunkBuffers) -> Result<()> {
        // The end of the tensor reports the values, and the output is dropped then.
        if !slot.found.is_finite() {
            return Ok(());
        }
        let keeps_bytes = self.worker.recipes[task.tensor].keeps_bytes();
        let bytes = if keeps_bytes { &slot.input[..task.chunk.len] } else { &slot.output };
        let Target { writer, sink, .. } = &mut self.target;
        match task.kind {
            TaskKind::Encode => writer.write_piece(*sink, bytes, &slot.encoded)?,
            _ => writer.write_chunk(*sink, bytes, slot.output_sums)?,
        }
        self.mismatches += slot.mismatches;
        Ok(())
    }

    /// Judges what was found in all chunks of a tensor together.
    fn end_tensor(&mut self, tensor: usize) -> Result<()> {
        let info = &self.worker.reader.tensors()[tensor];
        let found = std::mem::take(&mut self.found);
        if let Some(violated) = Violation::not_finite(found.nan, found.infinite, info) {
            return Err(self.stop(tensor, ValidationError::of_values(&info.name, violated)));
        }

        self.rounding.add(found.counts);
        match &self.worker.recipes[tensor] {
            Recipe::Recode(Recode { to, measured, .. }) => {
                if *measured {
                    let len = TensorInfo { dtype: *to, ..info.clone() }.byte_len()?;
                    self.quality.add(&info.name, *to, len, &found.drift);
                }
                self.losses.extend(overflow_loss(&info.name, *to, found.counts));
            }
            Recipe::Cast(to) => self.losses.extend(overflow_loss(&info.name, *to, found.counts)),
            Recipe::Keep | Recipe::Stored(_) => {}
        }

        Ok(())
    }

    /// Keeps a violation, and gives the error that ends the pipeline, whose errors are about files.
    fn stop(&mut self, tensor: usize, error: ValidationError) -> Error {
        self.violation = Some((tensor, error));
        Error::corrupt("a violation ended the conversion")
            .for_tensor(&self.worker.reader.tensors()[tensor].name)
    }

    /// Returns the collected results after the pipeline has ended with `outcome`.
    ///
    /// # Errors
    /// The violation that ended the conversion, or the outcome's error.
    pub(super) fn finish(self, outcome: Result<()>) -> Result<Received, ConvertError> {
        // It comes first: the outcome's error only stands for it.
        if let Some((tensor, error)) = self.violation {
            return Err(match &self.worker.recipes[tensor] {
                Recipe::Recode(Recode { to, .. })
                    if to.is_quantized() && error.is_of_no_finite_value() =>
                {
                    ConvertError::Unfit { error, dtype: *to }
                }
                _ => error.into(),
            });
        }

        outcome?;
        Ok(Received {
            validator: self.judge.validator,
            rounding: self.rounding,
            quality: self.quality,
            losses: self.losses,
            mismatches: self.mismatches,
        })
    }
}

fn overflow_loss(name: &str, to: DType, counts: CastCounts) -> Option<Loss> {
    (counts.overflowed > 0).then(|| Loss {
        name: name.to_owned(),
        what: match to.kind() {
            DTypeKind::MiniFloat => {
                format!(
                    "{} clamped to the largest finite value",
                    counted(counts.overflowed, "value")
                )
            }
            _ => format!("{} became infinite", counted(counts.overflowed, "value")),
        },
        why: format!("they exceed the range of {to}"),
    })
}
