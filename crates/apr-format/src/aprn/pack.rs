//! Packing and unpacking the payload (`docs/format/older.md`, B).

use alloc::borrow::Cow;
use alloc::format;
use alloc::vec::Vec;

use apr_core::{Error, Result};

use super::Compression;

/// Unpacked bytes that any file may ask for, however small it is.
const FREE: u64 = 64 << 20;
/// Unpacked bytes that each stored one may ask for beyond [`FREE`].
const MAX_RATIO: u64 = 1024;

/// Packs a payload.
///
/// # Errors
/// E003 in a build without compression, E008 for an LZ4 payload of 4 GiB.
pub(super) fn pack(payload: &[u8], compression: Compression) -> Result<Cow<'_, [u8]>> {
    match compression {
        Compression::None => Ok(Cow::Borrowed(payload)),
        _ => codecs::pack(payload, compression).map(Cow::Owned),
    }
}

/// Unpacks a payload to the `len` bytes that the header states.
///
/// # Errors
/// E002 when the bytes don't decode to exactly that many, E003 in a build without compression, E008
/// when so many are not justified by the size of the file.
pub(super) fn unpack(stored: Vec<u8>, compression: Compression, len: u32) -> Result<Vec<u8>> {
    let allowed = FREE + MAX_RATIO * stored.len() as u64;
    if compression != Compression::None && u64::from(len) > allowed {
        let message =
            format!("{} bytes are said to unpack to {len}; {allowed} are allowed", stored.len());
        return Err(Error::memory(message).at(16));
    }

    let payload = match compression {
        Compression::None => stored,
        _ => codecs::unpack(&stored, compression, len as usize)?,
    };
    if payload.len() as u64 != u64::from(len) {
        let message = format!("the payload has {} bytes, but the header says {len}", payload.len());
        return Err(Error::corrupt(message).at(16));
    }

    Ok(payload)
}

#[cfg(feature = "compression")]
mod codecs {
    use alloc::format;
    use alloc::vec;
    use alloc::vec::Vec;

    use apr_core::{Error, Result};
    use structured_zstd::decoding::{
        FrameDecoder, find_frame_compressed_size, frame_decompressed_bound,
    };
    #[cfg(feature = "zstd-encoder")]
    use structured_zstd::encoding::{CompressionLevel, compress_slice_to_vec};

    use crate::aprn::Compression;

    /// An LZ4 block grows to this many times its length at most: a byte of match length adds 255.
    const LZ4_RATIO: usize = 255;

    pub(super) fn pack(payload: &[u8], compression: Compression) -> Result<Vec<u8>> {
        match compression {
            Compression::Lz4 => {
                u32::try_from(payload.len())
                    .map_err(|_| Error::memory("LZ4 payloads end at 4 GiB"))?;
                Ok(lz4_flex::block::compress_prepend_size(payload))
            }
            Compression::ZstdMax => zstd(payload, 19),
            Compression::Zstd | Compression::None => zstd(payload, 3),
        }
    }

    #[cfg(not(feature = "zstd-encoder"))]
    fn zstd(_payload: &[u8], _level: i32) -> Result<Vec<u8>> {
        Err(Error::version("this build reads Zstandard, but does not write it"))
    }

    #[cfg(feature = "zstd-encoder")]
    fn zstd(payload: &[u8], level: i32) -> Result<Vec<u8>> {
        let packed = compress_slice_to_vec(payload, CompressionLevel::from_level(level));
        // An encoder's mistake must not cost a model.
        match unzstd(&packed, payload.len()) {
            Ok(unpacked) if unpacked == payload => Ok(packed),
            _ => Err(Error::corrupt("the packed payload does not unpack to what it was")),
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
                "the LZ4 payload says {stated} bytes, the header {len}"
            ))
            .at(16));
        }

        if len > LZ4_RATIO.saturating_mul(block.len()) {
            return Err(
                Error::corrupt(format!("{} bytes of LZ4 can't hold {len}", block.len())).at(16)
            );
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
            return Err(
                Error::corrupt(format!("the Zstandard payload can't hold {len} bytes")).at(16)
            );
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
        let written =
            decoder.decode_all(stored, &mut payload).map_err(|error| undecodable(&error))?;
        payload.truncate(written);
        Ok(payload)
    }
}

#[cfg(not(feature = "compression"))]
mod codecs {
    use alloc::format;
    use alloc::vec::Vec;

    use apr_core::{Error, Result};

    use crate::aprn::Compression;

    pub(super) fn pack(_payload: &[u8], compression: Compression) -> Result<Vec<u8>> {
        Err(absent(compression))
    }

    pub(super) fn unpack(_stored: &[u8], compression: Compression, _len: usize) -> Result<Vec<u8>> {
        Err(absent(compression))
    }

    fn absent(compression: Compression) -> Error {
        Error::version(format!("this build has no codec for {} payloads", compression.name()))
            .at(20)
    }
}
