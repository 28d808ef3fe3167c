//! Screens that keys drive, on a terminal of tmux.

mod conversations;
mod exports;
mod manners;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use apr_testkit::locate;
use apr_testkit::onnx::cyclic;
use apr_testkit::tmux::Tmux;
use serde_json::Value;

use crate::support::{Sandbox, binary, reports};

/// Folder of the model in each sandbox; screens truncate longer paths.
const LLAMA: &str = "tiny-llama";

fn with_llama() -> Sandbox {
    let sandbox = Sandbox::new();
    symlink(locate::fixture(LLAMA), sandbox.path(LLAMA)).expect("a link");
    sandbox
}

/// A shell script on a terminal; `"$APR"` is the command.
fn on_terminal(sandbox: &Sandbox, size: (u16, u16), script: &str) -> Tmux {
    let home = sandbox.path("home");
    let folder = home.parent().map(PathBuf::from).expect("a folder");
    Tmux::start(&sandbox.path("tmux"), size, script, move |mut command| {
        command.current_dir(&folder).env("HOME", &home).env("APR", binary());
        for name in ["NO_COLOR", "APR_COLOR", "APR_PASSWORD", "APR_CONFIG", "XDG_CONFIG_HOME"] {
            command.env_remove(name);
        }
        command
    })
}

/// Asserts that a number on the screen equals a number of a report, to the digits shown.
fn assert_shown(shown: &str, number: &Value) {
    let number = number.as_f64().unwrap_or_else(|| panic!("{number} is no number"));
    let (digits, exponent) = shown.split_once('e').unwrap_or((shown, "0"));
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let unit = 10_f64.powi(exponent.parse::<i32>().expect("an exponent"))
        / 10_f64.powi(i32::try_from(decimals).expect("few"));
    let value: f64 = shown.parse().unwrap_or_else(|_| panic!("{shown} is no number"));
    // Half a unit of the last digit, and what reading it back rounds.
    assert!((value - number).abs() <= 0.5001 * unit, "{shown} is shown for {number}");
}

/// Returns the value after a label on the screen.
fn behind<'s>(screen: &'s str, label: &str) -> &'s str {
    let start = screen.find(label).unwrap_or_else(|| panic!("no {label} on\n{screen}"));
    let rest = &screen[start + label.len()..];
    rest.split([' ', ',', ']', '│']).find(|word| !word.is_empty()).unwrap_or_default()
}

#[test]
fn an_interactive_trace_shows_the_numbers_of_the_report_step_by_step() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let line = format!("trace {LLAMA} --prompt 12+34= --trace-payload --weights --json");
    let report = sandbox.apr(&line).ok().json();
    let pass = &report["passes"][0];
    let (inputs, steps) = (pass["inputs"].as_array().unwrap(), pass["steps"].as_array().unwrap());
    let total = inputs.len() + steps.len() + 1;

    let script = format!(r#""$APR" trace {LLAMA} --prompt 12+34= --interactive; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (100, 30), &script);
    let first = tmux.shows(&["YOU ARE HERE", &format!(" 1/{total} ")]);
    assert!(first.contains("Payload Trace: \"12+34=\""), "{first}");
    for input in inputs {
        let number = inputs.iter().position(|it| it == input).unwrap() + 1;
        let name = input["name"].as_str().unwrap();
        let screen = tmux.shows(&[&format!("Current: {name} "), &format!(" {number}/{total} ")]);
        assert!(screen.contains("[1, 7]"), "{screen}");
        tmux.keys(&["Right"]);
    }

    for step in steps {
        let path = step["path"].as_str().unwrap();
        let number = step["number"].as_u64().unwrap();
        let screen =
            tmux.shows(&[&format!("Current Layer: {path} "), &format!(" {number}/{total} ")]);
        if let Some(statistics) = step["statistics"].as_object() {
            let payload = &screen[screen.find("Payload Snapshot").unwrap()..];
            for name in ["mean", "std", "min", "max"] {
                assert_shown(behind(payload, &format!("{name}=")), &statistics[name]);
            }
            assert_shown(behind(payload, " ["), &step["first"][0]);
        }
        if let Some(weights) = step["weight_statistics"].as_object() {
            let line = &screen[screen.find("Weight Stats").unwrap()..];
            assert_shown(behind(line, "mean="), &weights["mean"]);
            assert_shown(behind(line, "std="), &weights["std"]);
        }
        let parameters = behind(&screen, "Params:").replace(',', "");
        let parameters = parameters.split_whitespace().next().unwrap();
        assert!(step["parameters"].to_string().starts_with(parameters), "{path}: {screen}");
        tmux.keys(&["Right"]);
    }

    let predicted = report["predictions"][0]["top"][0]["text"].as_str().unwrap();
    let _ = tmux.shows(&[
        "Top predictions:",
        &format!("1. \"{predicted}\""),
        &format!("{total}/{total}"),
    ]);
    tmux.keys(&["q"]);
    let left = tmux.shows(&["code 0"]);
    assert!(!left.contains("Pipeline"), "the screen stays:\n{left}");
}

#[test]
fn the_trace_of_the_screen_is_exported_as_the_report_is() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let line = format!("trace {LLAMA} --tokens 1,5,20 --trace-payload --weights --json");
    let mut report = sandbox.apr(&line).ok().json();
    let script = format!(r#""$APR" trace {LLAMA} --tokens 1,5,20 --interactive; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (80, 24), &script);
    let _ = tmux.shows(&["YOU ARE HERE"]);
    tmux.keys(&["e"]);
    let _ = tmux.shows(&["write to (Tab: trace.svg): trace.json"]);
    tmux.keys(&["Enter"]);
    let _ = tmux.shows(&["wrote trace.json"]);
    // A file that is there is not replaced.
    tmux.keys(&["e", "Enter"]);
    let _ = tmux.shows(&["trace.json exists: y replaces it"]);
    tmux.keys(&["n", "q"]);
    let _ = tmux.shows(&["code 0"]);

    let mut written = reports(&sandbox.read("trace.json")).remove(0);
    for trace in [&mut report, &mut written] {
        without_measurements(trace);
    }
    assert_eq!(written, report);
}

/// Removes fields that differ between two runs: times, and memory that another thread had not freed
/// yet.
fn without_measurements(value: &mut Value) {
    const MEASURED: [&str; 5] =
        ["seconds", "start", "live_bytes", "peak_bytes", "peak_memory_bytes"];
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !MEASURED.contains(&name.as_str()));
            fields.values_mut().for_each(without_measurements);
        }
        Value::Array(values) => values.iter_mut().for_each(without_measurements),
        _ => {}
    }
}

#[test]
fn two_models_are_compared_step_by_step() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    sandbox.apr(&format!("quantize {LLAMA} --type q4_0 -o q4.gguf")).ok();
    let line = format!("trace {LLAMA} q4.gguf --diff --tokens 1,5,20 --max-tokens 1");
    let report = sandbox.apr(&format!("{line} --json")).ok().json();
    let steps = report["passes"][0]["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["path"] == "layers.0/mlp").unwrap();

    let script = format!(r#""$APR" {line} --interactive; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (80, 24), &script);
    let _ = tmux.shows(&["YOU ARE HERE"]);
    tmux.keys(&["/"]);
    tmux.keys(&["-l", "layers.0/mlp"]);
    tmux.keys(&["Enter", "n"]);
    let screen = tmux.shows(&["Current Layer: layers.0/mlp ", "Drift to q4.gguf", "L2="]);
    for (label, name) in [("L2=", "relative_l2"), ("cosine=", "cosine"), ("max=", "max_abs")] {
        let drift = &screen[screen.find("Drift to").unwrap()..];
        assert_shown(behind(drift, label), &step[name]);
    }
    tmux.keys(&["d"]);
    let _ = tmux.shows(&["Payload Snapshot"]);
}

#[test]
fn ctrl_c_and_ctrl_z_give_the_terminal_back() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let script = format!(
        r#"stty -a > before
        "$APR" trace {LLAMA} --tokens 1,5 --interactive; echo "code $?"
        stty -a > after; echo "all is over""#
    );
    let tmux = on_terminal(&sandbox, (60, 20), &script);
    let _ = tmux.shows(&["YOU ARE HERE"]);
    tmux.resize((100, 40));
    let _ = tmux.shows(&["[q]uit", "YOU ARE HERE"]);
    tmux.resize((60, 20));
    let _ = tmux.shows(&["[q]uit", "YOU ARE HERE"]);
    tmux.keys(&["C-c"]);
    let left = tmux.shows(&["code 130", "all is over"]);
    assert!(!left.contains("Pipeline"), "{left}");
    // The first line has the size, which may not have arrived yet.
    let state = |name: &str| {
        let text = String::from_utf8(sandbox.read(name)).expect("text");
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(state("before"), state("after"));

    let sandbox = with_llama();
    let tmux = on_terminal(&sandbox, (80, 24), "exec bash --norc -i");
    tmux.keys(&["-l", &format!(r#""$APR" trace {LLAMA} --tokens 1,5 --interactive"#)]);
    tmux.keys(&["Enter"]);
    let _ = tmux.shows(&["YOU ARE HERE"]);
    tmux.keys(&["C-z"]);
    let _ = tmux.shows(&["Stopped"]);
    tmux.keys(&["-l", "fg"]);
    tmux.keys(&["Enter"]);
    let _ = tmux.shows(&["YOU ARE HERE"]);
    tmux.keys(&["q"]);
}

#[test]
fn without_a_terminal_a_screen_says_what_to_use_instead() {
    let sandbox = with_llama();
    let line = format!("trace {LLAMA} --tokens 1,5 --interactive");
    sandbox
        .apr(&line)
        .fails(1, &["standard output is not a terminal", "apr trace --trace-payload"]);
    sandbox.apr(&format!("{line} --json")).fails(2, &["no JSON", "apr trace --trace-payload"]);
    sandbox.apr(&format!("{line} --trace-payload")).fails(2, &["cannot be used with"]);
    sandbox.apr(&format!("trace {LLAMA} --tokens 1 --weights")).fails(2, &["--trace-payload"]);
}

#[test]
fn qa_54_a_graph_is_drawn_and_one_that_is_cyclic_too() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let tmux = on_terminal(&sandbox, (80, 24), &format!(r#""$APR" tui {LLAMA}; echo "code $?""#));
    let _ = tmux.shows(&["Tensors View", "21 tensors"]);
    tmux.keys(&["g"]);
    let screen = tmux.shows(&["Graph View", "input_ids", "362 k parameters, 135 nodes"]);
    assert!(screen.contains("┌─") && screen.contains("1/10"), "{screen}");
    tmux.keys(&["/"]);
    tmux.keys(&["-l", "layers"]);
    tmux.keys(&["Enter"]);
    let _ = tmux.shows(&["━ layers.0-1 (×2) ▸", "apr::Layer", "295 k params", "▼"]);
    tmux.keys(&["Enter"]);
    let _ = tmux.shows(&["model › layers.0-1", "━ attention_norm ▸"]);
    tmux.keys(&["Escape"]);
    let _ = tmux.shows(&["━ layers.0-1 (×2) ▸"]);
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);

    let sandbox = with_llama().with("cyclic.onnx", cyclic());
    let script = r#""$APR" tui cyclic.onnx; echo "code $?""#;
    let tmux = on_terminal(&sandbox, (80, 24), script);
    let _ = tmux.shows(&["Tensors View", "0 tensors"]);
    tmux.keys(&["g"]);
    let _ = tmux.shows(&["Graph View", "nodes wait for each other: first -> second -> first"]);
    let _ = tmux.shows(&["first", "second", "Relu"]);
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);
}

#[test]
fn qa_55_statistics_are_those_of_the_command_line() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let report = sandbox.apr(&format!("tensors {LLAMA} --stats --json")).ok().json();
    let inspect = sandbox.apr(&format!("inspect {LLAMA} --json")).ok().json();
    let tensors = report["tensors"].as_array().unwrap();
    let script = format!(r#""$APR" tui {LLAMA}; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (140, 45), &script);
    let _ = tmux.shows(&["Tensors View"]);
    tmux.keys(&["s", "a"]);
    let last = tensors.last().unwrap()["name"].as_str().unwrap();
    let screen = tmux.shows(&["All Tensors ─", last]);
    for row in tensors {
        let name = row["name"].as_str().unwrap();
        let line = screen.lines().find(|line| line.contains(name)).unwrap_or_else(|| {
            panic!("{name} is not on the screen:\n{screen}");
        });
        let line = &line[line.find(name).unwrap() + name.len()..];
        let numbers: Vec<&str> = line.split_whitespace().collect();
        assert_shown(numbers[0], &row["stats"]["mean"]);
        assert_shown(numbers[1], &row["stats"]["std"]);
    }
    let parameters = behind(&screen.replace(',', ""), "Total Params:").to_owned();
    assert_eq!(parameters, inspect["parameters"].to_string());
    assert_eq!(behind(&screen, "Vocab:"), inspect["vocab_size"].to_string());

    // The histogram has the same, and the file that is written is the command's report.
    tmux.keys(&["h"]);
    let screen = tmux.shows(&["[Histogram]", tensors[0]["name"].as_str().unwrap(), "Mean: "]);
    for (label, name) in [("Mean:", "mean"), ("Std:", "std"), ("Min:", "min"), ("Max:", "max")] {
        assert_shown(behind(&screen, label), &tensors[0]["stats"][name]);
    }
    tmux.keys(&["s", "e", "Enter"]);
    let _ = tmux.shows(&["wrote stats.json"]);
    tmux.keys(&["h", "e", "Enter"]);
    let _ = tmux.shows(&["wrote histogram.json"]);
    tmux.keys(&["x"]);
    let _ = tmux.shows(&["VALID", "Names and shapes"]);
    tmux.keys(&["e", "Enter"]);
    let _ = tmux.shows(&["wrote validate.json"]);
    tmux.keys(&["g"]);
    let _ = tmux.shows(&["135 nodes"]);
    tmux.keys(&["e", "Enter"]);
    let _ = tmux.shows(&["wrote graph.json"]);
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);
    let written = |name: &str| reports(&sandbox.read(name)).remove(0);
    assert_eq!(written("stats.json"), report);
    let first = tensors[0]["name"].as_str().unwrap();
    let histogram = sandbox.apr(&format!("tensors {LLAMA} --hist {first} --json")).ok().json();
    assert_eq!(written("histogram.json"), histogram);
    assert_eq!(written("validate.json"), sandbox.apr(&format!("validate {LLAMA} --json")).json());
    assert_eq!(written("graph.json"), sandbox.apr(&format!("graph {LLAMA} --json")).ok().json());
}

#[test]
fn a_model_that_shrinks_while_open_is_reported() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    sandbox.write_sparse("m.safetensors", 1 << 20);
    let script = r#""$APR" tui m.safetensors; echo "code $?""#;
    let tmux = on_terminal(&sandbox, (80, 24), script);
    let _ = tmux.shows(&["1 tensor"]);
    fs::File::options()
        .write(true)
        .open(sandbox.path("m.safetensors"))
        .and_then(|file| file.set_len(1 << 10))
        .expect("a file of one's own");
    tmux.keys(&["h"]);
    let _ = tmux.shows(&["E007"]);
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);
}

#[test]
fn a_model_is_explored_without_colours_where_that_is_asked_for() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    for (setting, has_colors) in [("", true), ("NO_COLOR=1", false)] {
        let script = format!(r#"{setting} "$APR" tui {LLAMA}; echo "code $?""#);
        let tmux = on_terminal(&sandbox, (80, 24), &script);
        let _ = tmux.shows(&["21 tensors"]);
        let screen = tmux.styled_screen();
        assert_eq!(screen.contains("38;5;6m"), has_colors, "{screen}");
        tmux.keys(&["q"]);
        let _ = tmux.shows(&["code 0"]);
    }
    let line = format!("tui {LLAMA}");
    sandbox.apr(&line).fails(1, &["not a terminal", "`apr inspect`"]);
    sandbox.apr(&format!("{line} --json")).fails(2, &["`apr inspect --json`"]);
    sandbox.apr("tui absent.apr").fails(1, &["not a terminal"]);
    let tmux = on_terminal(&sandbox, (80, 24), r#""$APR" tui absent.apr; echo "code $?""#);
    let _ = tmux.shows(&["absent.apr", "code 3"]);
}

#[test]
fn two_models_are_compared_on_a_screen() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    sandbox.apr(&format!("quantize {LLAMA} --type q4_0 -o q4.gguf")).ok();
    let report = sandbox.apr(&format!("diff {LLAMA} q4.gguf --json")).ok().json();
    let other = Sandbox::of(&sandbox.kept());
    let script = format!(r#""$APR" tui {LLAMA}; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (100, 30), &script);
    let _ = tmux.shows(&["21 tensors"]);
    tmux.keys(&["c"]);
    let _ = tmux.shows(&["Only one model is open. Press Enter"]);
    for (location, shown) in [("absent", "E007"), ("q4.gguf", "Similarity: ")] {
        tmux.keys(&["Enter"]);
        tmux.keys(&["-l", location]);
        tmux.keys(&["Enter"]);
        let _ = tmux.shows(&["Compare View", shown]);
    }
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);

    let script = format!(r#""$APR" tui {LLAMA} q4.gguf --compare; echo "code $?""#);
    let tmux = on_terminal(&other, (100, 30), &script);
    let screen = tmux.shows(&["Compare View", "Similarity: ", "v1: ", "v2: ", "(mean="]);
    assert_shown(behind(&screen, "Max Δ:"), &report["max_delta"]);
    assert_shown(behind(&screen, "L2 Dist:"), &report["l2"]);
    tmux.keys(&["e", "Enter"]);
    let _ = tmux.shows(&["wrote diff.json"]);
    tmux.keys(&["q"]);
    let _ = tmux.shows(&["code 0"]);
    assert_eq!(reports(&other.read("diff.json")).remove(0), report);
}

#[test]
fn a_screen_ends_when_its_terminal_goes_away() {
    if !Tmux::is_there() {
        return;
    }
    for line in ["tui", "trace --prompt 12+34= --interactive"] {
        let sandbox = with_llama();
        // Signals are ignored, so that only the terminal itself says that it is gone.
        let script = format!("trap '' HUP; echo $$ > pid; exec \"$APR\" {line} {LLAMA}");
        let tmux = on_terminal(&sandbox, (80, 24), &script);
        let _ = tmux.shows(&["tiny-llama"]);
        let pid = String::from_utf8(sandbox.read("pid")).expect("a number");
        let process = PathBuf::from(format!("/proc/{}", pid.trim()));
        assert!(process.exists());
        drop(tmux);
        let begun = Instant::now();
        while process.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "apr {line} goes on");
            sleep(Duration::from_millis(20));
        }
    }
}
