//! What a pickle builds: values in an arena, so that shared and circular ones need no reference
//! counts.

use apr_core::{DType, Error, Result, Strided};

use super::element::{ArrayDType, Element};
use super::globals::Meaning;
use crate::latin1::ArrayText;
use crate::view::Range;

/// Position of a value in its [`Heap`].
pub(crate) type Id = u32;

/// Value of a pickle.
#[derive(Debug)]
pub(crate) enum Node {
    None,
    Bool(bool),
    Int(i128),
    /// An integer over 128 bits.
    BigInt,
    Float(f64),
    Str(Box<str>),
    /// Bytes that are not text. The first few are kept; no tensor depends on any.
    Bytes(Bytes),
    Tuple(Box<[Id]>),
    List(Vec<Id>),
    Set(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Box<Global>),
    /// An instance that was never made, and the state it would have been given.
    Object(Option<Id>),
    /// Position in [`Heap::storages`].
    Storage(u32),
    /// Position in [`Heap::tensors`].
    Tensor(u32),
    /// Position in [`Heap::derived`].
    Derived(u32),
    /// A tensor that is stored in several, each with the end of its name: `qdata`.
    Parts(Box<[(&'static str, Id)]>),
    /// A tensor that is not readable, and why.
    Unsupported(Box<str>),
    /// Type of NumPy elements: `numpy.dtype`.
    NumpyDType(ArrayDType),
    /// `numpy.ndarray`, whose bytes are in the pickle.
    NumpyArray,
    /// joblib's place of an array, whose bytes follow in the stream once it got its state.
    FileArray,
    /// A value that is not needed.
    Opaque,
}

/// Bytes of a pickle, as far as a number needs them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bytes {
    head: [u8; 8],
    /// Length, if it is not greater than the kept bytes.
    len: Option<u8>,
    /// Location in the source, if the bytes are not kept.
    pub(crate) at: Option<Lying>,
}

/// Location of a value's bytes in the source, and their encoding there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lying {
    pub(crate) offset: u64,
    /// Bytes in the source.
    pub(crate) len: u64,
    /// `true` if the bytes are UTF-8 text in which each character is one byte of the value.
    ///
    /// Protocols before 3 have no opcode for bytes.
    pub(crate) is_text: bool,
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        let (mut head, kept) = ([0; 8], bytes.len().min(8));
        head[..kept].copy_from_slice(&bytes[..kept]);
        Self { head, len: u8::try_from(bytes.len()).ok().filter(|len| *len <= 8), at: None }
    }
}

impl Bytes {
    /// Creates bytes that remain in the source. `first` are the first of them.
    pub(crate) fn lying(first: &[u8], at: Lying) -> Self {
        let own = u8::try_from(at.len).ok().filter(|len| *len <= 8 && !at.is_text);
        Self { len: own, at: Some(at), ..Self::from(first) }
    }

    /// Sets the location of the bytes in the source.
    pub(crate) fn with_place(self, at: Option<Lying>) -> Self {
        Self { at, ..self }
    }

    /// Returns all of the bytes, if they are few.
    pub(crate) fn all(&self) -> Option<&[u8]> {
        self.head.get(..self.len?.into())
    }
}

/// A name that Python would import.
#[derive(Debug)]
pub(crate) struct Global {
    pub(crate) module: String,
    pub(crate) name: String,
    pub(crate) meaning: Meaning,
}

/// Bytes that tensors are views of, by the key they are stored under.
#[derive(Debug, Clone)]
pub(crate) struct Storage {
    pub(crate) key: String,
    pub(crate) element: Element,
    /// Elements declared.
    pub(crate) len: u64,
    /// Part of the storage that this one represents, in elements: first, length.
    pub(crate) view: Option<(u64, u64)>,
}

/// A view of a storage.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) storage: u32,
    pub(crate) dtype: DType,
    /// Elements of the tensor, counted from the first element of the storage.
    pub(crate) elements: Strided,
}

/// A tensor whose elements are computed from stored ones.
#[derive(Debug, Clone)]
pub(crate) enum Derived {
    /// `(q - zero_point) * scale`, in F32. The stored tensor's elements are I8, U8 or I32.
    Quantized { stored: Tensor, scale: Scale },
    /// Zero except for some elements.
    Sparse(Sparse),
    /// The elements of tensors of one dimension, one after the other. They are positions in
    /// [`Heap::tensors`] and have one dtype.
    Joined { parts: Vec<u32>, shape: Vec<u64> },
}

/// Scale and zero point.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scale {
    /// One scale and zero point for all elements.
    One(f32, i64),
    /// A scale and a zero point for each position along an axis, in two tensors.
    Channels { scales: u32, zero_points: u32, axis: usize },
}

/// Positions in [`Heap::tensors`] of the parts of a sparse tensor, and its shape.
#[derive(Debug, Clone)]
pub(crate) struct Sparse {
    pub(crate) indices: Indices,
    pub(crate) values: u32,
    pub(crate) shape: Vec<u64>,
}

/// Positions of a sparse tensor's values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Indices {
    /// A row for each sparse dimension, a column for each value.
    Coo(u32),
    /// For each row, the position of its first value, and one end; for each value, its column.
    Csr(u32, u32),
}

/// Everything a pickle built.
#[derive(Debug)]
pub(crate) struct Heap {
    nodes: Vec<Node>,
    pub(crate) storages: Vec<Storage>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) derived: Vec<Derived>,
    /// Storages that are NumPy arrays, and their ranges.
    ///
    /// Decoded texts follow the end of the source.
    pub(crate) arrays: Vec<(String, Range)>,
    /// The texts among them.
    pub(crate) texts: Vec<ArrayText>,
    max_nodes: usize,
    /// Items that may still be copied or searched.
    work: usize,
}

/// Values that exist once.
pub(crate) const NONE: Id = 0;
pub(crate) const TRUE: Id = 1;
pub(crate) const FALSE: Id = 2;
pub(crate) const OPAQUE: Id = 3;
pub(crate) const EMPTY_TUPLE: Id = 4;
const FIRST_INT: Id = 5;

/// Values that any pickle may build. More must be paid for with bytes, three each, as real pickles
/// do.
const FREE_NODES: usize = 1 << 19;

impl Heap {
    /// For a pickle of at most `len` bytes.
    pub(crate) fn new(len: u64) -> Self {
        let paid = usize::try_from(len / 3).unwrap_or(usize::MAX / 2).min(1 << 28);
        let mut nodes = vec![
            Node::None,
            Node::Bool(true),
            Node::Bool(false),
            Node::Opaque,
            Node::Tuple(Box::default()),
        ];
        nodes.extend((0..=255).map(Node::Int));
        let max_nodes = FREE_NODES + paid;
        Self {
            nodes,
            storages: Vec::new(),
            tensors: Vec::new(),
            derived: Vec::new(),
            arrays: Vec::new(),
            texts: Vec::new(),
            max_nodes,
            work: 4 * max_nodes,
        }
    }

    /// Charges the budget for copying or searching `items`.
    ///
    /// An opcode of three bytes can request a container of millions of items, repeatedly.
    pub(crate) fn charge(&mut self, items: usize) -> Result<()> {
        let left = self.work.checked_sub(items);
        self.work = left.ok_or_else(|| {
            Error::memory("the pickle repeats itself more than its length justifies")
        })?;
        Ok(())
    }

    /// Items of a container, characters of a text.
    pub(crate) fn size(&self, id: Id) -> usize {
        match self.get(id) {
            Node::Dict(pairs) => pairs.len(),
            Node::Str(text) => text.len(),
            _ => self.items(id).map_or(1, <[Id]>::len),
        }
    }

    /// Returns the number of values and of entries in containers: the cost of visiting each once.
    pub(crate) fn places(&self) -> usize {
        let held = self.nodes.iter().map(|node| match node {
            Node::Dict(pairs) => 2 * pairs.len(),
            Node::List(items) | Node::Set(items) => items.len(),
            Node::Tuple(items) => items.len(),
            _ => 0,
        });
        held.fold(self.nodes.len(), usize::saturating_add)
    }

    pub(crate) fn max_nodes(&self) -> usize {
        self.max_nodes
    }

    pub(crate) fn add(&mut self, node: Node) -> Result<Id> {
        match node {
            Node::None => return Ok(NONE),
            Node::Bool(true) => return Ok(TRUE),
            Node::Bool(false) => return Ok(FALSE),
            Node::Opaque => return Ok(OPAQUE),
            Node::Int(number) => {
                if let Ok(small) = u8::try_from(number) {
                    return Ok(FIRST_INT + Id::from(small));
                }
            }
            Node::Tuple(ref items) if items.is_empty() => return Ok(EMPTY_TUPLE),
            _ => {}
        }

        let id = Id::try_from(self.nodes.len()).ok().filter(|_| self.nodes.len() < self.max_nodes);
        let id = id.ok_or_else(|| {
            Error::memory("the pickle builds more values than its length justifies")
        })?;
        self.nodes.push(node);
        Ok(id)
    }

    pub(crate) fn add_derived(&mut self, derived: Derived) -> Result<Id> {
        let position = u32::try_from(self.derived.len()).unwrap_or(u32::MAX);
        self.derived.push(derived);
        self.add(Node::Derived(position))
    }

    pub(crate) fn get(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Node::Str(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn unsigned(&self, id: Id) -> Option<u64> {
        match self.get(id) {
            Node::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The items of a list, tuple or set.
    pub(crate) fn items(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Node::Tuple(items) => Some(items),
            Node::List(items) | Node::Set(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn global(&self, id: Id) -> Option<&Global> {
        match self.get(id) {
            Node::Global(global) => Some(global),
            _ => None,
        }
    }

    /// The value under a text key of a dictionary.
    pub(crate) fn entry(&self, id: Id, key: &str) -> Option<Id> {
        match self.get(id) {
            // As in Python, a later value of a key takes the place of an earlier one.
            Node::Dict(pairs) => pairs
                .iter()
                .rev()
                .find(|(k, _)| self.text(*k) == Some(key))
                .map(|(_, value)| *value),
            _ => None,
        }
    }
}
