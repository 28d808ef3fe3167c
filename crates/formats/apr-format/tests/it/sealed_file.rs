//! `fixtures/valid/apr2/sealed.apr`, which Python made from the specification
//! (`fixtures/valid/keys/make.py`).
#![cfg(all(feature = "encryption", feature = "signing"))]

use apr_core::{CheckpointReader, Code, Limits};
use apr_format::apr2::{self, Keys, mac_header};
use apr_format::crypto::{
    Argon2Costs, EncrBlock, FileKey, LicenceBlock, Lock, PrivateKey, PublicKey, SignBlock, Unlock,
    parse_time, plain_len, sign_digest,
};
use apr_testkit::locate;

/// Returns the code of the error of a call.
fn code<T>(result: apr_core::Result<T>) -> Code {
    result.err().expect("it should fail").code()
}

/// The parts of the file, cut by hand, because the readers of this crate are not under test here.
struct Parts {
    header: [u8; 32],
    front: Vec<u8>,
    encr: Vec<u8>,
    /// Name, stored bytes.
    tensors: Vec<(&'static str, Vec<u8>)>,
    dgst: Vec<u8>,
    sign: Vec<u8>,
    licn: Vec<u8>,
}

fn u64_at(file: &[u8], at: usize) -> usize {
    usize::try_from(u64::from_le_bytes(*file[at..].first_chunk().expect("inside the file")))
        .expect("a small file")
}

fn u32_at(file: &[u8], at: usize) -> usize {
    u32::from_le_bytes(*file[at..].first_chunk().expect("inside the file")) as usize
}

fn block(file: &[u8], at: usize) -> Vec<u8> {
    file[at..at + (16 + u64_at(file, at + 8)).next_multiple_of(64)].to_vec()
}

fn parts() -> Parts {
    let file =
        std::fs::read(locate::fixture("valid/apr2/sealed.apr")).expect("the fixture is there");
    let (index, index_len, data) = (u32_at(&file, 20), u32_at(&file, 24), u32_at(&file, 28));
    let mut at = index + 8;
    let mut tensors = Vec::new();
    let mut end = 0;
    for name in ["bias", "empty", "mask", "weight"] {
        at += 2 + name.len();
        let dims = usize::from(file[at + 1]);
        at += 2 + 8 * dims;
        let (offset, size) = (u64_at(&file, at), u64_at(&file, at + 8));
        tensors.push((name, file[data + offset..][..size].to_vec()));
        end = data + offset + size;
        at += 28;
    }
    let dgst = block(&file, end.next_multiple_of(64));
    let sign = block(&file, end.next_multiple_of(64) + dgst.len());
    let licn = block(&file, end.next_multiple_of(64) + dgst.len() + sign.len());
    Parts {
        header: *file.first_chunk().expect("a header"),
        front: file[32..index + index_len].to_vec(),
        encr: block(&file, data),
        tensors,
        dgst,
        sign,
        licn,
    }
}

impl Parts {
    fn digest(&self) -> [u8; 32] {
        sign_digest(&[&self.header, &self.front, &self.encr, &self.dgst])
    }

    fn unlock(&self, key: Unlock) -> (EncrBlock, FileKey) {
        let block = EncrBlock::decode(&self.encr).expect("a sound block");
        let key = block.unlock(&[key]).expect("the right key");
        block.verify(&key, &[&mac_header(&self.header), &self.front]).expect("the front is intact");
        (block, key)
    }
}

fn private(name: &str) -> PrivateKey {
    let text = std::fs::read_to_string(locate::fixture("valid/keys").join(name))
        .expect("the fixture is there");
    PrivateKey::from_pem(&text).expect("a private key")
}

fn identity(name: &str) -> Unlock {
    match private(name) {
        PrivateKey::Decryption(key) => Unlock::Identity(key),
        other => panic!("{other:?} opens nothing"),
    }
}

fn expected(name: &str) -> Vec<u8> {
    match name {
        "bias" => [1.5_f32, -2.0].into_iter().flat_map(f32::to_le_bytes).collect(),
        "mask" => (0..65_536_u32).map(|i| (i % 251).to_le_bytes()[0]).collect(),
        "weight" => (0..16_510_u16).flat_map(|i| f32::from(i).to_le_bytes()).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn a_file_that_python_sealed_opens_by_key_and_by_password() {
    let parts = parts();
    for unlock in
        [identity("test_recipient.pem"), Unlock::Password(b"test password".to_vec().into())]
    {
        let (block, key) = parts.unlock(unlock);
        for (name, stored) in &parts.tensors {
            let len = plain_len(stored.len() as u64).expect("a length that tensors have");
            let mut plain = vec![0; usize::try_from(len).expect("a small file")];
            key.tensor(&block.salt(), name)
                .open_chunks(0, true, stored, &mut plain)
                .expect("it is intact");
            assert_eq!(plain, expected(name), "{name}");
            let mut again = Vec::new();
            key.tensor(&block.salt(), name).seal_all(&plain, &mut again);
            assert_eq!(again, *stored, "{name}: sealing is the same bytes too");
        }
    }
}

#[test]
fn sealing_and_signing_with_the_same_random_bytes_give_pythons_blocks() {
    let parts = parts();
    let mut calls = 0;
    let mut random = |bytes: &mut [u8]| {
        calls += 1;
        bytes.fill(calls);
        Ok(())
    };
    let costs = Argon2Costs { m: 64, t: 1, p: 1 };
    let recipient = *private("test_recipient.pem").public().bytes();
    let locks = [
        Lock::Password { password: b"test password".to_vec().into(), costs },
        Lock::Recipient(recipient),
    ];
    let (mut block, key) = EncrBlock::seal(&locks, &mut random).expect("it can be sealed");
    block.authenticate(&key, &[&mac_header(&parts.header), &parts.front]);
    assert_eq!(block.encode(), parts.encr);

    let mut sign = SignBlock::default();
    for name in ["test_signer.pem", "test_second_signer.pem"] {
        let PrivateKey::Signing(key) = private(name) else { panic!("{name} signs") };
        sign.sign(&key, &parts.digest()).expect("there is room");
    }
    assert_eq!(sign.encode(), parts.sign);
}

#[test]
fn a_file_that_python_sealed_stays_shut_for_others() {
    let block = EncrBlock::decode(&parts().encr).expect("a sound block");
    for wrong in
        [identity("test_openssl_x25519.pem"), Unlock::Password(b"Test password".to_vec().into())]
    {
        assert_eq!(code(block.unlock(&[wrong])), Code::Decrypt);
    }
}

#[test]
fn swapped_tensors_and_a_changed_shape_are_noticed() {
    let mut parts = parts();
    let (block, key) = parts.unlock(identity("test_recipient.pem"));
    let mut plain = vec![0; 65_536];
    let mask = &parts.tensors[2].1;
    assert_eq!(
        code(key.tensor(&block.salt(), "weight").open_chunks(0, true, mask, &mut plain)),
        Code::Decrypt
    );
    for at in 0..parts.front.len() {
        parts.front[at] ^= 1;
        let verified = block.verify(&key, &[&mac_header(&parts.header), &parts.front]);
        assert_eq!(code(verified), Code::Decrypt, "byte {at}");
        parts.front[at] ^= 1;
    }
}

#[test]
fn signatures_and_the_licence_that_python_made_verify() {
    let parts = parts();
    let trusted = [private("test_signer.pem").public()];
    let sign = SignBlock::decode(&parts.sign).expect("a sound block");
    let verified = sign.verify(&parts.digest(), &trusted);
    assert_eq!(
        verified.signers.iter().map(|s| (s.valid, s.trusted)).collect::<Vec<_>>(),
        [(true, true), (true, false)]
    );
    assert_eq!(verified.signers[1].public, private("test_second_signer.pem").public());
    assert_eq!(sign.encode(), parts.sign);

    let licn = LicenceBlock::decode(&parts.licn).expect("a sound block");
    assert_eq!(licn.verify(&parts.digest(), &trusted).expect("it is trusted"), trusted[0]);
    let now = parse_time("2026-06-01T00:00:00Z").expect("RFC 3339");
    assert_eq!(licn.licence().check(now, Some("Example Ltd"), Some(5)), []);
    let stranger = [PublicKey::Verifying([7; 32])];
    assert_eq!(code(licn.verify(&parts.digest(), &stranger)), Code::Signature);
}

#[test]
fn a_sealed_file_is_described_without_its_key() {
    let open = |unlock: Vec<Unlock>| {
        let file =
            std::fs::read(locate::fixture("valid/apr2/sealed.apr")).expect("the fixture is there");
        let keys = Keys { unlock, ..Keys::default() };
        apr2::open_with_keys(file, "sealed.apr", &Limits::default(), &keys)
            .expect("its names and shapes are readable")
    };
    for (unlock, is_locked) in [(Vec::new(), true), (vec![identity("test_recipient.pem")], false)] {
        let reader = open(unlock);
        let container = reader.container();
        let features = container.features();
        assert!(features.encrypted && features.signed);
        assert_eq!(features.alignment, Some(64));
        assert_eq!(container.is_locked(), is_locked);
        let encryption = &container.header_fields()["encryption"];
        assert_eq!(
            (&encryption["cipher"], &encryption["locked"]),
            (&"AES-256-GCM".into(), &is_locked.into())
        );
    }
}
