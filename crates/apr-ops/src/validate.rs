//! Whether a checkpoint is healthy: one read for CRC, digests, NaN, infinity, zero tensors and improbable statistics.

mod hyperparameters;
mod report;

use apr_arch::{Families, FamilyModel};
use apr_core::{Extent, ExtentKind, FileChecksum, Progress, Signed, StoredRange, counted};
use apr_registry::digest::{CHUNK, ChunkSums, Crc32, TensorDigest};
use apr_registry::{CheckpointReader, Code, Error, Metadata, Pipeline, Result, keys};
use apr_source::companions::{Learnt, learn_from};
use apr_tensor::stats::Moments;
use apr_view::chunks::{Chunk, chunks, pieces, take};
use apr_view::values::{self, Buffers};

pub use report::{Check, CheckOutcome, Finding, Status, ValidateReport};

use crate::import::{expected_mels, false_claim, filterbank_misfit, misfits, vocabulary_misfit};
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
        }
    }
}

/// A piece of the file and what to do with it.
#[derive(Debug, Clone, Copy)]
struct FileChunk {
    kind: ExtentKind,
    /// Start of the extent in the file.
    base: u64,
    len: u64,
    chunk: Chunk,
    /// Bytes of a tensor as they lie in the file, where its values are others and come apart.
    verbatim: bool,
    /// Whether the file's checksum covers these very bytes.
    summed: bool,
}

#[derive(Default)]
struct CheckBuffers {
    bytes: Vec<u8>,
    buffers: Buffers,
    sums: Option<ChunkSums>,
    moments: Option<Moments>,
    /// Quants below the range of their symmetric dtype.
    beyond: u64,
    nonzero: bool,
    /// Why bytes of the tensor don't decode.
    failure: Option<Error>,
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
    pass.check_shapes();
    pass.check_hyperparameters();
    pass.check_companions()?;
    let tasks = pass.tasks()?;
    let wants_sums = pass.wants_sums();
    let produce = |at: usize, slot: &mut CheckBuffers| produce(reader, options, wants_sums, tasks[at], slot);
    let mut bytes_read = 0;
    pipeline.run(tasks.len(), produce, |at, slot| {
        pass.consume(tasks[at], slot);
        bytes_read += tasks[at].chunk.len as u64;
        progress.advance(tasks[at].chunk.len as u64);
        Ok(())
    })?;
    if options.checksum {
        let checks = Checks::of(reader, 0..reader.tensors().len());
        mismatches(&checks, pipeline)?.into_iter().for_each(|found| pass.find_mismatch(found));
    }
    Ok(pass.report(bytes_read))
}

/// Whether a trusted key signed the file.
#[cfg(feature = "signing")]
fn verify(signed: Option<&Signed>, trusted: &[[u8; 32]]) -> Result<()> {
    use apr_registry::crypto::{PublicKey, SignBlock};
    let block = signed.and_then(|signed| signed.signatures.as_deref());
    let block = block.ok_or_else(|| Error::new(Code::Signature, "a signature is required, and the file has none"))?;
    if trusted.is_empty() {
        let message = "a signature is required, and no key is trusted that could verify it";
        return Err(Error::new(Code::Signature, message));
    }
    let trusted: Vec<_> = trusted.iter().map(|key| PublicKey::Verifying(*key)).collect();
    let digest = signed.map(|signed| signed.digest).unwrap_or_default();
    SignBlock::decode(block)?.verify(&digest, &trusted).check()
}

#[cfg(not(feature = "signing"))]
fn verify(_signed: Option<&Signed>, _trusted: &[[u8; 32]]) -> Result<()> {
    Err(Error::new(Code::Signature, "this build verifies no signatures"))
}

/// Bytes that [`validate`] will read, for a progress bar.
#[must_use]
pub fn bytes_to_read(reader: &dyn CheckpointReader) -> u64 {
    reader.files().iter().map(|file| file.len).sum()
}

fn produce(
    reader: &dyn CheckpointReader,
    options: ValidateOptions<'_>,
    wants_sums: bool,
    task: FileChunk,
    slot: &mut CheckBuffers,
) -> Result<()> {
    let bytes = take(&mut slot.bytes, task.chunk.len);
    (slot.sums, slot.moments, slot.beyond, slot.nonzero, slot.failure) = (None, None, 0, false, None);
    match task.kind {
        ExtentKind::Tensor(tensor) if task.verbatim => {
            match reader.stored(tensor).encoded() {
                Some(encoded) => encoded.read_verbatim(task.chunk.offset, bytes)?,
                None => reader.read_tensor(tensor, task.chunk.offset, bytes)?,
            }
            slot.sums = (wants_sums && task.chunk.summable).then(|| ChunkSums::of(bytes, task.chunk.offset, task.len));
        }
        ExtentKind::Tensor(tensor) => {
            if let Err(error) = reader.read_tensor(tensor, task.chunk.offset, bytes) {
                // What does not decode is a finding like others, and the tensors after it are looked at too.
                if !reader.stored(tensor).is_encoded() || error.code() == Code::Io {
                    return Err(error);
                }
                slot.failure = Some(error);
                return Ok(());
            }
            if wants_sums && task.chunk.summable {
                slot.sums = Some(ChunkSums::of(bytes, task.chunk.offset, task.len));
            }
            if options.reads_values() {
                slot.moments = Some(values::moments(reader, tensor, task.chunk, bytes, &mut slot.buffers)?);
            }
            if options.physics {
                slot.beyond = values::beyond_range(&reader.tensors()[tensor], task.chunk.offset, bytes);
            }
        }
        ExtentKind::Padding | ExtentKind::Structure | ExtentKind::Companion(_) => {
            reader.container().read_raw(task.base + task.chunk.offset, bytes)?;
            slot.nonzero = task.kind == ExtentKind::Padding && bytes.iter().any(|&byte| byte != 0);
        }
    }
    Ok(())
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

    /// The whole file where it has a checksum, otherwise the tensors; nothing where no check reads bytes.
    fn tasks(&self) -> Result<Vec<FileChunk>> {
        let tensors = self.reader.tensors();
        let extents = match &self.checksum {
            Some(checksum) => checksum.extents.clone(),
            None if (self.options.reads_values() && !self.reader.container().is_locked())
                || self.digests
                || (self.options.checksum && self.sums() > 0) =>
            {
                (0..tensors.len())
                    .map(|tensor| {
                        let len = tensors[tensor].byte_len()?;
                        Ok(Extent {
                            kind: ExtentKind::Tensor(tensor),
                            offset: self.reader.stored(tensor).range.offset,
                            len,
                        })
                    })
                    .collect::<Result<_>>()?
            }
            None => Vec::new(),
        };
        let mut tasks = Vec::new();
        let mut push = |Extent { kind, offset: base, len }: Extent, summed: bool| -> Result<()> {
            let task = |chunk| FileChunk { kind, base, len, chunk, verbatim: false, summed };
            match kind {
                ExtentKind::Tensor(tensor) if self.reader.stored(tensor).is_encoded() => {
                    let len = self.reader.stored(tensor).range.len;
                    if self.wants_sums() {
                        tasks.extend(pieces(len, CHUNK).map(|chunk| FileChunk { len, verbatim: true, ..task(chunk) }));
                    }
                    if self.options.reads_values() && !self.reader.container().is_locked() {
                        let len = tensors[tensor].byte_len()?;
                        tasks.extend(chunks(&tensors[tensor], len).map(|chunk| FileChunk { len, ..task(chunk) }));
                    }
                }
                ExtentKind::Tensor(tensor) => tasks.extend(chunks(&tensors[tensor], len).map(task)),
                _ => tasks.extend(pieces(len, 1 << 20).map(task)),
            }
            Ok(())
        };
        let decoded = self.decoded(&extents)?;
        extents.into_iter().try_for_each(|extent| push(extent, true))?;
        decoded.into_iter().try_for_each(|extent| push(extent, false))?;
        Ok(tasks)
    }

    /// Tensors that a checksum covers as they are stored, which is not as they are read.
    fn decoded(&self, extents: &[Extent]) -> Result<Vec<Extent>> {
        if self.checksum.is_none() || !self.options.reads_values() || self.reader.container().is_locked() {
            return Ok(Vec::new());
        }
        let tensors = self.reader.tensors();
        let mut is_read = vec![false; tensors.len()];
        for extent in extents {
            if let ExtentKind::Tensor(tensor) = extent.kind {
                is_read[tensor] = true;
            }
        }
        let unread = (0..tensors.len()).filter(|&tensor| !is_read[tensor] && self.reader.stored(tensor).range.len > 0);
        unread
            .map(|tensor| {
                let (offset, len) = (self.reader.stored(tensor).range.offset, tensors[tensor].byte_len()?);
                Ok(Extent { kind: ExtentKind::Tensor(tensor), offset, len })
            })
            .collect()
    }

    /// Hashing is most of the work of a pass, and a format may have nothing to compare with.
    fn wants_sums(&self) -> bool {
        self.checksum.is_some() || self.digests
    }

    fn consume(&mut self, task: FileChunk, slot: &CheckBuffers) {
        let bytes = &slot.bytes[..task.chunk.len];
        let in_file = match task.kind {
            ExtentKind::Tensor(tensor) => task.verbatim || !self.reader.stored(tensor).is_encoded(),
            _ => true,
        };
        if self.checksum.is_some() && in_file && task.summed {
            match slot.sums {
                Some(sums) => self.crc.append(sums),
                None => self.crc.update(bytes),
            }
        }
        match task.kind {
            ExtentKind::Tensor(tensor) => {
                if self.digests && in_file {
                    match slot.sums {
                        Some(sums) => self.digest.append(sums),
                        None => self.digest.update(bytes),
                    }
                }
                if self.options.checksum && self.reader.stored(tensor).crc32().is_some() {
                    self.tensor_crc.update(bytes);
                }
                if let Some(moments) = &slot.moments {
                    self.moments.merge(moments);
                }
                self.beyond += slot.beyond;
                if let Some(error) = &slot.failure {
                    self.find_undecodable(tensor, error);
                }
                if task.chunk.last {
                    if in_file {
                        self.finish_bytes(tensor, task.base);
                    }
                    if !task.verbatim {
                        self.finish_values(tensor, task.base);
                    }
                }
            }
            ExtentKind::Padding if slot.nonzero && !self.sealed => {
                let message = "the padding is not zero".to_owned();
                self.find(Level::Warning, Check::Structure, None, message).offset = Some(task.base + task.chunk.offset);
            }
            _ => {}
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

    fn check_shapes(&mut self) {
        if !self.options.shapes {
            return;
        }
        let found = match (self.model, self.options.families) {
            (Some(model), _) => misfits(model.mismatches(self.reader.tensors())),
            (None, Some(families)) => false_claim(self.reader, self.reader.metadata(), families).into_iter().collect(),
            (None, None) => Vec::new(),
        };
        for misfit in found {
            let finding = self.find(misfit.level, Check::Shapes, None, misfit.message);
            finding.tensor = Some(misfit.tensor);
        }
    }

    fn check_hyperparameters(&mut self) {
        if !self.options.shapes {
            return;
        }
        for (level, message) in hyperparameters::problems(self.reader, self.model.is_some()) {
            self.find(level, Check::Hyperparameters, None, message);
        }
    }

    /// Holds the tokenizer against the embedding and the filterbank against the configuration, and reports what an import
    /// has let pass.
    fn check_companions(&mut self) -> Result<()> {
        if !self.options.shapes {
            return Ok(());
        }
        let recorded = self.reader.metadata().get(keys::VIOLATIONS).and_then(serde_json::Value::as_array);
        if let Some(recorded) = recorded.map(Vec::len).filter(|&recorded| recorded > 0) {
            let what = counted(recorded as u64, "violation");
            let message = format!("an import let {what} pass, which the metadata list under '{}'", keys::VIOLATIONS);
            self.find(Level::Warning, Check::Shapes, None, message);
        }
        let metadata = self.reader.metadata();
        let rows = self.model.and_then(|model| model.dimension("vocab"));
        let asks = rows.is_some() || expected_mels(metadata).is_some();
        // An import has written down what a folder's files say.
        let is_written = metadata.get("tokenizer.vocab_size").is_some() && metadata.get("audio_config").is_some();
        let learnt = if asks && !is_written { learn_from(self.reader)? } else { Learnt::default() };
        let in_files: Metadata = learnt.metadata.into_iter().collect::<serde_json::Map<_, _>>().into();
        let get = |key: &str| metadata.get(key).or_else(|| in_files.get(key));
        let vocabulary = rows.and_then(|rows| vocabulary_misfit(rows, get));
        let filterbank = filterbank_misfit(metadata, self.reader.tensors(), get);
        for misfit in vocabulary.into_iter().chain(filterbank) {
            self.find(misfit.level, Check::Shapes, None, misfit.message).tensor = Some(misfit.tensor);
        }
        Ok(())
    }

    fn find(&mut self, level: Level, check: Check, tensor: Option<usize>, message: String) -> &mut Finding {
        let stored = tensor.and_then(|tensor| self.reader.files().get(self.reader.stored(tensor).range.file));
        let file = stored.filter(|file| file.name != self.file).map(|file| file.name.clone());
        let tensor = tensor.map(|tensor| self.reader.tensors()[tensor].name.clone());
        self.findings.push(Finding { level, check, code: None, tensor, file, offset: None, message });
        self.findings.last_mut().unwrap_or_else(|| unreachable!("one was just pushed"))
    }

    fn check_crc(&mut self) {
        let Some(checksum) = &self.checksum else { return };
        let (stated, found) = (checksum.crc32, self.crc.value());
        if stated == found {
            return;
        }
        let blamed = self.findings.iter().any(|finding| finding.check == Check::Digests);
        let place = match (blamed, self.digests) {
            (true, _) => "",
            (false, true) => {
                "; all tensors match their digests, so the damage is in header, metadata, index or padding"
            }
            (false, false) => "; the file has no digests that would show where",
        };
        let message = format!("the file's CRC-32 is {found:#010x}, its footer says {stated:#010x}{place}");
        self.find(Level::Error, Check::Checksum, None, message).code = Some(Code::Checksum.id());
    }

    fn check_uncovered(&mut self) {
        if !self.sealed {
            return;
        }
        if let Err(error) = self.reader.container().check_uncovered() {
            let file = error.file().filter(|file| *file != self.file).map(str::to_owned);
            let finding = self.find(Level::Error, Check::Signature, None, error.message().to_owned());
            (finding.code, finding.offset, finding.file) = (Some(error.code().id()), error.offset(), file);
        }
    }

    fn check_signature(&mut self) {
        if !self.checks_signature() {
            return;
        }
        let outcome = self.reader.container().signed().and_then(|signed| verify(signed.as_ref(), self.options.trusted));
        if let Err(error) = outcome {
            self.find(Level::Error, Check::Signature, None, error.message().to_owned()).code = Some(error.code().id());
        }
    }

    fn checks_signature(&self) -> bool {
        self.options.require_signature || !self.options.trusted.is_empty()
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

    fn outcomes(&self) -> Vec<CheckOutcome> {
        let ValidateOptions { checksum, nan, zero, shapes, physics, .. } = self.options;
        let tensors = self.reader.tensors();
        let digests = (0..tensors.len()).filter(|&tensor| self.reader.stored(tensor).digest().is_some()).count();
        let count = |number: usize, noun: &str| counted(number as u64, noun);
        let asked = |asked: bool, detail: String| if asked { Ok(detail) } else { Err("not asked for") };
        let locked = self.reader.container().is_locked();
        let seen = |asked: bool, detail: String| match (asked, locked) {
            (true, true) => Err("the tensors are encrypted, and no key was given"),
            (true, false) => Ok(detail),
            (false, _) => Err("not asked for"),
        };
        let checks = [
            (
                Check::Structure,
                Ok(format!("{}, {}", count(tensors.len(), "tensor"), count(self.reader.files().len(), "file"))),
            ),
            (
                Check::Checksum,
                match &self.checksum {
                    Some(checksum) => Ok(format!("CRC-32 {:#010x}", checksum.crc32)),
                    None => asked(checksum, String::new()).and(Err("the format has none")),
                },
            ),
            (
                Check::Digests,
                match digests {
                    0 if self.sums() > 0 => asked(checksum, format!("CRC-32 of {}", count(self.sums(), "tensor"))),
                    0 => asked(checksum, String::new()).and(Err("the file has none")),
                    _ => asked(checksum, format!("BLAKE3 of {}", count(digests, "tensor"))),
                },
            ),
            (Check::Finite, seen(nan, format!("no NaN, no infinity in {}", count(tensors.len(), "tensor")))),
            (Check::Zeros, seen(zero, count(tensors.len(), "tensor"))),
            (
                Check::Shapes,
                asked(shapes, String::new()).and_then(|_| match self.family("shapes") {
                    Err(_) if self.has(Check::Shapes) => Ok(String::new()),
                    known => known,
                }),
            ),
            (Check::Hyperparameters, asked(shapes, "GGUF's key-value pairs".to_owned())),
            (
                Check::Physics,
                seen(physics, String::new()).map(|_| match self.family("ranges") {
                    Ok(detail) => detail,
                    Err(_) => "layer norms and projections, by their names".to_owned(),
                }),
            ),
            (
                Check::Signature,
                asked(self.checks_signature() || self.has(Check::Signature), "by a trusted key".to_owned()),
            ),
        ];
        let has_pairs = self.reader.metadata().get(keys::GGUF).is_some();
        let checks = checks.into_iter().filter(|(check, _)| has_pairs || *check != Check::Hyperparameters);
        checks.map(|(check, detail)| self.outcome(check, detail)).collect()
    }

    fn has(&self, check: Check) -> bool {
        self.findings.iter().any(|finding| finding.check == check)
    }

    /// Tensors that the file gives a CRC-32 of, or of the parts that they are made of.
    fn sums(&self) -> usize {
        let has_sum = |&tensor: &usize| {
            let stored = self.reader.stored(tensor);
            stored.crc32().is_some() || !stored.parts().is_empty()
        };
        (0..self.reader.tensors().len()).filter(has_sum).count()
    }

    fn family(&self, what: &str) -> Result<String, &'static str> {
        let model = self.model.ok_or("the family is not known")?;
        let guessed = if model.is_guessed() { ", by the tensors' names" } else { "" };
        Ok(format!("{what} of the {} family{guessed}", model.family().title()))
    }

    fn outcome(&self, check: Check, detail: Result<String, &str>) -> CheckOutcome {
        let found = |level: Level| {
            self.findings.iter().filter(|finding| finding.check == check && finding.level == level).count()
        };
        let (errors, warnings) = (found(Level::Error), found(Level::Warning));
        let count = |number: usize, noun: &str| counted(number as u64, noun);
        match detail {
            Err(why) => CheckOutcome { check, status: Status::Skipped, detail: why.to_owned() },
            Ok(_) if errors > 0 => CheckOutcome { check, status: Status::Fail, detail: count(errors, "error") },
            Ok(_) if warnings > 0 => CheckOutcome { check, status: Status::Warn, detail: count(warnings, "warning") },
            Ok(detail) => CheckOutcome { check, status: Status::Pass, detail },
        }
    }
}
