//! TensorFlow Lite: operators that are none of its own.

use apr_registry::tflite::custom_operators;
use apr_registry::{ByteSource, Code, Escaped, Limits, Result};

use super::tensorflow_names::{Touches, touches};
use super::{ContentRemarks, bounded, not_examined};
use crate::report::FileVerdict;

/// Custom operators of TensorFlow's own programs, and the prefix of TensorFlow's own operators.
const KNOWN: [&str; 4] =
    ["Convolution2DTransposeBias", "MaxPoolingWithArgmax2D", "MaxUnpooling2D", "TFLite_"];
const FLEX: &str = "Flex";

/// Judges a model by the names of its operators.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn judge(source: &dyn ByteSource, limits: &Limits) -> Result<ContentRemarks> {
    let names = match custom_operators(source, limits) {
        Ok(names) => names,
        Err(error) if error.code() == Code::Io => return Err(error),
        Err(error) => {
            let message = format!("the list of its operators can't be read: {}", error.message());
            return Ok(not_examined(&message));
        }
    };

    let mut found = ContentRemarks::new();
    for name in names {
        let shown = Escaped::short(&name).to_string();
        match name.strip_prefix(FLEX).map(touches) {
            Some(Some(Touches::System(what))) => {
                found.push((FileVerdict::Dangerous, format!("the operator {shown} {what}")));
            }
            Some(Some(Touches::Path)) => {
                let message = format!("the operator {shown} opens files");
                found.push((FileVerdict::Suspicious, message));
            }
            Some(Some(Touches::Nothing)) => {}
            Some(None) | None => {
                if !KNOWN.iter().any(|known| name.starts_with(known)) {
                    found.extend(not_examined(&format!(
                        "the operator {shown} is a custom operator of the program"
                    )));
                }
            }
        }
        bounded(&mut found);
    }
    Ok(found)
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
            ("FlexRestoreV2", Some(FileVerdict::Suspicious)),
            ("FlexMine", Some(FileVerdict::NotExamined)),
            ("Mine", Some(FileVerdict::NotExamined)),
        ] {
            let found = judge(&model(name), &Limits::default()).expect("readable");
            assert_eq!(found.first().map(|(verdict, _)| *verdict), expected, "{name}: {found:?}");
        }
        let cut = model("Mine");
        for len in 0..cut.len() - 8 {
            let found = judge(&cut[..len].to_vec(), &Limits::default()).expect("readable");
            assert!(!found.is_empty(), "cut at {len}");
        }
    }
}
