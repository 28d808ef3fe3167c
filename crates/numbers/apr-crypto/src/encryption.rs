//! The ENCR block and the file key in it.

use alloc::format;
use alloc::vec::Vec;
use core::fmt;

use apr_core::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::aead::decryption_failed;
use crate::block::{Fields, HEAD_LEN, block_len, decode_block, decode_head, encode_block};
use crate::decryption_key::DecryptionKey;
use crate::kdf::{Argon2Costs, hkdf_key};
use crate::random::Random;
use crate::sealed::SEALED_CHUNK;
use crate::stanza::{self, Stanza};
use crate::tensor::TensorCipher;

const ENCR: [u8; 4] = *b"ENCR";
/// Length of a sealed chunk, as stored in the block.
#[expect(clippy::cast_possible_truncation, reason = "64 KiB")]
const CHUNK_FIELD: u32 = SEALED_CHUNK as u32;
/// Body beside the stanzas: count, chunk, salt, HMAC.
const FIXED_LEN: usize = 4 + 4 + 16 + 32;
/// Maximum number of stanzas: enough recipients for a company.
///
/// Trying a key on all of them takes a fraction of a second.
const MAX_STANZAS: usize = 4096;
/// Maximum Argon2 work of all passwords together, in KiB times passes.
///
/// It equals the maximum for a single password.
const MAX_WORK: u64 = Argon2Costs::MAX_M as u64 * Argon2Costs::MAX_T as u64;

/// The key of one file.
#[derive(Clone)]
pub struct FileKey(Zeroizing<[u8; 32]>);

/// Password or recipient that an encrypted file can be opened with.
#[derive(Clone)]
#[non_exhaustive]
pub enum Lock {
    /// Password that opens the file.
    Password {
        /// Password bytes. If people type the password, they should be UTF-8.
        password: Zeroizing<Vec<u8>>,
        /// Cost of each attempt to try the password.
        costs: Argon2Costs,
    },
    /// The private key of this X25519 public key.
    Recipient([u8; 32]),
}

/// Password or key to open a file with.
#[derive(Clone)]
pub enum Unlock {
    /// Password of the file.
    Password(Zeroizing<Vec<u8>>),
    /// An X25519 private key.
    Identity(DecryptionKey),
}

/// The ENCR block: the file key wrapped for passwords and recipients, and the MAC of the front of
/// the file.
///
/// ```
/// use apr_core::Code;
/// use apr_crypto::{DecryptionKey, EncrBlock, Lock, Unlock};
///
/// // Never like this: randomness comes from the operating system.
/// let mut random = |bytes: &mut [u8]| {
///     bytes.fill(7);
///     Ok(())
/// };
/// let (alice, eve) = (DecryptionKey::from_bytes(&[1; 32]), DecryptionKey::from_bytes(&[2; 32]));
/// let (mut block, key) = EncrBlock::seal(&[Lock::Recipient(alice.public_bytes())], &mut random)?;
/// block.authenticate(&key, &[b"header", b"metadata", b"index"]);
/// let mut stored = Vec::new();
/// key.tensor(&block.salt(), "bias").seal_all(b"weights", &mut stored);
///
/// let block = EncrBlock::decode(&block.encode())?;
/// assert_eq!(block.unlock(&[Unlock::Identity(eve)]).unwrap_err().code(), Code::Decrypt);
/// let key = block.unlock(&[Unlock::Identity(alice)])?;
/// block.verify(&key, &[b"header", b"metadata", b"index"])?;
/// let mut weights = [0; 7];
/// key.tensor(&block.salt(), "bias").open_chunks(0, true, &stored, &mut weights)?;
/// assert_eq!(&weights, b"weights");
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncrBlock {
    salt: [u8; 16],
    stanzas: Vec<Stanza>,
    hmac: [u8; 32],
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileKey(..)")
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { costs, .. } => write!(f, "Password(.., {costs:?})"),
            Self::Recipient(public) => write!(f, "Recipient({public:?})"),
        }
    }
}

impl fmt::Debug for Unlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Password(_) => "Password(..)",
            Self::Identity(_) => "Identity(..)",
        })
    }
}

impl FileKey {
    /// HMAC-SHA256 of the joined `parts` under the header's key.
    #[must_use]
    pub fn header_mac(&self, salt: &[u8; 16], parts: &[&[u8]]) -> [u8; 32] {
        self.mac(salt, parts).finalize().into_bytes().into()
    }

    /// The cipher for the bytes of the tensor `name`.
    #[must_use]
    pub fn tensor(&self, salt: &[u8; 16], name: &str) -> TensorCipher {
        TensorCipher::new(&hkdf_key(&*self.0, Some(salt), &[b"apr-v2-tensor\0", name.as_bytes()]))
    }

    fn mac(&self, salt: &[u8; 16], parts: &[&[u8]]) -> Hmac<Sha256> {
        let key = hkdf_key(&*self.0, Some(salt), &[b"apr-v2-header"]);
        let mut mac = Hmac::<Sha256>::new_from_slice(&*key)
            .unwrap_or_else(|_| unreachable!("HMAC takes any key"));
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

impl EncrBlock {
    /// A new file key, wrapped for each of `locks`. The MAC is still to be set by
    /// [`authenticate`](Self::authenticate).
    ///
    /// # Errors
    /// E001 without a lock and for a public key that no secret can be shared with; E002 and E008
    /// for Argon2 costs out of bounds, E008 for too many locks; what `random` fails with.
    pub fn seal(locks: &[Lock], random: &mut dyn Random) -> Result<(Self, FileKey)> {
        if locks.is_empty() {
            return Err(Error::format("encryption needs a password or a recipient"));
        }

        check_count(locks.len())?;
        check_work(locks.iter().filter_map(|lock| match lock {
            Lock::Password { costs, .. } => Some(*costs),
            Lock::Recipient(_) => None,
        }))?;
        let (mut key, mut salt) = (Zeroizing::new([0; 32]), [0; 16]);
        random.fill(&mut *key)?;
        random.fill(&mut salt)?;
        let stanzas = locks
            .iter()
            .map(|lock| match lock {
                Lock::Password { password, costs } => {
                    Stanza::for_password(&key, password, *costs, random)
                }
                Lock::Recipient(public) => Stanza::for_recipient(&key, public, random),
            })
            .collect::<Result<_>>()?;
        Ok((Self { salt, stanzas, hmac: [0; 32] }, FileKey(key)))
    }

    /// Length of the block for `locks`, head and padding included, in bytes.
    #[must_use]
    pub fn encoded_len(locks: &[Lock]) -> u64 {
        let stanzas: usize = locks
            .iter()
            .map(|lock| match lock {
                Lock::Password { .. } => stanza::PASSWORD_LEN,
                Lock::Recipient(_) => stanza::RECIPIENT_LEN,
            })
            .sum();
        block_len((FIXED_LEN + stanzas) as u64)
            .unwrap_or_else(|| unreachable!("the locks are in memory"))
    }

    /// Creates a block with the same locks and file key, but a new salt. The MAC must still be set.
    ///
    /// Data encrypted under it shares no cipher with data encrypted under another salt, regardless
    /// of its content.
    ///
    /// # Errors
    /// Returns the errors of `random`.
    pub fn renewed(&self, random: &mut dyn Random) -> Result<Self> {
        let mut salt = [0; 16];
        random.fill(&mut salt)?;
        Ok(Self { salt, stanzas: self.stanzas.clone(), hmac: [0; 32] })
    }

    /// Returns the salt of this file's key derivations. It is public.
    #[must_use]
    pub fn salt(&self) -> [u8; 16] {
        self.salt
    }

    /// Returns the stanzas, which describe who can open the file.
    #[must_use]
    pub fn stanzas(&self) -> &[Stanza] {
        &self.stanzas
    }

    /// Sets the MAC over the joined `parts`: header, metadata and index.
    ///
    /// The header must be in the form of `apr_format::apr2::mac_header`.
    pub fn authenticate(&mut self, key: &FileKey, parts: &[&[u8]]) {
        self.hmac = key.header_mac(&self.salt, parts);
    }

    /// Checks the MAC of the joined `parts`, in constant time.
    ///
    /// # Errors
    /// E005.
    pub fn verify(&self, key: &FileKey, parts: &[&[u8]]) -> Result<()> {
        key.mac(&self.salt, parts).verify_slice(&self.hmac).map_err(|_| decryption_failed())
    }

    /// The whole block: head, body, padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(FIXED_LEN + self.stanzas.len() * stanza::RECIPIENT_LEN);
        // At most `MAX_STANZAS`, which both ways to make a block check.
        body.extend_from_slice(
            &u32::try_from(self.stanzas.len()).unwrap_or(u32::MAX).to_le_bytes(),
        );
        body.extend_from_slice(&CHUNK_FIELD.to_le_bytes());
        body.extend_from_slice(&self.salt);
        self.stanzas.iter().for_each(|stanza| stanza.encode(&mut body));
        body.extend_from_slice(&self.hmac);
        encode_block(ENCR, &body)
    }

    /// Length of the block that starts with `head`, padding included, in bytes: what
    /// [`decode`](Self::decode) wants.
    ///
    /// # Errors
    /// E002 when it is not an ENCR block, E003 for another version, E008 when it is longer than any
    /// this crate writes.
    pub fn stored_len(head: &[u8; HEAD_LEN]) -> Result<u64> {
        let len = decode_head(ENCR, head)?;
        let most = (FIXED_LEN + MAX_STANZAS * stanza::RECIPIENT_LEN) as u64;
        if len > most {
            return Err(Error::memory(format!(
                "the block 'ENCR' has {len} bytes, more than the limit of {most}"
            )));
        }
        block_len(len).ok_or_else(|| Error::corrupt("the block 'ENCR' ends past the file"))
    }

    /// Reads a whole block, padding included.
    ///
    /// # Errors
    /// E002 when lengths and counts do not go together, E003 for another version, chunk length or
    /// stanza type, E008 for Argon2 costs or a number of stanzas out of bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields(decode_block(ENCR, bytes)?);
        let (count, chunk, salt) = (fields.u32()? as usize, fields.u32()?, fields.array()?);
        if chunk != CHUNK_FIELD {
            return Err(Error::version(format!(
                "encrypted chunks of {chunk} bytes are not supported"
            )));
        }

        // The block justifies the allocation: each stanza takes at least the length of the
        // shortest.
        if count > fields.0.len() / stanza::PASSWORD_LEN {
            return Err(Error::corrupt(format!("{count} stanzas do not fit the block 'ENCR'")));
        }

        check_count(count)?;
        let stanzas =
            (0..count).map(|_| Stanza::decode(&mut fields)).collect::<Result<Vec<_>>>()?;
        check_work(stanzas.iter().filter_map(|stanza| match stanza {
            Stanza::Password { costs, .. } => Some(*costs),
            Stanza::Recipient { .. } => None,
        }))?;
        let hmac = fields.array()?;
        match fields.0.len() {
            0 => Ok(Self { salt, stanzas, hmac }),
            left => Err(Error::corrupt(format!(
                "{left} bytes follow the last field of the block 'ENCR'"
            ))),
        }
    }

    /// The file key, by the first of `keys` that fits; private keys are tried before passwords,
    /// which cost more.
    ///
    /// # Errors
    /// E005 when none fits, and nothing else is said; E008 when there is no memory to try a
    /// password.
    pub fn unlock(&self, keys: &[Unlock]) -> Result<FileKey> {
        self.unlock_within(keys, u64::MAX)
    }

    /// Unlocks like [`unlock`](Self::unlock), with at most `max_memory` bytes per password key.
    ///
    /// # Errors
    /// Returns the same errors as [`unlock`](Self::unlock), and E008 when a password that must be
    /// tried needs more.
    pub fn unlock_within(&self, keys: &[Unlock], max_memory: u64) -> Result<FileKey> {
        let identities = keys.iter().filter_map(|key| match key {
            Unlock::Identity(identity) => Some(identity),
            Unlock::Password(_) => None,
        });
        let by_identity = identities.flat_map(|identity| {
            let tag = stanza::tag(&identity.public_bytes());
            self.stanzas.iter().filter_map(move |stanza| stanza.unwrap_by_identity(identity, &tag))
        });
        let passwords = keys.iter().filter_map(|key| match key {
            Unlock::Password(password) => Some(password),
            Unlock::Identity(_) => None,
        });
        let by_password = passwords.flat_map(|password| {
            let unwrap = move |stanza: &Stanza| stanza.unwrap_by_password(password, max_memory);
            self.stanzas.iter().filter_map(unwrap)
        });
        for unwrapped in by_identity.chain(by_password) {
            match unwrapped {
                Ok(key) => return Ok(FileKey(key)),
                Err(error) if error.code() == apr_core::Code::Decrypt => {}
                Err(error) => return Err(error),
            }
        }

        Err(decryption_failed())
    }
}

fn check_count(count: usize) -> Result<()> {
    if count > MAX_STANZAS {
        return Err(Error::memory(format!(
            "{count} passwords and recipients; {MAX_STANZAS} are allowed"
        )));
    }
    Ok(())
}

fn check_work(costs: impl Iterator<Item = Argon2Costs>) -> Result<()> {
    let mut work = 0;
    for costs in costs {
        costs.check()?;
        work += costs.work();
    }
    if work > MAX_WORK {
        return Err(Error::memory(
            "the passwords together would cost more to try than one may cost",
        ));
    }
    Ok(())
}
