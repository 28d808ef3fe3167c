//! What tensors go through on their way into the file: compressed block by block, encrypted chunk
//! by chunk.
//!
//! Either by [`Encoder::encode`], piece by piece on any thread, or, where only the writer knows
//! what the pieces are, by parcels on a [belt](super::belt).

use alloc::boxed::Box;
use alloc::vec::Vec;

use apr_core::{ChunkEncoder, Metadata, Result, StoredForm, TensorInfo};

use super::belt::{Belt, Parcel, Work};
use super::compression::{Compressed, Compression};
use super::encrypt::Encrypt;
use super::index::IndexEntry;
use super::options::WriteOptions;
use crate::crypto::SEALED_CHUNK;

/// Length of the pieces that threads encode, in bytes: whole blocks of every codec, and whole
/// encrypted chunks.
pub(super) const ENCODED_PIECE: usize = 1 << 20;

/// Encodes the pieces of all tensors of a file.
pub(super) struct Encoder {
    /// Compression of each of the writer's entries, or `None` for uncompressed entries.
    compressed: Vec<Option<Compressed>>,
    /// Number of input bytes of each entry. `names` has the name that each is encrypted under.
    expected: Vec<u64>,
    names: Vec<Box<str>>,
    /// Entries by their position in the layout.
    planned: Vec<usize>,
    compression: Option<Compression>,
    encryption: Option<Encrypt>,
    /// Belts of pieces to compress and of bytes to encrypt.
    belts: [Belt; 2],
}

impl Encoder {
    pub(super) fn new(options: &WriteOptions) -> Self {
        Self {
            compressed: Vec::new(),
            expected: Vec::new(),
            names: Vec::new(),
            planned: Vec::new(),
            compression: options.compression.map(Compression::new),
            encryption: options.encryption.clone(),
            belts: Default::default(),
        }
    }

    /// Moves most of the metadata into a tensor of its own if metadata are to be encrypted.
    pub(super) fn hide(&self, metadata: &mut Metadata) -> Option<(TensorInfo, Vec<u8>)> {
        self.encryption.as_ref()?.hide(metadata)
    }

    /// Bytes of the ENCR block; 0 without encryption.
    pub(super) fn block_len(&self) -> u64 {
        self.encryption.as_ref().map_or(0, Encrypt::block_len)
    }

    /// Returns `true` if tensors are encrypted.
    pub(super) fn encrypts(&self) -> bool {
        self.encryption.is_some()
    }

    /// Returns `true` if an entry is compressed, so that sizes are known only at the end.
    pub(super) fn compresses(&self) -> bool {
        self.compressed.iter().any(Option::is_some)
    }

    /// The ENCR block over a front; empty without encryption.
    pub(super) fn encr_block(&self, header: &[u8; 32], sections: [&[u8]; 2]) -> Vec<u8> {
        self.encryption
            .as_ref()
            .map_or_else(Vec::new, |encryption| encryption.encr_block(header, sections))
    }

    /// Records the expected input and the compression of each entry.
    pub(super) fn expect(&mut self, entries: &[IndexEntry]) {
        for (at, entry) in entries.iter().enumerate() {
            let form = entry.form();
            let plain = if entry.is_tied() { 0 } else { entry.info.byte_len().unwrap_or_default() };
            self.expected.push(form.map_or(plain, |form| form.len));
            self.names.push(if self.encrypts() {
                entry.info.name.as_str().into()
            } else {
                Box::default()
            });
            if !entry.is_tied() {
                self.planned.push(at);
            }
            let is_coded = form.is_some_and(|form| form.flags & StoredForm::CODEC != 0);
            let as_it_is = is_coded || plain == 0;
            let compression = self.compression.as_ref().filter(|_| !as_it_is);
            self.compressed.push(compression.map(|with| with.start(entry.info.dtype)));
        }
    }

    /// Returns the number of input bytes of an entry.
    pub(super) fn expected(&self, entry: usize) -> u64 {
        self.expected[entry]
    }

    /// Returns `true` if an entry is to be compressed. It is stored uncompressed if that saves
    /// nothing.
    pub(super) fn is_compressed(&self, entry: usize) -> bool {
        self.compressed[entry].is_some()
    }

    /// Flags of the codec that was chosen for an entry, and the length of its blocks.
    pub(super) fn coding(&self, entry: usize) -> (u32, u64) {
        let coding = self.compressed[entry].as_ref().and_then(Compressed::coding);
        coding.unwrap_or((0, ENCODED_PIECE as u64))
    }

    /// Stops compressing an entry, since it is stored uncompressed.
    pub(super) fn give_up(&self, entry: usize) {
        if let Some(tensor) = &self.compressed[entry] {
            tensor.give_up();
        }
    }

    /// Chooses the codec of an entry by samples.
    fn learn_entry(&self, entry: usize, samples: &[&[u8]]) {
        if let Some((with, tensor)) = self.compression(entry) {
            with.learn(tensor, samples);
        }
    }

    /// Keeps samples of the first piece of an entry that has none yet. The choice of the codec then
    /// does not depend on which piece is compressed first.
    pub(super) fn show_first(&self, entry: usize, piece: &[u8]) {
        if let Some(tensor) = &self.compressed[entry] {
            tensor.show_first(piece);
        }
    }

    /// Appends the compressed form of a piece of an entry, and returns the number of blocks that
    /// failed the check. Appends nothing if the entry is stored uncompressed.
    pub(super) fn compress(&self, entry: usize, piece: &[u8], out: &mut Vec<u8>) -> u64 {
        self.compression(entry).map_or(0, |(with, tensor)| with.compress(tensor, piece, out))
    }

    fn compression(&self, entry: usize) -> Option<(&Compression, &Compressed)> {
        self.compression.as_ref().zip(self.compressed[entry].as_ref())
    }

    /// Appends the encrypted form of bytes of an entry, from a chunk's start on; all chunks are
    /// whole but the tensor's last.
    fn seal(&self, entry: usize, first: u64, to_end: bool, bytes: &[u8], out: &mut Vec<u8>) {
        if let Some(encryption) = &self.encryption {
            encryption.seal(&self.names[entry], first, to_end, bytes, out);
        }
    }

    fn work(&self, parcel: &mut Parcel) {
        let Parcel { entry, work, input, output, mismatches } = parcel;
        match *work {
            Work::Compress => *mismatches = self.compress(*entry, input, output),
            Work::Seal { first, to_end } => self.seal(*entry, first, to_end, input, output),
        }
    }

    const fn belt(&self, work: Work) -> &Belt {
        let [compress, seal] = &self.belts;
        match work {
            Work::Compress => compress,
            Work::Seal { .. } => seal,
        }
    }

    /// Defers work, or does it and returns the parcel if there are no threads.
    pub(super) fn put_off(&self, parcel: Parcel) -> Option<Parcel> {
        self.belt(parcel.work).put(parcel, |parcel| self.work(parcel))
    }

    /// The next parcel of its kind whose work is done, in the order they were put off.
    pub(super) fn take_done(&self, kind: Work) -> Option<Parcel> {
        self.belt(kind).take_done()
    }

    /// The next parcel of its kind, if more than `most` were put off; its work is done then.
    ///
    /// # Errors
    /// E007 when the thread that worked on it panicked.
    pub(super) fn take_beyond(&self, kind: Work, most: usize) -> Result<Option<Parcel>> {
        let belt = self.belt(kind);
        if belt.len() <= most {
            Ok(None)
        } else {
            belt.take(|parcel| self.work(parcel)).transpose()
        }
    }
}

impl ChunkEncoder for Encoder {
    fn piece_len(&self, planned: usize) -> Option<usize> {
        let entry = self.planned[planned];
        (self.is_compressed(entry) || self.encrypts()).then_some(ENCODED_PIECE)
    }

    fn wants_samples(&self, planned: usize) -> bool {
        self.is_compressed(self.planned[planned])
    }

    fn learn(&self, planned: usize, samples: &[&[u8]]) {
        self.learn_entry(self.planned[planned], samples);
    }

    fn encode(
        &self,
        planned: usize,
        offset: u64,
        tensor_len: u64,
        piece: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<u64> {
        let entry = self.planned[planned];
        if self.is_compressed(entry) {
            return Ok(self.compress(entry, piece, out));
        }
        let to_end = offset + piece.len() as u64 == tensor_len;
        self.seal(entry, offset / SEALED_CHUNK as u64, to_end, piece, out);
        Ok(0)
    }

    fn help(&self) {
        for belt in self.belts.iter().rev() {
            while belt.help(|parcel| self.work(parcel)) {}
        }
    }
}
