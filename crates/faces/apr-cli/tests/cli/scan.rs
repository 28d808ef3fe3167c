//! `apr scan`: what loading a file would run, whatever the file is packed in.

use std::fs;
use std::path::PathBuf;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/scan")
}

/// The names that a report calls unknown or dangerous, without repetition.
fn odd_names(report: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let findings =
        list(&report["pickles"]).into_iter().flat_map(|pickle| list(&pickle["findings"]));
    let odd = findings.filter(|finding| finding["verdict"] != "allowed");
    let mut names: Vec<String> = odd
        .map(|finding| {
            [&finding["module"], &finding["name"]]
                .map(|text| text.as_str().unwrap_or("?"))
                .join(".")
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn every_wrapping_is_looked_through_to_the_names_that_were_put_in() {
    let expected: Value =
        serde_json::from_slice(&fs::read(fixtures().join("expected.json")).expect("there"))
            .expect("JSON");
    for (name, expected) in expected.as_object().expect("an object") {
        let sandbox = Sandbox::new();
        let path = fixtures().join(name);
        let run = sandbox.run(&["scan", path.to_str().expect("a plain path"), "--json"]);
        let run = if expected["verdict"] == "clean" { run.clean() } else { run.fails(5, &[]) };
        let summary: Value = run.json();
        let report = &summary["files"][0];
        assert_eq!(summary["verdict"], expected["verdict"], "{name}: {report:#}");
        let wanted: Vec<&str> =
            expected["names"].as_array().expect("names").iter().filter_map(Value::as_str).collect();
        let found = odd_names(report);
        assert!(
            wanted.iter().all(|name| found.iter().any(|found| found == name)),
            "{name}: {found:?}"
        );
        assert_eq!(found.is_empty(), wanted.is_empty(), "{name}: {found:?}");
        let remarks = format!("{} {}", report["warnings"], report["problems"]);
        assert!(remarks.contains(expected["says"].as_str().expect("text")), "{name}: {remarks}");
        assert!(!sandbox.path("canary").exists(), "{name} was run");
    }
}

#[test]
fn a_folder_is_scanned_to_its_last_file() {
    let sandbox = Sandbox::new()
        .with("m/a.safetensors", crate::support::small_safetensors())
        .with("m/deep/er/b.pkl", b"cos\nsystem\n(S'touch canary'\ntR.")
        .with("m/c.bin", b"c__main__\nNet\n.")
        .with("m/d.pt", b"\x80\x02]");
    let run = sandbox.apr("scan m --sarif out.sarif");
    run.fails(
        5,
        &[
            "dangerous",
            "m/deep/er/b.pkl",
            "os.system('touch canary')",
            "suspicious",
            "__main__.Net",
            "unreadable",
        ],
    );
    let summary = sandbox.apr("scan m --json").fails(5, &[]).json();
    let verdicts: Vec<&Value> =
        summary["files"].as_array().expect("files").iter().map(|file| &file["verdict"]).collect();
    assert_eq!(verdicts, ["clean", "suspicious", "unreadable", "dangerous"]);
    for (count, verdict) in [(1, "clean"), (1, "suspicious"), (1, "unreadable"), (1, "dangerous")] {
        assert_eq!(summary[verdict], count, "{verdict}");
    }

    let log: Value = serde_json::from_slice(&sandbox.read("out.sarif")).expect("JSON");
    let results = log["runs"][0]["results"].as_array().expect("results").clone();
    let has = |rule: &str, level: &str, uri: &str| {
        results.iter().any(|result| {
            let place = &result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"];
            result["ruleId"] == rule && result["level"] == level && place == uri
        })
    };
    assert!(has("scan/dangerous", "error", "m/deep/er/b.pkl"), "{results:?}");
    assert!(has("pickle/dangerous-call", "error", "m/deep/er/b.pkl"), "{results:?}");
    assert!(
        has("scan/suspicious", "warning", "m/c.bin") && has("scan/unreadable", "warning", "m/d.pt"),
        "{results:?}"
    );
    assert!(
        !results.iter().any(|result| result["locations"][0].to_string().contains("a.safetensors"))
    );
}

#[test]
fn a_format_without_pickles_is_scanned_for_one_all_the_same() {
    // A pickle may start with these letters: `G` is a number of eight bytes.
    let sandbox = Sandbox::new()
        .with("m.gguf", [&b"GGUF\x03\0\0\0"[..], &[0; 16]].concat())
        .with("m.pkl", b"GGUF\x03\0\0\0\x00cos\nsystem\n(S'touch canary'\ntR.");
    sandbox.apr("scan m.gguf").clean().says(&["clean", "GGUF"]);
    sandbox.apr("scan m.pkl").fails(5, &["dangerous", "os.system"]);
}

#[test]
fn a_plain_pickle_is_refused_with_its_list() {
    let sandbox = Sandbox::new()
        .with("m.pkl", b"\x80\x02ccollections\nOrderedDict\n)Rcmine.svm\nSVC\n)\x81b.");
    sandbox.apr("validate m.pkl").fails(5, &["refused", "mine.svm.SVC", "INVALID"]);
    sandbox.apr("scan m.pkl").fails(5, &["suspicious", "mine.svm.SVC", "2 harmless uses"]);
}

#[test]
fn a_finding_and_an_assurance_are_printed_once() {
    let sandbox = Sandbox::new();
    sandbox.write("evil.pt", fs::read(fixtures().join("evil_deflated.pt")).expect("a fixture"));
    let text = sandbox.apr("validate evil.pt").fails(5, &["Loading the file in Python"]).text();
    assert_eq!(text.to_lowercase().matches("nothing was executed").count(), 1, "{text}");

    let lambda = fixtures().join("../keras/refused.keras");
    sandbox.write("m.keras", fs::read(lambda).expect("a fixture"));
    let text = sandbox.apr("scan m.keras").fails(5, &["a Lambda layer"]).text();
    assert_eq!(text.matches("DANGEROUS").count(), 1, "{text}");
}

#[test]
fn the_shared_files_get_the_verdicts_in_their_names() {
    let Some(folder) = locate::shared_data("malicious") else { return };
    let sandbox = Sandbox::new();
    let summary =
        sandbox.run(&["scan", folder.to_str().expect("plain"), "--json"]).fails(5, &[]).json();
    for file in summary["files"].as_array().expect("files") {
        let name = file["path"].as_str().expect("a name");
        let harmless = name.contains("benign");
        let unknown = name.contains("not_a_pickle");
        let unreadable = ["bad_pytorch", "password"].iter().any(|part| name.contains(part));
        let expected = if harmless {
            "clean"
        } else if unknown {
            "not-examined"
        } else if unreadable {
            "unreadable"
        } else {
            "dangerous"
        };
        assert_eq!(file["verdict"], expected, "{file:#}");
    }
    let Some(folder) = locate::shared_data("pytorch") else { return };
    let summary =
        sandbox.run(&["scan", folder.to_str().expect("plain"), "--json"]).fails(5, &[]).json();
    for file in summary["files"].as_array().expect("files") {
        let broken = file["path"].as_str().is_some_and(|name| name.contains("broken"));
        assert_eq!(file["verdict"], if broken { "unreadable" } else { "clean" }, "{file:#}");
    }
}

/// Compares the verdicts on the files of a folder, and words of their reports, with its list.
fn as_expected(folder: &str) {
    let folder = fixtures().join(folder);
    let expected: Value =
        serde_json::from_slice(&fs::read(folder.join("expected.json")).expect("there"))
            .expect("JSON");
    let sandbox = Sandbox::new();
    let summary =
        sandbox.run(&["scan", folder.to_str().expect("plain"), "--json"]).fails(5, &[]).json();
    let files = summary["files"].as_array().expect("files");
    for (name, expected) in expected.as_object().expect("an object") {
        let path = folder.join(name).display().to_string();
        let report = files.iter().find(|file| file["path"] == path.as_str()).expect(name);
        assert_eq!(report["verdict"], expected["verdict"], "{name}: {report:#}");
        let said = format!("{} {}", report["remarks"], report["warnings"]);
        assert!(said.contains(expected["says"].as_str().expect("text")), "{name}: {report:#}");
    }
    assert!(!sandbox.path("canary").exists());
}

#[test]
fn files_that_are_not_pickles_are_examined_or_reported_as_not_examined() {
    as_expected("content");
}

#[test]
fn each_rule_fires_on_its_case_and_not_on_the_one_beside_it() {
    as_expected("rules");
}

#[test]
fn a_model_folder_is_clean_and_its_scripts_are_reported_as_not_examined() {
    let folder = fixtures().join("../tiny-llama");
    let folder = folder.to_str().expect("plain");
    let sandbox = Sandbox::new();
    let run = sandbox.run(&["scan", folder]);
    run.clean().says(&[&format!("not run: {folder}/check.py, {folder}/train.py ("), "2 not run"]);
    let report = sandbox.run(&["scan", folder, "--json"]).clean().json();
    assert_eq!((&report["verdict"], &report["not_run"]), (&"clean".into(), &2.into()));
    sandbox.run(&["scan", folder, "--strict"]).fails(5, &["2 not run"]);
    // A script alone is no model.
    sandbox.run(&["scan", &format!("{folder}/check.py")]).fails(5, &["not run"]);
}

#[test]
fn no_evasion_is_clean() {
    let folder = fixtures().join("evasions");
    let expected: Value =
        serde_json::from_slice(&fs::read(folder.join("expected.json")).expect("there"))
            .expect("JSON");
    let expected = expected.as_object().expect("an object");
    assert!(expected.len() >= 200, "{}", expected.len());
    let sandbox = Sandbox::new();
    let summary =
        sandbox.run(&["scan", folder.to_str().expect("plain"), "--json"]).fails(5, &[]).json();
    let files = summary["files"].as_array().expect("files");
    let order = ["clean", "not-run", "not-examined", "suspicious", "unreadable", "dangerous"];
    let rank = |verdict: &Value| order.iter().position(|known| verdict == known);
    for (name, expected) in expected {
        // Some are folders, whose worst file counts.
        let path = folder.join(name).display().to_string();
        let within = |file: &&Value| {
            let rest = file["path"].as_str().and_then(|file| file.strip_prefix(&path));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let worst =
            files.iter().filter(within).map(|file| &file["verdict"]).max_by_key(|v| rank(v));
        assert_eq!(worst.expect(name), &expected["verdict"], "{name}");
        assert_ne!(expected["verdict"], "clean", "{name}");
    }
    assert!(!sandbox.path("canary").exists());
}

#[test]
fn files_that_were_not_examined_are_not_clean_unless_allowed() {
    let sandbox = Sandbox::new()
        .with("m/model.safetensors", crate::support::small_safetensors())
        .with("m/weights.xyz", [7, 0, 255, 254, 3]);
    sandbox.apr("scan m").fails(5, &["not examined", "weights.xyz", "1 clean"]);
    sandbox.apr("scan m --strict --allow-unexamined").fails(2, &["--strict"]);
    sandbox.apr("scan m/weights.xyz").fails(5, &["not examined", "unknown format"]);
    sandbox.apr("scan m --allow-unexamined").clean().says(&["1 not examined"]);
    sandbox.write("m/a.pkl", b"cos\nsystem\n(S'id'\ntR.");
    sandbox.apr("scan m --allow-unexamined").fails(5, &["dangerous"]);
}

#[test]
fn a_baseline_accepts_only_unchanged_files() {
    let sandbox = Sandbox::new()
        .with("m/model.safetensors", crate::support::small_safetensors())
        .with("m/config.json", br#"{"auto_map": {"AutoModel": "code.Model"}}"#);
    sandbox.apr("scan m").fails(5, &["suspicious"]);
    sandbox.apr("scan m --write-baseline b.json").clean().says(&["1 accepted", "1 clean"]);
    sandbox.apr("scan m --baseline b.json").clean().says(&["1 accepted"]);
    let summary = sandbox.apr("scan m --baseline b.json --json").clean().json();
    assert_eq!((&summary["verdict"], &summary["accepted"]), (&"clean".into(), &1.into()));
    assert_eq!(summary["files"][0]["accepted"], true);

    // Another file of that name, and the same one with more in it.
    sandbox.write("m/config.json", br#"{"auto_map": {"AutoModel": "code.Other"}}"#);
    sandbox.apr("scan m --baseline b.json").fails(5, &["suspicious", "code.Other"]);
    sandbox.write("m/a.pkl", b"cos\nsystem\n(S'id'\ntR.");
    sandbox.apr("scan m --baseline b.json").fails(5, &["dangerous"]);
    sandbox.write("no.json", b"[]");
    sandbox.apr("scan m --baseline no.json").fails(4, &["not a baseline"]);
}

#[cfg(unix)]
#[test]
fn a_link_out_of_the_folder_is_not_part_of_the_model() {
    let sandbox = Sandbox::new()
        .with("m/model.safetensors", crate::support::small_safetensors())
        .with("other/weights.npy", b"");
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(target, sandbox.path(name)).expect("links");
    };
    link("model.safetensors", "m/same.safetensors");
    sandbox.apr("scan m").clean().says(&["2 clean"]);
    link("../other/weights.npy", "m/weights.npy");
    sandbox.apr("scan m").fails(5, &["suspicious", "weights.npy", "outside the folder"]);
}

#[test]
fn templates_inside_of_models_are_judged() {
    let sandbox = Sandbox::new();
    crate::support::model_folder(&sandbox, "model");
    sandbox.write("model/tokenizer_config.json", br#"{"chat_template": "{{ ''.__class__ }}"}"#);
    sandbox.apr("import model -o m.apr").ok();
    sandbox.apr("scan m.apr").fails(5, &["dangerous", "__class__"]);
}

#[test]
fn a_bill_of_materials_lists_each_file_with_its_digest() {
    let sandbox = Sandbox::new()
        .with("m/model.safetensors", crate::support::small_safetensors())
        .with("m/a.pkl", b"cos\nsystem\n(S'id'\ntR.");
    let run = sandbox.apr("scan m --sbom -");
    assert_eq!(run.code, Some(5), "{run}");
    let bill: Value = serde_json::from_slice(&run.stdout).expect("JSON");
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.6".into()));
    let components = bill["components"].as_array().expect("components");
    assert_eq!(components.len(), 2);
    // printf 'cos\nsystem\n(S'"'"'id'"'"'\ntR.' | sha256sum
    let digest = "8cc73ceecc3fb6787129f6639c5171a97fae9256e36d20d1ca7e4916aee299a4";
    let pickle = components.iter().find(|file| file["name"] == "m/a.pkl").expect("a.pkl");
    assert_eq!(pickle["hashes"][0]["content"], digest);
    let properties = pickle["properties"].to_string();
    assert!(properties.contains("dangerous") && properties.contains("system"), "{properties}");
    // The same files give the same bytes.
    assert_eq!(sandbox.apr("scan m --sbom -").stdout, run.stdout);
    sandbox.shell("$APR scan - --sbom b.json <m/a.pkl").fails(2, &["--sbom", "standard input"]);
    sandbox.apr("scan m --sbom - --sarif -").fails(2, &["--sarif and --sbom"]);
}

#[test]
fn findings_accepted_by_a_baseline_are_suppressed_in_sarif() {
    let sandbox =
        Sandbox::new().with("m/config.json", br#"{"auto_map": {"AutoModel": "code.Model"}}"#);
    sandbox.apr("scan m --write-baseline b.json").clean();
    let log = sandbox.apr("scan m --baseline b.json --sarif -").ok();
    let log: Value = serde_json::from_slice(&log.stdout).expect("JSON");
    let results = log["runs"][0]["results"].as_array().expect("results");
    assert!(!results.is_empty());
    assert!(results.iter().all(|result| result["suppressions"][0]["kind"] == "external"), "{log}");
}

#[test]
fn files_are_left_out_by_their_path_in_the_folder_and_counted() {
    let sandbox = Sandbox::new()
        .with("m/model.safetensors", crate::support::small_safetensors())
        .with("m/old/a.pkl", b"cos\nsystem\n(S'id'\ntR.")
        .with("m/train.py", "import os");
    sandbox.apr("scan m").fails(5, &["os.system"]);
    let run = sandbox.apr("scan m --exclude old/* --exclude *.py").clean();
    run.says(&["1 file: 1 clean, 2 excluded"]);
    let report = sandbox.apr("scan m --include *.safetensors --json").clean().json();
    assert_eq!((&report["excluded"], &report["clean"]), (&2.into(), &1.into()), "{report}");
    assert_eq!(report["files"].as_array().map(Vec::len), Some(1));
    sandbox.apr("scan m --exclude *").fails(2, &["no file matches --include and --exclude"]);
    sandbox.apr("scan m --exclude [").fails(2, &["invalid glob '['"]);
    // What changes nothing is said.
    let run = sandbox.apr("scan m/model.safetensors --exclude *.bin").ok();
    run.says(&["--exclude has no effect: no file is left out"]);
}

#[test]
fn a_bill_of_materials_in_spdx_is_reproducible() {
    let sandbox = Sandbox::new()
        .with("m/model.safetensors", crate::support::small_safetensors())
        .with("m/a.pkl", b"cos\nsystem\n(S'id'\ntR.");
    let line = "export SOURCE_DATE_EPOCH=951782400; $APR scan m --sbom";
    let run = sandbox.shell(&format!("{line} - --sbom-format spdx"));
    assert_eq!(run.code, Some(5), "{run}");
    let bill: Value = serde_json::from_slice(&run.stdout).expect("JSON");
    let graph = bill["@graph"].as_array().expect("elements");
    let of_type =
        |kind: &str| graph.iter().filter(|it| it["type"] == kind).cloned().collect::<Vec<_>>();
    assert_eq!(of_type("CreationInfo")[0]["created"], "2000-02-29T00:00:00Z");
    let files = of_type("software_File");
    assert_eq!(files.len(), 2, "{bill:#}");
    // printf 'cos\nsystem\n(S'"'"'id'"'"'\ntR.' | sha256sum
    let digest = "8cc73ceecc3fb6787129f6639c5171a97fae9256e36d20d1ca7e4916aee299a4";
    assert_eq!(files[0]["name"], "m/a.pkl");
    assert_eq!(files[0]["verifiedUsing"][0]["hashValue"], digest);
    let notes = of_type("Annotation");
    assert_eq!(notes[0]["subject"], files[0]["spdxId"]);
    assert!(notes[0]["statement"].as_str().is_some_and(|text| text.contains("os.system")));

    // By the name of the file, and the same bytes for the same time.
    sandbox.shell(&format!("{line} bill.spdx.json"));
    assert_eq!(sandbox.read("bill.spdx.json"), run.stdout);
    sandbox.apr("scan m --sbom-format spdx").fails(2, &["--sbom"]);
    let wrong = "SOURCE_DATE_EPOCH=x $APR scan m --sbom a.spdx.json";
    sandbox.shell(wrong).fails(2, &["SOURCE_DATE_EPOCH must be a number"]);
}
