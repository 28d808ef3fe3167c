//! Points 8, 9, 23 and 24: compressed, sharded, signed and encrypted files, written and broken.

use std::fs;
use std::path::{MAIN_SEPARATOR, Path};

use apr::Compression;
use apr::seal::{Encrypt, KeyKind, Keys, PrivateKey, PublicKey, SigningKey};
use apr_core::{CheckpointReader, Code, Error, counted, of_files};
use apr_ops::validate::{Check, Level};
use apr_registry::crypto::{DecryptionKey, EncrBlock, Lock, SignBlock, Unlock};
use apr_registry::{OpenOptions, open};
use apr_testkit::corrupt::overwrite;

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, ensure, failed, passed};
use crate::made::{Made, inspected};

/// The made model as bytes of an `.apr` file.
fn packed(
    bench: &Bench<'_>,
    with: impl FnOnce(apr::Convert) -> apr::Convert,
) -> Result<Vec<u8>, Fault> {
    Ok(with(apr::convert(bench.folder_of(&Made::llama())?)).to_bytes()?.0)
}

/// A number of the header.
fn word(file: &[u8], offset: usize) -> Result<usize, Fault> {
    let bytes = file.get(offset..offset + 4).and_then(|four| four.try_into().ok());
    let word = bytes.map(u32::from_le_bytes).ok_or_else(|| Fault::new("a short file"))?;
    Ok(usize::try_from(word)?)
}

/// Returns the offset of the flags in a tensor's index entry.
fn flags_of(file: &[u8], name: &str) -> Result<usize, Fault> {
    let (start, size) = (word(file, 20)?, word(file, 24)?);
    let index = file.get(start..start + size).unwrap_or_default();
    let wanted = [&u16::try_from(name.len())?.to_le_bytes()[..], name.as_bytes()].concat();
    let found = index.windows(wanted.len()).position(|window| window == wanted);
    let name_end = start + found.ok_or_else(|| Fault::new("no such entry"))? + wanted.len();
    let dims = usize::from(file[name_end + 1]);
    Ok(name_end + 2 + 8 * dims + 24)
}

pub(crate) fn compression(bench: &Bench<'_>) -> Judgement {
    let file = packed(bench, |convert| convert.compress(Compression::Auto))?;
    let report = inspected(&*opened(file.clone(), Keys::default())?)?;
    let codecs: Vec<String> = report.compression.iter().map(|share| share.codec.clone()).collect();
    ensure(!codecs.is_empty(), "a test model was not compressed")?;

    let broken = overwrite(&file, flags_of(&file, "token_embedding")?, &15_u32.to_le_bytes());
    let seen = match opened(broken, Keys::default()) {
        Err(error) if error.code() == Code::Version => error.to_string(),
        Err(error) => return failed(format!("expected E003, found: {error}")),
        Ok(_) => return failed("a file with codec 15 was opened"),
    };
    let reader = bench.reader();
    let own = (0..reader.tensors().len()).filter(|&at| reader.stored(at).form().is_some()).count();
    let damage = bench.findings(|finding| {
        own > 0 && finding.level == Level::Error && finding.check == Check::Digests
    })?;
    if let Some(finding) = damage.first() {
        return failed(finding.message.as_str());
    }
    let own = match own {
        0 => "no tensor of the model is compressed".to_owned(),
        count if bench.unread()?.is_some() => {
            format!("{count} tensors of the model are compressed, and encrypted, so not read")
        }
        count => format!("{count} tensors of the model are compressed, and were read"),
    };
    passed(format!("{own}; a test file has {}, and with codec 15: {seen}", codecs.join(", ")))
}

pub(crate) fn shards(bench: &Bench<'_>) -> Judgement {
    let own = of_files(bench.reader()).container().shard_count();
    let lost = bench
        .findings(|finding| finding.check == Check::Structure && finding.level == Level::Error)?;
    if let Some(finding) = lost.first() {
        return failed(finding.message.as_str());
    }
    let folder = bench.folder()?;
    let path = folder.join("cut.apr");
    let report =
        apr::convert(bench.folder_of(&Made::llama())?).shard_size(16 << 10).write(&path)?;
    let files: Vec<&str> = report.conversion.files.iter().map(|file| &*file.name).collect();
    ensure(files.len() > 2, format!("{} files were written", files.len()))?;
    apr::Model::open(&path)?.validate(apr::report::ValidateOptions::default())?;

    let shard = files.iter().copied().find(|name| name.contains("-of-"));
    let shard = shard.ok_or_else(|| Fault::new("no shard was written"))?;
    fs::remove_file(folder.join(shard))?;
    let seen = apr::convert(&path).to_bytes().err();
    let seen = seen.ok_or_else(|| Fault::new("a model without a shard was read"))?;
    ensure(code_of(&seen) == Some(Code::Io), format!("expected E007, found: {seen}"))?;
    let own = match own {
        0 => String::new(),
        count => format!("all {count} shards of the model exist; "),
    };
    passed(format!(
        "{own}a test model in {} files loads; without one: {}",
        files.len(),
        named(&seen.to_string(), &folder,)
    ))
}

/// The code of a job's error that is about a file.
pub(crate) fn code_of(error: &apr::report::JobError) -> Option<Code> {
    match error {
        apr::report::JobError::Model(error) => Some(error.code()),
        _ => None,
    }
}

/// A message without the temporary folder.
pub(crate) fn named(message: &str, folder: &Path) -> String {
    message.replace(&format!("{}{MAIN_SEPARATOR}", folder.display()), "")
}

fn opened(file: Vec<u8>, keys: Keys) -> apr_core::Result<Box<dyn CheckpointReader>> {
    open(file, "test.apr", OpenOptions { keys, ..OpenOptions::default() })
}

fn signing_key(seed: u8) -> Result<SigningKey, Fault> {
    match PrivateKey::generate(KeyKind::Signing, &[seed; 32])? {
        PrivateKey::Signing(key) => Ok(key),
        _ => Err(Fault::new("a key of another kind")),
    }
}

/// Checks the signatures by `key`, or by the keys in the file, and returns their number.
fn verify(reader: &dyn CheckpointReader, key: Option<[u8; 32]>) -> apr_core::Result<usize> {
    let signed = reader.container().signed()?;
    let block = signed.as_ref().and_then(|signed| signed.signatures.as_deref());
    let missing = || Error::new(Code::Signature, "missing signature");
    let block = SignBlock::decode(block.ok_or_else(missing)?)?;
    let digest = signed.as_ref().map(|signed| signed.digest).unwrap_or_default();
    let own = block.signatures().iter().map(|signature| signature.public);
    let keys: Vec<[u8; 32]> = key.map_or_else(|| own.collect(), |key| vec![key]);
    for key in &keys {
        block.verify(&digest, &[PublicKey::Verifying(*key)]).check()?;
    }
    Ok(keys.len())
}

pub(crate) fn signature(bench: &Bench<'_>) -> Judgement {
    let key = signing_key(7)?;
    let public = key.public_bytes();
    let file = packed(bench, |convert| convert.sign(key))?;
    let verified =
        |file: Vec<u8>| opened(file, Keys::default()).and_then(|it| verify(&*it, Some(public)));
    verified(file.clone())?;
    let block = file.windows(4).rposition(|window| window == b"SIGN");
    // Head of the block, count and algorithm, and the public key come first.
    let at = block.ok_or_else(|| Fault::new("no signature was written"))? + 32 + 32 + 5;
    let mut broken = file.clone();
    broken[at] ^= 1;
    let seen = match verified(broken) {
        Err(error) if error.code() == Code::Signature => error.to_string(),
        Err(error) => return failed(format!("expected E006, found: {error}")),
        Ok(_) => return failed("a changed signature was accepted"),
    };
    let wrong = bench
        .findings(|finding| finding.check == Check::Signature && finding.level == Level::Error)?;
    if let Some(finding) = wrong.first() {
        return failed(finding.message.as_str());
    }
    let is_signed = bench.reader().container().signed()?.is_some_and(|it| it.signatures.is_some());
    let own = match is_signed.then(|| verify(bench.reader(), None)).transpose() {
        Err(error) => return failed(error.to_string()),
        Ok(Some(count)) => format!(
            "{} of the model by the keys that it names; ",
            counted(count as u64, "valid signature")
        ),
        Ok(None) => "the model is not signed; ".to_owned(),
    };
    passed(format!("{own}a test file verifies, and with a byte of it changed: {seen}"))
}

pub(crate) fn encryption(bench: &Bench<'_>) -> Judgement {
    let (own, other) = (DecryptionKey::from_bytes(&[5; 32]), DecryptionKey::from_bytes(&[6; 32]));
    // A made file keeps no secret.
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(9);
        Ok(())
    };
    let (block, key) = EncrBlock::seal(&[Lock::Recipient(own.public_bytes())], &mut random)?;
    let encrypt = Encrypt { block, key, hide_metadata: false };
    let file = packed(bench, |convert| convert.encrypt(encrypt))?;
    let read = |key: DecryptionKey| {
        let keys = Keys { unlock: vec![Unlock::Identity(key)], ..Keys::default() };
        opened(file.clone(), keys).and_then(|reader| reader.read_tensor(0, 0, &mut [0; 4]))
    };
    read(own)?;
    let seen = match read(other) {
        Err(error) if error.code() == Code::Decrypt => error.to_string(),
        Err(error) => return failed(format!("expected E005, found: {error}")),
        Ok(()) => return failed("another key opened the file"),
    };
    let own = match bench.reader().container().is_locked() {
        true => "the model is encrypted, and no key was given; ",
        false => "",
    };
    passed(format!("{own}a test file opens with its key, and with another one: {seen}"))
}
