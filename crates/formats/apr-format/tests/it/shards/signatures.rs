//! Signed manifests, which cover every shard.

use apr_core::{CheckpointReader, Code, Error};
use apr_format::crypto::{PublicKey, SignBlock, SigningKey};
use apr_testkit::{FolderInMemory, corrupt, read_everything};
use serde_json::Value;

use super::{cut, cut_and_signed, open, plain, refused, small};

/// Verifies that `trusted` signed the manifest and each of its shards.
fn verify(folder: &FolderInMemory, trusted: &SigningKey) -> Result<(), Error> {
    let model = open(folder)?;
    let signed =
        model.container().signed()?.ok_or_else(|| Error::new(Code::Signature, "no signature"))?;
    let block = SignBlock::decode(&signed.signatures.unwrap_or_default())?;
    block.verify(&signed.digest, &[PublicKey::Verifying(trusted.public_bytes())]).check()?;
    (0..model.shard_count()).try_for_each(|shard| model.shard(shard).map(drop))
}

#[track_caller]
fn is_e006(folder: &FolderInMemory, trusted: &SigningKey, says: &str) {
    let error = verify(folder, trusted).expect_err(says);
    assert_eq!(error.code(), Code::Signature, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

fn text_of(folder: &FolderInMemory) -> String {
    String::from_utf8(folder.0["model.apr"].clone()).expect("a manifest is JSON")
}

fn with_text(folder: &FolderInMemory, text: String) -> FolderInMemory {
    let mut folder = folder.clone();
    folder.0.insert("model.apr".into(), text.into_bytes());
    folder
}

#[test]
fn a_signed_manifest_holds_for_these_shards_alone() {
    let (vendor, stranger) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
    let folder = cut_and_signed(&small(), 100, std::slice::from_ref(&vendor));
    verify(&folder, &vendor).expect("signed by the vendor");
    is_e006(&folder, &stranger, "not trusted");
    read_everything(&open(&folder).expect("sound")).expect("sound");

    // What nobody signed: other metadata, a shard less, no signature of the manifest.
    let text = text_of(&folder);
    is_e006(
        &with_text(&folder, text.replace("\"toy\"", "\"fox\"")),
        &vendor,
        "changed after signing",
    );
    let end = text.find(",\n  \"signatures\"").expect("signed");
    is_e006(&with_text(&folder, format!("{}\n}}\n", &text[..end])), &vendor, "no signature");

    // A shard that the vendor signed as part of another version of the model.
    let mut newer = small();
    newer.tensors[4].bytes[0] ^= 1;
    let newer = cut_and_signed(&newer, 100, std::slice::from_ref(&vendor));
    let name = "model-00002-of-00003.apr";
    let mut mixed = folder.clone();
    mixed.0.insert(name.into(), newer.0[name].clone());
    let crc32 = |folder: &FolderInMemory| {
        let manifest: Value = serde_json::from_str(&text_of(folder)).expect("JSON");
        manifest["shards"][1]["crc32"].as_str().expect("a text").to_owned()
    };
    is_e006(
        &with_text(&mixed, text.replace(&crc32(&folder), &crc32(&newer))),
        &vendor,
        "changed after signing",
    );

    // Though its CRC-32 be forged, since the footer is not signed.
    let file = mixed.0.get_mut(name).expect("the shard");
    let footer = file.len() - 16;
    file[footer..footer + 4]
        .copy_from_slice(&u32::from_str_radix(&crc32(&folder), 16).expect("hex").to_le_bytes());
    is_e006(&mixed, &vendor, "not the shard that model.apr was signed with");
}

#[test]
fn a_manifest_is_signed_later_and_by_several() {
    let keys = [SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32])];
    let at_once = cut_and_signed(&small(), 100, &keys);
    let unsigned = cut(&small(), 100);
    for folder in [unsigned.clone(), plain(&unsigned)] {
        let mut signed = folder;
        for key in &keys {
            let mut manifest =
                open(&signed).expect("sound").to_sign().expect("shards with digests");
            assert_eq!(manifest.sign(std::slice::from_ref(key)).expect("a signature"), 0);
            signed.0.insert("model.apr".into(), manifest.encode());
        }
        keys.iter().for_each(|key| verify(&signed, key).expect("both signed"));
        assert_eq!(
            open(&signed).expect("sound").metadata(),
            open(&at_once).expect("sound").metadata()
        );
    }
    // Signatures of what the manifest said before are dropped and counted.
    let other = text_of(&at_once).replace("\"toy\"", "\"toy\",\"violations\":[]");
    let changed = with_text(&at_once, other);
    let mut manifest = open(&changed).expect("sound").to_sign().expect("shards with digests");
    assert_eq!(manifest.sign(&keys[..1]).expect("a signature"), 2);
    verify(&with_text(&changed, String::from_utf8(manifest.encode()).expect("JSON")), &keys[0])
        .expect("signed anew");

    // What contradicts the first shard is not signed.
    let false_text = text_of(&at_once).replace("\"toy\"", "\"fox\"");
    let refused = open(&with_text(&at_once, false_text)).expect("sound").to_sign();
    assert_eq!(refused.err().map(|error| error.code()), Some(Code::Checksum));
}

#[test]
fn signatures_end_the_manifest_and_cover_every_shard() {
    let vendor = SigningKey::from_bytes(&[1; 32]);
    let folder = cut_and_signed(&small(), 100, std::slice::from_ref(&vendor));
    let text = text_of(&folder);
    refused(
        &with_text(&folder, text.replace("\"\n}\n", "\", \"x\": 1\n}\n")),
        Code::Corrupt,
        "does not end with its",
    );
    refused(
        &with_text(&folder, text.replace("\"\n}\n", "\"}")),
        Code::Corrupt,
        "does not end with its",
    );
    let digest = text.find(", \"signed_digest\"").expect("signed");
    let bare = format!("{}{}", &text[..digest], &text[digest + 2 + 17 + 66..]);
    refused(
        &with_text(&folder, bare),
        Code::Corrupt,
        "has no signed_digest of 'model-00001-of-00003.apr'",
    );
    refused(
        &with_text(&folder, text.replace("\"5349474e", "\"Z349474e")),
        Code::Format,
        "lower-case hexadecimal",
    );
    let short = text.replacen("\"signed_digest\": \"", "\"signed_digest\": \"00", 1);
    refused(&with_text(&folder, short), Code::Format, "is not 64 hexadecimal digits");
}

#[test]
fn no_flipped_or_missing_byte_of_a_signed_manifest_verifies() {
    let vendor = SigningKey::from_bytes(&[1; 32]);
    let folder = cut_and_signed(&small(), 100, std::slice::from_ref(&vendor));
    let manifest = folder.0["model.apr"].clone();
    let with = |bytes: Vec<u8>| {
        FolderInMemory(
            [folder.0.clone(), [("model.apr".into(), bytes)].into()]
                .into_iter()
                .flatten()
                .collect(),
        )
    };
    for (len, cut) in corrupt::truncations(&manifest).enumerate() {
        assert!(verify(&with(cut), &vendor).is_err(), "cut at {len}");
    }
    for flipped in corrupt::bit_flips(&manifest, 0..manifest.len()) {
        assert!(
            verify(&with(flipped.clone()), &vendor).is_err(),
            "{}",
            String::from_utf8_lossy(&flipped)
        );
    }
}
