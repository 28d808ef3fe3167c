//! Operators that take or replace some of a tensor's elements.

use apr_core::{Error, Result};
use apr_graph::{Node, ValueId};

use crate::emit::{Emitter, first, unknown};
use crate::text::list;

/// Writes a node that takes some of the elements of a tensor.
pub(crate) fn picked(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    if &*node.op.name == "Slice" {
        return slice(emitter, node, x, tensor);
    }

    if &*node.op.name == "Trilu" {
        let k = match node.input(1) {
            Some(k) => emitter.list(k)?.concat(),
            None => "0".to_owned(),
        };
        let function =
            if node.int("upper").unwrap_or(1) == 0 { "torch.tril" } else { "torch.triu" };
        return Ok(format!("{function}({tensor}, {k})"));
    }

    if &*node.op.name == "GatherND" {
        let places = indices(emitter, node, &tensor, node.int("batch_dims").unwrap_or(0))?;
        return Ok(format!("torch.index({tensor}, {places})"));
    }

    let rank = emitter.rank(x)?;
    let axis = emitter.axis(node.int("axis").unwrap_or(0), rank)?;
    let places = emitter.input(node, 1)?;
    if &*node.op.name == "GatherElements" {
        let places = emitter.tensor(places)?;
        return Ok(format!("torch.gather({tensor}, {axis}, {})", counted(&tensor, axis, &places)));
    }
    if let Some((items, true)) = emitter.ints(places)? {
        return Ok(format!("torch.select({tensor}, {axis}, {})", items.concat()));
    }

    let mut indices = vec!["None".to_owned(); axis];
    indices.push(emitter.tensor(places)?);
    Ok(format!("torch.index({tensor}, annotate(List[Optional[Tensor]], {}))", list(&indices)))
}

fn slice(emitter: &mut Emitter<'_>, node: &Node, x: ValueId, tensor: String) -> Result<String> {
    let rank = emitter.rank(x)?;
    let (starts, ends) = (emitter.input(node, 1)?, emitter.input(node, 2)?);
    let (starts, ends) = (emitter.list(starts)?, emitter.list(ends)?);
    let axes = match node.input(3) {
        Some(axes) => emitter.numbers(axes)?,
        None => (0..starts.len()).filter_map(|axis| i64::try_from(axis).ok()).collect(),
    };
    let steps = match node.input(4) {
        Some(steps) => emitter.numbers(steps)?,
        None => vec![1; starts.len()],
    };
    if steps.iter().any(|step| *step < 1) {
        return Err(Error::version("TorchScript has no slices with negative steps"));
    }

    let mut sliced = tensor;
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(axes).zip(steps) {
        let axis = emitter.axis(axis, rank)?;
        sliced = format!("torch.slice({sliced}, {axis}, {start}, {end}, {step})");
    }

    Ok(sliced)
}

/// Places along an axis, counted from the front: ONNX may count from the back.
fn counted(tensor: &str, axis: usize, places: &str) -> String {
    format!("torch.remainder({places}, torch.size({tensor}, {axis}))")
}

/// The places that the second input has in its last dimension, as `torch.index` takes them: a
/// tensor for each dimension. The first `batch_dims` dimensions go along with those of the input.
fn indices(
    emitter: &mut Emitter<'_>,
    node: &Node,
    tensor: &str,
    batch_dims: i64,
) -> Result<String> {
    let places = emitter.input(node, 1)?;
    let rank = emitter.rank(places)?.checked_sub(1).ok_or_else(unknown)?;
    let batch_dims = emitter.axis(batch_dims, rank + 1)?;
    let shape = emitter.shape_of(places);
    let count = shape.and_then(|shape| shape.last()?.size()).ok_or_else(|| {
        Error::version("the number of places that it takes at a time is only known when it runs")
    })?;

    let places = emitter.tensor(places)?;
    let along = (0..batch_dims).map(|axis| {
        let sizes: Vec<&str> = (0..rank).map(|at| if at == axis { "-1" } else { "1" }).collect();
        format!(
            "torch.reshape(torch.arange(torch.size({tensor}, {axis}), dtype=4), [{}])",
            sizes.join(", ")
        )
    });
    let of_last = (0..count).map(|at| format!("torch.select({places}, -1, {at})"));
    let all: Vec<String> = along.chain(of_last).collect();
    Ok(format!("annotate(List[Optional[Tensor]], {})", list(&all)))
}

/// Writes a node that replaces some of the elements of a tensor.
pub(crate) fn scattered(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    let (places, updates) = (emitter.input(node, 1)?, emitter.input(node, 2)?);
    let updates = emitter.tensor(updates)?;
    let reduction = node.text("reduction").unwrap_or("none");
    if &*node.op.name == "ScatterND" {
        let adds = match reduction {
            "none" => "False",
            "add" => "True",
            _ => return Err(unknown()),
        };
        let places = indices(emitter, node, &tensor, 0)?;
        return Ok(format!("torch.index_put({tensor}, {places}, {updates}, {adds})"));
    }

    let rank = emitter.rank(x)?;
    let axis = emitter.axis(node.int("axis").unwrap_or(0), rank)?;
    let places = emitter.tensor(places)?;
    let places = counted(&tensor, axis, &places);
    let function = match reduction {
        "none" => "torch.scatter",
        "add" => "torch.scatter_add",
        "mul" | "max" | "min" => {
            let reduce = match reduction {
                "mul" => "prod",
                "max" => "amax",
                _ => "amin",
            };
            return Ok(format!(
                "torch.scatter_reduce({tensor}, {axis}, {places}, {updates}, \"{reduce}\")"
            ));
        }
        _ => return Err(unknown()),
    };
    Ok(format!("{function}({tensor}, {axis}, {places}, {updates})"))
}
