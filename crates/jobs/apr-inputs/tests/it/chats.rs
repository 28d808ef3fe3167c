//! Chats, beside what transformers writes: `fixtures/chat/make.py`.

use apr_inputs::chat::{Chat, ChatFile, Data, Message, Template, TemplateOptions, render};
use apr_testkit::locate;
use serde_json::{Value as Json, json};

#[test]
fn chats_are_written_as_transformers_writes_them() {
    let expected = std::fs::read_to_string(locate::fixture("chat/expected.json")).unwrap();
    let expected = Data::from_json(&expected).unwrap();
    let of = |data: &Data, key: &str| data.get(key).unwrap().as_str().map(str::to_owned);
    let token = |role: &str| (role.to_owned(), of(expected.get("tokens").unwrap(), role).unwrap());
    let tokens = ["bos_token", "eos_token"].map(token);
    let none = TemplateOptions::default();
    let chats = expected.get("chats").unwrap().as_list().unwrap();
    for chat in chats {
        let template = Template(of(chat, "template").unwrap());
        let messages = messages(chat.get("messages").unwrap());
        let ours = render(
            &template,
            &Chat { messages: &messages, options: &none, tokens: &tokens, now: 0 },
        );
        assert_eq!(ours.unwrap().text, of(chat, "text").unwrap(), "{:?}", of(chat, "name"));
    }
    assert_eq!(chats.len(), 15);

    let now = 1_700_000_000;
    let messages = messages(expected.get("construct_chat").unwrap());
    let constructs = expected.get("constructs").unwrap().as_list().unwrap();
    for construct in constructs {
        let template = of(construct, "template").unwrap();
        let chat = Chat { messages: &messages, options: &none, tokens: &tokens, now };
        let ours = render(&Template(template.clone()), &chat);
        match of(construct, "text") {
            Some(text) => assert_eq!(ours.expect(&template).text, text, "{template}"),
            None => assert!(ours.is_err(), "{template}: {ours:?}"),
        }
    }
    assert!(constructs.len() > 40);
}

fn messages(list: &Data) -> Vec<Message> {
    let list = list.as_list().unwrap().iter().cloned();
    list.map(Message::try_from).collect::<Result<_, _>>().unwrap()
}

#[test]
fn templates_receive_tools_documents_and_arguments() {
    let file = ChatFile::from_json(
        r#"{"model": "m", "tools": [{"b": 1, "a": 2}], "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image"}],
             "name": null}]}"#,
    )
    .unwrap();
    assert_eq!(file.ignored, ["model"]);
    assert_eq!(file.messages[0].media().collect::<Vec<_>>(), ["image"]);
    let arguments = vec![
        ("thinking".to_owned(), Data::from_json("false").unwrap()),
        ("other".to_owned(), Data::Null),
    ];
    let options = TemplateOptions { tools: file.tools, documents: None, arguments };
    let template = Template(
        "{{ tools|tojson }}{{ thinking }}{{ 'name' in messages[0] }}{{ messages[0].content | \
         length }}"
            .to_owned(),
    );
    let chat = Chat { messages: &file.messages, options: &options, tokens: &[], now: 0 };
    let made = render(&template, &chat).unwrap();
    assert_eq!(made.text, r#"[{"b": 1, "a": 2}]FalseFalse2"#);
    assert_eq!(made.unread, ["other"]);
}

#[test]
fn what_is_no_chat_is_refused() {
    for (text, what) in [
        ("", "not valid JSON"),
        ("[]", "the chat does not contain messages"),
        ("{}", "a chat must be a list of messages"),
        ("7", "a chat must be a list of messages"),
        (r#"{"messages": 1}"#, "a chat must be a list of messages"),
        (r#"[{"role": "user"}, 7]"#, "message 2: a message must be an object with a role"),
        (r#"[{"content": "x"}]"#, "message 1: a message must be an object with a role"),
        (r#"{"messages": [{"role": "user"}], "tools": [1]}"#, "the tools must be a list"),
    ] {
        let error = ChatFile::from_json(text).expect_err(text);
        assert!(error.message().contains(what), "{text}: {error}");
    }
    let deep = "[".repeat(100_000);
    assert!(ChatFile::from_json(&deep).is_err());
    assert!(ChatFile::tools_from_json("null").is_err());
}

#[test]
fn the_default_template_is_used_or_else_the_first() {
    let of = |json: Json| Template::from_json(&json, false).map(|template| template.0);
    let named = |name: &str, text: &str| json!({ "name": name, "template": text });
    assert_eq!(of(json!("a")).as_deref(), Some("a"));
    let with_default = json!([named("tool_use", "a"), named("default", "b")]);
    assert_eq!(of(with_default.clone()).as_deref(), Some("b"));
    let of_tools = Template::from_json(&with_default, true).map(|template| template.0);
    assert_eq!(of_tools.as_deref(), Some("a"));
    let without = json!([named("tool_use", "a"), named("rag", "b")]);
    assert_eq!(of(without).as_deref(), Some("a"));
    for none in [json!([]), json!([{ "name": "default" }]), json!(7)] {
        assert_eq!(of(none.clone()), None, "{none}");
    }
}
