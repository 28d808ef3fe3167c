use super::*;

fn parsed(template: &str, prompt: &str, written: &str) -> Answer {
    let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}}]"#;
    let tools = Data::from_json(tools).unwrap();
    AnswerFormat::of(&Template(template.to_owned())).parse(prompt, written, Some(&tools))
}

fn calls(answer: &Answer) -> String {
    serde_json::to_string(&answer.tool_calls).unwrap()
}

const ONE: &str = r#"[{"name":"f","arguments":{"s":"7","n":2}}]"#;

#[test]
fn calls_of_the_families_are_read() {
    for (template, written) in [
        (
            "<tool_call>",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"7\", \"n\": 2}}\n</tool_call>",
        ),
        (
            "<tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"s\\\": \\\"7\\\", \\\"n\\\": 2}\"}",
        ),
        (
            "<TOOLCALL>",
            "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"s\": \"7\", \"n\": 2}}]</TOOLCALL>",
        ),
        (
            "<tool_call> <function=",
            "<tool_call>\n<function=f>\n<parameter=s>\n7\n</parameter>\n<parameter=n>\n2\n\
             </parameter>\n\
             </function>\n</tool_call>",
        ),
        ("<function=", "<function=f>{\"s\": \"7\", \"n\": 2}</function>"),
        (
            "<arg_key>",
            "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>7</arg_value>\n<arg_key>n</arg_key>\n\
             <arg_value>2</arg_value>\n</tool_call>",
        ),
        (
            "<invoke name=",
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">7</parameter>\n\
             <parameter name=\"n\">2</parameter>\n</invoke>\n</minimax:tool_call>",
        ),
        (
            "<｜DSML｜invoke name=",
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" \
             string=\"true\">7</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">2\
             </｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ),
        ("<|python_tag|>", "{\"name\": \"f\", \"parameters\": {\"s\": \"7\", \"n\": 2}}"),
        (
            "<|python_tag|>",
            "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"s\": \"7\", \"n\": 2}}",
        ),
        ("<|python_tag|>", "<|python_tag|>f.call(s=\"7\", n=2)"),
        (
            "[TOOL_CALLS]",
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"s\": \"7\", \"n\": 2}}]",
        ),
        ("[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{\"s\": \"7\", \"n\": 2}"),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"s\": \"7\", \
             \"n\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"7\", \"n\": 2}\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            "<|channel|><|message|>",
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>\
             {\"s\": \"7\", \"n\": 2}",
        ),
    ] {
        let answer = parsed(template, "", written);
        assert_eq!(calls(&answer), ONE, "{written}");
        assert_eq!((answer.text.as_str(), answer.thinking), ("", None), "{written}");
    }
    let kimi = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0\
                <|tool_call_argument_begin|>{\"s\": \"7\"}<|tool_call_end|>\
                <|tool_calls_section_end|>";
    let answer = parsed("<|tool_calls_section_begin|>", "", kimi);
    assert_eq!(calls(&answer), r#"[{"id":"functions.f:0","name":"f","arguments":{"s":"7"}}]"#);
    let mistral =
        parsed("[TOOL_CALLS]", "", "Yes. [TOOL_CALLS]f[CALL_ID]abc[ARGS]{}[TOOL_CALLS]g[ARGS]{}");
    assert_eq!(
        calls(&mistral),
        r#"[{"id":"abc","name":"f","arguments":{}},{"name":"g","arguments":{}}]"#
    );
    assert_eq!(mistral.text, "Yes.");
}

#[test]
fn thinking_is_parted_from_the_text() {
    let template = "</think><tool_call>";
    let of = |prompt, written| {
        let answer = parsed(template, prompt, written);
        (answer.thinking, answer.text)
    };
    let thought = |text: &str| Some(text.to_owned());
    assert_eq!(of("", "<think>\nhm\n</think>\n\nYes"), (thought("hm"), "Yes".to_owned()));
    assert_eq!(of("<think>\n", "hm</think>Yes"), (thought("hm"), "Yes".to_owned()));
    assert_eq!(of("<think>\n", "hm"), (thought("hm"), String::new()));
    assert_eq!(of("<think>\n\n</think>\n\n", " Yes "), (None, " Yes ".to_owned()));
    assert_eq!(of("", "<think>\n\n</think>\n\nYes"), (None, "\n\nYes".to_owned()));
    let answer = parsed(
        "<|channel|><|message|>",
        "",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes",
    );
    assert_eq!((answer.thinking, answer.text), (thought("hm"), "Yes".to_owned()));
}

#[test]
fn unreadable_calls_stay_in_the_text() {
    for (template, written, block) in [
        ("<tool_call>", "a <tool_call>{\"name\": 7}</tool_call> b", "{\"name\": 7}"),
        ("<tool_call>", "a <tool_call>{\"name\": \"f\", ", "{\"name\": \"f\", "),
        ("<tool_call> <function=", "<function=f><parameter=s>7", "f><parameter=s>7"),
        ("<arg_key>", "<tool_call>f<arg_key>s</tool_call>", "f<arg_key>s"),
    ] {
        let answer = parsed(template, "", written);
        assert_eq!((answer.text.as_str(), calls(&answer).as_str()), (written, "[]"));
        assert_eq!(answer.unreadable, [block]);
    }
    for (template, written) in [
        ("", "<tool_call>{\"name\": \"f\"}</tool_call>"),
        ("<|python_tag|>", "{\"a\": 1}"),
        ("<|python_tag|>", "{ is a brace"),
        ("<tool_call>", "no call"),
        ("<|channel|><|message|>", "no channel"),
    ] {
        let answer = parsed(template, "", written);
        assert_eq!((answer.text.as_str(), answer.unreadable.len()), (written, 0));
    }
    assert_eq!(parsed("[TOOL_CALLS]", "", "[TOOL_CALLS]nothing").text, "nothing");
}
