//! Sound files that are right, or nearly so, and that the decoders do not take as they are: their
//! headers are written anew.
//!
//! - WAV of more than 32 bits of length, RF64 (EBU Tech 3306): the lengths are in a chunk `ds64`.
//! - WAV with G.711 in the extensible form: the format is the first two bytes of a GUID.
//! - FLAC whose largest block is not as long as the stream information says (RFC 9639, section
//!   8.2): libsndfile goes by the frames.

/// Format tags of WAV.
const EXTENSIBLE: u16 = 0xfffe;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
/// Bytes of the format chunk of G.711, and of the extensible one.
const PLAIN_LEN: usize = 18;
const EXTENSIBLE_LEN: usize = 40;
/// Offset of the block lengths in a FLAC file, after `fLaC` and the header of the stream
/// information, which comes first. The lengths of frames follow them.
const BLOCK_LENGTHS: usize = 8;
const FRAME_LENGTHS: usize = 12;

/// Repairs the header of a file, if it is a WAVE (RIFF or RF64) or FLAC file.
pub(super) fn repair(bytes: &mut [u8]) {
    if bytes.starts_with(b"RF64") || bytes.starts_with(b"RIFF") {
        repair_wave(bytes);
    } else if bytes.starts_with(b"fLaC") {
        repair_flac(bytes);
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = at.checked_add(value.len()).and_then(|end| bytes.get_mut(at..end)) {
        place.copy_from_slice(value);
    }
}

/// Returns the offset of a chunk's contents.
fn chunk(bytes: &[u8], name: &[u8; 4]) -> Option<usize> {
    let mut at = 12;
    loop {
        let len = usize::try_from(u32_at(bytes, at + 4)?).ok()?;
        if bytes.get(at..at + 4)? == name {
            return Some(at + 8);
        }
        at = at.checked_add(8)?.checked_add(len)?.checked_add(len % 2)?;
    }
}

fn repair_wave(bytes: &mut [u8]) {
    if bytes.starts_with(b"RF64") {
        put(bytes, 0, b"RIFF");
        let len = u32::try_from(bytes.len().saturating_sub(8)).unwrap_or(u32::MAX);
        put(bytes, 4, &len.to_le_bytes());
        let stated = chunk(bytes, b"ds64").and_then(|at| {
            let len: [u8; 8] = bytes.get(at + 8..at + 16)?.try_into().ok()?;
            u32::try_from(u64::from_le_bytes(len)).ok()
        });
        if let Some((len, data)) = stated.zip(chunk(bytes, b"data")) {
            put(bytes, data - 4, &len.to_le_bytes());
        }
    }

    let Some(format) = chunk(bytes, b"fmt ") else { return };
    let is_extensible = u16_at(bytes, format) == Some(EXTENSIBLE)
        && u32_at(bytes, format - 4) == u32::try_from(EXTENSIBLE_LEN).ok();
    let tag = u16_at(bytes, format + 24).filter(|tag| [A_LAW, MU_LAW].contains(tag));
    if let Some(tag) = tag.filter(|_| is_extensible) {
        // What was the rest of the chunk becomes one that nobody reads.
        put(bytes, format, &tag.to_le_bytes());
        put(bytes, format - 4, &18_u32.to_le_bytes());
        put(bytes, format + 16, &[0, 0]);
        put(bytes, format + PLAIN_LEN, b"JUNK\x0e\0\0\0");
    }
}

/// Sets the block lengths by the first frame. If frames are numbered, all but the last have its
/// length. If they state their sample, they may have any length.
fn repair_flac(bytes: &mut [u8]) {
    let Some(frame) = first_frame(bytes) else { return };
    let Some((len, by_number)) = block_len(bytes, frame) else { return };
    let at = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let Some((least, most)) = at(BLOCK_LENGTHS).zip(at(BLOCK_LENGTHS + 2)) else { return };
    if len <= most && by_number == (least == most) {
        return;
    }
    let (least, most) = if by_number { (len, len) } else { (16, u16::MAX) };
    put(bytes, BLOCK_LENGTHS, &least.to_be_bytes());
    put(bytes, BLOCK_LENGTHS + 2, &most.to_be_bytes());
    put(bytes, FRAME_LENGTHS, &[0; 6]);
}

/// Returns the end of the metadata blocks.
fn first_frame(bytes: &[u8]) -> Option<usize> {
    let mut at = 4_usize;
    loop {
        let header = bytes.get(at..at.checked_add(4)?)?;
        let len =
            usize::from(header[1]) << 16 | usize::from(header[2]) << 8 | usize::from(header[3]);
        at = at.checked_add(4 + len)?;
        if header[0] & 0x80 != 0 {
            return Some(at);
        }
    }
}

/// The length of a frame's block, and whether frames are numbered (RFC 9639, section 9.1).
fn block_len(bytes: &[u8], frame: usize) -> Option<(u16, bool)> {
    let header = bytes.get(frame..)?;
    let by_number = match header.get(..2)? {
        [0xff, 0xf8] => true,
        [0xff, 0xf9] => false,
        _ => return None,
    };
    // The number of the frame or sample is coded as UTF-8 codes characters.
    let coded = usize::try_from(header.get(4)?.leading_ones()).ok()?.max(1);
    let uncommon = header.get(4 + coded..)?;
    let len = match u16::from(header.get(2)? >> 4) {
        1 => 192,
        code @ 2..=5 => 144 << code,
        6 => u16::from(*uncommon.first()?) + 1,
        7 => u16::from_be_bytes(uncommon.get(..2)?.try_into().ok()?).saturating_add(1),
        code @ 8..=15 => 1 << code,
        _ => return None,
    };
    Some((len, by_number))
}
