//! Texts that keep to a JSON schema, a regular expression or a grammar. What they have to be is
//! judged by code of this file that knows nothing of grammars; `xtask/interop/grammars.py` judges
//! more of them by jsonschema, Python's expressions and lark.

use std::fs;

use serde_json::Value;

use crate::support::{Run, Sandbox};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// Writes `tiny-llama` to the sandbox with a longer context and a template without roles.
///
/// The model generates one byte per token.
fn roomy(sandbox: &Sandbox) {
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        sandbox.write(&format!("m/{file}"), fs::read(format!("{MODEL}/{file}")).expect(file));
    }
    let config = fs::read_to_string(format!("{MODEL}/config.json")).expect("a configuration");
    sandbox.write("m/config.json", config.replace("_embeddings\": 64", "_embeddings\": 1024"));
    sandbox.write("m/chat_template.jinja", "{{ bos_token }}{{ messages[-1].content }}");
}

/// Ways to choose tokens.
const WAYS: [&[&str]; 5] = [
    &[],
    &["--temperature", "1", "--seed", "1"],
    &["--temperature", "2", "--seed", "7", "--top-k", "3"],
    &["--temperature", "1.5", "--seed", "3", "--top-p", "0.5", "--repeat-penalty", "1.3"],
    &["--beams", "3"],
];

fn run(sandbox: &Sandbox, rest: &[&str]) -> Run {
    sandbox.run(&[&["run", "m", "--prompt", "12+34=", "--json"], rest].concat())
}

/// The report of a text that is whole.
fn whole(sandbox: &Sandbox, rest: &[&str]) -> (String, Value) {
    let report = run(sandbox, rest).ok().json();
    assert_eq!(report["grammar"]["complete"], true, "{report}");
    (report["text"].as_str().expect("a text").to_owned(), report)
}

#[test]
fn texts_match_an_expression_however_tokens_are_chosen() {
    let sandbox = Sandbox::new();
    roomy(&sandbox);
    for way in WAYS {
        let line = [&["--regex", "(yes|no): [a-f]{4}[0-9]?é"], way].concat();
        let (text, report) = whole(&sandbox, &line);
        let rest = text.strip_prefix("yes: ").or_else(|| text.strip_prefix("no: "));
        let rest = rest.and_then(|rest| rest.strip_suffix('é')).expect(&text);
        let (letters, digit) = rest.split_at(4);
        assert!(letters.chars().all(|letter| ('a'..='f').contains(&letter)), "{text}");
        assert!(digit.len() < 2 && digit.chars().all(|digit| digit.is_ascii_digit()), "{text}");
        assert_eq!(report["grammar"]["kind"], "regex");
    }
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_one_another() {
    let sandbox = Sandbox::new();
    roomy(&sandbox);
    let of = |seed: &str| {
        let line = ["--regex", "[a-z]{12}", "--temperature", "1.5", "--seed", seed];
        whole(&sandbox, &line).0
    };
    assert_eq!(of("5"), of("5"));
    assert_ne!(of("5"), of("6"));
}

#[test]
fn generated_json_follows_its_schema() {
    let sandbox = Sandbox::new();
    roomy(&sandbox);
    let schema = r##"{
      "$defs": {"point": {"type": "array", "items": {"type": "integer", "minimum": 0,
        "maximum": 20}, "minItems": 2, "maxItems": 2}},
      "type": "object",
      "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,5}$"},
        "kind": {"enum": ["a", 1, null]},
        "at": {"$ref": "#/$defs/point"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2}
      },
      "required": ["name", "kind", "at", "tags"],
      "additionalProperties": false,
      "x-guidance": {"whitespace_flexible": false}
    }"##;
    sandbox.write("schema.json", schema);
    for way in WAYS {
        let line = [&["--json-schema", "schema.json", "--max-tokens", "400"], way].concat();
        let (text, _) = whole(&sandbox, &line);
        let made: Value = serde_json::from_str(&text).expect(&text);
        let keys: Vec<_> = made.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["name", "kind", "at", "tags"], "in the order of the schema");
        let name = made["name"].as_str().expect("a name");
        assert!((1..=5).contains(&name.len()) && name.bytes().all(|it| it.is_ascii_lowercase()));
        assert!([Value::from("a"), 1.into(), Value::Null].contains(&made["kind"]), "{text}");
        let at = made["at"].as_array().expect("a point");
        let is_in = |number: &Value| number.as_u64().is_some_and(|number| number <= 20);
        assert!(at.len() == 2 && at.iter().all(is_in), "{text}");
        let tags = made["tags"].as_array().expect("tags");
        let is_short = |tag: &Value| tag.as_str().is_some_and(|tag| tag.chars().count() <= 3);
        assert!(tags.len() <= 2 && tags.iter().all(is_short), "{text}");
    }
}

/// The rule `space` of llama.cpp's `json-schema-to-grammar.cpp`: one space, or one or two line
/// breaks and up to 20 spaces and tabs.
#[test]
fn whitespace_in_json_is_bounded() {
    let sandbox = Sandbox::new();
    roomy(&sandbox);
    let schema = r#"{
      "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
      "required": ["a", "b"], "additionalProperties": false
    }"#;
    sandbox.write("schema.json", schema);
    for way in WAYS {
        let line = [&["--json-schema", "schema.json", "--max-tokens", "400"], way].concat();
        let (text, _) = whole(&sandbox, &line);
        serde_json::from_str::<Value>(&text).expect(&text);
        for gap in text.split(|letter: char| !letter.is_ascii_whitespace()) {
            let breaks = gap.bytes().take_while(|byte| *byte == b'\n').count();
            let indentation = &gap[breaks..];
            let most = if breaks == 0 { 1 } else { 20 };
            assert!(breaks <= 2 && indentation.len() <= most, "{text:?}");
            assert!(!indentation.contains('\n'), "{text:?}");
        }
    }
}

/// Returns `true` if brackets close in the order in which they open.
fn is_balanced(text: &str) -> bool {
    let mut open = Vec::new();
    for letter in text.chars() {
        match letter {
            '(' => open.push(')'),
            '[' => open.push(']'),
            ')' | ']' if open.pop() == Some(letter) => {}
            _ => return false,
        }
    }
    open.is_empty() && !text.is_empty()
}

#[test]
fn texts_keep_to_grammars_in_both_notations() {
    let sandbox = Sandbox::new();
    roomy(&sandbox);
    sandbox.write("pairs.lark", "start: pair+\npair: \"(\" pair* \")\" | \"[\" pair* \"]\"\n");
    sandbox.write(
        "pairs.gbnf",
        "# pairs of brackets\nroot ::= pair+\npair ::= \"(\" pair* \")\" |\n  \"[\" pair* \"]\"\n",
    );
    // Longest words would take the letter that has to come last.
    sandbox.write("last.gbnf", "root ::= [a-c]{2,4} \"ab\" (\"x\" | [y-z])? \"ab\"\n");
    for way in WAYS {
        for (file, kind) in [("pairs.lark", "lark"), ("pairs.gbnf", "gbnf")] {
            let line = [&["--grammar", file, "--max-tokens", "40"], way].concat();
            let report = run(&sandbox, &line).ok().json();
            let text = report["text"].as_str().expect("a text");
            assert_eq!(report["grammar"]["kind"], kind);
            assert_eq!(report["grammar"]["complete"], is_balanced(text), "{text}");
        }
        let line = [&["--grammar", "last.gbnf"], way].concat();
        let (text, _) = whole(&sandbox, &line);
        let rest = text.strip_suffix("ab").expect(&text).trim_end_matches(['x', 'y', 'z']);
        let rest = rest.strip_suffix("ab").expect(&text);
        assert!((2..=4).contains(&rest.len()), "{text}");
        assert!(rest.chars().all(|letter| "abc".contains(letter)), "{text}");
    }
}

#[test]
fn a_truncated_text_is_reported() {
    let sandbox = Sandbox::new();
    roomy(&sandbox);
    for (more, ended) in [(&["--max-tokens", "3"][..], "max_tokens"), (&["--stop", "a"], "stop")] {
        let line = [&["--regex", "a{9}"], more].concat();
        let made = run(&sandbox, &line).ok();
        let report = made.json();
        assert_eq!(report["grammar"]["complete"], false, "{report}");
        assert_eq!(report["ended"], ended);
        made.says(&["the text ends before it matches the grammar"]);
    }
    // What may end may be cut.
    let (text, report) = whole(&sandbox, &["--regex", "a+", "--max-tokens", "1"]);
    assert_eq!((text.as_str(), &report["ended"]), ("a", &"max_tokens".into()));
    // Nothing but the empty text is complete before the first token.
    let (text, report) = whole(&sandbox, &["--regex", ""]);
    assert_eq!((text.as_str(), &report["added"]), ("", &serde_json::json!([])));
}

#[test]
fn a_text_that_a_grammar_ends_early_is_reported() {
    let sandbox = Sandbox::new();
    roomy(&sandbox);
    let short = "the grammar ends the text after 3 tokens, fewer than the 9 of --min-tokens";
    let same = "the grammar ends the text after 3 tokens, which --ignore-eos does not prevent";
    for (more, message) in [(&["--min-tokens", "9"][..], short), (&["--ignore-eos"], same)] {
        for beams in ["1", "2"] {
            let line = [&["--regex", "[0-9]{3}", "--beams", beams], more].concat();
            let made = run(&sandbox, &line).ok();
            assert_eq!(made.json()["ended"], "grammar");
            made.says(&[message]);
        }
    }
    let line = ["--regex", "[0-9]{3,}", "--min-tokens", "5", "--max-tokens", "9"];
    let made = run(&sandbox, &line).ok();
    assert!(made.json()["added"].as_array().expect("tokens").len() >= 5);
    assert!(!made.stderr.contains("`min_tokens`"), "{}", made.stderr);
}

#[test]
fn chats_and_batches_keep_to_a_grammar() {
    let sandbox = Sandbox::new();
    roomy(&sandbox);
    let line = ["run", "m", "--chat", "--prompt", "1+1=", "--regex", "[x-z]{3}", "--json"];
    let report = sandbox.run(&line).ok().json();
    let text = report["answer"]["text"].as_str().expect("an answer");
    assert!(text.len() == 3 && text.chars().all(|it| ('x'..='z').contains(&it)), "{report}");

    sandbox.write("lines.txt", "1+1=\n12+34=\n5+5=\n");
    let line = ["run", MODEL, "--input", "lines.txt", "--lines", "--regex", "[x-z]{3}", "--json"];
    let made = sandbox.run(&line).ok();
    let reports = made.reports();
    assert_eq!(reports.len(), 3, "{made}");
    for report in reports {
        assert_eq!(report["ended"], "grammar", "{report}");
        assert_eq!(report["batch"], 3, "{report}");
    }
}

#[test]
fn bad_grammars_are_errors_with_their_code_file_and_line() {
    let sandbox = Sandbox::new();
    for (option, text, expected) in [
        ("--json-schema", "{\n  \"type\": \"objekt\"\n}", &["E001", "objekt"][..]),
        ("--json-schema", "{\n  \"type\": }", &["E001", "bad.txt", "line 2"]),
        ("--json-schema", "[]", &["E001", "a JSON schema is an object"]),
        ("--json-schema", "", &["E001", "the JSON schema is empty"]),
        ("--json-schema", "{\"type\": \"array\",\n\"uniqueItems\": true}", &["E003", "line 2"]),
        ("--json-schema", "{\"$ref\": \"http://a.b/c\"}", &["E003", "$ref"]),
        ("--json-schema", "false", &["E001"]),
        ("--grammar", "start: b\nb: c d\n", &["E001", "bad.txt", "line 2"]),
        ("--grammar", "start: \"a\n", &["E001", "line 1"]),
        ("--grammar", "other: \"a\"", &["E001", "start"]),
        ("--grammar", "", &["E001"]),
        ("--grammar", "start: /[/", &["E001"]),
        ("--grammar", "start: <|no_such_token|>", &["E001", "no_such_token"]),
        ("--grammar", "root ::= a\n", &["E001", "line 1", "unknown rule 'a'"]),
        ("--grammar", "root ::= \"a\"\n\nb ::= (\"a\"", &["E001", "line 3"]),
    ] {
        sandbox.write("bad.txt", text);
        let line = ["run", MODEL, "--prompt", "1", option, "bad.txt"];
        let made = sandbox.run(&line);
        assert_eq!(made.code, Some(4), "{text}: {made}");
        made.says(expected);
    }
    for pattern in ["(", "[z-a]", "a{2,1}", "(?=a)b", "\\p{Nothing}"] {
        let made = sandbox.run(&["run", MODEL, "--prompt", "1", "--regex", pattern]);
        made.fails(2, &["--regex: "]);
    }
}

#[test]
fn grammars_are_refused_where_no_text_is_generated() {
    let sandbox = Sandbox::new();
    for rest in [
        &["--regex", "a", "--tokens", "1,2"][..],
        &["--regex", "a", "--grammar", "b", "--prompt", "1"],
        &["--regex", "a", "--json-schema", "b", "--prompt", "1"],
        &["--regex", "a", "--want", "logits", "--prompt", "1"],
    ] {
        let made = sandbox.run(&[&["run", MODEL], rest].concat());
        assert_eq!(made.code, Some(2), "{made}");
    }
    sandbox.run(&["run", MODEL, "--prompt", "1", "--grammar", "absent"]).says(&["absent"]);
}
