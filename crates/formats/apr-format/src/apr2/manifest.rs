//! The manifest of a sharded model (`docs/format/apr2.md`, "Shards"): JSON in a file with the
//! model's name.
//!
//! ```text
//! {"apr_version": "2.0.0", "sharded": true, "shard_count": 2,
//!  "shards": [{"file": "model-00001-of-00002.apr", "size": 4096, "crc32": "0a1b2c3d"}, …],
//!  "tensor_shard_map": {"embed.weight": 0, …},
//!  "metadata": {…}, "companions": [{"name": "config.json", "len": 512}, …],
//!  "tensors": [{"name": "embed.weight", "dtype": "f32", "shape": [8, 4]}, …]}
//! ```
//!
//! The last three keys are this project's. With them the manifest alone answers what is in the
//! model, in the order that it had in one file, and a shard is opened when its bytes are wanted.
//! Without them the shards' fronts tell.
//!
//! A signed manifest has two more:
//!
//! ```text
//!  "shards": [{"file": …, "size": …, "crc32": …,
//!              "signed_digest": "<sign digest of the shard, 64 hex digits>"}, …],
//!  …
//!  "signatures": "<a SIGN block in hex>"
//! }
//! ```
//!
//! Its signatures are those of a file ([`crypto`](crate::crypto)) with this sign digest: the
//! BLAKE3-256 of the manifest as it was before, which is the file up to the comma before
//! `signatures`, `\n}\n` added. So whoever signs the manifest vouches for which shards there are
//! and, through their sign digests, for every byte of their tensors.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use apr_core::digest::{Digest, TensorDigest};
use apr_core::json::{self, Object};
use apr_core::{
    Companion, DType, Error, Escaped, Limits, Metadata, Notes, Result, Shape, TensorInfo,
    check_file_name, keys,
};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value, json};

/// The only major version, as `apr_version` starts.
const MAJOR: &str = "2";

/// Contents of a manifest.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Manifest {
    /// The files, in order; at least one.
    pub shards: Vec<ShardEntry>,
    /// Names of the tensors, sorted, each with the position of its shard.
    pub tensor_shard_map: Vec<(String, usize)>,
    /// Contents of the model, if the manifest describes them.
    pub contents: Option<Contents>,
    /// The SIGN block, if the manifest is signed.
    pub signatures: Option<Vec<u8>>,
}

/// One of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardEntry {
    /// Plain name.
    pub file: String,
    /// Length in bytes.
    pub size: u64,
    /// CRC-32 that its footer states.
    pub crc32: u32,
    /// Sign digest of the shard ([`Signed::digest`](apr_core::Signed::digest)). Signed manifests
    /// contain it.
    pub signed_digest: Option<Digest>,
}

/// Contents of a sharded model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Contents {
    /// Metadata of the whole, without the texts of companions.
    pub metadata: Metadata,
    /// Companion files. They are stored in the first shard.
    pub companions: Vec<Companion>,
    /// The tensors, in the order that they have in a single file.
    pub tensors: Vec<TensorInfo>,
}

/// Returns `true` if the first bytes of an `.apr` file belong to a manifest, which is JSON.
///
/// ```
/// use apr_format::apr2;
///
/// assert!(apr2::is_manifest(b"{\n  \"apr_version\""));
/// assert!(!apr2::is_manifest(b"APR2"));
/// ```
#[must_use]
pub fn is_manifest(head: &[u8]) -> bool {
    head.trim_ascii_start().first() == Some(&b'{')
}

impl Manifest {
    /// Parses a manifest; `name` is its file's, for errors, and because no shard may have it.
    ///
    /// # Errors
    /// E001 for what is no such JSON, names a tensor or a shard twice, a shard by other than a
    /// plain file name, or itself; E002 for counts, shards and tensors that contradict each other,
    /// and signatures that do not end the file or do not cover the shards; E003 for another major
    /// version; E008 over [`Limits::max_metadata`].
    pub fn parse(json: &[u8], name: &str, limits: &Limits) -> Result<Self> {
        limits
            .check_metadata(json.len() as u64)
            .and_then(|()| parse(json, name))
            .map_err(|error| error.in_file(name))
    }

    /// Returns the manifest's bytes: a line for each shard and each tensor.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.encode_unsigned();
        if let Some(block) = &self.signatures {
            bytes.truncate(bytes.len() - END.len());
            bytes.extend_from_slice(
                signatures_end(&base16ct::lower::encode_string(block)).as_bytes(),
            );
        }
        bytes
    }

    pub(super) fn encode_unsigned(&self) -> Vec<u8> {
        let shards = self.shards.iter().map(|ShardEntry { file, size, crc32, signed_digest }| {
            let digest = signed_digest.map(|digest| base16ct::lower::encode_string(&digest));
            let digest =
                digest.map_or_else(String::new, |hex| format!(r#", "signed_digest": "{hex}""#));
            format!(
                r#"{{"file": {}, "size": {size}, "crc32": "{crc32:08x}"{digest}}}"#,
                json!(file)
            )
        });

        let map =
            self.tensor_shard_map.iter().map(|(name, shard)| format!("{}: {shard}", json!(name)));
        let mut sections = Vec::from([
            r#""apr_version": "2.0.0""#.to_string(),
            r#""sharded": true"#.to_string(),
            format!(r#""shard_count": {}"#, self.shards.len()),
            format!(r#""shards": {}"#, lines(shards, "[", "]")),
            format!(r#""tensor_shard_map": {}"#, lines(map, "{", "}")),
        ]);
        if let Some(Contents { metadata, companions, tensors }) = &self.contents {
            let companions = companions.iter().map(|Companion { name, len }| {
                format!(r#"{{"name": {}, "len": {len}}}"#, json!(name))
            });
            let tensors = tensors.iter().map(|TensorInfo { name, dtype, shape }| {
                format!(
                    r#"{{"name": {}, "dtype": "{dtype}", "shape": {}}}"#,
                    json!(name),
                    json!(shape)
                )
            });
            sections.push(format!(r#""metadata": {}"#, json!(metadata)));
            sections.push(format!(r#""companions": {}"#, lines(companions, "[", "]")));
            sections.push(format!(r#""tensors": {}"#, lines(tensors, "[", "]")));
        }

        format!("{{\n  {}{END}", sections.join(",\n  ")).into_bytes()
    }

    /// Adds the notes of a pass to the notes in the metadata.
    pub fn note(&mut self, notes: &Notes) {
        if let Some(contents) = &mut self.contents {
            note(&mut contents.metadata, notes);
        }
    }
}

/// Adds the notes of a pass to the notes in the metadata.
fn note(metadata: &mut Metadata, notes: &Notes) {
    let losses = notes.losses.iter().filter_map(|loss| serde_json::to_value(loss).ok()).collect();
    for (key, new) in [(keys::LOSS, losses), (keys::VIOLATIONS, notes.violations.clone())] {
        if new.is_empty() {
            continue;
        }
        let mut all: Vec<Value> =
            metadata.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        all.extend(new);
        metadata.set(key, all);
    }
    if let Some(degradation) = &notes.degradation {
        metadata.note_degradation(degradation.clone());
    }
}

/// End of a manifest that is not signed.
const END: &str = "\n}\n";

/// Returns the end of a signed manifest.
fn signatures_end(block: &str) -> String {
    format!(",\n  \"signatures\": \"{block}\"{END}")
}

pub(super) fn hash(parts: [&[u8]; 2]) -> Digest {
    let mut digest = TensorDigest::new();
    parts.into_iter().for_each(|part| digest.update(part));
    digest.value()
}

/// The sign digest of a manifest's file, whose SIGN block is `signatures`.
pub(super) fn signed_digest(json: &[u8], signatures: &[u8]) -> Digest {
    let end = signatures_end(&base16ct::lower::encode_string(signatures));
    hash([&json[..json.len().saturating_sub(end.len())], END.as_bytes()])
}

fn lines(entries: impl Iterator<Item = String>, open: &str, close: &str) -> String {
    let entries: Vec<String> = entries.collect();
    if entries.is_empty() {
        return format!("{open}{close}");
    }
    format!("{open}\n    {}\n  {close}", entries.join(",\n    "))
}

#[derive(Deserialize)]
struct ManifestFile {
    apr_version: String,
    sharded: bool,
    shard_count: u64,
    shards: Vec<Object<ShardFile>>,
    tensor_shard_map: ShardMap,
    metadata: Option<Map<String, Value>>,
    companions: Option<Vec<Object<CompanionFile>>>,
    tensors: Option<Vec<Object<TensorFile>>>,
    signatures: Option<String>,
}

#[derive(Deserialize)]
struct ShardFile {
    file: String,
    size: u64,
    crc32: String,
    signed_digest: Option<String>,
}

#[derive(Deserialize)]
struct CompanionFile {
    name: String,
    len: u64,
}

#[derive(Deserialize)]
struct TensorFile {
    name: String,
    dtype: String,
    shape: Vec<u64>,
}

/// Tensors with the number of their shard. A map would drop duplicates.
struct ShardMap(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for ShardMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShardMapVisitor;

        impl<'de> Visitor<'de> for ShardMapVisitor {
            type Value = ShardMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor names and shard numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ShardMap, A::Error> {
                let mut entries = Vec::new();
                while let Some((name, shard)) = map.next_entry::<String, u64>()? {
                    if name.is_empty() {
                        return Err(A::Error::custom("a tensor has an empty name"));
                    }
                    entries.push((name, shard));
                }
                Ok(ShardMap(entries))
            }
        }

        deserializer.deserialize_map(ShardMapVisitor)
    }
}

fn parse(bytes: &[u8], name: &str) -> Result<Manifest> {
    const WHAT: &str = "the manifest";

    let text = json::utf8(bytes, WHAT, 0)?;
    let Object(file): Object<ManifestFile> =
        serde_json::from_str(text).map_err(|error| json::error(&error, WHAT, text, 0))?;
    check_version(&file)?;
    if !file.sharded {
        return Err(Error::format("the manifest states that the model is not sharded"));
    }

    if file.shard_count != file.shards.len() as u64 {
        let (claimed, listed) = (file.shard_count, file.shards.len());
        return Err(Error::corrupt(format!(
            "the manifest counts {claimed} shards, but lists {listed}"
        )));
    }

    let shards = parse_shards(file.shards, name)?;
    let signatures =
        file.signatures.map(|hex| parse_signatures(&hex, text, &shards)).transpose()?;
    let tensor_shard_map = parse_map(file.tensor_shard_map, shards.len())?;
    let contents = match (file.metadata, file.companions, file.tensors) {
        (Some(metadata), Some(companions), Some(tensors)) => {
            let tensors = parse_tensors(tensors, &tensor_shard_map)?;
            let companions = companions
                .into_iter()
                .map(|Object(CompanionFile { name, len })| Companion { name, len });
            Some(Contents { metadata: metadata.into(), companions: companions.collect(), tensors })
        }
        _ => None,
    };

    Ok(Manifest { shards, tensor_shard_map, contents, signatures })
}

fn check_version(file: &ManifestFile) -> Result<()> {
    let version = &file.apr_version;
    if version.split('.').next() != Some(MAJOR) {
        let version = Escaped::short(version);
        return Err(Error::version(format!("version '{version}' is not supported, only 2.x is")));
    }
    Ok(())
}

fn parse_shards(shards: Vec<Object<ShardFile>>, manifest: &str) -> Result<Vec<ShardEntry>> {
    if shards.is_empty() {
        return Err(Error::format("the manifest names no shard"));
    }

    // The manifest may have been opened by a path; shards never are.
    let manifest = manifest.rsplit(['/', '\\']).next().unwrap_or(manifest);
    let mut names = BTreeSet::new();
    let mut entries = Vec::with_capacity(shards.len());
    for Object(ShardFile { file, size, crc32, signed_digest }) in shards {
        check_file_name(&file)?;
        if file == manifest {
            return Err(Error::format("the manifest names itself as a shard"));
        }

        if !names.insert(file.clone()) {
            let file = Escaped::short(&file);
            return Err(Error::format(format!("the manifest names the shard '{file}' twice")));
        }

        let digits = crc32.len() == 8 && crc32.bytes().all(|digit| digit.is_ascii_hexdigit());
        let crc32 = u32::from_str_radix(&crc32, 16).ok().filter(|_| digits).ok_or_else(|| {
            let (file, crc32) = (Escaped::short(&file), Escaped::short(&crc32));
            Error::format(format!(
                "the crc32 of '{file}' is '{crc32}', which is not 8 hexadecimal digits"
            ))
        })?;
        let signed_digest = signed_digest.map(|hex| {
            let digest = base16ct::lower::decode_vec(&hex)
                .ok()
                .and_then(|bytes| Digest::try_from(bytes).ok());
            let message = || {
                format!(
                    "the signed_digest of '{}' is not 64 hexadecimal digits",
                    Escaped::short(&file)
                )
            };
            digest.ok_or_else(|| Error::format(message()))
        });

        let signed_digest = signed_digest.transpose()?;
        entries.push(ShardEntry { file, size, crc32, signed_digest });
    }

    Ok(entries)
}

/// Returns the SIGN block of a manifest. It must end the manifest and cover all shards.
fn parse_signatures(hex: &str, manifest: &str, shards: &[ShardEntry]) -> Result<Vec<u8>> {
    let block = base16ct::lower::decode_vec(hex).map_err(|_| {
        Error::format("the manifest's signatures are not in lower-case hexadecimal digits")
    })?;
    if !manifest.ends_with(&signatures_end(hex)) {
        return Err(Error::corrupt(
            "the manifest does not end with its signatures, so that they don't cover all of it",
        ));
    }

    match shards.iter().find(|entry| entry.signed_digest.is_none()) {
        None => Ok(block),
        Some(entry) => {
            let file = Escaped::short(&entry.file);
            Err(Error::corrupt(format!(
                "the manifest is signed, but has no signed_digest of '{file}'"
            )))
        }
    }
}

fn parse_map(ShardMap(mut entries): ShardMap, shards: usize) -> Result<Vec<(String, usize)>> {
    entries.sort_unstable();
    if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::format("the manifest lists this tensor twice").for_tensor(&pair[0].0));
    }

    let position = |(name, shard): (String, u64)| match usize::try_from(shard)
        .ok()
        .filter(|&shard| shard < shards)
    {
        Some(shard) => Ok((name, shard)),
        None => {
            let message =
                format!("it is in shard {shard}, counted from 0, but there are {shards} shards");
            Err(Error::corrupt(message).for_tensor(&name))
        }
    };
    entries.into_iter().map(position).collect()
}

fn parse_tensors(
    tensors: Vec<Object<TensorFile>>,
    map: &[(String, usize)],
) -> Result<Vec<TensorInfo>> {
    let mut infos = Vec::with_capacity(tensors.len());
    let mut told: BTreeSet<usize> = BTreeSet::new();
    for Object(TensorFile { name, dtype, shape }) in tensors {
        let at = map.binary_search_by(|(known, _)| known.as_str().cmp(&name));
        let problem = match at {
            Err(_) => Some("the manifest has an entry for it, but no shard"),
            Ok(at) if !told.insert(at) => Some("the manifest describes it twice"),
            Ok(_) => None,
        };
        if let Some(problem) = problem {
            return Err(Error::corrupt(problem).for_tensor(&name));
        }

        let known = DType::ALL.iter().copied().find(|known| known.name() == dtype);
        let info = known.filter(|_| shape.len() <= Shape::MAX_DIMS).map(|dtype| TensorInfo {
            name: name.clone(),
            dtype,
            shape: shape.into(),
        });
        let info = info.ok_or_else(|| {
            let dtype = Escaped::short(&dtype);
            Error::format(format!("dtype '{dtype}' or the number of dimensions is not allowed"))
                .for_tensor(&name)
        })?;
        info.byte_len()?;
        infos.push(info);
    }

    if let Some((name, _)) =
        map.iter().enumerate().find(|(at, _)| !told.contains(at)).map(|(_, entry)| entry)
    {
        return Err(Error::corrupt(
            "the manifest lists the tensor in a shard, but has no entry for it",
        )
        .for_tensor(name));
    }
    Ok(infos)
}
