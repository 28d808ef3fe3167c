//! A build without signatures: nobody can make a key or a licence. Those of a file are kept as they
//! are, or left out where they no longer hold.

use alloc::vec::Vec;

use apr_core::Result;
use apr_core::digest::Digest;

use super::manifest::Manifest;
use super::reader::Apr2Reader;
use super::seals::Seals;

/// A private key: none.
#[derive(Debug, Clone)]
pub enum SigningKey {}

/// A licence: none.
#[derive(Debug, Clone)]
pub enum Licence {}

pub(super) fn signatures_len(_count: usize) -> u64 {
    0
}

#[allow(clippy::unnecessary_wraps, reason = "as with signatures")]
pub(super) fn sign_block(_signers: &[SigningKey], _digest: &Digest) -> Result<Vec<u8>> {
    Ok(Vec::new())
}

impl Manifest {
    #[allow(clippy::unnecessary_wraps, clippy::unused_self, reason = "as with signatures")]
    pub(super) fn sign(&mut self, _signers: &[SigningKey]) -> Result<usize> {
        Ok(0)
    }
}

#[allow(clippy::unnecessary_wraps, reason = "as with signatures")]
pub(super) fn revised_seals(
    reader: &Apr2Reader,
    _signers: &[SigningKey],
    _issued: Option<&(Licence, SigningKey)>,
    _digest: Option<Digest>,
    keeps: bool,
) -> Result<Seals> {
    let old = [reader.signatures(), reader.licence()];
    let blocks = old.into_iter().flatten().filter(|_| keeps).flatten().copied().collect();
    let signed = usize::from(reader.signatures().is_some());
    let signatures = if keeps { signed } else { 0 };
    let dropped_licence = !keeps && reader.licence().is_some();
    Ok(Seals { blocks, signatures, dropped_signatures: signed - signatures, dropped_licence })
}
