//! Chats of files: what the template gets, and what becomes of the answer.

use std::fs;

use serde_json::json;

use crate::support::{Run, Sandbox};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures");

/// A model that adds numbers, with a chat template.
fn model(sandbox: &Sandbox, template: &str) {
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let bytes = fs::read(format!("{FIXTURES}/tiny-llama/{file}")).expect("the fixture");
        sandbox.write(&format!("m/{file}"), bytes);
    }
    sandbox.write("m/chat_template.jinja", template);
}

fn run(sandbox: &Sandbox, rest: &[&str]) -> Run {
    sandbox.run(&[&["run", "m"], rest].concat())
}

#[test]
fn a_chat_of_a_file_is_answered() {
    let sandbox = Sandbox::new();
    model(&sandbox, "{{ bos_token }}{{ messages[-1].content }}");
    sandbox.write("list.json", r#"[{"role": "user", "content": "12+34="}]"#);
    sandbox.write("object.json", r#"{"messages": [{"role": "user", "content": "12+34="}]}"#);
    for file in ["list.json", "object.json"] {
        let made = run(&sandbox, &["--messages", file]).ok();
        assert_eq!(made.stdout, b"46\n", "{}", made.stderr);
        let report = run(&sandbox, &["--messages", file, "--json"]).ok().json();
        assert_eq!(report["prompt"], "<s>12+34=");
        assert_eq!(report["answer"], json!({ "text": "46\n" }));
    }
    let report = run(&sandbox, &["--chat", "--prompt", "12+34=", "--json"]).ok().json();
    assert_eq!(report["answer"], json!({ "text": "46\n" }));
}

#[test]
fn a_template_gets_all_of_a_chat() {
    let sandbox = Sandbox::new();
    let template = "{{ tools | tojson }}|{{ documents[0].title }}|{{ effort }}{{ thinking }}|\
                    {% for m in messages %}{{ m | tojson(indent=1) }}{% endfor %}";
    model(&sandbox, template);
    let chat = r#"{"documents": [{"title": "T"}], "model": "x", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "é"}], "name": null},
        {"role": "assistant",
         "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1.0, "a": 2}}}]},
        {"role": "tool", "content": "7"}]}"#;
    sandbox.write("chat.json", chat);
    sandbox.write("tools.json", r#"[{"type": "function", "a": null}]"#);
    let line = [
        "--messages",
        "chat.json",
        "--tools",
        "tools.json",
        "--template-arg",
        "thinking=false",
        "--template-arg",
        "effort=high",
        "--template-arg",
        "other=1",
        "--truncate",
        "--json",
    ];
    let made = run(&sandbox, &line).ok();
    let report = made.json();
    let expected = "[{\"type\": \"function\", \"a\": null}]|T|highFalse|{\n \"role\": \"user\",\n \
                    \"content\": [\n  {\n   \"type\": \"text\",\n   \"text\": \"é\"\n  }\n ]\n}{\n \
                    \"role\": \"assistant\",\n \"tool_calls\": [\n  {\n   \"function\": {\n    \
                    \"name\": \"f\",\n    \"arguments\": {\n     \"b\": 1.0,\n     \"a\": 2\n    \
                    }\n   }\n  }\n ]\n}{\n \"role\": \"tool\",\n \"content\": \"7\"\n}";
    assert_eq!(report["prompt"], expected);
    for part in [
        "chat.json: not used: model",
        "the chat template does not read: other",
        "the form of this chat template's tool calls is unknown: they are returned as text",
    ] {
        assert!(report["warnings"].to_string().contains(part), "{part}: {report}");
    }
}

#[test]
fn thinking_is_parted_from_the_answer() {
    let sandbox = Sandbox::new();
    model(
        &sandbox,
        "{{ bos_token }}{{ messages[-1].content }}{% if enable_thinking %}<think>{% endif %}{# \
         </think> #}",
    );
    sandbox.write("chat.json", r#"[{"role": "user", "content": "12+34="}]"#);
    let of = |value: &str, more: &[&str]| {
        let argument = format!("enable_thinking={value}");
        let line = ["--messages", "chat.json", "--template-arg", &argument, "--json"];
        run(&sandbox, &[&line[..], more].concat()).ok().json()
    };
    assert_eq!(of("false", &[])["answer"], json!({ "text": "46\n" }));
    let thought = of("true", &["--max-tokens", "4", "--temperature", "5", "--seed", "1"]);
    let text = thought["text"].as_str().expect("a text").trim();
    assert!(!text.is_empty(), "{thought}");
    assert_eq!(thought["answer"], json!({ "thinking": text, "text": "" }));
}

#[test]
fn what_is_no_chat_is_refused() {
    let sandbox = Sandbox::new();
    model(&sandbox, "{{ messages[-1].content }}");
    sandbox
        .write("chat.json", r#"{"tools": [{}], "messages": [{"role": "user", "content": "a"}]}"#);
    sandbox.write("tools.json", "[{}]");
    sandbox.write("image.json", r#"[{"role": "user", "content": [{"type": "image"}]}]"#);
    sandbox.write("wrong.json", r#"[{"content": "a"}]"#);
    sandbox.write("cut.json", "[{");
    let fails = |rest: &[&str], code: i32, parts: &[&str]| run(&sandbox, rest).fails(code, parts);
    fails(
        &["--messages", "image.json"],
        2,
        &["message 1: a part of the type 'image' is not supported: chats take text only"],
    );
    fails(
        &["--messages", "wrong.json"],
        4,
        &["E001", "wrong.json", "message 1: a message must be an object with a role"],
    );
    fails(&["--messages", "cut.json"], 4, &["E001", "cut.json", "not valid JSON"]);
    fails(&["--messages", "absent.json"], 3, &["E007", "absent.json"]);
    fails(
        &["--messages", "chat.json", "--tools", "tools.json"],
        2,
        &["the file of --messages has tools of its own: remove --tools"],
    );
    let chats = "--tools and --template-arg apply to chats: pass --chat or --messages";
    fails(&["--prompt", "a", "--tools", "tools.json"], 2, &[chats]);
    fails(&["--prompt", "a", "--template-arg", "a=1"], 2, &[chats]);
    fails(&["--messages", "chat.json", "--prompt", "a"], 2, &["cannot be used with"]);
    let with =
        |argument: &str| run(&sandbox, &["--messages", "chat.json", "--template-arg", argument]);
    with("a").fails(2, &["it must be NAME=VALUE"]);
    with("a=True").fails(2, &["--template-arg a: values are JSON: write true"]);
    with("tools=[]").fails(2, &["--template-arg tools: tools are read from --messages"]);
    let bert = format!("{FIXTURES}/run/tiny-bert");
    sandbox.run(&["run", &bert, "--messages", "chat.json"]).fails(2, &["apply to text generation"]);
}
