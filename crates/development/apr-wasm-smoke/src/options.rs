//! What JavaScript asks for beside a file, as JSON, and the randomness it hands in.

use apr_core::{Code, Error, Result};
use apr_format::apr2::{Encrypt, Keys, WriteOptions};
use apr_format::aprn::LoadOptions;
use apr_format::codec::Choice;
use apr_format::crypto::{
    Argon2Costs, DecryptionKey, EncrBlock, Lock, PublicKey, SigningKey, Unlock,
};
use serde::Deserialize;

/// Keys are their 32 bytes.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// Compress what is written.
    compress: bool,
    /// Encrypts what is written, opens what is read.
    password: Option<String>,
    /// X25519 private keys to encrypt for.
    recipients: Vec<[u8; 32]>,
    /// X25519 private key to open with.
    identity: Option<[u8; 32]>,
    /// Ed25519 seeds to sign with.
    signers: Vec<[u8; 32]>,
    /// Ed25519 seeds whose public keys are trusted.
    trusted: Vec<[u8; 32]>,
    /// Unpredictable random bytes, as many as encryption requires.
    random: Vec<u8>,
}

impl Options {
    /// Reads the JSON; of no bytes the defaults.
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        if json.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(json).map_err(|error| Error::format(format!("the options: {error}")))
    }

    /// Returns the options for writing a file.
    pub(crate) fn writing(&self) -> Result<WriteOptions> {
        let password = self.password.as_ref().map(|password| Lock::Password {
            password: password.as_bytes().to_vec().into(),
            // Cheap, so that the checks are quick: what counts is that it runs.
            costs: Argon2Costs { m: 1024, ..Argon2Costs::default() },
        });
        let recipients = self
            .recipients
            .iter()
            .map(|key| Lock::Recipient(DecryptionKey::from_bytes(key).public_bytes()));
        let locks: Vec<Lock> = password.into_iter().chain(recipients).collect();
        let encryption = if locks.is_empty() { None } else { Some(self.seal(&locks)?) };
        Ok(WriteOptions {
            compression: self.compress.then_some(Choice::Auto),
            encryption,
            signers: self.signers.iter().map(SigningKey::from_bytes).collect(),
            ..WriteOptions::default()
        })
    }

    fn seal(&self, locks: &[Lock]) -> Result<Encrypt> {
        let mut left = &self.random[..];
        let mut random = |bytes: &mut [u8]| {
            let (taken, rest) = left
                .split_at_checked(bytes.len())
                .ok_or_else(|| Error::new(Code::Io, "the host handed in too few random bytes"))?;
            bytes.copy_from_slice(taken);
            left = rest;
            Ok(())
        };
        let (block, key) = EncrBlock::seal(locks, &mut random)?;
        Ok(Encrypt { block, key, hide_metadata: false })
    }

    /// Returns the keys that open an APR2 file.
    pub(crate) fn keys(&self) -> Keys {
        let password = self
            .password
            .as_ref()
            .map(|password| Unlock::Password(password.as_bytes().to_vec().into()));
        let identity =
            self.identity.as_ref().map(|key| Unlock::Identity(DecryptionKey::from_bytes(key)));
        Keys { unlock: password.into_iter().chain(identity).collect(), ..Keys::default() }
    }

    /// Returns the options that open an APRN file.
    pub(crate) fn loading(&self) -> LoadOptions {
        LoadOptions {
            password: self.password.as_deref().map(Into::into),
            identity: self.identity.map(Into::into),
            ..LoadOptions::default()
        }
    }

    /// Returns the trusted public keys.
    pub(crate) fn trusted(&self) -> Vec<PublicKey> {
        let public =
            |seed: &[u8; 32]| PublicKey::Verifying(SigningKey::from_bytes(seed).public_bytes());
        self.trusted.iter().map(public).collect()
    }
}
