//! `apr edit`: what it changes, what it leaves, what a crash leaves behind.

use crate::container::{same, stored, word, workshop};

#[test]
fn an_edit_in_place_changes_only_what_was_requested() {
    let sandbox = workshop();
    let before = sandbox.apr("inspect plain.apr --json").clean().json();
    let (file, data) = (sandbox.read("plain.apr"), word(&sandbox.read("plain.apr"), 28));
    sandbox
        .apr("edit plain.apr --set model_name=bob --set architecture_note=7")
        .clean()
        .says(&["in place"]);
    let mut after = sandbox.apr("inspect plain.apr --json").clean().json();
    let changed = sandbox.read("plain.apr");
    assert_eq!(file[data..file.len() - 16], changed[data..changed.len() - 16]);
    let metadata = after["metadata"].as_object_mut().expect("an object");
    assert_eq!(
        (metadata.remove("model_name"), metadata.remove("architecture_note")),
        (Some("bob".into()), Some(7.into()))
    );
    assert_eq!(after["metadata"], before["metadata"]);
    sandbox.apr("validate plain.apr").clean();
    // Undone, the file is what it was.
    sandbox.apr("edit plain.apr --unset model_name --unset architecture_note").clean();
    assert_eq!(sandbox.read("plain.apr"), file);
}

#[test]
fn a_text_stays_a_text_though_it_looks_like_a_number() {
    let sandbox = workshop();
    sandbox.apr("edit plain.apr --set model_type=7 --set model_name=one --set note.x=2").clean();
    sandbox.apr("edit plain.apr --set model_name=2").clean();
    let report = sandbox.apr("inspect plain.apr --json").clean().json();
    let metadata = &report["metadata"];
    assert_eq!((&metadata["model_type"], &metadata["model_name"]), (&"7".into(), &"2".into()));
    assert_eq!(metadata["note.x"], 2);
}

#[test]
fn an_edit_of_an_encrypted_model_advises_what_to_do_instead() {
    let sandbox = workshop();
    sandbox.apr("encrypt plain.apr -o e.apr --recipient owner.pub --encrypt-metadata").clean();
    let before = sandbox.read("e.apr");
    for change in ["--set a=1", "--rename steps=s", "--drop steps --force"] {
        sandbox.apr(&format!("edit e.apr {change} --key owner")).fails(1, &["apr decrypt"]);
        assert_eq!(sandbox.read("e.apr"), before, "{change}");
    }
}

#[test]
fn an_edit_renames_and_drops_tensors() {
    let sandbox = workshop();
    sandbox.apr("edit plain.apr --rename table=a.table -o renamed.apr").ok();
    sandbox.apr("tensors renamed.apr").ok().says(&["a.table"]);
    sandbox.apr("edit renamed.apr --rename a.table=table -o back.apr").ok();
    same(&sandbox, "back.apr", "plain.apr");
    sandbox.apr("edit plain.apr --drop steps -o dropped.apr").ok().says(&["without 1 tensor"]);
    let left = sandbox.apr("tensors dropped.apr --json").ok().json();
    assert_eq!(left["tensors"].as_array().expect("a list").len(), 3);
    sandbox.apr("validate dropped.apr").clean();
    sandbox.apr("edit plain.apr --drop nothing*").fails(2, &["no tensor matches"]);
    sandbox.apr("edit plain.apr --rename table=steps").fails(4, &["steps"]);
    sandbox.apr("edit plain.apr --rename tabel=x").fails(2, &["tabel", "table"]);
}

#[test]
fn tensors_leave_the_only_copy_of_a_model_only_by_force() {
    let sandbox = workshop();
    let before = sandbox.read("plain.apr");
    for options in ["", "-f", "--overwrite"] {
        let run = sandbox.apr(&format!("edit plain.apr --drop * {options}"));
        run.fails(2, &["4 of 4 tensors", "-o PATH", "--force"]);
        assert!(sandbox.read("plain.apr") == before, "{options}");
    }
    sandbox
        .apr("edit plain.apr --drop steps --force")
        .ok()
        .says(&["plain.apr: written, without 1 tensor"]);
    sandbox.apr("tensors plain.apr").ok().says(&["3 tensors"]);
    // A copy replaces what is there as any output does.
    sandbox.write("copy.apr", "precious");
    for (options, code, parts) in
        [("", 1, ["E007", "already exists"]), ("--force", 2, ["--force", "--output"])]
    {
        let line = format!("edit plain.apr --drop table -o copy.apr {options}");
        sandbox.apr(&line).fails(code, &parts);
    }
    assert_eq!(sandbox.read("copy.apr"), b"precious");
    sandbox.apr("edit plain.apr --drop table -o copy.apr -f").ok();
}

#[test]
fn an_edit_without_a_change_writes_nothing_and_reports_that() {
    let sandbox = workshop();
    sandbox.apr("edit plain.apr --set a=b --force").fails(2, &["--drop and --keep"]);
    sandbox.apr("edit plain.apr").fails(
        2,
        &[
            "no change requested: pass --set, --unset, --rename, --drop, --keep, --add",
            "--set",
            "--chat-template",
        ],
    );
    sandbox
        .apr("edit plain.apr -o copy.apr")
        .fails(2, &["no change requested: pass --set, --unset, --rename, --drop"]);
    sandbox.apr("edit plain.apr --set note=1").clean().says(&["changed in place"]);
    sandbox.apr("sign plain.apr --key signer").ok();
    let before = sandbox.read("plain.apr");
    sandbox
        .apr("edit plain.apr --set note=1")
        .clean()
        .says(&["plain.apr: unchanged: already up to date"]);
    let report = sandbox.apr("edit plain.apr --set note=1 --json").clean().json();
    assert_eq!(
        (&report["changed"], &report["written"], &report["in_place"]),
        (&false.into(), &false.into(), &false.into())
    );
    assert!(sandbox.read("plain.apr") == before);
    sandbox.apr("verify plain.apr --trusted signer.pub").clean();
    // A copy is a copy.
    sandbox.apr("edit plain.apr --set note=1 -o copy.apr").ok().says(&["copy.apr: written"]);
}

#[test]
fn an_edit_drops_signatures_and_reports_that() {
    let sandbox = workshop();
    sandbox.apr("license issue plain.apr --licensee Ann --key signer").clean();
    sandbox.apr("edit plain.apr --set a=1").ok().says(&[
        "warning",
        "1 signature",
        "sign it again",
        "licence",
    ]);
    sandbox.apr("verify plain.apr --trusted signer.pub").fails(5, &["E006"]);
    sandbox.apr("license show plain.apr").fails(5, &["E006"]);
    sandbox.apr("validate plain.apr").clean();
}

#[test]
fn an_edit_that_needs_room_streams_a_new_file_and_keeps_the_codecs() {
    let sandbox = workshop();
    for codec in ["none", "lz4", "best"] {
        sandbox.apr(&format!("convert m.safetensors -o m.apr -f --compress={codec}")).clean();
        let before = sandbox.read("m.apr");
        sandbox.write("template", "{{ messages }}".repeat(4000));
        sandbox.apr("edit m.apr --chat-template template").ok().says(&["written"]);
        let after = sandbox.read("m.apr");
        for tensor in ["layers.0.weight", "layers.1.weight", "steps", "table"] {
            let bytes = |file: &[u8]| {
                let (start, size) = stored(file, tensor);
                file[start..start + size].to_vec()
            };
            assert!(bytes(&before) == bytes(&after), "{tensor} with {codec}");
        }
        sandbox.apr("validate m.apr").clean();
    }
}
