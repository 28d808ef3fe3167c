//! `apr run --chat` on a terminal.

use std::fs;

use apr_testkit::locate;
use apr_testkit::tmux::Tmux;
use serde_json::{Deserializer, Value, json};

use super::on_terminal;
use crate::support::Sandbox;

/// Puts an end behind each answer, as the model learned it.
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[{{ \
                        m.content }}]{% else %}{{ m.content }}{% endif %}{% if m.role == \
                        'assistant' %}{{ eos_token }}{% endif %}{% endfor %}";

/// The model that adds, with a chat template.
fn adder() -> Sandbox {
    let sandbox = Sandbox::new().with("m/chat_template.jinja", TEMPLATE);
    for entry in fs::read_dir(locate::fixture("tiny-llama")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        sandbox.write(&format!("m/{name}"), fs::read(&path).expect("a file"));
    }
    sandbox
}

/// Returns the same model, but with an endless answer of ones.
fn endless() -> Sandbox {
    let sandbox = adder();
    let others: Vec<u32> = (0..259).filter(|id| *id != 49).collect();
    let settings = json!({ "eos_token_id": 258, "suppress_tokens": others });
    sandbox.write("m/generation_config.json", settings.to_string());
    let mut config: Value =
        serde_json::from_slice(&sandbox.read("m/config.json")).expect("a configuration");
    config["max_position_embeddings"] = json!(1_000_000);
    sandbox.write("m/config.json", config.to_string());
    sandbox
}

#[test]
fn a_conversation_on_a_terminal_goes_on_until_it_is_left() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = adder();
    let script = r#""$APR" run m --chat --verbose --max-tokens 4; echo "code $?""#;
    let tmux = on_terminal(&sandbox, (150, 40), script);
    let begun = tmux.shows(&["m: /help lists commands, Ctrl-D ends the conversation", "\n>"]);
    assert!(!begun.contains("error"), "{begun}");
    tmux.keys(&["12+34=", "Enter"]);
    let _ = tmux.shows(&["> 12+34=\n46\n", "prefill 7 tokens", "0 tokens reused"]);
    // The sum and its answer are not read again.
    tmux.keys(&["20+22=", "Enter"]);
    let _ = tmux.shows(&["> 20+22=\n", "10 tokens reused"]);
    tmux.keys(&["/help", "Enter"]);
    let _ =
        tmux.shows(&["/reset        forget the history", "/system TEXT  set the system prompt"]);
    tmux.keys(&["/nonsense", "Enter"]);
    let _ = tmux.shows(&["no command '/nonsense': /help lists them"]);
    tmux.keys(&["/reset", "Enter"]);
    let _ = tmux.shows(&["the history is empty"]);
    tmux.keys(&["1+2=", "Enter"]);
    let _ = tmux.shows(&["> 1+2=\n3\n", "prefill 5 tokens"]);
    // Earlier lines come back.
    tmux.keys(&["/system brief", "Enter"]);
    let _ = tmux.shows(&["the system prompt counts from the next message on"]);
    tmux.keys(&["Up", "Up", "Enter"]);
    let _ = tmux.shows(&["prefill 18 tokens"]);
    tmux.keys(&["C-d"]);
    let _ = tmux.shows(&["code 0"]);
}

#[test]
fn ctrl_c_ends_the_answer_under_way_and_not_the_program() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = endless();
    // The shell gets the signal too, and would end with it.
    let script = r#"trap : INT; "$APR" run m --chat; echo "code $?""#;
    let tmux = on_terminal(&sandbox, (80, 40), script);
    let _ = tmux.shows(&["conversation\n>"]);
    tmux.keys(&["12+34=", "Enter"]);
    let _ = tmux.shows(&["> 12+34=\n11"]);
    tmux.keys(&["C-c"]);
    let _ = tmux.shows(&["interrupted: the answer so far is kept", "\n>\n"]);
    // A line that was begun is dropped; an empty one ends the conversation.
    tmux.keys(&["a line"]);
    let _ = tmux.shows(&["> a line"]);
    tmux.keys(&["C-c"]);
    let dropped = tmux.shows(&["> a line\n>\n"]);
    assert!(!dropped.contains("code"), "{dropped}");
    tmux.keys(&["C-c"]);
    let _ = tmux.shows(&["code 0"]);
}

#[test]
fn an_error_in_a_message_does_not_end_a_conversation() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = adder();
    let tmux = on_terminal(&sandbox, (100, 60), r#""$APR" run m --chat; echo "code $?""#);
    let _ = tmux.shows(&["conversation\n>"]);
    let long = "1".repeat(70);
    tmux.keys(&[&long, "Enter"]);
    let _ = tmux.shows(&["the message is 71 tokens long in the chat template"]);
    // What is typed while an answer comes is the next message.
    for _ in 1..8 {
        tmux.keys(&["12+34=", "Enter"]);
    }
    let _ = tmux.shows(&["context of 64 tokens is full: the 2 oldest messages were dropped"]);
    tmux.keys(&["/quit", "Enter"]);
    let _ = tmux.shows(&["code 0"]);
}

#[test]
fn a_conversations_answers_may_be_json_and_go_elsewhere() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = adder();
    let script = r#""$APR" run m --chat --json > answers.json; echo "code $?""#;
    let tmux = on_terminal(&sandbox, (80, 24), script);
    let _ = tmux.shows(&["conversation\n>"]);
    tmux.keys(&["12+34=", "Enter"]);
    tmux.keys(&["1+2=", "Enter"]);
    let _ = tmux.shows(&["> 1+2=\n>"]);
    tmux.keys(&["C-d"]);
    let _ = tmux.shows(&["code 0"]);
    let written = sandbox.read("answers.json");
    let answers: Vec<Value> =
        Deserializer::from_slice(&written).into_iter().map(|one| one.expect("JSON")).collect();
    assert_eq!(answers.len(), 2);
    assert_eq!((&answers[0]["text"], &answers[0]["reused"]), (&json!("46\n"), &json!(0)));
    assert_eq!(answers[1]["reused"], json!(10));
    assert_eq!(answers[1]["prompt"], json!("<s>12+34=46\n</s>1+2="));
}

#[test]
fn a_conversation_refuses_what_it_does_not_take() {
    if !Tmux::is_there() {
        return;
    }
    let sandbox = adder();
    let script = r#""$APR" run m --chat --truncate --separator x; echo "code $?"
        rm m/chat_template.jinja; "$APR" run m --chat; echo "code $?""#;
    let tmux = on_terminal(&sandbox, (120, 24), script);
    let _ = tmux.shows(&[
        "--separator, --truncate can't be used in a conversation; pass --prompt for a single",
        "code 2",
        "missing chat template",
        "code 4",
    ]);
    // What is piped is one prompt, as without --chat.
    let sandbox = adder();
    assert_eq!(sandbox.piped("run m --chat", b"12+34=\n").ok().text(), "46\n");
}
