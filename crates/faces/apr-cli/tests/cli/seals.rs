//! Signatures and licences: what they hold for, whom they are trusted from.

use serde_json::Value;

use crate::container::{flipped, same, stored, weights, word, workshop};

#[test]
fn a_signature_in_place_keeps_every_tensor_and_verifies() {
    let sandbox = workshop();
    for (name, line) in [
        ("p.apr", "convert m.safetensors -o p.apr"),
        ("c.apr", "convert m.safetensors -o c.apr --compress"),
        ("e.apr", "convert m.safetensors -o e.apr --recipient owner.pub"),
    ] {
        sandbox.apr(line).clean();
        let before = sandbox.read(name);
        sandbox
            .apr(&format!("verify {name} --trusted signer.pub"))
            .fails(5, &["E006", "no signature"]);
        sandbox.apr(&format!("sign {name} --key signer")).clean().says(&["1 signature"]);
        let after = sandbox.read(name);
        let (data, end) = (word(&before, 28), stored(&before, "steps"));
        assert_eq!(before[data..end.0 + end.1], after[data..end.0 + end.1], "{name}");
        sandbox.apr(&format!("verify {name} --trusted signer.pub")).clean().says(&["VERIFIED"]);
        sandbox.apr(&format!("validate {name} --key owner")).clean();
        // A second signature leaves the first one in force.
        sandbox.apr(&format!("sign {name} --key stranger")).clean().says(&["2 signatures"]);
        sandbox.apr(&format!("verify {name} --trusted signer.pub")).ok();
        sandbox.apr(&format!("verify {name} --trusted stranger.pub")).ok();
        let report: Value = sandbox.apr(&format!("inspect {name} --json")).clean().json();
        assert_eq!(report["signed_by"].as_array().map(Vec::len), Some(2), "{name}");
        let signer = report["signed_by"][0].as_str().expect("a fingerprint").to_owned();
        sandbox
            .apr(&format!("inspect {name}"))
            .clean()
            .says(&[&format!("Signed by:   {signer}, ed25519:")]);
        sandbox.apr(&format!("export {name} -o {name}.safetensors --key owner")).ok();
        same(&sandbox, &format!("{name}.safetensors"), "m.safetensors");
    }
    sandbox.apr("convert m.safetensors -o at-once.apr --sign signer").clean();
    sandbox.apr("sign plain.apr --key signer -o copy.apr").clean();
    same(&sandbox, "at-once.apr", "copy.apr");
    sandbox.apr("verify plain.apr --trusted signer.pub").fails(5, &["E006"]);
}

#[test]
fn a_signature_of_a_key_that_is_not_trusted_is_e006() {
    let sandbox = workshop();
    sandbox.apr("sign plain.apr --key stranger").clean();
    sandbox.apr("verify plain.apr --trusted signer.pub").fails(5, &["E006", "not trusted"]);
    sandbox
        .apr("validate plain.apr --signature --trusted signer.pub")
        .fails(5, &["E006", "INVALID"]);
    sandbox.apr("validate plain.apr --signature --trusted stranger.pub").clean().says(&["VALID"]);
    sandbox.apr("verify plain.apr --trusted owner.pub").fails(4, &["owner.pub", "encryption"]);
    sandbox.apr("verify plain.apr --trusted stranger").fails(4, &["stranger", "private key"]);
    sandbox.apr("verify plain.apr --trusted absent.pub").fails(3, &["E007", "absent.pub"]);
    sandbox.apr("verify plain.apr").fails(2, &["--trusted"]);
}

#[test]
fn the_settings_can_require_a_signature() {
    let sandbox = workshop();
    let trusted = sandbox.path("signer.pub").display().to_string();
    sandbox.write(
        "config.toml",
        format!("[validate]\nrequire_signature = true\ntrusted = [\"{trusted}\"]\n"),
    );
    let config = [("APR_CONFIG", "config.toml")];
    sandbox.with_env(&config, "validate plain.apr").fails(5, &["E006", "signature"]);
    sandbox.apr("sign plain.apr --key stranger").clean();
    sandbox.with_env(&config, "validate plain.apr").fails(5, &["E006"]);
    sandbox.apr("sign plain.apr --key signer").clean();
    sandbox.with_env(&config, "validate plain.apr").clean().says(&["VALID"]);
}

#[test]
fn no_flipped_byte_of_a_signed_file_verifies_and_validates() {
    let sandbox = workshop();
    sandbox.apr("convert m.safetensors -o signed.apr --compress --sign signer").clean();
    let file = sandbox.read("signed.apr");
    let front = word(&file, 20) + word(&file, 24);
    for at in (0..front).step_by(5) {
        sandbox.write("broken.apr", flipped(&file, at));
        let run = sandbox.apr("verify broken.apr --trusted signer.pub");
        assert!(matches!(run.code, Some(4 | 5)), "byte {at}: {run}");
    }
    for at in (front..file.len()).step_by(41) {
        sandbox.write("broken.apr", flipped(&file, at));
        let run = sandbox.apr("validate broken.apr --checksum --signature --trusted signer.pub");
        assert!(matches!(run.code, Some(4 | 5)), "byte {at}: {run}");
    }
}

#[test]
fn a_model_in_shards_is_signed_and_verified_by_its_manifest() {
    let sandbox = workshop();
    sandbox.apr("shard plain.apr --size 1300 -o cut.apr").clean();
    let shard = sandbox.read("cut-00003-of-00003.apr");
    sandbox.apr("verify cut.apr --trusted signer.pub").fails(5, &["E006", "no signature"]);
    sandbox.apr("sign cut.apr --key signer").clean().says(&["cut.apr: signed by", "1 signature"]);
    sandbox.apr("sign cut.apr --key stranger").clean().says(&["2 signatures"]);
    assert_eq!(sandbox.read("cut-00003-of-00003.apr"), shard);
    for key in ["signer", "stranger"] {
        sandbox
            .apr(&format!("verify cut.apr --trusted {key}.pub"))
            .clean()
            .says(&["VERIFIED", "trusted"]);
        sandbox
            .apr(&format!("verify cut.apr --front --trusted {key}.pub"))
            .clean()
            .says(&["VERIFIED"]);
        sandbox
            .apr(&format!("validate cut.apr --signature --trusted {key}.pub"))
            .clean()
            .says(&["VALID"]);
    }
    sandbox.apr("sign cut.apr --key signer -o copy.apr").fails(2, &["in place"]);
    sandbox.apr("join cut.apr -o joined.apr").ok().says(&["the source is signed"]);
    same(&sandbox, "joined.apr", "plain.apr");

    // A byte of a tensor; one of the front; no shard.
    sandbox.write("cut-00003-of-00003.apr", flipped(&shard, stored(&shard, "steps").0));
    sandbox.apr("verify cut.apr --front --trusted signer.pub").clean();
    sandbox
        .apr("verify cut.apr --trusted signer.pub")
        .fails(5, &["E006", "steps", "cut-00003-of-00003.apr"]);
    sandbox
        .apr("validate cut.apr --checksum --signature --trusted signer.pub")
        .fails(5, &["steps", "INVALID"]);
    sandbox.write("cut-00003-of-00003.apr", flipped(&shard, word(&shard, 12) + 1));
    let front = sandbox.apr("verify cut.apr --front --trusted signer.pub");
    assert!(matches!(front.code, Some(4 | 5)), "{front}");
    std::fs::remove_file(sandbox.path("cut-00003-of-00003.apr")).expect("it was there");
    sandbox
        .apr("verify cut.apr --trusted signer.pub")
        .fails(3, &["E007", "cut-00003-of-00003.apr"]);
    sandbox.write("cut-00003-of-00003.apr", &shard);

    // Shards signed one by one do not vouch for the whole, and are not changed behind the
    // manifest's back.
    sandbox.apr("convert plain.apr -o signed.apr --shard-size 1300 --sign signer").clean();
    sandbox.apr("verify signed.apr --trusted signer.pub").clean();
    sandbox.apr("verify signed-00001-of-00003.apr --trusted signer.pub").ok();
    sandbox.apr("sign cut-00001-of-00003.apr --key signer").fails(1, &["manifest", "-o"]);
    sandbox.apr("sign cut-00001-of-00003.apr --key signer -o alone.apr").ok();
    sandbox.apr("verify cut.apr --trusted signer.pub").clean();
}

#[test]
fn only_apr_files_are_signed_and_other_files_get_conversion_advice() {
    let sandbox = workshop();
    sandbox
        .apr("sign m.safetensors --key signer")
        .fails(4, &["E001", "m.safetensors", "apr convert"]);
    sandbox.apr("sign plain.apr").fails(2, &["--key", "apr keygen"]);
    sandbox.apr("sign plain.apr --key owner").fails(4, &["owner", "--for signing"]);
    sandbox.apr("sign plain.apr --key absent").fails(3, &["E007", "absent"]);
    sandbox.apr("sign plain.apr --key m.safetensors").fails(4, &["m.safetensors"]);
    sandbox.apr("sign plain.apr --key signer -o m.safetensors").fails(1, &["exists"]);
    assert_eq!(sandbox.read("m.safetensors"), weights());
}

#[test]
fn a_licence_is_checked_against_time_seats_and_licensee() {
    let sandbox = workshop();
    let issue =
        "license issue plain.apr --licensee Ann --seats 3 --terms research-only --key signer";
    sandbox.apr(&format!("{issue} --expires 2020-01-01 -o old.apr")).clean();
    sandbox.apr(&format!("{issue} --expires 9999-01-01T00:00:00Z -o new.apr")).clean();
    let check = |line: &str| sandbox.apr(&format!("license check {line}"));
    check("new.apr --trusted signer.pub --licensee Ann --seats 3")
        .clean()
        .says(&["LICENSED", "research-only"]);
    check("new.apr --trusted signer.pub --licensee Bob")
        .fails(5, &["another licensee", "NOT LICENSED"]);
    check("new.apr --trusted signer.pub --licensee Ann --seats 4").fails(5, &["allows 3"]);
    check("old.apr --trusted signer.pub --licensee Ann").fails(5, &["expired"]);
    check("new.apr --trusted stranger.pub --licensee Ann").fails(5, &["E006"]);
    check("plain.apr --trusted signer.pub").fails(5, &["E006", "no licence"]);
    sandbox.apr("license show new.apr").clean().says(&["9999-01-01", "3", "research-only"]);
    // Who the licensee is stays out of the file.
    assert!(!sandbox.read("new.apr").windows(3).any(|window| window == b"Ann"));
    // A licence put into another model is not valid.
    let report: Value = sandbox.apr("license show new.apr --json").clean().json();
    assert_eq!(report["seats"], 3);
    sandbox.apr(&format!("{issue} --expires never -o x.apr")).fails(2, &["never"]);
}

#[test]
fn an_edited_licence_is_e006() {
    let sandbox = workshop();
    let line = "license issue plain.apr --licensee Ann --seats 3 --expires 2020-01-01 --key signer \
        -o l.apr";
    sandbox.apr(line).clean();
    let file = sandbox.read("l.apr");
    let at =
        file.windows(10).position(|window| window == b"2020-01-01").expect("the licence is JSON");
    let mut broken = file;
    broken[at..at + 4].copy_from_slice(b"2090");
    sandbox.write("l.apr", broken);
    sandbox.apr("license check l.apr --trusted signer.pub --licensee Ann").fails(5, &["E006"]);
}

#[test]
fn unsigned_bytes_are_e006_wherever_a_signature_is_checked() {
    let sandbox = workshop();
    sandbox.apr("convert m.safetensors -o signed.apr --sign signer").clean();
    let file = sandbox.read("signed.apr");
    let slack = word(&file, 28) - 1;
    let (start, len) = stored(&file, "table");
    let longer = [&file[..], b"more"].concat();
    for bytes in [flipped(&file, slack), flipped(&file, start + len), longer] {
        sandbox.write("dirty.apr", bytes);
        sandbox.apr("verify dirty.apr --front --trusted signer.pub").fails(
            5,
            &[
                "E006",
                "and the signature does not cover these bytes; `apr convert` \
                                 writes the model without them",
            ],
        );
        sandbox
            .apr("validate dirty.apr --signature --trusted signer.pub")
            .fails(5, &["E006", "INVALID"]);
        sandbox.apr("validate dirty.apr").fails(5, &["E006", "INVALID"]);
    }
    // Who signs it vouches for all of it.
    let plain = sandbox.read("plain.apr");
    let (start, len) = stored(&plain, "table");
    sandbox.write("dirty.apr", flipped(&plain, start + len));
    sandbox.apr("sign dirty.apr --key signer").fails(5, &["E006", "padding"]);
    sandbox.write("longer.apr", [&plain[..], b"more"].concat());
    sandbox.apr("validate longer.apr").ok().says(&["follow the footer", "VALID"]);

    sandbox.apr("shard plain.apr --size 1300 -o cut.apr").clean();
    sandbox.apr("sign cut.apr --key signer").clean();
    let shard = sandbox.read("cut-00003-of-00003.apr");
    sandbox.write("cut-00003-of-00003.apr", flipped(&shard, word(&shard, 28) - 1));
    for line in [
        "verify cut.apr --front --trusted signer.pub",
        "validate cut.apr --signature --trusted signer.pub",
    ] {
        sandbox.apr(line).fails(5, &["E006", "cut-00003-of-00003.apr"]);
    }
}
