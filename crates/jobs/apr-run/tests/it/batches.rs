//! Texts that grow side by side are what each is alone.

use std::collections::BTreeMap;
use std::fs;

use apr_run::{
    Completion, GenerateOptions, GenerationOptions, Generator, NoHost, Prompt, RunOptions, Runner,
};
use apr_testkit::{FolderInMemory, from_base64, locate};
use serde_json::{Value, json};

use crate::support::{folder, with_model, with_options};

/// Prompts of several lengths, more than fit side by side.
const PROMPTS: [&[i64]; 5] = [&[3, 4, 5, 6, 7, 8, 9], &[11], &[20, 21, 22], &[3, 4], &[60, 61, 62]];

/// A family of the fixtures, with random weights.
pub(crate) fn made_up(family: &Value) -> FolderInMemory {
    let shapes: BTreeMap<String, Vec<usize>> =
        serde_json::from_value(family["tensors"].clone()).expect("shapes");
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut state = 1_u32;
    for (name, shape) in shapes {
        let begin = data.len();
        let middle = if shape.len() == 1 && name.ends_with("weight") { 1.0 } else { 0.0 };
        for _ in 0..shape.iter().product() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = middle + ((state >> 16) as f32 / 65536.0 - 0.5) / 2.0;
            data.extend(value.to_le_bytes());
        }
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] });
        header.insert(name, entry);
    }
    let header = Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    let config = family["config"].to_string().into_bytes();
    FolderInMemory(
        [("model.safetensors".to_owned(), file), ("config.json".to_owned(), config)].into(),
    )
}

/// The families that continue texts.
pub(crate) fn families() -> Vec<(String, Value)> {
    let entries = fs::read_dir(locate::fixture("families")).expect("the fixtures are there");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut all: Vec<(String, Value)> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let json = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
            (name, json)
        })
        .filter(|(_, family): &(String, Value)| {
            let class = family["config"]["architectures"][0].as_str().unwrap_or_default();
            // Falcon has no block for positions as slopes.
            family["config"]["alibi"] != true
                && (class.ends_with("CausalLM") || class.ends_with("LMHeadModel"))
        })
        .collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert!(all.len() > 40, "{} families", all.len());
    all
}

fn generator<'r>(runner: &Runner<'r>, max_tokens: usize) -> Generator<'r> {
    let sampling =
        GenerationOptions { max_tokens: Some(max_tokens), ..GenerationOptions::default() };
    let options = GenerateOptions { sampling, logprobs: Some(1), ..GenerateOptions::default() };
    Generator::of(runner, options).expect("a generator")
}

fn all(runner: &Runner<'_>, prompts: &[&[i64]], most: usize) -> Vec<Completion> {
    let prompts: Vec<Prompt<'_>> = prompts.iter().map(|ids| Prompt::Tokens(ids)).collect();
    let mut order = Vec::new();
    let made = generator(runner, 5).generate_all(&prompts, most, &mut |number, _| {
        order.push(number);
        Ok(())
    });
    let made = made.expect("completions");
    assert_eq!(order, (0..prompts.len()).collect::<Vec<_>>());
    made
}

fn assert_alike(what: &str, batch: &[Completion], alone: &[Completion]) {
    for (batch, alone) in batch.iter().zip(alone) {
        let of = |made: &Completion| (made.given.clone(), made.added.clone(), made.ended);
        assert_eq!(of(batch), of(alone), "{what}");
        let logprobs = |made: &Completion| made.logprobs.clone().expect("log probabilities");
        for (batch, alone) in logprobs(batch).iter().zip(&logprobs(alone)) {
            let difference = batch.chosen.logprob - alone.chosen.logprob;
            assert!(difference.abs() < 2e-4, "{what}: {difference}");
        }
    }
}

#[test]
fn texts_of_every_family_grow_side_by_side() {
    let mut alone = Vec::new();
    for (name, family) in families() {
        with_model(&made_up(&family), &NoHost, |runner| {
            let one_by_one = all(runner, &PROMPTS, 1);
            assert!(one_by_one.iter().all(|made| made.batch.is_none()), "{name}");
            let batch = all(runner, &PROMPTS, 3);
            assert_alike(&name, &batch, &one_by_one);
            match batch.iter().filter_map(|made| made.batch).max() {
                Some(most) => assert_eq!(most, 3, "{name}"),
                None => alone.push(name.clone()),
            }
        });
    }
    // Bloom's graph has no positions, and states have no rows that could be masked.
    let expected = [
        "bamba",
        "bloom",
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "granitemoehybrid_dense",
        "jamba",
        "lfm2",
        "lfm2_moe",
        "lfm3",
        "mamba",
        "mamba2",
        "mamba2_bias",
        "mamba_bias",
        "qwen3_5",
        "qwen3_5_bias",
        "qwen3_5_moe",
        "qwen3_next",
        "qwen3_next_dense",
    ];
    assert_eq!(alone, expected);
}

#[test]
fn texts_beyond_the_memory_wait() {
    let options = |max_memory| {
        let mut options = RunOptions::default();
        options.max_memory = max_memory;
        options
    };
    let prompts: Vec<Vec<i64>> = (0..8).map(|first| vec![first + 60; 40]).collect();
    let prompts: Vec<&[i64]> = prompts.iter().map(Vec::as_slice).collect();
    let model = folder("tiny-llama", &[]);
    let whole = with_model(&model, &NoHost, |runner| all(runner, &prompts, 8));
    assert_eq!(whole.iter().filter_map(|made| made.batch).max(), Some(8));
    // Half of it is for texts of 45 tokens, each of which takes 1 KiB.
    let narrow =
        with_options(&model, &options(600 << 10), &NoHost, |runner| all(runner, &prompts, 8));
    assert_alike("tiny-llama", &narrow, &whole);
    assert_eq!(narrow.iter().filter_map(|made| made.batch).max(), Some(6));
}

#[test]
fn a_prompt_that_is_wrong_stops_all_before_the_first_text() {
    with_model(&folder("tiny-llama", &[]), &NoHost, |runner| {
        let prompts = [Prompt::Tokens(&[60]), Prompt::Tokens(&[])];
        let mut count = 0;
        let made = generator(runner, 2).generate_all(&prompts, 2, &mut |_, _| {
            count += 1;
            Ok(())
        });
        assert!(made.is_err());
        assert_eq!(count, 0);
    });
}

/// `longrope.json` has what transformers adds to each prompt alone, some of which grow beyond the
/// length at which LongRoPE turns all tokens otherwise.
#[test]
fn texts_that_grow_beyond_the_switch_of_longrope_are_read_again_and_apart() {
    let cases = fs::read(locate::fixture("run/longrope.json")).expect("the fixture");
    let cases: Value = serde_json::from_slice(&cases).expect("JSON");
    let tokens = |case: &Value, key: &str| -> Vec<i64> {
        serde_json::from_value(case[key].clone()).expect("tokens")
    };
    let cases = cases.as_array().expect("cases");
    let given: Vec<Vec<i64>> = cases.iter().map(|case| tokens(case, "given")).collect();
    let added: Vec<Vec<i64>> = cases.iter().map(|case| tokens(case, "added")).collect();
    let prompts: Vec<Prompt<'_>> = given.iter().map(|given| Prompt::Tokens(given)).collect();
    with_model(&folder("run/tiny-longrope", &[]), &NoHost, |runner| {
        for most in [1, 2, 5] {
            let made = generator(runner, 24).generate_all(&prompts, most, &mut |_, _| Ok(()));
            let made: Vec<Vec<i64>> =
                made.expect("texts").into_iter().map(|completion| completion.added).collect();
            assert_eq!(made, added, "{most} side by side");
        }
    });
}

/// `ignored.json` has the completions of transformers for configurations with settings that their
/// class ignores.
#[test]
fn settings_that_a_class_of_transformers_ignores_have_no_effect() {
    let cases = fs::read(locate::fixture("run/ignored.json")).expect("the fixture");
    let cases: Value = serde_json::from_slice(&cases).expect("JSON");
    for (name, case) in cases.as_object().expect("cases") {
        let weights = case["weights"].as_str().expect("base64");
        let folder = FolderInMemory(
            [
                ("model.safetensors".to_owned(), from_base64(weights)),
                ("config.json".to_owned(), case["config"].to_string().into_bytes()),
            ]
            .into(),
        );
        let tokens =
            |key: &str| -> Vec<i64> { serde_json::from_value(case[key].clone()).expect("tokens") };
        with_model(&folder, &NoHost, |runner| {
            let made = generator(runner, 16)
                .generate(Prompt::Tokens(&tokens("given")), &mut |_| Ok(()))
                .expect("a completion");
            assert_eq!(made.added, tokens("added"), "{name}");
        });
    }
}
