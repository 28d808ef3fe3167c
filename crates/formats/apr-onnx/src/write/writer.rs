//! Writing what was planned, piece by piece.

use std::collections::VecDeque;

use apr_core::digest::ChunkSums;
use apr_core::{
    CheckpointWriter, Due, Error, FileInfo, Layout, Loss, Notes, PlannedTensor, Result, Sink,
    TensorInfo,
};

use super::message::Piece;
use crate::reader::Narrow;

/// ONNX models being written; [`plan`](super::plan) makes it.
///
/// Nothing is ever patched, so any sink will do; where there are several files, one that holds
/// several.
#[derive(Debug)]
pub struct OnnxWriter {
    layout: Layout,
    /// Names of the layout's tensors.
    names: Vec<String>,
    /// The remaining pieces of the files, starting with the file that is being written.
    files: VecDeque<VecDeque<Piece>>,
    /// Position of the file that is being written.
    file: usize,
    /// `true` if the sink receives the names of the files.
    named: bool,
    due: Due,
    /// Packing of the elements of each tensor in the layout.
    packings: Vec<Option<Narrow>>,
    packer: Packer,
}

/// Elements of a tensor that do not fill a byte yet.
#[derive(Debug, Default)]
struct Packer {
    byte: u8,
    /// Bits of it that are filled.
    filled: u32,
}

impl Packer {
    /// The bytes that these elements fill.
    fn pack(&mut self, narrow: Narrow, elements: &[u8]) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(elements.len());
        for &element in elements {
            let bits = narrow.pack(element).ok_or_else(|| {
                let shown = i32::from(element.cast_signed());
                let shown = if narrow.is_signed { shown } else { i32::from(element) };
                let message = format!("its value {shown} does not fit {} bits", narrow.bits);
                Error::format(message)
            })?;

            self.byte |= bits << self.filled;
            self.filled += narrow.bits;
            if self.filled == u8::BITS {
                bytes.push(self.byte);
                *self = Self::default();
            }
        }
        Ok(bytes)
    }

    /// Returns the last byte of a tensor, if its elements do not fill that byte.
    fn rest(&mut self) -> Option<u8> {
        let Self { byte, filled } = std::mem::take(self);
        (filled > 0).then_some(byte)
    }
}

impl OnnxWriter {
    /// Creates a writer for files whose bytes are known except for the tensors.
    pub(crate) fn new(
        files: Vec<(String, Vec<Piece>)>,
        tensors: &[TensorInfo],
        losses: Vec<Loss>,
        named: bool,
    ) -> Self {
        let mut layout = Layout { losses, ..Layout::default() };
        // Several files can't do without their names.
        let named = named || files.len() > 1;
        let mut packings = Vec::new();
        let mut queues = VecDeque::with_capacity(files.len());
        for (file, (name, pieces)) in files.into_iter().enumerate() {
            let mut offset = 0;
            for piece in &pieces {
                let planned = match *piece {
                    Piece::Hole(source, len) => Some((source, len, None)),
                    Piece::Packed(source, narrow, count) => Some((source, count, Some(narrow))),
                    Piece::Bytes(_) | Piece::Zeros(_) => None,
                };
                if let Some((source, len, packing)) = planned {
                    layout.tensors.push(PlannedTensor { source, file, offset, len });
                    packings.push(packing);
                }
                offset += piece.len();
            }
            layout.files.push(FileInfo { name, len: offset });
            queues.push_back(pieces.into());
        }

        let names =
            layout.tensors.iter().map(|planned| tensors[planned.source].name.clone()).collect();
        Self {
            layout,
            names,
            files: queues,
            file: 0,
            named,
            due: Due::default(),
            packings,
            packer: Packer::default(),
        }
    }

    /// Writes the bytes before the next tensor and skips tensors without bytes.
    fn go_on(&mut self, sink: &mut dyn Sink) -> Result<()> {
        loop {
            self.known_bytes(sink)?;
            if self.due.complete(&self.layout).is_none() {
                return Ok(());
            }
        }
    }

    /// Writes known bytes up to the next hole, in this file or one after it, and takes the hole
    /// away.
    fn known_bytes(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while let Some(pieces) = self.files.front_mut() {
            match pieces.pop_front() {
                Some(Piece::Bytes(bytes)) => sink.write_all(&bytes)?,
                Some(Piece::Zeros(len)) => write_zeros(sink, len)?,
                Some(Piece::Hole(..) | Piece::Packed(..)) => return Ok(()),
                None => {
                    self.files.pop_front();
                    self.file += 1;
                    if let Some(file) = self.layout.files.get(self.file) {
                        sink.next_file(&file.name)?;
                    }
                }
            }
        }

        Ok(())
    }
}

fn write_zeros(sink: &mut dyn Sink, len: u64) -> Result<()> {
    const ZEROS: [u8; 4 << 10] = [0; 4 << 10];
    let mut left = len;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(ZEROS.len()).min(ZEROS.len());
        sink.write_all(&ZEROS[..part])?;
        left -= part as u64;
    }
    Ok(())
}

impl CheckpointWriter for OnnxWriter {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        if let Some(file) = self.layout.files.first().filter(|_| self.named) {
            sink.next_file(&file.name)?;
        }
        self.go_on(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        _sums: Option<ChunkSums>,
    ) -> Result<()> {
        let at = self.due.position();
        self.due.take(&self.layout, &self.names, bytes.len() as u64)?;
        match self.packings.get(at).copied().flatten() {
            None => sink.write_all(bytes)?,
            Some(narrow) => {
                let packed = self.packer.pack(narrow, bytes);
                let packed = packed.map_err(|error| error.for_tensor(&self.names[at]))?;
                sink.write_all(&packed)?;
            }
        }

        if self.due.complete(&self.layout).is_none() {
            return Ok(());
        }
        if let Some(last) = self.packer.rest() {
            sink.write_all(&[last])?;
        }
        self.go_on(sink)
    }

    fn finish(&mut self, sink: &mut dyn Sink, _notes: &Notes) -> Result<()> {
        self.due.finish(&self.layout, &self.names)?;
        self.known_bytes(sink)
    }
}
