//! An APRN file as a checkpoint.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use std::sync::OnceLock;

use apr_core::{
    ByteSource, CheckpointReader, ContainerFacts, DType, Error, Extent, ExtentKind, Features,
    FileChecksum, FileInfo, Format, Limits, Metadata, Result, Stored, StoredRange, TensorInfo,
    check_range, has_no, has_own, keys,
};
use serde_json::{Map, Value, json};

use super::container::Container;
use super::header::{Compression, Flags};
use super::layouts::{self, PAYLOAD};
use super::load_options::{LoadOptions, locked};
use super::metadata::DecodedMetadata;

/// An APRN file opened as a checkpoint.
///
/// Arrays of a payload whose layout is known are tensors; any other payload is one tensor of bytes,
/// `payload`. The facts in the file are in the metadata under `aprn`, from which
/// [`plan`](super::plan) writes the file again.
///
/// No byte of a payload is returned before the file's checksum was verified.
pub struct AprnReader {
    source: Box<dyn ByteSource>,
    container: Container,
    options: LoadOptions,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Range of each tensor in the unpacked payload.
    ranges: Vec<Range<u64>>,
    crc: OnceLock<Result<()>>,
    /// The unpacked payload, for files that store it packed or encrypted.
    unpacked: OnceLock<Result<Vec<u8>>>,
    files: [FileInfo; 1],
    warnings: Vec<String>,
}

/// Opens an APRN file. Reads header and metadata.
///
/// The payload is also read if its type is known, if `options` hold a key for it, or if they
/// require a signature. Without a key, an encrypted file opens with a warning, and reading its
/// payload is E005.
///
/// # Errors
/// E001 when it is not APRN, E002 when parts are missing or contradict each other, E003 for
/// versions and features that this build does not read, E004 for a damaged file whose metadata
/// don't parse or are all it has, E005 for a wrong key, E006 when no trusted key signed it, E008
/// beyond `limits`; each names `name`.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
    options: &LoadOptions,
) -> Result<AprnReader> {
    AprnReader::open(Box::new(source), name, limits, options).map_err(|error| error.in_file(name))
}

impl AprnReader {
    fn open(
        source: Box<dyn ByteSource>,
        name: &str,
        limits: &Limits,
        options: &LoadOptions,
    ) -> Result<Self> {
        let container = Container::locate(&source)?;
        let decoded = container.read_metadata(&source, limits)?;
        let files = [FileInfo { name: name.to_string(), len: source.len() }];
        let warnings = [&container.warnings[..], &decoded.warnings].concat();
        let mut reader = Self {
            source,
            container,
            options: options.clone(),
            metadata: Metadata::new(),
            tensors: Vec::new(),
            ranges: Vec::new(),
            crc: OnceLock::new(),
            unpacked: OnceLock::new(),
            files,
            warnings,
        };

        if !options.trusted_keys.is_empty() {
            reader.check_crc()?;
            options.check_signature(&reader.container, &reader.source)?;
        }

        let values = reader.find_tensors()?;
        reader.metadata = reader.describe(&decoded, values);
        reader.warn();
        Ok(reader)
    }

    /// Lists the tensors, and returns the payload's other values.
    fn find_tensors(&mut self) -> Result<Option<Map<String, Value>>> {
        if let Some(fields) = self.take_apart()? {
            for (info, range) in fields.tensors {
                self.tensors.push(info);
                self.ranges.push(range.start as u64..range.end as u64);
            }
            return Ok(Some(fields.values));
        }

        let header = &self.container.header;
        let len = match self.is_plain() {
            true => header.payload_size,
            false => header.uncompressed_size,
        };
        if len == 0 {
            // Nobody will read the payload, and so find out that the file is damaged.
            self.check_crc()?;
            if !self.is_plain() && !self.is_locked() {
                self.unpacked()?;
            }
        }

        self.tensors.push(TensorInfo {
            name: PAYLOAD.into(),
            dtype: DType::U8,
            shape: vec![u64::from(len)].into(),
        });
        self.ranges.push(0..len.into());
        Ok(None)
    }

    /// Returns the fields of a payload of a known type, if the file is sound and not locked.
    fn take_apart(&mut self) -> Result<Option<layouts::Fields>> {
        let header = self.container.header;
        let encrypted = header.flags.contains(Flags::ENCRYPTED);
        if encrypted && !self.options.can_decrypt() {
            return Ok(None);
        }

        let Some(kind) = header.kind().filter(|kind| encrypted || layouts::is_known(Some(*kind)))
        else {
            return Ok(None);
        };
        if let Err(error) = self.check_crc() {
            // A damaged payload is not parsed; whoever reads it gets the error.
            let is_damage =
                matches!(error.code(), apr_core::Code::Checksum | apr_core::Code::Signature);
            return if is_damage { Ok(None) } else { Err(error) };
        }

        let fields = match self.is_plain() {
            true => layouts::take_apart(kind, &self.container.read_payload(&self.source)?),
            false => layouts::take_apart(kind, self.unpacked()?),
        };
        if fields.is_none() && layouts::is_known(Some(kind)) {
            self.warnings
                .push(format!("the payload is not laid out as a {kind}; it is shown as bytes"));
        }

        Ok(fields)
    }

    /// Returns the metadata under the keys that every format shares and, in full, under `aprn`.
    fn describe(&self, decoded: &DecodedMetadata, values: Option<Map<String, Value>>) -> Metadata {
        let mut metadata = Metadata::new();
        let (header, known) = (&self.container.header, &decoded.metadata);
        metadata.set(keys::MODEL_TYPE, header.kind().map_or("unknown", super::ModelType::name));
        let card = known.model_card.as_ref();
        let texts = [
            ("name", known.model_name.as_ref().or(card.map(|card| &card.name)).cloned()),
            ("description", known.description.clone()),
            ("author", card.and_then(|card| card.author.clone())),
            ("license", card.and_then(|card| card.license.clone())),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                metadata.set(key, text);
            }
        }

        let mut aprn = json!({
            "version": format!("{}.{}", header.version_major, header.version_minor),
            "model_type": header.model_type,
            "flags": header.flags.0,
            "quality_score": header.quality_score,
            "metadata": decoded.json,
        });

        // The map in MessagePack is kept where writing the fields again would not give the same
        // bytes.
        if known.encode().ok().as_ref() != Some(&decoded.bytes) {
            aprn["msgpack"] = base16ct::lower::encode_string(&decoded.bytes).into();
        }
        if let Some(values) = values {
            aprn["fields"] = values.into();
        }

        metadata.set(keys::APRN, aprn);
        metadata
    }

    fn warn(&mut self) {
        let flags = self.container.header.flags;
        if flags.contains(Flags::ENCRYPTED) && !self.options.can_decrypt() {
            self.warnings
                .push("the payload is encrypted; without a key only its size is known".into());
        }

        if self.container.signature.is_some() && self.options.trusted_keys.is_empty() {
            self.warnings.push("signature not verified: no trusted key given".into());
        }

        let header = &self.container.header;
        if self.is_plain() && header.payload_size != header.uncompressed_size {
            let (payload, unpacked) = (header.payload_size, header.uncompressed_size);
            let message = format!(
                "the payload has {payload} bytes, but the header states {unpacked} unpacked"
            );
            self.warnings.push(message);
        }
    }

    /// Returns `true` if the payload is stored without compression and encryption.
    fn is_plain(&self) -> bool {
        let header = &self.container.header;
        header.compression == Compression::None && !header.flags.contains(Flags::ENCRYPTED)
    }

    /// Compares the file with its checksum and its signature. The signature is verified with the
    /// key in the file, which does not prove who signed.
    fn check_crc(&self) -> Result<()> {
        let check = || {
            self.container.check_crc(&self.source)?;
            let own = LoadOptions { trusted_keys: Vec::new(), ..self.options.clone() };
            own.check_signature(&self.container, &self.source)
        };
        self.crc.get_or_init(check).clone()
    }

    /// Returns the unpacked payload of a file that is packed or encrypted.
    fn unpacked(&self) -> Result<&[u8]> {
        let unpacked = self.unpacked.get_or_init(|| {
            if self.container.header.flags.contains(Flags::ENCRYPTED) && !self.options.can_decrypt()
            {
                return Err(locked().at(self.container.payload.start));
            }
            self.options.open_payload(&self.container, &self.source)
        });
        unpacked.as_deref().map_err(Error::clone)
    }

    fn read(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let range = &self.ranges[tensor];
        check_range(offset, buf.len(), range.end - range.start)?;
        let start = range.start + offset;
        let end = start + buf.len() as u64;
        if buf.is_empty() {
            return Ok(());
        }

        self.check_crc()?;
        if self.is_plain() {
            return self.source.read_at(self.container.payload.start + start, buf);
        }

        let payload = self.unpacked()?;
        let bytes = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let bytes = bytes.and_then(|(start, end)| payload.get(start..end));
        buf.copy_from_slice(bytes.ok_or_else(|| Error::corrupt("it ends past the payload"))?);
        Ok(())
    }
}

impl ContainerFacts for AprnReader {
    fn features(&self) -> Features {
        Features {
            encrypted: self.container.header.flags.contains(Flags::ENCRYPTED),
            ..Features::default()
        }
    }

    fn is_locked(&self) -> bool {
        self.container.header.flags.contains(Flags::ENCRYPTED) && !self.options.can_decrypt()
    }

    fn checksum(&self) -> Option<FileChecksum> {
        let mut extents = Vec::new();
        let mut position = 0;
        let mut push = |kind: ExtentKind, end: u64| {
            if end > position {
                extents.push(Extent { kind, offset: position, len: end - position });
                position = end;
            }
        };

        // Of a file that is damaged, or whose payload is not as it lies there, only the bytes
        // themselves can be read.
        if self.is_plain() && self.check_crc().is_ok() {
            for (tensor, range) in self.ranges.iter().enumerate() {
                push(ExtentKind::Structure, self.container.payload.start + range.start);
                push(ExtentKind::Tensor(tensor), self.container.payload.start + range.end);
            }
        }

        push(ExtentKind::Structure, self.container.crc_offset);
        Some(FileChecksum { crc32: self.container.crc32, extents })
    }

    fn signed_by(&self) -> Result<Option<[u8; 32]>> {
        self.check_crc().map_err(|error| error.in_file(&self.files[0].name))?;
        Ok(self.container.signature.map(|(_, key)| key))
    }

    fn read_raw(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.source.read_at(offset, buf).map_err(|error| error.in_file(&self.files[0].name))
    }

    fn header_fields(&self) -> Value {
        let header = &self.container.header;
        let model_type = match header.kind() {
            Some(kind) => kind.to_string(),
            None => format!("{:#06x}", header.model_type),
        };
        let mut fields = json!({
            "version": format!("{}.{}", header.version_major, header.version_minor),
            "model_type": model_type,
            "flags": header.flags.names(), "compression": header.compression.name(),
            "quality_score": header.quality_score, "metadata_size": header.metadata_size,
            "payload_size": header.payload_size, "uncompressed_size": header.uncompressed_size,
            "crc32": format!("{:#010x}", self.container.crc32),
        });

        if let Some((_, key)) = &self.container.signature {
            fields["signed_by"] = base16ct::lower::encode_string(key).into();
        }

        fields
    }
}

impl CheckpointReader for AprnReader {
    has_own!(metadata, tensors, container, files, warnings);
    has_no!(companions, left_out);

    fn format(&self) -> &'static Format {
        &super::FORMAT
    }

    /// Returns the range of the tensor's own bytes in a plain payload. For a packed or encrypted
    /// payload, returns the range of the whole payload.
    fn stored(&self, tensor: usize) -> Stored<'_> {
        let (payload, own) = (&self.container.payload, &self.ranges[tensor]);
        if self.is_plain() {
            return Stored::plain(StoredRange {
                file: 0,
                offset: payload.start + own.start,
                len: own.end - own.start,
            });
        }
        Stored::derived(StoredRange {
            file: 0,
            offset: payload.start,
            len: payload.end - payload.start,
        })
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let read = self.read(tensor, offset, buf);
        read.map_err(|error| {
            error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name)
        })
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        self.check_crc().ok()?;
        let range = &self.ranges[tensor];
        if self.is_plain() {
            return self
                .source
                .slice_at(self.container.payload.start + range.start, range.end - range.start);
        }
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        self.unpacked().ok()?.get(start..end)
    }
}
