//! Keys derived from passwords, from shared secrets and from other keys.

use alloc::format;
use alloc::vec::Vec;

use apr_core::{Error, Result};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use hkdf::Hkdf;
use sha2::Sha256;
use zeroize::{Zeroize, Zeroizing};

/// Memory, passes and lanes that Argon2id uses for one password (RFC 9106 §3.1).
///
/// ```
/// use apr_core::Code;
/// use apr_crypto::Argon2Costs;
///
/// assert!(Argon2Costs::default().check().is_ok());
/// let bomb = Argon2Costs { m: u32::MAX, ..Argon2Costs::default() };
/// assert_eq!(bomb.check().unwrap_err().code(), Code::Memory);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argon2Costs {
    /// Memory in KiB.
    pub m: u32,
    /// Passes over the memory.
    pub t: u32,
    /// Number of lanes (degree of parallelism).
    pub p: u32,
}

impl Default for Argon2Costs {
    /// 19,456 KiB, two passes, one lane: the least that OWASP's Password Storage Cheat Sheet
    /// recommends.
    fn default() -> Self {
        Self { m: 19_456, t: 2, p: 1 }
    }
}

impl Argon2Costs {
    /// The most memory that is accepted: 1 GiB, in KiB.
    pub const MAX_M: u32 = 1 << 20;
    /// The most passes that are accepted.
    pub const MAX_T: u32 = 16;
    /// The most lanes that are accepted.
    pub const MAX_P: u32 = 64;

    /// Checks that these costs are within the limits and enough for Argon2id.
    ///
    /// # Errors
    /// E008 beyond the maxima, E002 below Argon2's minimum: one pass, one lane, 8 KiB per lane.
    pub fn check(self) -> Result<()> {
        let Self { m, t, p } = self;
        if m > Self::MAX_M || t > Self::MAX_T || p > Self::MAX_P {
            return Err(Error::memory(format!(
                "the password's key needs {m} KiB, {t} passes and {p} lanes; the limits are {}, \
                 {} and {}",
                Self::MAX_M,
                Self::MAX_T,
                Self::MAX_P
            )));
        }
        self.params().map(|_| ())
    }

    /// Rejects costs whose memory exceeds `max_memory` bytes.
    ///
    /// # Errors
    /// E008.
    pub(crate) fn check_memory(self, max_memory: u64) -> Result<()> {
        if u64::from(self.m) << 10 > max_memory {
            return Err(Error::memory(format!(
                "the password's key takes {} KiB to derive, more than the memory limit of \
                 {max_memory} bytes; raise it with `max_memory`",
                self.m
            )));
        }
        Ok(())
    }

    /// Memory times passes.
    pub(crate) fn work(self) -> u64 {
        u64::from(self.m) * u64::from(self.t)
    }

    fn params(self) -> Result<Params> {
        let Self { m, t, p } = self;
        Params::new(m, t, p, Some(32)).map_err(|_| {
            Error::corrupt(format!("Argon2 is not defined for {m} KiB, {t} passes and {p} lanes"))
        })
    }
}

/// Derives the key of a password with Argon2id, version 1.3, without secret and associated data.
///
/// # Errors
/// Returns the same errors as [`Argon2Costs::check`], before anything is allocated; E008 when there
/// is not enough memory.
pub fn password_key(
    password: &[u8],
    salt: &[u8; 16],
    costs: Argon2Costs,
) -> Result<Zeroizing<[u8; 32]>> {
    costs.check()?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, costs.params()?);
    let mut memory = Vec::new();
    let blocks = costs.params()?.block_count();
    memory
        .try_reserve_exact(blocks)
        .map_err(|_| Error::memory(format!("no memory for {} KiB of Argon2", costs.m)))?;
    memory.resize(blocks, Block::default());
    let mut key = Zeroizing::new([0; 32]);
    let derived = argon2.hash_password_into_with_memory(password, salt, &mut *key, &mut memory);

    // The last blocks give the key away.
    memory.iter_mut().for_each(Zeroize::zeroize);
    derived.map_err(|_| Error::memory("the password is longer than Argon2 takes"))?;
    Ok(key)
}

/// The key two parties of an X25519 exchange share: HKDF-SHA256 without salt.
#[must_use]
pub fn recipient_key(shared: &[u8; 32], info: &[u8]) -> Zeroizing<[u8; 32]> {
    hkdf_key(shared, None, &[info])
}

/// 32 bytes of HKDF-SHA256 (RFC 5869); the parts of `info` are joined.
pub(crate) fn hkdf_key(ikm: &[u8], salt: Option<&[u8]>, info: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let mut key = Zeroizing::new([0; 32]);
    Hkdf::<Sha256>::new(salt, ikm)
        .expand_multi_info(info, &mut *key)
        .unwrap_or_else(|_| unreachable!("HKDF-SHA256 gives up to 8160 bytes"));
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hkdf_gives_the_first_bytes_of_rfc_5869() {
        // Appendix A.1 and A.3, whose outputs are 42 bytes long.
        let salt: Vec<u8> = (0..=0x0c).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let key = hkdf_key(&[0x0b; 22], Some(&salt), &[&info[..3], &info[3..]]);
        assert_eq!(
            *key,
            [
                0x3c, 0xb2, 0x5f, 0x25, 0xfa, 0xac, 0xd5, 0x7a, 0x90, 0x43, 0x4f, 0x64, 0xd0, 0x36,
                0x2f, 0x2a, 0x2d, 0x2d, 0x0a, 0x90, 0xcf, 0x1a, 0x5a, 0x4c, 0x5d, 0xb0, 0x2d, 0x56,
                0xec, 0xc4, 0xc5, 0xbf,
            ]
        );
        let key = hkdf_key(&[0x0b; 22], None, &[]);
        assert_eq!(
            *key,
            [
                0x8d, 0xa4, 0xe7, 0x75, 0xa5, 0x63, 0xc1, 0x8f, 0x71, 0x5f, 0x80, 0x2a, 0x06, 0x3c,
                0x5a, 0x31, 0xb8, 0xa1, 0x1f, 0x5c, 0x5e, 0xe1, 0x87, 0x9e, 0xc3, 0x45, 0x4e, 0x5f,
                0x3c, 0x73, 0x8d, 0x2d,
            ]
        );
    }
}
