//! Options of operators as attributes: their fields by the tables of the schema.

use std::collections::HashMap;

use apr_core::Result;
use apr_graph::{Attribute, AttributeValue};

use crate::flatbuffer::Table;

/// Names of enumerations' members, and the fields of each table of options in the order of the
/// schema's unions: `name:number:kind=default`.
const TABLES: &str = include_str!("options.txt");

/// Maximum number of items of a list that becomes an attribute.
const MOST_ITEMS: u64 = 4096;

/// A field of a table of options.
struct Field {
    name: &'static str,
    number: u64,
    kind: &'static str,
    /// Value of the field if the table does not have it.
    default: i64,
}

/// The tables of the schema.
pub(super) struct Schema {
    enums: HashMap<&'static str, Vec<&'static str>>,
    /// Tables of `BuiltinOptions` and of `BuiltinOptions2`.
    ///
    /// They are stored as text, because a model uses only a few.
    unions: [Vec<&'static str>; 2],
}

impl Schema {
    pub(super) fn new() -> Self {
        let mut schema = Self { enums: HashMap::new(), unions: [Vec::new(), Vec::new()] };
        let mut section = "";
        for line in TABLES.lines().filter(|line| !line.starts_with('#')) {
            if line.starts_with('@') {
                section = line;
                continue;
            }
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            match section {
                "@enums" => _ = schema.enums.insert(name, rest.split(' ').collect()),
                "@options" => schema.unions[0].push(rest),
                _ => schema.unions[1].push(rest),
            }
        }
        schema
    }

    /// The options of an operator, whose table is of this type of the first or the second union.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn attributes(
        &self,
        second: bool,
        number: u8,
        options: &Table<'_>,
    ) -> Result<Vec<Attribute>> {
        let union = &self.unions[usize::from(second)];
        let fields = usize::from(number).checked_sub(1).and_then(|number| union.get(number));
        let fields = fields.copied().unwrap_or_default();
        let mut attributes = Vec::new();
        for field in fields.split(' ').filter_map(Field::parse) {
            if let Some(value) = self.value(&field, options)? {
                attributes.push(Attribute { name: field.name.into(), value });
            }
        }
        Ok(attributes)
    }

    fn value(&self, field: &Field, options: &Table<'_>) -> Result<Option<AttributeValue>> {
        let Field { number, kind, default, .. } = *field;
        if let Some(item) = kind.strip_suffix("[]") {
            return list(item, number, options);
        }
        let given = options.has(number)?;
        Ok(Some(match kind {
            "text" => match options.text(number)? {
                Some(text) => AttributeValue::Text(text.into_bytes()),
                None => return Ok(None),
            },
            "f32" => AttributeValue::Float(f32::from_bits(options.u32(number)?)),
            _ if !given && !self.enums.contains_key(kind) => AttributeValue::Int(default),
            "i32" => AttributeValue::Int(options.u32(number)?.cast_signed().into()),
            "u32" => AttributeValue::Int(options.u32(number)?.into()),
            "i64" => AttributeValue::Int(options.u64(number)?.cast_signed()),
            "bool" | "u8" => AttributeValue::Int(options.u8(number)?.into()),
            "i8" => AttributeValue::Int(options.u8(number)?.cast_signed().into()),
            kind => {
                let member = if given { options.u8(number)?.into() } else { default };
                let names = self.enums.get(kind).into_iter().flatten();
                let index = usize::try_from(member).unwrap_or(usize::MAX);
                match names.copied().nth(index) {
                    Some(name) => AttributeValue::from(name),
                    None => AttributeValue::Int(member),
                }
            }
        }))
    }
}

/// Returns a list, or `None` if it is missing or too long.
fn list(kind: &str, number: u64, options: &Table<'_>) -> Result<Option<AttributeValue>> {
    if !options.has(number)? {
        return Ok(None);
    }
    let width = match kind {
        "i64" => 8,
        "bool" | "u8" | "i8" => 1,
        _ => 4,
    };
    let items = options.list(number, width)?;
    if items.len > MOST_ITEMS {
        return Ok(None);
    }
    Ok(Some(match kind {
        "u8" => AttributeValue::Text(items.u8s()?),
        "bool" | "i8" => AttributeValue::Ints(items.u8s()?.into_iter().map(i64::from).collect()),
        "i64" => AttributeValue::Ints(items.i64s()?),
        "f32" => {
            let bits = items.i32s()?;
            let floats = bits.into_iter().map(|bits| f32::from_bits(bits.cast_unsigned()));
            AttributeValue::Floats(floats.collect())
        }
        _ => AttributeValue::Ints(items.i32s()?.into_iter().map(i64::from).collect()),
    }))
}

impl Field {
    fn parse(text: &'static str) -> Option<Self> {
        let (text, default) = text.split_once('=').unwrap_or((text, "0"));
        let mut parts = text.split(':');
        Some(Self {
            name: parts.next()?,
            number: parts.next()?.parse().ok()?,
            kind: parts.next()?,
            default: default.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_match_the_schema() {
        let schema = Schema::new();
        let [first, second] = &schema.unions;
        // BuiltinOptions_MAX of the schema is BitwiseXor's successor, RightShiftOptions (126).
        assert_eq!((first.len(), second.len()), (126, 22));
        assert!(first[0].starts_with("padding:0:Padding stride_w:1:i32"), "Conv2DOptions is 1");
        assert_eq!(schema.enums["Padding"], ["SAME", "VALID"]);
        for field in first.iter().chain(second).flat_map(|line| line.split(' ')) {
            assert!(field.is_empty() || Field::parse(field).is_some(), "{field}");
        }
    }
}
