//! The mouse, passwords, and the words of messages.

use apr_testkit::tmux::Tmux;
use serde_json::json;

use super::{LLAMA, on_terminal, with_llama};

/// A click of the left button, as terminals send it; columns and rows count from 1.
fn click(tmux: &Tmux, (column, row): (usize, usize)) {
    tmux.keys(&["-l", &format!("\u{1b}[<0;{column};{row}M\u{1b}[<0;{column};{row}m")]);
}

#[test]
fn the_mouse_is_captured_while_a_screen_uses_it_and_then_released() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let has_mouse = |tmux: &Tmux| tmux.property("#{mouse_any_flag}") == "1";
    let script = format!(r#""$APR" tui {LLAMA}; echo "code $?""#);
    let tmux = on_terminal(&sandbox, (80, 24), &script);
    let _ = tmux.shows(&["21 tensors"]);
    assert!(has_mouse(&tmux));
    // The fourth row of the list, and once more.
    click(&tmux, (10, 6));
    let _ = tmux.shows(&[" 4/21 "]);
    click(&tmux, (10, 6));
    let _ = tmux.shows(&["Tensor: model.layers.0.mlp.down_proj.weight", "Mean: "]);
    tmux.keys(&["M", "t"]);
    let _ = tmux.shows(&["[Tensors View]"]);
    assert!(!has_mouse(&tmux), "M gives the mouse back");
    tmux.keys(&["M", "q"]);
    let _ = tmux.shows(&["code 0"]);
    assert!(!has_mouse(&tmux), "the end gives the mouse back");

    for line in ["tui", "trace --prompt 1+1= --interactive"] {
        let script = format!(r#""$APR" {line} {LLAMA} --no-mouse; echo "code $?""#);
        let tmux = on_terminal(&sandbox, (80, 24), &script);
        let _ = tmux.shows(&["[q]uit"]);
        assert!(!has_mouse(&tmux), "{line}");
        tmux.keys(&["q"]);
        let _ = tmux.shows(&["code 0"]);
    }
    sandbox.apr(&format!("trace {LLAMA} --tokens 1 --no-mouse")).fails(2, &["--interactive"]);
}

#[test]
fn a_password_is_prompted_for_and_not_echoed() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama().with("password", "only for tests");
    sandbox.apr(&format!("import {LLAMA} -o plain.apr")).ok();
    sandbox.apr("encrypt plain.apr -o sealed.apr --password --password-file password").ok();
    let script = r#""$APR" tui sealed.apr; echo "code $?""#;
    let tmux = on_terminal(&sandbox, (80, 24), script);
    let _ = tmux.shows(&["Password of sealed.apr:"]);
    tmux.keys(&["-l", "only for tests"]);
    assert!(!tmux.screen().contains("only for tests"));
    tmux.keys(&["Enter", "h"]);
    let screen = tmux.shows(&["[Histogram]", "Mean: "]);
    assert!(!screen.contains("only for tests"));
    tmux.keys(&["q"]);
    let left = tmux.shows(&["code 0"]);
    assert!(!left.contains("only for tests"), "{left}");
}

#[test]
fn messages_of_libraries_name_options() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    sandbox.write_sparse("strange.safetensors", 1 << 10);
    let tmux = on_terminal(&sandbox, (100, 30), r#""$APR" tui strange.safetensors"#);
    let _ = tmux.shows(&["1 tensor"]);
    tmux.keys(&["g"]);
    let screen = tmux.shows(&["unknown family", "--arch NAME", "--arch-file FILE"]);
    assert!(!screen.contains('`'), "{screen}");
    tmux.keys(&["i"]);
    let _ = tmux.shows(&["the model does not run", "--arch NAME"]);
    tmux.keys(&["q"]);
}

#[test]
fn an_input_of_the_trace_view_is_checked_before_the_screen_is_shown() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama().with("ids.json", json!({ "input_ids": [[1, 5, 20]] }).to_string());
    let tmux = on_terminal(
        &sandbox,
        (80, 24),
        &format!(r#""$APR" tui {LLAMA} --tokens 1,100000; echo "code $?""#),
    );
    let _ = tmux.shows(&["--tokens: 100000 is not in the model's vocabulary", "code 2"]);
    for input in ["--tokens 1,5,20", "--input ids.json"] {
        let script = format!(r#""$APR" tui {LLAMA} {input}; echo "code $?""#);
        let tmux = on_terminal(&sandbox, (80, 24), &script);
        let _ = tmux.shows(&["21 tensors"]);
        tmux.keys(&["i"]);
        let _ = tmux.shows(&["[Trace View]", "[1, 5, 20]", "YOU ARE HERE"]);
        tmux.keys(&["q"]);
        let _ = tmux.shows(&["code 0"]);
    }
}

#[test]
fn a_prompt_that_is_too_long_leads_to_the_command_for_it() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = with_llama();
    let prompt = "1+".repeat(40);
    let tmux = on_terminal(&sandbox, (120, 30), &format!(r#""$APR" tui {LLAMA}"#));
    let _ = tmux.shows(&["21 tensors"]);
    tmux.keys(&["i", "Enter"]);
    let _ = tmux.shows(&["prompt: "]);
    tmux.keys(&["-l", &prompt]);
    tmux.keys(&["Enter"]);
    let _ = tmux.shows(&["81 tokens long", "with `apr trace --interactive`, pass --truncate to"]);
    let script = format!(r#""$APR" trace {LLAMA} --prompt {prompt} --interactive --truncate"#);
    let tmux = on_terminal(&sandbox, (120, 30), &script);
    let _ = tmux.shows(&["[1, 63] i64", "YOU ARE HERE"]);
}
