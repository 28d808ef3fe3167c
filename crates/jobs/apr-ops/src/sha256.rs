//! SHA-256 of a file, which hubs publish beside their downloads (QA point 93).

use apr_core::{Phase, Progress};
use apr_registry::{ByteSource, Pipeline, Result};
use sha2::{Digest, Sha256};

use apr_view::chunks::{pieces, take};

/// The digest of all bytes of a source.
///
/// ```
/// use apr_registry::Serial;
///
/// let digest = apr_ops::sha256(b"abc".as_slice(), &Serial, &())?;
/// assert_eq!(digest[..4], [0xba, 0x78, 0x16, 0xbf]);
/// # Ok::<(), apr_registry::Error>(())
/// ```
///
/// # Errors
/// E007 when reading fails.
pub fn sha256<P: Pipeline>(
    source: &(impl ByteSource + ?Sized),
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<[u8; 32]> {
    /// Bytes read at a time.
    const READ_LEN: usize = 1 << 20;
    let pieces: Vec<_> = pieces(source.len(), READ_LEN).collect();
    let mut hash = Sha256::new();
    progress.begin(Phase::Hashing, source.len());
    let produce = |at: usize, bytes: &mut Vec<u8>| {
        source.read_at(pieces[at].offset, take(bytes, pieces[at].len))
    };
    pipeline.run(pieces.len(), produce, |at, bytes| {
        hash.update(&bytes[..pieces[at].len]);
        progress.advance(pieces[at].len as u64);
        Ok(())
    })?;
    Ok(hash.finalize().into())
}
