//! Compression as the container uses it: a coding for each tensor, chosen by samples, and blocks.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use apr_core::{DType, Error, Result};
use once_cell::race::OnceBox;

use super::pool::Pool;
pub(super) use crate::codec::Choice;
use crate::codec::{BlockDecoder, BlockEncoder, Coding, Element, Outcome, choose};

/// Bytes of each sample that a tensor's codec is chosen by.
const SAMPLE_LEN: usize = 64 << 10;

/// Compression of the tensors of one file.
pub(super) struct Compression {
    choice: Choice,
    encoders: Pool<Encoder>,
}

/// An encoder, and what it was made for.
struct Encoder {
    of: (Coding, i32, Element),
    blocks: BlockEncoder,
}

/// How one tensor is compressed.
pub(super) struct Compressed {
    dtype: DType,
    /// The coding, and the level for its encoder.
    coding: OnceBox<(Coding, i32)>,
    /// By which the coding is chosen where none was learnt before the first piece came.
    samples: OnceBox<Vec<Vec<u8>>>,
    /// It turned out that nothing is saved: whatever comes is stored as it is.
    given_up: AtomicBool,
}

impl Compression {
    pub(super) fn new(choice: Choice) -> Self {
        Self { choice, encoders: Pool::default() }
    }

    /// A tensor whose coding is yet to be chosen.
    #[allow(clippy::unused_self, reason = "only where there is compression, a tensor has one")]
    pub(super) fn start(&self, dtype: DType) -> Compressed {
        Compressed {
            dtype,
            coding: OnceBox::new(),
            samples: OnceBox::new(),
            given_up: AtomicBool::new(false),
        }
    }

    /// Chooses the codec of a tensor by samples.
    pub(super) fn learn(&self, tensor: &Compressed, samples: &[&[u8]]) {
        tensor.coding.get_or_init(|| Box::new(choose(self.choice, tensor.dtype, samples)));
    }

    /// Appends the compressed form of a piece of a tensor, or nothing where it is stored as it is;
    /// returns the blocks that failed the check.
    pub(super) fn compress(&self, tensor: &Compressed, piece: &[u8], out: &mut Vec<u8>) -> u64 {
        if tensor.coding.get().is_none() {
            match tensor.samples.get() {
                Some(shown) => {
                    self.learn(tensor, &shown.iter().map(Vec::as_slice).collect::<Vec<_>>());
                }
                None => self.learn(tensor, &samples(piece)),
            }
        }

        let chosen = tensor.coding.get().filter(|_| !tensor.given_up.load(Ordering::Relaxed));
        let Some(&(coding, level)) = chosen.filter(|(coding, _)| *coding != Coding::PLAIN) else {
            return 0;
        };
        let of = (coding, level, Element::of(tensor.dtype));
        let mut encoder = self
            .encoders
            .take(|encoder| encoder.of == of)
            .unwrap_or_else(|| Encoder { of, blocks: BlockEncoder::new(coding, level, of.2) });
        let mut mismatches = 0;
        for block in piece.chunks(coding.block_len()) {
            mismatches += u64::from(encoder.blocks.encode(block, out) == Outcome::Mismatch);
        }
        self.encoders.put_back(encoder);
        mismatches
    }
}

impl Compressed {
    /// Flags of the codec that was chosen, and the length of its blocks; `None` before that.
    pub(super) fn coding(&self) -> Option<(u32, u64)> {
        self.coding.get().map(|(coding, _)| (coding.to_flags(), coding.block_len() as u64))
    }

    /// Spares other threads the work, since the tensor is stored as it is.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Shows the first piece where no samples came, so that the choice does not depend on which
    /// piece is compressed first.
    pub(super) fn show_first(&self, piece: &[u8]) {
        if self.coding.get().is_none() {
            self.samples
                .get_or_init(|| Box::new(samples(piece).into_iter().map(<[u8]>::to_vec).collect()));
        }
    }
}

/// Pieces of the beginning, the middle and the end.
fn samples(bytes: &[u8]) -> Vec<&[u8]> {
    if bytes.len() <= 3 * SAMPLE_LEN {
        return vec![bytes];
    }
    let middle = (bytes.len() / 2 - SAMPLE_LEN / 2) & !(SAMPLE_LEN - 1);
    vec![
        &bytes[..SAMPLE_LEN],
        &bytes[middle..middle + SAMPLE_LEN],
        &bytes[(bytes.len() - SAMPLE_LEN) & !63..],
    ]
}

/// Decodes the blocks of tensors of one coding and dtype.
pub(super) struct Decoder {
    of: (u32, DType),
    blocks: BlockDecoder,
}

impl Decoder {
    /// A decoder for tensors with these flags in the index.
    ///
    /// # Errors
    /// E003 for a codec that is not supported.
    pub(super) fn new(flags: u32, dtype: DType) -> Result<Self> {
        let coding = Coding::from_flags(flags)
            .ok_or_else(|| Error::version("the codec is not supported"))?;
        let blocks = BlockDecoder::new(coding, Element::of(dtype));
        Ok(Self { of: (flags, dtype), blocks })
    }

    /// Whether it was made for such tensors.
    pub(super) fn suits(&self, flags: u32, dtype: DType) -> bool {
        self.of == (flags, dtype)
    }

    /// Fills `target` with what a block's bytes stand for; raw ones are not compressed.
    pub(super) fn decode(&mut self, body: &[u8], raw: bool, target: &mut [u8]) -> Result<()> {
        self.blocks.decode(body, raw, target)
    }
}
