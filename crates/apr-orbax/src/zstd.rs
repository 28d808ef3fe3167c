//! Zstandard streams, decoded from front to back.

use apr_core::{Error, Result};
use structured_zstd::decoding::FrameDecoder;
use structured_zstd::decoding::errors::FrameDecoderError;

/// Bytes of the longest window: what a stream keeps in memory.
const MAX_WINDOW: u64 = 32 << 20;

/// Bytes that are decoded at a time.
const PIECE: usize = 1 << 17;

/// Bytes that hold a block with all that may stand around it.
pub(crate) const INPUT: usize = (1 << 17) + 64;

/// A stream that is being decoded.
pub(crate) struct Stream(Box<FrameDecoder>);

impl Stream {
    pub(crate) fn new() -> Result<Self> {
        let mut decoder = Box::new(FrameDecoder::new());
        decoder.set_max_window_size(MAX_WINDOW).map_err(|error| refused(&error))?;
        Ok(Self(decoder))
    }

    /// Decodes some of `input` into `out`: how much of both was used. Neither where `input` has no
    /// whole block and is to be longer, or at the end of the stream.
    pub(crate) fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize)> {
        self.0.decode_from_to(input, out).map_err(|error| refused(&error))
    }

    /// Whether all of it has been decoded and handed out.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished() && self.0.can_collect() == 0
    }
}

fn refused(error: &FrameDecoderError) -> Error {
    match error {
        FrameDecoderError::WindowSizeTooBig { .. } => Error::version(format!(
            "a Zstandard stream with a window of more than {} MiB",
            MAX_WINDOW >> 20
        )),
        _ => Error::corrupt("a Zstandard stream is damaged"),
    }
}

/// Decodes a whole stream, of no more than `max` bytes.
pub(crate) fn decode(mut input: &[u8], max: u64) -> Result<Vec<u8>> {
    let mut stream = Stream::new()?;
    let (mut decoded, mut piece) = (Vec::new(), vec![0; PIECE]);
    loop {
        let (read, written) = stream.step(input, &mut piece)?;
        input = &input[read..];
        decoded.extend_from_slice(&piece[..written]);
        if decoded.len() as u64 > max {
            return Err(Error::memory(format!("a node decodes to more than {max} bytes")));
        }
        if read == 0 && written == 0 {
            break;
        }
    }
    if stream.is_finished() && input.is_empty() {
        Ok(decoded)
    } else {
        Err(Error::corrupt("a Zstandard stream is cut off, or followed by something"))
    }
}
