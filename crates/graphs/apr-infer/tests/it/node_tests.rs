//! The official tests of ONNX's operators, which the package `onnx` makes.
//!
//! `fixtures/infer/node_tests.py` writes them to `node_tests.zip`. `APR_NODE_TESTS` names another
//! file of such lines, or a folder of tests as they are made of real models.

use std::path::Path;
use std::sync::Arc;

use apr_archive::{Archive, Cache};
use apr_core::{Limits, read_vec};
use apr_graph::{ElementType, Graph, Operator, infer, upgrade};
use apr_infer::{Alone, Data, Engine, RunLimits, Tensor, Unwatched, Value};
use serde_json::Value as Json;

pub(crate) fn bytes(hex: &Json) -> Vec<u8> {
    let digit =
        |digit: u8| u8::try_from(char::from(digit).to_digit(16).expect("a digit")).expect("small");
    let pairs = hex.as_str().expect("bytes").as_bytes().as_chunks::<2>().0;
    pairs.iter().map(|[high, low]| digit(*high) << 4 | digit(*low)).collect()
}

fn tensor(json: &Json) -> Tensor {
    let code = i32::try_from(json["type"].as_i64().expect("a type")).expect("a code");
    let element = ElementType::from_onnx_code(code).expect("a known type");
    let sizes = json["shape"].as_array().expect("a shape").iter();
    let shape: Vec<usize> =
        sizes.map(|size| usize::try_from(size.as_u64().expect("a size")).expect("small")).collect();
    if let Some(texts) = json.get("texts") {
        let texts = texts
            .as_array()
            .expect("texts")
            .iter()
            .map(|text| text.as_str().expect("a text").to_owned());
        return Tensor::new(shape, texts.collect()).expect("a tensor");
    }
    let bytes = bytes(&json["hex"]);
    macro_rules! words {
        ($variant:ident, $rust:ty) => {
            Data::$variant(
                bytes.as_chunks().0.iter().map(|word| <$rust>::from_le_bytes(*word)).collect(),
            )
        };
    }
    let data = match element {
        ElementType::F32 => words!(F32, f32),
        ElementType::F64 => words!(F64, f64),
        ElementType::I8 | ElementType::I4 | ElementType::I2 => words!(I8, i8),
        ElementType::I16 => words!(I16, i16),
        ElementType::I32 => words!(I32, i32),
        ElementType::I64 => words!(I64, i64),
        ElementType::U16 | ElementType::F16 | ElementType::BF16 => words!(U16, u16),
        ElementType::U32 => words!(U32, u32),
        ElementType::U64 => words!(U64, u64),
        _ => Data::U8(bytes),
    };
    Tensor::with_type(element, shape, data).expect("a tensor")
}

fn value(json: &Json) -> Value {
    if let Some(values) = json.get("sequence") {
        return Value::Sequence(values.as_array().expect("a sequence").iter().map(value).collect());
    }
    if let Some(map) = json.get("map") {
        return Value::Map { keys: tensor(&map[0]), values: tensor(&map[1]) };
    }
    match json.get("optional") {
        Some(Json::Null) => Value::Optional(None),
        Some(inner) => Value::Optional(Some(Box::new(value(inner)))),
        None => Value::Tensor(tensor(json)),
    }
}

/// Returns the elements as doubles. Half-precision floats are widened. Elements that are not floats
/// keep their value.
fn doubles(tensor: &Tensor) -> Vec<f64> {
    fn half(bits: u16, exponent_bits: u32) -> f64 {
        let mantissa_bits = 15 - exponent_bits;
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let exponent = i32::from(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
        let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let bias = (1 << (exponent_bits - 1)) - 1;
        sign * match exponent {
            0 => mantissa * 2_f64.powi(1 - bias),
            all if all == (1 << exponent_bits) - 1 && mantissa == 0.0 => f64::INFINITY,
            all if all == (1 << exponent_bits) - 1 => f64::NAN,
            _ => (1.0 + mantissa) * 2_f64.powi(exponent - bias),
        }
    }
    match (tensor.element(), tensor.data()) {
        (ElementType::F16, Data::U16(bits)) => bits.iter().map(|&bits| half(bits, 5)).collect(),
        (ElementType::BF16, Data::U16(bits)) => bits.iter().map(|&bits| half(bits, 8)).collect(),
        (_, Data::F32(values)) => values.iter().map(|&value| f64::from(value)).collect(),
        (_, Data::F64(values)) => values.clone(),
        _ => Vec::new(),
    }
}

fn difference(ours: &Value, theirs: &Value, relative: f64, absolute: f64) -> Option<String> {
    match (ours, theirs) {
        (Value::Sequence(a), Value::Sequence(b)) if a.len() == b.len() => {
            a.iter().zip(b).find_map(|(a, b)| difference(a, b, relative, absolute))
        }
        (Value::Optional(None), Value::Optional(None)) => None,
        (Value::Optional(Some(a)), Value::Optional(Some(b))) => {
            difference(a, b, relative, absolute)
        }
        (Value::Optional(Some(a)), b) => difference(a, b, relative, absolute),
        (a, Value::Optional(Some(b))) => difference(a, b, relative, absolute),
        (Value::Map { keys, values }, Value::Map { keys: other_keys, values: others }) => {
            tensors_differ(keys, other_keys, 0.0, 0.0)
                .or_else(|| tensors_differ(values, others, relative, absolute))
        }
        (Value::Tensor(a), Value::Tensor(b)) => tensors_differ(a, b, relative, absolute),
        _ => Some(format!("{} and {}", ours.kind(), theirs.kind())),
    }
}

fn tensors_differ(a: &Tensor, b: &Tensor, relative: f64, absolute: f64) -> Option<String> {
    if a.element() != b.element() || a.shape() != b.shape() {
        return Some(format!("{}{:?} and {}{:?}", a.element(), a.shape(), b.element(), b.shape()));
    }
    let (ours, theirs) = (doubles(a), doubles(b));
    if absolute.is_infinite() {
        return None;
    }
    if ours.is_empty() {
        let show = |tensor: &Tensor| format!("{:.300}", format!("{:?}", tensor.data()));
        return (a.data() != b.data()).then(|| format!("{} and {}", show(a), show(b)));
    }
    // Tests of 16 bits expect what rounding after every step gives; we round once, and may be two
    // units in the last place off.
    let relative = match a.element() {
        ElementType::F16 => relative.max(2.0_f64.powi(-9)),
        ElementType::BF16 => relative.max(2.0_f64.powi(-6)),
        _ => relative,
    };
    let close = |(a, b): (&f64, &f64)| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * b.abs()
    };
    let at = ours.iter().zip(&theirs).position(|pair| !close(pair))?;
    Some(format!("element {at}: {} and {}", ours[at], theirs[at]))
}

/// Runs a test that is refused: the code and the words of the error.
fn is_refused(test: &Json, code: &str) -> Result<(), String> {
    let words = test["words"].as_str().expect("words");
    match outputs(test) {
        Ok(_) => Err(format!("is computed, not {code}")),
        Err(error) if error.code().id() == code && error.to_string().contains(words) => Ok(()),
        Err(error) => Err(format!("{error}, not {code}: {words}")),
    }
}

/// Returns the outputs for the first set of inputs.
fn outputs(test: &Json) -> apr_core::Result<Vec<Value>> {
    let reader = apr_onnx::open(bytes(&test["model"]), "model.onnx", &Limits::default())?;
    let graph = reader.graph()?.expect("a graph");
    let session = Engine::prepare(&graph, &reader, RunLimits::default())?;
    let values = test["sets"][0]["inputs"].as_array().expect("inputs").iter().map(value);
    let name = |id| graph.body.value(id).name.clone();
    let inputs = graph.body.inputs.iter().map(|id| name(*id)).zip(values).collect();
    let wanted: Vec<_> = graph.body.outputs.iter().map(|id| name(*id)).collect();
    let wanted: Vec<_> = wanted.iter().map(String::as_str).collect();
    Ok(session.run(inputs, &wanted, &Alone, &mut Unwatched)?.outputs)
}

/// Runs one test, and returns the reason if it fails.
fn run(test: &Json) -> Result<(), String> {
    match test.get("refused") {
        Some(code) => is_refused(test, code.as_str().expect("a code")),
        None => run_changed(test, Ok),
    }
}

/// Runs one test of a graph that is changed before.
fn run_changed(
    test: &Json,
    change: impl FnOnce(Graph) -> Result<Graph, String>,
) -> Result<(), String> {
    let tolerance = |name: &str| test[name].as_f64().expect("a number");
    let name = test["name"].as_str().unwrap_or_default();
    let is_random = RANDOM.iter().any(|random| name.starts_with(random));
    let model = bytes(&test["model"]);
    let reader = apr_onnx::open(model, "model.onnx", &Limits::default())
        .map_err(|error| error.to_string())?;
    let graph = change(reader.graph().map_err(|error| error.to_string())?.expect("a graph"))?;
    let session = Engine::prepare(&graph, &reader, RunLimits::default())
        .map_err(|error| error.to_string())?;
    for set in test["sets"].as_array().expect("sets") {
        let values = set["inputs"].as_array().expect("inputs").iter().map(value);
        // A model's inputs, or only those that have no default.
        let names: Vec<String> = match set.get("names") {
            Some(names) => names
                .as_array()
                .expect("names")
                .iter()
                .map(|name| name.as_str().expect("a name").into())
                .collect(),
            None => graph.body.inputs.iter().map(|id| graph.body.value(*id).name.clone()).collect(),
        };
        let wanted: Vec<_> =
            graph.body.outputs.iter().map(|id| graph.body.value(*id).name.as_str()).collect();
        let outcome =
            session.run(names.into_iter().zip(values).collect(), &wanted, &Alone, &mut Unwatched);
        let outputs = outcome.map_err(|error| error.to_string())?.outputs;
        let expected: Vec<_> =
            set["outputs"].as_array().expect("outputs").iter().map(value).collect();
        for (at, (ours, theirs)) in outputs.iter().zip(&expected).enumerate() {
            // Where nothing is dropped, nothing is random.
            let (relative, absolute) = match is_random && !name.contains("zero_ratio") {
                true => (f64::INFINITY, f64::INFINITY),
                false => (tolerance("relative"), tolerance("absolute")),
            };
            if let Some(difference) = difference(ours, theirs, relative, absolute) {
                return Err(format!("output {at}: {difference}"));
            }
        }
    }
    Ok(())
}

fn official() -> String {
    match std::env::var_os("APR_NODE_TESTS") {
        Some(path) => std::fs::read_to_string(path).expect("a file"),
        None => tests("infer/node_tests.zip"),
    }
}

pub(crate) fn tests(archive: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures").join(archive);
    let file = std::fs::read(path).expect("the fixture");
    let archive = Archive::read(&file, &Limits::default()).expect("an archive");
    let entry = archive.find("node_tests.jsonl").expect("the tests");
    let source = entry.open(&file, &Arc::new(Cache::default())).expect("a source");
    String::from_utf8(read_vec(&*source, 0, source.len()).expect("the tests")).expect("a text")
}

/// Official tests that fail, with the reason.
const KNOWN: &[(&str, &str)] = &[
    ("test_image_decoder", "no operator"),
    // Elements that should be 0 are the noise of a transform in single precision; ours are smaller.
    ("test_dft_inverse", "noise"),
];

/// Tests whose numbers are drawn at random: of them only types and shapes are compared.
const RANDOM: &[&str] = &["test_bernoulli", "test_training_dropout"];

#[test]
fn official_operator_tests_pass_except_for_known_failures() {
    let tests = official();
    let (mut passed, mut failed, mut listed) = (0, Vec::new(), 0);
    for line in tests.lines() {
        let test: Json = serde_json::from_str(line).expect("JSON");
        let name = test["name"].as_str().expect("a name");
        let is_known = KNOWN.iter().any(|(known, _)| name.starts_with(known));
        match run(&test) {
            Ok(()) if is_known && !name.contains("dft") => {
                failed.push(format!("{name} passes, and is listed"));
            }
            Ok(()) => passed += 1,
            Err(_) if is_known => listed += 1,
            Err(why) => failed.push(format!("{name}: {why}")),
        }
    }
    assert!(
        failed.is_empty(),
        "{passed} passed, {listed} are listed, {} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
    assert!(passed > 1000, "only {passed} tests were found");
}

#[test]
fn operators_of_onnx_runtimes_own_domain_compute_what_it_computes() {
    passes("infer/microsoft.zip", 40);
}

/// Covers types, options and versions of operators that official tests omit, and rejected inputs.
#[test]
fn operators_match_onnx_runtime_in_results_and_rejections() {
    passes("infer/operators.zip", 440);
}

/// Nodes of `ai.onnx.ml` with all their settings, and models of scikit-learn, XGBoost and LightGBM.
#[test]
fn classical_machine_learning_computes_what_onnx_runtime_computes() {
    passes("infer/learning.zip", 180);
}

fn passes(archive: &str, least: usize) {
    let tests = tests(archive);
    let named = |line| serde_json::from_str::<Json>(line).expect("JSON");
    let results = tests.lines().map(named).map(|test| (test["name"].to_string(), run(&test)));
    let (passed, failed): (Vec<_>, Vec<_>) = results.partition(|(_, result)| result.is_ok());
    let failed: Vec<_> = failed
        .into_iter()
        .filter_map(|(name, result)| Some(format!("{name}: {}", result.err()?)))
        .collect();
    assert!(failed.is_empty(), "{} passed; failed:\n{}", passed.len(), failed.join("\n"));
    assert!(passed.len() > least, "only {} tests were found", passed.len());
}

#[test]
fn operators_of_older_versions_compute_the_same_after_an_upgrade() {
    let tests = tests("infer/older.zip");
    let mut failed = Vec::new();
    for test in tests.lines().map(|line| serde_json::from_str::<Json>(line).expect("JSON")) {
        for to in [21, Operator::newest()] {
            let newer = |mut graph: Graph| {
                infer(&mut graph);
                upgrade(&graph, to).map_err(|error| error.to_string())
            };
            if let Err(why) = run_changed(&test, newer) {
                failed.push(format!("{} to {to}: {why}", test["name"]));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(tests.lines().count() > 60);
}
