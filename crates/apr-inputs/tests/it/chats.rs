//! Chats, beside what transformers writes: `fixtures/chat/make.py`.

use apr_inputs::chat::{Chat, Message, Template, render};
use apr_testkit::locate;
use serde_json::{Value as Json, json};

#[test]
fn chats_are_written_as_transformers_writes_them() {
    let expected = std::fs::read(locate::fixture("chat/expected.json")).unwrap();
    let expected: Json = serde_json::from_slice(&expected).unwrap();
    let texts = |json: &Json| json.as_object().unwrap().clone();
    let tokens: Vec<(String, String)> = texts(&expected["tokens"])
        .into_iter()
        .map(|(role, text)| (role, text.as_str().unwrap().to_owned()))
        .collect();
    let chats = expected["chats"].as_array().unwrap();
    for chat in chats {
        let of = |json: &Json, key: &str| json[key].as_str().unwrap().to_owned();
        let messages: Vec<Message> = chat["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| Message { role: of(message, "role"), content: of(message, "content") })
            .collect();
        let template = Template(of(chat, "template"));
        let ours = render(&template, &Chat { messages: &messages, tokens: &tokens, now: 0 });
        assert_eq!(ours.unwrap(), of(chat, "text"), "{}", chat["name"]);
    }
    assert_eq!(chats.len(), 15);
}

#[test]
fn of_several_templates_the_default_is_taken_or_else_the_first() {
    let of = |json: Json| Template::from_json(&json).map(|template| template.0);
    let named = |name: &str, text: &str| json!({ "name": name, "template": text });
    assert_eq!(of(json!("a")).as_deref(), Some("a"));
    let with_default = json!([named("tool_use", "a"), named("default", "b")]);
    assert_eq!(of(with_default).as_deref(), Some("b"));
    let without = json!([named("tool_use", "a"), named("rag", "b")]);
    assert_eq!(of(without).as_deref(), Some("a"));
    for none in [json!([]), json!([{ "name": "default" }]), json!(7)] {
        assert_eq!(of(none.clone()), None, "{none}");
    }
}
