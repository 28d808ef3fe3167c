//! The SIGN block: who vouches for a file.

use alloc::format;
use alloc::vec::Vec;

use apr_core::digest::{Digest, TensorDigest};
use apr_core::{Code, Error, Result};

use crate::block::{Fields, block_len, decode_block, encode_block};
use crate::keys::PublicKey;
use crate::signing_key::SigningKey;

const SIGN: [u8; 4] = *b"SIGN";
const CONTEXT: &[u8; 13] = b"apr2-sign-v1\0";
const ED25519: u8 = 1;
const ENTRY_LEN: usize = 8 + 32 + 64;
/// More than anyone waits for: verifying that many takes a tenth of a second.
const MAX_SIGNATURES: usize = 1024;

/// BLAKE3-256 of the joined `parts`: header, metadata, index, ENCR block if there is one, DGST
/// block.
#[must_use]
pub fn sign_digest(parts: &[&[u8]]) -> Digest {
    let mut digest = TensorDigest::new();
    parts.iter().for_each(|part| digest.update(part));
    digest.value()
}

/// Returns the message that is signed for a file with this digest.
#[must_use]
pub fn sign_message(digest: &Digest) -> Vec<u8> {
    [CONTEXT, &digest[..]].concat()
}

/// Returns `true` if `signature` is the signature of `message` by the key `public`.
///
/// The check is strict according to RFC 8032: it accepts no keys or points of small order.
#[must_use]
pub fn verify_ed25519(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    let signature = ed25519_dalek::Signature::from_bytes(signature);
    ed25519_dalek::VerifyingKey::from_bytes(public)
        .is_ok_and(|key| key.verify_strict(message, &signature).is_ok())
}

/// One signer's signature, not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signature {
    /// The Ed25519 key it claims to be made with.
    pub public: [u8; 32],
    /// RFC 8032's R and S.
    pub signature: [u8; 64],
}

/// The SIGN block.
///
/// ```
/// use apr_core::Code;
/// use apr_crypto::{PublicKey, SignBlock, SigningKey, sign_digest};
///
/// let vendor = SigningKey::from_bytes(&[1; 32]);
/// let digest = sign_digest(&[b"header", b"metadata", b"index", b"digests"]);
/// let mut block = SignBlock::default();
/// block.sign(&vendor, &digest)?;
///
/// let block = SignBlock::decode(&block.encode())?;
/// let trusted = [PublicKey::Verifying(vendor.public_bytes())];
/// assert!(block.verify(&digest, &trusted).check().is_ok());
/// assert_eq!(block.verify(&digest, &[]).check().unwrap_err().code(), Code::Signature);
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignBlock {
    signatures: Vec<Signature>,
}

/// Result of checking one signer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Signer {
    /// The key in the file.
    pub public: PublicKey,
    /// `true` if the signature was made by this key for this file.
    pub valid: bool,
    /// `true` if the caller trusts the key.
    pub trusted: bool,
}

/// Results of checking all signers, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verification {
    /// One for each signature.
    pub signers: Vec<Signer>,
}

impl Verification {
    /// Checks that all signatures are valid and one of them is by a trusted key.
    ///
    /// # Errors
    /// E006 when a signature does not match this file, or none is by a trusted key.
    pub fn check(&self) -> Result<()> {
        if let Some(bad) = self.signers.iter().find(|signer| !signer.valid) {
            let (name, trusted) =
                (bad.public.fingerprint(), if bad.trusted { "" } else { ", which is not trusted" });
            return Err(Error::new(
                Code::Signature,
                format!(
                    "the signature by {name}{trusted} is not of this file: it was changed after \
                     signing"
                ),
            ));
        }

        if self.signers.iter().any(|signer| signer.trusted) {
            return Ok(());
        }

        Err(Error::new(
            Code::Signature,
            match self.signers.len() {
                0 => "the file has no signature".into(),
                1 => format!(
                    "the file is signed by {}, which is not trusted",
                    self.signers[0].public.fingerprint()
                ),
                signers => format!("none of the {signers} signatures is by a trusted key"),
            },
        ))
    }
}

impl SignBlock {
    /// The signatures, not verified.
    #[must_use]
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// Signs a file's digest; a signature by the same key is replaced.
    ///
    /// # Errors
    /// E008 when there are 1024 signatures already.
    pub fn sign(&mut self, key: &SigningKey, digest: &Digest) -> Result<()> {
        let public = key.public_bytes();
        let signature = Signature { public, signature: key.sign(&sign_message(digest)) };
        match self.signatures.iter_mut().find(|other| other.public == public) {
            Some(other) => *other = signature,
            None => {
                check_count(self.signatures.len() + 1)?;
                self.signatures.push(signature);
            }
        }
        Ok(())
    }

    /// Removes the signatures that do not match this digest, and returns their number.
    pub fn retain_valid(&mut self, digest: &Digest) -> usize {
        let message = sign_message(digest);
        let before = self.signatures.len();
        self.signatures
            .retain(|Signature { public, signature }| verify_ed25519(public, &message, signature));
        before - self.signatures.len()
    }

    /// Checks which signatures match a file with this digest, and which are by keys in `trusted`.
    #[must_use]
    pub fn verify(&self, digest: &Digest, trusted: &[PublicKey]) -> Verification {
        let message = sign_message(digest);
        let signers = self.signatures.iter().map(|Signature { public, signature }| Signer {
            public: PublicKey::Verifying(*public),
            valid: verify_ed25519(public, &message, signature),
            trusted: trusted.contains(&PublicKey::Verifying(*public)),
        });
        Verification { signers: signers.collect() }
    }

    /// Length of a block of `signatures`, head and padding included, in bytes.
    #[must_use]
    pub fn encoded_len(signatures: usize) -> u64 {
        let body = (ENTRY_LEN as u64).saturating_mul(signatures as u64).saturating_add(8);
        block_len(body).unwrap_or(u64::MAX)
    }

    /// The whole block: head, body, padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(8 + self.signatures.len() * ENTRY_LEN);
        // At most `MAX_SIGNATURES`, which both ways to fill a block check.
        body.extend_from_slice(
            &u32::try_from(self.signatures.len()).unwrap_or(u32::MAX).to_le_bytes(),
        );
        body.extend_from_slice(&[0; 4]);
        for Signature { public, signature } in &self.signatures {
            body.extend_from_slice(&[ED25519, 0, 0, 0, 0, 0, 0, 0]);
            body.extend_from_slice(public);
            body.extend_from_slice(signature);
        }
        encode_block(SIGN, &body)
    }

    /// Reads a whole block, padding included.
    ///
    /// # Errors
    /// E002 when lengths and counts do not go together or a key signs twice, E003 for another
    /// version or algorithm, E008 for more than 1024 signatures.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let body = decode_block(SIGN, bytes)?;
        let mut fields = Fields(body);
        let (count, reserved) = (fields.u32()? as usize, fields.u32()?);
        if count.checked_mul(ENTRY_LEN) != Some(fields.0.len()) || reserved != 0 {
            return Err(Error::corrupt(format!("{count} signatures do not fit the block 'SIGN'")));
        }

        check_count(count)?;
        let mut signatures: Vec<Signature> = Vec::with_capacity(count);
        for _ in 0..count {
            let [algorithm, reserved @ ..] = fields.array::<8>()?;
            if algorithm != ED25519 {
                return Err(Error::version(format!(
                    "signature algorithm {algorithm} is not supported"
                )));
            }

            let signature = Signature { public: fields.array()?, signature: fields.array()? };
            if reserved != [0; 7] || signatures.iter().any(|other| other.public == signature.public)
            {
                return Err(Error::corrupt(
                    "a signature has reserved bits set, or its key signs twice",
                ));
            }
            signatures.push(signature);
        }

        Ok(Self { signatures })
    }
}

fn check_count(count: usize) -> Result<()> {
    if count > MAX_SIGNATURES {
        return Err(Error::memory(format!("{count} signatures; {MAX_SIGNATURES} are allowed")));
    }
    Ok(())
}
