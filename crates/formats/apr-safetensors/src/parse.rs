//! Parsing the header straight into entries; no JSON tree is ever built.

use std::fmt;

use apr_core::json::{self, Object};
use apr_core::{DType, Error, Escaped, Result, Shape, TensorInfo};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::dtype::dtype_from_name;
use crate::header::{Entry, Header, LENGTH_BYTES, MAX_DIMS};
use crate::names::{METADATA, check_tensor_name, duplicate};
use crate::text::Text;

impl Header {
    /// Parses the header's bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let text = json::utf8(bytes, "the header", LENGTH_BYTES)?;
        let mut parse = Parse::default();
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let parsed = parse.deserialize(&mut deserializer).and_then(|()| deserializer.end());
        parsed.map_err(|error| parse.explain(&error, text))?;
        let header = parse.header;
        if let Some(name) = duplicate(header.entries.iter().map(|entry| entry.info.name.as_str())) {
            return Err(Error::format("the header has two tensors of this name").for_tensor(name));
        }

        let keys = header.text.iter().flat_map(|text| &text.0).map(|(key, _)| key.as_str());
        if let Some(key) = duplicate(keys) {
            return Err(Error::format(format!(
                "{METADATA} has the key '{}' twice",
                Escaped::short(key)
            )));
        }

        Ok(header)
    }
}

/// A header half parsed.
#[derive(Default)]
struct Parse {
    header: Header,
    /// `true` once `__metadata__` was read, even if it had no contents.
    has_text: bool,
    /// Part of the header that caused an error.
    fault: Fault,
    /// An objection of ours, while the JSON parser unwinds.
    refusal: Option<Error>,
}

#[derive(Default)]
enum Fault {
    #[default]
    Header,
    Text,
    Tensor(String),
}

impl Parse {
    /// Returns the reason for a failure: our own error, or the JSON parser's, with the byte and the
    /// tensor.
    fn explain(&mut self, error: &serde_json::Error, text: &str) -> Error {
        let what = if matches!(self.fault, Fault::Text) { METADATA } else { "the header" };
        let parser = json::error(error, what, text, LENGTH_BYTES);
        let error = match (self.refusal.take(), parser.offset()) {
            (Some(refusal), Some(offset)) => refusal.at(offset),
            (Some(refusal), None) => refusal,
            (None, _) => parser,
        };
        if let Fault::Tensor(name) = &self.fault { error.for_tensor(name) } else { error }
    }

    fn refuse<E: serde::de::Error>(&mut self, error: Error) -> E {
        self.refusal = Some(error);
        E::custom("refused")
    }

    /// Stores the text of the header. Some writers put `null` there if there is no text.
    fn text<E: serde::de::Error>(&mut self, text: Result<Option<Text>, E>) -> Result<(), E> {
        let text = text.inspect_err(|_| self.fault = Fault::Text)?;
        if std::mem::replace(&mut self.has_text, true) {
            return Err(self.refuse(Error::format(format!("the header has {METADATA} twice"))));
        }
        self.header.text = text;
        Ok(())
    }

    fn entry<E: serde::de::Error>(
        &mut self,
        name: String,
        entry: Result<Object<RawEntry>, E>,
    ) -> Result<(), E> {
        let Object(RawEntry { dtype, shape, data_offsets: (begin, end) }) = match entry {
            Ok(entry) => entry,
            Err(error) => {
                self.fault = Fault::Tensor(name);
                return Err(error);
            }
        };

        let dtype = dtype.0.map_err(|unknown| {
            let message = format!("this build does not know the dtype '{unknown}'");
            self.refuse(Error::version(message).for_tensor(&name))
        })?;
        let info = TensorInfo { name, dtype, shape: Shape::from(shape.0) };
        self.header.entries.push(Entry { info, begin, end });
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &mut Parse {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Parse {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == METADATA {
                self.text(map.next_value())?;
            } else {
                check_tensor_name(&key).map_err(|error| self.refuse(error))?;
                self.entry(key, map.next_value())?;
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: RawDType,
    shape: RawShape,
    data_offsets: (u64, u64),
}

/// The dtype, or the beginning of an unknown name.
struct RawDType(Result<DType, String>);

impl<'de> Deserialize<'de> for RawDType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;

        impl Visitor<'_> for NameVisitor {
            type Value = RawDType;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a dtype")
            }

            fn visit_str<E>(self, name: &str) -> Result<RawDType, E> {
                Ok(RawDType(dtype_from_name(name).ok_or_else(|| Escaped::short(name).to_string())))
            }
        }

        deserializer.deserialize_str(NameVisitor)
    }
}

struct RawShape(Vec<u64>);

impl<'de> Deserialize<'de> for RawShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DimsVisitor;

        impl<'de> Visitor<'de> for DimsVisitor {
            type Value = RawShape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawShape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(A::Error::custom(format_args!(
                            "a shape of more than {MAX_DIMS} dimensions"
                        )));
                    }
                    dims.push(dim);
                }
                Ok(RawShape(dims))
            }
        }

        deserializer.deserialize_seq(DimsVisitor)
    }
}
