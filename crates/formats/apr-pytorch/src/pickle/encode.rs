//! The pickle of a state dict, as Python's pickler writes it in protocol 2, the one that
//! `torch.save` asks for.
//!
//! Python memoizes each value it might meet again. So does this, although few are: the bytes then
//! equal PyTorch's, and a test can say so.

use std::collections::HashMap;

use super::opcode as op;

/// Items that Python's pickler hands over at a time.
const BATCH: usize = 1000;

const ORDERED_DICT: &str = "collections\nOrderedDict\n";
const REBUILD: &str = "torch._utils\n_rebuild_tensor_v2\n";
const REBUILD_UNTYPED: &str = "torch._utils\n_rebuild_tensor_v3\n";
const UNTYPED: &str = "torch.storage\nUntypedStorage\n";

/// A contiguous tensor that is all of its storage.
#[derive(Debug)]
pub(crate) struct Item<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: ElementKind,
    /// Number of the storage, which is its key.
    pub(crate) storage: usize,
    /// Number of elements of the storage. For a storage without a dtype, these are bytes.
    pub(crate) elements: u64,
    pub(crate) shape: &'a [u64],
    pub(crate) strides: Vec<u64>,
}

/// Object that states the type of the elements: the storage or the tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ElementKind {
    /// The storage, by its class in `torch`.
    Typed(&'static str),
    /// The tensor, by the name of a dtype in `torch`.
    Untyped(&'static str),
}

/// The pickle of an `OrderedDict` of tensors, in this order.
pub(crate) fn state_dict(items: &[Item<'_>]) -> Vec<u8> {
    let mut pickle =
        Pickle { bytes: vec![op::PROTO, 2], memo: 0, known: HashMap::new(), keys: HashMap::new() };
    pickle.ordered_dict();
    for batch in items.chunks(BATCH) {
        // As Python's pickler does it, one item alone has no mark.
        if batch.len() > 1 {
            pickle.bytes.push(op::MARK);
        }
        for item in batch {
            pickle.text(item.name);
            pickle.tensor(item);
        }
        pickle.bytes.push(if batch.len() > 1 { op::SETITEMS } else { op::SETITEM });
    }

    pickle.bytes.push(op::STOP);
    pickle.bytes
}

/// An object of a class that an archive's code has, with tensors and objects by name.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    /// Name of the class in `__torch__`.
    pub(crate) class: &'a str,
    pub(crate) tensors: Vec<(&'a str, Item<'a>)>,
    pub(crate) objects: Vec<(&'a str, Object<'a>)>,
}

/// The pickle of such an object.
pub(crate) fn module(object: &Object<'_>) -> Vec<u8> {
    let mut pickle =
        Pickle { bytes: vec![op::PROTO, 2], memo: 0, known: HashMap::new(), keys: HashMap::new() };
    pickle.object(object);
    pickle.bytes.push(op::STOP);
    pickle.bytes
}

/// The pickle of an empty tuple.
pub(crate) fn nothing() -> Vec<u8> {
    vec![op::PROTO, 2, op::EMPTY_TUPLE, op::STOP]
}

struct Pickle {
    bytes: Vec<u8>,
    /// Values memoized.
    memo: u32,
    /// Memo indices of names and constant texts.
    known: HashMap<&'static str, u32>,
    /// Memo indices of the keys of storages.
    keys: HashMap<usize, u32>,
}

impl Pickle {
    fn put(&mut self) -> u32 {
        let number = self.memo;
        self.memo += 1;
        match u8::try_from(number) {
            Ok(small) => self.bytes.extend([op::BINPUT, small]),
            Err(_) => {
                self.bytes.push(op::LONG_BINPUT);
                self.bytes.extend(number.to_le_bytes());
            }
        }
        number
    }

    fn recall(&mut self, number: u32) {
        match u8::try_from(number) {
            Ok(small) => self.bytes.extend([op::BINGET, small]),
            Err(_) => {
                self.bytes.push(op::LONG_BINGET);
                self.bytes.extend(number.to_le_bytes());
            }
        }
    }

    fn text(&mut self, text: &str) -> u32 {
        self.bytes.push(op::BINUNICODE);
        // Names are shorter than 2^16 bytes.
        self.bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        self.put()
    }

    /// A text that is one object in the Python program.
    fn constant(&mut self, text: &'static str) {
        if let Some(&number) = self.known.get(text) {
            return self.recall(number);
        }
        let number = self.text(text);
        self.known.insert(text, number);
    }

    /// Module and name, each with its line feed.
    fn global(&mut self, name: &'static str) {
        if let Some(&number) = self.known.get(name) {
            return self.recall(number);
        }
        self.bytes.push(op::GLOBAL);
        self.bytes.extend(name.as_bytes());
        let number = self.put();
        self.known.insert(name, number);
    }

    fn ordered_dict(&mut self) {
        self.global(ORDERED_DICT);
        self.bytes.extend([op::EMPTY_TUPLE, op::REDUCE]);
        self.put();
    }

    fn number(&mut self, number: u64) {
        if let Ok(small) = u8::try_from(number) {
            self.bytes.extend([op::BININT1, small]);
        } else if let Ok(short) = u16::try_from(number) {
            self.bytes.push(op::BININT2);
            self.bytes.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(number) {
            self.bytes.push(op::BININT);
            self.bytes.extend(int.to_le_bytes());
        } else {
            // Two's complement, as short as it can be with a sign bit of its own.
            let bits = u64::BITS - number.leading_zeros() + 1;
            let (len, wide) = (bits.div_ceil(8).to_le_bytes()[0], u128::from(number).to_le_bytes());
            self.bytes.extend([op::LONG1, len]);
            self.bytes.extend(&wide[..usize::from(len)]);
        }
    }

    fn numbers(&mut self, numbers: &[u64]) {
        let close = match numbers.len() {
            // Python's pickler memoizes no empty tuple.
            0 => return self.bytes.push(op::EMPTY_TUPLE),
            1 => op::TUPLE1,
            2 => op::TUPLE2,
            3 => op::TUPLE3,
            _ => {
                self.bytes.push(op::MARK);
                op::TUPLE
            }
        };
        numbers.iter().for_each(|&number| self.number(number));
        self.bytes.push(close);
        self.put();
    }

    fn tensor(&mut self, item: &Item<'_>) {
        self.global(match item.kind {
            ElementKind::Typed(_) => REBUILD,
            ElementKind::Untyped(_) => REBUILD_UNTYPED,
        });
        self.bytes.push(op::MARK);
        self.storage(item);
        self.number(0);
        self.numbers(item.shape);
        self.numbers(&item.strides);

        // `requires_grad`, and the hooks, of which there are none.
        self.bytes.push(op::NEWFALSE);
        self.ordered_dict();
        if let ElementKind::Untyped(dtype) = item.kind {
            self.of_torch(dtype);
        }

        self.bytes.push(op::TUPLE);
        self.put();
        self.bytes.push(op::REDUCE);
        self.put();
    }

    /// `('storage', class, key, 'cpu', elements)`, as a persistent id.
    fn storage(&mut self, item: &Item<'_>) {
        self.bytes.push(op::MARK);
        self.constant("storage");
        match item.kind {
            ElementKind::Typed(class) => self.of_torch(class),
            ElementKind::Untyped(_) => self.global(UNTYPED),
        }

        match self.keys.get(&item.storage) {
            Some(&number) => self.recall(number),
            None => {
                let number = self.text(&item.storage.to_string());
                self.keys.insert(item.storage, number);
            }
        }

        self.constant("cpu");
        self.number(item.elements);
        self.bytes.push(op::TUPLE);
        self.put();
        self.bytes.push(op::BINPERSID);
    }

    fn object(&mut self, object: &Object<'_>) {
        self.bytes.push(op::GLOBAL);
        self.bytes.extend(b"__torch__\n");
        self.bytes.extend(object.class.as_bytes());
        self.bytes.push(b'\n');
        self.bytes.extend([op::EMPTY_TUPLE, op::NEWOBJ, op::EMPTY_DICT, op::MARK]);
        for (name, tensor) in &object.tensors {
            self.text(name);
            self.tensor(tensor);
        }

        self.constant("training");
        self.bytes.push(op::NEWFALSE);
        for (name, inner) in &object.objects {
            self.text(name);
            self.object(inner);
        }

        self.bytes.extend([op::SETITEMS, op::BUILD]);
    }

    /// A name in the module `torch`.
    fn of_torch(&mut self, name: &'static str) {
        if let Some(&number) = self.known.get(name) {
            return self.recall(number);
        }
        self.bytes.push(op::GLOBAL);
        self.bytes.extend(b"torch\n");
        self.bytes.extend(name.as_bytes());
        self.bytes.push(b'\n');
        let number = self.put();
        self.known.insert(name, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_short_as_python_writes_them() {
        let cases: [(u64, &[u8]); 9] = [
            (0, b"K\x00"),
            (255, b"K\xff"),
            (256, b"M\x00\x01"),
            (65_535, b"M\xff\xff"),
            (65_536, b"J\x00\x00\x01\x00"),
            (0x7fff_ffff, b"J\xff\xff\xff\x7f"),
            (0x8000_0000, b"\x8a\x05\x00\x00\x00\x80\x00"),
            (0x7f_ffff_ffff, b"\x8a\x05\xff\xff\xff\xff\x7f"),
            (u64::MAX, b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"),
        ];
        for (number, expected) in cases {
            let mut pickle =
                Pickle { bytes: Vec::new(), memo: 0, known: HashMap::new(), keys: HashMap::new() };
            pickle.number(number);
            assert_eq!(pickle.bytes, expected, "{number}");
        }
    }
}
