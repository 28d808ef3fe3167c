//! Zstandard streams, decoded from front to back.

use apr_core::{ByteSource, Error, Result, read_vec};
use structured_zstd::decoding::errors::FrameDecoderError;
use structured_zstd::decoding::{ContentChecksum, FrameDecoder};

/// Maximum length of the window that a stream keeps in memory, in bytes.
const MAX_WINDOW: u64 = 32 << 20;

/// Bytes that are decoded at a time.
const PIECE: usize = 1 << 17;

/// Number of input bytes that hold a block with all its framing.
pub(crate) const INPUT: usize = (1 << 17) + 64;

/// A stream that is being decoded.
pub(crate) struct Stream(Box<FrameDecoder>);

impl Stream {
    pub(crate) fn new() -> Result<Self> {
        let mut decoder = Box::new(FrameDecoder::new());
        decoder.set_max_window_size(MAX_WINDOW).map_err(|error| refused(&error))?;
        decoder.set_content_checksum(ContentChecksum::Verify);
        Ok(Self(decoder))
    }

    /// Decodes some of `input` into `out`, and returns the number of bytes used of both.
    ///
    /// Both are 0 if `input` has no whole block and must be longer, or at the end of the stream.
    pub(crate) fn step(&mut self, input: &[u8], out: &mut [u8]) -> Result<(usize, usize)> {
        self.0.decode_from_to(input, out).map_err(|error| refused(&error))
    }

    /// Returns `true` if the whole stream has been decoded and returned.
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
        FrameDecoderError::ChecksumMismatch { .. } => {
            Error::checksum("the checksum of a Zstandard stream does not match its content")
        }
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

/// Decodes the frames in a range of a source, one after the other, to no more than `max` bytes
/// together. Frames that hold no data are gone past.
///
/// # Errors
/// E002 for a damaged frame, E003 for one with a large window, E007 when reading fails, E008 for
/// more than `max` bytes.
pub fn decode_frames(
    source: &dyn ByteSource,
    (start, end): (u64, u64),
    max: u64,
) -> Result<Vec<u8>> {
    let (mut decoded, mut piece) = (Vec::new(), vec![0; PIECE]);
    let mut position = start;
    while end.saturating_sub(position) >= 8 {
        let head = read_vec(source, position, 8)?;
        match head[..4] {
            [0x28, 0xb5, 0x2f, 0xfd] => {}
            [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
                let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
                position = position.saturating_add(8 + u64::from(len));
                continue;
            }
            _ => break,
        }

        // A stream that has not begun counts as finished.
        let mut stream = Stream::new()?;
        loop {
            let len = end.saturating_sub(position).min(2 * INPUT as u64);
            let input = read_vec(source, position, len)?;
            let (read, written) = stream.step(&input, &mut piece)?;
            position += read as u64;
            decoded.extend_from_slice(&piece[..written]);
            if decoded.len() as u64 > max {
                let message = format!("a Zstandard stream decodes to more than {max} bytes");
                return Err(Error::memory(message).at(start));
            }
            if read == 0 && written == 0 {
                if stream.is_finished() {
                    break;
                }
                return Err(Error::corrupt("a Zstandard stream is cut off").at(position));
            }
        }
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use structured_zstd::encoding::{CompressionLevel, compress_slice_to_vec};

    use super::*;

    #[test]
    fn frames_one_after_the_other_are_one_content() {
        let text = b"some text, some text, some text".repeat(5000);
        let frame = compress_slice_to_vec(&text, CompressionLevel::Fastest);
        let skipped = [&b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..], &frame].concat();
        let file = [&frame[..], &skipped].concat();
        let len = file.len() as u64;
        let decoded = decode_frames(&file, (0, len), 1 << 20).expect("sound");
        assert_eq!(decoded, [&text[..], &text].concat());
        assert!(decode_frames(&file, (0, len), 1000).is_err());
        for cut in 9..frame.len() {
            assert!(decode_frames(&file, (0, cut as u64), 1 << 20).is_err(), "cut at {cut}");
        }
    }
}
