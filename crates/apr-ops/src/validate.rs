//! Whether a checkpoint is healthy: one read for CRC, digests, NaN, infinity, zero tensors and improbable statistics.

mod checks;
mod hyperparameters;
mod outcomes;
mod parts;
mod report;
mod work;

use apr_arch::{Families, FamilyModel};
use apr_core::{ExtentKind, FileChecksum, Progress, StoredRange};
use apr_registry::digest::{Crc32, TensorDigest};
use apr_registry::{CheckpointReader, Code, Error, Pipeline, Result};
use apr_source::adapter::Adapter;
use apr_tensor::stats::Moments;
use work::{CheckBuffers, FileChunk, produce};

pub use parts::{PartFindings, ValidateUnit, validate_units};
pub(crate) use parts::{check_all, no_such_units, validate_part, validated};
pub use report::{Check, CheckOutcome, Finding, Status, ValidateReport};

use crate::graph::Computed;
use crate::integrity::{Checks, Mismatch, mismatches};
pub use crate::physics::Level;
use crate::physics::{Physics, Violation, expectation};

/// What to check beside the structure, which opening the file has proven.
#[derive(Debug, Clone, Copy)]
pub struct ValidateOptions<'a> {
    /// The file's checksum and the tensors' digests.
    pub checksum: bool,
    /// NaN and infinite values are errors.
    pub nan: bool,
    /// Tensors without a nonzero value are suspicious.
    pub zero: bool,
    /// Tensors fit their family: none missing, none unknown, shapes as the configuration says.
    pub shapes: bool,
    /// Means and deviations of tensors are those of a healthy model.
    pub physics: bool,
    /// Warnings count as errors.
    pub strict: bool,
    /// A file without a signature by a trusted key fails.
    pub require_signature: bool,
    /// Ed25519 public keys that the user trusts; with one, signatures are verified.
    pub trusted: &'a [[u8; 32]],
    /// The families that are known: a checkpoint of none of them must not claim to be of one. `None`: not checked.
    pub families: Option<&'a Families>,
    /// What the model's file says that it computes. `None`: it says nothing.
    pub graphs: Option<&'a Computed>,
}

impl Default for ValidateOptions<'_> {
    fn default() -> Self {
        Self {
            checksum: true,
            nan: true,
            zero: true,
            shapes: true,
            physics: true,
            strict: false,
            require_signature: false,
            trusted: &[],
            families: None,
            graphs: None,
        }
    }
}

/// Checks an opened checkpoint in one read, as a member of a family where that is known.
///
/// # Errors
/// E002 and E007 when bytes can't be read; what is wrong with bytes that can is in the report.
pub fn validate<P: Pipeline>(
    reader: &dyn CheckpointReader,
    file: &str,
    model: Option<&FamilyModel<'_>>,
    options: ValidateOptions<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<ValidateReport> {
    let mut pass = Pass::new(reader, file, model, options);
    pass.check_front()?;
    let tasks = pass.tasks()?;
    let bytes_read = pass.read_tasks(&tasks, pipeline, progress)?;
    pass.check_parts(pipeline)?;
    Ok(pass.report(bytes_read))
}

/// Bytes that [`validate`] will read, for a progress bar.
#[must_use]
pub fn bytes_to_read(reader: &dyn CheckpointReader) -> u64 {
    reader.files().iter().map(|file| file.len).sum()
}

impl ValidateOptions<'_> {
    fn reads_values(self) -> bool {
        self.nan || self.zero || self.physics
    }

    fn values(self) -> Physics {
        Physics { finite: self.nan, zeros: self.zero, ranges: self.physics }
    }
}

/// What has been seen so far; pieces arrive in the order of the file.
struct Pass<'a> {
    reader: &'a dyn CheckpointReader,
    model: Option<&'a FamilyModel<'a>>,
    /// What the checkpoint holds instead of a model.
    adapter: Option<Adapter>,
    /// As the user wrote it.
    file: &'a str,
    options: ValidateOptions<'a>,
    checksum: Option<FileChecksum>,
    /// Whether the file has digests and they are to be checked.
    digests: bool,
    crc: Crc32,
    /// Of the tensor that is due, where the file gives that.
    tensor_crc: Crc32,
    digest: TensorDigest,
    moments: Moments,
    beyond: u64,
    /// Whether the file is signed or encrypted, so that bytes which nothing covers are an error.
    sealed: bool,
    /// The last tensor whose bytes don't decode.
    undecodable: Option<usize>,
    findings: Vec<Finding>,
}

impl<'a> Pass<'a> {
    fn new(
        reader: &'a dyn CheckpointReader,
        file: &'a str,
        model: Option<&'a FamilyModel<'a>>,
        options: ValidateOptions<'a>,
    ) -> Self {
        let features = reader.container().features();
        let mut pass = Self {
            reader,
            model,
            adapter: None,
            file,
            options,
            checksum: reader.container().checksum().filter(|_| options.checksum),
            digests: options.checksum
                && (0..reader.tensors().len()).any(|tensor| reader.stored(tensor).digest().is_some()),
            crc: Crc32::new(),
            tensor_crc: Crc32::new(),
            digest: TensorDigest::new(),
            moments: Moments::default(),
            beyond: 0,
            // Encrypted shards are looked at one by one.
            sealed: features.signed || (features.encrypted && reader.container().shard_count() == 0),
            undecodable: None,
            findings: Vec::new(),
        };
        for warning in reader.warnings() {
            pass.find(Level::Warning, Check::Structure, None, warning.clone());
        }
        pass
    }

    /// Checks what is known without the weights.
    fn check_front(&mut self) -> Result<()> {
        self.check_shapes()?;
        self.check_hyperparameters();
        self.check_graph();
        self.check_companions()
    }

    /// Reads pieces of the file and judges them; returns how many bytes those were.
    fn read_tasks<P: Pipeline>(&mut self, tasks: &[FileChunk], pipeline: &P, progress: &dyn Progress) -> Result<u64> {
        let (reader, options, wants_sums) = (self.reader, self.options, self.wants_sums());
        let produce = |at: usize, slot: &mut CheckBuffers| produce(reader, options, wants_sums, tasks[at], slot);
        let mut bytes_read = 0;
        pipeline.run(tasks.len(), produce, |at, slot| {
            self.consume(tasks[at], slot);
            bytes_read += tasks[at].chunk.len as u64;
            progress.advance(tasks[at].chunk.len as u64);
            Ok(())
        })?;
        Ok(bytes_read)
    }

    /// Compares the parts of the file that tensors are made of with their checksums.
    fn check_parts<P: Pipeline>(&mut self, pipeline: &P) -> Result<()> {
        if self.options.checksum {
            let checks = Checks::of(self.reader, 0..self.reader.tensors().len());
            mismatches(&checks, pipeline)?.into_iter().for_each(|found| self.find_mismatch(found));
        }
        Ok(())
    }

    fn consume(&mut self, task: FileChunk, slot: &CheckBuffers) {
        let in_file = self.is_in_file(task);
        if in_file {
            self.sum(task, slot);
        }
        match task.kind {
            ExtentKind::Tensor(tensor) => self.add(tensor, task, slot, in_file),
            ExtentKind::Padding if slot.nonzero && !self.sealed => {
                let message = "the padding is not zero".to_owned();
                self.find(Level::Warning, Check::Structure, None, message).offset = Some(task.base + task.chunk.offset);
            }
            _ => {}
        }
    }

    /// Whether the bytes that are read lie so in the file.
    fn is_in_file(&self, task: FileChunk) -> bool {
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

    /// Adds what is known of a piece to what is known of its tensor, and judges a tensor that is complete.
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
        if self.options.checksum && self.reader.stored(tensor).digest().is_some_and(|expected| expected != digest) {
            let finding =
                self.find(Level::Error, Check::Digests, Some(tensor), "its bytes do not match its digest".into());
            (finding.code, finding.offset) = (Some(Code::Checksum.id()), Some(offset));
        }
        let found = std::mem::take(&mut self.tensor_crc).value();
        let stated = self.reader.stored(tensor).crc32().filter(|stated| self.options.checksum && *stated != found);
        if let Some(stated) = stated {
            let message = Violation::Checksum { stated, found }.to_string();
            let finding = self.find(Level::Error, Check::Digests, Some(tensor), message);
            (finding.code, finding.offset) = (Some(Code::Checksum.id()), Some(offset));
        }
    }

    /// Reports a part of the file that a tensor is made of.
    fn find_mismatch(&mut self, (tensor, range, mismatch): (usize, StoredRange, Mismatch)) {
        let finding = self.find(Level::Error, Check::Digests, Some(tensor), mismatch.to_string());
        (finding.code, finding.offset) = (Some(Code::Checksum.id()), Some(range.offset));
    }

    /// Reports a tensor whose bytes don't decode, once.
    fn find_undecodable(&mut self, tensor: usize, error: &Error) {
        if self.undecodable.replace(tensor) != Some(tensor) {
            let finding = self.find(Level::Error, Check::Structure, Some(tensor), error.message().to_owned());
            (finding.code, finding.offset) = (Some(error.code().id()), error.offset());
        }
    }

    fn finish_values(&mut self, tensor: usize, offset: u64) {
        if self.undecodable == Some(tensor) {
            (self.moments, self.beyond) = (Moments::default(), 0);
            return;
        }
        let stats = std::mem::take(&mut self.moments).finish();
        let beyond = std::mem::take(&mut self.beyond);
        let info = &self.reader.tensors()[tensor];
        let (name, dtype) = (info.name.clone(), info.dtype);
        let expectation = expectation(self.model, tensor, info);
        for violation in self.options.values().violations(&name, &stats, expectation) {
            let check = match violation {
                Violation::Nan { .. } | Violation::Infinite { .. } => Check::Finite,
                Violation::Zero => Check::Zeros,
                _ => Check::Physics,
            };
            self.find(violation.level(), check, Some(tensor), violation.to_string()).offset = Some(offset);
        }
        if beyond > 0 {
            let violation = Violation::beyond_range(beyond, dtype);
            self.find(violation.level(), Check::Physics, Some(tensor), violation.to_string()).offset = Some(offset);
        }
    }

    fn find(&mut self, level: Level, check: Check, tensor: Option<usize>, message: String) -> &mut Finding {
        let stored = tensor.and_then(|tensor| self.reader.files().get(self.reader.stored(tensor).range.file));
        let file = stored.filter(|file| file.name != self.file).map(|file| file.name.clone());
        let tensor = tensor.map(|tensor| self.reader.tensors()[tensor].name.clone());
        self.findings.push(Finding { level, check, code: None, tensor, file, offset: None, message });
        self.findings.last_mut().unwrap_or_else(|| unreachable!("one was just pushed"))
    }

    fn report(mut self, bytes_read: u64) -> ValidateReport {
        self.check_crc();
        self.check_uncovered();
        self.check_signature();
        let has = |level: Level| self.findings.iter().any(|finding| finding.level == level);
        let worst = if self.options.strict { Level::Warning } else { Level::Error };
        let valid = !has(Level::Error) && !has(worst);
        ValidateReport {
            file: self.file.to_owned(),
            format: self.reader.format(),
            valid,
            checks: self.outcomes(),
            findings: self.findings,
            bytes_read,
        }
    }
}
