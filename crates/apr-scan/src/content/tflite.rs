//! TensorFlow Lite: operators that are none of its own.
//!
//! A flatbuffer: the word at 0 leads to the root table, whose field 1 is a vector of tables
//! (`OperatorCode`), whose field 1 is the name of a custom operator.

use apr_registry::{ByteSource, Escaped, Result, read_vec};

use super::tensorflow::DANGEROUS;
use super::{ContentRemarks, not_examined};
use crate::report::FileVerdict;

/// Operators that are looked at, and bytes of their names.
const MOST: u32 = 10_000;
const LONGEST: u32 = 256;

/// Custom operators of TensorFlow's own programs, and the beginning of those of TensorFlow itself.
const KNOWN: [&str; 4] =
    ["Convolution2DTransposeBias", "MaxPoolingWithArgmax2D", "MaxUnpooling2D", "TFLite_"];
const FLEX: &str = "Flex";

/// Judges a model by the names of its operators.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn judge(source: &dyn ByteSource) -> Result<ContentRemarks> {
    let Some(names) = custom_operators(source) else {
        return Ok(not_examined("the list of its operators is not where TensorFlow Lite has it"));
    };

    let mut found = ContentRemarks::new();
    for name in names {
        let inner = name.strip_prefix(FLEX);
        let shown = Escaped::short(&name).to_string();
        if inner.is_some_and(|inner| DANGEROUS.contains(&inner)) {
            let message = format!("the operator {shown} runs Python or accesses files");
            found.push((FileVerdict::Dangerous, message));
        } else if inner.is_none() && !KNOWN.iter().any(|known| name.starts_with(known)) {
            found.extend(not_examined(&format!(
                "the operator {shown} is a custom operator of the program"
            )));
        }
        found.truncate(20);
    }
    Ok(found)
}

/// The names of the custom operators; `None` where the file has no such list.
fn custom_operators(source: &dyn ByteSource) -> Option<Vec<String>> {
    let buffer = Buffer(source);
    let root = u64::from(buffer.word(0)?);
    let Some(codes) = buffer.field(root, 1)? else { return Some(Vec::new()) };
    let count = buffer.word(codes)?;
    if count > MOST {
        return None;
    }

    let mut names = Vec::new();
    for number in 0..u64::from(count) {
        let place = codes + 4 + 4 * number;
        let table = place + u64::from(buffer.word(place)?);
        let Some(name) = buffer.field(table, 1)? else { continue };
        let len = buffer.word(name)?;
        let bytes = read_vec(source, name + 4, len.min(LONGEST).into()).ok()?;
        if !bytes.is_empty() {
            names.push(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Some(names)
}

struct Buffer<'a>(&'a dyn ByteSource);

impl Buffer<'_> {
    fn word(&self, at: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.0.read_at(at, &mut bytes).ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    fn half(&self, at: u64) -> Option<u16> {
        let mut bytes = [0; 2];
        self.0.read_at(at, &mut bytes).ok()?;
        Some(u16::from_le_bytes(bytes))
    }

    /// Where the vector, text or table in a table's field is. `None` within for a field that is
    /// left out.
    fn field(&self, table: u64, number: u64) -> Option<Option<u64>> {
        // Signed, and counted backwards.
        let back = i64::from(self.word(table)?.cast_signed());
        let vtable = table.checked_add_signed(back.checked_neg()?)?;
        let entry = 4 + 2 * number;
        let len = u64::from(self.half(vtable)?);
        if entry + 2 > len {
            // It begins with its own length and that of the table.
            return (len >= 4).then_some(None);
        }
        let offset = self.half(vtable + entry)?;
        if offset == 0 {
            return Some(None);
        }
        let place = table + u64::from(offset);
        Some(Some(place + u64::from(self.word(place)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with one operator, which has this name.
    fn model(name: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Root table at 20, its table of fields at 8: two fields, the second at 4.
        bytes.extend(20_u32.to_le_bytes());
        bytes.extend(b"TFL3");
        bytes.extend([8, 0, 8, 0, 0, 0, 4, 0, 0, 0, 0, 0]);
        bytes.extend(12_u32.to_le_bytes());
        bytes.extend(4_u32.to_le_bytes());
        // The vector at 28: one table, at 48, whose table of fields is at 36.
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(16_u32.to_le_bytes());
        bytes.extend([8, 0, 8, 0, 0, 0, 4, 0, 0, 0, 0, 0]);
        bytes.extend(12_u32.to_le_bytes());
        bytes.extend(4_u32.to_le_bytes());
        bytes.extend(u32::try_from(name.len()).unwrap_or_default().to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn operators_are_judged_by_their_names() {
        for (name, expected) in [
            ("", None),
            ("TFLite_Detection_PostProcess", None),
            ("FlexErf", None),
            ("FlexWriteFile", Some(FileVerdict::Dangerous)),
            ("Mine", Some(FileVerdict::NotExamined)),
        ] {
            let found = judge(&model(name)).expect("readable");
            assert_eq!(found.first().map(|(verdict, _)| *verdict), expected, "{name}: {found:?}");
        }
        let cut = model("Mine");
        for len in 0..cut.len() - 8 {
            let found = judge(&cut[..len].to_vec()).expect("readable");
            assert!(!found.is_empty(), "cut at {len}");
        }
    }
}
