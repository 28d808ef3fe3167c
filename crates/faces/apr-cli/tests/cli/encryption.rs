//! Encryption and keys: what comes back, what is refused, what is never shown.

use std::fs;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;

use crate::container::{PASSWORD, crc32, flipped, same, stored, workshop};
use crate::support::Run;

#[test]
fn decryption_restores_the_file_that_was_encrypted() {
    let sandbox = workshop();
    sandbox.apr("convert plain.apr -o small.apr --compress").clean();
    let locks = [
        ("--password --password-file password", &["--password-file password"][..]),
        ("--recipient owner.pub", &["--key owner"]),
        ("--recipient owner.pub --recipient other.pub", &["--key owner", "--key other"]),
        (
            "--recipient owner.pub --password --password-file password",
            &["--key owner", "--password-file password"],
        ),
    ];
    for file in ["plain.apr", "small.apr"] {
        for (lock, keys) in locks {
            for hidden in ["", "--encrypt-metadata"] {
                sandbox.apr(&format!("encrypt {file} -o sealed.apr -f {lock} {hidden}")).clean();
                for key in keys {
                    sandbox.apr(&format!("decrypt sealed.apr -o open.apr -f {key}")).clean();
                    same(&sandbox, file, "open.apr");
                }
            }
        }
    }
}

#[test]
fn encrypted_tensors_are_not_in_the_file_and_metadata_only_if_not_hidden() {
    let sandbox = workshop();
    sandbox.apr("edit plain.apr --set note=some-plain-remark").ok();
    let tensor = vec![3; 700];
    let shows = |name: &str, text: &[u8]| {
        sandbox.read(name).windows(text.len()).any(|window| window == text)
    };
    assert!(shows("plain.apr", &tensor) && shows("plain.apr", b"some-plain-remark"));
    sandbox.apr("encrypt plain.apr -o open-front.apr --recipient owner.pub").clean();
    assert!(
        !shows("open-front.apr", &tensor[..16]) && shows("open-front.apr", b"some-plain-remark")
    );
    sandbox.apr("encrypt plain.apr -o hidden.apr --recipient owner.pub --encrypt-metadata").clean();
    assert!(!shows("hidden.apr", &tensor[..16]) && !shows("hidden.apr", b"some-plain-remark"));
    let told = sandbox.apr("inspect hidden.apr").ok();
    assert!(!told.to_string().contains("some-plain-remark"), "{told}");
    sandbox.apr("inspect hidden.apr --key owner").clean().says(&["some-plain-remark"]);
    // Names and shapes stay readable.
    sandbox.apr("tensors hidden.apr").ok().says(&["layers.0.weight", "[32, 16]"]);
}

#[test]
fn every_command_reads_an_encrypted_model_with_its_key() {
    let sandbox = workshop();
    sandbox.apr("convert m.safetensors -o sealed.apr --compress --recipient owner.pub").clean();
    let keyed = |line: &str| sandbox.apr(&format!("{line} --key owner"));
    keyed("inspect sealed.apr").clean();
    keyed("validate sealed.apr").clean();
    keyed("tensors sealed.apr --stats").clean();
    keyed("diff sealed.apr plain.apr --tolerance 0 --exit-code").ok();
    keyed("export sealed.apr -o back.safetensors").ok().says(&["encrypted, and the output is not"]);
    same(&sandbox, "m.safetensors", "back.safetensors");
    keyed("lint sealed.apr").ok();
    keyed("convert sealed.apr -o other.apr").ok();
}

#[test]
fn a_wrong_or_missing_key_or_password_is_e005_and_nothing_is_written() {
    let sandbox = workshop().with("wrong", "another password\n");
    sandbox.apr("encrypt plain.apr -o key.apr --recipient owner.pub").clean();
    sandbox.apr("encrypt plain.apr -o word.apr --password --password-file password").clean();
    let before = sandbox.files();
    for file in ["key.apr", "word.apr"] {
        for opened in ["", "--key other", "--key signer", "--password-file wrong"] {
            for line in [
                format!("decrypt {file} -o x.apr {opened}"),
                format!("convert {file} -o x.safetensors {opened}"),
                format!("export {file} -o x.gguf {opened}"),
                format!("tensors {file} --stats {opened}"),
            ] {
                sandbox.apr(&line).fails(4, &["E005", file]);
                assert_eq!(sandbox.files(), before, "{line}");
            }
        }
        sandbox
            .with_env(&[("APR_PASSWORD", "no")], &format!("decrypt {file} -o x.apr"))
            .fails(4, &["E005", file]);
    }
    assert_eq!(sandbox.files(), before);
    sandbox.with_env(&[("APR_PASSWORD", PASSWORD)], "decrypt word.apr -o x.apr").clean();
    same(&sandbox, "x.apr", "plain.apr");
}

#[test]
fn a_flipped_byte_of_an_encrypted_tensor_never_becomes_other_weights() {
    let sandbox = workshop();
    for compress in ["none", "auto"] {
        let line = format!(
            "convert m.safetensors -o sealed.apr -f --compress={compress} --recipient owner.pub"
        );
        sandbox.apr(&line).clean();
        let file = sandbox.read("sealed.apr");
        for name in ["layers.0.weight", "layers.1.weight", "table", "steps"] {
            let (start, size) = stored(&file, name);
            for at in [start, start + size / 2, start + size - 1] {
                sandbox.write("sealed.apr", flipped(&file, at));
                let run = sandbox.apr("convert sealed.apr -o x.safetensors --key owner");
                assert!(run.stderr.contains("E005") || run.stderr.contains("E004"), "{run}");
                assert!(matches!(run.code, Some(4 | 5)), "{run}");
                run.says(&[name]);
                assert!(!sandbox.path("x.safetensors").exists());
                sandbox.apr("validate sealed.apr --key owner").fails(5, &[name]);
            }
        }
    }
}

/// The footer's checksum of the changed file is recomputed, so that only the padding reveals the
/// change.
#[test]
fn nonzero_padding_of_an_encrypted_file_is_e006_for_every_command() {
    let sandbox = workshop();
    sandbox.apr("encrypt plain.apr -o sealed.apr --recipient owner.pub").clean();
    let file = sandbox.read("sealed.apr");
    let ends = ["layers.0.weight", "layers.1.weight", "table", "steps"]
        .map(|name| stored(&file, name))
        .map(|(start, size)| start + size);
    let mut seen = 0;
    for end in ends.into_iter().filter(|end| end % 64 != 0) {
        let mut changed = file.clone();
        assert_eq!(changed[end], 0, "padding");
        changed[end] = 1;
        let footer = changed.len() - 16;
        let crc = crc32(&changed[..footer]).to_le_bytes();
        changed[footer..footer + 4].copy_from_slice(&crc);
        sandbox.write("sealed.apr", &changed);
        for line in [
            "convert sealed.apr -o x.safetensors --key owner",
            "decrypt sealed.apr -o x.apr --key owner",
            "validate sealed.apr --key owner",
        ] {
            sandbox.apr(line).fails(5, &["padding is not zero"]);
        }
        assert!(!sandbox.path("x.apr").exists() && !sandbox.path("x.safetensors").exists());
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn no_byte_of_an_encrypted_files_front_can_be_changed() {
    let sandbox = workshop();
    sandbox.apr("encrypt plain.apr -o sealed.apr --recipient owner.pub").clean();
    let file = sandbox.read("sealed.apr");
    let first =
        ["layers.0.weight", "layers.1.weight", "table", "steps"].map(|name| stored(&file, name).0);
    let end = first.into_iter().min().expect("four");
    // Alignment and unknown flags only say how a file is described: the rest of the front is under
    // the key.
    for at in (4..end).step_by(7) {
        sandbox.write("broken.apr", flipped(&file, at));
        let run = sandbox.apr("convert broken.apr -o x.safetensors --key owner -f --relaxed");
        if run.code == Some(0) {
            same(&sandbox, "x.safetensors", "m.safetensors");
            assert!(file[at] == 0, "byte {at} of the front is under no seal: {run}");
        } else {
            assert!(matches!(run.code, Some(4 | 5)), "byte {at}: {run}");
        }
    }
}

#[test]
fn encrypted_models_are_not_encrypted_again_and_plain_ones_not_decrypted() {
    let sandbox = workshop();
    sandbox.apr("encrypt plain.apr -o sealed.apr --recipient owner.pub").clean();
    for keys in ["", "--key owner"] {
        let run = sandbox.apr(&format!("encrypt sealed.apr -o x.apr --recipient other.pub {keys}"));
        run.fails(
            1,
            &[
                "the model is already encrypted; `apr decrypt` it first to change keys",
                "apr decrypt",
            ],
        );
    }
    sandbox.apr("decrypt plain.apr -o x.apr").fails(4, &["E001", "plain.apr", "not encrypted"]);
    sandbox.apr("decrypt m.safetensors -o x.apr").fails(4, &["E001", "m.safetensors"]);
    sandbox
        .apr("encrypt plain.apr -o x.apr --recipient signer.pub")
        .fails(4, &["signer.pub", "signing key"]);
    sandbox.apr("encrypt plain.apr -o x.apr --recipient owner").fails(4, &["owner", "private key"]);
    sandbox
        .apr("encrypt plain.apr -o x.apr")
        .fails(2, &["missing password: pass --password-file FILE or set APR_PASSWORD"]);
    sandbox.apr("convert plain.apr -o x.apr --encrypt-metadata").fails(2, &["--encrypt-metadata"]);
    assert!(!sandbox.path("x.apr").exists());
    // An existing file stays what it is.
    sandbox.apr("encrypt plain.apr -o sealed.apr --recipient other.pub").fails(1, &["exists"]);
    sandbox.apr("decrypt sealed.apr -o plain.apr --key owner").fails(1, &["exists"]);
}

#[test]
fn secrets_are_in_no_report_and_private_keys_are_their_owners_alone() {
    let sandbox = workshop();
    let secret = |name: &str| {
        let pem = String::from_utf8(sandbox.read(name)).expect("PEM is text");
        pem.lines().nth(1).expect("a line of Base64").to_owned()
    };
    let secrets = [PASSWORD.to_owned(), secret("signer"), secret("owner")];
    let quiet = |run: Run| {
        let said = run.to_string();
        secrets.iter().for_each(|secret| assert!(!said.contains(secret.as_str()), "{said}"));
    };
    for verbosity in ["", "--json", "-v"] {
        for line in [
            "encrypt plain.apr -o sealed.apr -f --password --recipient owner.pub --password-file \
             password",
            "inspect sealed.apr --password-file password",
            "validate sealed.apr --key owner",
            "decrypt sealed.apr -o open.apr -f --password-file password",
            "decrypt sealed.apr -o open.apr -f --key other",
            "encrypt sealed.apr -o again.apr -f --password --password-file password",
            "sign open.apr --key signer",
            "sign m.safetensors --key signer",
            "sign open.apr --key owner",
            "verify open.apr --trusted signer",
            "verify open.apr --trusted signer.pub",
            "inspect plain.apr --key password",
            "encrypt plain.apr -o again.apr -f --recipient password",
            "debug sealed.apr --drama --password-file password",
        ] {
            quiet(sandbox.apr(&format!("{line} {verbosity}")));
        }
        quiet(sandbox.with_env(
            &[("APR_PASSWORD", PASSWORD)],
            &format!("tensors sealed.apr --stats {verbosity}"),
        ));
        quiet(sandbox.with_env(
            &[("APR_PASSWORD", PASSWORD)],
            &format!("decrypt plain.apr -o x.apr {verbosity}"),
        ));
    }
    for name in ["signer", "owner"] {
        assert!(sandbox.is_private(name), "{name}");
    }
    for name in ["sealed.apr", "open.apr"] {
        let file = sandbox.read(name);
        secrets.iter().for_each(|secret| {
            assert!(
                !file.windows(secret.len()).any(|window| window == secret.as_bytes()),
                "{name}"
            );
        });
    }
}

#[cfg(unix)]
#[test]
fn keys_are_overwritten_only_on_request() {
    let sandbox = workshop();
    sandbox.apr("keygen -o -").fails(2, &["a file"]);
    let (private, public) = (sandbox.read("signer"), sandbox.read("signer.pub"));
    sandbox.apr("keygen -o signer").fails(1, &["E007", "signer", "exists"]);
    // The public file alone is in the way, too.
    sandbox.write("half.pub", "something else");
    sandbox.apr("keygen -o half").fails(1, &["E007", "half.pub", "exists"]);
    assert!(!sandbox.path("half").exists());
    assert_eq!(
        (sandbox.read("signer"), sandbox.read("signer.pub")),
        (private.clone(), public.clone())
    );
    sandbox.apr("keygen -o signer -f").clean();
    assert!(sandbox.read("signer") != private && sandbox.read("signer.pub") != public);
    // What others could read is not written into.
    let path = sandbox.path("open");
    sandbox.write("open", "x");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("permissions");
    sandbox.apr("keygen -o open -f").clean();
    assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
}

#[cfg(unix)]
#[test]
fn a_password_may_come_through_a_pipe() {
    let sandbox = workshop();
    let ways = [
        r#"printf 'sesame\nmore' |
            "$APR" encrypt plain.apr -o sealed.apr -f --password-file /dev/stdin"#,
        r#"printf 'sesame\r\n' | "$APR" encrypt plain.apr -o sealed.apr -f --password-file -"#,
        r#"mkfifo pipe; echo sesame > pipe &
            "$APR" encrypt plain.apr -o sealed.apr -f --password-file pipe"#,
        // A model may follow.
        r#"(echo sesame; cat plain.apr) | "$APR" encrypt - -o sealed.apr -f --password-file -"#,
    ];
    for way in ways {
        sandbox.shell(way).clean();
        let run = sandbox
            .with_env(&[("APR_PASSWORD", "sesame")], "diff sealed.apr plain.apr --exit-code");
        run.ok();
        sandbox
            .shell(r#"echo sesame | "$APR" decrypt sealed.apr -o open.apr -f --password-file -"#)
            .clean();
        assert!(sandbox.read("open.apr") == sandbox.read("plain.apr"), "{way}");
    }
    sandbox
        .shell(r#""$APR" decrypt sealed.apr -o x.apr --password-file - < /dev/null"#)
        .fails(2, &["the first line is empty"]);
    let endless = r#"tr '\0' a < /dev/zero | "$APR" decrypt sealed.apr -o x.apr --password-file -"#;
    sandbox.shell(endless).fails(4, &["too long"]);
    let endless = r#"tr '\0' a < /dev/zero | "$APR" decrypt sealed.apr -o x.apr --key /dev/stdin"#;
    sandbox.shell(endless).fails(
        4,
        &["the model is encrypted, and --key is not a key of `apr \
                                       keygen --for encryption"],
    );
    assert!(!sandbox.path("x.apr").exists());
}

#[test]
fn a_password_file_locks_what_is_encrypted_for_recipients_too() {
    let sandbox = workshop();
    sandbox
        .apr("encrypt plain.apr -o sealed.apr --password-file password --recipient owner.pub")
        .clean();
    let header = sandbox.apr("inspect sealed.apr --json").ok().json()["header"].take();
    assert_eq!(header["encryption"]["locks"], 2, "{header}");
    for key in ["--password-file password", "--key owner"] {
        sandbox.apr(&format!("decrypt sealed.apr -o open.apr -f {key}")).clean();
        assert!(sandbox.read("open.apr") == sandbox.read("plain.apr"), "{key}");
    }
    // Where it may be the source's, a password that opened nothing and locks nothing is told.
    let run = sandbox
        .apr("convert plain.apr -o a.apr --recipient owner.pub --password-file password")
        .ok();
    run.says(&[
        "warning: --password-file has no effect",
        "only recipients can decrypt the output; add --encrypt to also use the password",
        "--encrypt",
    ]);
    let run = sandbox.apr("convert plain.apr -o b.apr --password-file password").ok();
    run.says(&["warning: --password-file has no effect", "the output is not encrypted"]);
    sandbox
        .apr("convert plain.apr -o c.apr --encrypt --recipient owner.pub --password-file password")
        .clean();
    sandbox.apr("convert c.apr -o d.apr --password-file password").ok();
}

#[test]
fn reading_an_encrypted_model_needs_a_key_only_for_its_weights() {
    let sandbox = workshop();
    sandbox.apr("encrypt plain.apr -o sealed.apr --recipient owner.pub --encrypt-metadata").clean();
    sandbox.apr("inspect sealed.apr").ok().says(&["metadata are also encrypted"]);
    sandbox
        .apr("validate sealed.apr")
        .ok()
        .says(&["pass  Tensor digests", "the tensors are encrypted: no key given"]);
    sandbox.apr("lint sealed.apr").ok();
    for line in [
        "diff sealed.apr plain.apr",
        "tensors sealed.apr --stats",
        "debug sealed.apr --hex --tensor table",
    ] {
        sandbox.apr(line).fails(4, &["E005", "sealed.apr", "--password-file"]);
        sandbox.apr(&format!("{line} --key owner")).ok();
    }
}

#[cfg(unix)]
#[test]
fn costs_of_a_password_that_nobody_would_ask_for_are_e008_before_anything_is_computed() {
    let sandbox = workshop();
    sandbox.apr("encrypt plain.apr -o sealed.apr --password --password-file password").clean();
    let file = sandbox.read("sealed.apr");
    let costs: Vec<u8> = [19456_u32, 2, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    let at = file.windows(12).position(|window| window == costs).expect("Argon2's costs");
    for costs in [
        [(1 << 20) + 1, 2, 1],
        [u32::MAX, 2, 1],
        [19456, 17, 1],
        [19456, u32::MAX, 1],
        [19456, 2, u32::MAX],
    ] {
        let mut broken = file.clone();
        broken[at..at + 12].copy_from_slice(&costs.map(u32::to_le_bytes).concat());
        sandbox.write("sealed.apr", broken);
        let run = sandbox.shell(
            r#"ulimit -v 300000; exec "$APR" decrypt sealed.apr -o x.apr --password-file password"#,
        );
        run.fails(4, &["E008", "sealed.apr"]);
    }

    // What is bearable by itself still keeps to the memory limit.
    sandbox.write("sealed.apr", &file);
    let line = "decrypt sealed.apr -o x.apr --password-file password --max-memory";
    sandbox.apr(&format!("{line} 16MiB")).fails(4, &["E008", "19456 KiB", "--max-memory"]);
    assert!(!sandbox.path("x.apr").exists());
    sandbox.apr(&format!("{line} 32MiB")).ok();
    std::fs::remove_file(sandbox.path("x.apr")).expect("ours");
    assert!(!sandbox.path("x.apr").exists());
}
