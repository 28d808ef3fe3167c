//! Keys as PEM.

use apr_core::Code;
use apr_crypto::{KeyKind, PrivateKey, PublicKey};
use apr_testkit::locate;

use super::{array, code};

fn fixture(name: &str) -> String {
    std::fs::read_to_string(locate::fixture("valid/keys").join(name)).expect("the fixture is there")
}

/// RFC 8410 §10.1 and §10.3.
const RFC_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
";
const RFC_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
-----END PRIVATE KEY-----
";
const RFC_PRIVATE_V2: &str = "-----BEGIN PRIVATE KEY-----
MHICAQEwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
oB8wHQYKKoZIhvcNAQkJFDEPDA1DdXJkbGUgQ2hhaXJzgSEAGb9ECWmEzf6FQbrB
Z9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PRIVATE KEY-----
";

#[test]
fn keys_of_python_and_openssl_are_read_and_written_back_byte_for_byte() {
    for name in [
        "test_signer",
        "test_second_signer",
        "test_recipient",
        "test_openssl_ed25519",
        "test_openssl_x25519",
    ] {
        let (private, public) =
            (fixture(&format!("{name}.pem")), fixture(&format!("{name}.pub.pem")));
        let key = PrivateKey::from_pem(&private).expect("a private key");
        assert_eq!(*key.to_pem(), private, "{name}");
        assert_eq!(key.public(), PublicKey::from_pem(&public).expect("a public key"), "{name}");
        assert_eq!(key.public().to_pem(), public, "{name}");
        let kind = if name.contains("signer") || name.contains("ed25519") {
            KeyKind::Signing
        } else {
            KeyKind::Encryption
        };
        assert_eq!(key.public().kind(), kind, "{name}");
    }
}

#[test]
fn a_key_is_the_bytes_it_was_made_of() {
    for (kind, byte, name) in
        [(KeyKind::Signing, 0xa1, "test_signer"), (KeyKind::Encryption, 0xb1, "test_recipient")]
    {
        let key = PrivateKey::generate(kind, &[byte; 32]).expect("this build has both kinds");
        assert_eq!(*key.to_pem(), fixture(&format!("{name}.pem")));
    }
}

#[test]
fn both_versions_of_pkcs_8_are_read() {
    let public = PublicKey::from_pem(RFC_PUBLIC).expect("the key of RFC 8410");
    let bytes = array("19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1");
    assert_eq!(public, PublicKey::Verifying(bytes));
    for text in [RFC_PRIVATE, RFC_PRIVATE_V2] {
        let key = PrivateKey::from_pem(text).expect("the key of RFC 8410");
        assert_eq!(key.public(), public);
        assert_eq!(*key.to_pem(), RFC_PRIVATE);
    }
}

#[test]
fn line_ends_and_blank_lines_around_a_key_do_not_matter() {
    let public = PublicKey::from_pem(RFC_PUBLIC).expect("the key of RFC 8410");
    for text in [
        RFC_PUBLIC.replace('\n', "\r\n"),
        format!("\n\n{RFC_PUBLIC}\n\n"),
        RFC_PUBLIC.trim_end().to_owned(),
    ] {
        assert_eq!(PublicKey::from_pem(&text).expect("the same key"), public);
    }
}

#[test]
fn a_public_key_that_does_not_go_with_the_private_one_is_refused() {
    let other = RFC_PRIVATE_V2.replace("lshQhqow", "lshQhqox");
    assert_ne!(other, RFC_PRIVATE_V2);
    assert_eq!(code(PrivateKey::from_pem(&other)), Code::Format);
}

#[test]
fn a_file_that_is_not_a_key_is_described_without_its_contents() {
    let secret = "MC4CAQAwBQYDK2Vw";
    let cases = [
        (RFC_PUBLIC.to_owned(), "public key"),
        (RFC_PRIVATE.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"), "passphrase"),
        (RFC_PRIVATE.replace("PRIVATE KEY", "OPENSSH PRIVATE KEY"), "OpenSSH"),
        (RFC_PRIVATE.replace("PRIVATE KEY", "RSA PRIVATE KEY"), "not the expected PEM key"),
        (RFC_PRIVATE.replace("dVhC", "dVh"), "malformed"),
        ("secret".to_owned(), "not a PEM key"),
        (String::new(), "not a PEM key"),
    ];
    for (text, words) in cases {
        let error = PrivateKey::from_pem(&text).expect_err("it is not a private key");
        assert_eq!(error.code(), Code::Format, "{text}");
        assert!(error.message().contains(words), "{error}");
        assert!(!error.message().contains(secret), "{error}");
    }
    assert_eq!(code(PublicKey::from_pem(RFC_PRIVATE)), Code::Format);
}

#[test]
fn keys_of_other_algorithms_are_a_matter_of_version() {
    // The identifier of Ed448 in place of Ed25519's.
    let other = RFC_PUBLIC.replace("MCowBQYDK2Vw", "MCowBQYDK2Vx");
    assert_eq!(code(PublicKey::from_pem(&other)), Code::Version);
}

#[test]
fn no_damage_to_a_key_makes_a_reader_panic() {
    for good in [RFC_PRIVATE_V2, RFC_PRIVATE, RFC_PUBLIC] {
        for len in 0..good.trim_end().len() {
            assert!(
                PrivateKey::from_pem(&good[..len]).is_err()
                    && PublicKey::from_pem(&good[..len]).is_err(),
                "{len}"
            );
        }
        for at in 0..good.len() {
            for byte in [b'A', b'/', b'=', b'\n', b'-', b'g'] {
                let mut changed = good.as_bytes().to_vec();
                changed[at] = byte;
                let text = String::from_utf8(changed).expect("ASCII");
                drop((PrivateKey::from_pem(&text), PublicKey::from_pem(&text)));
            }
        }
    }
}

#[test]
fn secrets_are_not_shown() {
    for name in ["test_signer", "test_recipient"] {
        let key = PrivateKey::from_pem(&fixture(&format!("{name}.pem"))).expect("a private key");
        let shown = format!("{key:?}");
        assert!(shown.ends_with("Key(..))") && shown.len() < 40, "{shown}");
    }
}

#[test]
fn fingerprints_name_the_algorithm_and_eight_bytes_of_the_hash() {
    // sha256sum of the 32 bytes of RFC 8410's public key.
    let key = PublicKey::from_pem(RFC_PUBLIC).expect("the key of RFC 8410");
    assert_eq!(key.fingerprint(), "ed25519:e744c0791320c328");
    assert_eq!(PublicKey::Recipient(*key.bytes()).fingerprint(), "x25519:e744c0791320c328");
}
