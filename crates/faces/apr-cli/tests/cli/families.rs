//! Hugging Face folders of tiny models that nothing is wrong with, until something is.
//!
//! Configuration, names and shapes are those of `fixtures/families`; values are those of freshly
//! trained weights: gamma near one, beta at zero, all else spread evenly around zero with a
//! deviation of 0.029.

use std::collections::BTreeMap;
use std::fs;

use apr_testkit::locate;
use serde_json::{Map, Value};

use crate::support::{Run, Sandbox, Tensor, f32s, safetensors, scrambled};

/// Half the width of the range that weights are spread over; its deviation is this over the root of
/// three.
const SPREAD: f32 = 0.05;

/// Model of one family, complete with all tensors that its configuration requires.
#[derive(Clone)]
pub(crate) struct TinyModel {
    config: Map<String, Value>,
    tensors: BTreeMap<String, Weights>,
}

#[derive(Clone)]
struct Weights {
    shape: Vec<u64>,
    values: Vec<f32>,
}

impl TinyModel {
    /// The model of `fixtures/families/CASE.json`.
    pub(crate) fn new(case: &str) -> Self {
        let path = locate::fixture(&format!("families/{case}.json"));
        let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let fixture: Value = serde_json::from_slice(&text).expect("a fixture is JSON");
        let config = fixture["config"].as_object().expect("a configuration").clone();
        // Gemma stores what its gammas differ from one by.
        let gamma = if case.starts_with("gemma") { 0.0 } else { 1.0 };
        let shapes = fixture["tensors"].as_object().expect("shapes by name");
        let weights = |(name, shape): (&String, &Value)| {
            let shape: Vec<u64> = serde_json::from_value(shape.clone()).expect("a shape");
            let count = shape.iter().product();
            (name.clone(), Weights { shape, values: healthy(name, count, gamma) })
        };
        Self { config, tensors: shapes.iter().map(weights).collect() }
    }

    /// The model with another entry in its configuration.
    pub(crate) fn configured(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.config.insert(key.to_owned(), value.into());
        self
    }

    /// Returns the model with a configuration that does not identify its family.
    pub(crate) fn anonymous(mut self) -> Self {
        for key in ["model_type", "architectures"] {
            self.config.remove(key);
        }
        self
    }

    /// The model with every value of a tensor changed.
    pub(crate) fn map(mut self, name: &str, mut change: impl FnMut(f32) -> f32) -> Self {
        self.weights(name).values.iter_mut().for_each(|value| *value = change(*value));
        self
    }

    /// The model with the first value of a tensor replaced.
    pub(crate) fn first(mut self, name: &str, value: f32) -> Self {
        self.weights(name).values[0] = value;
        self
    }

    /// The model with another shape for a tensor, and its first values.
    pub(crate) fn resized(mut self, name: &str, shape: &[u64]) -> Self {
        let weights = self.weights(name);
        weights.values.truncate(usize::try_from(shape.iter().product::<u64>()).expect("tiny"));
        weights.shape = shape.to_vec();
        self
    }

    /// The model with the rows of a matrix as its columns.
    pub(crate) fn transposed(mut self, name: &str) -> Self {
        let weights = self.weights(name);
        let &[rows, columns] = &weights.shape[..] else { panic!("{name} is not a matrix") };
        let width = usize::try_from(columns).expect("tiny");
        let column = |column| weights.values.iter().skip(column).step_by(width);
        weights.values = (0..width).flat_map(column).copied().collect();
        weights.shape = vec![columns, rows];
        self
    }

    /// The model without a tensor.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.tensors.remove(name).unwrap_or_else(|| panic!("there is no {name}"));
        self
    }

    /// The model with other names.
    pub(crate) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        self.tensors =
            self.tensors.into_iter().map(|(name, weights)| (rename(&name), weights)).collect();
        self
    }

    fn weights(&mut self, name: &str) -> &mut Weights {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// Names of the tensors, in the order of the file.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    /// The weights as a file.
    pub(crate) fn safetensors(&self) -> Vec<u8> {
        let tensor = |(name, weights): (&'_ String, &'_ Weights)| (name.clone(), weights.clone());
        let tensors: Vec<(String, Weights)> = self.tensors.iter().map(tensor).collect();
        let tensors: Vec<Tensor<'_>> = tensors
            .iter()
            .map(|(name, weights)| {
                (name.as_str(), "F32", &weights.shape[..], f32s(&weights.values))
            })
            .collect();
        safetensors(&tensors)
    }

    /// Writes the folder: weights, configuration, and a model card with a licence, so that an
    /// import has no remark.
    pub(crate) fn write(&self, sandbox: &Sandbox, folder: &str) {
        sandbox.write(&format!("{folder}/model.safetensors"), self.safetensors());
        sandbox
            .write(&format!("{folder}/config.json"), Value::from(self.config.clone()).to_string());
        sandbox.write(
            &format!("{folder}/README.md"),
            "---\nlicense: apache-2.0\nlanguage: en\n---\n# Tiny\n",
        );
    }

    /// A sandbox with the model in the folder `m`.
    pub(crate) fn sandbox(&self) -> Sandbox {
        let sandbox = Sandbox::new();
        self.write(&sandbox, "m");
        sandbox
    }
}

/// Returns values like those of a trained tensor; the same name always gives the same values.
fn healthy(name: &str, count: u64, gamma: f32) -> Vec<f32> {
    let seed = name.bytes().fold(0, |seed, byte| scrambled(seed ^ u64::from(byte)));
    // 24 bits are what an f32 holds of a number between 0 and 1.
    let random = |at| (scrambled(seed.wrapping_add(at)) >> 40) as f32 / (1 << 24) as f32;
    let spread = |at| SPREAD * (2.0 * random(at) - 1.0);
    let norms = ["norm", "ln_", "_ln."];
    let is_norm = norms.iter().any(|part| name.to_ascii_lowercase().contains(part));
    match (is_norm, name.ends_with(".bias")) {
        (true, false) => (0..count).map(|at| gamma + spread(at)).collect(),
        (_, true) => vec![0.0; usize::try_from(count).expect("tiny")],
        (false, false) => (0..count).map(spread).collect(),
    }
}

/// Metadata of a model, as `inspect` reports them.
#[track_caller]
pub(crate) fn metadata(sandbox: &Sandbox, model: &str) -> Value {
    sandbox.apr(&format!("inspect {model} --full --json")).ok().json()["metadata"].take()
}

/// Names of a model's tensors, in the order they are stored.
#[track_caller]
pub(crate) fn names(sandbox: &Sandbox, model: &str) -> Vec<String> {
    let report = sandbox.apr(&format!("tensors {model} --json")).ok().json();
    let tensors = report["tensors"].as_array().expect("a list");
    tensors.iter().map(|tensor| tensor["name"].as_str().expect("a name").to_owned()).collect()
}

/// Asserts that the import of the model `m` is rejected for its contents and creates no file in the
/// sandbox.
#[track_caller]
pub(crate) fn refused(sandbox: &Sandbox, parts: &[&str]) -> Run {
    let before = sandbox.files();
    let run = sandbox.apr("import m -o m.apr").fails(5, parts).says(&["nothing was written"]);
    assert_eq!(sandbox.files(), before, "{run}");
    run
}
