//! Names and numbers in TorchScript's source.

use std::collections::HashMap;

use apr_core::{Error, Result};
use apr_graph::{Constant, ConstantData, ElementType};

/// Words that no variable may have.
const TAKEN: [&str; 36] = [
    "False", "None", "True", "and", "as", "assert", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "float", "for", "from", "getattr", "global", "if", "import", "in",
    "int", "is", "lambda", "not", "ops", "or", "pass", "return", "self", "torch", "annotate",
    "while", "with", "print",
];

/// Maximum number of elements of a constant that is written in the source.
const MOST: usize = 1 << 16;

/// Maximum length of a variable's name, without its number.
///
/// Everything that reads a variable repeats its name.
const LONGEST: usize = 200;

/// Variables, each called after a value and unlike all others: with the number that the next of
/// this name may get.
#[derive(Debug, Default)]
pub(crate) struct Variables(HashMap<String, u64>);

impl Variables {
    /// Returns a new variable name for a value.
    pub(crate) fn of(&mut self, value: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let mut name: String = value.chars().take(LONGEST).map(plain).collect();
        if name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_digit())
            || TAKEN.contains(&name.as_str())
        {
            name.insert(0, '_');
        }
        let Some(mut number) = self.0.get(&name).copied() else {
            self.0.insert(name.clone(), 1);
            return name;
        };

        loop {
            let candidate = format!("{name}_{number}");
            number += 1;
            if !self.0.contains_key(&candidate) {
                self.0.insert(candidate.clone(), 1);
                self.0.insert(name, number);
                return candidate;
            }
        }
    }
}

/// Returns `true` if a name can follow a dot.
pub(crate) fn is_identifier(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !TAKEN.contains(&name)
}

/// A text in quotes.
///
/// # Errors
/// E001 for characters that the source can't have in a name.
pub(crate) fn quoted(name: &str) -> Result<String> {
    if name.chars().any(|c| c.is_control() || c == '"' || c == '\\') {
        return Err(Error::format("TorchScript can't have a tensor of this name").for_tensor(name));
    }
    Ok(format!("\"{name}\""))
}

/// The number of a dtype in `torch`.
pub(crate) fn dtype(element: ElementType) -> Result<u8> {
    Ok(match element {
        ElementType::U8 => 0,
        ElementType::I8 => 1,
        ElementType::I16 => 2,
        ElementType::I32 => 3,
        ElementType::I64 => 4,
        ElementType::F16 => 5,
        ElementType::F32 => 6,
        ElementType::F64 => 7,
        ElementType::Bool => 11,
        ElementType::BF16 => 15,
        other => {
            return Err(Error::version(format!(
                "TorchScript's programs have no elements of {other}"
            )));
        }
    })
}

/// Returns a boolean as a Python literal.
pub(crate) fn flag(is_true: bool) -> &'static str {
    if is_true { "True" } else { "False" }
}

/// Writes a list of items.
pub(crate) fn list(items: &[String]) -> String {
    format!("[{}]", items.join(", "))
}

/// A constant as a tensor.
///
/// # Errors
/// E003 for elements that the source has no numbers for, or too many.
pub(crate) fn tensor(constant: &Constant) -> Result<String> {
    let dtype = dtype(constant.element)?;
    let numbers = numbers(constant)?;
    if numbers.len() > MOST {
        return Err(Error::version(format!(
            "a constant of {} elements is too long for a source",
            numbers.len()
        )));
    }

    let dims: Vec<String> = constant.shape.iter().map(ToString::to_string).collect();
    Ok(match (constant.shape.len(), numbers.as_slice()) {
        (0, [number]) => format!("torch.tensor({number}, dtype={dtype})"),
        (1, [_, ..]) => format!("torch.tensor({}, dtype={dtype})", list(&numbers)),
        (_, []) => format!("torch.zeros({}, dtype={dtype})", list(&dims)),
        _ => format!(
            "torch.reshape(torch.tensor({}, dtype={dtype}), {})",
            list(&numbers),
            list(&dims)
        ),
    })
}

/// The numbers of a constant, in order.
fn numbers(constant: &Constant) -> Result<Vec<String>> {
    if constant.element == ElementType::Bool
        && let ConstantData::Bytes(bytes) = &constant.data
    {
        return Ok(bytes.iter().map(|byte| flag(*byte != 0).to_owned()).collect());
    }
    if let Some(ints) = constant.as_ints() {
        return Ok(ints.iter().map(ToString::to_string).collect());
    }
    if let Some(floats) = constant.as_floats() {
        return Ok(floats.iter().map(|&float| number(float)).collect());
    }
    Err(Error::version(format!("a constant of {} can't be written in a source", constant.element)))
}

/// A float as the source has it.
pub(crate) fn number(float: f32) -> String {
    if float.is_nan() {
        "float(\"nan\")".to_owned()
    } else if float.is_infinite() {
        if float > 0.0 { "float(\"inf\")".to_owned() } else { "float(\"-inf\")".to_owned() }
    } else {
        // Every digit: torch reads double precision, and the shortest text may lie beyond the
        // largest single.
        format!("{:?}", f64::from(float))
    }
}

#[cfg(test)]
mod tests {
    use apr_core::Code;

    use super::*;

    #[test]
    fn variables_are_identifiers_and_differ() {
        let mut variables = Variables::default();
        assert_eq!(variables.of("layers.0/scores"), "layers_0_scores");
        assert_eq!(variables.of("layers/0.scores"), "layers_0_scores_1");
        assert_eq!(variables.of("layers 0 scores"), "layers_0_scores_2");
        assert_eq!(variables.of("layers_0_scores_1"), "layers_0_scores_1_1");
        assert_eq!(variables.of(&"n".repeat(1 << 20)).len(), LONGEST);
        assert_eq!(variables.of("0"), "_0");
        assert_eq!(variables.of("self"), "_self");
        assert!(is_identifier("weight") && !is_identifier("0") && !is_identifier("class"));
    }

    #[test]
    fn numbers_come_back_as_they_were() {
        assert_eq!(
            tensor(&Constant::float(1e-6)).unwrap(),
            "torch.tensor(9.999999974752427e-7, dtype=6)"
        );
        assert_eq!(tensor(&Constant::ints(&[1, -2])).unwrap(), "torch.tensor([1, -2], dtype=4)");
        assert_eq!(number(f32::NEG_INFINITY), "float(\"-inf\")");
        assert_eq!(number(f32::MIN).parse::<f64>().unwrap(), f64::from(f32::MIN));
    }

    /// `c10/core/ScalarType.h` numbers the types.
    #[test]
    fn elements_have_the_numbers_of_torch_or_are_refused() {
        let numbered = [
            (ElementType::U8, 0),
            (ElementType::I8, 1),
            (ElementType::I16, 2),
            (ElementType::I32, 3),
            (ElementType::I64, 4),
            (ElementType::F16, 5),
            (ElementType::F32, 6),
            (ElementType::F64, 7),
            (ElementType::Bool, 11),
            (ElementType::BF16, 15),
        ];
        for &element in ElementType::ALL {
            let known = numbered.iter().find(|(known, _)| *known == element);
            match known {
                Some((_, number)) => assert_eq!(dtype(element).unwrap(), *number),
                None => assert_eq!(dtype(element).unwrap_err().code(), Code::Version),
            }
        }
    }

    #[test]
    fn boolean_empty_and_non_numeric_constants_are_written() {
        let constant = |element, shape: &[u64], bytes: &[u8]| Constant {
            name: String::new(),
            element,
            shape: shape.to_vec(),
            data: ConstantData::Bytes(bytes.to_vec()),
        };
        let text = |constant| tensor(&constant).unwrap();
        assert_eq!(
            text(constant(ElementType::Bool, &[2], &[1, 0])),
            "torch.tensor([True, False], dtype=11)"
        );
        assert_eq!(text(constant(ElementType::F32, &[0, 3], &[])), "torch.zeros([0, 3], dtype=6)");
        assert_eq!(
            text(constant(ElementType::I32, &[1, 1], &[7, 0, 0, 0])),
            "torch.reshape(torch.tensor([7], dtype=3), [1, 1])"
        );
        assert_eq!(
            text(Constant::floats(&[f32::INFINITY, f32::NAN])),
            "torch.tensor([float(\"inf\"), float(\"nan\")], dtype=6)"
        );

        let refused = |constant| tensor(&constant).unwrap_err().code();
        let long = vec![0; MOST + 1];
        assert_eq!(refused(Constant::ints(&long)), Code::Version);
        assert_eq!(refused(constant(ElementType::F16, &[1], &[0, 0])), Code::Version);
    }

    #[test]
    fn names_that_would_end_the_text_are_refused() {
        assert_eq!(quoted("layers.0").unwrap(), "\"layers.0\"");
        for name in ["a\"b", "a\\b", "a\nb"] {
            assert_eq!(quoted(name).unwrap_err().code(), Code::Format);
        }
    }
}
