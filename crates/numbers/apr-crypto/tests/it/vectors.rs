//! Published vectors, through our functions where those reach.

use apr_core::Code;
use apr_crypto::{
    Argon2Costs, DecryptionKey, SigningKey, aead_open, aead_seal, password_key, recipient_key,
    verify_ed25519,
};

use super::{array, code, hex};

#[test]
fn ed25519_signs_and_verifies_as_in_rfc_8032() {
    // Section 7.1, TEST 1 to 3: seed, public key, message, signature.
    let vectors = [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39\
             701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f36\
             13d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f7\
             60984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
    ];
    for (seed, public, message, signature) in vectors {
        let (key, public, message, signature) = (
            SigningKey::from_bytes(&array(seed)),
            array(public),
            hex(message),
            array::<64>(signature),
        );
        assert_eq!(key.public_bytes(), public);
        assert_eq!(key.sign(&message), signature);
        assert!(verify_ed25519(&public, &message, &signature));
        for bit in 0..512 {
            let mut changed = signature;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify_ed25519(&public, &message, &changed), "bit {bit}");
        }
    }
}

#[test]
fn keys_of_small_order_verify_no_signature() {
    // The neutral element as key and as R, and S = 0: satisfies the equation for every message.
    let mut identity = [0; 32];
    identity[0] = 1;
    let mut signature = [0; 64];
    signature[0] = 1;
    assert!(!verify_ed25519(&identity, b"anything", &signature));
}

#[test]
fn x25519_agrees_as_in_rfc_7748() {
    // Section 6.1.
    let alice = DecryptionKey::from_bytes(&array(
        "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
    ));
    let bob = DecryptionKey::from_bytes(&array(
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
    ));
    let alice_public = array("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
    let bob_public = array("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
    let shared = array("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
    assert_eq!((alice.public_bytes(), bob.public_bytes()), (alice_public, bob_public));
    assert_eq!(*alice.shared(&bob_public).expect("a sound key"), shared);
    assert_eq!(*bob.shared(&alice_public).expect("a sound key"), shared);
}

#[test]
fn x25519_refuses_public_keys_of_small_order() {
    // Points of order 1, 2, 4 and 8 on the curve (RFC 7748 §6.1 lets implementations check for the
    // zero they lead to).
    for point in [
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    ] {
        assert_eq!(
            code(DecryptionKey::from_bytes(&[7; 32]).shared(&array(point))),
            Code::Decrypt,
            "{point}"
        );
    }
}

#[test]
fn aes_256_gcm_is_nists() {
    // McGrew and Viega, test case 14; then two of gcmEncryptExtIV256.rsp of NIST's CAVP: key,
    // nonce, aad, plain, sealed.
    let zeros = "00".repeat(32);
    let vectors = [
        (
            &*zeros,
            "000000000000000000000000",
            "",
            "00000000000000000000000000000000",
            "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
        ),
        (
            "78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223",
            "d79cf22d504cc793c3fb6c8a",
            "b96baa8c1c75a671bfb2d08d06be5f36",
            "",
            "3e5d486aa2e30b22e040b85723a06e76",
        ),
        (
            "f61b723359e798fefecc26b10b168dc331c639079598f1f651166cc58c671ee1",
            "b07e9407b592d4fd95509343",
            "1429c6f27828cb94ad5e62451da10fd574660cec2b8f279a19bbb8a167a630d3ac60db04e8faa02204792e\
             49aed4501844a419d3ecdff0d03799866fee81a91187b08a44d5bb617ff3b2cef79cd48750ea20903e1d36\
             27a17730",
            "2724f1ad6b5b409a59c7f2ff649eb24b4a33a03d7a0426e29a6ea3aa91b4f00699fbed75bb7189964303e2\
             e9fe3a7e5f74b7a1",
            "362bad8de943dce8f53edf682d02e1d893c23c5272b13fd35b492f8477083a8c34027db32b6131931f0355\
             5ac5fbc6dbb13801a51775606343755691f125019b44fdfc",
        ),
    ];
    for (key, nonce, aad, plain, sealed) in vectors {
        let (key, nonce, aad, plain, sealed) =
            (array(key), array(nonce), hex(aad), hex(plain), hex(sealed));
        assert_eq!(aead_seal(&key, &nonce, &aad, &plain), sealed);
        assert_eq!(aead_open(&key, &nonce, &aad, &sealed).expect("it is intact"), plain);
        for bit in 0..8 * sealed.len() {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(code(aead_open(&key, &nonce, &aad, &changed)), Code::Decrypt, "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert_eq!(
                code(aead_open(&key, &nonce, &aad, &sealed[..len])),
                Code::Decrypt,
                "{len} bytes"
            );
        }
        assert_eq!(code(aead_open(&key, &nonce, b"other", &sealed)), Code::Decrypt);
    }
}

#[test]
fn passwords_give_the_keys_that_openssl_derives() {
    // Python's cryptography 48, Argon2id(salt=bytes(range(16)), length=32, iterations=t, lanes=p,
    // memory_cost=m).
    let salt = core::array::from_fn(|i| u8::try_from(i).expect("16 bytes"));
    for (password, m, t, p, key) in [
        (
            "password",
            19_456,
            2,
            1,
            "39903a34cd393876436e671cd690dfe8ab9ce7b13459a7e04ec0e4f0694ddb0d",
        ),
        ("", 8, 1, 1, "31ed41e2d73f27fdfe4eb4bec651341e58ba43477051c6fe4adad735d82ee08a"),
        ("grüße", 64, 3, 4, "74a630c857ff5d2980cfb73b77e2468cee80690715289405fb8abd3de7550f50"),
    ] {
        let derived = password_key(password.as_bytes(), &salt, Argon2Costs { m, t, p })
            .expect("bearable costs");
        assert_eq!(*derived, array(key), "{password}");
    }
}

#[test]
fn argon2id_matches_rfc_9106() {
    // Section 5.3. It takes a secret and associated data, which our files don't: straight through
    // the crate we use.
    let params = argon2::ParamsBuilder::new()
        .m_cost(32)
        .t_cost(3)
        .p_cost(4)
        .data(argon2::AssociatedData::new(&[4; 12]).expect("short enough"))
        .build()
        .expect("allowed");
    let secret = [3; 8];
    let argon2 = argon2::Argon2::new_with_secret(
        &secret,
        argon2::Algorithm::Argon2id,
        argon2::Version::V0x13,
        params,
    )
    .expect("ok");
    let mut tag = [0; 32];
    argon2.hash_password_into(&[1; 32], &[2; 16], &mut tag).expect("allowed");
    assert_eq!(tag, array("0d640df58d78766c08c037a34a8b53c9d01ef0452d75b65eb52520e96b01e659"));
}

#[test]
fn keys_are_shared_by_hkdf_without_salt() {
    // Python's cryptography 48, HKDF(SHA256(), 32, None, info).derive(bytes([7]) * 32).
    let key = recipient_key(&[7; 32], b"apr-v1-encrypt");
    assert_eq!(*key, array("d19a43902f5e95df74fd75d7af21ab1a550b8ccb9776a841036525ea970e55e6"));
}

#[test]
fn costs_out_of_bounds_are_refused_before_they_are_paid() {
    let costs = |m, t, p| password_key(b"", &[0; 16], Argon2Costs { m, t, p });
    for (m, t, p) in
        [(u32::MAX, 1, 1), ((1 << 20) + 1, 1, 1), (64, 17, 1), (64, u32::MAX, 1), (1 << 20, 1, 65)]
    {
        assert_eq!(code(costs(m, t, p)), Code::Memory, "{m} {t} {p}");
    }
    for (m, t, p) in [(0, 1, 1), (7, 1, 1), (64, 0, 1), (64, 1, 0), (31, 1, 4)] {
        assert_eq!(code(costs(m, t, p)), Code::Corrupt, "{m} {t} {p}");
    }
}
