//! The sorted table that an index of a checkpoint is: keys and values in blocks.

use apr_core::protobuf::decode_varint;
use apr_core::{ByteSource, Crc32c, Error, Limits, Result, read_vec};

use crate::snappy;

/// Bytes of the footer: two places of blocks, padding, and the mark.
const FOOTER: u64 = 48;

/// Last bytes of a table.
pub(crate) const MARK: [u8; 8] = 0xdb47_7524_8b80_fb57_u64.to_le_bytes();

/// Length of the trailer after each block: the compression type and the checksum.
const TRAILER: u64 = 5;

/// A key with its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// All pairs, in order of their keys.
///
/// # Errors
/// E001 for what is no table, E002 for a damaged one, E003 for a way of packing that is not known,
/// E004 for a wrong checksum, E007 when reading fails, E008 over the limit.
pub(crate) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<Pair>> {
    let footer = source.len().checked_sub(FOOTER);
    let footer = footer.ok_or_else(|| Error::format("not the index of a checkpoint"))?;
    let bytes = read_vec(source, footer, FOOTER)?;
    if bytes[40..] != MARK {
        let message = "the file does not end as an index of a checkpoint does";
        return Err(Error::corrupt(message).at(footer));
    }
    let mut rest = &bytes[..40];
    let _metaindex = handle(&mut rest, footer)?;
    let index = handle(&mut rest, footer)?;

    let (mut pairs, mut kept, mut last_end) = (Vec::new(), 0_u64, 0);
    for (_, value) in block(source, index, limits, &mut kept)? {
        let place = handle(&mut &value[..], index.0)?;
        // Blocks lie one after the other: those that overlap would be read again and again.
        if place.0 < last_end {
            return Err(Error::corrupt("blocks of a table overlap").at(place.0));
        }
        last_end = place.0.saturating_add(place.1);
        pairs.extend(block(source, place, limits, &mut kept)?);
    }
    Ok(pairs)
}

/// The place of a block: offset and length.
fn handle(bytes: &mut &[u8], at: u64) -> Result<(u64, u64)> {
    let damaged = || Error::corrupt("the place of a block is damaged").at(at);
    Ok((varint(bytes).ok_or_else(damaged)?, varint(bytes).ok_or_else(damaged)?))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let (value, used) = decode_varint(bytes)?;
    *bytes = bytes.get(usize::try_from(used).ok()?..)?;
    Some(value)
}

/// Reads the pairs of a block. Each states the number of key bytes shared with the previous key.
fn block(
    source: &dyn ByteSource,
    (offset, len): (u64, u64),
    limits: &Limits,
    kept: &mut u64,
) -> Result<Vec<Pair>> {
    limits.check_index(len)?;
    let whole = len.saturating_add(TRAILER);
    let mut bytes = read_vec(source, offset, whole)?;
    let trailer = bytes.split_off(bytes.len() - 5);
    let stored = u32::from_le_bytes([trailer[1], trailer[2], trailer[3], trailer[4]]);
    let mut sum = Crc32c::new();
    sum.update(&bytes);
    sum.update(&trailer[..1]);
    if sum.masked() != stored {
        return Err(Error::checksum("the checksum of a block does not match its bytes").at(offset));
    }
    let bytes = match trailer[0] {
        0 => bytes,
        1 => snappy::decode(&bytes).map_err(|error| error.at(offset))?,
        kind => {
            let message = format!("a block is compressed by a way that is not known ({kind})");
            return Err(Error::version(message).at(offset));
        }
    };

    let damaged = || Error::corrupt("a block of a table is damaged").at(offset);
    let (rest, count) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
    let restarts = usize::try_from(u32::from_le_bytes(*count)).unwrap_or(usize::MAX);
    let end = restarts.checked_mul(4).and_then(|len| rest.len().checked_sub(len));
    let mut rest = &rest[..end.ok_or_else(damaged)?];
    let mut pairs: Vec<Pair> = Vec::new();
    while !rest.is_empty() {
        let mut number = || varint(&mut rest).and_then(|value| usize::try_from(value).ok());
        let lens = (number(), number(), number());
        let (Some(shared), Some(own), Some(value)) = lens else { return Err(damaged()) };
        let before = pairs.last().map_or(&[][..], |(key, _)| key);
        let shared = before.get(..shared).ok_or_else(damaged)?;
        let own_key = rest.get(..own).ok_or_else(damaged)?;
        let end = own.checked_add(value).ok_or_else(damaged)?;
        let value = rest.get(own..end).ok_or_else(damaged)?;
        // A long key that all others share would be kept once for each.
        *kept += (shared.len() + own + value.len() + size_of::<Pair>()) as u64;
        limits.check_index(*kept)?;
        pairs.push(([shared, own_key].concat(), value.to_vec()));
        rest = &rest[end..];
    }
    Ok(pairs)
}
