//! Keys from files, and the encryption that they give.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use apr_io::io_error;
use apr_registry::apr2::{Encrypt, Keys};
use apr_registry::crypto::{
    Argon2Costs, EncrBlock, Lock, PrivateKey, PublicKey, SignBlock, SigningKey, Stanza, Unlock,
};
use apr_registry::{Code, Error};
use zeroize::Zeroizing;

use super::random;
use crate::failure::{Failure, Outcome};

/// Longest key file: a PEM file has some 200 bytes.
const MAX_FILE: u64 = 64 << 10;

/// A private key from a PEM file.
fn read_private(path: &Path) -> Outcome<PrivateKey> {
    let text = read(path)?;
    Ok(PrivateKey::from_pem(&text).map_err(|error| error.in_file(path.display()))?)
}

/// A private key that signs.
pub(crate) fn read_signing(path: &Path) -> Outcome<SigningKey> {
    match read_private(path)? {
        PrivateKey::Signing(key) => Ok(key),
        _ => {
            let message = "this is an encryption key; signing needs one of `apr keygen --for \
                           signing`";
            Err(Error::format(message).in_file(path.display()).into())
        }
    }
}

/// Reads a public key from a PEM file; rejects a private key.
fn read_public(path: &Path) -> Outcome<PublicKey> {
    let text = read(path)?;
    if text.contains("PRIVATE KEY") {
        let message = "this is a private key; pass the .pub file";
        return Err(Error::format(message).in_file(path.display()).into());
    }
    Ok(PublicKey::from_pem(&text).map_err(|error| error.in_file(path.display()))?)
}

/// Public keys that signatures are verified by.
pub(crate) fn read_trusted<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
) -> Outcome<Vec<PublicKey>> {
    let read = |path: &Path| match read_public(path)? {
        key @ PublicKey::Verifying(_) => Ok(key),
        PublicKey::Recipient(_) => {
            let message = "this is an encryption key, which verifies no signatures";
            Err(Error::format(message).in_file(path.display()).into())
        }
    };
    paths.into_iter().map(|path| read(path.as_ref())).collect()
}

fn read(path: &Path) -> Outcome<Zeroizing<String>> {
    let failed = |error: io::Error| io_error(&error, path);
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Zeroizing::new(Vec::new());
    // A model that is named by mistake is not read into memory, and a pipe does not say its length.
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::format("not a key: too long").in_file(path.display()).into());
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| Error::format("not text").in_file(path.display()))?;
    Ok(Zeroizing::new(text.to_owned()))
}

/// Adds the keys for opening a model: those of `--key` and a given password.
pub(crate) fn add_keys(
    keys: &mut Keys,
    key: Option<&Path>,
    password: Option<&Zeroizing<Vec<u8>>>,
) -> Outcome {
    if let Some(path) = key {
        // Whatever the key is for, its file has to be there.
        path.metadata().map_err(|error| io_error(&error, path))?;
        // Commands that sign and mark take keys of other kinds.
        if let Ok(PrivateKey::Decryption(key)) = read_private(path) {
            keys.unlock.push(Unlock::Identity(key));
        }
    }
    keys.unlock.extend(password.cloned().map(Unlock::Password));
    Ok(())
}

/// Adds a password that was typed to the keys for opening a model.
pub(crate) fn add_password(keys: &mut Keys, password: Zeroizing<Vec<u8>>) {
    keys.unlock.push(Unlock::Password(password));
}

/// Returns the bytes of public keys that signatures are verified by.
pub(crate) fn read_trusted_bytes<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
) -> Outcome<Vec<[u8; 32]>> {
    Ok(read_trusted(paths)?.iter().map(|key| *key.bytes()).collect())
}

/// Returns the number of signatures in a SIGN block.
pub(crate) fn signature_count(block: &[u8]) -> usize {
    SignBlock::decode(block).map_or(0, |block| block.signatures().len())
}

/// Checks that one of the keys opens what is encrypted so.
pub(crate) fn check_opens(encryption: &Encrypt, keys: &Keys) -> apr_registry::Result<()> {
    encryption.block.unlock_within(&keys.unlock, keys.max_memory).map(drop)
}

/// Returns `true` if a password opens what is encrypted so.
pub(crate) fn takes_password(encryption: &Encrypt) -> bool {
    let stanzas = encryption.block.stanzas();
    stanzas.iter().any(|stanza| matches!(stanza, Stanza::Password { .. }))
}

/// Returns the ENCR block of all parts of a plan, which authenticates `plan`.
pub(crate) fn shared_block(encryption: &Encrypt, plan: &[u8]) -> Vec<u8> {
    let mut block = encryption.block.clone();
    block.authenticate(&encryption.key, &[plan]);
    block.encode()
}

/// Opens the ENCR block of all parts of a plan, which authenticates `plan`.
pub(crate) fn shared_encryption(block: &[u8], plan: &[u8], keys: &Keys) -> Outcome<Encrypt> {
    let block = EncrBlock::decode(block)?;
    let key = block.unlock_within(&keys.unlock, keys.max_memory)?;
    // One key must not encrypt two things: a plan that was changed is another job.
    block.verify(&key, &[plan])?;
    Ok(Encrypt { block, key, hide_metadata: false })
}

/// Replaces what makes two files of one encryption differ.
pub(crate) fn renew(encryption: &mut Encrypt) -> apr_registry::Result<()> {
    encryption.block = encryption.block.renewed(&mut random)?;
    Ok(())
}

/// Asks for the password of a model, if there is a terminal.
pub(crate) fn ask(prompt: &str) -> Outcome<Option<Zeroizing<Vec<u8>>>> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(None);
    }
    let password = Zeroizing::new(rpassword::prompt_password(prompt)?);
    Ok(Some(Zeroizing::new(password.as_bytes().to_vec())))
}

/// Returns the password with which to encrypt a model; a typed password must be repeated.
fn new_password(given: Option<&Zeroizing<Vec<u8>>>) -> Outcome<Zeroizing<Vec<u8>>> {
    if let Some(password) = given {
        return Ok(password.clone());
    }
    let Some(password) = ask("New password: ")? else {
        let message = "missing password: pass --password-file FILE or set APR_PASSWORD";
        return Err(Failure::Usage(message.to_owned()));
    };
    match ask("Repeat password: ")? {
        Some(again) if again == password && !password.is_empty() => Ok(password),
        _ => Err(Failure::Usage("the two passwords differ, or are empty".to_owned())),
    }
}

/// Returns the encryption for a password, recipients, or both; `given` is a password that need not
/// be typed.
pub(crate) fn encryption(
    password: bool,
    recipients: &[impl AsRef<Path>],
    hide_metadata: bool,
    given: Option<&Zeroizing<Vec<u8>>>,
) -> Outcome<Option<Encrypt>> {
    if !password && recipients.is_empty() {
        return match hide_metadata {
            true => {
                Err(Failure::Usage("--encrypt-metadata needs --encrypt or --recipient".to_owned()))
            }
            false => Ok(None),
        };
    }

    let mut locks = Vec::new();
    if password {
        locks
            .push(Lock::Password { password: new_password(given)?, costs: Argon2Costs::default() });
    }

    for path in recipients {
        let path = path.as_ref();
        match read_public(path)? {
            PublicKey::Recipient(public) => locks.push(Lock::Recipient(public)),
            PublicKey::Verifying(_) => {
                let message = "this is a signing key; encryption needs one of `apr keygen --for \
                               encryption`";
                return Err(Error::format(message).in_file(path.display()).into());
            }
        }
    }

    let (block, key) = EncrBlock::seal(&locks, &mut random)?;
    Ok(Some(Encrypt { block, key, hide_metadata }))
}

/// Returns the error for a locked model that was opened with the wrong type of key or without a
/// key.
pub(crate) fn locked(key: Option<&Path>, name: &str) -> Failure {
    let message = match key {
        Some(_) => {
            "the model is encrypted, and --key is not a key of `apr keygen --for encryption`"
        }
        None => {
            "the model is encrypted: pass --key FILE or --password-file FILE, or set \
                 APR_PASSWORD"
        }
    };
    Error::new(Code::Decrypt, message).in_file(name).into()
}
