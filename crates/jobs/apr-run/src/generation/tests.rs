//! Beside transformers (`fixtures/run/logits.py`) and llama.cpp (`fixtures/run/samplers.py`).

use apr_registry::Limits;
use apr_testkit::FolderInMemory;
use serde_json::{Value as Json, json};

use super::*;
use crate::{Facts, NoHost};

fn fixture(name: &str) -> Json {
    let path = apr_testkit::locate::fixture(name);
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
    for case in fixture("run/logits.json").as_array().unwrap() {
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

#[expect(clippy::cast_possible_truncation, reason = "options are f32")]
fn option(case: &Json, name: &str) -> Option<f32> {
    case["options"][name].as_f64().map(|value| value as f32)
}

fn number(case: &Json, name: &str) -> Option<usize> {
    case["options"][name].as_u64().map(|value| usize::try_from(value).unwrap())
}

/// The options of a case, by the names of the command.
fn options_of(case: &Json) -> GenerationOptions {
    let bias = |pair: &Json| {
        #[expect(clippy::cast_possible_truncation, reason = "options are f32")]
        let bias = pair[1].as_f64().map_or(f32::NEG_INFINITY, |bias| bias as f32);
        (TokenName::Id(pair[0].as_i64().unwrap()), bias)
    };
    let biases = case["options"]["logit_bias"].as_array();
    let usual = DryPenalty::default();
    let breakers = case["options"]["dry_sequence_breaker"].as_array();
    let text = |text: &Json| text.as_str().unwrap().to_owned();
    GenerationOptions {
        temperature: Some(option(case, "temperature").unwrap_or(1.0)),
        top_k: number(case, "top_k"),
        top_p: option(case, "top_p"),
        min_p: option(case, "min_p"),
        repeat_penalty: option(case, "repeat_penalty"),
        presence_penalty: option(case, "presence_penalty"),
        frequency_penalty: option(case, "frequency_penalty"),
        repeat_last_n: number(case, "repeat_last_n"),
        logit_bias: biases.into_iter().flatten().map(bias).collect(),
        typical_p: option(case, "typical_p"),
        dry: option(case, "dry_multiplier").map(|multiplier| DryPenalty {
            multiplier,
            base: option(case, "dry_base").unwrap_or(usual.base),
            allowed_length: number(case, "dry_allowed_length").unwrap_or(usual.allowed_length),
            last_n: number(case, "dry_penalty_last_n"),
            breakers: breakers
                .map_or(usual.breakers, |texts| Breakers::new(texts.iter().map(text).collect())),
        }),
        xtc: option(case, "xtc_probability").map(|probability| Xtc {
            probability,
            threshold: option(case, "xtc_threshold").unwrap_or(Xtc::default().threshold),
        }),
        mirostat: number(case, "mirostat").map(|version| Mirostat {
            version: u8::try_from(version).unwrap(),
            tau: option(case, "mirostat_tau").unwrap(),
            eta: option(case, "mirostat_eta").unwrap(),
        }),
        ..GenerationOptions::default()
    }
}

#[test]
fn samplers_of_llama_cpp_change_logits_as_there() {
    let read = |name: &str| std::fs::read(apr_testkit::locate::fixture("tiny-llama").join(name));
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let folder = FolderInMemory::from(names.map(|name| (name, read(name).unwrap())));
    let model = apr_registry::open_folder(&folder, &Limits::default()).unwrap();
    let tokenizer = Tokenizer::of(&model, &NoHost).unwrap();
    for case in fixture("run/samplers.json").as_array().unwrap() {
        let settings = by_file(&json!({}), &options_of(case)).named(Some(&tokenizer)).unwrap();
        let mut chooser = settings.begin(&ids(&case["tokens"]), &[], 20);
        for (number, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let mut logits = numbers(&step["logits"]);
            chooser.process(&mut logits);
            for (at, (ours, theirs)) in logits.iter().zip(numbers(&step["processed"])).enumerate() {
                let near = *ours == theirs || (ours - theirs).abs() <= 1e-5 * theirs.abs().max(1.0);
                assert!(near, "step {number}, {at}: {ours} and {theirs}: {}", case["options"]);
            }
            if let Some(drawn) = step["drawn"].as_u64() {
                chooser.take(usize::try_from(drawn).unwrap(), &logits);
            }
        }
    }
}

#[test]
fn ends_are_ruled_out_for_a_while_or_for_good() {
    let config = json!({ "eos_token_id": [2, 1], "min_new_tokens": 1, "forced_eos_token_id": 2 });
    let ends = |options: &GenerationOptions, added: usize| {
        let mut chooser = by_file(&config, options).begin(&[0], &[], 3);
        chooser.tokens.extend(vec![0; added]);
        let mut logits = [0.0, 1.0, 2.0];
        chooser.process(&mut logits);
        logits.map(|logit| logit > f32::NEG_INFINITY)
    };
    let usual = GenerationOptions::default();
    assert_eq!(ends(&usual, 0), [true, false, false]);
    assert_eq!(ends(&usual, 1), [true, true, true]);
    assert_eq!(ends(&usual, 2), [false, false, true], "the last one is forced");
    let later = GenerationOptions { min_tokens: Some(2), ..usual.clone() };
    assert_eq!(ends(&later, 1), [true, false, false]);
    let never = GenerationOptions { ignore_eos: true, ..usual };
    assert_eq!(ends(&never, 2), [true, false, false]);
}

#[test]
fn xtc_excludes_tokens_with_the_requested_probability() {
    let options = GenerationOptions {
        temperature: Some(1.0),
        xtc: Some(Xtc { probability: 0.25, threshold: 0.1 }),
        seed: 3,
        ..GenerationOptions::default()
    };
    let mut chooser = by_file(&json!({}), &options).begin(&[0], &[], 9);
    let left_out = (0..4000).filter(|_| {
        let mut logits = [1.0, 0.5, -9.0];
        chooser.process(&mut logits);
        logits[0] == f32::NEG_INFINITY
    });
    let count = left_out.count();
    assert!((900..1100).contains(&count), "{count} of 4000, not a quarter");
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
