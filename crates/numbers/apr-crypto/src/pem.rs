//! Keys as text: PKCS#8 (RFC 5958) and SPKI (RFC 5280) with the identifiers of RFC 8410, in PEM
//! (RFC 7468).

use alloc::format;
use alloc::string::String;

use apr_core::{Error, Result};
use pkcs8::der::asn1::{BitStringRef, OctetStringRef};
use pkcs8::der::{Decode, Document, SecretDocument};
use pkcs8::{
    AlgorithmIdentifierRef, LineEnding, ObjectIdentifier, PrivateKeyInfoRef,
    SubjectPublicKeyInfoRef,
};
use zeroize::Zeroizing;

use crate::kind::KeyKind;

const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
const X25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.110");
const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";

/// The bytes of a private key, and of the public key that PKCS#8 v2 adds.
pub(crate) struct PrivateBytes {
    pub(crate) kind: KeyKind,
    pub(crate) secret: Zeroizing<[u8; 32]>,
    pub(crate) public: Option<[u8; 32]>,
}

/// Reads "PRIVATE KEY", version 1 or 2.
///
/// # Errors
/// E001 for anything else, E003 for a key of another algorithm.
pub(crate) fn read_private(pem: &str) -> Result<PrivateBytes> {
    check_label(pem, PRIVATE)?;
    let (_, document) = SecretDocument::from_pem(pem.trim()).map_err(|_| malformed(PRIVATE))?;
    let info: PrivateKeyInfoRef<'_> = document.decode_msg().map_err(|_| malformed(PRIVATE))?;
    let kind = kind_of(&info.algorithm)?;
    let inner: &OctetStringRef =
        Decode::from_der(info.private_key.as_bytes()).map_err(|_| malformed(PRIVATE))?;
    let mut secret = Zeroizing::new([0; 32]);
    if inner.as_bytes().len() != secret.len() {
        return Err(malformed(PRIVATE));
    }
    secret.copy_from_slice(inner.as_bytes());
    let public = info.public_key.map(|bits| public_bytes(bits, PRIVATE)).transpose()?;
    Ok(PrivateBytes { kind, secret, public })
}

/// Writes "PRIVATE KEY", version 1, which every program reads.
pub(crate) fn write_private(kind: KeyKind, secret: &[u8; 32]) -> Zeroizing<String> {
    // CurvePrivateKey is an octet string inside the octet string.
    let mut inner = Zeroizing::new([0; 34]);
    inner[..2].copy_from_slice(&[0x04, 32]);
    inner[2..].copy_from_slice(secret);
    OctetStringRef::new(&*inner)
        .and_then(|key| SecretDocument::encode_msg(&PrivateKeyInfoRef::new(algorithm(kind), key)))
        .and_then(|document| document.to_pem(PRIVATE, LineEnding::LF))
        .unwrap_or_else(|_| unreachable!("a key of 32 bytes is encodable"))
}

/// Reads "PUBLIC KEY".
///
/// # Errors
/// E001 for anything else, E003 for a key of another algorithm.
pub(crate) fn read_public(pem: &str) -> Result<(KeyKind, [u8; 32])> {
    check_label(pem, PUBLIC)?;
    let (_, document) = Document::from_pem(pem.trim()).map_err(|_| malformed(PUBLIC))?;
    let info: SubjectPublicKeyInfoRef<'_> = document.decode_msg().map_err(|_| malformed(PUBLIC))?;
    Ok((kind_of(&info.algorithm)?, public_bytes(info.subject_public_key, PUBLIC)?))
}

/// Writes "PUBLIC KEY".
pub(crate) fn write_public(kind: KeyKind, public: &[u8; 32]) -> String {
    BitStringRef::from_bytes(public)
        .map(|key| SubjectPublicKeyInfoRef { algorithm: algorithm(kind), subject_public_key: key })
        .and_then(|info| Document::encode_msg(&info))
        .and_then(|document| document.to_pem(PUBLIC, LineEnding::LF))
        .unwrap_or_else(|_| unreachable!("a key of 32 bytes is encodable"))
}

fn algorithm(kind: KeyKind) -> AlgorithmIdentifierRef<'static> {
    let oid = match kind {
        KeyKind::Signing => ED25519,
        KeyKind::Encryption => X25519,
    };
    AlgorithmIdentifierRef { oid, parameters: None }
}

fn kind_of(algorithm: &AlgorithmIdentifierRef<'_>) -> Result<KeyKind> {
    match algorithm.oid {
        _ if algorithm.parameters.is_some() => {
            Err(Error::format("a key's algorithm must not have parameters"))
        }
        ED25519 => Ok(KeyKind::Signing),
        X25519 => Ok(KeyKind::Encryption),
        other => Err(Error::version(format!(
            "the key is of algorithm {other}; Ed25519 and X25519 are supported"
        ))),
    }
}

fn public_bytes(bits: BitStringRef<'_>, label: &str) -> Result<[u8; 32]> {
    bits.as_bytes().and_then(|bytes| bytes.try_into().ok()).ok_or_else(|| malformed(label))
}

/// Checks the PEM label. The error describes the kind of the file without its contents.
fn check_label(pem: &str, wanted: &str) -> Result<()> {
    let label = pem
        .split_once("-----BEGIN ")
        .and_then(|(_, rest)| rest.split_once("-----"))
        .map(|(label, _)| label)
        .ok_or_else(|| Error::format("not a PEM key: no line '-----BEGIN ...-----'"))?;
    match label {
        _ if label == wanted => Ok(()),
        PUBLIC => Err(Error::format("this is a public key; a private one is needed")),
        PRIVATE => Err(Error::format(
            "this is a private key; a public one is needed, and this one should be kept secret",
        )),
        "ENCRYPTED PRIVATE KEY" => {
            Err(Error::format("the private key is protected by a passphrase; remove it first"))
        }
        "OPENSSH PRIVATE KEY" => {
            Err(Error::format("this is a key of OpenSSH; a key in PKCS#8 is needed"))
        }
        _ => Err(Error::format(format!("not the expected PEM key '{wanted}'"))),
    }
}

fn malformed(label: &str) -> Error {
    Error::format(format!("the '{label}' in PEM is malformed"))
}
