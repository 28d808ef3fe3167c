//! Encryption and signatures of our own files.

use apr_core::Code;
use apr_format::aprn::{
    Compression, LoadOptions, ModelType, Protection, SaveOptions, Signal, inspect, load_from_bytes,
    load_from_bytes_with, to_bytes, to_bytes_with,
};

use super::support::{
    LinearRegression, as_published, fitted, resealed, sample, seven, with_password,
};

/// X25519 secret key 0x09 x 32, and its public key by an independent implementation.
const IDENTITY: [u8; 32] = [9; 32];
const PUBLIC: &str = "57db4b359f23ae5e146e4e2512056704722506348c150c14753d0c933d04d421";

fn public() -> [u8; 32] {
    let digits = PUBLIC.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
    let bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).expect("digits")).collect();
    bytes.try_into().expect("32 bytes")
}

fn save(options: &SaveOptions) -> Vec<u8> {
    to_bytes_with(&fitted(), ModelType::LinearRegression, options, &mut seven).expect("a file")
}

fn load(file: &[u8], options: &LoadOptions) -> Result<LinearRegression, apr_format::aprn::Andon> {
    load_from_bytes_with(file, ModelType::LinearRegression, options)
}

fn identity(key: [u8; 32]) -> LoadOptions {
    LoadOptions { identity: Some(key.into()), ..LoadOptions::default() }
}

#[test]
fn the_same_salt_and_nonce_give_the_bytes_of_the_encrypted_sample() {
    let Some(file) = sample("linreg-enc-password-hunter2") else { return };
    let salt_and_nonce = file[79..107].to_vec();
    let mut left = &salt_and_nonce[..];
    let mut random = |bytes: &mut [u8]| {
        let (these, rest) = left.split_at(bytes.len());
        bytes.copy_from_slice(these);
        left = rest;
        Ok(())
    };
    let options = as_published(Compression::None).with_password("hunter2");
    let ours = to_bytes_with(&fitted(), ModelType::LinearRegression, &options, &mut random)
        .expect("a file");
    assert_eq!(ours, file);
}

#[test]
fn only_the_right_key_opens() {
    for compression in
        [Compression::None, Compression::Zstd, Compression::ZstdMax, Compression::Lz4]
    {
        let with_pass = save(&as_published(compression).with_password("hunter2"));
        let for_key = save(&as_published(compression).with_recipient(public()));
        assert_eq!(load(&with_pass, &with_password("hunter2")), Ok(fitted()));
        assert_eq!(load(&for_key, &identity(IDENTITY)), Ok(fitted()));
        let both = LoadOptions { password: Some("hunter2".into()), ..identity(IDENTITY) };
        assert_eq!(load(&with_pass, &both), Ok(fitted()));
        assert_eq!(load(&for_key, &both), Ok(fitted()));
        let wrong = [
            load(&with_pass, &LoadOptions::default()),
            load(&with_pass, &with_password("Hunter2")),
            load(&with_pass, &identity(IDENTITY)),
            load(&for_key, &LoadOptions::default()),
            load(&for_key, &identity([8; 32])),
            load(&for_key, &with_password("hunter2")),
        ];
        for (at, result) in wrong.into_iter().enumerate() {
            let andon = result.expect_err("the wrong key");
            assert_eq!(
                (at, andon.signal(), andon.error().code()),
                (at, Signal::DecryptionFailed, Code::Decrypt)
            );
        }
    }
}

#[test]
fn a_changed_byte_of_an_encrypted_payload_is_detected_despite_a_valid_checksum() {
    for options in [with_password("hunter2"), identity(IDENTITY)] {
        let protection = match options.password {
            Some(_) => Protection::Password("hunter2".into()),
            None => Protection::Recipient(public()),
        };
        let mut saved = as_published(Compression::None);
        saved.protection = Some(protection);
        let file = save(&saved);
        // Key derivation takes its time; a byte of each part is enough: salt or key, nonce,
        // ciphertext, tag.
        for back in [5, 21, 40, 50, 60] {
            let at = file.len() - back;
            let mut changed = file.clone();
            changed[at] ^= 1;
            let andon = load(&resealed(changed), &options).expect_err("changed bytes");
            assert_eq!(andon.signal(), Signal::DecryptionFailed, "byte {at}");
        }
    }
}

#[test]
fn a_signature_covers_header_metadata_and_payload() {
    let file = save(&as_published(Compression::Zstd).with_signing_key([7; 32]));
    let signed_end = file.len() - 100;
    for at in (5..signed_end + 64).filter(|at| !(8..20).contains(at)) {
        let mut changed = file.clone();
        changed[at] ^= 1;
        let Err(andon) = load(&resealed(changed), &LoadOptions::default()) else {
            panic!("byte {at}")
        };
        let expected = match at {
            6 | 7 => Signal::ModelTypeMismatch,
            20 | 21 => continue,
            _ => Signal::SignatureInvalid,
        };
        assert_eq!(andon.signal(), expected, "byte {at}: {andon}");
    }
}

#[test]
fn a_file_without_signature_is_rejected_if_one_is_required() {
    let key = inspect(&save(&as_published(Compression::None).with_signing_key([7; 32])))
        .expect("a file")
        .signed_by;
    let options =
        LoadOptions { trusted_keys: vec![key.expect("it is signed")], ..LoadOptions::default() };
    let unsigned = save(&as_published(Compression::None));
    assert_eq!(load(&unsigned, &options).expect_err("unsigned").signal(), Signal::SignatureInvalid);
}

#[test]
fn encryption_without_randomness_is_refused() {
    let options = SaveOptions::default().with_password("x");
    let error = to_bytes(&fitted(), ModelType::LinearRegression, &options)
        .expect_err("nothing to draw from");
    assert!(error.message().contains("random"), "{error}");
}

#[test]
fn an_encrypted_file_may_be_signed_as_well() {
    let file =
        save(&as_published(Compression::Zstd).with_password("hunter2").with_signing_key([7; 32]));
    assert_eq!(load(&file, &with_password("hunter2")), Ok(fitted()));
    assert!(load_from_bytes::<LinearRegression>(&file, ModelType::LinearRegression).is_err());
}

#[test]
fn secrets_are_not_shown() {
    let options = SaveOptions::default().with_password("hunter2").with_signing_key([7; 32]);
    let shown = format!("{options:?} {:?}", with_password("hunter2"));
    assert!(!shown.contains("hunter2") && !shown.contains("7, 7"), "{shown}");
}
