//! LZ4 and Zstandard payloads.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use apr_core::{Error, Result};
use structured_zstd::decoding::{
    FrameDecoder, find_frame_compressed_size, frame_decompressed_bound,
};

use crate::aprn::Compression;
use crate::codec::zstd;

/// An LZ4 block grows to this many times its length at most: a byte of match length adds 255.
const LZ4_RATIO: usize = 255;

pub(super) fn pack(payload: &[u8], compression: Compression) -> Result<Vec<u8>> {
    match compression {
        Compression::Lz4 => {
            u32::try_from(payload.len()).map_err(|_| Error::memory("LZ4 payloads end at 4 GiB"))?;
            Ok(lz4_flex::block::compress_prepend_size(payload))
        }
        Compression::ZstdMax => zstd(payload, 19),
        Compression::Zstd | Compression::None => zstd(payload, 3),
    }
}

fn zstd(payload: &[u8], level: i32) -> Result<Vec<u8>> {
    let packed = zstd::encode(payload, level)
        .ok_or_else(|| Error::version("this build reads Zstandard, but does not write it"))?;
    // An encoder's mistake must not cost a model.
    match unzstd(&packed, payload.len()) {
        Ok(unpacked) if unpacked == payload => Ok(packed),
        _ => Err(Error::corrupt("the packed payload does not unpack to the original")),
    }
}

pub(super) fn unpack(stored: &[u8], compression: Compression, len: usize) -> Result<Vec<u8>> {
    match compression {
        Compression::Lz4 => unlz4(stored, len),
        _ => unzstd(stored, len),
    }
}

fn unlz4(stored: &[u8], len: usize) -> Result<Vec<u8>> {
    let (stated, block) = stored
        .split_first_chunk()
        .ok_or_else(|| Error::corrupt("the LZ4 payload lacks its length"))?;
    let stated = u32::from_le_bytes(*stated) as usize;
    if stated != len {
        return Err(Error::corrupt(format!(
            "the LZ4 payload states {stated} bytes, the header {len}"
        ))
        .at(16));
    }

    if len > LZ4_RATIO.saturating_mul(block.len()) {
        return Err(Error::corrupt(format!("{} bytes of LZ4 can't hold {len}", block.len())).at(16));
    }

    let mut payload = vec![0; len];
    let written = lz4_flex::block::decompress_into(block, &mut payload)
        .map_err(|error| Error::corrupt(format!("the LZ4 payload does not decode: {error}")))?;
    payload.truncate(written);
    Ok(payload)
}

fn unzstd(stored: &[u8], len: usize) -> Result<Vec<u8>> {
    let undecodable = |error: &dyn core::fmt::Display| {
        Error::corrupt(format!("the Zstandard payload does not decode: {error}"))
    };
    let bound = frame_decompressed_bound(stored)
        .map_err(|_| undecodable(&"its blocks are cut off or damaged"))?;
    if (len as u64) > bound {
        return Err(Error::corrupt(format!("the Zstandard payload can't hold {len} bytes")).at(16));
    }

    let frame =
        find_frame_compressed_size(stored).map_err(|_| undecodable(&"its frame is cut off"))?;
    if frame != stored.len() {
        return Err(Error::corrupt(format!(
            "{} bytes follow the Zstandard frame",
            stored.len() - frame
        )));
    }

    let mut payload = vec![0; len];
    let mut decoder = FrameDecoder::new();
    let written = decoder.decode_all(stored, &mut payload).map_err(|error| undecodable(&error))?;
    payload.truncate(written);
    Ok(payload)
}
