//! Without the feature `seals` there are no keys: encryption and signatures are refused.

use std::path::Path;

use apr_registry::apr2::{Encrypt, Keys};
use apr_registry::{Code, Error};
use zeroize::Zeroizing;

use crate::failure::{Failure, Outcome};

/// Returns the error of commands and options that encrypt, decrypt, sign or verify.
pub(crate) fn absent<T>() -> Outcome<T> {
    let message = "this build has no encryption and no signatures (feature `seals`)";
    Err(Failure::General(message.to_owned()))
}

pub(crate) fn read_signing<K>(_path: &Path) -> Outcome<K> {
    absent()
}

pub(crate) fn read_trusted_bytes<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
) -> Outcome<Vec<[u8; 32]>> {
    drop(paths);
    absent()
}

/// Rejects a key file, which would be read with keys. A password opens no model: one that is
/// encrypted is rejected when it is opened.
pub(crate) fn add_keys(
    _keys: &mut Keys,
    key: Option<&Path>,
    _password: Option<&Zeroizing<Vec<u8>>>,
) -> Outcome {
    if key.is_some() { absent() } else { Ok(()) }
}

#[allow(clippy::needless_pass_by_value, reason = "as with keys")]
pub(crate) fn add_password(_keys: &mut Keys, _password: Zeroizing<Vec<u8>>) {}

/// Returns 0: signatures are not read.
pub(crate) fn signature_count(_block: &[u8]) -> usize {
    0
}

/// Never called, as all functions below that take an encryption: this build makes none.
#[allow(clippy::unnecessary_wraps, reason = "as with keys")]
pub(crate) fn check_opens(_encryption: &Encrypt, _keys: &Keys) -> apr_registry::Result<()> {
    Ok(())
}

pub(crate) fn takes_password(_encryption: &Encrypt) -> bool {
    false
}

pub(crate) fn shared_block(_encryption: &Encrypt, _plan: &[u8]) -> Vec<u8> {
    Vec::new()
}

pub(crate) fn shared_encryption(_block: &[u8], _plan: &[u8], _keys: &Keys) -> Outcome<Encrypt> {
    absent()
}

#[allow(clippy::unnecessary_wraps, reason = "as with keys")]
pub(crate) fn renew(_encryption: &mut Encrypt) -> apr_registry::Result<()> {
    Ok(())
}

/// Asks for nothing: a password opens no model.
#[allow(clippy::unnecessary_wraps, reason = "as with keys")]
pub(crate) fn ask(_prompt: &str) -> Outcome<Option<Zeroizing<Vec<u8>>>> {
    Ok(None)
}

pub(crate) fn encryption(
    password: bool,
    recipients: &[impl AsRef<Path>],
    hide_metadata: bool,
    _given: Option<&Zeroizing<Vec<u8>>>,
) -> Outcome<Option<Encrypt>> {
    if password || hide_metadata || !recipients.is_empty() { absent() } else { Ok(None) }
}

/// Returns the error for an encrypted model.
pub(crate) fn locked(_key: Option<&Path>, name: &str) -> Failure {
    let message = "the model is encrypted, and this build has no encryption (feature `seals`)";
    Error::new(Code::Decrypt, message).in_file(name).into()
}
