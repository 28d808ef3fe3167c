//! `apr run` with texts: prompts, chats, vectors, labels, words. Expected values are those of
//! transformers (`fixtures/run`).

use std::fs;

use apr_testkit::{from_base64, locate};
use serde_json::{Value, json};

use crate::support::Sandbox;

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-bert");
const T5: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-t5");

fn fixture(name: &str) -> Value {
    let text = fs::read_to_string(locate::fixture(name)).expect("the fixture");
    serde_json::from_str(&text).expect("JSON")
}

fn numbers(json: &Value) -> Vec<f64> {
    json.as_array()
        .expect("a list")
        .iter()
        .map(|number| number.as_f64().expect("a number"))
        .collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert_eq!(a.len(), b.len());
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// A copy of a folder that a test may change.
fn copy(sandbox: &Sandbox, folder: &str, to: &str) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_file() {
            sandbox.write(&format!("{to}/{name}"), fs::read(&path).expect("a file"));
        }
    }
}

/// Embeds as sentence-transformers does: all-mpnet-base-v2 names `MPNetForMaskedLM`, but makes
/// vectors.
#[test]
fn modules_of_sentence_transformers_make_vectors_whatever_the_configured_head() {
    let sandbox = Sandbox::new();
    copy(&sandbox, BERT, "bert");
    let pooling = format!("{BERT}/1_Pooling");
    copy(&sandbox, &pooling, "bert/1_Pooling");
    let text = sandbox.read("bert/config.json");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    config["architectures"] = json!(["BertForMaskedLM"]);
    sandbox.write("bert/config.json", config.to_string());
    let of = |model: &str| {
        let report = sandbox.apr(&format!("run {model} --prompt word --json")).ok().json();
        numbers(&report["results"][0]["vector"])
    };
    assert_eq!(of("bert"), of(BERT));

    fs::remove_file(sandbox.path("bert/modules.json")).expect("it is there");
    sandbox.apr("run bert --prompt word").fails(2, &["the text has no mask token"]);
}

#[test]
fn prompts_are_the_tokens_of_transformers_in_every_container() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {LLAMA} -o m.apr")).ok();
    sandbox.apr(&format!("export {LLAMA} -o m.gguf")).ok();
    sandbox.apr("quantize m.apr --type q8_0 -o q.gguf").ok();
    for model in [LLAMA, "m.apr", "m.gguf", "q.gguf"] {
        for prompt in fixture("run/texts.json")["prompts"].as_array().expect("prompts") {
            let text = prompt["text"].as_str().expect("a text");
            let report = sandbox
                .run(&["run", model, "--prompt", text, "--max-tokens", "12", "--json"])
                .ok()
                .json();
            assert_eq!(report["given"], prompt["given"], "{model}: {text}");
            // Eight bits may choose another token; the text is checked where they choose the same.
            if report["added"] == prompt["added"] {
                let whole = format!("{text}{}", report["text"].as_str().expect("a text"));
                assert_eq!(whole, prompt["whole"].as_str().expect("a text"), "{model}");
            } else {
                assert_eq!(model, "q.gguf", "{text}: {report}");
            }
        }
    }
}

#[test]
fn a_pipe_and_a_file_give_a_prompt_too() {
    let sandbox = Sandbox::new().with("prompt.txt", "Once upon");
    let line = format!("run {LLAMA} --max-tokens 12");
    let by_option =
        sandbox.run(&["run", LLAMA, "--max-tokens", "12", "--prompt", "Once upon"]).ok().text();
    assert_eq!(sandbox.piped(&line, b"Once upon\n").ok().text(), by_option);
    assert_eq!(sandbox.apr(&format!("{line} --input prompt.txt")).ok().text(), by_option);
    assert_eq!(by_option, "998\n");
    let both =
        sandbox.apr(&format!("{line} --input prompt.txt --input prompt.txt --json")).ok().reports();
    assert_eq!(both.len(), 2);
    sandbox.piped(&line, b"\xff\xfe").fails(4, &["not UTF-8"]);
}

#[test]
fn each_line_of_a_text_is_a_prompt_if_requested() {
    let sandbox = Sandbox::new()
        .with("two.txt", "12+34=\r\n20+22=")
        .with("one.txt", "1+2=\n")
        .with("gaps.txt", "1+2=\n\n3+4=\n \n")
        .with("empty.txt", "");
    let by_option =
        |rest: &str| sandbox.apr(&format!("run {LLAMA} --prompt 12+34= --prompt 20+22= {rest}"));
    let line = format!("run {LLAMA} --input two.txt --lines");
    assert_eq!(sandbox.apr(&line).ok().text(), by_option("").ok().text());
    let piped = sandbox.piped(&format!("run {LLAMA} --lines"), b"12+34=\n20+22=\n").ok();
    assert_eq!(piped.text(), by_option("").ok().text());
    let answers = sandbox.apr(&format!("{line} --json")).ok().reports();
    for (made, text) in answers.iter().zip(["46\n", "42\n"]) {
        assert_eq!(made["text"], text);
    }
    // Each answer is a line of JSON, also where a file has one.
    let one = sandbox.apr(&format!("run {LLAMA} --input one.txt --lines --json")).ok();
    assert_eq!((one.text().lines().count(), &one.json()["text"]), (1, &json!("3\n")));
    sandbox.apr(&format!("run {BERT} --input two.txt --lines -o vectors.npy")).ok();
    let shown = sandbox.apr("tensors vectors.npy --json").ok().json();
    assert_eq!(shown["tensors"][0]["shape"], json!([2, 32]));

    sandbox
        .apr(&format!("run {LLAMA} --input gaps.txt --lines"))
        .fails(4, &["gaps.txt", "each line is a prompt, and these are empty: 2, 4"]);
    sandbox.apr(&format!("run {LLAMA} --input empty.txt --lines")).fails(4, &["the text is empty"]);
    sandbox
        .apr(&format!("run {LLAMA} --prompt a --lines"))
        .fails(2, &["--lines applies to text files and pipes"]);
}

#[test]
fn texts_are_generated_in_a_batch_unless_disabled() {
    let sums = ["12+34=", "1+2=", "20+22=", "7+8=", "99+1=", "123+4=", "Once upon", "5+5="];
    let sandbox = Sandbox::new().with("sums.txt", sums.join("\n"));
    let run = |rest: &str| sandbox.apr(&format!("run {LLAMA} --input sums.txt --lines {rest}"));
    let alone = run("--batch 1 --json").clean().reports();
    for (rest, most) in [("--json", 8), ("--batch 3 --json", 3)] {
        let batch = run(rest).clean().reports();
        for (batch, alone) in batch.iter().zip(&alone) {
            for key in ["given", "added", "text", "ended"] {
                assert_eq!(batch[key], alone[key], "{rest}");
            }
            assert!(alone["batch"].is_null());
        }
        let counts = batch.iter().map(|made| made["batch"].as_u64());
        assert_eq!(counts.max(), Some(Some(most)), "{rest}");
    }
    assert_eq!(run("").ok().text(), run("--batch 1").ok().text());
    run("--verbose").says(&["batch 8", "tokens/s"]);

    run("--beams 2 --batch 4").says(&["--batch has no effect", "beam search"]);
    let one = |rest: &str| sandbox.apr(&format!("run {LLAMA} {rest}"));
    one("--prompt 1+2= --batch 4").says(&["--batch has no effect: there is only one text"]);
    one("--tokens 1,2 --batch 4").fails(2, &["--batch", "--tokens"]);
    one("--input sums.txt --lines --batch 0").fails(2, &["--batch"]);
    sandbox
        .apr(&format!("run {T5} --prompt a --prompt b --batch 2"))
        .says(&["--batch has no effect", "encoder-decoder models"]);
    sandbox
        .apr(&format!("run {BERT} --prompt a --batch 2"))
        .fails(2, &["--batch", "text generation"]);
}

/// Texts with the same number of tokens run in one batch: the results do not depend on the other
/// texts.
#[test]
fn lines_that_run_together_are_what_each_is_alone() {
    let lines =
        ["a cat sat", "a dog ran off", "the sun", "a cat ran", "the dog sat on", "a", "an ox"];
    let sandbox = Sandbox::new().with("lines.txt", lines.join("\n"));
    for (task, key) in [(&[][..], "vector"), (&["--task", "SequenceClassification"], "labels")] {
        let run = |rest: &[&str]| {
            let line = [&["run", BERT, "--json"], task, rest].concat();
            sandbox.run(&line).ok().json()["results"].clone()
        };
        let together = run(&["--input", "lines.txt", "--lines"]);
        assert_eq!(together.as_array().map(Vec::len), Some(lines.len()));
        for (made, text) in together.as_array().expect("results").iter().zip(lines) {
            let alone = &run(&["--prompt", text])[0][key];
            assert!(alone.is_array());
            assert_eq!(&made[key], alone, "{text}");
        }
    }
}

#[test]
fn a_text_is_the_bytes_that_the_model_writes() {
    let sandbox = Sandbox::new();
    let line = ["run", LLAMA, "--prompt", "1+", "--temperature", "30", "--max-tokens", "12"];
    let with = |more: &[&str]| sandbox.run(&[&line[..], more].concat()).ok();
    let report = with(&["--seed", "3", "--json"]).json();
    // The first tokens of this vocabulary are the bytes, and those behind them no text.
    let added = report["added"].as_array().expect("tokens");
    let bytes: Vec<u8> =
        added.iter().filter_map(|id| u8::try_from(id.as_u64().expect("an id")).ok()).collect();
    let text = String::from_utf8(bytes.clone());
    assert!(text.is_err(), "{report}");
    assert_eq!(from_base64(report["text_base64"].as_str().expect("base64")), bytes);
    assert_eq!(report["text"], *String::from_utf8_lossy(&bytes));
    assert_eq!(with(&["--seed", "3"]).stdout, bytes);
    let both = with(&["--seed", "3", "--prompt", "1+", "--separator", "|"]).stdout;
    assert!(both.starts_with(&[&bytes[..], b"|"].concat()), "{both:?}");
    let exact = sandbox.run(&["run", LLAMA, "--prompt", "12+34=", "--json"]).ok().json();
    assert_eq!(exact.get("text_base64"), None);
}

#[test]
fn texts_stop_where_they_should() {
    let sandbox = Sandbox::new();
    let run = |rest: &[&str]| {
        let line = [&["run", LLAMA, "--prompt", "Once upon", "--json"], rest].concat();
        sandbox.run(&line).ok().json()
    };
    assert_eq!(
        (&run(&["--stop", "8"])["text"], &run(&["--stop", "8"])["ended"]),
        (&json!("99"), &json!("stop"))
    );
    assert_eq!(run(&["--max-tokens", "2"])["ended"], "max_tokens");
    assert_eq!(run(&[])["ended"], "end");
    sandbox
        .run(&["run", LLAMA, "--prompt", "x", "--temperature=-1"])
        .fails(2, &["expected 0 or more"]);
    sandbox.run(&["run", LLAMA, "--prompt", "x", "--top-p", "0"]).fails(2, &["above 0"]);
}

#[test]
fn qa_49_a_text_beyond_the_context_is_said() {
    let sandbox = Sandbox::new();
    let long = "word ".repeat(40);
    sandbox
        .run(&["run", LLAMA, "--prompt", &long])
        .fails(2, &["201 tokens", "tokens long, beyond the model's context of 64", "--truncate"]);
    let cut = sandbox
        .run(&["run", LLAMA, "--prompt", &long, "--truncate", "--max-tokens", "1", "--json"])
        .ok();
    let warning = "truncated: the last 138 of 201 tokens of the text; 1 token can be generated";
    assert!(cut.stderr.contains(warning), "{}", cut.stderr);
    // Without a maximum, a quarter of the context is left; with a large one, three quarters.
    for (more, left_out, room) in [(&[][..], 153, 16), (&["--max-tokens", "1000"], 185, 48)] {
        let line = ["run", LLAMA, "--prompt", &long, "--truncate"];
        let cut = sandbox.run(&[&line, more].concat()).ok();
        let warning = format!("the last {left_out} of 201 tokens of the text; {room} tokens can");
        assert!(cut.stderr.contains(&warning), "{}", cut.stderr);
    }
    let full = sandbox.run(&[
        "run",
        LLAMA,
        "--prompt",
        &long[..62],
        "--max-tokens",
        "9",
        "--temperature",
        "1",
        "--json",
    ]);
    let full = full.ok();
    let report = full.json();
    if report["ended"] == "context" {
        assert!(full.stderr.contains("context of 64 tokens is full"), "{}", full.stderr);
    }
    sandbox.run(&["run", BERT, "--task", "MaskedLM", "--prompt", &"[MASK] ".repeat(60)]).ok();
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let sandbox = Sandbox::new();
    let run = |rest: &[&str]| sandbox.run(&[&["run", BERT, "--prompt", "a"], rest].concat());
    run(&["--chat"]).fails(2, &["apply to text generation, and no text is given"]);
    run(&["--temperature", "1"]).fails(2, &["apply to text generation, and no text is given"]);
    run(&["--language", "en"]).fails(2, &["Whisper"]);
    sandbox.run(&["run", LLAMA, "--prompt", "a", "--timestamps"]).fails(2, &["Whisper"]);
}

#[test]
fn a_model_without_a_tokenizer_reports_what_to_do() {
    let sandbox = Sandbox::new();
    copy(&sandbox, LLAMA, "bare");
    for file in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
        fs::remove_file(sandbox.path(&format!("bare/{file}"))).expect("a file");
    }
    sandbox.apr("run bare --prompt x").fails(
        4,
        &["missing tokenizer: put tokenizer.json next to the model", "tokenizer.json", "--tokens"],
    );
    sandbox.write("bare/tokenizer.json", "{");
    sandbox.apr("run bare --prompt x").fails(4, &["tokenizer.json"]);
}

#[test]
fn chats_go_through_the_models_template() {
    let sandbox = Sandbox::new();
    copy(&sandbox, LLAMA, "m");
    sandbox.apr("run m --prompt hi --chat").fails(
        4,
        &[
            "missing chat template: put chat_template.jinja next to the model",
            "chat_template.jinja",
        ],
    );
    let template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% \
        endfor %}[assistant]";
    sandbox.write("m/chat_template.jinja", template);
    let line = [
        "run",
        "m",
        "--prompt",
        " hi ",
        "--chat",
        "--system",
        "Brief.",
        "--max-tokens",
        "2",
        "--json",
    ];
    let report = sandbox.run(&line).ok().json();
    assert_eq!(report["prompt"], "<s>[system]Brief.[user]hi[assistant]");
    assert_eq!(report["given"][0], 256, "the template's own mark, once: {report}");
    assert_eq!(report["given"][1], 91);
    sandbox.write(
        "m/chat_template.jinja",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    );
    sandbox.apr("run m --prompt hi --chat").fails(4, &["E008", "chat template"]);
    sandbox.write("m/chat_template.jinja", "{{ raise_exception('only questions') }}");
    sandbox.apr("run m --prompt hi --chat").fails(4, &["only questions"]);
}

#[test]
fn vectors_match_transformers() {
    let sandbox = Sandbox::new();
    sandbox.apr(&format!("import {BERT} -o bert.apr")).ok();
    let expected = fixture("run/texts.json");
    for model in [BERT, "bert.apr"] {
        for text in expected["texts"].as_array().expect("texts") {
            let run = |rest: &[&str]| {
                let line = [
                    &["run", model, "--json", "--prompt", text["text"].as_str().expect("a text")],
                    rest,
                ]
                .concat();
                sandbox.run(&line).ok().json()["results"][0].clone()
            };
            let made = run(&[]);
            assert_eq!(
                (&made["pooling"], &made["normalized"]),
                (&json!("mean"), &json!(true)),
                "{model}"
            );
            assert!(cosine(&numbers(&made["vector"]), &numbers(&text["mean"])) >= 0.999_999);
            for way in ["cls", "max"] {
                let vector = numbers(&run(&["--pooling", way])["vector"]);
                assert!(cosine(&vector, &numbers(&text[way])) >= 0.999_999, "{model} {way}");
            }
        }
    }
}

#[test]
fn minilm_makes_the_vectors_of_transformers() {
    let Some(folder) = locate::minilm() else { return };
    let sandbox = Sandbox::new();
    for row in fixture("run/minilm.json").as_array().expect("rows") {
        let text = row["text"].as_str().expect("a text");
        let made = sandbox
            .run(&["run", &folder.to_string_lossy(), "--prompt", text, "--json"])
            .ok()
            .json();
        let likeness = cosine(&numbers(&made["results"][0]["vector"]), &numbers(&row["vector"]));
        assert!(likeness >= 0.999_999, "{text}: {likeness}");
    }
}

#[test]
fn labels_and_words_match_transformers() {
    let sandbox = Sandbox::new();
    copy(&sandbox, BERT, "tagger");
    // The file has all heads; one that tags tokens comes without those for words.
    let mut weights = sandbox.read("tagger/model.safetensors");
    let places: Vec<usize> = (0..weights.len() - 16)
        .filter(|&at| weights[at..].starts_with(b"cls.predictions."))
        .collect();
    places.iter().for_each(|&at| weights[at..at + 3].copy_from_slice(b"odd"));
    sandbox.write("tagger/model.safetensors", weights);
    for text in fixture("run/texts.json")["texts"].as_array().expect("texts") {
        let run = |task: &str| {
            let prompt = text["text"].as_str().expect("a text");
            let folder = if task == "TokenClassification" { "tagger" } else { BERT };
            sandbox.run(&["run", folder, "--task", task, "--prompt", prompt, "--json"]).ok().json()
                ["results"][0]
                .clone()
        };
        let made = run("SequenceClassification");
        for label in made["labels"].as_array().expect("labels") {
            let place =
                ["refuses", "grants", "neither"].iter().position(|name| label["label"] == *name);
            let theirs = text["classes"][place.expect("a known label")].as_f64().expect("a score");
            assert!((label["score"].as_f64().expect("a score") - theirs).abs() < 1e-4, "{made}");
        }
        let made = run("TokenClassification");
        let scores: Vec<f64> = made["tokens"]
            .as_array()
            .expect("tokens")
            .iter()
            .filter_map(|token| token["score"].as_f64())
            .collect();
        let theirs = numbers(&text["token_classes"]);
        assert_eq!(scores.len(), theirs.len());
        assert!(scores.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-4), "{made}");
        let Some(words) = text["words"].as_array() else { continue };
        let made = run("MaskedLM");
        for (ours, theirs) in made["gaps"][0].as_array().expect("words").iter().zip(words) {
            assert_eq!(ours["id"], theirs["id"], "{made}");
            let difference = ours["score"].as_f64().expect("a score")
                - theirs["score"].as_f64().expect("a score");
            assert!(difference.abs() < 1e-4, "{made}");
        }
    }
    sandbox.run(&["run", BERT, "--task", "MaskedLM", "--prompt", "no gap"]).fails(2, &["[MASK]"]);
}

#[test]
fn vectors_are_written_whole_or_not_at_all() {
    let sandbox = Sandbox::new();
    let line = ["run", BERT, "--prompt", "one", "--prompt", "two words", "-o"];
    for name in ["v.npy", "v.npz", "v.safetensors"] {
        sandbox.run(&[&line[..], &[name]].concat()).ok();
        let shown = sandbox.apr(&format!("tensors {name} --json")).ok().json();
        assert_eq!(shown["tensors"][0]["shape"], json!([2, 32]), "{name}");
        sandbox.run(&[&line[..], &[name]].concat()).fails(1, &["exists"]);
        sandbox.run(&[&line[..], &[name, "-f"]].concat()).ok();
    }
    sandbox.run(&[&line[..], &["v.txt"]].concat()).fails(2, &[".safetensors"]);
    sandbox.run(&[&line[..], &["w.npy", "--max-memory", "1KB"]].concat()).fails(4, &["E008"]);
    sandbox
        .run(&[&line[..], &["w.npy", "--task", "SequenceClassification"]].concat())
        .fails(2, &["labels"]);
    assert!(!sandbox.path("w.npy").exists());
}

#[test]
fn a_t5_answers_what_it_answers_in_transformers() {
    let sandbox = Sandbox::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-t5");
    sandbox.apr(&format!("import {folder} -o t5.apr")).ok();
    for model in [folder, "t5.apr"] {
        for expected in fixture("run/t5.json")["answers"].as_array().expect("answers") {
            let text = expected["text"].as_str().expect("a text");
            let report = sandbox
                .run(&["run", model, "--prompt", text, "--max-tokens", "16", "--json"])
                .ok()
                .json();
            for (key, value) in
                [("given", "given"), ("added", "added"), ("ended", "ended"), ("text", "answer")]
            {
                assert_eq!(report[key], expected[value], "{model}: {text}: {key}");
            }
        }
    }
    // By its tokens alone, and with one thing of several that a text may stop at.
    let first = &fixture("run/t5.json")["answers"][0];
    let given: Vec<String> =
        first["given"].as_array().expect("tokens").iter().map(Value::to_string).collect();
    let report = sandbox
        .apr(&format!("run t5.apr --tokens {} --max-tokens 4 --json", given.join(",")))
        .ok()
        .json();
    assert_eq!(
        report["added"].as_array().expect("tokens"),
        &first["added"].as_array().expect("tokens")[..4]
    );
    let report = sandbox.run(&[
        "run",
        "t5.apr",
        "--prompt",
        "translate: any Work",
        "--stop",
        ".e",
        "--json",
    ]);
    assert_eq!(report.ok().json()["text"], "mEsativerigm");
    // Which token a decoder begins with is a key of a GGUF file. Its answer is another one, since
    // llama.cpp computes with another distance of positions, which is said.
    let export = sandbox.apr("export t5.apr -o t5.gguf").ok();
    export.says(&["'relative_attention_max_distance' is 20"]);
    let run = sandbox.apr("run t5.gguf --prompt Licensor --max-tokens 4 --json").ok();
    assert_eq!(run.json()["added"].as_array().map(Vec::len), Some(4));
    // A text that the encoder does not take is said, and what is for sounds is no option here.
    let long = "a ".repeat(80);
    sandbox
        .run(&["run", folder, "--prompt", &long])
        .fails(2, &["tokens long, beyond the model's context of 64"]);
    sandbox.apr(&format!("run {folder} --prompt a --timestamps")).fails(2, &["--timestamps"]);
}

/// Bytes of tokens, spaces and new lines are shown as in the terminal view and on the page.
#[test]
fn tokens_are_shown_alike_by_all_commands() {
    let sandbox = Sandbox::new();
    let named = sandbox.apr(&format!("tokenize {LLAMA} --tokens 9,10,32,195")).clean();
    assert_eq!(named.text(), "  9  ⇥\n 10  ⏎\n 32  ␣\n195  <0xC3>\n");
    let cut = sandbox.run(&["tokenize", LLAMA, "--prompt", "a b"]).clean();
    cut.says(&["␣  1..2"]);
    let listed = sandbox.apr(&format!("inspect {LLAMA} --vocab")).ok();
    listed.says(&["     0  <0x00>\n", "     9  ⇥\n", "    10  ⏎\n"]);
    // Reports have the vocabulary's own spelling.
    let report = sandbox.apr(&format!("tokenize {LLAMA} --tokens 32 --json")).clean().json();
    assert_eq!(report["results"][0]["tokens"][0]["token"], "Ġ");
}
