//! NumPy's numbers and arrays, which training checkpoints keep beside their weights: learning
//! rates, losses, the state of a random number generator.
//!
//! Only dtypes of plain numbers, texts and bytes are known. An array of objects is a list of
//! anything, and NumPy unpickles objects out of some of their bytes, so a dtype that is not known
//! to hold none refuses the file.

use apr_core::{DType, Error, Escaped, Result, Strided};

use super::build::global_meaning;
use super::element::{ArrayDType, Element, Number};
use super::globals::Meaning;
use super::uses::{Action, Verdict};
use super::value::{Bytes, Id, Lying, Node, Storage, Tensor};
use super::vm::Vm;
use crate::latin1::ArrayText;
use crate::view::Range;

impl Number {
    /// The value of all the bytes of a number.
    fn decode(self, bytes: &[u8]) -> Option<Node> {
        let unsigned = bytes.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        let bits = u32::try_from(8 * bytes.len()).ok().filter(|bits| (8..=64).contains(bits))?;
        Some(match self {
            Self::Bool => Node::Bool(unsigned != 0),
            Self::Uint => Node::Int(unsigned.into()),
            Self::Int => Node::Int((unsigned.cast_signed() << (64 - bits) >> (64 - bits)).into()),
            Self::F32 => Node::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            Self::F64 => Node::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
        })
    }
}

/// The dtype that NumPy spells so: `f8`, `<i4`, `S5`, `O8`. `None` for one that is not known.
fn parse(text: &str) -> Option<ArrayDType> {
    let (order, text) = match text.strip_prefix(['<', '=', '|']) {
        Some(rest) => (true, rest),
        None => text.strip_prefix('>').map_or((true, text), |rest| (false, rest)),
    };
    let mut letters = text.chars();
    let kind = letters.next()?;
    let digits = letters.as_str();
    if kind == 'O' && matches!(digits, "" | "4" | "8") {
        return Some(ArrayDType { number: None, dtype: None, size: 8, objects: true });
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }

    // NumPy keeps four bytes for each letter of a text.
    let letter = if kind == 'U' { 4 } else { 1 };
    let size = digits.parse::<u64>().ok()?.checked_mul(letter)?;
    let number = number_of(kind, digits)?;
    let dtype = dtype_of(kind, digits).filter(|_| order);
    Some(ArrayDType { number: number.filter(|_| order), dtype, size, objects: false })
}

/// The dtype of a kind, by the bytes of an element.
fn dtype_of(kind: char, digits: &str) -> Option<DType> {
    Some(match (kind, digits) {
        ('b', "1") => DType::BOOL,
        ('i', "1") => DType::I8,
        ('i', "2") => DType::I16,
        ('i', "4") => DType::I32,
        ('i', "8") => DType::I64,
        ('u', "1") => DType::U8,
        ('u', "2") => DType::U16,
        ('u', "4") => DType::U32,
        ('u', "8") => DType::U64,
        ('f', "2") => DType::F16,
        ('f', "4") => DType::F32,
        ('f', "8") => DType::F64,
        ('c', "8") => DType::C64,
        _ => return None,
    })
}

/// Returns the decoding of elements of a kind. `Some(None)`: no objects, but not decoded either.
fn number_of(kind: char, digits: &str) -> Option<Option<Number>> {
    Some(match (kind, digits) {
        ('b', _) => Some(Number::Bool),
        ('i', _) => Some(Number::Int),
        ('u', _) => Some(Number::Uint),
        ('f', "4") => Some(Number::F32),
        ('f', "8") => Some(Number::F64),
        ('f' | 'c' | 'S' | 'U' | 'V' | 'M' | 'm', _) => None,
        _ => return None,
    })
}

impl Vm<'_> {
    /// `_codecs.encode(text, 'latin1')`
    pub(super) fn latin1(&mut self, args: &[Id]) -> Result<Id> {
        let codec = args.get(1).and_then(|&codec| self.heap.text(codec));
        if !matches!(codec, Some("latin1" | "latin-1" | "iso-8859-1")) {
            return Err(self.bad("encodes text otherwise than bytes are pickled"));
        }
        if let Some(Node::Bytes(bytes)) = args.first().map(|&text| self.heap.get(text))
            && bytes.at.is_some_and(|at| at.is_text)
        {
            return self.heap.add(Node::Bytes(*bytes));
        }

        let text = args.first().and_then(|&text| self.heap.text(text));
        let text = text.ok_or_else(|| self.bad("encodes a value that is not text"))?;
        let at = args.first().and_then(|text| self.strings.get(text)).copied();
        let bytes: Option<Vec<u8>> = text.chars().map(|letter| u8::try_from(letter).ok()).collect();
        let bytes = bytes.ok_or_else(|| self.bad("encodes text that is not Latin-1"))?;
        self.look_inside(&bytes, false);
        self.heap.add(Node::Bytes(Bytes::from(&bytes[..]).with_place(at)))
    }

    pub(super) fn numpy_dtype(&mut self, args: &[Id]) -> Result<Id> {
        let text = args.first().and_then(|&text| self.heap.text(text)).unwrap_or("?");
        match parse(text) {
            // An array of objects holds them as a list, in sight of a scan.
            Some(dtype) if !dtype.objects || self.policy.lenient => {
                self.heap.add(Node::NumpyDType(dtype))
            }
            _ => {
                let name = format!("dtype('{}')", Escaped::short(text));
                self.record("numpy", &name, Action::Call, Verdict::Unknown);
                Err(self.bad(&format!(
                    "makes a numpy.{name}, which may hold objects; arrays of objects are not read"
                )))
            }
        }
    }

    /// `scalar(dtype, bytes)`, as the number it is.
    pub(super) fn numpy_scalar(&mut self, args: &[Id]) -> Result<Id> {
        let [dtype, value @ ..] = args else {
            return Err(self.bad("makes a NumPy number without data"));
        };
        let Node::NumpyDType(ArrayDType { number, .. }) = *self.heap.get(*dtype) else {
            return Err(self.bad("makes a NumPy number without a dtype"));
        };
        let bytes = value.first().and_then(|&value| match self.heap.get(value) {
            Node::Bytes(bytes) => Some(*bytes),
            Node::Str(text) => Some(Bytes::from(text.as_bytes())),
            _ => None,
        });
        let decoded = number.zip(bytes).and_then(|(number, bytes)| number.decode(bytes.all()?));
        self.heap.add(decoded.unwrap_or(Node::Opaque))
    }

    /// `_reconstruct(numpy.ndarray, (0,), b'b')`
    pub(super) fn numpy_array(&mut self, args: &[Id]) -> Result<Id> {
        match args.first().map(|&class| global_meaning(self, class)) {
            Some(Meaning::NumpyClass) => self.heap.add(Node::NumpyArray),
            _ => Err(self.bad("makes an array of a class that is not numpy.ndarray")),
        }
    }

    /// `_frombuffer(bytes, dtype, shape, order)`
    pub(super) fn numpy_buffer(&mut self, args: &[Id]) -> Result<Id> {
        match args.get(1).map(|&dtype| self.heap.get(dtype)) {
            Some(Node::NumpyDType(_)) => self.heap.add(Node::NumpyArray),
            _ => Err(self.bad("makes an array without a dtype")),
        }
    }

    /// `(version, shape, dtype, order, bytes)` of an array, `(version, byte order, ...)` of a
    /// dtype. Whether there was one of those.
    pub(super) fn set_numpy_state(&mut self, target: Id, state: Id) -> Result<bool> {
        let items = self.heap.items(state).unwrap_or_default();
        match self.heap.get(target) {
            Node::NumpyArray => {
                let dtype = items.get(2).map(|&dtype| self.heap.get(dtype));
                let values = items.get(4).map(|&values| (values, self.heap.get(values)));
                let (dtype, at) = match (dtype, values) {
                    (Some(&Node::NumpyDType(dtype)), Some((_, Node::Bytes(bytes)))) => {
                        (dtype, bytes.at)
                    }
                    (Some(&Node::NumpyDType(dtype)), Some((string, Node::Str(_)))) => {
                        // Python 2 has no other bytes than its strings.
                        let at = self.strings.get(&string).filter(|at| !at.is_text);
                        (dtype, at.copied())
                    }
                    // `bytes()`, which protocol 2 has for none.
                    (Some(&Node::NumpyDType(dtype)), Some((_, Node::Opaque))) => {
                        (dtype, Some(Lying { offset: 0, len: 0, is_text: false }))
                    }
                    _ => {
                        return Err(
                            self.bad("gives an array a state that is not a dtype and bytes")
                        );
                    }
                };
                let (shape, order) = (items.get(1).copied(), items.get(3).copied());
                self.place_array(target, dtype, at, shape, order)?;
                Ok(true)
            }
            &Node::NumpyDType(mut dtype) => {
                let order = items.get(1).and_then(|&order| self.heap.text(order));
                if order == Some(">") {
                    (dtype.number, dtype.dtype) = (None, None);
                }
                // `flags`, of which bit 0 says that there are objects somewhere within.
                let flags = items.get(7).and_then(|&flags| self.heap.unsigned(flags));
                dtype.objects |= self.policy.lenient && flags.is_some_and(|flags| flags & 1 != 0);
                *self.heap.get_mut(target) = Node::NumpyDType(dtype);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl Vm<'_> {
    /// Turns an array into a tensor, if arrays are read and the source contains its bytes.
    fn place_array(
        &mut self,
        target: Id,
        dtype: ArrayDType,
        at: Option<Lying>,
        shape: Option<Id>,
        order: Option<Id>,
    ) -> Result<()> {
        let (Some(at), Some(element), Some(shape)) = (at, dtype.dtype, shape) else {
            return Ok(());
        };
        if !self.policy.arrays {
            return Ok(());
        }
        let dims = self.numbers(shape)?;
        let is_by_column =
            order.is_some_and(|order| matches!(self.heap.get(order), Node::Bool(true)));
        let elements = if is_by_column {
            let strides = dims.iter().scan(1_u64, |stride, &dim| {
                let own = *stride;
                *stride = stride.saturating_mul(dim);
                Some(own)
            });
            let strides = strides.collect();
            Strided::new(0, dims, strides)?
        } else {
            Strided::contiguous(&dims)
        };
        let range = if at.is_text {
            self.decoded_text(at, elements.checked_elements(), dtype.size)?
        } else {
            Range { offset: at.offset, len: at.len }
        };
        let key = format!("array at {}", range.offset);
        self.heap.arrays.push((key.clone(), range));
        let storage = Storage {
            key,
            element: Element { dtype: Some(element), width: dtype.size, name: "numpy.ndarray" },
            len: range.len / dtype.size,
            view: None,
        };
        let storage = self.add_storage(storage);
        let tensor = self.add_tensor(Tensor { storage, dtype: element, elements })?;
        let node = match self.heap.get(tensor) {
            Node::Tensor(position) => Node::Tensor(*position),
            _ => return Ok(()),
        };
        *self.heap.get_mut(target) = node;
        Ok(())
    }

    /// Returns the range of an array's decoded text: after the source and after earlier arrays.
    fn decoded_text(&mut self, text: Lying, elements: Option<u64>, size: u64) -> Result<Range> {
        let len = elements.and_then(|elements| elements.checked_mul(size));
        // A character takes one byte or two.
        let len = len.filter(|len| (text.len.div_ceil(2)..=text.len).contains(len));
        let len = len.ok_or_else(|| {
            let message = format!(
                "an array has {} bytes of text, more or fewer than its shape takes",
                text.len
            );
            Error::corrupt(message).at(text.offset)
        })?;
        let before = self.heap.texts.last();
        let offset =
            before.map_or(self.input.source_len(), |text| text.decoded.offset + text.decoded.len);
        offset.checked_add(len).ok_or_else(|| self.bad("has arrays of over 2^64 bytes"))?;
        let decoded = Range { offset, len };
        self.heap
            .texts
            .push(ArrayText { text: Range { offset: text.offset, len: text.len }, decoded });
        Ok(decoded)
    }

    /// joblib writes the bytes of an array right after the state that describes it, so that it can
    /// read them without a copy. `pickle.load` would take them for opcodes.
    pub(super) fn skip_array(&mut self, state: Id) -> Result<()> {
        if !self.policy.joblib {
            return Ok(());
        }

        let shape = self
            .heap
            .entry(state, "shape")
            .ok_or_else(|| self.bad("describes an array without a shape"))?;
        let shape = self.numbers(shape)?;
        let dtype = self.heap.entry(state, "dtype").map(|dtype| self.heap.get(dtype));
        let Some(&Node::NumpyDType(dtype)) = dtype else {
            return Err(self.bad("describes an array without a dtype"));
        };
        if dtype.objects {
            return self.nested_stream();
        }

        let aligned = self.heap.entry(state, "numpy_array_alignment_bytes");
        if aligned.is_some_and(|aligned| !matches!(self.heap.get(aligned), Node::None)) {
            // A byte says how long the padding is that follows it.
            let padding = self.input.byte()?.into();
            self.input.skip(padding)?;
        }

        let len = shape.iter().try_fold(dtype.size, |len, &dim| len.checked_mul(dim));

        // No file has as many bytes, so that `skip` refuses a product that overflows.
        self.input.skip(len.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dtypes_without_objects_are_known() {
        for text in ["O", "O8", "|O"] {
            assert!(parse(text).is_some_and(|dtype| dtype.objects), "{text}");
        }
        for text in ["object", "i4,O", "", "<", "f", "8f", "x4", "(2,)O", "f8 ", "{'a':'O'}"] {
            assert!(parse(text).is_none(), "{text}");
        }
        let plain = |number, dtype, size| Some(ArrayDType { number, dtype, size, objects: false });
        assert_eq!(parse("<f8"), plain(Some(Number::F64), Some(DType::F64), 8));
        assert_eq!(parse("i4"), plain(Some(Number::Int), Some(DType::I32), 4));
        assert_eq!(parse(">i4"), plain(None, None, 4));
        assert_eq!(parse("S5"), plain(None, None, 5));
        assert_eq!(parse("U5"), plain(None, None, 20));
        assert_eq!(parse("f2"), plain(None, Some(DType::F16), 2));
    }

    #[test]
    fn numbers_are_decoded_by_kind_and_length() {
        assert!(matches!(Number::Int.decode(&[0xfe, 0xff]), Some(Node::Int(-2))));
        assert!(matches!(Number::Uint.decode(&[0xff; 8]), Some(Node::Int(0xffff_ffff_ffff_ffff))));
        assert!(matches!(Number::Int.decode(&[0xff; 8]), Some(Node::Int(-1))));
        assert!(matches!(Number::Bool.decode(&[1]), Some(Node::Bool(true))));
        assert!(
            matches!(Number::F32.decode(&[0, 0, 128, 63]), Some(Node::Float(value)) if value == 1.0)
        );
        assert!(Number::F64.decode(&[0; 4]).is_none() && Number::Int.decode(&[]).is_none());
    }
}
