//! What views write is what the commands report.

use std::fs;

use apr_testkit::tmux::Tmux;
use serde_json::Value;

use super::{LLAMA, on_terminal, with_llama, without_measurements};
use crate::support::{Sandbox, reports};

/// The report that a view wrote, without its envelope.
#[track_caller]
fn json(sandbox: &Sandbox, name: &str) -> Value {
    reports(&sandbox.read(name)).remove(0)
}

#[track_caller]
fn bare_json(sandbox: &Sandbox, name: &str) -> Value {
    serde_json::from_slice(&sandbox.read(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Writes what `e` offers after some Tabs.
fn write(tmux: &Tmux, tabs: usize, name: &str) {
    tmux.keys(&["e"]);
    for _ in 0..tabs {
        tmux.keys(&["Tab"]);
    }
    let _ = tmux.shows(&[&format!("): {name}")]);
    tmux.keys(&["Enter"]);
    let _ = tmux.shows(&[&format!("wrote {name}")]);
}

#[test]
fn views_of_tensors_and_of_the_graph_write_the_reports_of_the_commands() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let script = format!(r#""$APR" tui {LLAMA}; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (100, 30), &script);
    let _ = tmux.shows(&["21 tensors"]);
    write(&tmux, 0, "tensors.json");
    tmux.keys(&["j", "v"]);
    let _ = tmux.shows(&["[0:", "model.embed_tokens.weight"]);
    write(&tmux, 0, "values.json");
    tmux.keys(&["b"]);
    let _ = tmux.shows(&["259 tokens from tokenizer.json"]);
    write(&tmux, 0, "vocabulary.json");
    tmux.keys(&["g"]);
    let _ = tmux.shows(&["135 nodes"]);
    write(&tmux, 1, "graph.svg");
    tmux.keys(&["h"]);
    let _ = tmux.shows(&["Mean: "]);
    write(&tmux, 1, "histogram.svg");
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);

    let report = |line: &str| sandbox.apr(&format!("{line} --json")).ok().json();
    assert_eq!(json(&sandbox, "tensors.json"), report(&format!("tensors {LLAMA}")));
    let values = json(&sandbox, "values.json");
    let ranges = values["ranges"].as_array().expect("ranges").iter();
    let ranges: Vec<String> = ranges.map(|range| format!("{}:{}", range[0], range[1])).collect();
    let slice =
        format!("{}[{}]", values["tensor"]["name"].as_str().expect("a name"), ranges.join(","));
    assert_eq!(values, report(&format!("tensors {LLAMA} --values {slice}")));
    let inspect = report(&format!("inspect {LLAMA} --vocab --full"));
    assert_eq!(bare_json(&sandbox, "vocabulary.json"), inspect["vocabulary"]);
    let image = sandbox.apr(&format!("graph {LLAMA} --format svg")).ok().stdout;
    assert!(sandbox.read("graph.svg") == image, "the graph is drawn otherwise");
    let image = String::from_utf8(sandbox.read("histogram.svg")).expect("text");
    assert!(image.starts_with("<svg ") && image.contains(">Mean: "), "{image}");
}

#[test]
fn checks_and_traces_write_the_reports_of_the_commands() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let script = format!(r#""$APR" tui {LLAMA} --prompt 12+34=; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (100, 40), &script);
    let _ = tmux.shows(&["21 tensors"]);
    tmux.keys(&["x"]);
    let _ = tmux.shows(&["Validate  VALID", "Scan  CLEAN", "Lint"]);
    write(&tmux, 1, "scan.json");
    write(&tmux, 2, "lint.json");
    tmux.keys(&["i"]);
    let _ = tmux.shows(&["[Trace View]", "[256, 49, 50, 43, 51, 52, 61]"]);
    write(&tmux, 0, "trace.json");
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);

    let report = |line: &str| sandbox.apr(&format!("{line} {LLAMA} --json")).json();
    assert_eq!(json(&sandbox, "scan.json"), report("scan"));
    assert_eq!(json(&sandbox, "lint.json"), report("lint"));
    let mut traces =
        [json(&sandbox, "trace.json"), report("trace --prompt 12+34= --trace-payload --weights")];
    traces.iter_mut().for_each(without_measurements);
    assert_eq!(traces[0], traces[1]);
}

#[test]
fn scores_and_outputs_of_two_models_match_the_commands() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    sandbox.apr(&format!("quantize {LLAMA} --type q4_0 -o q4.gguf")).ok();
    let script = format!(r#""$APR" tui {LLAMA} q4.gguf --compare; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (100, 30), &script);
    let _ = tmux.shows(&["v1: ████████████████ 5/5 VALID", "v2: ████████████████ 6/6 VALID"]);
    write(&tmux, 1, "scores.json");
    tmux.keys(&["o"]);
    let screen = tmux.shows(&["Outputs: ✓ PASS mean L2="]);
    write(&tmux, 2, "quality.json");
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);

    let expected = [LLAMA, "q4.gguf"]
        .map(|model| sandbox.apr(&format!("validate {model} --json")).ok().json());
    let scores = bare_json(&sandbox, "scores.json");
    let scores = scores.as_array().expect("two reports").iter();
    let scores: Vec<_> = scores.map(|score| reports(score.to_string().as_bytes())).collect();
    assert_eq!(scores.concat(), expected);
    let report = sandbox.apr(&format!("validate {LLAMA} q4.gguf --quality --json")).ok().json();
    // The command's report also describes the inputs.
    let written = bare_json(&sandbox, "quality.json");
    for (field, value) in written.as_object().expect("fields") {
        assert_eq!(*value, report[field], "{field}");
    }
    super::assert_shown(super::behind(&screen, "mean L2="), &report["mean_l2"]);
    super::assert_shown(super::behind(&screen, "cosine="), &report["cosine"]);
}

#[test]
fn a_file_is_replaced_after_a_yes_alone() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    fs::write(sandbox.path("tensors.json"), "mine").expect("a file");
    let script = format!(r#""$APR" tui {LLAMA}; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (80, 24), &script);
    let _ = tmux.shows(&["21 tensors"]);
    tmux.keys(&["e", "Enter"]);
    let _ = tmux.shows(&["tensors.json exists: y replaces it, n keeps it"]);
    tmux.keys(&["n"]);
    let _ = tmux.shows(&["[Enter] hist"]);
    assert_eq!(sandbox.read("tensors.json"), b"mine");
    tmux.keys(&["e", "Enter"]);
    let _ = tmux.shows(&["exists: y replaces it"]);
    tmux.keys(&["y"]);
    let _ = tmux.shows(&["wrote tensors.json"]);
    assert!(sandbox.read("tensors.json").starts_with(b"{"));
}
