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

/// An encoder, and the coding, level and element it was made for.
struct Encoder {
    of: (Coding, i32, Element),
    blocks: BlockEncoder,
}

/// Compression state of one tensor.
pub(super) struct Compressed {
    dtype: DType,
    /// The coding, and the level for its encoder.
    coding: OnceBox<(Coding, i32)>,
    /// Samples for choosing the coding, if it was not learnt before the first piece arrived.
    samples: OnceBox<Vec<Vec<u8>>>,
    /// Set when compression saves nothing; the tensor is then stored uncompressed.
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

    /// Appends the compressed form of a piece of a tensor, and returns the number of blocks that
    /// failed the check. Appends nothing if the tensor is stored uncompressed.
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

    /// Stops compressing the tensor, since it is stored uncompressed.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Keeps samples of the first piece if the coding was not chosen yet. The choice then does not
    /// depend on which piece is compressed first.
    pub(super) fn show_first(&self, piece: &[u8]) {
        if self.coding.get().is_none() {
            self.samples
                .get_or_init(|| Box::new(samples(piece).into_iter().map(<[u8]>::to_vec).collect()));
        }
    }
}

/// Returns pieces of the beginning, the middle and the end.
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

    /// Returns `true` if the decoder was made for tensors with these flags and this dtype.
    pub(super) fn suits(&self, flags: u32, dtype: DType) -> bool {
        self.of == (flags, dtype)
    }

    /// Fills `target` with the decoded bytes of a block. Raw blocks are not compressed.
    pub(super) fn decode(&mut self, body: &[u8], raw: bool, target: &mut [u8]) -> Result<()> {
        self.blocks.decode(body, raw, target)
    }
}
