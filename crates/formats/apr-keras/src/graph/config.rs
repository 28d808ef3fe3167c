//! Configurations: which layers a model has, and what each call of one reads.

use apr_core::json::entries;
use apr_graph::{Attribute, AttributeValue, Dim, ElementType, TensorType, ValueType};
use serde_json::{Map, Value};

/// Maximum bytes of an object setting that is kept as text.
const MOST_TEXT: usize = 4096;
/// Maximum bytes of an object setting if the setting is a layer inside a wrapper layer.
const MOST_WRAPPED: usize = 1 << 16;

/// Input of a call: an output of a call of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct TensorRef {
    pub(super) layer: String,
    /// Index of the call among the calls of the layer.
    pub(super) call: u64,
    /// Index of the output.
    pub(super) output: u64,
}

/// Returns `true` if a configuration describes a model with a list of layers.
pub(super) fn is_model(config: &Value) -> bool {
    layers(config).is_some()
}

/// Returns the layers of a model.
///
/// Returns `None` if the configuration is not a model or if a layer has no class.
pub(super) fn layers(config: &Value) -> Option<&Vec<Value>> {
    let own = config.get("config")?;
    // Before 2.2.3 a sequential model's configuration was the list itself.
    let layers = own.as_array().or_else(|| own.get("layers")?.as_array())?;
    layers.iter().all(|layer| layer.get("class_name").is_some()).then_some(layers)
}

/// Returns `true` if the layers of a model form a sequence.
pub(super) fn is_sequential(config: &Value) -> bool {
    config.get("class_name").and_then(Value::as_str) == Some("Sequential")
}

/// The class of a layer.
pub(crate) fn class(layer: &Value) -> &str {
    layer.get("class_name").and_then(Value::as_str).unwrap_or("Layer")
}

/// Returns the name of a layer or a model, or an empty string if it has none.
pub(super) fn name(layer: &Value) -> &str {
    let own = layer.get("name").or_else(|| layer.get("config")?.get("name"));
    own.and_then(Value::as_str).unwrap_or_default()
}

/// A call of a layer.
#[derive(Debug, Default)]
pub(super) struct Call {
    /// Inputs of the call, in order.
    pub(super) reads: Vec<Read>,
    /// Arguments other than tensors, as attributes: `call_use_causal_mask`, `call_1`.
    pub(super) settings: Vec<Attribute>,
}

/// A tensor that a call reads.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) tensor: TensorRef,
    /// Type of the input, if the file declares it.
    pub(super) kind: Option<ValueType>,
    /// The name of the argument; empty for one by position.
    pub(super) argument: String,
}

/// The calls of a layer.
pub(super) fn calls(layer: &Value) -> Vec<Call> {
    let nodes = layer.get("inbound_nodes").and_then(Value::as_array).into_iter().flatten();
    nodes.map(call).collect()
}

fn call(node: &Value) -> Call {
    let mut call = Call::default();
    match (node.get("args").and_then(Value::as_array), node.get("kwargs")) {
        // Keras 3.
        (Some(positional), named) => {
            for (position, value) in positional.iter().enumerate() {
                references(value, "", &mut call.reads);
                call.setting(&position.to_string(), value);
            }
            call.named(named);
        }
        (None, _) => call.listed(node),
    }
    call
}

impl Call {
    /// Reads the format of versions before 3: lists of a name, two numbers and named arguments.
    fn listed(&mut self, value: &Value) {
        let Value::Array(items) = value else {
            references(value, "", &mut self.reads);
            return;
        };
        match reference(items) {
            Some(tensor) => {
                self.reads.push(Read { tensor, kind: None, argument: String::new() });
                self.named(items.get(3));
            }
            None => items.iter().for_each(|item| self.listed(item)),
        }
    }

    fn named(&mut self, arguments: Option<&Value>) {
        for (name, value) in arguments.and_then(Value::as_object).into_iter().flatten() {
            references(value, name, &mut self.reads);
            self.setting(name, value);
        }
    }

    fn setting(&mut self, name: &str, value: &Value) {
        // A layer is not in training unless the call says so.
        let is_default = name == "training" && *value == Value::Bool(false);
        if (value.is_boolean() || value.is_number() || value.is_string())
            && !is_default
            && let Some(value) = attribute(value)
        {
            self.settings.push(Attribute { name: format!("call_{name}").into(), value });
        }
    }
}

/// Returns `true` if a call reads a mask that Keras computed with a function.
pub(super) fn is_mask(read: &Read, layers: &[Value]) -> bool {
    let is_own = |layer: &&Value| name(layer) == read.tensor.layer;
    let is_function = |layer: &Value| function(layer).is_some();
    read.argument == "mask" && layers.iter().find(is_own).is_some_and(is_function)
}

/// Collects all references in a value, in order.
///
/// They are lists of a name and two numbers, and the objects of Keras 3.
pub(super) fn references(value: &Value, argument: &str, found: &mut Vec<Read>) {
    let read = |tensor, kind| Read { tensor, kind, argument: argument.to_owned() };
    match value {
        Value::Array(items) => match reference(items) {
            Some(tensor) => found.push(read(tensor, None)),
            None => items.iter().for_each(|item| references(item, argument, found)),
        },
        Value::Object(object) => {
            let config = object.get("config").and_then(Value::as_object);
            let history = config.and_then(|config| config.get("keras_history")?.as_array());
            match history.and_then(|history| reference(history)) {
                Some(tensor) => {
                    let kind = config.and_then(|config| tensor_type(config, "shape"));
                    found.push(read(tensor, kind));
                }
                None => entries(object).for_each(|(_, item)| references(item, argument, found)),
            }
        }
        _ => {}
    }
}

fn reference(items: &[Value]) -> Option<TensorRef> {
    let [layer, call, output, ..] = items else { return None };
    Some(TensorRef {
        layer: layer.as_str()?.to_owned(),
        call: call.as_u64()?,
        output: output.as_u64()?,
    })
}

/// Returns the type of an input layer, or of the input of a sequential model's first layer.
pub(super) fn input_type(layer: &Value) -> ValueType {
    let config = layer.get("config").and_then(Value::as_object);
    let keys = ["batch_input_shape", "batch_shape"];
    let found = keys.iter().find_map(|key| tensor_type(config?, key));
    let unknown = TensorType { element: Some(ElementType::F32), shape: None };
    found.unwrap_or(ValueType::Tensor(unknown))
}

/// The type with the shape that an entry has: null for a size that is not known.
fn tensor_type(config: &Map<String, Value>, key: &str) -> Option<ValueType> {
    let sizes = config.get(key)?.as_array()?;
    if sizes.len() > apr_graph::MAX_RANK {
        return None;
    }
    let dim = |(position, size): (usize, &Value)| match (size.as_u64(), position) {
        (Some(size), _) => Dim::fixed(size),
        (None, 0) => Dim::symbol("batch"),
        (None, _) => Dim::Unknown,
    };
    let element = match dtype(config.get("dtype")).unwrap_or("float32") {
        "float32" => ElementType::F32,
        "float16" => ElementType::F16,
        "bfloat16" => ElementType::BF16,
        "float64" => ElementType::F64,
        "int32" => ElementType::I32,
        "int64" => ElementType::I64,
        "uint8" => ElementType::U8,
        "int8" => ElementType::I8,
        "bool" => ElementType::Bool,
        "string" => ElementType::Text,
        _ => return None,
    };
    Some(ValueType::tensor(element, sizes.iter().enumerate().map(dim)))
}

/// The name of a dtype, which Keras 3 has in a policy.
fn dtype(value: Option<&Value>) -> Option<&str> {
    let value = value?;
    value.as_str().or_else(|| value.get("config")?.get("name")?.as_str())
}

/// Returns the configuration of a layer as attributes.
///
/// Null is omitted, and so are nested models and layers, which are nodes.
pub(crate) fn attributes(layer: &Value) -> Vec<Attribute> {
    let config = layer.get("config").and_then(Value::as_object).into_iter().flatten();
    let named = |(key, value): (&String, &Value)| {
        let value = match key.as_str() {
            "name" | "layers" | "input_layers" | "output_layers" => return None,
            "dtype" => AttributeValue::from(dtype(Some(value))?),
            // What a layer wraps is looked at again when the graph is lowered.
            "layer" | "backward_layer" => {
                let text = apr_core::json::to_string(value).ok()?;
                (text.len() <= MOST_WRAPPED).then(|| AttributeValue::from(text.as_str()))?
            }
            _ => attribute(value)?,
        };
        Some(Attribute { name: key.as_str().into(), value })
    };
    config.filter_map(named).chain(class_of_others(layer)).collect()
}

/// Returns the attribute that distinguishes a class from the Keras layer of the same name.
///
/// It is the module of a function in `keras.ops`, or the name under which a program registered the
/// class.
fn class_of_others(layer: &Value) -> Option<Attribute> {
    let own = layer.get("registered_name").and_then(Value::as_str);
    let own = own.filter(|name| name.contains('>'));
    let (name, value) = match (own, function(layer)) {
        (Some(own), _) => ("registered_name", own),
        (None, Some(module)) => ("module", module),
        (None, None) => return None,
    };
    Some(Attribute { name: name.into(), value: AttributeValue::from(value) })
}

/// Returns the module of a function in the list of layers.
fn function(layer: &Value) -> Option<&str> {
    layer.get("module").and_then(Value::as_str).filter(|module| module.contains(".ops"))
}

#[expect(clippy::cast_possible_truncation, reason = "attributes are single precision")]
fn attribute(value: &Value) -> Option<AttributeValue> {
    match value {
        Value::Null => None,
        Value::Bool(value) => Some(AttributeValue::Int((*value).into())),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Some(AttributeValue::Int(number)),
            None => Some(AttributeValue::Float(number.as_f64()? as f32)),
        },
        Value::String(text) => Some(AttributeValue::from(text.as_str())),
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_i64) => {
            Some(AttributeValue::Ints(items.iter().filter_map(Value::as_i64).collect()))
        }
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_number) => {
            let floats = items.iter().filter_map(Value::as_f64).map(|float| float as f32);
            Some(AttributeValue::Floats(floats.collect()))
        }
        Value::Array(items) if items.is_empty() => None,
        // An initializer or a regularizer: its class says most.
        value => {
            let text = apr_core::json::to_string(value).ok()?;
            match value.get("class_name").and_then(Value::as_str) {
                Some(class) if value.get("config").is_none_or(is_plain) => {
                    Some(AttributeValue::from(class))
                }
                _ if text.len() <= MOST_TEXT => Some(AttributeValue::from(text.as_str())),
                _ => None,
            }
        }
    }
}

/// Returns `true` if an object contains neither objects nor lists.
fn is_plain(config: &Value) -> bool {
    let entries = config.as_object().into_iter().flatten();
    entries.clone().all(|(_, value)| !value.is_object() && !value.is_array())
}
