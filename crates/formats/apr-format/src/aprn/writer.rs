//! Writing a checkpoint as APRN: only models that came from APRN, whose payload has a known
//! meaning.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use apr_core::digest::{ChunkSums, Crc32};
use apr_core::{
    CheckpointWriter, DType, Due, Error, FileInfo, Layout, Loss, Metadata, Notes, PlannedTensor,
    Result, Sink, TensorInfo, keys,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::ModelType;
use super::container::CRC_LEN;
use super::header::{Flags, Header};
use super::layouts::{PAYLOAD, Piece, put_together};
use super::metadata::ModelMetadata;

/// Record that a reader stored under [`keys::APRN`].
#[derive(Debug, Deserialize)]
struct ReaderRecord {
    model_type: u16,
    flags: u8,
    quality_score: u8,
    metadata: Value,
    #[serde(default)]
    msgpack: Option<String>,
    #[serde(default)]
    fields: Option<Map<String, Value>>,
}

/// An APRN file being written; see [`plan`].
#[derive(Debug)]
pub struct AprnWriter {
    layout: Layout,
    names: Vec<String>,
    /// Header and metadata.
    front: Vec<u8>,
    /// Bytes of the payload before each tensor, and after the last.
    between: Vec<Vec<u8>>,
    due: Due,
    crc: Crc32,
}

/// Plans a file for a checkpoint that was opened from APRN, or from a file converted from APRN.
///
/// Header, metadata and payload stay the same, except for the current tensors. The payload is
/// neither packed nor encrypted, so that tensors stream; [`save_to`](super::save_to) does that with
/// a model in memory. A signature would no longer be valid and is reported as a loss.
///
/// # Errors
/// E001 for a checkpoint that was never APRN, or that no longer is the model it was; E008 for
/// metadata or a payload of 4 GiB.
pub fn plan(tensors: &[TensorInfo], metadata: &Metadata, file_name: &str) -> Result<AprnWriter> {
    let Some(origin) = metadata.get(keys::APRN) else {
        return Err(Error::format(
            "only a checkpoint that was converted from APRN can be written as APRN, which stores \
             fixed types of models, such as a linear regression",
        ));
    };

    let origin = ReaderRecord::deserialize(origin).map_err(|error| {
        Error::format(format!(
            "the metadata under '{}' are damaged: {}",
            keys::APRN,
            apr_core::foreign(&error)
        ))
    })?;
    let pieces = origin.pieces(tensors)?;
    let metadata_bytes = origin.metadata_bytes()?;

    let size = |len: Option<u64>, what: &str| {
        let size = len.and_then(|len| u32::try_from(len).ok());
        size.ok_or_else(|| Error::memory(format!("{what} of APRN ends at 4 GiB")))
    };
    let mut payload_len = Some(0_u64);
    let mut planned = Vec::new();
    let mut between = alloc::vec![Vec::new()];
    for piece in pieces {
        let len = match piece {
            Piece::Bytes(bytes) => {
                let len = bytes.len() as u64;
                if let Some(last) = between.last_mut() {
                    *last = bytes;
                }
                len
            }
            Piece::Tensor(source) => {
                let len = tensors[source].byte_len()?;
                planned.push(PlannedTensor {
                    source,
                    file: 0,
                    offset: payload_len.unwrap_or_default(),
                    len,
                });
                between.push(Vec::new());
                len
            }
        };

        payload_len = payload_len.and_then(|sum| sum.checked_add(len));
    }

    let mut header = origin.header();
    header.metadata_size = size(Some(metadata_bytes.len() as u64), "the metadata")?;
    header.payload_size = size(payload_len, "the payload")?;
    header.uncompressed_size = header.payload_size;
    let front = [&header.encode()[..], &metadata_bytes].concat();
    planned.iter_mut().for_each(|tensor| tensor.offset += front.len() as u64);

    let len = front.len() as u64 + u64::from(header.payload_size) + u64::from(CRC_LEN);
    let names = planned.iter().map(|planned| tensors[planned.source].name.clone()).collect();
    let files = alloc::vec![FileInfo { name: file_name.to_string(), len }];
    let layout = Layout { files, tensors: planned, losses: origin.losses() };
    Ok(AprnWriter { layout, names, front, between, due: Due::default(), crc: Crc32::new() })
}

impl ReaderRecord {
    fn pieces(&self, tensors: &[TensorInfo]) -> Result<Vec<Piece>> {
        if let Some(fields) = &self.fields {
            let kind = ModelType::from_code(self.model_type).ok_or_else(|| {
                Error::format(format!("the model type {:#06x} is unknown", self.model_type))
            })?;
            return put_together(kind, tensors, fields);
        }

        match tensors {
            [payload] if payload.name == PAYLOAD && payload.dtype == DType::U8 => {
                Ok(alloc::vec![Piece::Tensor(0)])
            }
            _ => Err(Error::format(format!(
                "the model was read as one tensor of bytes, '{PAYLOAD}', and now has others"
            ))),
        }
    }

    fn metadata_bytes(&self) -> Result<Vec<u8>> {
        if let Some(msgpack) = &self.msgpack {
            return base16ct::lower::decode_vec(msgpack).map_err(|_| {
                Error::format("the metadata's MessagePack is not a row of hex digits")
            });
        }
        ModelMetadata::deserialize(&self.metadata)
            .map_err(|error| {
                Error::format(format!(
                    "the metadata of the APRN file are damaged: {}",
                    apr_core::foreign(&error)
                ))
            })?
            .encode()
    }

    fn header(&self) -> Header {
        let gone = Flags::ENCRYPTED.0 | Flags::SIGNED.0;
        Header {
            model_type: self.model_type,
            flags: Flags(self.flags & !gone),
            quality_score: self.quality_score,
            ..Header::new(ModelType::Custom)
        }
    }

    fn losses(&self) -> Vec<Loss> {
        let flags = Flags(self.flags);
        let loss =
            |what: &str, why: &str| Loss { name: "*".into(), what: what.into(), why: why.into() };
        let mut losses = Vec::new();
        if flags.contains(Flags::SIGNED) {
            losses.push(loss("signature", "it is invalid for a rewritten file"));
        }
        if flags.contains(Flags::ENCRYPTED) {
            losses
                .push(loss("encryption", "the payload was decrypted, and is written unencrypted"));
        }
        losses
    }
}

impl AprnWriter {
    fn put(&mut self, sink: &mut dyn Sink, bytes: &[u8]) -> Result<()> {
        self.crc.update(bytes);
        sink.write_all(bytes)
    }

    /// Writes the bytes that follow tensors that are complete.
    fn settle(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while self.due.complete(&self.layout).is_some() {
            let bytes = core::mem::take(&mut self.between[self.due.position()]);
            self.put(sink, &bytes)?;
        }
        Ok(())
    }
}

impl CheckpointWriter for AprnWriter {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let front = core::mem::take(&mut self.front);
        self.put(sink, &front)?;
        let first = core::mem::take(&mut self.between[0]);
        self.put(sink, &first)?;
        self.settle(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        _sums: Option<ChunkSums>,
    ) -> Result<()> {
        self.due.take(&self.layout, &self.names, bytes.len() as u64)?;
        self.put(sink, bytes)?;
        self.settle(sink)
    }

    fn finish(&mut self, sink: &mut dyn Sink, _notes: &Notes) -> Result<()> {
        self.due.finish(&self.layout, &self.names)?;
        sink.write_all(&self.crc.value().to_le_bytes())
    }
}
