//! From a pickle's values to tensors named by their paths, and the plain values beside them.

use apr_core::{Error, Limits, Result};
use serde_json::{Map, Value};

use crate::pickle::{Heap, Id, Node};

/// Containers inside each other.
const MAX_DEPTH: usize = 128;

/// Maximum visits per value of the pickle; [`FREE_VISITS`] more are allowed.
///
/// In a pickle of a kilobyte, each container can hold the previous one twice.
const VISITS_EACH: usize = 16;
const FREE_VISITS: usize = 1 << 16;

/// Longest tensor name in bytes, as in the other formats.
pub(crate) const MAX_NAME: usize = 65_535;

/// Maximum bytes of names per value; [`FREE_NAME_BYTES`] more are allowed.
///
/// The names of all tensors in a container include the name of the container.
const NAME_BYTES_EACH: u64 = 256;
const FREE_NAME_BYTES: u64 = 1 << 20;

/// Maximum number of plain values to keep; [`MAX_TEXT`] is the maximum length of each text.
const MAX_VALUES: usize = 1024;
const MAX_TEXT: usize = 4096;

/// Name of a tensor that is the whole checkpoint.
const ONLY: &str = "tensor";

/// A tensor of the pickle.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PickledTensor {
    /// Position in [`Heap::tensors`].
    Stored(u32),
    /// Position in [`Heap::derived`].
    Derived(u32),
}

/// A flat checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Flat {
    /// Paths and tensors in order of appearance.
    pub(crate) tensors: Vec<(String, PickledTensor)>,
    pub(crate) values: Map<String, Value>,
    /// Plain values that were too many or too long.
    pub(crate) dropped: usize,
    /// Tensors outside the prefix that could not have been read.
    pub(crate) outside: usize,
    /// NumPy arrays, and the path of the first one.
    pub(crate) arrays: usize,
    pub(crate) array: Option<String>,
}

/// Tensors of kinds that are not read are an error, unless their names are outside `prefix`.
pub(crate) fn flatten(heap: &Heap, root: Id, prefix: &str, limits: &Limits) -> Result<Flat> {
    let places = heap.places();
    let names = (places as u64).saturating_mul(NAME_BYTES_EACH).saturating_add(FREE_NAME_BYTES);
    let mut walk = Walk {
        heap,
        prefix,
        path: String::new(),
        depth: 0,
        left: places.saturating_mul(VISITS_EACH).saturating_add(FREE_VISITS),
        names: 0,
        max_names: names.min(limits.max_index),
        flat: Flat::default(),
    };
    walk.visit(root)?;
    Ok(walk.flat)
}

struct Walk<'a> {
    heap: &'a Heap,
    prefix: &'a str,
    path: String,
    depth: usize,
    /// Visits that may still be made.
    left: usize,
    /// Bytes of the names so far.
    names: u64,
    max_names: u64,
    flat: Flat,
}

impl Walk<'_> {
    fn visit(&mut self, id: Id) -> Result<()> {
        self.spend(1)?;
        match self.heap.get(id) {
            Node::Tensor(tensor) => self.tensor(PickledTensor::Stored(*tensor)),
            Node::Derived(tensor) => self.tensor(PickledTensor::Derived(*tensor)),
            Node::Parts(parts) => self.parts(parts),
            Node::Unsupported(_) if !self.name().starts_with(self.prefix) => {
                self.flat.outside += 1;
                Ok(())
            }
            Node::Unsupported(what) => {
                let error = Error::version(format!("this is {what}, which is not read"));
                Err(error.for_tensor(self.name()))
            }
            Node::Dict(pairs) => self.dict(pairs),
            Node::List(items) | Node::Set(items) => self.items(items),
            Node::Tuple(items) => self.items(items),
            Node::Object(Some(state)) => self.object(*state),
            Node::Bool(value) => self.value((*value).into()),
            Node::Int(value) => match i64::try_from(*value) {
                Ok(value) => self.value(value.into()),
                // What JSON has no number for becomes a text.
                Err(_) => self.value(value.to_string().into()),
            },
            Node::Float(value) => match serde_json::Number::from_f64(*value) {
                Some(value) => self.value(Value::Number(value)),
                None => self.value(value.to_string().into()),
            },
            Node::Str(text) if text.len() <= MAX_TEXT => self.value(text.to_string().into()),
            Node::Str(_) | Node::Bytes(_) | Node::BigInt => {
                self.flat.dropped += 1;
                Ok(())
            }
            Node::NumpyArray => {
                self.flat.arrays += 1;
                self.flat.array.get_or_insert_with(|| self.path.clone());
                Ok(())
            }
            Node::NumpyDType(_)
            | Node::None
            | Node::Global(_)
            | Node::Object(None)
            | Node::FileArray
            | Node::Storage(_)
            | Node::Opaque => Ok(()),
        }
    }

    /// Pays for looking at `values` of them.
    fn spend(&mut self, values: usize) -> Result<()> {
        let left = self.left.checked_sub(values);
        self.left = left.ok_or_else(|| {
            Error::memory("the checkpoint repeats its containers more often than makes sense")
        })?;
        Ok(())
    }

    fn name(&self) -> &str {
        if self.path.is_empty() { ONLY } else { &self.path }
    }

    fn tensor(&mut self, tensor: PickledTensor) -> Result<()> {
        let name = self.name().to_owned();
        self.names = self.names.saturating_add(name.len() as u64 + 64);
        if self.names > self.max_names {
            return Err(Error::memory("the names of the tensors exceed the limit of an index"));
        }
        self.flat.tensors.push((name, tensor));
        Ok(())
    }

    /// A tensor in several parts: `up.weight` becomes `up._weight_qdata` and so on, the names that
    /// torchao gives them in safetensors files.
    fn parts(&mut self, parts: &[(&'static str, Id)]) -> Result<()> {
        let name = self.name().to_owned();
        let (layer, last) = name.rsplit_once('.').map_or(("", &*name), |parts| parts);
        for (end, part) in parts {
            self.path.clear();
            self.path.push_str(layer);
            self.under(&format!("_{last}_{end}"), *part)?;
        }
        self.path = name;
        Ok(())
    }

    fn value(&mut self, value: Value) -> Result<()> {
        if self.flat.values.len() < MAX_VALUES && self.path.len() <= MAX_TEXT {
            self.flat.values.insert(
                if self.path.is_empty() { "value".into() } else { self.path.clone() },
                value,
            );
        } else {
            self.flat.dropped += 1;
        }
        Ok(())
    }

    fn under(&mut self, key: &str, id: Id) -> Result<()> {
        let len = self.path.len();
        if len + usize::from(len > 0) + key.len() > MAX_NAME {
            return Err(Error::format(format!("a name is longer than {MAX_NAME} bytes"))
                .for_tensor(&self.path));
        }

        if self.depth == MAX_DEPTH {
            let message =
                format!("containers are nested more than {MAX_DEPTH} deep, or contain themselves");
            return Err(Error::format(message).for_tensor(&self.path));
        }

        if len > 0 {
            self.path.push('.');
        }

        // A key is copied at each visit, and a text of the file may be one for many of them.
        self.spend(key.len() / 64)?;
        self.path.push_str(key);
        self.depth += 1;
        let result = self.visit(id);
        self.depth -= 1;
        self.path.truncate(len);
        result
    }

    fn dict(&mut self, pairs: &[(Id, Id)]) -> Result<()> {
        for (position, &(key, value)) in pairs.iter().enumerate() {
            match self.heap.get(key) {
                Node::Str(text) => self.under(text, value)?,
                Node::Int(number) => self.under(&number.to_string(), value)?,
                // Tuples and the like have no name of their own.
                _ => self.under(&format!("<{position}>"), value)?,
            }
        }
        Ok(())
    }

    fn items(&mut self, items: &[Id]) -> Result<()> {
        items
            .iter()
            .enumerate()
            .try_for_each(|(position, &item)| self.under(&position.to_string(), item))
    }

    /// A module has its parameters, buffers and children in three dictionaries; anything else is
    /// its attributes.
    fn object(&mut self, state: Id) -> Result<()> {
        // Objects with slots have a pair as state: attributes, then slots.
        let state = match self.heap.get(state) {
            Node::Tuple(parts) => parts.first().copied().unwrap_or(state),
            _ => state,
        };
        self.spend(self.heap.size(state))?;
        let (Some(parameters), Some(modules)) =
            (self.heap.entry(state, "_parameters"), self.heap.entry(state, "_modules"))
        else {
            return match self.heap.get(state) {
                Node::Dict(pairs) => self.attributes(pairs),
                _ => Ok(()),
            };
        };

        self.members(parameters, &[])?;
        if let Some(buffers) = self.heap.entry(state, "_buffers") {
            let fleeting = self.heap.entry(state, "_non_persistent_buffers_set");
            let fleeting = fleeting.and_then(|set| self.heap.items(set)).unwrap_or_default();
            self.members(buffers, fleeting)?;
        }

        self.members(modules, &[])
    }

    /// Visits the members that `state_dict()` would list: all except the non-persistent buffers.
    fn members(&mut self, dict: Id, fleeting: &[Id]) -> Result<()> {
        let Node::Dict(pairs) = self.heap.get(dict) else {
            return Err(Error::format(
                "a module keeps its members in something that is not a dictionary",
            )
            .for_tensor(&self.path));
        };

        // Each name is compared with all of the set.
        self.spend(fleeting.len().saturating_mul(pairs.len()))?;
        for &(key, value) in pairs {
            let Some(name) = self.heap.text(key) else { continue };
            if !fleeting.iter().any(|&other| self.heap.text(other) == Some(name)) {
                self.under(name, value)?;
            }
        }

        Ok(())
    }

    /// Visits the attributes of a TorchScript object, except the flag `training`.
    ///
    /// Of the plain values, only texts and numbers are informative.
    fn attributes(&mut self, pairs: &[(Id, Id)]) -> Result<()> {
        for &(key, value) in pairs {
            match (self.heap.text(key), self.heap.get(value)) {
                (Some("training"), Node::Bool(_)) | (None, _) => {}
                (Some(name), _) => self.under(name, value)?,
            }
        }
        Ok(())
    }
}
