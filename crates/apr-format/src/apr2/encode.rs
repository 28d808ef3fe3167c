//! What tensors go through on their way into the file: compressed block by block, encrypted chunk
//! by chunk.
//!
//! Either by [`Encoder::encode`], piece by piece on any thread, or, where only the writer knows
//! what the pieces are, by parcels on a [belt](super::belt).

use alloc::boxed::Box;
use alloc::vec::Vec;
#[cfg(feature = "compression")]
use core::sync::atomic::{AtomicBool, Ordering};

use apr_core::{ChunkEncoder, Metadata, Result, TensorInfo};

use super::belt::{Belt, Parcel, Work};
use super::encrypt::Sealing;
use super::index::IndexEntry;
use super::options::WriteOptions;
use crate::sealed::SEALED_CHUNK;

/// Length of the pieces that threads encode, in bytes: whole blocks of every codec, and whole
/// encrypted chunks.
pub(super) const ENCODED_PIECE: usize = 1 << 20;

/// Bytes of each sample that a tensor's codec is chosen by.
#[cfg(feature = "compression")]
const SAMPLE_LEN: usize = 64 << 10;

/// What happens to a tensor's bytes.
enum Course {
    /// They are stored as they come.
    Plain,
    /// They are compressed.
    #[cfg(feature = "compression")]
    Compressed {
        element: crate::codec::Element,
        dtype: apr_core::DType,
        coding: once_cell::race::OnceBox<(crate::codec::Coding, i32)>,
        /// By which the coding is chosen where none was learnt before the first piece came.
        samples: once_cell::race::OnceBox<Vec<Vec<u8>>>,
        /// It turned out that nothing is saved: whatever comes is stored as it is.
        given_up: AtomicBool,
    },
}

/// Encodes the pieces of all tensors of a file.
pub(super) struct Encoder {
    /// In the order of the writer's entries.
    courses: Vec<Course>,
    /// Bytes that come for each, and the name each is encrypted under.
    expected: Vec<u64>,
    names: Vec<Box<str>>,
    /// Entries by their position in the layout.
    planned: Vec<usize>,
    #[cfg(feature = "compression")]
    choice: Option<crate::codec::Choice>,
    #[cfg(feature = "compression")]
    free: Spare,
    seal: Sealing,
    /// Pieces to compress, and what is to be encrypted.
    belts: [Belt; 2],
}

impl Encoder {
    pub(super) fn new(options: &WriteOptions) -> Self {
        Self {
            courses: Vec::new(),
            expected: Vec::new(),
            names: Vec::new(),
            planned: Vec::new(),
            #[cfg(feature = "compression")]
            choice: options.compression,
            #[cfg(feature = "compression")]
            free: Spare::default(),
            seal: Sealing::new(options),
            belts: Default::default(),
        }
    }

    /// Takes most of the metadata for a tensor of their own, where they are to be encrypted.
    pub(super) fn hide(&self, metadata: &mut Metadata) -> Option<(TensorInfo, Vec<u8>)> {
        self.seal.hide(metadata)
    }

    /// Bytes of the ENCR block; 0 without encryption.
    pub(super) fn block_len(&self) -> u64 {
        self.seal.block_len()
    }

    /// Whether tensors are encrypted.
    pub(super) fn encrypts(&self) -> bool {
        self.seal.is_on()
    }

    /// Whether sizes are known only at the end.
    pub(super) fn compresses(&self) -> bool {
        self.courses.iter().any(|course| !matches!(course, Course::Plain))
    }

    /// The ENCR block over a front.
    pub(super) fn encr_block(&self, header: &[u8; 32], sections: [&[u8]; 2]) -> Vec<u8> {
        self.seal.block(header, sections)
    }

    /// Learns of the entries what will come of each.
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
            let course = self.course(entry, form.is_some() || plain == 0);
            self.courses.push(course);
        }
    }

    #[cfg(feature = "compression")]
    fn course(&self, entry: &IndexEntry, as_it_is: bool) -> Course {
        if as_it_is || self.choice.is_none() {
            return Course::Plain;
        }
        Course::Compressed {
            element: crate::codec::Element::of(entry.info.dtype),
            dtype: entry.info.dtype,
            coding: once_cell::race::OnceBox::new(),
            samples: once_cell::race::OnceBox::new(),
            given_up: AtomicBool::new(false),
        }
    }

    #[cfg(not(feature = "compression"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    fn course(&self, _entry: &IndexEntry, _as_it_is: bool) -> Course {
        Course::Plain
    }

    /// Bytes that come for an entry.
    pub(super) fn expected(&self, entry: usize) -> u64 {
        self.expected[entry]
    }

    /// Whether an entry is compressed, unless nothing is saved.
    pub(super) fn is_compressed(&self, entry: usize) -> bool {
        !matches!(self.courses[entry], Course::Plain)
    }

    /// Flags of the codec that was chosen for an entry, and the length of its blocks.
    pub(super) fn coding(&self, entry: usize) -> (u32, u64) {
        match &self.courses[entry] {
            #[cfg(feature = "compression")]
            Course::Compressed { coding, .. } => {
                coding.get().map_or((0, ENCODED_PIECE as u64), |(coding, _)| {
                    (coding.to_flags(), coding.block_len() as u64)
                })
            }
            Course::Plain => (0, ENCODED_PIECE as u64),
        }
    }

    /// Spares other threads the work on an entry that is stored as it is.
    pub(super) fn give_up(&self, entry: usize) {
        match &self.courses[entry] {
            #[cfg(feature = "compression")]
            Course::Compressed { given_up, .. } => given_up.store(true, Ordering::Relaxed),
            Course::Plain => {}
        }
    }

    /// Chooses the codec of an entry by samples.
    #[cfg_attr(
        not(feature = "compression"),
        allow(unused_variables, reason = "used with the feature")
    )]
    fn learn_entry(&self, entry: usize, samples: &[&[u8]]) {
        match &self.courses[entry] {
            #[cfg(feature = "compression")]
            Course::Compressed { dtype, coding, .. } => {
                if let Some(choice) = self.choice {
                    coding.get_or_init(|| Box::new(crate::codec::choose(choice, *dtype, samples)));
                }
            }
            Course::Plain => {}
        }
    }

    /// Shows the first piece of an entry that comes without samples, so that the choice does not
    /// depend on which piece is compressed first.
    #[cfg_attr(
        not(feature = "compression"),
        allow(unused_variables, reason = "used with the feature")
    )]
    pub(super) fn show_first(&self, entry: usize, piece: &[u8]) {
        match &self.courses[entry] {
            #[cfg(feature = "compression")]
            Course::Compressed { coding, samples: shown, .. } => {
                if coding.get().is_none() {
                    shown.get_or_init(|| {
                        Box::new(samples(piece).into_iter().map(<[u8]>::to_vec).collect())
                    });
                }
            }
            Course::Plain => {}
        }
    }

    /// Appends the compressed form of a piece of an entry, or nothing where it is stored as it is;
    /// returns the blocks that failed the check.
    #[cfg_attr(
        not(feature = "compression"),
        allow(
            unused_variables,
            clippy::ptr_arg,
            reason = "used, and appended to, with the feature"
        )
    )]
    pub(super) fn compress(&self, entry: usize, piece: &[u8], out: &mut Vec<u8>) -> u64 {
        match &self.courses[entry] {
            Course::Plain => 0,
            #[cfg(feature = "compression")]
            Course::Compressed { element, coding, samples: shown, given_up, .. } => {
                if coding.get().is_none() {
                    match shown.get() {
                        Some(shown) => self.learn_entry(
                            entry,
                            &shown.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                        ),
                        None => self.learn_entry(entry, &samples(piece)),
                    }
                }
                let Some(&(coding, level)) =
                    coding.get().filter(|_| !given_up.load(Ordering::Relaxed))
                else {
                    return 0;
                };
                if coding == crate::codec::Coding::PLAIN {
                    return 0;
                }
                let mut encoder = self.free.take(coding, level, *element);
                let mut mismatches = 0;
                for block in piece.chunks(coding.block_len()) {
                    mismatches +=
                        u64::from(encoder.encode(block, out) == crate::codec::Outcome::Mismatch);
                }
                self.free.put_back((coding, level, *element), encoder);
                mismatches
            }
        }
    }

    /// Appends the encrypted form of bytes of an entry, from a chunk's start on; all chunks are
    /// whole but the tensor's last.
    fn seal(&self, entry: usize, first: u64, to_end: bool, bytes: &[u8], out: &mut Vec<u8>) {
        self.seal.seal(&self.names[entry], first, to_end, bytes, out);
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

    /// Puts work off, or does it where there are no threads.
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

/// Pieces of the beginning, the middle and the end.
#[cfg(feature = "compression")]
fn samples(bytes: &[u8]) -> Vec<&[u8]> {
    if bytes.len() <= 3 * SAMPLE_LEN {
        return alloc::vec![bytes];
    }
    let middle = (bytes.len() / 2 - SAMPLE_LEN / 2) & !(SAMPLE_LEN - 1);
    alloc::vec![
        &bytes[..SAMPLE_LEN],
        &bytes[middle..middle + SAMPLE_LEN],
        &bytes[(bytes.len() - SAMPLE_LEN) & !63..]
    ]
}

/// What an encoder was made for.
#[cfg(feature = "compression")]
type For = (crate::codec::Coding, i32, crate::codec::Element);

/// Encoders to use again: one for each thread that encodes at the same time.
#[cfg(feature = "compression")]
#[derive(Default)]
struct Spare {
    #[cfg(feature = "std")]
    free: std::sync::Mutex<Vec<(For, crate::codec::BlockEncoder)>>,
}

#[cfg(feature = "compression")]
impl Spare {
    fn take(
        &self,
        coding: crate::codec::Coding,
        level: i32,
        element: crate::codec::Element,
    ) -> crate::codec::BlockEncoder {
        #[cfg(feature = "std")]
        if let Ok(mut free) = self.free.lock()
            && let Some(at) = free.iter().position(|(of, _)| *of == (coding, level, element))
        {
            return free.swap_remove(at).1;
        }
        crate::codec::BlockEncoder::new(coding, level, element)
    }

    #[cfg_attr(
        not(feature = "std"),
        allow(clippy::unused_self, clippy::needless_pass_by_value, reason = "kept with std")
    )]
    fn put_back(&self, of: For, encoder: crate::codec::BlockEncoder) {
        /// More encoders than threads are no use.
        #[cfg(feature = "std")]
        const MOST: usize = 16;
        #[cfg(feature = "std")]
        if let Ok(mut free) = self.free.lock()
            && free.len() < MOST
        {
            free.push((of, encoder));
            return;
        }
        drop((of, encoder));
    }
}
