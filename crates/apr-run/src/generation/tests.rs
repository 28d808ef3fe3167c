//! Beside transformers (`fixtures/run/logits.py`).

use serde_json::{Value as Json, json};

use super::*;
use crate::Facts;

fn fixture() -> Json {
    let path = apr_testkit::locate::fixture("run/logits.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(json: &Json) -> Vec<i64> {
    json.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect()
}

fn numbers(json: &Json) -> Vec<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "the numbers were written as f32")]
    let number = |value: &Json| value.as_f64().map_or(f32::NEG_INFINITY, |value| value as f32);
    json.as_array().unwrap().iter().map(number).collect()
}

fn by_file(config: &Json, options: &GenerationOptions) -> Generation {
    Generation::of(&Facts::of_file("generation_config.json", config.clone()), options)
}

#[test]
fn every_key_changes_logits_as_in_transformers() {
    for case in fixture().as_array().unwrap() {
        let settings = by_file(&case["config"], &GenerationOptions::default());
        assert!(settings.ignored().is_empty(), "{case}");
        let (tokens, given) =
            (ids(&case["tokens"]), usize::try_from(case["given"].as_u64().unwrap()).unwrap());
        let most = settings.most(given).unwrap_or(20);
        let mut chooser = settings.begin(&tokens[..given], &ids(&case["encoder"]), most);
        chooser.tokens.clone_from(&tokens);
        let mut logits = numbers(&case["logits"]);
        chooser.process(&mut logits);
        for (at, (ours, theirs)) in logits.iter().zip(numbers(&case["processed"])).enumerate() {
            let near = *ours == theirs || (ours - theirs).abs() <= 1e-5 * theirs.abs().max(1.0);
            assert!(near, "{at}: {ours} and {theirs}: {}", case["config"]);
        }
    }
}

#[test]
fn options_go_before_the_models_settings() {
    let config = json!({
        "do_sample": true, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.2,
        "max_new_tokens": 7
    });
    let of = |options: &GenerationOptions| by_file(&config, options);
    let own = of(&GenerationOptions::default());
    assert!(own.samples());
    assert_eq!(own.most(100), Some(7));
    let options = GenerationOptions {
        temperature: Some(0.0),
        repeat_penalty: Some(1.0),
        presence_penalty: Some(0.5),
        max_tokens: Some(3),
        ..GenerationOptions::default()
    };
    let greedy = of(&options);
    assert!(!greedy.samples());
    assert_eq!(
        (greedy.most(100), &greedy.processors[..]),
        (Some(3), &[Processor::PresencePenalty(0.5)][..])
    );
    let mut chooser = greedy.begin(&[1], &[], 3);
    chooser.tokens = vec![1, 2, 2];
    let mut logits = [1.0, 1.0, 1.0];
    chooser.process(&mut logits);
    assert_eq!(logits, [1.0, 1.0, 0.5], "what was given is not generated");
}

#[test]
fn lengths_count_as_in_transformers() {
    let most = |config: Json| by_file(&config, &GenerationOptions::default()).most(5);
    assert_eq!(most(json!({ "max_length": 20 })), Some(15));
    assert_eq!(most(json!({ "max_length": 3 })), Some(0));
    assert_eq!(most(json!({ "max_length": 20, "max_new_tokens": 9 })), Some(9));
    assert_eq!(most(json!({})), None);
}

#[test]
fn unsupported_settings_are_listed() {
    let config = json!({
        "num_beams": 4, "length_penalty": 1.0, "early_stopping": false, "top_p": "much",
        "guidance_scale": 1.5, "use_cache": true, "transformers_version": "5.23.0",
        "constraints": null, "of_my_own": [1], "eos_token_id": [7, 2, 7]
    });
    let settings = by_file(&config, &GenerationOptions::default());
    let expected = ["top_p (\"much\")", "guidance_scale (1.5)", "of_my_own ([1])"];
    assert_eq!(settings.ignored(), expected);
    assert_eq!(settings.beams(), Some(Beams { count: 4, ..Beams::default() }));
    assert_eq!(settings.ends(), [7, 2]);

    // config.json has keys of many kinds: those of generation alone are named.
    let facts = Facts::of_file("config.json", json!({ "num_beam_groups": 4, "hidden_size": 7 }));
    let settings = Generation::of(&facts, &GenerationOptions::default());
    assert_eq!(settings.ignored(), ["num_beam_groups (4)"]);
}

#[test]
fn settings_that_leave_no_token_are_an_error() {
    let settings = by_file(&json!({ "suppress_tokens": [0, 1] }), &GenerationOptions::default());
    let mut chooser = settings.begin(&[0], &[], 5);
    let mut logits = vec![1.0, 2.0];
    chooser.process(&mut logits);
    assert!(chooser.choose(&logits).unwrap_err().message().contains("rule out"));
}

#[test]
fn log_probabilities_match_the_logits() {
    let made =
        log_probabilities(&[0.0, 3.0_f32.ln(), f32::NAN], 0, 2, |id| Some(format!("<{id}>")));
    assert!((made.chosen.logprob - 0.25_f64.ln()).abs() < 1e-6);
    assert_eq!(made.chosen.token.as_deref(), Some("<0>"));
    let top: Vec<i64> = made.top.iter().map(|one| one.id).collect();
    assert_eq!(top, [1, 0]);
    assert!((made.top[0].logprob - 0.75_f64.ln()).abs() < 1e-6);
}
