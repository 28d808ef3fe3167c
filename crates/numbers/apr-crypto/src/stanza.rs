//! Stanzas of the ENCR block: the file key, wrapped for one password or one recipient.

use alloc::format;
use alloc::vec::Vec;

use apr_core::{Error, Result};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::aead;
use crate::block::Fields;
use crate::decryption_key::DecryptionKey;
use crate::kdf::{Argon2Costs, password_key, recipient_key};
use crate::random::Random;
use crate::sealed::{NONCE_LEN, TAG_LEN};

const PASSWORD: u32 = 1;
const RECIPIENT: u32 = 2;
const INFO: &[u8] = b"apr-v2-encrypt";

/// Encoded length of the two kinds, in bytes.
pub(crate) const PASSWORD_LEN: usize = 4 + 16 + 12 + Wrapped::LEN;
pub(crate) const RECIPIENT_LEN: usize = 4 + 32 + 8 + Wrapped::LEN;

/// A wrapped file key for one password or recipient. It contains no secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stanza {
    /// The file key wrapped for a password.
    Password {
        /// Salt of Argon2id.
        salt: [u8; 16],
        /// Costs of Argon2id, which are within the limits because they were checked.
        costs: Argon2Costs,
        /// The file key under the password's.
        wrapped: Wrapped,
    },
    /// The file key wrapped for the owner of the private key of an X25519 pair.
    Recipient {
        /// The public key of the pair made for this stanza.
        ephemeral: [u8; 32],
        /// First bytes of the SHA-256 of the recipient's public key.
        tag: [u8; 8],
        /// The file key under the shared one.
        wrapped: Wrapped,
    },
}

/// The file key, enciphered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrapped {
    nonce: [u8; NONCE_LEN],
    text: [u8; 32 + TAG_LEN],
}

impl Wrapped {
    const LEN: usize = NONCE_LEN + 32 + TAG_LEN;

    fn seal(key: &[u8; 32], nonce: [u8; NONCE_LEN], file_key: &[u8; 32]) -> Self {
        let mut text = [0; 32 + TAG_LEN];
        text.copy_from_slice(&aead::aead_seal(key, &nonce, &[], file_key));
        Self { nonce, text }
    }

    fn open(&self, key: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>> {
        let mut file_key = Zeroizing::new([0; 32]);
        aead::open(&aead::cipher(key), &self.nonce, &[], &self.text, &mut *file_key)?;
        Ok(file_key)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.text);
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        Ok(Self { nonce: fields.array()?, text: fields.array()? })
    }
}

impl Stanza {
    /// Wraps `file_key` for those who know `password`.
    pub(crate) fn for_password(
        file_key: &[u8; 32],
        password: &[u8],
        costs: Argon2Costs,
        random: &mut dyn Random,
    ) -> Result<Self> {
        let (mut salt, mut nonce) = ([0; 16], [0; NONCE_LEN]);
        random.fill(&mut salt)?;
        random.fill(&mut nonce)?;
        let key = password_key(password, &salt, costs)?;
        Ok(Self::Password { salt, costs, wrapped: Wrapped::seal(&key, nonce, file_key) })
    }

    /// Wraps `file_key` for the owner of `recipient`.
    pub(crate) fn for_recipient(
        file_key: &[u8; 32],
        recipient: &[u8; 32],
        random: &mut dyn Random,
    ) -> Result<Self> {
        let mut secret = Zeroizing::new([0; 32]);
        let mut nonce = [0; NONCE_LEN];
        random.fill(&mut *secret)?;
        random.fill(&mut nonce)?;
        let ephemeral = DecryptionKey::from_bytes(&secret);
        let shared = ephemeral.shared(recipient).map_err(|_| {
            Error::format(
                "a recipient's public key is of small order; no secret can be shared with it",
            )
        })?;
        let wrapped = Wrapped::seal(&recipient_key(&shared, INFO), nonce, file_key);
        Ok(Self::Recipient { ephemeral: ephemeral.public_bytes(), tag: tag(recipient), wrapped })
    }

    /// The file key, if `password` is the right one.
    pub(crate) fn unwrap_by_password(
        &self,
        password: &[u8],
        max_memory: u64,
    ) -> Option<Result<Zeroizing<[u8; 32]>>> {
        let Self::Password { salt, costs, wrapped } = self else { return None };
        let derived =
            costs.check_memory(max_memory).and_then(|()| password_key(password, salt, *costs));
        Some(derived.and_then(|key| wrapped.open(&key)))
    }

    /// The file key, if the stanza is for the pair of `identity`, whose public key has the tag
    /// `own`.
    pub(crate) fn unwrap_by_identity(
        &self,
        identity: &DecryptionKey,
        own: &[u8; 8],
    ) -> Option<Result<Zeroizing<[u8; 32]>>> {
        match self {
            Self::Recipient { ephemeral, tag, wrapped } if tag == own => Some(
                identity
                    .shared(ephemeral)
                    .and_then(|shared| wrapped.open(&recipient_key(&shared, INFO))),
            ),
            _ => None,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Password { salt, costs, wrapped } => {
                out.extend_from_slice(&PASSWORD.to_le_bytes());
                out.extend_from_slice(salt);
                for cost in [costs.m, costs.t, costs.p] {
                    out.extend_from_slice(&cost.to_le_bytes());
                }
                wrapped.encode(out);
            }
            Self::Recipient { ephemeral, tag, wrapped } => {
                out.extend_from_slice(&RECIPIENT.to_le_bytes());
                out.extend_from_slice(ephemeral);
                out.extend_from_slice(tag);
                wrapped.encode(out);
            }
        }
    }

    /// # Errors
    /// E002 for a stanza that is cut off, E003 for an unknown type.
    pub(crate) fn decode(fields: &mut Fields<'_>) -> Result<Self> {
        match fields.u32()? {
            PASSWORD => {
                let salt = fields.array()?;
                let costs = Argon2Costs { m: fields.u32()?, t: fields.u32()?, p: fields.u32()? };
                costs.check()?;
                Ok(Self::Password { salt, costs, wrapped: Wrapped::decode(fields)? })
            }
            RECIPIENT => Ok(Self::Recipient {
                ephemeral: fields.array()?,
                tag: fields.array()?,
                wrapped: Wrapped::decode(fields)?,
            }),
            other => Err(Error::version(format!(
                "unknown key wrapping (type {other}), written by a newer version"
            ))),
        }
    }
}

/// First bytes of the SHA-256 of a public key.
pub(crate) fn tag(public: &[u8; 32]) -> [u8; 8] {
    let hash = Sha256::digest(public);
    let mut tag = [0; 8];
    tag.copy_from_slice(&hash[..8]);
    tag
}
