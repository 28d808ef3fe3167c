//! One read of a checkpoint, and what is found in it.

use std::collections::BTreeSet;

use apr_core::{Extent, ExtentKind, FileChecksum, Phase, Progress, StoredPart, StoredRange, Sum};
use apr_registry::digest::{CHUNK_LEN, Crc32, TensorDigest};
use apr_registry::{CheckpointReader, Code, Error, Pipeline, Result};
use apr_source::adapter::Adapter;
use apr_tensor::stats::Moments;
use apr_view::chunks::{chunks, pieces};

use super::options::{Known, ValidateOptions};
use super::report::{Check, Finding, ValidateReport, is_valid};
use super::work::{CheckBuffers, FileChunk, produce};
use crate::constants::Constants;
use crate::integrity::{Checks, Damage, Mismatch, damages};
use crate::left_out::LeftOut;
use crate::physics::{Level, Sibling, Violation, expectation, outliers};

/// Number of bytes read at a time outside of tensors.
const PIECE_BYTES: usize = 1 << 20;

/// State of a validation. Chunks are processed in the order of the file.
pub(super) struct Pass<'a> {
    pub(super) reader: &'a dyn CheckpointReader,
    pub(super) known: Known<'a>,
    /// The adapter, if the checkpoint contains one instead of a model.
    pub(super) adapter: Option<Adapter>,
    /// Path as the user wrote it.
    pub(super) file: &'a str,
    pub(super) options: ValidateOptions<'a>,
    pub(super) checksum: Option<FileChecksum>,
    /// `true` if the file has digests that are to be checked.
    pub(super) digests: bool,
    pub(super) crc: Crc32,
    /// CRC-32 of the current tensor, if the file states one.
    pub(super) tensor_crc: Crc32,
    pub(super) digest: TensorDigest,
    pub(super) moments: Moments,
    pub(super) beyond: u64,
    /// `true` if the file is signed or encrypted, so that bytes without a checksum are an error.
    pub(super) sealed: bool,
    /// Tensors that may be infinite.
    pub(super) constants: Constants,
    /// Tensors whose bytes don't decode.
    pub(super) undecodable: BTreeSet<usize>,
    /// Weights of layers, which are compared when all of them are known.
    pub(super) siblings: Vec<Sibling>,
    pub(super) findings: Vec<Finding>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        reader: &'a dyn CheckpointReader,
        file: &'a str,
        known: Known<'a>,
        options: ValidateOptions<'a>,
    ) -> Self {
        let features = reader.container().features();
        let mut pass = Self {
            reader,
            known,
            adapter: None,
            file,
            options,
            checksum: reader.container().checksum().filter(|_| options.checksum),
            digests: options.checksum
                && (0..reader.tensors().len())
                    .any(|tensor| reader.stored(tensor).digest().is_some()),
            crc: Crc32::new(),
            tensor_crc: Crc32::new(),
            digest: TensorDigest::new(),
            moments: Moments::default(),
            beyond: 0,
            // Encrypted shards are looked at one by one.
            sealed: features.signed
                || (features.encrypted && reader.container().shard_count() == 0),
            constants: Constants::default(),
            undecodable: BTreeSet::new(),
            siblings: Vec::new(),
            findings: Vec::new(),
        };

        for warning in reader.warnings() {
            pass.find(Level::Warning, Check::Structure, None, warning.clone());
        }
        // Valid as far as it goes, which is not far.
        if reader.tensors().is_empty() && !reader.container().is_locked() {
            let message = "the file has no tensors: no weights were checked";
            pass.find(Level::Warning, Check::Structure, None, message.to_owned());
        }

        pass
    }

    /// Checks what is known without the weights.
    pub(super) fn check_front(&mut self) -> Result<()> {
        self.check_shapes()?;
        self.check_hyperparameters();
        self.check_graph();
        self.check_companion_bytes()?;
        self.check_companion_texts()?;
        self.check_companions()?;
        self.check_inline_filterbank();
        Ok(())
    }

    /// Reads and checks chunks of the file, and returns the number of bytes read.
    pub(super) fn read_tasks<P: Pipeline>(
        &mut self,
        tasks: &[FileChunk],
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<u64> {
        let (reader, options, wants_sums) = (self.reader, self.options, self.wants_sums());
        let produce = |at: usize, slot: &mut CheckBuffers| {
            produce(reader, options, wants_sums, tasks[at], slot)
        };
        let mut bytes_read = 0;
        progress.begin(Phase::Checking, tasks.iter().map(|task| task.chunk.len as u64).sum());
        pipeline.run(tasks.len(), produce, |at, slot| {
            self.consume(tasks[at], slot);
            bytes_read += tasks[at].chunk.len as u64;
            progress.advance(tasks[at].chunk.len as u64);
            Ok(())
        })?;
        Ok(bytes_read)
    }

    /// Compares the parts of the file that tensors are made of with their checksums.
    pub(super) fn check_parts<P: Pipeline>(&mut self, pipeline: &P) -> Result<()> {
        if self.options.checksum {
            let mut checks = Checks::of(self.reader, 0..self.reader.tensors().len());
            checks.list.retain(|check| !self.is_the_file(&check.part));
            damages(&checks, pipeline)?.into_iter().for_each(|found| self.find_damage(found));
        }
        Ok(())
    }

    /// Returns `true` if a part is what the file's own checksum covers, which is compared already.
    pub(super) fn is_the_file(&self, part: &StoredPart<'_>) -> bool {
        let covered = self.checksum.as_ref().and_then(|checksum| {
            let last = checksum.extents.last()?;
            Some((checksum.crc32, last.offset + last.len))
        });
        let StoredRange { file, offset, len } = part.range;
        covered.is_some_and(|(crc32, end)| {
            (part.sum, file, offset, len) == (Sum::Crc32(crc32), 0, 0, end)
        })
    }

    pub(super) fn consume(&mut self, task: FileChunk, slot: &CheckBuffers) {
        let in_file = self.is_in_file(task);
        if in_file {
            self.sum(task, slot);
        }
        match task.kind {
            ExtentKind::Tensor(tensor) => self.add(tensor, task, slot, in_file),
            ExtentKind::Padding if slot.nonzero && !self.sealed => {
                let message = "the padding is not zero".to_owned();
                self.find(Level::Warning, Check::Structure, None, message).offset =
                    Some(task.base + task.chunk.offset);
            }
            _ => {}
        }
    }

    /// Returns `true` if the bytes that are read are the stored bytes of the file.
    pub(super) fn is_in_file(&self, task: FileChunk) -> bool {
        match task.kind {
            ExtentKind::Tensor(tensor) => task.verbatim || !self.reader.stored(tensor).is_encoded(),
            _ => true,
        }
    }

    /// Adds bytes of the file to its checksum and to the digest of the tensor that they are of.
    fn sum(&mut self, task: FileChunk, slot: &CheckBuffers) {
        let bytes = &slot.bytes[..task.chunk.len];
        if self.checksum.is_some() && task.summed {
            match slot.sums {
                Some(sums) => self.crc.append(sums),
                None => self.crc.update(bytes),
            }
        }
        if self.digests && matches!(task.kind, ExtentKind::Tensor(_)) {
            match slot.sums {
                Some(sums) => self.digest.append(sums),
                None => self.digest.update(bytes),
            }
        }
    }

    /// Adds the data of a chunk to its tensor, and judges the tensor after its last chunk.
    fn add(&mut self, tensor: usize, task: FileChunk, slot: &CheckBuffers, in_file: bool) {
        if self.options.checksum && self.reader.stored(tensor).crc32().is_some() {
            self.tensor_crc.update(&slot.bytes[..task.chunk.len]);
        }
        if let Some(moments) = &slot.moments {
            self.moments.merge(moments);
        }

        self.beyond += slot.beyond;
        if let Some(error) = &slot.failure {
            self.find_undecodable(tensor, error);
        }
        if task.chunk.last && in_file {
            self.finish_bytes(tensor, task.base);
        }
        if task.chunk.last && !task.verbatim {
            self.finish_values(tensor, task.base);
        }
    }

    fn finish_bytes(&mut self, tensor: usize, offset: u64) {
        let digest = std::mem::take(&mut self.digest).value();
        if self.options.checksum
            && self.reader.stored(tensor).digest().is_some_and(|expected| expected != digest)
        {
            let finding = self.find(
                Level::Error,
                Check::Digests,
                Some(tensor),
                "its bytes do not match its digest".into(),
            );
            (finding.code, finding.offset) = (Some(Code::Checksum.id()), Some(offset));
        }
        let found = std::mem::take(&mut self.tensor_crc).value();
        let stated = self
            .reader
            .stored(tensor)
            .crc32()
            .filter(|stated| self.options.checksum && *stated != found);
        if let Some(stated) = stated {
            let message = Mismatch::Crc32 { stated, found }.to_string();
            let finding = self.find(Level::Error, Check::Digests, Some(tensor), message);
            (finding.code, finding.offset) = (Some(Code::Checksum.id()), Some(offset));
        }
    }

    /// Reports a part of the file that a tensor is made of.
    pub(super) fn find_damage(&mut self, (tensor, range, damage): (usize, StoredRange, Damage)) {
        let mismatch = match damage {
            Damage::Mismatch(mismatch) => mismatch,
            Damage::Undecodable(error) => return self.find_undecodable(tensor, &error),
        };
        let finding = self.find(Level::Error, Check::Digests, Some(tensor), mismatch.to_string());
        (finding.code, finding.offset) = (Some(Code::Checksum.id()), Some(range.offset));
    }

    /// Reports a tensor whose bytes don't decode, once.
    fn find_undecodable(&mut self, tensor: usize, error: &Error) {
        if self.undecodable.insert(tensor) {
            let finding =
                self.find(Level::Error, Check::Structure, Some(tensor), error.message().to_owned());
            (finding.code, finding.offset) = (Some(error.code().id()), error.offset());
        }
    }

    fn finish_values(&mut self, tensor: usize, offset: u64) {
        if self.undecodable.contains(&tensor) {
            // The values before the damage say nothing of the whole tensor.
            (self.moments, self.beyond) = (Moments::default(), 0);
            return;
        }

        let stats = std::mem::take(&mut self.moments).finish();
        let beyond = std::mem::take(&mut self.beyond);
        let info = &self.reader.tensors()[tensor];
        let (name, dtype) = (info.name.clone(), info.dtype);
        let expectation = expectation(self.known.model, tensor, info);
        let stats = self.constants.judged(self.reader, tensor, stats, expectation);
        for violation in self.options.values().violations(&name, &stats, expectation) {
            let check = match violation {
                Violation::Nan { .. } | Violation::Infinite { .. } => Check::Finite,
                Violation::Zero => Check::Zeros,
                _ => Check::Physics,
            };
            self.find(violation.level(), check, Some(tensor), violation.to_string()).offset =
                Some(offset);
        }

        if self.options.physics {
            let info = &self.reader.tensors()[tensor];
            self.siblings.extend(Sibling::of(self.known.model, tensor, info, &stats));
        }
        if beyond > 0 {
            let violation = Violation::beyond_range(beyond, dtype);
            self.find(violation.level(), Check::Physics, Some(tensor), violation.to_string())
                .offset = Some(offset);
        }
    }

    pub(super) fn find(
        &mut self,
        level: Level,
        check: Check,
        tensor: Option<usize>,
        message: String,
    ) -> &mut Finding {
        let stored = tensor
            .and_then(|tensor| self.reader.files().get(self.reader.stored(tensor).range.file));
        let file = stored.filter(|file| file.name != self.file).map(|file| file.name.clone());
        let tensor = tensor.map(|tensor| self.reader.tensors()[tensor].name.clone());
        self.findings.push(Finding {
            level,
            check,
            code: None,
            tensor,
            file,
            offset: None,
            message,
        });
        self.findings.last_mut().unwrap_or_else(|| unreachable!("one was just pushed"))
    }

    pub(super) fn report(mut self, bytes_read: u64) -> ValidateReport {
        self.findings.extend(beside_siblings(self.reader, self.file, &self.siblings));
        self.check_crc();
        self.check_uncovered();
        self.check_signature();
        ValidateReport {
            path: self.file.to_owned(),
            format: self.reader.format(),
            valid: is_valid(&self.findings, self.options.strict),
            checks: self.outcomes(),
            left_out: LeftOut::known(self.reader),
            findings: self.findings,
            bytes_read,
        }
    }
}

/// Reports weights that are odd beside those of the other layers of a model.
pub(crate) fn beside_siblings(
    reader: &dyn CheckpointReader,
    opened: &str,
    siblings: &[Sibling],
) -> Vec<Finding> {
    let finding = |(name, violation): (&str, Violation)| {
        let tensor = reader.tensors().iter().position(|info| info.name == name);
        let range = tensor.map(|tensor| reader.stored(tensor).range);
        let file = range.and_then(|range| reader.files().get(range.file));
        Finding {
            level: violation.level(),
            check: Check::Physics,
            code: None,
            tensor: Some(name.to_owned()),
            file: file.filter(|file| file.name != opened).map(|file| file.name.clone()),
            offset: range.map(|range| range.offset),
            message: violation.to_string(),
        }
    };
    outliers(siblings).into_iter().map(finding).collect()
}

impl Pass<'_> {
    /// Returns tasks for the whole file if it has a checksum, otherwise for the tensors.
    ///
    /// Returns no tasks if no check reads bytes.
    pub(super) fn tasks(&self) -> Result<Vec<FileChunk>> {
        let extents = self.extents()?;
        let decoded = self.decoded(&extents)?;
        let mut tasks = Vec::new();
        // The file's checksum takes its bytes in order; what is only decoded comes after them.
        extents.into_iter().try_for_each(|extent| self.cut(extent, true, &mut tasks))?;
        decoded.into_iter().try_for_each(|extent| self.cut(extent, false, &mut tasks))?;
        Ok(tasks)
    }

    /// Returns `true` if digests must be computed.
    ///
    /// Hashing is most of the work of a pass, and a format may have no digests to compare with.
    pub(super) fn wants_sums(&self) -> bool {
        self.checksum.is_some() || self.digests
    }

    /// Returns `true` if a check reads the values of tensors and they can be read.
    fn reads_values(&self) -> bool {
        self.options.reads_values() && !self.reader.container().is_locked()
    }

    fn extents(&self) -> Result<Vec<Extent>> {
        if let Some(checksum) = &self.checksum {
            return Ok(checksum.extents.clone());
        }
        let compares = self.digests || (self.options.checksum && self.sums() != (0, 0));
        let tensors = if compares || self.reads_values() { self.reader.tensors().len() } else { 0 };
        (0..tensors).map(|tensor| self.extent(tensor)).collect()
    }

    fn extent(&self, tensor: usize) -> Result<Extent> {
        let len = self.reader.tensors()[tensor].byte_len()?;
        Ok(Extent {
            kind: ExtentKind::Tensor(tensor),
            offset: self.reader.stored(tensor).range.offset,
            len,
        })
    }

    /// Returns tensors whose stored bytes, covered by a checksum, differ from their decoded bytes.
    fn decoded(&self, extents: &[Extent]) -> Result<Vec<Extent>> {
        if self.checksum.is_none() || !self.reads_values() {
            return Ok(Vec::new());
        }
        let tensors = self.reader.tensors();
        let mut is_read = vec![false; tensors.len()];
        for extent in extents {
            if let ExtentKind::Tensor(tensor) = extent.kind {
                is_read[tensor] = true;
            }
        }
        let unread = (0..tensors.len())
            .filter(|&tensor| !is_read[tensor] && self.reader.stored(tensor).range.len > 0);
        unread.map(|tensor| self.extent(tensor)).collect()
    }

    /// Cuts a part of the file into pieces; `summed` if the file's checksum covers its very bytes.
    fn cut(
        &self,
        Extent { kind, offset: base, len }: Extent,
        summed: bool,
        tasks: &mut Vec<FileChunk>,
    ) -> Result<()> {
        let task = |chunk| FileChunk { kind, base, len, chunk, verbatim: false, summed };
        let ExtentKind::Tensor(tensor) = kind else {
            tasks.extend(pieces(len, PIECE_BYTES).map(task));
            return Ok(());
        };
        let info = &self.reader.tensors()[tensor];
        let stored = self.reader.stored(tensor);
        if !stored.is_encoded() {
            tasks.extend(chunks(info, len).map(task));
            return Ok(());
        }

        // Read twice: sums are of the bytes in the file, and values of what they decode to.
        if self.wants_sums() {
            let len = stored.range.len;
            tasks.extend(pieces(len, CHUNK_LEN).map(|chunk| FileChunk {
                len,
                verbatim: true,
                ..task(chunk)
            }));
        }

        if self.reads_values() {
            let len = info.byte_len()?;
            tasks.extend(chunks(info, len).map(|chunk| FileChunk { len, ..task(chunk) }));
        }

        Ok(())
    }
}
