//! The plan: a JSON document (`docs/parts.md`).

use std::collections::{BTreeMap, BTreeSet};

use apr_core::json::{self, Object};
use apr_core::{Error, Escaped, Limits, Result, check_file_name};
use apr_registry::apr2::Manifest;
use apr_registry::digest::{Digest, TensorDigest};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the plan's format that is written, and the newest that is read.
pub const FORMAT_VERSION: u64 = 1;

/// The most parts of a plan: names of shards have five digits.
pub const MAX_PARTS: usize = 99_999;

/// Name of a plan file in messages.
const WHAT: &str = "the plan";

/// A job in parts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartsPlan {
    /// [`FORMAT_VERSION`].
    pub apr_plan: u64,
    /// The version of apr that made it, and that all parts are done with.
    pub apr: String,
    /// Command and options of the job.
    pub job: JobWords,
    /// The models that are read.
    pub inputs: Vec<Input>,
    /// Further files that the job reads: importance matrices, families.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<SettingsFile>,
    /// The output; `None` for a job that only reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputPlan>,
    /// Encryption of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Sealing>,
    /// The parts, counted from 0.
    pub parts: Vec<PlannedPart>,
}

/// A job as the options of its command.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobWords {
    /// `convert`, `import`, `quantize`, `encrypt`, `validate` or `diff`.
    pub command: String,
    /// Options of the job by their long names, with their values.
    ///
    /// A value is `true` for an option without a value, a text, or a list of texts.
    #[serde(default)]
    pub options: BTreeMap<String, Value>,
}

/// A model that is read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Path of the model: below the plan's folder, absolute, or a location with its revision.
    ///
    /// A location is on a hub or server.
    pub path: String,
    /// Files of the model, in the order used by ranges.
    pub files: Vec<FileInput>,
    /// Companion files of the weights.
    pub companions: Vec<CompanionInput>,
    /// BLAKE3 of the data that the plan depends on: metadata, and names, shapes and ranges of the
    /// tensors.
    pub front: String,
    /// The tensors of its files, in the reader's order, each with the digest of its bytes in the
    /// file; empty where none were taken.
    pub tensors: Vec<TensorInput>,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileInput {
    /// Name of the file in the model.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change in nanoseconds since 1970, if its tensors have no digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<u64>,
    /// Server's identifier of the file's state: SHA-256, git's SHA-1, or an ETag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

/// A companion of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompanionInput {
    /// Name of the file.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
    /// BLAKE3 digest of the file.
    pub blake3: String,
}

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorInput {
    /// Name of the tensor in the source.
    pub name: String,
    /// BLAKE3 of its bytes in the file.
    pub blake3: String,
}

/// Another file that a job reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsFile {
    /// Path as given to the option.
    pub path: String,
    /// Length in bytes.
    pub size: u64,
    /// BLAKE3 digest of the file.
    pub blake3: String,
}

/// Output of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputPlan {
    /// The manifest, or the only file; below the plan's folder.
    pub path: String,
    /// Maximum number of tensor bytes in a shard.
    pub shard_size: u64,
    /// The manifest as far as it is known. `None` if the output is a single file.
    ///
    /// It contains type, shape and shard of each output tensor. Sizes of compressed shards and all
    /// checksums are added at the end.
    pub manifest: Option<Value>,
}

/// Encryption of the output. It contains no secret: each shard starts with this block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sealing {
    /// The ENCR block in hexadecimal digits; its MAC is over the plan without this.
    pub block: String,
}

/// Task of one part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedPart {
    /// The file that it writes, beside the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The file's length in bytes, before compression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Units that the part checks, as the first unit and the count, if the job only reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub units: Option<[usize; 2]>,
    /// Bytes that it reads of the inputs.
    pub reads: Vec<Read>,
}

/// Bytes of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// Position in [`PartsPlan::inputs`].
    pub input: usize,
    /// Position in [`Input::files`].
    pub file: usize,
    /// Offset from the start of the file, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Read {
    /// Sorts the ranges and joins adjacent ones.
    #[must_use]
    pub fn joined(mut reads: Vec<Self>) -> Vec<Self> {
        reads.retain(|read| read.len > 0);
        reads.sort_unstable();
        let mut joined: Vec<Self> = Vec::new();
        for read in reads {
            match joined.last_mut() {
                Some(last) if last.touches(&read) => {
                    let end = (last.offset + last.len).max(read.offset + read.len);
                    last.len = end - last.offset;
                }
                _ => joined.push(read),
            }
        }
        joined
    }

    /// Returns `true` if a range that starts no earlier follows without a gap.
    fn touches(&self, next: &Self) -> bool {
        (self.input, self.file) == (next.input, next.file)
            && next.offset <= self.offset.saturating_add(self.len)
    }
}

impl PartsPlan {
    /// Reads a plan; `name` is its file's, for errors.
    ///
    /// # Errors
    /// E001 for what is no such JSON, for a path that leaves the plan's folder, and for parts whose
    /// files are not those of the manifest; E003 for a newer version; E008 over
    /// [`Limits::max_metadata`] and for more than [`MAX_PARTS`] parts.
    pub fn parse(bytes: &[u8], name: &str, limits: &Limits) -> Result<Self> {
        let parsed =
            limits.check_metadata(bytes.len() as u64).and_then(|()| parse(bytes, name, limits));
        parsed.map_err(|error| error.in_file(name))
    }

    /// The plan's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encoded(self)
    }

    /// Returns the plan's identifier: BLAKE3 of [`encode`](Self::encode), in hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut digest = TensorDigest::new();
        digest.update(&self.encode());
        base16ct::lower::encode_string(&digest.value())
    }

    /// The bytes that the MAC of [`Sealing::block`] is over.
    #[must_use]
    pub fn authenticated(&self) -> Vec<u8> {
        Self { encryption: None, ..self.clone() }.encode()
    }

    /// Returns the manifest as far as it is known.
    ///
    /// # Errors
    /// Returns the same errors as [`Manifest::parse`].
    pub fn manifest(&self, limits: &Limits) -> Result<Option<Manifest>> {
        let Some(OutputPlan { path, manifest: Some(manifest), .. }) = &self.output else {
            return Ok(None);
        };
        let name = path.rsplit('/').next().unwrap_or(path);
        Manifest::parse(manifest.to_string().as_bytes(), name, limits).map(Some)
    }

    fn check(&self, name: &str, limits: &Limits) -> Result<()> {
        if self.parts.is_empty() || self.parts.len() > MAX_PARTS {
            let message =
                format!("the plan has {} parts; 1 to {MAX_PARTS} are possible", self.parts.len());
            return Err(Error::memory(message));
        }

        self.check_reads()?;
        self.inputs.iter().try_for_each(Input::check)?;
        match &self.output {
            None if self.parts.iter().any(|part| part.file.is_some() || part.units.is_none()) => {
                Err(Error::format("the plan has no output, but a part of it writes a file"))
            }
            None => self.check_units(),
            Some(output) => {
                check_relative(&output.path)?;
                self.check_files(output, name, limits)
            }
        }
    }

    fn check_reads(&self) -> Result<()> {
        let is_there = |read: &Read| {
            let file = self.inputs.get(read.input).and_then(|input| input.files.get(read.file));
            file.is_some_and(|file| {
                // Plans come from strangers, too: the sum may not fit.
                read.offset.checked_add(read.len).is_some_and(|end| end <= file.size)
            })
        };
        match self.parts.iter().position(|part| !part.reads.iter().all(is_there)) {
            Some(part) => Err(Error::format(format!("part {part} reads bytes that no input has"))),
            None => Ok(()),
        }
    }

    /// Parts of a report are looked at in order, without gaps.
    fn check_units(&self) -> Result<()> {
        let mut next = 0;
        for [first, count] in self.parts.iter().filter_map(|part| part.units) {
            if first != next {
                return Err(Error::format(format!("the parts have a gap before unit {first}")));
            }
            next = first
                .checked_add(count)
                .ok_or_else(|| Error::format("the parts have more units than there are"))?;
        }
        Ok(())
    }

    /// Checks that the parts write the files listed in the manifest, in order.
    ///
    /// Without a manifest, there must be one part, which writes the output.
    fn check_files(&self, output: &OutputPlan, name: &str, limits: &Limits) -> Result<()> {
        let differs = || Error::format("the files of the parts are not the output's");
        if output.shard_size == 0 {
            return Err(Error::format("the shard size must be 1 byte or more"));
        }

        let files: Vec<&str> = self.parts.iter().filter_map(|part| part.file.as_deref()).collect();
        if files.len() != self.parts.len() {
            return Err(differs());
        }

        files.iter().try_for_each(|file| check_file_name(file))?;
        let own = output.path.rsplit('/').next().unwrap_or_default();
        let known: Vec<String> = match self.manifest(limits)? {
            Some(manifest) => manifest.shards.into_iter().map(|shard| shard.file).collect(),
            None => vec![own.to_owned()],
        };

        // A part must not write over the plan, which may lie in the same folder.
        let plan = name.rsplit(['/', '\\']).next().unwrap_or(name);
        if known != files || (!output.path.contains('/') && (own == plan || files.contains(&plan)))
        {
            return Err(differs());
        }
        Ok(())
    }
}

impl Input {
    fn check(&self) -> Result<()> {
        if self.path.is_empty() {
            return Err(Error::format("an input has no path"));
        }
        digest_of(&self.front)?;
        let digests = self.tensors.iter().map(|tensor| &tensor.blake3);
        digests
            .chain(self.companions.iter().map(|file| &file.blake3))
            .try_for_each(|text| digest_of(text).map(drop))
    }

    /// The digests of its tensors.
    ///
    /// # Errors
    /// E001 for what is no digest.
    pub fn digests(&self) -> Result<Vec<Digest>> {
        self.tensors.iter().map(|tensor| digest_of(&tensor.blake3)).collect()
    }
}

/// A digest of 64 hexadecimal digits.
pub(super) fn digest_of(hex: &str) -> Result<Digest> {
    let digest =
        base16ct::lower::decode_vec(hex).ok().and_then(|bytes| Digest::try_from(bytes).ok());
    digest.ok_or_else(|| {
        Error::format(format!("'{}' is not a digest of 64 hexadecimal digits", Escaped::short(hex)))
    })
}

/// Accepts a path below a folder: plain names separated by slashes.
///
/// # Errors
/// E001.
pub fn check_relative(path: &str) -> Result<()> {
    let plain = path.split('/').try_for_each(check_file_name);
    plain.map_err(|_| {
        let path = Escaped::short(path);
        Error::format(format!("the output '{path}' is not below the folder of the plan"))
    })
}

fn parse(bytes: &[u8], name: &str, limits: &Limits) -> Result<PartsPlan> {
    #[derive(Deserialize)]
    struct Version {
        apr_plan: u64,
    }
    let text = json::utf8(bytes, WHAT, 0)?;
    let wrong = |error: serde_json::Error| json::error(&error, WHAT, text, 0);

    // Fields that only a newer version has must not hide that it is one.
    let Object(Version { apr_plan }) = serde_json::from_str(text).map_err(wrong)?;
    if apr_plan != FORMAT_VERSION {
        let message =
            format!("this plan has version {apr_plan}; this apr reads version {FORMAT_VERSION}");
        return Err(Error::version(message));
    }

    let Object(plan): Object<PartsPlan> = serde_json::from_str(text).map_err(wrong)?;
    plan.check(name, limits)?;
    let unique: BTreeSet<&String> =
        plan.parts.iter().filter_map(|part| part.file.as_ref()).collect();
    if plan.output.is_some() && unique.len() != plan.parts.len() {
        return Err(Error::format("two parts write the same file"));
    }

    Ok(plan)
}

/// Encodes a document of this format.
pub(super) fn encoded(document: &impl Serialize) -> Vec<u8> {
    let bytes = apr_core::json::to_vec_pretty(document);
    let mut bytes = bytes.unwrap_or_else(|_| unreachable!("texts, numbers and lists of them"));
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests;
