//! `apr-qa verify` from outside.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use apr_core::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::{locate, older};
use serde_json::Value;

fn verify(model: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apr-qa"));
    command.arg("verify").arg(model).args(arguments).output().expect("the program starts")
}

fn llama() -> PathBuf {
    locate::fixture("tiny-llama")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn report(model: &Path, arguments: &[&str]) -> Value {
    let output = verify(model, &[arguments, &["--json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_report_begins_like_the_report_of_validate() {
    let report = report(&llama(), &["--score"]);
    assert_eq!((&report["schema"], &report["command"]), (&"apr.points/1".into(), &"verify".into()));
}

/// The verdict on a point of a whole report.
fn verdict(report: &Value, number: usize) -> &str {
    report["points"][number - 1]["verdict"].as_str().expect("a verdict")
}

#[test]
fn every_point_is_listed_with_its_observation() {
    let shown = text(&verify(&llama(), &[]));
    let points = shown
        .lines()
        .filter(|line| line.get(5..8).is_some_and(|number| number.trim().parse::<u8>().is_ok()));
    // Five are beyond the plan.
    assert_eq!(points.count(), 105, "{shown}");
    assert!(shown.contains("\npass 101  Language: sums: "), "{shown}");
    assert!(shown.contains("\npass  26  No NaN: none in 21 tensors; in a test file: "), "{shown}");
    assert!(shown.contains("\nn/a   25  WebAssembly: "), "{shown}");
    assert!(shown.contains("=== 100-Point Quality Assessment ===\nStructure (25 pts): 16/25"));
}

#[test]
fn every_point_that_is_judged_of_made_files_passes() {
    let report = report(&llama(), &[]);
    let points = report["points"].as_array().expect("points");
    assert_eq!(points.len(), 100);
    // The trained model is not aligned, and repeats a newline where the text is no sum.
    for point in points.iter().filter(|point| point["verdict"] == "failed") {
        assert!([6, 45].contains(&point["number"].as_u64().expect("a number")), "{point}");
    }
    // What no file shows: other programs, and what is not built.
    let absent = [25, 61, 92, 100];
    absent.iter().for_each(|&number| assert_eq!(verdict(&report, number), "not_applicable"));
    // The command line is judged where `apr` lies beside this program.
    let with_program = [53, 70, 71, 73, 91, 93, 95, 98];
    let judged = (51..=99).filter(|it| !absent.contains(it) && !with_program.contains(it));
    for number in judged {
        assert_eq!(verdict(&report, number), "passed", "{}", report["points"][number - 1]);
    }
    let beside = Path::new(env!("CARGO_BIN_EXE_apr-qa")).with_file_name("apr").exists();
    for number in with_program {
        let expected = if beside { "passed" } else { "not_applicable" };
        assert_eq!(verdict(&report, number), expected, "{}", report["points"][number - 1]);
    }
}

#[test]
fn the_score_report_lists_no_points() {
    let shown = text(&verify(&llama(), &["--score"]));
    assert_eq!(shown.lines().count(), 7, "{shown}");
    assert!(shown.starts_with("=== 100-Point Quality Assessment ===\n"), "{shown}");
    assert!(shown.lines().nth(5).expect("a total").starts_with("TOTAL: "), "{shown}");
    // Points that take another program, or what is not built yet.
    assert!(shown.ends_with("\nthis program cannot judge 4 points\n"), "{shown}");

    let whole = report(&llama(), &["--category", "physics"]);
    let mut expected = whole.clone();
    for key in ["points", "learnt"] {
        expected.as_object_mut().expect("a report").remove(key).expect("points");
    }
    assert_eq!(report(&llama(), &["--category", "physics", "--score"]), expected);
    assert_eq!(
        (&whole["attainable"], &report(&llama(), &[])["attainable"]),
        (&25.into(), &96.into())
    );
}

#[test]
fn memory_and_threads_follow_the_options() {
    let tiny = verify(&llama(), &["--category", "physics", "--max-memory", "1KiB"]);
    assert_eq!(tiny.status.code(), Some(4), "{tiny:?}");
    assert!(String::from_utf8_lossy(&tiny.stderr).starts_with("error: E008: "), "{tiny:?}");
    for wrong in [["--max-memory", "much"], ["--threads", "0"]] {
        assert_eq!(verify(&llama(), &wrong).status.code(), Some(2), "{wrong:?}");
    }
    let one = ["--category", "physics", "--threads", "1"];
    assert_eq!(report(&llama(), &one), report(&llama(), &["--category", "physics"]));
}

#[test]
fn a_category_has_25_points() {
    let mut numbers = Vec::new();
    for category in ["format", "physics", "tooling", "conversion"] {
        let report = report(&llama(), &["--category", category]);
        assert_eq!((&report["total"], &report["category"]), (&25.into(), &category.into()));
        let points = report["points"].as_array().expect("points").iter();
        numbers.extend(points.filter_map(|point| point["number"].as_u64()));
    }
    assert_eq!(numbers, (1..=100).collect::<Vec<u64>>());
    let output = verify(&llama(), &["--category", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_score_below_the_minimum_is_exit_code_5() {
    let code = |arguments: &[&str]| verify(&llama(), arguments).status.code();
    assert_eq!(code(&["--score", "--min-score", "50"]), Some(0));
    assert_eq!(code(&["--score", "--min-score", "95"]), Some(5));
    assert_eq!(code(&["--category", "physics", "--min-score", "16"]), Some(0));
    assert_eq!(code(&["--category", "physics", "--min-score", "17"]), Some(5));
    // No score of a category is above 25.
    assert_eq!(code(&["--category", "physics", "--min-score", "25"]), Some(5));
    assert_eq!(code(&["--category", "physics", "--min-score", "26"]), Some(2));
    assert_eq!(code(&["--min-score", "101"]), Some(2));
    let shown = text(&verify(&llama(), &["--score", "--min-score", "95"]));
    assert!(shown.ends_with("below the minimum of 95\n"), "{shown}");
}

/// The trained model as a folder whose configuration has other numbers.
fn configured(changes: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in std::fs::read_dir(llama()).expect("a folder") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), folder.path().join(file.file_name())).expect("a copy");
    }
    let path = folder.path().join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("a configuration");
    changes.iter().for_each(|(key, value)| config[*key] = value.clone());
    std::fs::write(path, config.to_string()).expect("a file");
    folder
}

/// Checks the verdicts and observations of points of a category.
#[track_caller]
fn assert_seen(model: &Path, category: &str, expected: &[(u64, &str, &str)]) {
    let report = report(model, &["--category", category]);
    let points = report["points"].as_array().expect("points");
    for (number, verdict, seen) in expected {
        let point = points.iter().find(|point| point["number"] == *number).expect("a point");
        assert_eq!(point["verdict"], *verdict, "{point}");
        assert!(point["seen"].as_str().expect("a sentence").contains(seen), "{point}");
    }
}

const ABSENT: &str = "not_applicable";

/// Writes the output of a conversion, encrypted for a key that is not given.
fn locked(convert: apr::Convert, path: &Path) -> PathBuf {
    use apr_registry::crypto::{DecryptionKey, EncrBlock, Lock};
    let public = DecryptionKey::from_bytes(&[5; 32]).public_bytes();
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(9);
        Ok(())
    };
    let (block, key) = EncrBlock::seal(&[Lock::Recipient(public)], &mut random).expect("a block");
    let encrypt = apr::seal::Encrypt { block, key, hide_metadata: false };
    convert.encrypt(encrypt).write(path).expect("a file");
    path.to_owned()
}

#[test]
fn weights_that_are_encrypted_pass_no_point_about_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let quantized = apr::convert(llama()).quantize(apr::Scheme::Q8_0);
    let quantized = locked(quantized, &folder.path().join("q.apr"));
    let read = [26, 27, 28, 30, 31, 34, 35].map(|number| (number, ABSENT, "encrypted"));
    assert_seen(&quantized, "physics", &read);
    assert_seen(&quantized, "tooling", &[(56, ABSENT, "encrypted")]);

    // Halves, and a filterbank.
    let path = folder.path().join("h.apr");
    let bank = [0.5_f32, 0.25, 0.0, 1.0];
    let halves = apr::write(folder.path().join("h.safetensors"));
    let halves = halves.tensor("audio.mel_filterbank", [4], &bank[..]).finish();
    halves.expect("a file");
    let source = apr::convert(folder.path().join("h.safetensors")).precision(apr::DType::F16);
    let halves = locked(source, &folder.path().join("l.apr"));
    assert_seen(&halves, "physics", &[(37, ABSENT, "encrypted"), (41, ABSENT, "encrypted")]);
    let open = apr::convert(folder.path().join("h.safetensors")).precision(apr::DType::F16);
    open.write(&path).expect("a file");
    assert_seen(&path, "physics", &[(37, "passed", "0 or more"), (41, "passed", "infinite")]);
}

#[test]
fn without_a_configuration_shapes_are_not_held_against_themselves() {
    let folder = tempfile::tempdir().expect("a folder");
    let alone = folder.path().join("m.safetensors");
    std::fs::copy(llama().join("model.safetensors"), &alone).expect("a copy");
    let without = "the model has no configuration";
    let unsaid = "no configuration and no tokenizer";
    assert_seen(&alone, "physics", &[(32, ABSENT, without), (33, ABSENT, unsaid)]);
    let size = "of 259 rows for the configuration's vocabulary of 259";
    assert_seen(&llama(), "physics", &[(32, "passed", "[63, 32]"), (33, "passed", size)]);
    let bert = locate::fixture("run/tiny-bert");
    assert_seen(&bert, "physics", &[(38, "passed", "tensor 'wpe.weight': expected [129, 32]")]);
}

#[test]
fn points_with_too_little_evidence_do_not_pass() {
    // A context of 64 tokens has no 100 positions; one of 256 has.
    let few = "looked at for 63 positions";
    assert_seen(&llama(), "physics", &[(43, ABSENT, few)]);
    let longer = configured(&[("max_position_embeddings", 256.into())]);
    assert_seen(longer.path(), "physics", &[(43, "passed", "none for 255 positions")]);
    // After a prompt of 31 tokens, two are too few to be six times the same.
    let shorter = configured(&[("max_position_embeddings", 33.into())]);
    assert_seen(shorter.path(), "physics", &[(45, ABSENT, "a repetition takes 6")]);
    // A context that nobody has the memory for is not tried.
    for context in [u64::MAX, 1 << 62, 1 << 40] {
        let endless = configured(&[("max_position_embeddings", context.into())]);
        assert_seen(endless.path(), "physics", &[(49, ABSENT, "exceeds the memory limit")]);
    }
}

#[test]
fn a_filterbank_that_the_network_does_not_take_fails() {
    let file = |metadata: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.apr");
        let entry = Apr2Entry::new("audio.mel_filterbank", DType::F32, &[80, 1], &[0; 320]);
        let metadata = format!(r#"{{"apr_version":"2.0.0",{metadata}}}"#);
        let file = Apr2Builder::new().metadata(metadata).entry(entry).build();
        std::fs::write(&path, file).expect("a file");
        (folder, path)
    };
    let bank = |mels: u64| file(&format!(r#""architecture":{{"n_mels":{mels}}}"#));
    let (_whole, fits) = bank(80);
    assert_seen(&fits, "physics", &[(48, "passed", "for 80 mels")]);
    let (_other, misfit) = bank(128);
    assert_seen(&misfit, "physics", &[(48, "failed", "80 mel filters")]);
    // A name that no family has is no misfit of the filterbank.
    let (_strange, strange) = file(r#""model_type":"whisper","architecture":{"n_mels":80}"#);
    assert_seen(
        &strange,
        "physics",
        &[(32, "failed", "of that family"), (48, "passed", "80 mels")],
    );
}

#[test]
fn the_apr2_header_points_do_not_apply_to_other_formats() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.apr");
    let tensors = [("w", 0, &[2_u32][..], older::f32s(&[0.5, 1.0]))];
    std::fs::write(&path, older::dialect_a(*b"APR\0", 0, "{}", &tensors)).expect("a file");
    assert_seen(&path, "format", &[(2, ABSENT, "no header of 32 bytes"), (13, ABSENT, "")]);
}

#[test]
fn models_of_other_families_and_formats_have_a_score_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let gguf = folder.path().join("m.gguf");
    apr::convert(llama()).write(&gguf).expect("a GGUF file");
    for (model, least) in [(locate::fixture("run/tiny-bert"), 70), (gguf, 70)] {
        let report = report(&model, &[]);
        let passed = report["passed"].as_u64().expect("a score");
        assert!(passed >= least, "{}: {passed}", model.display());
    }
}

#[test]
fn a_point_that_was_made_to_fail_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.safetensors");
    let values = [0.5, f32::NAN, 0.25, -0.125];
    apr::write(&path).tensor("a.weight", [4], &values[..]).finish().expect("a file");
    let report = report(&path, &["--category", "physics"]);
    let of = |number: usize| &report["points"][number - 26]["verdict"];
    assert_eq!((of(26), of(27)), (&"failed".into(), &"passed".into()));
    assert_eq!(report["points"][0]["seen"], "tensor 'a.weight': 1 of 4 values are NaN");
}

#[test]
fn a_model_that_does_not_open_has_the_exit_codes_of_apr() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, "a letter, and no model").expect("a file");
    assert_eq!(verify(&path, &[]).status.code(), Some(4));
    let output = verify(&folder.path().join("absent"), &[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: E007: "), "{output:?}");
}

#[test]
fn temporary_files_are_removed() {
    let temporary = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_apr-qa"));
    command.env("TMPDIR", temporary.path()).arg("verify").arg(llama());
    assert!(command.output().expect("it starts").status.success());
    assert_eq!(std::fs::read_dir(temporary.path()).expect("a folder").count(), 0);
}
