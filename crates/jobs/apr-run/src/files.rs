//! Arrays as files: `.npy`, `.npz`, `.safetensors`, `.json`.
//!
//! ```text
//! .npy          magic, version 1.0, length of the header, a Python dictionary padded to 64 bytes,
//!               the elements
//! .npz          a ZIP archive of such files, not compressed
//! .safetensors  length of the header, JSON padded to 8 bytes, the elements
//! ```

use apr_core::digest::Crc32;
use apr_core::json;
use apr_graph::ElementType;
use apr_infer::{Data, Tensor, Value};
use apr_registry::{Error, Result, numpy};
use serde_json::{Map, Value as Json, json};

use super::arrays::array_report;

/// File format of arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArrayFile {
    /// A single array.
    Npy,
    /// Arrays by name.
    Npz,
    /// Tensors by name.
    Safetensors,
    /// An object of nested lists.
    Json,
}

impl ArrayFile {
    /// Returns the format for the extension of a path.
    #[must_use]
    pub fn by_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "npy" => Some(Self::Npy),
            "npz" => Some(Self::Npz),
            "safetensors" => Some(Self::Safetensors),
            "json" => Some(Self::Json),
            _ => None,
        }
    }

    /// Returns the bytes of a file with these values. Sequences and maps can only be written as
    /// JSON.
    ///
    /// # Errors
    /// E003 for elements and values that the format has no type for, and for several arrays in a
    /// format of one.
    pub fn bytes(self, values: &[(String, Value)]) -> Result<Vec<u8>> {
        if self == Self::Json {
            return json_file(values);
        }
        let array = |(name, value): &(String, Value)| match value.tensor() {
            Ok(tensor) => Ok((name.clone(), tensor.clone())),
            Err(_) => {
                Err(Error::version(format!("'{name}' is {}, which only .json holds", value.kind())))
            }
        };
        let arrays = values.iter().map(array).collect::<Result<Vec<_>>>()?;
        match (self, &arrays[..]) {
            (Self::Npy, [(_, tensor)]) => npy(tensor),
            (Self::Npy, _) => {
                let count = arrays.len();
                Err(Error::version(format!(
                    ".npy holds one array, and there are {count}: write .npz or .safetensors"
                )))
            }
            (Self::Npz, _) => npz(&arrays),
            (Self::Safetensors, _) => safetensors(&arrays),
            (Self::Json, _) => json_file(values),
        }
    }
}

/// The type as NumPy and as safetensors call it, and the elements, little-endian. Floats of few
/// bits are widened.
fn packed(tensor: &Tensor) -> Result<(&'static str, &'static str, Vec<u8>)> {
    let element = tensor.element();
    match type_names(element) {
        Some((numpy, safetensors)) => Ok((numpy, safetensors, little_endian(tensor.data()))),
        None if element.is_float() => packed(&tensor.cast(ElementType::F32)?),
        None => Err(Error::version(format!("arrays of {} need .json", element.name()))),
    }
}

pub(crate) fn type_names(element: ElementType) -> Option<(&'static str, &'static str)> {
    Some(match element {
        ElementType::F32 => ("<f4", "F32"),
        ElementType::F64 => ("<f8", "F64"),
        ElementType::F16 => ("<f2", "F16"),
        ElementType::I8 => ("|i1", "I8"),
        ElementType::I16 => ("<i2", "I16"),
        ElementType::I32 => ("<i4", "I32"),
        ElementType::I64 => ("<i8", "I64"),
        ElementType::Bool => ("|b1", "BOOL"),
        ElementType::U8 => ("|u1", "U8"),
        ElementType::U16 => ("<u2", "U16"),
        ElementType::U32 => ("<u4", "U32"),
        ElementType::U64 => ("<u8", "U64"),
        _ => return None,
    })
}

pub(crate) fn little_endian(data: &Data) -> Vec<u8> {
    fn all<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|value| bytes(*value)).collect()
    }

    match data {
        Data::F32(values) => all(values, f32::to_le_bytes),
        Data::F64(values) => all(values, f64::to_le_bytes),
        Data::I8(values) => all(values, i8::to_le_bytes),
        Data::I16(values) => all(values, i16::to_le_bytes),
        Data::I32(values) => all(values, i32::to_le_bytes),
        Data::I64(values) => all(values, i64::to_le_bytes),
        Data::U8(values) => values.clone(),
        Data::U16(values) => all(values, u16::to_le_bytes),
        Data::U32(values) => all(values, u32::to_le_bytes),
        Data::U64(values) => all(values, u64::to_le_bytes),
        Data::Text(texts) => texts.concat().into_bytes(),
    }
}

fn npy(tensor: &Tensor) -> Result<Vec<u8>> {
    let (descr, _, elements) = packed(tensor)?;
    let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
    let mut bytes = numpy::header(descr, &shape)?;
    bytes.extend(elements);
    Ok(bytes)
}

fn npz(arrays: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let too_large = || Error::version("arrays of 4 GiB and more are written as .safetensors");
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, tensor) in arrays {
        let content = npy(tensor)?;
        let name = format!("{name}.npy");
        let size = u32::try_from(content.len()).map_err(|_| too_large())?;
        let offset = u32::try_from(bytes.len()).map_err(|_| too_large())?;
        let name_len = u16::try_from(name.len())
            .map_err(|_| Error::version("the name of an array is too long"))?;
        let mut crc = Crc32::new();
        crc.update(&content);

        // Version 2.0, UTF-8 names, stored, 1 January 1980.
        let mut entry = vec![20, 0, 0, 8, 0, 0, 0, 0, 0x21, 0];
        entry.extend(crc.value().to_le_bytes());
        entry.extend([size, size].iter().flat_map(|size| size.to_le_bytes()));
        entry.extend(name_len.to_le_bytes());
        entry.extend([0, 0]);
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&entry);
        bytes.extend(name.as_bytes());
        bytes.extend(content);
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(entry);

        // No comment, one disk, no attributes (APPNOTE, 4.3.12).
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }

    let start = u32::try_from(bytes.len()).map_err(|_| too_large())?;
    let count = u16::try_from(arrays.len())
        .map_err(|_| Error::version("an .npz file can't hold this many arrays"))?;
    let len = u32::try_from(directory.len()).map_err(|_| too_large())?;
    bytes.extend(directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([count, count].iter().flat_map(|count| count.to_le_bytes()));
    bytes.extend([len, start].iter().flat_map(|place| place.to_le_bytes()));
    bytes.extend([0, 0]);
    Ok(bytes)
}

fn safetensors(arrays: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let (mut header, mut elements) = (Map::new(), Vec::new());
    for (name, tensor) in arrays {
        let (_, dtype, bytes) = packed(tensor)?;
        let (start, end) = (elements.len(), elements.len() + bytes.len());
        header.insert(
            name.clone(),
            json!({ "dtype": dtype, "shape": tensor.shape(), "data_offsets": [start, end] }),
        );
        elements.extend(bytes);
    }

    let mut header = json::text(&Json::Object(header));

    // The format lets spaces follow: elements then begin at a multiple of 8.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(elements);
    Ok(bytes)
}

fn json_file(values: &[(String, Value)]) -> Result<Vec<u8>> {
    let mut fields = Map::new();
    for (name, value) in values {
        fields.insert(name.clone(), json_of(value)?);
    }
    let mut bytes = json::text(&Json::Object(fields)).into_bytes();
    bytes.push(b'\n');
    Ok(bytes)
}

/// Nested lists; sequences are lists, maps objects, and `null` what is missing.
fn json_of(value: &Value) -> Result<Json> {
    Ok(match value {
        Value::Sequence(items) => items.iter().map(json_of).collect::<Result<_>>()?,
        Value::Map { keys, values } => {
            let key = |json: Json| match json {
                Json::String(text) => text,
                other => other.to_string(),
            };
            let list = |tensor: &Tensor| array_report("", &tensor.clone().into(), usize::MAX);
            let (keys, values) = (list(keys)?.values, list(values)?.values);
            Json::Object(keys.into_iter().map(key).zip(values).collect())
        }
        Value::Optional(Some(value)) => json_of(value)?,
        Value::Cached(heads) => json_of(&heads.tensor()?.into())?,
        Value::Optional(None) | Value::Weight(_) => Json::Null,
        Value::Tensor(tensor) => {
            let report = array_report("", value, usize::MAX)?;
            nested(tensor.shape(), &mut report.values.into_iter())
        }
    })
}

/// Elements as lists inside lists.
fn nested(shape: &[usize], values: &mut impl Iterator<Item = Json>) -> Json {
    match shape.split_first() {
        None => values.next().unwrap_or_default(),
        Some((len, inner)) => (0..*len).map(|_| nested(inner, values)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use apr_registry::Limits;

    use super::*;
    use crate::arrays_of;

    fn values() -> Vec<(String, Value)> {
        arrays().into_iter().map(|(name, tensor)| (name, tensor.into())).collect()
    }

    fn arrays() -> Vec<(String, Tensor)> {
        let numbers =
            Tensor::new(vec![2, 3], vec![1.0_f32, 2.0, 3.0, f32::MIN_POSITIVE, -0.0, 6.5]).unwrap();
        vec![
            ("numbers".to_owned(), numbers),
            ("row".to_owned(), Tensor::row(vec![-1_i64, 1 << 40])),
            ("one".to_owned(), Tensor::scalar(7_i64)),
        ]
    }

    #[test]
    fn arrays_come_back_from_every_kind_of_file() {
        for (kind, name) in [(ArrayFile::Npz, "a.npz"), (ArrayFile::Safetensors, "a.safetensors")] {
            let bytes = kind.bytes(&values()).unwrap();
            let reader = apr_registry::open(bytes, name, &Limits::default()).unwrap();
            let mut found = arrays_of(&*reader).unwrap();
            found.sort_by_key(|(name, _)| arrays().iter().position(|(there, _)| there == name));
            assert_eq!(found, arrays(), "{name}");
        }
        let bytes = ArrayFile::Npy.bytes(&values()[..1]).unwrap();
        let reader = apr_registry::open(bytes, "a.npy", &Limits::default()).unwrap();
        assert_eq!(arrays_of(&*reader).unwrap()[0].1, arrays()[0].1);
        let text = String::from_utf8(ArrayFile::Json.bytes(&values()[1..]).unwrap()).unwrap();
        assert_eq!(text, "{\"one\":7,\"row\":[-1,1099511627776]}\n");
        let map = Value::Map {
            keys: Tensor::row(vec![3_i64, 5]),
            values: Tensor::row(vec![0.5_f32, 1.5]),
        };
        let several = vec![("many".to_owned(), Value::Sequence(vec![map, Value::Optional(None)]))];
        let text = String::from_utf8(ArrayFile::Json.bytes(&several).unwrap()).unwrap();
        assert_eq!(text, "{\"many\":[{\"3\":0.5,\"5\":1.5},null]}\n");
        assert!(ArrayFile::Npz.bytes(&several).is_err());
        assert!(ArrayFile::Npy.bytes(&values()).is_err());
    }
}
