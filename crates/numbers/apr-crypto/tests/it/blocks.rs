//! The blocks ENCR, SIGN and LICN.

use apr_core::Code;
use apr_crypto::{
    Argon2Costs, DecryptionKey, EncrBlock, Licence, LicenceBlock, LicenceViolation, Lock,
    PublicKey, SignBlock, SigningKey, Unlock, hash_licensee, parse_time, sign_digest,
};
use apr_testkit::{corrupt, peak_memory};

use super::{code, counted};

const CHEAP: Argon2Costs = Argon2Costs { m: 8, t: 1, p: 1 };
const UUID: &str = "00000000-0000-4000-8000-000000000000";

fn password(text: &str) -> Lock {
    Lock::Password { password: text.as_bytes().to_vec().into(), costs: CHEAP }
}

fn knows(text: &str) -> Unlock {
    Unlock::Password(text.as_bytes().to_vec().into())
}

fn owner(byte: u8) -> DecryptionKey {
    DecryptionKey::from_bytes(&[byte; 32])
}

fn recipient(byte: u8) -> Lock {
    Lock::Recipient(owner(byte).public_bytes())
}

#[test]
fn only_the_right_passwords_and_recipients_open_the_key() {
    let locks = [password("one"), recipient(1), password("two"), recipient(2)];
    let (block, key) = EncrBlock::seal(&locks, &mut counted()).expect("it can be sealed");
    let block = EncrBlock::decode(&block.encode()).expect("our own block");
    let mac = key.header_mac(&block.salt(), &[b"front"]);
    let keys = [knows("one"), knows("two"), Unlock::Identity(owner(1)), Unlock::Identity(owner(2))];
    for right in &keys {
        let opened = block
            .unlock(&[knows("wrong"), Unlock::Identity(owner(9)), right.clone()])
            .expect("one fits");
        assert_eq!(opened.header_mac(&block.salt(), &[b"front"]), mac);
    }
    for wrong in [knows("wrong"), knows(""), Unlock::Identity(owner(9))] {
        assert_eq!(code(block.unlock(&[wrong])), Code::Decrypt);
    }
    assert_eq!(code(block.unlock(&[])), Code::Decrypt);
}

#[test]
fn all_failures_to_decrypt_read_alike() {
    let (block, key) = EncrBlock::seal(&[password("one"), recipient(1)], &mut counted())
        .expect("it can be sealed");
    let mut out = [0; 4];
    let messages = [
        block.unlock(&[knows("secret word")]).expect_err("wrong").to_string(),
        block.unlock(&[Unlock::Identity(owner(3))]).expect_err("wrong").to_string(),
        block.verify(&key, &[b"changed"]).expect_err("changed").to_string(),
        key.tensor(&block.salt(), "a")
            .open(0, true, &[0; 20], &mut out)
            .expect_err("changed")
            .to_string(),
    ];
    assert!(messages.iter().all(|message| *message == messages[0]), "{messages:?}");
    assert!(!messages[0].contains("secret word"));
}

#[test]
fn the_mac_covers_every_bit_of_the_front_but_not_the_ends_of_its_parts() {
    let (mut block, key) =
        EncrBlock::seal(&[recipient(1)], &mut counted()).expect("it can be sealed");
    block.authenticate(&key, &[b"header", b"metadata", b"index"]);
    let block = EncrBlock::decode(&block.encode()).expect("our own block");
    assert!(block.verify(&key, &[b"headermetadataindex"]).is_ok());
    for changed in corrupt::bit_flips(b"headermetadataindex", 0..19) {
        assert_eq!(code(block.verify(&key, &[&changed])), Code::Decrypt);
    }
}

#[test]
fn the_length_of_a_block_follows_from_its_locks() {
    for locks in
        [vec![password("one")], vec![recipient(1)], vec![recipient(1), password("x"), recipient(2)]]
    {
        let (block, _) = EncrBlock::seal(&locks, &mut counted()).expect("it can be sealed");
        let bytes = block.encode();
        assert_eq!(bytes.len() as u64, EncrBlock::encoded_len(&locks));
        assert!(bytes.len().is_multiple_of(64));
        let head = bytes.first_chunk().expect("a head");
        assert_eq!(EncrBlock::stored_len(head).expect("our own block"), bytes.len() as u64);
        assert_eq!(EncrBlock::decode(&bytes).expect("our own block"), block);
    }
}

#[test]
fn locks_that_cannot_be_opened_or_cost_too_much_are_rejected() {
    let mut random = counted();
    assert_eq!(code(EncrBlock::seal(&[], &mut random)), Code::Format);
    assert_eq!(code(EncrBlock::seal(&[Lock::Recipient([0; 32])], &mut random)), Code::Format);
    let bomb =
        Lock::Password { password: vec![1].into(), costs: Argon2Costs { m: u32::MAX, t: 1, p: 1 } };
    assert_eq!(code(EncrBlock::seal(&[bomb], &mut random)), Code::Memory);
    assert_eq!(code(EncrBlock::seal(&vec![recipient(1); 4097], &mut random)), Code::Memory);
}

/// Offset of the first stanza in a block, after head, count, chunk and salt.
const STANZA: usize = 16 + 24;

#[test]
fn excessive_argon2_costs_are_rejected_without_allocating() {
    let (block, _) = EncrBlock::seal(&[password("one")], &mut counted()).expect("it can be sealed");
    let good = block.encode();
    for (field, cost) in
        [(0, u32::MAX), (0, (1 << 20) + 1), (4, 17), (4, u32::MAX), (8, 65), (8, u32::MAX)]
    {
        let bomb = corrupt::overwrite(&good, STANZA + 20 + field, &cost.to_le_bytes());
        let (outcome, peak) = peak_memory(|| code(EncrBlock::decode(&bomb)));
        assert_eq!(outcome, Code::Memory, "{field} {cost}");
        assert!(peak < 4096, "{peak} bytes");
    }
    for (field, cost) in [(0, 7_u32), (0, 0), (4, 0), (8, 0)] {
        let weak = corrupt::overwrite(&good, STANZA + 20 + field, &cost.to_le_bytes());
        assert_eq!(code(EncrBlock::decode(&weak)), Code::Corrupt, "{field} {cost}");
    }
    // Each bearable, all together not.
    let (block, _) = EncrBlock::seal(&[password("one"), password("two")], &mut counted())
        .expect("it can be sealed");
    let mut many = block.encode();
    for stanza in [STANZA, STANZA + 92] {
        many = corrupt::overwrite(&many, stanza + 20, &(1_u32 << 20).to_le_bytes());
        many = corrupt::overwrite(&many, stanza + 24, &16_u32.to_le_bytes());
    }
    assert_eq!(code(EncrBlock::decode(&many)), Code::Memory);
}

#[test]
fn counts_and_lengths_that_lie_are_refused_before_they_allocate() {
    let (block, _) = EncrBlock::seal(&[recipient(1)], &mut counted()).expect("it can be sealed");
    let good = block.encode();
    for count in [0, 2, 3, 1 << 31, u32::MAX] {
        let bad = corrupt::overwrite(&good, 16, &count.to_le_bytes());
        let (outcome, peak) = peak_memory(|| code(EncrBlock::decode(&bad)));
        assert_eq!(outcome, Code::Corrupt, "{count}");
        assert!(peak < 4096, "{peak} bytes");
    }
    for len in [0, 1, 159, 161, 1 << 32, 1 << 63, u64::MAX - 15, u64::MAX] {
        let bad = corrupt::overwrite(&good, 8, &len.to_le_bytes());
        assert_eq!(code(EncrBlock::decode(&bad)), Code::Corrupt, "{len}");
    }
    let huge = corrupt::overwrite(&good, 8, &u64::MAX.to_le_bytes());
    assert_eq!(code(EncrBlock::stored_len(huge.first_chunk().expect("a head"))), Code::Memory);
}

#[test]
fn newer_versions_stanzas_and_chunk_lengths_are_version_errors() {
    let (block, _) = EncrBlock::seal(&[recipient(1)], &mut counted()).expect("it can be sealed");
    let good = block.encode();
    for (at, number) in [(4, 2_u32), (STANZA, 3), (20, 65_537), (20, 0)] {
        assert_eq!(
            code(EncrBlock::decode(&corrupt::overwrite(&good, at, &number.to_le_bytes()))),
            Code::Version,
            "{at}"
        );
    }
}

#[test]
fn broken_encr_blocks_never_open_to_another_key() {
    let (mut block, key) = EncrBlock::seal(&[password("one"), recipient(1)], &mut counted())
        .expect("it can be sealed");
    block.authenticate(&key, &[b"front"]);
    let good = block.encode();
    for bytes in corrupt::truncations(&good) {
        assert!(EncrBlock::decode(&bytes).is_err(), "cut at {}", bytes.len());
    }
    for bytes in corrupt::bit_flips(&good, 0..good.len()) {
        // A decoded block opens with neither or one key, and then its MAC or its tensors tell.
        let Ok(block) = EncrBlock::decode(&bytes) else { continue };
        let Ok(opened) = block.unlock(&[Unlock::Identity(owner(1))]) else { continue };
        let same_salt = opened.header_mac(&[0; 16], &[]) == key.header_mac(&[0; 16], &[]);
        assert!(same_salt, "the file key is another");
    }
}

#[test]
fn signers_are_distinguished_by_validity_and_trust() {
    let (vendor, stranger) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
    let digest = sign_digest(&[b"header", b"metadata", b"index", b"digests"]);
    let mut block = SignBlock::default();
    assert_eq!(code(block.verify(&digest, &[]).check()), Code::Signature);
    block.sign(&vendor, &digest).expect("there is room");
    block.sign(&stranger, &digest).expect("there is room");
    let trusted = [PublicKey::Verifying(vendor.public_bytes())];

    let block = SignBlock::decode(&block.encode()).expect("our own block");
    let verified = block.verify(&digest, &trusted);
    assert_eq!(
        verified.signers.iter().map(|s| (s.valid, s.trusted)).collect::<Vec<_>>(),
        [(true, true), (true, false)]
    );
    assert!(verified.check().is_ok());
    // The same 32 bytes as an encryption key are not the signer's.
    assert_eq!(
        code(block.verify(&digest, &[PublicKey::Recipient(vendor.public_bytes())]).check()),
        Code::Signature
    );
    assert_eq!(
        code(block.verify(&digest, &[]).check()),
        Code::Signature,
        "a key in the file is no reason to trust it"
    );
    assert_eq!(code(block.verify(&sign_digest(&[b"other"]), &trusted).check()), Code::Signature);
}

#[test]
fn signing_again_replaces_the_signature() {
    let vendor = SigningKey::from_bytes(&[1; 32]);
    let mut block = SignBlock::default();
    block.sign(&vendor, &[1; 32]).expect("there is room");
    block.sign(&vendor, &[2; 32]).expect("there is room");
    assert_eq!(block.signatures().len(), 1);
    assert!(block.verify(&[2; 32], &[PublicKey::Verifying(vendor.public_bytes())]).check().is_ok());
}

#[test]
fn broken_sign_blocks_do_not_verify() {
    let vendor = SigningKey::from_bytes(&[1; 32]);
    let (mut block, trusted) =
        (SignBlock::default(), [PublicKey::Verifying(vendor.public_bytes())]);
    block.sign(&vendor, &[1; 32]).expect("there is room");
    let good = block.encode();
    assert_eq!(good.len() as u64, SignBlock::encoded_len(1));
    for bytes in corrupt::truncations(&good).chain(corrupt::bit_flips(&good, 0..good.len())) {
        let verified =
            SignBlock::decode(&bytes).and_then(|block| block.verify(&[1; 32], &trusted).check());
        assert!(verified.is_err(), "{bytes:?}");
    }
    for count in [0, 2, 1 << 31, u32::MAX] {
        assert_eq!(
            code(SignBlock::decode(&corrupt::overwrite(&good, 16, &count.to_le_bytes()))),
            Code::Corrupt
        );
    }
    assert_eq!(code(SignBlock::decode(&corrupt::overwrite(&good, 24, &[2]))), Code::Version);
}

fn licence() -> Licence {
    Licence {
        uuid: UUID.into(),
        licensee_hash: Some(hash_licensee(UUID, "Example Ltd")),
        expires: Some(parse_time("2027-01-01T00:00:00Z").expect("RFC 3339")),
        seats: Some(5),
        terms: "internal use".into(),
    }
}

#[test]
fn a_licence_holds_for_its_file_and_its_issuer() {
    let (vendor, digest) = (SigningKey::from_bytes(&[1; 32]), [9; 32]);
    let trusted = [PublicKey::Verifying([0; 32]), PublicKey::Verifying(vendor.public_bytes())];
    let block = LicenceBlock::issue(&licence(), &vendor, &digest).expect("a sound licence");
    let good = block.encode();
    let block = LicenceBlock::decode(&good).expect("our own block");
    assert_eq!(*block.licence(), licence());
    assert_eq!(block.verify(&digest, &trusted).expect("it is trusted"), trusted[1]);
    assert_eq!(code(block.verify(&[8; 32], &trusted)), Code::Signature);
    assert_eq!(code(block.verify(&digest, &trusted[..1])), Code::Signature);
    for bytes in corrupt::truncations(&good).chain(corrupt::bit_flips(&good, 0..good.len())) {
        assert!(
            LicenceBlock::decode(&bytes).and_then(|block| block.verify(&digest, &trusted)).is_err()
        );
    }
}

#[test]
fn a_licence_reports_what_a_use_would_violate() {
    let time = |text| parse_time(text).expect("RFC 3339");
    let (before, end) = (time("2026-12-31T23:59:59.999Z"), time("2027-01-01T01:00:00+01:00"));
    let licence = licence();
    assert_eq!(licence.check(before, Some("Example Ltd"), Some(5)), []);
    assert_eq!(licence.check(before, Some("Example Ltd"), None), []);
    assert_eq!(licence.check(before, None, None), [LicenceViolation::LicenseeUnknown]);
    let all = [
        LicenceViolation::Expired { at: end },
        LicenceViolation::NotTheLicensee,
        LicenceViolation::SeatsExceeded { used: 6, allowed: 5 },
    ];
    assert_eq!(licence.check(end, Some("example ltd"), Some(6)), all);
    let open = Licence { licensee_hash: None, expires: None, seats: None, ..licence };
    assert_eq!(open.check(end, None, Some(u64::MAX)), []);
}

#[test]
fn an_invalid_licence_is_not_issued() {
    let issue = |licence: Licence| {
        LicenceBlock::issue(&licence, &SigningKey::from_bytes(&[1; 32]), &[0; 32])
    };
    for uuid in
        ["", "x", "00000000-0000-4000-8000-00000000000g", "00000000-0000-4000-8000-000000000000-"]
    {
        assert_eq!(
            code(issue(Licence { uuid: uuid.into(), ..licence() })),
            Code::Corrupt,
            "{uuid}"
        );
    }
    assert_eq!(
        code(issue(Licence { licensee_hash: Some("00".into()), ..licence() })),
        Code::Corrupt
    );
    assert_eq!(code(issue(Licence { terms: "x".repeat(1 << 20), ..licence() })), Code::Memory);
    for text in ["", "2027", "2027-01-01", "2027-01-01T00:00:00", "tomorrow"] {
        assert_eq!(code(parse_time(text)), Code::Format, "{text}");
    }
}
