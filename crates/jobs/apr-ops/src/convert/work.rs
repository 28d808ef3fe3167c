//! What is done with a chunk before it is written, on whichever thread.

use apr_core::{ChunkEncoder, Encoded, StoredForm};
use apr_quantize::recode::{self, RecodeFindings};
use apr_registry::digest::{CHUNK_LEN, ChunkSums, PartSums, TensorDigest};
use apr_registry::{CheckpointReader, CheckpointWriter, DType, Error, Pipeline, Result};
use apr_tensor::cast::cast_float;
use apr_tensor::element::chunk_len;
use apr_tensor::stats::Moments;
use apr_view::chunks::{Chunk, chunks, pieces, take};
use apr_view::values;

use super::error::digest_mismatch;
use super::recipe::Recipe;
use crate::integrity::{Checks, about_part};

/// One chunk on its way through a slot of the pipeline; the buffers are reused.
#[derive(Default)]
pub(super) struct ChunkBuffers {
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
    /// Output of the writer's encoder for the bytes.
    pub(super) encoded: Vec<u8>,
    /// Number of blocks that did not decode to their original bytes.
    pub(super) mismatches: u64,
    pub(super) input_sums: Option<ChunkSums>,
    pub(super) output_sums: Option<ChunkSums>,
    /// The bytes in the file that the input was decoded from, and their part of the tensor's
    /// digest, where they were read together.
    verbatim: Vec<u8>,
    pub(super) part: PartSums,
    /// Quants outside of the range of their dtype.
    pub(super) beyond: u64,
    pub(super) found: RecodeFindings,
    pub(super) buffers: recode::Buffers,
    pub(super) summary: values::Buffers,
    pub(super) moments: Option<Moments>,
}

/// A chunk and the tensor it belongs to.
#[derive(Clone, Copy)]
pub(super) struct ChunkTask {
    pub(super) tensor: usize,
    /// Position in the writer's layout.
    pub(super) planned: usize,
    pub(super) chunk: Chunk,
    /// Bytes of all chunks of its kind.
    pub(super) len: u64,
    pub(super) kind: TaskKind,
}

/// Operation on a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskKind {
    /// Compare the tensor's stored bytes with its digest.
    ///
    /// The other chunks of the tensor are then not checked.
    Check,
    /// Write the chunk.
    Write,
    /// Pass the chunk to the writer's encoder as one of its pieces.
    Encode,
    /// Read this part of the file for its checksum. The tensor is made of the part.
    Part(usize),
}

/// Values to compute for each chunk.
#[derive(Clone, Copy)]
pub(super) struct Measures {
    pub(super) sums: bool,
    pub(super) moments: bool,
}

/// State shared by all threads.
#[derive(Clone, Copy)]
pub(super) struct Worker<'a> {
    pub(super) reader: &'a dyn CheckpointReader,
    pub(super) recipes: &'a [Recipe],
    pub(super) measures: Measures,
    pub(super) encoder: Option<&'a dyn ChunkEncoder>,
}

impl Worker<'_> {
    /// Returns `true` if a tensor's digest covers other bytes than those read for the conversion.
    pub(super) fn is_checked_apart(&self, tensor: usize) -> bool {
        let stored = self.reader.stored(tensor);
        let is_what_is_read = |form: StoredForm| stored.range.len == form.len;
        stored.is_encoded()
            && !matches!(self.recipes[tensor], Recipe::Stored(form) if is_what_is_read(form))
    }

    /// Returns `true` if the bytes that the digest covers are read along with the converted bytes.
    ///
    /// Both are then read only once.
    pub(super) fn is_checked_along(&self, tensor: usize) -> bool {
        let stored = self.reader.stored(tensor);
        let piece = stored
            .encoded()
            .filter(|_| stored.digest().is_some())
            .and_then(|encoded| encoded.piece_len());
        matches!(self.recipes[tensor], Recipe::Keep)
            && chunk_len(self.reader.tensors()[tensor].dtype) == CHUNK_LEN
            && piece.is_some_and(|piece| (CHUNK_LEN as u64).is_multiple_of(piece))
    }

    /// Reads a chunk of a tensor that is checked along.
    fn read_both(
        &self,
        tensor: usize,
        encoded: Encoded<'_>,
        offset: u64,
        input: &mut [u8],
        (verbatim, part): (&mut Vec<u8>, &mut PartSums),
    ) -> Result<()> {
        match encoded.read_both(offset, input, verbatim) {
            Ok(start) => part.take(verbatim, start),
            // Bytes that were changed are reported as such, whatever they decode to.
            Err(error) => return Err(self.mismatch(tensor, encoded)?.unwrap_or(error)),
        }
        Ok(())
    }

    /// Returns an error if the bytes of a tensor in the file do not match their digest.
    #[cold]
    fn mismatch(&self, tensor: usize, encoded: Encoded<'_>) -> Result<Option<Error>> {
        let stored = self.reader.stored(tensor);
        let (mut digest, mut bytes) = (TensorDigest::new(), Vec::new());
        for chunk in pieces(stored.range.len, CHUNK_LEN) {
            let bytes = take(&mut bytes, chunk.len);
            encoded.read_verbatim(chunk.offset, bytes)?;
            digest.update(bytes);
        }
        let differs = stored.digest().is_some_and(|expected| digest.value() != expected);
        Ok(differs.then(|| digest_mismatch(self.reader, tensor)))
    }

    /// Shows the encoder samples of the tensors whose codec it chooses by them.
    pub(super) fn learn<P: Pipeline>(
        &self,
        writer: &dyn CheckpointWriter,
        pipeline: &P,
    ) -> Result<()> {
        let Some(encoder) = self.encoder else { return Ok(()) };
        let planned = &writer.layout().tensors;
        let wanted: Vec<usize> =
            (0..planned.len()).filter(|&at| encoder.wants_samples(at)).collect();
        let look = |at: usize, slot: &mut ChunkBuffers| {
            let samples = self.samples(planned[wanted[at]].source, slot)?;
            if !samples.is_empty() {
                encoder.learn(wanted[at], &samples.iter().map(Vec::as_slice).collect::<Vec<_>>());
            }
            Ok(())
        };
        pipeline.run(wanted.len(), look, |_, _| Ok(()))
    }

    /// Returns samples of a tensor's output: beginning, middle and end.
    ///
    /// Returns no samples for a tensor that is quantized: the writer sees enough of it.
    fn samples(&self, tensor: usize, slot: &mut ChunkBuffers) -> Result<Vec<Vec<u8>>> {
        /// Bytes of a sample, of which each element is a divisor.
        const SAMPLE_LEN: u64 = 64 << 10;

        let info = &self.reader.tensors()[tensor];
        let stored = self.reader.stored(tensor);
        let form = match &self.recipes[tensor] {
            Recipe::Stored(form) => stored.encoded().zip(Some(form.len)),
            _ => None,
        };
        let len = form.map_or_else(|| info.byte_len(), |(_, len)| Ok(len))?;
        if matches!(self.recipes[tensor], Recipe::Recode(_)) {
            return Ok(Vec::new());
        }

        // Rounded down, so that no sample begins within an element.
        let starts =
            [0, (len / 2) & !(SAMPLE_LEN - 1), len.saturating_sub(SAMPLE_LEN) & !(SAMPLE_LEN - 1)];
        let mut samples = Vec::new();
        for (at, start) in starts.into_iter().enumerate() {
            // In a short tensor, middle and end are the beginning again.
            if starts[..at].contains(&start) {
                continue;
            }

            let input = take(
                &mut slot.input,
                usize::try_from(SAMPLE_LEN.min(len - start)).unwrap_or_default(),
            );
            match form {
                Some((encoded, _)) => encoded.read_form(start, input)?,
                None => self.reader.read_tensor(tensor, start, input)?,
            }
            match &self.recipes[tensor] {
                Recipe::Cast(to) => {
                    cast_float(info.dtype, *to, input, &mut slot.output);
                    samples.push(slot.output.clone());
                }
                _ => samples.push(input.to_vec()),
            }
        }

        Ok(samples)
    }

    /// Returns all tasks, and the parts of the file that are read for their checksums.
    pub(super) fn tasks(
        &self,
        writer: &dyn CheckpointWriter,
    ) -> Result<(Vec<ChunkTask>, Checks<'_>)> {
        let (mut tasks, mut checks) = (Vec::new(), Checks::default());
        for (at, planned) in writer.layout().tensors.iter().enumerate() {
            let tensor = planned.source;
            let known = checks.list.len();
            checks.add(tensor, self.reader.stored(tensor).parts());
            for (part, check) in checks.list.iter().enumerate().skip(known) {
                let len = check.part.range.len;
                let task = |chunk| ChunkTask {
                    tensor,
                    planned: at,
                    chunk,
                    len,
                    kind: TaskKind::Part(part),
                };
                tasks.extend(pieces(len, CHUNK_LEN).map(task));
            }

            tasks.extend(self.check_tasks(tensor, at));
            tasks.extend(self.write_tasks(tensor, at)?);
        }

        // Empty tensors have no chunk to write.
        tasks.retain(|task| task.len > 0);
        Ok((tasks, checks))
    }

    /// Returns tasks that read a tensor's stored bytes for their digest, if no other task does.
    fn check_tasks(&self, tensor: usize, planned: usize) -> Vec<ChunkTask> {
        let stored = self.reader.stored(tensor);
        if !self.is_checked_apart(tensor)
            || self.is_checked_along(tensor)
            || stored.digest().is_none()
        {
            return Vec::new();
        }
        let len = stored.range.len;
        let task = |chunk| ChunkTask { tensor, planned, chunk, len, kind: TaskKind::Check };
        pieces(len, CHUNK_LEN).map(task).collect()
    }

    /// Returns tasks that write a tensor's output, in the encoder's pieces if it requires them.
    fn write_tasks(&self, tensor: usize, planned: usize) -> Result<Vec<ChunkTask>> {
        let info = &self.reader.tensors()[tensor];
        let len = info.byte_len()?;
        let task = |len, kind| move |chunk| ChunkTask { tensor, planned, chunk, len, kind };
        let piece = self.encoder.and_then(|encoder| encoder.piece_len(planned));
        Ok(match (&self.recipes[tensor], piece) {
            (Recipe::Stored(form), piece) => {
                let kind = if piece.is_some() { TaskKind::Encode } else { TaskKind::Write };
                pieces(form.len, CHUNK_LEN).map(task(form.len, kind)).collect()
            }
            (Recipe::Keep, Some(piece)) if chunk_len(info.dtype) == piece => {
                pieces(len, piece).map(task(len, TaskKind::Encode)).collect()
            }
            (Recipe::Cast(to), Some(piece)) => {
                let wide = usize::try_from(info.dtype.block_bytes()).unwrap_or(1);
                let narrow = usize::try_from(to.block_bytes()).unwrap_or(1);

                // So much input that each cast piece is one of the encoder's.
                pieces(len, piece / narrow * wide).map(task(len, TaskKind::Encode)).collect()
            }
            (Recipe::Recode(recode), _) => {
                recode.pieces().into_iter().map(task(len, TaskKind::Write)).collect()
            }
            _ => chunks(info, len).map(task(len, TaskKind::Write)).collect(),
        })
    }

    /// Reads a chunk, looks at its values, and makes of it what is written.
    pub(super) fn produce(
        &self,
        task: ChunkTask,
        checks: &Checks<'_>,
        slot: &mut ChunkBuffers,
    ) -> Result<()> {
        if let Some(encoder) = self.encoder {
            // The writer does itself, on one thread, what nobody has helped with.
            encoder.help();
        }

        // The slot still has what the chunk before left in it.
        (slot.input_sums, slot.output_sums, slot.moments, slot.mismatches) = (None, None, None, 0);
        slot.found = RecodeFindings::default();
        self.read(task, checks, slot)?;
        if self.wants_input_sums(task) {
            slot.input_sums =
                Some(ChunkSums::of(&slot.input[..task.chunk.len], task.chunk.offset, task.len));
        }

        if matches!(task.kind, TaskKind::Check | TaskKind::Part(_)) {
            return Ok(());
        }

        self.look_at(task, slot)?;
        let (offset, len) = self.transform(task, slot);
        match self.encoder.filter(|_| task.kind == TaskKind::Encode) {
            Some(encoder) => self.encode(encoder, task, (offset, len), slot),
            None => Ok(()),
        }
    }

    /// Reads the bytes that a task is about.
    fn read(&self, task: ChunkTask, checks: &Checks<'_>, slot: &mut ChunkBuffers) -> Result<()> {
        let ChunkTask { tensor, chunk, kind, .. } = task;
        let input = take(&mut slot.input, chunk.len);
        let stored = self.reader.stored(tensor);
        match (kind, stored.encoded()) {
            (TaskKind::Part(part), _) => {
                let part = &checks.list[part].part;
                let read = part.read(chunk.offset, input);
                read.map_err(|error| about_part(error, self.reader, tensor, part.place))
            }
            (TaskKind::Check, Some(encoded)) => encoded.read_verbatim(chunk.offset, input),
            (_, Some(encoded)) if self.keeps_form(tensor) => encoded.read_form(chunk.offset, input),
            (_, Some(encoded)) if self.is_checked_along(tensor) => self.read_both(
                tensor,
                encoded,
                chunk.offset,
                input,
                (&mut slot.verbatim, &mut slot.part),
            ),
            _ => self.reader.read_tensor(tensor, chunk.offset, input),
        }
    }

    /// Returns `true` if a tensor keeps its compressed form.
    fn keeps_form(&self, tensor: usize) -> bool {
        matches!(self.recipes[tensor], Recipe::Stored(_))
    }

    /// Returns `true` if the writer needs digests of the bytes that it receives.
    fn wants_output_sums(&self, task: ChunkTask) -> bool {
        self.measures.sums && task.kind == TaskKind::Write
    }

    /// Returns `true` if digests of the input bytes are needed.
    ///
    /// They are needed to check the bytes, or because the bytes are the output.
    fn wants_input_sums(&self, task: ChunkTask) -> bool {
        let ChunkTask { tensor, chunk, kind, .. } = task;
        let stored = self.reader.stored(tensor);
        let is_checked = match kind {
            TaskKind::Part(_) => true,
            TaskKind::Check if stored.is_encoded() => true,
            _ => stored.digest().is_some() && !self.is_checked_apart(tensor),
        };
        chunk.summable
            && (is_checked || (self.wants_output_sums(task) && self.recipes[tensor].keeps_bytes()))
    }

    /// Examines the values of a chunk.
    ///
    /// Bytes that stay compressed were judged when they were compressed. Tensors that get quantized
    /// are examined during quantization.
    fn look_at(&self, task: ChunkTask, slot: &mut ChunkBuffers) -> Result<()> {
        let ChunkTask { tensor, chunk, .. } = task;
        slot.beyond = 0;
        if self.keeps_form(tensor) {
            return Ok(());
        }

        let input = &slot.input[..chunk.len];
        let info = &self.reader.tensors()[tensor];
        if self.measures.moments || info.dtype == DType::BOOL {
            slot.beyond = values::beyond_range(info, chunk.offset, input);
        }

        if self.measures.moments && !matches!(self.recipes[tensor], Recipe::Recode(_)) {
            slot.moments =
                Some(values::moments(self.reader, tensor, chunk, input, &mut slot.summary)?);
        }

        Ok(())
    }

    /// Transforms a chunk into the bytes to write.
    ///
    /// Returns their offset and the total number of output bytes of the tensor.
    fn transform(&self, task: ChunkTask, slot: &mut ChunkBuffers) -> (u64, u64) {
        let ChunkTask { tensor, chunk, len, .. } = task;
        let sums = self.wants_output_sums(task);
        let input = &slot.input[..chunk.len];
        match &self.recipes[tensor] {
            Recipe::Keep | Recipe::Stored(_) => slot.output_sums = slot.input_sums.filter(|_| sums),
            Recipe::Cast(to) => {
                let from = self.reader.tensors()[tensor].dtype;
                slot.found.counts = cast_float(from, *to, input, &mut slot.output);
                let scaled = |bytes: u64| bytes / from.block_bytes() * to.block_bytes();
                let (offset, len) = (scaled(chunk.offset), scaled(len));
                slot.output_sums = sums.then(|| ChunkSums::of(&slot.output, offset, len));
                return (offset, len);
            }
            Recipe::Recode(recode) => {
                let measures = self.measures.moments;
                slot.found =
                    recode.run(chunk.offset, input, measures, &mut slot.buffers, &mut slot.output);
                slot.moments = slot.found.moments.take();
            }
        }

        (chunk.offset, len)
    }

    /// Compresses or encrypts what is written.
    fn encode(
        &self,
        encoder: &dyn ChunkEncoder,
        task: ChunkTask,
        (offset, len): (u64, u64),
        slot: &mut ChunkBuffers,
    ) -> Result<()> {
        let keeps_bytes = self.recipes[task.tensor].keeps_bytes();
        let bytes = if keeps_bytes { &slot.input[..task.chunk.len] } else { &slot.output };
        slot.encoded.clear();
        slot.mismatches = encoder.encode(task.planned, offset, len, bytes, &mut slot.encoded)?;
        Ok(())
    }
}
