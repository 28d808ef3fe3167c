//! Names of variables as Keras gives them: `LAYER/VARIABLE`.
//!
//! Files before Keras 3 have these names for paths, with the layer's twice. Keras 3 numbers the
//! variables of each layer, and writes the layer's name beside them; what the variables are called
//! follows from the layer's class, which the configuration has.

use apr_core::json::entries;
use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

/// Groups that show the place of an object in the program, but not its name.
const STRUCTURE: [&str; 3] = ["_layer_checkpoint_dependencies", "layers", "vars"];

/// Layers with a matrix and, by default, a bias.
const WITH_KERNEL: [&str; 9] = [
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Dense",
    "DepthwiseConv2D",
    "EinsumDense",
];

/// Names for the datasets of a file of Keras 3.
pub(crate) struct Numbered<'a> {
    /// Name of the object of each group `vars`.
    named: &'a HashMap<String, String>,
    /// Class and configuration of each layer, by its name.
    layers: HashMap<String, &'a Map<String, Value>>,
}

impl<'a> Numbered<'a> {
    pub(crate) fn new(named: &'a HashMap<String, String>, config: Option<&'a Value>) -> Self {
        let mut layers = HashMap::new();
        // A list of what is left needs no stack.
        let mut rest: Vec<&Value> = config.into_iter().collect();
        while let Some(value) = rest.pop() {
            match value {
                Value::Object(object) => {
                    if let Some(name) = object.get("config").and_then(|own| own.get("name"))
                        && let Some(name) = name.as_str()
                    {
                        layers.insert(name.to_owned(), object);
                    }
                    rest.extend(entries(object).map(|(_, value)| value));
                }
                Value::Array(items) => rest.extend(items),
                _ => {}
            }
        }
        Self { named, layers }
    }

    /// Returns `true` for the path of a numbered variable.
    pub(crate) fn is_numbered(path: &str) -> bool {
        let mut parts = path.rsplit('/');
        let number = parts.next().unwrap_or_default();
        !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && parts.next() == Some("vars")
    }

    /// The names of all numbered variables, by their paths.
    pub(crate) fn names<'p>(
        &self,
        paths: impl Iterator<Item = &'p str>,
    ) -> HashMap<&'p str, String> {
        let mut groups: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
        for path in paths.filter(|path| Self::is_numbered(path)) {
            if let Some((group, number)) = path.rsplit_once('/') {
                groups.entry(group).or_default().push((path, number));
            }
        }
        let mut names = HashMap::new();
        for (group, members) in groups {
            let object = self.object(group);
            let variables = self.variables(group, members.len());
            for (path, number) in members {
                let variable = number.parse().ok().and_then(|at: usize| variables.get(at));
                let variable = variable.copied().unwrap_or(number);
                let is_top = object.is_empty();
                let name =
                    if is_top { variable.to_owned() } else { format!("{object}/{variable}") };
                names.insert(path, name);
            }
        }
        names
    }

    /// Returns the name of the object of a group `vars`, with the names of all enclosing objects.
    fn object(&self, group: &str) -> String {
        let mut name = String::new();
        let mut end = 0;
        for part in group.split('/') {
            end += part.len();
            if !STRUCTURE.contains(&part) {
                let own = self.named.get(&format!("{}/vars", &group[..end]));
                name.push_str(if name.is_empty() { "" } else { "/" });
                name.push_str(own.map_or(part, String::as_str));
            }
            end += 1;
        }
        name
    }

    /// Returns the names of a group's variables. Empty if the names are not known for this number.
    fn variables(&self, group: &str, count: usize) -> Vec<&'static str> {
        let layer = self.named.get(group).and_then(|name| self.layers.get(name));
        // Parts of a layer have no configuration of their own.
        let part = group.strip_suffix("/vars").and_then(|outer| outer.rsplit('/').next());
        let names = match (layer, part) {
            (Some(layer), _) => of_class(layer),
            (None, Some("cell")) => vec!["kernel", "recurrent_kernel", "bias"],
            (None, Some(part)) if part.ends_with("_dense") => vec!["kernel", "bias"],
            (None, Some("seed_generator")) => vec!["seed_generator_state"],
            _ => Vec::new(),
        };
        let lacks_bias = layer.is_none() && names.last() == Some(&"bias");
        match names.len() {
            len if len == count => names,
            len if lacks_bias && len == count + 1 => names[..count].to_vec(),
            _ => Vec::new(),
        }
    }
}

/// The variables of a layer of a known class, in their order.
fn of_class(layer: &Map<String, Value>) -> Vec<&'static str> {
    let class = layer.get("class_name").and_then(Value::as_str).unwrap_or_default();
    let config = layer.get("config");
    let has = |key: &str| config.and_then(|own| own.get(key)) != Some(&Value::Bool(false));
    let mut names = Vec::new();
    let mut add = |wanted: bool, name: &'static str| names.extend(wanted.then_some(name));
    match class {
        _ if WITH_KERNEL.contains(&class) => {
            add(true, "kernel");
            // One without a bias says so by `bias_axes`.
            let of_axes = class != "EinsumDense"
                || config.and_then(|own| own.get("bias_axes")).is_some_and(Value::is_string);
            add(of_axes && has("use_bias"), "bias");
        }
        "SeparableConv1D" | "SeparableConv2D" => {
            add(true, "depthwise_kernel");
            add(true, "pointwise_kernel");
            add(has("use_bias"), "bias");
        }
        "Embedding" => add(true, "embeddings"),
        "BatchNormalization" => {
            add(has("scale"), "gamma");
            add(has("center"), "beta");
            add(true, "moving_mean");
            add(true, "moving_variance");
        }
        "LayerNormalization" | "GroupNormalization" => {
            add(has("scale"), "gamma");
            add(has("center"), "beta");
        }
        "RMSNormalization" => add(true, "scale"),
        "PReLU" => add(true, "alpha"),
        _ => {}
    }
    names
}

/// The name of a dataset of a file before Keras 3, whose path has the layer's name twice.
pub(crate) fn of_layer(path: &str) -> &str {
    let path = path.strip_prefix("model_weights/").unwrap_or(path);
    let name = match path.split_once('/') {
        Some((layer, rest))
            if rest.strip_prefix(layer).is_some_and(|rest| rest.starts_with('/')) =>
        {
            rest
        }
        _ => path,
    };
    // TensorFlow numbers the outputs of an operation, of which a variable has one.
    name.strip_suffix(":0").unwrap_or(name)
}

/// Returns `true` if a dataset belongs to the optimizer, not to the model.
pub(crate) fn is_of_optimizer(path: &str) -> bool {
    ["optimizer_weights/", "optimizer/vars/"].iter().any(|start| path.starts_with(start))
}
