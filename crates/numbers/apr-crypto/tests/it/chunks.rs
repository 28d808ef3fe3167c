//! A tensor's chunks.

use apr_core::Code;
use apr_crypto::{
    DecryptionKey, EncrBlock, Lock, SEALED_CHUNK, TAG_LEN, TensorCipher, plain_len, sealed_len,
};
use proptest::prelude::*;

use super::{code, counted};

fn ciphers() -> (TensorCipher, TensorCipher) {
    let lock = Lock::Recipient(DecryptionKey::from_bytes(&[1; 32]).public_bytes());
    let (block, key) = EncrBlock::seal(&[lock], &mut counted()).expect("it can be sealed");
    (key.tensor(&block.salt(), "a"), key.tensor(&block.salt(), "b"))
}

fn sealed(cipher: &TensorCipher, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    cipher.seal_all(plain, &mut out);
    out
}

fn open(cipher: &TensorCipher, sealed: &[u8]) -> apr_core::Result<Vec<u8>> {
    let len = plain_len(sealed.len() as u64).and_then(|len| usize::try_from(len).ok()).unwrap_or(0);
    let mut out = vec![0; len];
    cipher.open_chunks(0, true, sealed, &mut out).map(|()| out)
}

#[test]
fn lengths_around_a_chunk_come_back() {
    let (cipher, _) = ciphers();
    for len in [
        0,
        1,
        15,
        16,
        17,
        SEALED_CHUNK - 1,
        SEALED_CHUNK,
        SEALED_CHUNK + 1,
        2 * SEALED_CHUNK,
        2 * SEALED_CHUNK + 5,
    ] {
        let plain: Vec<u8> = (0..len).map(|i| i.to_le_bytes()[0]).collect();
        let sealed = sealed(&cipher, &plain);
        assert_eq!(Some(sealed.len() as u64), sealed_len(len as u64));
        assert_eq!(open(&cipher, &sealed).expect("it is intact"), plain, "{len}");
    }
}

#[test]
fn chunks_open_alone_and_only_as_what_they_are() {
    let (cipher, _) = ciphers();
    let plain = vec![3; 2 * SEALED_CHUNK + 5];
    let sealed = sealed(&cipher, &plain);
    let (second, mut out) =
        (&sealed[SEALED_CHUNK + TAG_LEN..2 * (SEALED_CHUNK + TAG_LEN)], vec![0; SEALED_CHUNK]);
    cipher.open(1, false, second, &mut out).expect("it is the second");
    assert_eq!(out, plain[..SEALED_CHUNK]);
    cipher
        .open_chunks(1, true, &sealed[SEALED_CHUNK + TAG_LEN..], &mut vec![0; SEALED_CHUNK + 5])
        .expect("second and third");
    out.fill(0);
    for (number, last) in [(0, false), (2, false), (1, true), (u64::MAX, false), (1 << 32, false)] {
        assert_eq!(
            code(cipher.open(number, last, second, &mut out)),
            Code::Decrypt,
            "{number} {last}"
        );
    }
    assert_eq!(code(cipher.open(1, false, second, &mut [0; 10])), Code::Decrypt);
    assert!(out.iter().all(|&byte| byte == 0), "no plaintext leaves");
}

#[test]
fn cut_swapped_appended_and_foreign_chunks_are_noticed() {
    let (cipher, other) = ciphers();
    let sealed = sealed(&cipher, &vec![3; 3 * SEALED_CHUNK]);
    let chunk = SEALED_CHUNK + TAG_LEN;
    let (a, b, c) = (&sealed[..chunk], &sealed[chunk..2 * chunk], &sealed[2 * chunk..]);
    assert!(open(&cipher, &[a, b, c].concat()).is_ok());
    for broken in [
        vec![b, a, c],
        vec![a, b],
        vec![a, c],
        vec![a, b, b, c],
        vec![a, b, c, c],
        vec![c, b, a],
        vec![c],
    ] {
        assert_eq!(code(open(&cipher, &broken.concat())), Code::Decrypt);
    }
    for len in [1, 15, 16, chunk - 1, chunk + 1, chunk + 16, 3 * chunk - 1] {
        assert_eq!(code(open(&cipher, &sealed[..len])), Code::Decrypt, "{len}");
    }
    assert_eq!(code(open(&other, &sealed)), Code::Decrypt, "another tensor of the same file");
}

#[test]
fn stored_lengths_beyond_2_to_the_64_are_not_possible() {
    assert_eq!(sealed_len(u64::MAX), None);
    assert_eq!((plain_len(16), plain_len(65_552 + 16), plain_len(17)), (None, None, Some(1)));
}

proptest! {
    #[test]
    fn any_flipped_bit_is_noticed(len in 1_usize..300, bit in any::<prop::sample::Index>()) {
        let (cipher, _) = ciphers();
        let mut sealed = sealed(&cipher, &vec![5; len]);
        let bit = bit.index(8 * sealed.len());
        sealed[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(code(open(&cipher, &sealed)), Code::Decrypt);
    }

    #[test]
    fn stored_lengths_are_inverted(len in 0_u64..1 << 60) {
        let sealed = sealed_len(len).expect("it fits");
        prop_assert_eq!(plain_len(sealed), Some(len));
    }
}
