//! The choice of types, against what llama.cpp's quantizer wrote (`fixtures/quantize/make.py`).

use std::collections::BTreeMap;

use apr_core::{Code, DType, Shape};
use apr_gguf::{KeyValue, Value, from_ggml_type};
use apr_view::parse_filter;
use serde_json::Value as Json;

use super::*;

fn golden() -> Json {
    let text = std::fs::read_to_string(apr_testkit::locate::fixture("quantize/types.json"))
        .expect("the fixture");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

fn key_value(key: String, value: &Json) -> KeyValue {
    let number = |value: &Json| {
        u32::try_from(value.as_u64().expect("a whole number")).expect("a small number")
    };
    let value = match value {
        Json::Bool(value) => Value::Bool(*value),
        Json::Array(items) => Value::from(items.iter().map(number).collect::<Vec<_>>()),
        value if value.is_u64() => Value::from(number(value)),
        value => Value::F64(value.as_f64().expect("a number")),
    };
    KeyValue { key, value }
}

struct Model {
    name: String,
    facts: ModelFacts,
    candidates: Vec<Candidate>,
    /// Number of candidates that differ only in the layer.
    rows: Vec<usize>,
}

impl Model {
    fn new(json: &Json) -> Self {
        let rows = tensors(json);
        Self {
            name: json["name"].to_string(),
            facts: facts(json),
            rows: rows.iter().map(Vec::len).collect(),
            candidates: rows.into_iter().flatten().collect(),
        }
    }
}

/// Names and shapes of a model's tensors, in rows that differ in the layer alone.
fn tensors(model: &Json) -> Vec<Vec<Candidate>> {
    let layers = model["layers"].as_u64().expect("layers");
    let row = |row: &Json| {
        let name = row[0].as_str().expect("a name");
        let dims: Vec<u64> =
            row[1].as_array().expect("a shape").iter().filter_map(Json::as_u64).collect();
        let count = if name.contains('*') { layers } else { 1 };
        let candidate = |layer: u64| Candidate {
            name: name.replace('*', &layer.to_string()),
            dtype: DType::F32,
            shape: Shape::from(dims.clone()),
            role: None,
        };
        (0..count).map(candidate).collect()
    };
    model["tensors"].as_array().expect("tensors").iter().map(row).collect()
}

fn facts(model: &Json) -> ModelFacts {
    let architecture = model["architecture"].as_str().expect("an architecture");
    let keys = model["keys"].as_object().expect("keys");
    let mut pairs = vec![KeyValue::new("general.architecture", architecture)];
    pairs.extend(keys.iter().map(|(key, value)| key_value(format!("{architecture}.{key}"), value)));
    ModelFacts::from_gguf(&pairs.iter().collect())
}

/// `15+ pure`: file type 15, with importance, and the choices of that name.
fn choices(run: &str, options: &Json) -> Choices {
    let (file_type, name) = run.split_once(' ').unwrap_or((run, ""));
    let number: u32 = file_type.trim_end_matches('+').parse().expect("a file type");
    let scheme = Scheme::ALL
        .iter()
        .copied()
        .rfind(|scheme| scheme.file_type() == Some(number))
        .expect("a scheme");
    let options = &options[name];
    let dtype = |value: &Json| from_ggml_type(u32::try_from(value.as_u64()?).ok()?);
    let glob = |pair: &Json| {
        (
            parse_filter(pair[0].as_str().expect("text")).expect("a glob"),
            dtype(&pair[1]).expect("a type").into(),
        )
    };
    Choices {
        embedding_type: dtype(&options["token_embedding_type"]),
        output_type: dtype(&options["output_tensor_type"]),
        overrides: options["globs"].as_array().into_iter().flatten().map(glob).collect(),
        pure: options["pure"].as_bool().unwrap_or(false),
        has_importance: file_type.ends_with('+'),
        casts: Casts::Weights,
        ..Choices::new(scheme)
    }
}

/// Expands `d3f` to the letters of four layers; a single letter applies to all layers.
fn letters(word: &str, count: usize) -> Vec<char> {
    let mut letters: Vec<char> = Vec::new();
    let mut chars = word.chars().peekable();
    while let Some(letter) = chars.next() {
        let digits: String = std::iter::from_fn(|| chars.next_if(char::is_ascii_digit)).collect();
        letters.extend(vec![letter; digits.parse().unwrap_or(1)]);
    }
    if letters.len() == 1 { vec![letters[0]; count] } else { letters }
}

/// Compares one run, with or without importance.
fn compare(run: &str, expected: &str, model: &Model, golden: &Json) {
    let place = format!("{}, {run}", model.name);
    let Model { rows, candidates, facts, .. } = model;
    let outcome = assign(candidates, facts, &choices(run, &golden["options"]));
    if let Some(why) = expected.strip_prefix("! ") {
        let error = outcome.expect_err(&format!("{place}: llama.cpp says {why}"));
        assert_eq!(error.code(), Code::Format, "{place}");
        assert!(error.tensor().is_some(), "{place}: {error}");
        return;
    }
    let decisions = outcome.unwrap_or_else(|error| panic!("{place}: {error}"));
    let words: Vec<&str> = expected.split(' ').collect();
    assert_eq!(words.len(), rows.len(), "{place}");
    let expected = words.iter().zip(rows).flat_map(|(word, &row)| letters(word, row));
    for ((letter, candidate), decision) in expected.zip(candidates).zip(&decisions) {
        let name = golden["letters"][letter.to_string()].as_str().expect("a type");
        assert_eq!(decision.dtype.name(), name, "{place}: {}, {}", candidate.name, decision.reason);
    }
    assert_eq!(decisions.len(), candidates.len(), "{place}");
}

#[test]
fn every_tensor_gets_the_type_that_llama_cpp_gives_it() {
    let golden = golden();
    let mut runs = 0;
    for model in golden["models"].as_array().expect("models") {
        let types: BTreeMap<&str, &str> = model["types"]
            .as_object()
            .expect("runs")
            .iter()
            .map(|(run, types)| (run.as_str(), types.as_str().expect("types")))
            .collect();
        let model = Model::new(model);
        for (run, expected) in &types {
            compare(run, expected, &model, &golden);
            runs += 1;
            // A run with importance that is not listed came out as the one without.
            let (file_type, options) =
                run.split_once(' ').map_or((*run, String::new()), |(a, b)| (a, format!(" {b}")));
            let with_importance = format!("{file_type}+{options}");
            if !file_type.ends_with('+') && !types.contains_key(with_importance.as_str()) {
                compare(&with_importance, expected, &model, &golden);
                runs += 1;
            }
        }
    }
    assert_eq!(
        runs,
        golden["runs"].as_u64().expect("a count"),
        "every run of llama.cpp is compared"
    );
}

fn candidate(name: &str, dtype: DType, dims: &[u64]) -> Candidate {
    Candidate { name: name.to_owned(), dtype, shape: Shape::from(dims.to_vec()), role: None }
}

#[test]
fn rows_of_integers_apply_to_all_weights_alike() {
    let candidates = [
        candidate("model.embed_tokens.weight", DType::BF16, &[8, 64]),
        candidate("model.layers.0.mlp.up_proj.weight", DType::F32, &[8, 48]),
        candidate("model.norm.weight", DType::BF16, &[64]),
        candidate("position_ids", DType::I64, &[1, 64]),
    ];
    let dtypes = |scheme| {
        let decisions =
            assign(&candidates, &ModelFacts::default(), &Choices::new(scheme)).expect("types");
        decisions.into_iter().map(|decision| decision.dtype).collect::<Vec<_>>()
    };
    assert_eq!(dtypes(Scheme::Int8), [DType::I8_ROW, DType::I8_ROW, DType::BF16, DType::I64]);
    assert_eq!(
        dtypes(Scheme::Int4),
        [DType::I4_ROW, DType::F32, DType::BF16, DType::I64],
        "48 is not a multiple of 32"
    );
    assert_eq!(
        dtypes(Scheme::F8_E4M3),
        [DType::F8_E4M3, DType::F8_E4M3, DType::F8_E4M3, DType::I64]
    );
}

#[test]
fn rows_that_are_shorter_than_their_scale_saves_stay() {
    let candidates = [
        candidate("conv1.weight", DType::F16, &[384, 80, 3]),
        candidate("x.weight", DType::F32, &[384, 80, 3]),
    ];
    let decisions =
        assign(&candidates, &ModelFacts::default(), &Choices::new(Scheme::Int8)).expect("types");
    assert_eq!(
        (decisions[0].dtype, &decisions[0].reason),
        (DType::F16, &DecisionReason::Kept(Kept::NoGain)),
        "6 bytes to 7"
    );
    assert_eq!(decisions[1].dtype, DType::I8_ROW, "12 bytes to 7");
}

#[test]
fn schemes_that_llama_cpp_lacks_follow_its_rules_for_others() {
    let candidates = [
        candidate("output.weight", DType::F32, &[8, 256]),
        candidate("blk.0.ffn_up.weight", DType::F32, &[8, 256]),
        candidate("blk.0.ffn_down.weight", DType::F32, &[8, 96]),
        candidate("blk.0.attn_q.weight", DType::F32, &[8, 80]),
    ];
    let dtypes = |scheme| {
        let decisions =
            assign(&candidates, &ModelFacts::default(), &Choices::new(scheme)).expect("types");
        decisions.into_iter().map(|decision| decision.dtype).collect::<Vec<_>>()
    };
    assert_eq!(dtypes(Scheme::NVFP4), [DType::Q6_K, DType::NVFP4, DType::Q4_0, DType::F16]);
    assert_eq!(dtypes(Scheme::MXFP4), [DType::Q6_K, DType::MXFP4, DType::MXFP4, DType::F16]);
}

#[test]
fn reasons_describe_the_decisions() {
    let candidates = [
        candidate("blk.0.ffn_up.weight", DType::F32, &[8, 288]),
        candidate("blk.0.ffn_norm.weight", DType::F32, &[288]),
        candidate("output.weight", DType::F32, &[8, 256]),
        candidate("token_embd.weight", DType::F32, &[8, 256]),
        candidate("blk.0.attn_q.weight", DType::F32, &[8, 256]),
        candidate("blk.0.attn_k.weight", DType::F32, &[8, 256]),
    ];
    let choices = Choices {
        embedding_type: Some(DType::Q8_0),
        overrides: vec![(parse_filter("*attn_q*").expect("a glob"), DType::F16.into())],
        ..Choices::new(Scheme::Q4_K_M)
    };
    let decisions =
        assign(&candidates, &ModelFacts { layers: 1, ..ModelFacts::default() }, &choices)
            .expect("types");
    let texts: Vec<String> = decisions.iter().map(|decision| decision.reason.to_string()).collect();
    assert_eq!(
        texts,
        [
            "q5_0 instead of q4_k: row length 288 is not a multiple of 256",
            "not quantized (1-D tensor)",
            "rule of the mix: output",
            "as requested for the token embeddings",
            "as requested for *attn_q*",
            "as requested",
        ]
    );
}

#[test]
fn quantized_tensors_are_requantized_only_on_request() {
    let candidates = [candidate("blk.0.attn_q.weight", DType::Q4_0, &[8, 256])];
    let facts = ModelFacts::default();
    let error = assign(&candidates, &facts, &Choices::new(Scheme::Q8_0)).expect_err("q4_0 to q8_0");
    assert_eq!((error.code(), error.tensor()), (Code::Format, Some("blk.0.attn_q.weight")));
    let same = assign(&candidates, &facts, &Choices::new(Scheme::Q4_0)).expect("nothing changes");
    assert_eq!(same[0].dtype, DType::Q4_0);
    let asked = Choices { requantize: true, ..Choices::new(Scheme::Q8_0) };
    assert_eq!(assign(&candidates, &facts, &asked).expect("asked for")[0].dtype, DType::Q8_0);
    assert_eq!(
        assign(&candidates, &facts, &Choices::new(Scheme::Fp16)).expect("a cast")[0].dtype,
        DType::F16
    );
}

#[test]
fn absurd_counts_neither_panic_nor_overflow() {
    let candidates = [candidate("blk.99999999999.ffn_down.weight", DType::F32, &[8, 256])];
    for layers in [0, 1, u64::MAX] {
        for experts in [0, 8, u64::MAX] {
            let facts = ModelFacts { layers, experts, heads: u64::MAX, ..ModelFacts::default() };
            for &scheme in Scheme::ALL {
                let _ = assign(&candidates, &facts, &Choices::new(scheme));
            }
        }
    }
}
