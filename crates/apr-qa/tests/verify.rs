//! `apr-qa verify` from outside.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use apr_testkit::locate;
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

/// The verdict on a point of a whole report.
fn verdict(report: &Value, number: usize) -> &str {
    report["points"][number - 1]["verdict"].as_str().expect("a verdict")
}

#[test]
fn every_point_is_listed_with_what_was_seen() {
    let shown = text(&verify(&llama(), &[]));
    let points = shown
        .lines()
        .filter(|line| line.get(5..8).is_some_and(|number| number.trim().parse::<u8>().is_ok()));
    assert_eq!(points.count(), 100, "{shown}");
    assert!(shown.contains("\npass  26  No NaN: none in 21 tensors; in a made file: "), "{shown}");
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
    let absent = [25, 58, 59, 61, 63, 92, 100];
    absent.iter().for_each(|&number| assert_eq!(verdict(&report, number), "not_applicable"));
    // The command line is judged where `apr` lies beside this program.
    let with_program = [53, 70, 71, 91, 93, 98];
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
fn the_score_alone_is_six_lines() {
    let shown = text(&verify(&llama(), &["--score"]));
    assert_eq!(shown.lines().count(), 6, "{shown}");
    assert!(shown.starts_with("=== 100-Point Quality Assessment ===\n"), "{shown}");
    assert!(shown.lines().last().expect("a total").starts_with("TOTAL: "), "{shown}");
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
    assert_eq!(code(&["--category", "physics", "--min-score", "17"]), Some(0));
    assert_eq!(code(&["--category", "physics", "--min-score", "18"]), Some(5));
    assert_eq!(code(&["--min-score", "101"]), Some(2));
    let shown = text(&verify(&llama(), &["--score", "--min-score", "95"]));
    assert!(shown.ends_with("below the minimum of 95\n"), "{shown}");
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
fn what_does_not_open_has_the_exit_codes_of_apr() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, "a letter, and no model").expect("a file");
    assert_eq!(verify(&path, &[]).status.code(), Some(4));
    let output = verify(&folder.path().join("absent"), &[]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: E007: "), "{output:?}");
}

#[test]
fn nothing_is_left_behind() {
    let temporary = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_apr-qa"));
    command.env("TMPDIR", temporary.path()).arg("verify").arg(llama());
    assert!(command.output().expect("it starts").status.success());
    assert_eq!(std::fs::read_dir(temporary.path()).expect("a folder").count(), 0);
}
