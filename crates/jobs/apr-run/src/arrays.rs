//! Arrays that go into a model, and that come out.

use apr_graph::ElementType;
use apr_infer::{Data, Outcome, Tensor, Value};
use apr_registry::{CheckpointReader, Error, Result, TensorInfo};
use apr_view::{Checked, Verified};
use serde::Serialize;
use serde_json::Value as Json;

use crate::assumed::AssumedInput;

/// Elements of an output that are shown.
const SHOWN: usize = 100_000;
/// Maximum number of dimensions of nested JSON.
const DEEPEST: usize = 32;

/// The arrays of a file, by their names.
///
/// # Errors
/// E003 for quantized elements, E004 for a wrong checksum, E002 and E007 when they can't be read.
pub fn arrays_of(reader: &dyn CheckpointReader) -> Result<Vec<(String, Tensor)>> {
    let checked = Checked::default();
    let reader = &Verified::new(reader, &checked);
    reader
        .tensors()
        .iter()
        .enumerate()
        .map(|(at, info)| Ok((info.name.clone(), array(reader, at, info)?)))
        .collect()
}

fn array(reader: &dyn CheckpointReader, position: usize, info: &TensorInfo) -> Result<Tensor> {
    let named = |error: Error| error.for_tensor(&info.name);
    let unknown =
        || named(Error::version(format!("dtype {} is not supported as input", info.dtype)));
    let element = ElementType::from_dtype(info.dtype).ok_or_else(unknown)?;
    let too_large = || named(Error::memory("it exceeds the memory limit"));
    let sizes = info.shape.dims().iter().map(|&dim| usize::try_from(dim).map_err(|_| too_large()));
    let shape = sizes.collect::<Result<Vec<_>>>()?;
    let mut bytes = vec![0; usize::try_from(info.byte_len()?).map_err(|_| too_large())?];
    reader.read_tensor(position, 0, &mut bytes)?;
    Tensor::unpack(element, shape, &bytes).map_err(named)
}

/// Converts nested lists of one shape to an array. The elements are integers if no number has a
/// fraction.
pub(super) fn nested(json: &Json) -> Result<Tensor> {
    let mut shape = Vec::new();
    let mut first = json;

    // The first items alone say the shape; whether the others agree is seen next.
    while let Json::Array(list) = first {
        shape.push(list.len());
        if shape.len() > DEEPEST {
            return Err(Error::format(format!("lists are more than {DEEPEST} deep")));
        }
        let Some(inner) = list.first() else { break };
        first = inner;
    }

    let mut leaves = Vec::new();
    collect(json, &shape, &mut leaves)?;
    let uneven = || Error::format("numbers and strings are mixed");
    if leaves.iter().all(|leaf| leaf.is_i64()) {
        return Tensor::new(
            shape,
            leaves.iter().map(|leaf| leaf.as_i64().ok_or_else(uneven)).collect::<Result<_>>()?,
        );
    }

    if leaves.iter().all(|leaf| leaf.is_boolean()) {
        let truths = leaves.iter().map(|leaf| u8::from(leaf.as_bool() == Some(true))).collect();
        return Tensor::truths(shape, truths);
    }

    if leaves.iter().all(|leaf| leaf.is_string()) {
        let texts = leaves.iter().filter_map(|leaf| leaf.as_str()).map(str::to_owned).collect();
        return Tensor::new::<String>(shape, texts);
    }

    Tensor::new(
        shape,
        leaves.iter().map(|leaf| leaf.as_f64().ok_or_else(uneven)).collect::<Result<Vec<f64>>>()?,
    )
}

fn collect<'j>(json: &'j Json, shape: &[usize], leaves: &mut Vec<&'j Json>) -> Result<()> {
    match (json, shape.split_first()) {
        (Json::Array(list), Some((len, inner))) if list.len() == *len => {
            list.iter().try_for_each(|json| collect(json, inner, leaves))
        }
        (Json::Array(_), _) => Err(Error::format("nested lists have different lengths")),
        (leaf, None) => {
            leaves.push(leaf);
            Ok(())
        }
        _ => Err(Error::format("nested lists have different depths")),
    }
}

/// Result of a run.
#[derive(Debug, Serialize)]
pub struct RunReport {
    /// Path of the model.
    pub path: String,
    /// Name of the part that ran.
    pub part: String,
    /// Inputs that were not given, with their assumed values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumed: Vec<AssumedInput>,
    /// Outputs of the run.
    pub outputs: Vec<ArrayReport>,
    /// Peak size in bytes of all live values, measured between nodes.
    pub peak_bytes: u64,
    /// Steps of work that the run took, as --max-work bounds them.
    pub work: u64,
}

/// Output of a run as an array.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct ArrayReport {
    /// Name in the graph.
    pub name: String,
    /// Element type, such as `f32`, `i64` or `text`. Values that are not arrays have `sequence`,
    /// `map` or `nothing`.
    #[serde(rename = "type")]
    pub element: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Elements, the innermost dimension first. Values that JSON numbers can't represent are texts:
    /// `NaN`, `inf`, `-inf`.
    pub values: Vec<Json>,
    /// Elements that are not shown.
    pub omitted: usize,
    /// Values of a sequence, or the keys and values of a map.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<ArrayReport>,
}

/// Creates the report of a run.
///
/// # Errors
/// E003 for elements that can't be shown.
pub fn report(file: &str, part: &str, names: &[&str], outcome: &Outcome) -> Result<RunReport> {
    let outputs =
        names.iter().zip(&outcome.outputs).map(|(name, value)| array_report(name, value, SHOWN));
    Ok(RunReport {
        path: file.to_owned(),
        part: part.to_owned(),
        assumed: Vec::new(),
        outputs: outputs.collect::<Result<_>>()?,
        peak_bytes: outcome.peak_bytes,
        work: outcome.work,
    })
}

/// An output with this many of its elements.
pub(super) fn array_report(name: &str, value: &Value, shown: usize) -> Result<ArrayReport> {
    let plain = |element: &str| ArrayReport {
        name: name.to_owned(),
        element: element.to_owned(),
        shape: Vec::new(),
        values: Vec::new(),
        omitted: 0,
        items: Vec::new(),
    };

    let tensor = match value {
        Value::Tensor(tensor) => tensor,
        Value::Cached(heads) => return array_report(name, &heads.tensor()?.into(), shown),
        Value::Sequence(values) => {
            let items = values
                .iter()
                .enumerate()
                .map(|(at, value)| array_report(&at.to_string(), value, shown));
            return Ok(ArrayReport { items: items.collect::<Result<_>>()?, ..plain("sequence") });
        }
        Value::Map { keys, values } => {
            let item = |name, tensor: &Tensor| array_report(name, &tensor.clone().into(), shown);
            let items = vec![item("keys", keys)?, item("values", values)?];
            return Ok(ArrayReport { items, ..plain("map") });
        }
        Value::Optional(Some(value)) => return array_report(name, value, shown),
        Value::Optional(None) | Value::Weight(_) => return Ok(plain("nothing")),
    };

    Ok(ArrayReport {
        shape: tensor.shape().to_vec(),
        values: elements(tensor, shown)?,
        omitted: tensor.len().saturating_sub(shown),
        ..plain(tensor.element().name())
    })
}

fn elements(tensor: &Tensor, shown: usize) -> Result<Vec<Json>> {
    fn all<T: Clone + Into<Json>>(values: &[T], shown: usize) -> Vec<Json> {
        values.iter().take(shown).cloned().map(Into::into).collect()
    }

    if tensor.element() == ElementType::Bool {
        return Ok(tensor
            .values::<u8>()?
            .iter()
            .take(shown)
            .map(|value| Json::Bool(*value != 0))
            .collect());
    }

    // A float of single precision is shown by the digits that give it back, not by those of a
    // double.
    let single = |value: &f32| value.to_string().parse().map_or(Json::Null, number);
    Ok(match tensor.data() {
        Data::F32(values) => values.iter().take(shown).map(single).collect(),
        Data::F64(values) => values.iter().take(shown).map(|value| number(*value)).collect(),
        Data::I8(values) => all(values, shown),
        Data::I16(values) => all(values, shown),
        Data::I32(values) => all(values, shown),
        Data::I64(values) => all(values, shown),
        Data::U32(values) => all(values, shown),
        Data::U64(values) => all(values, shown),
        Data::Text(texts) => all(texts, shown),
        Data::U8(_) | Data::U16(_) if tensor.element().is_float() => {
            return elements(&tensor.cast(ElementType::F32)?, shown);
        }
        Data::U8(values) => all(values, shown),
        Data::U16(values) => all(values, shown),
    })
}

fn number(value: f64) -> Json {
    if value.is_finite() { Json::from(value) } else { Json::from(value.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Tensor> {
        nested(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn nested_lists_are_arrays() {
        let tensor = parsed("[[1, 2], [3, 4]]").unwrap();
        assert_eq!(
            (tensor.shape(), tensor.values::<i64>().unwrap()),
            (&[2, 2][..], &[1, 2, 3, 4][..])
        );
        assert_eq!(parsed("true").unwrap().element(), ElementType::Bool);
        assert_eq!(parsed("[0.5, 1]").unwrap().element(), ElementType::F64);
    }

    #[test]
    fn uneven_lists_are_refused() {
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        for text in ["[[1], [2, 3]]", "[1, [2]]", "[[1], 2]", "[1, \"a\"]", &deep] {
            assert!(parsed(text).is_err(), "{text}");
        }
        assert_eq!(parsed("[]").unwrap().shape(), [0]);
    }
}
