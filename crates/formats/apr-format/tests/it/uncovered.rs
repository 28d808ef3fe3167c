//! Bytes of a signed file that no signature covers.
#![cfg(feature = "signing")]

use crate::support::{Model, tensor};
use apr_core::digest::TensorDigest;
use apr_core::{
    CheckpointReader, CheckpointWriter, Code, DType, ExtentKind, Limits, Notes, Result,
};
use apr_format::apr2::{self, Apr2Reader, Changes, FOOTER_LEN, WriteOptions};
use apr_format::crypto::{PublicKey, SignBlock, SigningKey};

fn signer() -> SigningKey {
    SigningKey::from_bytes(&[3; 32])
}

/// Writes two tensors with padding after each.
fn write(signers: Vec<SigningKey>) -> Vec<u8> {
    let model = Model {
        tensors: vec![tensor("a", DType::U8, &[70]), tensor("b", DType::F32, &[3])],
        ..Model::default()
    };
    let options = WriteOptions { signers, ..WriteOptions::default() };
    let mut writer = apr2::plan(&model.infos(), &model.metadata, Vec::new(), &options)
        .expect("it can be written");
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory takes everything");
    model
        .tensors
        .iter()
        .for_each(|tensor| writer.write_chunk(&mut file, &tensor.bytes, None).expect("planned"));
    writer.finish(&mut file, &Notes::default()).expect("all tensors are there");
    file
}

fn open(file: Vec<u8>) -> Result<Apr2Reader> {
    apr2::open(file, "model.apr", &Limits::default())
}

/// Returns the file with a different byte at `at` and a checksum that matches.
fn changed(file: &[u8], at: usize) -> Vec<u8> {
    let mut file = file.to_vec();
    file[at] ^= 0x41;
    let footer = file.len() - FOOTER_LEN as usize;
    let crc32 = crc32fast::hash(&file[..footer]).to_le_bytes();
    file[footer..footer + 4].copy_from_slice(&crc32);
    file
}

/// Performs all checks of a reader that trusts the signer.
fn verify(file: Vec<u8>) -> Result<()> {
    let reader = open(file)?;
    let signed = reader.container().signed()?.expect("there are digests");
    let block = SignBlock::decode(signed.signatures.as_deref().unwrap_or_default())?;
    block.verify(&signed.digest, &[PublicKey::Verifying(signer().public_bytes())]).check()?;
    for (at, info) in reader.tensors().iter().enumerate() {
        let mut bytes = vec![0; usize::try_from(info.byte_len()?).expect("small")];
        reader.read_tensor(at, 0, &mut bytes)?;
        let mut digest = TensorDigest::new();
        digest.update(&bytes);
        if reader.stored(at).digest() != Some(digest.value()) {
            return Err(apr_core::Error::checksum("another digest"));
        }
    }
    reader.container().check_uncovered()
}

#[test]
fn every_changed_byte_of_a_signed_file_is_detected_despite_a_valid_checksum() {
    let file = write(vec![signer()]);
    verify(file.clone()).expect("as it was written");
    for at in 0..file.len() - FOOTER_LEN as usize {
        assert!(verify(changed(&file, at)).is_err(), "byte {at}");
    }
}

#[test]
fn padding_that_is_not_zero_is_e006_at_its_place() {
    let file = write(vec![signer()]);
    let extents = open(file.clone()).expect("a file").container().checksum().expect("one").extents;
    let padding: Vec<_> =
        extents.iter().filter(|extent| extent.kind == ExtentKind::Padding).collect();
    assert!(padding.len() >= 3, "before and after the first tensor, and after the second");
    for extent in padding {
        for at in [extent.offset, extent.offset + extent.len - 1] {
            let error =
                verify(changed(&file, usize::try_from(at).expect("small"))).expect_err("not zero");
            assert_eq!((error.code(), error.offset()), (Code::Signature, Some(at)), "{error}");
        }
    }
    let longer = [&file[..], b"more"].concat();
    let error = verify(longer).expect_err("more than the file");
    assert_eq!(
        (error.code(), error.offset()),
        (Code::Signature, Some(file.len() as u64)),
        "{error}"
    );
}

#[test]
fn a_file_with_bytes_that_no_signature_covers_is_not_signed() {
    let file = write(Vec::new());
    let changes = Changes { signers: vec![signer()], ..Changes::default() };
    let reader = open(file.clone()).expect("a file");
    assert!(reader.revise(&changes).expect("it can be signed").is_some());
    let end = reader.stored(0).range.offset + reader.stored(0).range.len;
    let dirty = open(changed(&file, usize::try_from(end).expect("small"))).expect("it opens");
    assert_eq!(dirty.revise(&changes).expect_err("not zero").code(), Code::Signature);
}
