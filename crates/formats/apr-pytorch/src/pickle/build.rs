//! What calls, states and persistent ids come to: values, made without running anything.

use std::collections::HashMap;

use apr_core::{DType, Result, Strided};

use super::element::Element;
use super::globals::Meaning;
use super::value::{Id, NONE, Node, OPAQUE, Storage, Tensor};
use super::vm::{Numbered, Persistent, Vm};

/// Maximum number of dimensions, as in NumPy and PyTorch.
pub(crate) const MAX_DIMS: usize = 64;

/// Longest key of a storage, in bytes.
const MAX_KEY: usize = 256;

/// Attributes through which a state would take over the object it is given to.
const HIJACKING: &[&str] = &[
    "__class__",
    "__del__",
    "__dict__",
    "__getattr__",
    "__getattribute__",
    "__getstate__",
    "__init__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__setattr__",
    "__setstate__",
];

impl Vm<'_> {
    /// Returns the value that a call of `function` with `args` would give.
    pub(super) fn construct(&mut self, function: Id, args: &[Id]) -> Result<Id> {
        if let Some(&first) = args.first() {
            self.heap.charge(self.heap.size(first))?;
        }

        let Some(global) = self.heap.global(function) else {
            return Err(self.bad("calls a value that is not a name"));
        };
        let first = args.first().copied();
        match global.meaning {
            Meaning::Tensor => self.tensor(args, None),
            Meaning::TensorWithDType => {
                // In `_rebuild_tensor_v3` the dtype follows `requires_grad` and the hooks.
                self.tensor(args, Some(args.get(6).copied().unwrap_or(OPAQUE)))
            }
            Meaning::Quantized => self.quantized(args),
            Meaning::Sparse => self.sparse(args),
            Meaning::First => first.ok_or_else(|| self.bad("calls a function without arguments")),
            Meaning::FromType => self.subclass(args),
            Meaning::Unsupported(what) => self.heap.add(Node::Unsupported(what.into())),
            Meaning::Dict => self.dict(first),
            Meaning::DefaultDict => self.dict(args.get(1).copied()),
            Meaning::List | Meaning::Tuple | Meaning::Set => {
                let items = match first {
                    Some(items) => self.heap.items(items).map(<[Id]>::to_vec),
                    None => Some(Vec::new()),
                };
                let items =
                    items.ok_or_else(|| self.bad("makes a container of an invalid value"))?;
                self.heap.add(match global_meaning(self, function) {
                    Meaning::List => Node::List(items),
                    Meaning::Tuple => Node::Tuple(items.into()),
                    _ => Node::Set(items),
                })
            }
            Meaning::Encode => self.latin1(args),
            Meaning::NumpyDType => self.numpy_dtype(args),
            Meaning::NumpyScalar => self.numpy_scalar(args),
            Meaning::NumpyArray => self.numpy_array(args),
            Meaning::NumpyClass => {
                Err(self.bad("calls numpy.ndarray, whose arrays are made otherwise"))
            }
            Meaning::NumpyBuffer => self.numpy_buffer(args),
            Meaning::Reconstructor => match first.map(|class| global_meaning(self, class)) {
                Some(Meaning::Class) => self.heap.add(Node::Object(None)),
                Some(Meaning::JoblibArray) => self.heap.add(Node::FileArray),
                _ => Err(self.bad("makes an instance of something that is not a known class")),
            },
            Meaning::Class => self.heap.add(Node::Object(None)),
            Meaning::JoblibArray => self.heap.add(Node::FileArray),
            Meaning::Inert => Ok(OPAQUE),
            Meaning::Storage(_) | Meaning::DType(_) => Err(self.bad("calls a type")),
            Meaning::Wrapper
            | Meaning::AffineTensor
            | Meaning::AffineParts
            | Meaning::CodesTensor => Err(self.bad("makes a tensor of torchao without its parts")),
            Meaning::Forbidden => Ok(OPAQUE),
        }
    }

    fn dict(&mut self, from: Option<Id>) -> Result<Id> {
        self.heap.charge(from.map_or(0, |from| self.heap.size(from)))?;
        let pairs = match from.map(|from| self.heap.get(from)) {
            None | Some(Node::None) => Vec::new(),
            Some(Node::Dict(pairs)) => pairs.clone(),
            Some(Node::List(items)) => {
                let pair = |item: &Id| match self.heap.items(*item) {
                    Some([key, value]) => Some((*key, *value)),
                    _ => None,
                };
                let pairs: Option<Vec<_>> = items.iter().map(pair).collect();
                pairs.ok_or_else(|| self.bad("makes a dictionary of values that are not pairs"))?
            }
            Some(_) => return Err(self.bad("makes a dictionary of an invalid value")),
        };

        self.heap.add(Node::Dict(pairs))
    }

    /// `_rebuild_from_type_v2(function, class, args, state)`: a subclass of a tensor or parameter.
    fn subclass(&mut self, args: &[Id]) -> Result<Id> {
        let [function, class, inner, rest @ ..] = args else {
            return Err(self.bad("rebuilds a tensor from too little"));
        };
        self.heap.charge(self.heap.size(*inner))?;
        let inner = self.heap.items(*inner).map(<[Id]>::to_vec);
        match (global_meaning(self, *function), inner) {
            (Meaning::Wrapper, Some(inner)) => {
                let state = rest.first().copied().unwrap_or(NONE);
                self.wrapper(*class, &inner, state)
            }
            (Meaning::Tensor | Meaning::TensorWithDType | Meaning::First, Some(inner)) => {
                self.construct(*function, &inner)
            }
            _ => Err(self.bad("rebuilds a tensor with a function that does not return tensors")),
        }
    }

    fn tensor(&mut self, args: &[Id], dtype: Option<Id>) -> Result<Id> {
        let [storage, offset, size, strides, rest @ ..] = args else {
            return Err(self.bad("rebuilds a tensor from too little"));
        };

        // The TAR files of some tools spell the persistent id out.
        let storage = match self.heap.get(*storage) {
            Node::Tuple(_) if matches!(self.policy.persistent, Persistent::Numbered(_)) => {
                self.resolve(*storage)?
            }
            _ => *storage,
        };

        let Node::Storage(storage) = *self.heap.get(storage) else {
            return Err(self.bad("rebuilds a tensor from a value that is not a storage"));
        };
        let element = self.heap.storages[storage as usize].element;
        let dtype = dtype.map_or(Ok(element.dtype), |dtype| self.dtype(dtype))?;
        let Some(dtype) = dtype else {
            let what = format!("a tensor whose dtype no format here holds ({})", element.name);
            return self.heap.add(Node::Unsupported(what.into()));
        };
        for &arg in rest {
            self.heap.charge(self.heap.size(arg))?;
        }

        if self.is_lazy_view(rest) {
            return self.heap.add(Node::Unsupported("a conjugated or negated view".into()));
        }

        let offset = self
            .heap
            .unsigned(*offset)
            .ok_or_else(|| self.bad("has an offset that is not a number"))?;
        let elements = Strided::new(offset, self.numbers(*size)?, self.numbers(*strides)?)
            .map_err(|_| self.bad("has a shape and strides of different lengths"))?;

        self.add_tensor(Tensor { storage, dtype, elements })
    }

    /// Returns the dtype of a name, or `None` if this build has no such dtype.
    fn dtype(&self, id: Id) -> Result<Option<DType>> {
        match self.heap.global(id).map(|global| global.meaning) {
            Some(Meaning::DType(dtype)) => Ok(dtype),
            _ => Err(self.bad("rebuilds a tensor without a dtype")),
        }
    }

    /// Returns `true` if the last argument marks the values as lazily conjugated or negated.
    fn is_lazy_view(&self, rest: &[Id]) -> bool {
        rest.iter().any(|&arg| {
            ["conj", "neg"].iter().any(|key| {
                self.heap
                    .entry(arg, key)
                    .is_some_and(|flag| matches!(self.heap.get(flag), Node::Bool(true)))
            })
        })
    }

    pub(super) fn numbers(&self, id: Id) -> Result<Vec<u64>> {
        let items = self.heap.items(id).filter(|items| items.len() <= MAX_DIMS);
        let numbers =
            items.and_then(|items| items.iter().map(|&item| self.heap.unsigned(item)).collect());
        numbers.ok_or_else(|| {
            self.bad(&format!("has a shape or strides that are not up to {MAX_DIMS} sizes"))
        })
    }

    pub(super) fn add_tensor(&mut self, tensor: Tensor) -> Result<Id> {
        self.heap.charge(2 * tensor.elements.dims().len())?;
        let position = u32::try_from(self.heap.tensors.len()).unwrap_or(u32::MAX);
        self.heap.tensors.push(tensor);
        self.heap.add(Node::Tensor(position))
    }

    pub(super) fn add_storage(&mut self, storage: Storage) -> u32 {
        let position = u32::try_from(self.heap.storages.len()).unwrap_or(u32::MAX);
        self.heap.storages.push(storage);
        position
    }

    /// `BUILD`: gives an object its state, never through a method of its own.
    pub(super) fn set_state(&mut self, target: Id, state: Id) -> Result<()> {
        self.check_state(state)?;
        if self.set_numpy_state(target, state)? {
            return Ok(());
        }
        if matches!(self.heap.get(target), Node::FileArray) {
            return self.skip_array(state);
        }

        match self.heap.get_mut(target) {
            Node::Object(slot @ None) => *slot = Some(state),
            Node::Object(_) => return Err(self.bad("gives an object its state twice")),
            // `_metadata` of a state dict, hooks of a parameter: not weights.
            Node::Dict(_)
            | Node::Tensor(_)
            | Node::Derived(_)
            | Node::Parts(_)
            | Node::Unsupported(_)
            | Node::List(_)
            | Node::Set(_)
            | Node::Opaque => {}
            _ => return Err(self.bad("sets the state of a value that has none")),
        }

        Ok(())
    }

    /// Refuses a state that would take over the object it is given to.
    pub(super) fn check_state(&mut self, state: Id) -> Result<()> {
        for part in self.state_parts(state) {
            self.heap.charge(self.heap.size(part))?;
            let Node::Dict(pairs) = self.heap.get(part) else { continue };
            let hijack = pairs
                .iter()
                .find_map(|(key, _)| self.heap.text(*key).filter(|key| HIJACKING.contains(key)));
            if let Some(key) = hijack {
                return Err(self.bad(&format!("sets {key}")));
            }
        }
        Ok(())
    }

    /// A state, or the two halves of one: attributes and slots.
    fn state_parts(&self, state: Id) -> Vec<Id> {
        match self.heap.get(state) {
            Node::Tuple(parts) => parts.iter().take(2).copied().collect(),
            _ => vec![state],
        }
    }

    /// Resolves a persistent id.
    pub(super) fn resolve(&mut self, id: Id) -> Result<Id> {
        let policy = self.policy;
        match &policy.persistent {
            Persistent::None => Err(self.bad("refers to something outside the pickle")),
            Persistent::Numbered(numbered) => self.resolve_numbered(id, numbered),
            Persistent::Storage => self.resolve_by_kind(id),
        }
    }

    /// Resolves an id in a file whose storages and tensors precede the pickle, each with a number.
    fn resolve_numbered(&mut self, id: Id, numbered: &HashMap<String, Numbered>) -> Result<Id> {
        let key = match self.heap.get(id) {
            Node::Str(_) | Node::Int(_) => self.key(id).map(|key| key.trim().to_owned()),
            Node::Tuple(items) if self.is_storage_id(items) => {
                items.get(2).and_then(|&key| self.key(key))
            }
            Node::Tuple(items) => {
                return items.first().copied().ok_or_else(|| self.bad("has an empty id"));
            }
            _ => None,
        };

        match key.and_then(|key| numbered.get(&key)) {
            Some(Numbered::Storage(storage)) => {
                let position = self.add_storage(storage.clone());
                self.heap.add(Node::Storage(position))
            }
            Some(Numbered::Tensor(storage, tensor)) => {
                let storage = self.add_storage(storage.clone());
                self.add_tensor(Tensor { storage, ..tensor.clone() })
            }
            None => Err(self.bad("refers to a tensor that is not in the file")),
        }
    }

    /// Resolves an id that states its own kind: a storage or a module.
    fn resolve_by_kind(&mut self, id: Id) -> Result<Id> {
        let items = self.heap.items(id).map(<[Id]>::to_vec).unwrap_or_default();
        let kind = items.first().and_then(|&kind| self.heap.text(kind));
        match (kind, &items[..]) {
            (Some("storage"), _) => {
                let storage = self.storage(&items);
                let storage =
                    storage.ok_or_else(|| self.bad("has a storage's id of the wrong shape"))?;
                let position = self.add_storage(storage);
                self.heap.add(Node::Storage(position))
            }
            // The source text that follows is for a human to compare.
            (Some("module"), [_, class, ..]) if global_meaning(self, *class) == Meaning::Class => {
                Ok(*class)
            }
            _ => Err(self.bad("has an id that is neither a storage's nor a module's")),
        }
    }

    fn is_storage_id(&self, items: &[Id]) -> bool {
        items.first().and_then(|&kind| self.heap.text(kind)) == Some("storage")
    }

    fn key(&self, id: Id) -> Option<String> {
        match self.heap.get(id) {
            Node::Str(text) if text.len() <= MAX_KEY => Some(text.to_string()),
            Node::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// `('storage', class, key, device, length)`; pre-ZIP files add a view: `(key, first, length)`
    /// or nothing.
    fn storage(&self, items: &[Id]) -> Option<Storage> {
        let [_, class, key, device, len, rest @ ..] = items else { return None };
        let Meaning::Storage(element) = self.heap.global(*class)?.meaning else { return None };

        // Whatever the device was, the bytes in the file are the same.
        self.heap.text(*device)?;
        let view = match rest {
            [] => None,
            [view] => match self.heap.get(*view) {
                Node::None => None,
                Node::Tuple(view) => {
                    let [_, first, len] = view[..] else { return None };
                    Some((self.heap.unsigned(first)?, self.heap.unsigned(len)?))
                }
                _ => return None,
            },
            _ => return None,
        };

        Some(Storage { key: self.key(*key)?, element, len: self.heap.unsigned(*len)?, view })
    }
}

/// Returns the meaning of a value that is a name, or [`Meaning::Forbidden`] for any other value.
pub(super) fn global_meaning(vm: &Vm<'_>, id: Id) -> Meaning {
    vm.heap.global(id).map_or(Meaning::Forbidden, |global| global.meaning)
}

/// Returns the element type of a storage class, for files that list their storages.
pub(crate) fn storage_class(heap: &super::Heap, class: Id) -> Option<Element> {
    match heap.global(class)?.meaning {
        Meaning::Storage(element) => Some(element),
        _ => None,
    }
}
