//! LZ4 frames, as joblib writes them: decoded whole, because a block may refer to the one before.

use apr_core::{ByteSource, Error, Result, read_vec};
use lz4_flex::block::decompress_into_with_dict;

/// Maximum distance of back references in a block.
const WINDOW: usize = 1 << 16;

/// Largest block of the format.
const MAX_BLOCK: usize = 4 << 20;

/// Decodes the frames from `start` on, to no more bytes together than the limit, which a setting
/// raises; frames that hold no data are gone past.
///
/// # Errors
/// E002 for a damaged frame, E003 for one with a dictionary, E007 when reading fails, E008 over the
/// limit.
pub(super) fn decode(
    source: &dyn ByteSource,
    (start, end): (u64, u64),
    limit: (u64, &str),
) -> Result<Vec<u8>> {
    let mut decoded = Vec::new();
    let mut position = start;
    while end.saturating_sub(position) >= 8 {
        let head = read_vec(source, position, 8)?;
        match head[..4] {
            [4, 0x22, 0x4d, 0x18] => {
                position = frame(source, (position, end), limit, &mut decoded)?;
            }
            [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
                let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
                position = position.saturating_add(8 + u64::from(len));
            }
            _ => break,
        }
    }
    Ok(decoded)
}

/// Decodes one frame and returns its end offset.
fn frame(
    source: &dyn ByteSource,
    (start, end): (u64, u64),
    (most, setting): (u64, &str),
    decoded: &mut Vec<u8>,
) -> Result<u64> {
    let first = decoded.len();
    let head = read_vec(source, start, end.saturating_sub(start).min(19))?;
    let damaged = || Error::corrupt("an LZ4 frame is damaged").at(start);
    let &flags = head.get(4).ok_or_else(damaged)?;
    if flags & 1 != 0 {
        return Err(Error::version("an LZ4 frame needs a dictionary").at(start));
    }

    let (has_len, has_block_sums) = (flags & 8 != 0, flags & 16 != 0);

    // Magic, two bytes of flags, perhaps the length, and a checksum of the header.
    let mut position = start + 7 + if has_len { 8 } else { 0 };
    loop {
        let size = read_vec(source, position, 4)?;
        let size = u32::from_le_bytes([size[0], size[1], size[2], size[3]]);
        position += 4;
        if size == 0 {
            return Ok(position + if flags & 4 != 0 { 4 } else { 0 });
        }

        let (stored, len) = (size >> 31 == 1, u64::from(size & 0x7fff_ffff));
        if len > MAX_BLOCK as u64 {
            return Err(damaged());
        }

        let block = read_vec(source, position, len)?;
        position += len + if has_block_sums { 4 } else { 0 };
        if stored {
            decoded.extend(block);
        } else {
            let from = decoded.len().saturating_sub(WINDOW).max(first);

            // A byte of LZ4 makes 255 at most.
            let mut output = vec![0; MAX_BLOCK.min(block.len().saturating_mul(256))];
            let written = decompress_into_with_dict(&block, &mut output, &decoded[from..])
                .map_err(|_| damaged())?;
            decoded.extend(&output[..written]);
        }

        if decoded.len() as u64 > most {
            let message = format!(
                "an LZ4 frame decodes to more than {most} bytes; raise the limit with {setting}"
            );
            return Err(Error::memory(message).at(start));
        }
    }
}
