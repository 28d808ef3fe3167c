//! `apr run` with a question and a text. Expected answers are those of transformers' pipeline
//! `question-answering` (`fixtures/run/spans.py`).

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

fn model() -> Sandbox {
    let sandbox = Sandbox::new();
    let folders = [
        ("run/tiny-qa", ["config.json", "model.safetensors"]),
        ("run/tiny-bert", ["tokenizer.json", "tokenizer_config.json"]),
    ];
    for (folder, names) in folders {
        for name in names {
            let bytes = fs::read(locate::fixture(folder).join(name)).expect("the fixture");
            sandbox.write(&format!("qa/{name}"), bytes);
        }
    }
    sandbox
}

#[test]
fn answers_match_transformers() {
    let sandbox = model();
    let text = fs::read_to_string(locate::fixture("run/spans.json")).expect("the fixture");
    let cases: Value = serde_json::from_str(&text).expect("JSON");
    for case in cases.as_array().expect("cases") {
        let text = |key: &str| case[key].as_str().expect("a text");
        let (question, context, top) = (text("question"), text("context"), case["top"].to_string());
        let mut line =
            vec!["run", "qa", "--prompt", question, "--context", context, "--top", &top, "--json"];
        line.extend((case["no_answer"] == true).then_some("--no-answer"));
        let report = sandbox.run(&line).ok().json();
        let result = &report["results"][0];
        assert_eq!(
            (&result["task"], &result["question"]),
            (&"question_answering".into(), &case["question"])
        );
        let (found, expected) = (&result["answers"], &case["answers"]);
        assert_eq!(found.as_array().map(Vec::len), expected.as_array().map(Vec::len), "{question}");
        for (found, expected) in
            found.as_array().into_iter().zip(expected.as_array()).flat_map(|(a, b)| a.iter().zip(b))
        {
            for key in ["start", "end", "answer"] {
                assert_eq!(found[key], expected[key], "{question}: {found} {expected}");
            }
            let score = |answer: &Value| answer["score"].as_f64().expect("a score");
            assert!((score(found) - score(expected)).abs() < 1e-5, "{found} {expected}");
        }
    }
}

#[test]
fn answers_are_shown_with_their_places() {
    let sandbox = model();
    let line = ["run", "qa", "--prompt", "rights?", "--context", "The Work.", "--top", "2"];
    let shown = sandbox.run(&line).ok().text();
    assert_eq!(
        shown,
        "  9.91 %  The Work.  (characters 0 to 9)\n  7.77 %  The  (characters 0 to 3)\n"
    );
    // What is not in the text has a place among the answers where it is asked for.
    let line = ["run", "qa", "--prompt", "rights?", "--context", "The Work.", "--no-answer"];
    let shown = sandbox.run(&line).ok().text();
    assert!(shown.contains(" %  no answer\n"), "{shown}");
}

#[test]
fn a_question_needs_a_text_and_a_text_a_question() {
    let sandbox = model();
    sandbox.run(&["run", "qa", "--prompt", "Who?"]).fails(2, &["--context TEXT"]);
    sandbox.run(&["run", "qa", "--context", "The Work."]).fails(2, &["--prompt"]);
    sandbox.run(&["run", "qa", "--prompt", "Who?", "--no-answer"]).fails(2, &["--context"]);
    let bert = locate::fixture("run/tiny-bert").display().to_string();
    let line = ["run", &bert, "--prompt", "Who?", "--context", "The Work."];
    sandbox.run(&line).fails(2, &["--context"]);
}
