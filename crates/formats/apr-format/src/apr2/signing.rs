//! Signatures and licences as the container uses them.

use alloc::vec::Vec;

use apr_core::digest::Digest;
use apr_core::{Code, Error, Result};

use super::manifest::{Manifest, hash};
use super::reader::Apr2Reader;
use super::seals::Seals;
pub(super) use crate::crypto::{Licence, SigningKey};
use crate::crypto::{LicenceBlock, SignBlock};

/// Returns the length in bytes of a SIGN block with `count` signatures.
pub(super) fn signatures_len(count: usize) -> u64 {
    SignBlock::encoded_len(count)
}

/// The SIGN block of these signers over a file's digest.
///
/// # Errors
/// E008 for more signatures than a block holds.
pub(super) fn sign_block(signers: &[SigningKey], digest: &Digest) -> Result<Vec<u8>> {
    let mut block = SignBlock::default();
    signers.iter().try_for_each(|key| block.sign(key, digest))?;
    Ok(block.encode())
}

impl Manifest {
    /// Adds a signature by each of `signers` to the signatures that are valid for the current
    /// manifest. Drops the others, and returns their number.
    ///
    /// # Errors
    /// E002 when the SIGN block can't be read; E006 when some
    /// [`ShardEntry::signed_digest`](super::ShardEntry::signed_digest) is missing; E008 for more
    /// signatures than a block holds.
    pub fn sign(&mut self, signers: &[SigningKey]) -> Result<usize> {
        if let Some(entry) = self.shards.iter().find(|entry| entry.signed_digest.is_none()) {
            let message = "no digest of the shard for a signature to cover";
            return Err(Error::new(Code::Signature, message).in_file(&entry.file));
        }

        let digest = hash([&self.encode_unsigned(), &[]]);
        let mut block =
            self.signatures.as_deref().map(SignBlock::decode).transpose()?.unwrap_or_default();
        let dropped = block.retain_valid(&digest);
        signers.iter().try_for_each(|key| block.sign(key, &digest))?;
        self.signatures = Some(block.encode());
        Ok(dropped)
    }
}

/// Returns the SIGN and LICN blocks of a changed file. `digest` is the digest that signatures
/// cover. `keeps` states whether the file's own signatures are still valid.
///
/// # Errors
/// E002 when the SIGN block can't be read; E006 when there is no digest to sign; E008 for more
/// signatures than a block holds.
pub(super) fn revised_seals(
    reader: &Apr2Reader,
    signers: &[SigningKey],
    issued: Option<&(Licence, SigningKey)>,
    digest: Option<Digest>,
    keeps: bool,
) -> Result<Seals> {
    let old_signatures =
        reader.signatures().map(SignBlock::decode).transpose()?.unwrap_or_default();
    let old: Vec<_> =
        old_signatures.signatures().iter().map(|signature| signature.public).collect();
    let mut signatures = if keeps { old_signatures } else { SignBlock::default() };
    let mut licence = if keeps { reader.licence().map(<[u8]>::to_vec) } else { None };
    let no_digests =
        || Error::new(Code::Signature, "the file has no digests that a signature could cover");

    let issuer = issued.map(|(_, key)| key);
    for key in signers.iter().chain(issuer) {
        signatures.sign(key, &digest.ok_or_else(no_digests)?)?;
    }

    if let Some((terms, key)) = issued {
        licence = Some(LicenceBlock::issue(terms, key, &digest.ok_or_else(no_digests)?)?.encode());
    }

    let renewed =
        |public: &[u8; 32]| signatures.signatures().iter().any(|new| new.public == *public);
    let dropped = old.iter().filter(|public| !renewed(public)).count();
    let dropped_licence = reader.licence().is_some() && licence.is_none();
    let mut blocks =
        if signatures.signatures().is_empty() { Vec::new() } else { signatures.encode() };
    blocks.extend(licence.unwrap_or_default());
    let signatures = signatures.signatures().len();
    Ok(Seals { blocks, signatures, dropped_signatures: dropped, dropped_licence })
}
