//! The LICN block: who may use a file, and until when (`docs/format/sealing.md`, "Licences").

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use apr_core::digest::Digest;
use apr_core::{Code, Error, Escaped, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::block::{decode_block, encode_block};
use crate::keys::PublicKey;
use crate::signature::{sign_digest, verify_ed25519};
use crate::signing_key::SigningKey;

const LICN: [u8; 4] = *b"LICN";
const CONTEXT: &[u8; 16] = b"apr2-licence-v1\0";
const SIGNATURE_LEN: usize = 64;
/// Terms are a page or a hundred, not a library.
const MAX_JSON: usize = 1 << 20;

/// The terms a file is licensed on.
///
/// In JSON, `licensee_hash`, `expires` and `seats` that are absent or null, and `terms` that are
/// absent, restrict nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Licence {
    /// 8-4-4-4-12 hex digits, lower case; one for each licence issued.
    pub uuid: String,
    /// [`hash_licensee`] of the licensee's name; anyone may use the file without it.
    pub licensee_hash: Option<String>,
    /// First moment at which the licence no longer holds.
    pub expires: Option<Timestamp>,
    /// Maximum number of simultaneous users of the file.
    pub seats: Option<u64>,
    /// Any text: an SPDX expression, an address, the contract.
    pub terms: String,
}

/// The licence as JSON.
#[derive(Serialize, Deserialize)]
struct Body {
    uuid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    licensee_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seats: Option<u64>,
    #[serde(default)]
    terms: String,
}

/// Condition of the licence that a use of the file would violate.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LicenceViolation {
    /// The licence has ended.
    Expired {
        /// Time at which the licence expired.
        at: Timestamp,
    },
    /// The licence is for a certain licensee, but no licensee was given.
    LicenseeUnknown,
    /// The licence is for someone else.
    NotTheLicensee,
    /// More use the file than may.
    SeatsExceeded {
        /// Number of users.
        used: u64,
        /// Maximum number of users.
        allowed: u64,
    },
}

impl fmt::Display for LicenceViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { at } => write!(f, "the licence expired at {at}"),
            Self::LicenseeUnknown => {
                f.write_str("the licence is for a named licensee: pass the licensee")
            }
            Self::NotTheLicensee => f.write_str("the licence is for another licensee"),
            Self::SeatsExceeded { used, allowed } => {
                write!(f, "{used} seats are in use; the licence allows {allowed}")
            }
        }
    }
}

/// SHA-256 of the lower-case UUID, a zero byte and the licensee's name in UTF-8, as 64 hex digits.
///
/// The UUID keeps names from being looked up in one table for all licences; a name that can be
/// guessed is not a secret.
///
/// ```
/// // printf '00000000-0000-4000-8000-000000000000\0Example Ltd' | sha256sum
/// let hash =
///     apr_crypto::hash_licensee("00000000-0000-4000-8000-000000000000", "Example Ltd");
/// assert_eq!(hash, "68947bdb49a90dd917d18e3ba492a5821d73848af2f8149d7c62edf21fb71763");
/// ```
#[must_use]
pub fn hash_licensee(uuid: &str, licensee: &str) -> String {
    use sha2::Digest as _;
    let hash = Sha256::new()
        .chain_update(uuid.to_ascii_lowercase())
        .chain_update([0])
        .chain_update(licensee);
    base16ct::lower::encode_string(&hash.finalize())
}

/// A moment in RFC 3339, such as `2027-01-01T00:00:00Z`.
///
/// # Errors
/// E001 for anything else; a time without an offset is not a moment.
pub fn parse_time(text: &str) -> Result<Timestamp> {
    text.parse()
        .map_err(|_| Error::format(format!("'{}' is not an RFC 3339 time", Escaped::short(text))))
}

impl Licence {
    /// Returns the violations of a use at `now` by `licensee`, with `seats_used` seats in use.
    ///
    /// If the number of seats was not counted, it is accepted.
    #[must_use]
    pub fn check(
        &self,
        now: Timestamp,
        licensee: Option<&str>,
        seats_used: Option<u64>,
    ) -> Vec<LicenceViolation> {
        let expired =
            self.expires.filter(|&at| at <= now).map(|at| LicenceViolation::Expired { at });
        let wrong_licensee = self.licensee_hash.as_deref().and_then(|hash| match licensee {
            None => Some(LicenceViolation::LicenseeUnknown),
            Some(name) => (hash_licensee(&self.uuid, name) != hash)
                .then_some(LicenceViolation::NotTheLicensee),
        });
        let seats = match (seats_used, self.seats) {
            (Some(used), Some(allowed)) if used > allowed => {
                Some(LicenceViolation::SeatsExceeded { used, allowed })
            }
            _ => None,
        };

        expired.into_iter().chain(wrong_licensee).chain(seats).collect()
    }

    fn from_json(json: &[u8]) -> Result<Self> {
        let body: Body = serde_json::from_slice(json).map_err(|error| {
            Error::corrupt(format!(
                "the licence is not the JSON it should be: {}",
                apr_core::foreign(&error)
            ))
        })?;
        let expires = body
            .expires
            .map(|text| parse_time(&text).map_err(|error| Error::corrupt(error.message())));
        let Body { uuid, licensee_hash, seats, terms, .. } = body;
        let licence = Self { uuid, licensee_hash, expires: expires.transpose()?, seats, terms };
        licence.check_fields()?;
        Ok(licence)
    }

    fn to_json(&self) -> Result<Vec<u8>> {
        self.check_fields()?;
        let Self { uuid, licensee_hash, expires, seats, terms } = self.clone();
        let body =
            Body { uuid, licensee_hash, expires: expires.map(|at| at.to_string()), seats, terms };
        let json = apr_core::json::to_vec(&body).map_err(|error| {
            Error::format(format!("the licence: {}", apr_core::foreign(&error)))
        })?;
        check_len(json.len())?;
        Ok(json)
    }

    fn check_fields(&self) -> Result<()> {
        let is_hex =
            |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut groups = self.uuid.split('-');
        let grouped = [8, 4, 4, 4, 12]
            .iter()
            .all(|&len| groups.next().is_some_and(|g| g.len() == len && is_hex(g)));
        if !grouped || groups.next().is_some() {
            return Err(Error::corrupt(format!(
                "'{}' is not a UUID in lower case",
                Escaped::short(&self.uuid)
            )));
        }

        if self.licensee_hash.as_ref().is_some_and(|hash| hash.len() != 64 || !is_hex(hash)) {
            return Err(Error::corrupt("the licensee's hash is not 64 hex digits in lower case"));
        }

        Ok(())
    }
}

/// The LICN block: a licence, and the signature that binds it to one file.
///
/// ```
/// use apr_crypto::{
///     Licence, LicenceBlock, LicenceViolation, PublicKey, SigningKey, hash_licensee, parse_time,
/// };
///
/// let uuid = "00000000-0000-4000-8000-000000000000".to_owned();
/// let licensee_hash = Some(hash_licensee(&uuid, "Example Ltd"));
/// let expires = Some(parse_time("2027-01-01T00:00:00Z")?);
/// let licence =
///     Licence { uuid, licensee_hash, expires, seats: Some(5), terms: "internal use".into() };
/// let (vendor, digest) = (SigningKey::from_bytes(&[1; 32]), [9; 32]);
/// let block = LicenceBlock::issue(&licence, &vendor, &digest)?;
///
/// let block = LicenceBlock::decode(&block.encode())?;
/// block.verify(&digest, &[PublicKey::Verifying(vendor.public_bytes())])?;
/// let wrong =
///     block.licence().check(parse_time("2026-06-01T12:00:00Z")?, Some("Example Ltd"), Some(6));
/// assert_eq!(wrong, [LicenceViolation::SeatsExceeded { used: 6, allowed: 5 }]);
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LicenceBlock {
    licence: Licence,
    json: Vec<u8>,
    signature: [u8; SIGNATURE_LEN],
}

impl LicenceBlock {
    /// Licenses the file with this digest ([`sign_digest`]).
    ///
    /// # Errors
    /// E002 for an invalid UUID or hash, E008 for more than 1 MiB of terms.
    pub fn issue(licence: &Licence, key: &SigningKey, digest: &Digest) -> Result<Self> {
        let json = licence.to_json()?;
        let signature = key.sign(&message(&json, digest));
        Ok(Self { licence: licence.clone(), json, signature })
    }

    /// Returns the licence in the file. Do not trust it until [`verify`](Self::verify) succeeds.
    #[must_use]
    pub fn licence(&self) -> &Licence {
        &self.licence
    }

    /// Returns the `trusted` key that issued this licence for the file with this digest.
    ///
    /// # Errors
    /// E006 when none of them did.
    pub fn verify(&self, digest: &Digest, trusted: &[PublicKey]) -> Result<PublicKey> {
        let message = message(&self.json, digest);
        let issued = |key: &&PublicKey| match key {
            PublicKey::Verifying(public) => verify_ed25519(public, &message, &self.signature),
            PublicKey::Recipient(_) => false,
        };
        trusted.iter().find(issued).copied().ok_or_else(|| {
            Error::new(
                Code::Signature,
                "no trusted key issued this licence for this file, or one of the two was changed",
            )
        })
    }

    /// The whole block: head, body, padding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode_block(LICN, &[&self.json[..], &self.signature].concat())
    }

    /// Reads a whole block, padding included.
    ///
    /// # Errors
    /// E002 when it is cut off or its JSON is not a licence, E003 for another version, E008 for
    /// more than 1 MiB of JSON.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let body = decode_block(LICN, bytes)?;
        let (json, signature) = body
            .split_last_chunk()
            .ok_or_else(|| Error::corrupt("the licence's signature is cut off"))?;
        check_len(json.len())?;
        Ok(Self { licence: Licence::from_json(json)?, json: json.to_vec(), signature: *signature })
    }
}

fn message(json: &[u8], digest: &Digest) -> Vec<u8> {
    [CONTEXT, &sign_digest(&[json])[..], digest].concat()
}

fn check_len(len: usize) -> Result<()> {
    if len > MAX_JSON {
        return Err(Error::memory(format!(
            "the licence takes {len} bytes, more than the limit of {MAX_JSON}"
        )));
    }
    Ok(())
}
