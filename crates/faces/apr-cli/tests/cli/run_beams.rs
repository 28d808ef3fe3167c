//! `apr run --beams`, beside transformers (`fixtures/run/beams.py`); subtitles and the fallback of
//! a Whisper.

use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::run_media::wav;
use crate::support::Sandbox;

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run");
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

fn fixture(name: &str) -> Value {
    let text = fs::read_to_string(locate::fixture(name)).expect("the fixture");
    serde_json::from_str(&text).expect("JSON")
}

/// A copy of a folder whose settings for generation are these.
fn with_settings(sandbox: &Sandbox, folder: &str, settings: &Value) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        sandbox.write(&format!("m/{name}"), fs::read(&path).expect("a file"));
    }
    sandbox.write("m/generation_config.json", settings.to_string());
}

/// Runs a case by the settings of a file, and compares the texts that the search found.
fn check(sandbox: &Sandbox, folder: &str, ids: &Value, case: &Value) {
    let mut settings = ids.clone();
    for (key, value) in case["settings"].as_object().expect("settings") {
        settings[key] = value.clone();
    }
    with_settings(sandbox, folder, &settings);
    let (most, text) = (case["max_tokens"].to_string(), case["text"].as_str().expect("a text"));
    let line = ["run", "m", "--prompt", text, "--max-tokens", &most, "--json"];
    let made = sandbox.run(&line).clean().json();
    let (ours, theirs) = (&made["beams"], &case["beams"]);
    for (ours, theirs) in
        ours.as_array().expect("beams").iter().zip(theirs.as_array().expect("beams"))
    {
        assert_eq!(
            (&ours["added"], &ours["ended"]),
            (&theirs["added"], &theirs["ended"]),
            "{case}"
        );
        let score = |value: &Value| value["score"].as_f64().expect("a score");
        let off = (score(ours) - score(theirs)).abs();
        assert!(off <= 1e-4 * score(theirs).abs().max(1.0), "{ours} and {theirs}: {case}");
    }
    assert_eq!(ours.as_array().map(Vec::len), theirs.as_array().map(Vec::len), "{case}");
    assert_eq!((&made["added"], &made["ended"]), (&ours[0]["added"], &ours[0]["ended"]), "{case}");
    assert_eq!(made["text"], ours[0]["text"], "{case}");
}

#[test]
fn searches_of_an_encoder_and_a_decoder_find_what_transformers_finds() {
    let sandbox = Sandbox::new();
    let ids = json!({ "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0 });
    for case in fixture("run/beams.json")["tiny-t5"].as_array().expect("cases") {
        check(&sandbox, &format!("{RUN}/tiny-t5"), &ids, case);
    }
}

#[test]
fn searches_of_a_language_model_find_what_transformers_finds() {
    let sandbox = Sandbox::new();
    let ids = json!({ "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258 });
    for case in fixture("run/beams.json")["tiny-llama"].as_array().expect("cases") {
        check(&sandbox, LLAMA, &ids, case);
    }
}

#[test]
fn beam_search_options_work_and_excluded_options_are_reported() {
    let sandbox = Sandbox::new();
    let run = |rest: &[&str]| {
        sandbox.run(&[&["run", LLAMA, "--prompt", "12+34=", "--json"], rest].concat())
    };
    let made = run(&["--beams", "3", "--logprobs", "1"]).clean().json();
    assert_eq!((&made["text"], &made["ended"]), (&json!("46\n"), &json!("end")));
    assert_eq!(made["beams"].as_array().map(Vec::len), Some(3));
    assert_eq!(made["logprobs"].as_array().map(Vec::len), made["added"].as_array().map(Vec::len));
    assert!(run(&["--beams", "1"]).clean().json()["beams"].is_null());
    let stopped = run(&["--beams", "2", "--stop", "6"]).clean().json();
    assert_eq!((&stopped["text"], &stopped["ended"]), (&json!("4"), &json!("stop")));
    // The answer is written as a whole, and once.
    let text = sandbox.run(&["run", LLAMA, "--prompt", "12+34=", "--beams", "4"]).ok();
    assert_eq!(text.text(), "46\n");
    run(&["--beams", "2", "--temperature", "1"]).fails(2, &["--temperature"]);
    run(&["--beams", "65"]).fails(2, &["1..=64"]);
    run(&["--length-penalty", "2"]).ok().says(&["--length-penalty has no effect without beams"]);
    run(&["--beams", "2", "--top-k", "5"]).ok().says(&["--top-k had no effect with beam search"]);
    let draws = json!({ "eos_token_id": 257, "num_beams": 3, "do_sample": true });
    with_settings(&sandbox, LLAMA, &draws);
    let line = ["run", "m", "--prompt", "12+34=", "--json"];
    let drawn = sandbox.run(&line).ok().says(&["num_beams (3), since tokens are drawn"]).json();
    assert!(drawn["beams"].is_null());
    let searched = sandbox.run(&[&line[..], &["--beams", "3"]].concat()).clean().json();
    assert_eq!(searched["text"], "46\n");
    // A file that asks for more beams than any machine has memory for.
    with_settings(&sandbox, LLAMA, &json!({ "eos_token_id": 257, "num_beams": 4_000_000_000_u64 }));
    sandbox.run(&line).ok().says(&["num_beams (4000000000)"]);
}

fn short_sound() -> (Sandbox, Vec<f64>) {
    let sound = fixture("sound/expected.json")["resampled"].clone();
    let numbers = sound.as_array().expect("samples").iter();
    let samples: Vec<f64> = numbers.map(|sample| sample.as_f64().expect("a number")).collect();
    (Sandbox::new().with("short.wav", wav(&samples)), samples)
}

#[test]
fn a_whisper_searches_as_transformers_does() {
    let (sandbox, _) = short_sound();
    for case in fixture("run/beams.json")["tiny-whisper"].as_array().expect("cases") {
        let times = if case["timestamps"] == true { "--timestamps" } else { "" };
        let line = format!(
            "run {RUN}/tiny-whisper --input short.wav --language en --beams {} {times} --json",
            case["beams"]
        );
        let made = sandbox.apr(&line).ok().json();
        assert_eq!(made["results"][0]["tokens"], case["tokens"], "{case}");
    }
}

#[test]
fn subtitles_are_files_that_players_take() {
    let (sandbox, _) = short_sound();
    let run = |rest: &str| {
        sandbox.apr(&format!("run {RUN}/tiny-whisper --input short.wav --language en {rest}"))
    };
    let segments = run("--timestamps --json").ok().json()["results"][0]["segments"].clone();
    let texts = |made: &str| made.matches(" --> ").count();
    let spoken = segments.as_array().expect("segments").iter();
    // Random weights write control characters, too.
    let shows = |letter: char| !letter.is_whitespace() && !letter.is_control();
    let spoken = spoken.filter(|part| part["text"].as_str().expect("a text").contains(shows));
    let srt = run("--subtitles srt").ok().text();
    assert_eq!(texts(&srt), spoken.count());
    assert!(srt.starts_with("1\n00:00:0"), "{srt}");
    let vtt = run("--subtitles vtt").ok().text();
    assert!(vtt.starts_with("WEBVTT\n\n00:0"), "{vtt}");
    assert_eq!(texts(&vtt), texts(&srt));
    run("--subtitles srt --timestamps").fails(2, &["--timestamps"]);
    run("--input short.wav --subtitles srt").fails(2, &["one audio file"]);
    sandbox
        .run(&["run", LLAMA, "--prompt", "a", "--subtitles", "srt"])
        .fails(2, &["--subtitles", "Whisper"]);
}

#[test]
fn words_have_times_within_their_segments() {
    let (sandbox, _) = short_sound();
    let run = |rest: &str| {
        sandbox.apr(&format!("run {RUN}/tiny-whisper --input short.wav --language en {rest}"))
    };
    let report = run("--word-timestamps --json").ok().json();
    let mut count = 0;
    for (id, segment) in
        report["results"][0]["segments"].as_array().expect("segments").iter().enumerate()
    {
        assert_eq!(segment["id"], id);
        assert!(segment["seek"].is_u64() && !segment["tokens"].as_array().expect("ids").is_empty());
        let words = segment["words"].as_array().expect("words");
        let times = words.iter().flat_map(|word| [&word["start"], &word["end"]]);
        let times: Vec<f64> = times.map(|time| time.as_f64().expect("seconds")).collect();
        assert!(times.is_sorted(), "{segment}");
        let shares = words.iter().map(|word| word["probability"].as_f64().expect("a number"));
        assert!(shares.clone().all(|share| (0.0..=1.0).contains(&share)), "{segment}");
        count += words.len();
    }
    assert!(count > 0, "{report}");
    assert_eq!(run("--word-timestamps").ok().text().lines().count(), count);
    run("--word-timestamps --subtitles srt").ok();
    run("--word-timestamps --timestamps").fails(2, &["--timestamps"]);
    sandbox
        .run(&["run", LLAMA, "--prompt", "a", "--word-timestamps"])
        .fails(2, &["--word-timestamps", "Whisper"]);
}

#[test]
fn heads_that_a_whisper_lacks_are_errors() {
    let (sandbox, _) = short_sound();
    let folder = format!("{RUN}/tiny-whisper");
    for (heads, message) in [
        (json!([[1, 9]]), "head 9 of alignment_heads: the layer has 3 heads"),
        (json!([[7, 0]]), "no value 'layers.7/cross_attention/probs'"),
        (json!([]), "missing alignment_heads"),
    ] {
        let text = fs::read_to_string(format!("{folder}/generation_config.json")).expect("a file");
        let mut settings: Value = serde_json::from_str(&text).expect("JSON");
        settings["alignment_heads"] = heads;
        with_settings(&sandbox, &folder, &settings);
        sandbox
            .run(&["run", "m", "--input", "short.wav", "--language", "en", "--word-timestamps"])
            .fails(4, &[message]);
    }
}

#[test]
fn a_window_that_repeats_itself_is_named() {
    let (sandbox, _) = short_sound();
    let folder = format!("{RUN}/tiny-whisper");
    let text = fs::read_to_string(format!("{folder}/generation_config.json")).expect("a file");
    let mut settings: Value = serde_json::from_str(&text).expect("JSON");
    // All tokens but one, `tion`.
    settings["suppress_tokens"] = (0..344).filter(|id| *id != 273).collect();
    with_settings(&sandbox, &folder, &settings);
    let line = "run m --input short.wav --language en";
    sandbox.apr(line).ok().says(&[
        "the text from 0.00 to 1.00 s repeats itself (compression ratio",
        "pass --fallback to transcribe it again",
    ]);
    let again = sandbox.apr(&format!("{line} --fallback --json")).ok();
    assert!(!again.stderr.contains("repeats itself"), "{}", again.stderr);
    assert_eq!(again.json()["results"][0]["segments"][0]["temperature"], 1.0);
}

#[test]
fn an_unlikely_window_is_written_again_at_higher_temperatures() {
    let (sandbox, _) = short_sound();
    let run = |rest: &str| {
        let line = format!("run {RUN}/tiny-whisper --input short.wav --language en {rest} --json");
        sandbox.apr(&line).ok().json()["results"][0].clone()
    };
    let plain = run("");
    let first = &plain["segments"][0];
    assert_eq!(first["temperature"], 0.0);
    // Random weights find nothing likely, so that all temperatures are tried.
    assert!(first["avg_logprob"].as_f64().expect("a number") < -1.0, "{first}");
    let again = run("--fallback");
    assert_eq!(again["segments"][0]["temperature"], 1.0);
    assert!(again["segments"][0]["no_speech_prob"].as_f64().is_some_and(|it| it < 0.6));
    assert_ne!(again["tokens"], plain["tokens"]);
    assert_eq!(run("--fallback")["tokens"], again["tokens"], "the seed is the same");
    assert_ne!(run("--fallback --seed 5")["tokens"], again["tokens"]);
}

#[test]
fn each_of_several_answers_has_the_warnings_of_the_command() {
    let sandbox = Sandbox::new().with("texts.txt", "12+34=\n20+22=\n11+11=\n");
    let expected = json!(["--length-penalty has no effect without beams: pass --beams 4"]);
    for batch in ["1", "8"] {
        let line = ["run", LLAMA, "--input", "texts.txt", "--lines", "--json"];
        let options = ["--max-tokens", "4", "--length-penalty", "2", "--batch", batch];
        let run = sandbox.run(&[&line[..], &options].concat()).ok();
        let reports = run.reports();
        assert_eq!(reports.len(), 3, "{run}");
        for report in reports {
            assert_eq!(report["warnings"], expected, "{batch}: {report}");
        }
    }
}
