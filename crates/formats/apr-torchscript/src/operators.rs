//! Operators of ONNX as calls of `torch`.

use apr_core::Result;
use apr_graph::{AttributeValue, ElementType, Node, ValueId};

use crate::emit::{Emitter, first, unknown};
use crate::layers::learnt;
use crate::picked::{picked, scattered};
use crate::scan::scan;
use crate::spatial::{padded, resized};
use crate::text::{dtype, flag, list, number, tensor};

/// Operators that are one function of tensors, whatever their number of inputs.
const SIMPLE: [(&str, &str); 51] = [
    ("Abs", "torch.abs"),
    ("Acos", "torch.acos"),
    ("Acosh", "torch.acosh"),
    ("Add", "torch.add"),
    ("And", "torch.logical_and"),
    ("Asin", "torch.asin"),
    ("Asinh", "torch.asinh"),
    ("Atan", "torch.atan"),
    ("Atanh", "torch.atanh"),
    ("BitwiseAnd", "torch.bitwise_and"),
    ("BitwiseNot", "torch.bitwise_not"),
    ("BitwiseOr", "torch.bitwise_or"),
    ("BitwiseXor", "torch.bitwise_xor"),
    ("Ceil", "torch.ceil"),
    ("Cos", "torch.cos"),
    ("Cosh", "torch.cosh"),
    ("Equal", "torch.eq"),
    ("Erf", "torch.erf"),
    ("Exp", "torch.exp"),
    ("Floor", "torch.floor"),
    ("Greater", "torch.gt"),
    ("GreaterOrEqual", "torch.ge"),
    ("HardSwish", "torch.hardswish"),
    ("IsNaN", "torch.isnan"),
    ("Less", "torch.lt"),
    ("LessOrEqual", "torch.le"),
    ("Log", "torch.log"),
    ("MatMul", "torch.matmul"),
    ("Max", "torch.maximum"),
    ("Min", "torch.minimum"),
    ("Mish", "torch.mish"),
    ("Mul", "torch.mul"),
    ("Neg", "torch.neg"),
    ("Not", "torch.logical_not"),
    ("Or", "torch.logical_or"),
    ("Pow", "torch.pow"),
    ("Reciprocal", "torch.reciprocal"),
    ("Relu", "torch.relu"),
    ("Round", "torch.round"),
    ("Sigmoid", "torch.sigmoid"),
    ("Sign", "torch.sign"),
    ("Sin", "torch.sin"),
    ("Sinh", "torch.sinh"),
    ("Softplus", "torch.softplus"),
    ("Sqrt", "torch.sqrt"),
    ("Sub", "torch.sub"),
    ("Sum", "torch.add"),
    ("Tan", "torch.tan"),
    ("Tanh", "torch.tanh"),
    ("Where", "torch.where"),
    ("Xor", "torch.logical_xor"),
];

/// Writes the code of a node.
pub(crate) fn emit(emitter: &mut Emitter<'_>, node: &Node) -> Result<()> {
    if let Some((_, function)) = SIMPLE.iter().find(|(name, _)| *name == &*node.op.name) {
        return simple(emitter, node, function);
    }

    let expression = match &*node.op.name {
        "Split" => return split(emitter, node),
        "TopK" => return top_k(emitter, node),
        "Scan" => return scan(emitter, node),
        "Cast" | "Identity" | "Clip" | "Div" | "Mod" | "Gelu" | "LeakyRelu" | "Elu"
        | "HardSigmoid" | "NonZero" | "Softmax" | "LogSoftmax" => elementwise(emitter, node)?,
        "Reshape" | "Expand" | "Transpose" | "Unsqueeze" | "Squeeze" | "Concat" | "Flatten"
        | "Tile" => arranged(emitter, node)?,
        "Gather" | "GatherElements" | "GatherND" | "Slice" | "Trilu" => picked(emitter, node)?,
        "ScatterElements" | "ScatterND" => scattered(emitter, node)?,
        "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceL2" | "ArgMax"
        | "ArgMin" | "CumSum" => reduced(emitter, node)?,
        "Range" | "ConstantOfShape" => made(emitter, node)?,
        "Pad" => padded(emitter, node)?,
        "Resize" => resized(emitter, node)?,
        "LayerNormalization"
        | "InstanceNormalization"
        | "BatchNormalization"
        | "Gemm"
        | "Conv"
        | "MaxPool"
        | "AveragePool"
        | "GlobalAveragePool"
        | "GlobalMaxPool" => learnt(emitter, node)?,
        _ => return Err(unknown()),
    };

    emitter.set(node, &expression)
}

/// Writes a function of tensors. With more than two inputs, it is applied repeatedly.
fn simple(emitter: &mut Emitter<'_>, node: &Node, function: &str) -> Result<()> {
    let mut inputs = Vec::new();
    for position in 0..node.inputs.len() {
        let value = emitter.input(node, position)?;
        inputs.push(emitter.tensor(value)?);
    }
    let expression = match inputs.as_slice() {
        [first, rest @ ..] if rest.len() > 1 && &*node.op.name != "Where" => {
            rest.iter().fold(first.clone(), |sum, next| format!("{function}({sum}, {next})"))
        }
        all => format!("{function}({})", all.join(", ")),
    };
    emitter.set(node, &expression)
}

fn elementwise(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    Ok(match &*node.op.name {
        "Identity" => tensor,
        "Cast" => {
            let code = node.int("to").and_then(|code| i32::try_from(code).ok());
            let element = code.and_then(ElementType::from_onnx_code).ok_or_else(unknown)?;
            format!("torch.to({tensor}, {})", dtype(element)?)
        }
        "Clip" => clipped(emitter, node, tensor)?,
        "Div" => quotient(emitter, node, x, &tensor)?,
        "Mod" => {
            let divisor = emitter.input(node, 1)?;
            let divisor = emitter.tensor(divisor)?;
            let is_of_c = node.int("fmod").unwrap_or(0) != 0;
            let function = if is_of_c { "torch.fmod" } else { "torch.remainder" };
            format!("{function}({tensor}, {divisor})")
        }
        "Elu" => format!("torch.elu({tensor}, {})", number(node.float("alpha").unwrap_or(1.0))),
        "HardSigmoid" => {
            let alpha = number(node.float("alpha").unwrap_or(0.2));
            let beta = number(node.float("beta").unwrap_or(0.5));
            format!("torch.clamp(torch.add(torch.mul({tensor}, {alpha}), {beta}), 0, 1)")
        }
        "NonZero" => format!("torch.permute(torch.nonzero({tensor}), [1, 0])"),
        "Gelu" if node.text("approximate") == Some("tanh") => gelu_by_tanh(&tensor),
        "Gelu" => format!("torch.gelu({tensor})"),
        "LeakyRelu" => {
            format!("torch.leaky_relu({tensor}, {})", number(node.float("alpha").unwrap_or(0.01)))
        }
        name => {
            let axis = node.int("axis").unwrap_or(-1);
            let function = if name == "Softmax" { "torch.softmax" } else { "torch.log_softmax" };
            format!("{function}({tensor}, {axis})")
        }
    })
}

fn clipped(emitter: &mut Emitter<'_>, node: &Node, tensor: String) -> Result<String> {
    let mut clipped = tensor;
    for (position, function) in [(1, "torch.maximum"), (2, "torch.minimum")] {
        if let Some(bound) = node.input(position) {
            clipped = format!("{function}({clipped}, {})", emitter.tensor(bound)?);
        }
    }
    Ok(clipped)
}

/// Writes a division. For integers, the quotient is truncated.
fn quotient(emitter: &mut Emitter<'_>, node: &Node, x: ValueId, tensor: &str) -> Result<String> {
    let divisor = emitter.input(node, 1)?;
    let divisor = emitter.tensor(divisor)?;
    let is_float = emitter.element(x).is_some_and(ElementType::is_float);
    let rounding = if is_float { "" } else { ", rounding_mode=\"trunc\"" };
    Ok(format!("torch.div({tensor}, {divisor}{rounding})"))
}

/// Writes GELU with the tanh approximation. Programs of this version have no function for it.
fn gelu_by_tanh(x: &str) -> String {
    let scale = number(std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2);
    let inner =
        format!("torch.mul(torch.add({x}, torch.mul(torch.pow({x}, 3), 0.044715)), {scale})");
    format!("torch.mul(torch.mul({x}, 0.5), torch.add(torch.tanh({inner}), 1))")
}

fn arranged(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    Ok(match &*node.op.name {
        "Reshape" => reshaped(emitter, node, &tensor)?,
        "Expand" => {
            let shape = emitter.input(node, 1)?;
            let shape = sizes(&emitter.list(shape)?);

            // ONNX stretches both ways: where the shape says 1, a larger size stays, which `expand`
            // refuses.
            format!("torch.broadcast_tensors([{tensor}, torch.zeros({shape})])[0]")
        }
        "Transpose" => {
            let rank = emitter.rank(x)?;
            let reversed: Vec<i64> =
                (0..rank).rev().filter_map(|axis| i64::try_from(axis).ok()).collect();
            format!("torch.permute({tensor}, {:?})", node.ints("perm").unwrap_or(&reversed))
        }
        "Concat" => {
            let mut parts = Vec::new();
            for position in 0..node.inputs.len() {
                let value = emitter.input(node, position)?;
                parts.push(emitter.tensor(value)?);
            }
            format!("torch.cat({}, {})", list(&parts), node.int("axis").unwrap_or(0))
        }
        "Flatten" => {
            let rank = emitter.rank(x)?;
            let axis = emitter.axis(node.int("axis").unwrap_or(1), rank + 1)?;
            let front: Vec<String> =
                (0..axis).map(|axis| format!("torch.size({tensor}, {axis})")).collect();
            let front = if front.is_empty() { "1".to_owned() } else { front.join(" * ") };
            format!("torch.reshape({tensor}, [{front}, -1])")
        }
        "Tile" => {
            let times = emitter.input(node, 1)?;
            format!("torch.repeat({tensor}, {})", sizes(&emitter.list(times)?))
        }
        _ => squeezed(emitter, node, x, tensor)?,
    })
}

/// `Unsqueeze` and `Squeeze`, whose axes are an input or, in older operators, an attribute.
fn squeezed(emitter: &mut Emitter<'_>, node: &Node, x: ValueId, tensor: String) -> Result<String> {
    let axes = axes(emitter, node)?;
    let grows = &*node.op.name == "Unsqueeze";
    let function = if grows { "torch.unsqueeze" } else { "torch.squeeze" };
    let Some(axes) = axes else { return Ok(format!("torch.squeeze({tensor})")) };

    // One axis is counted alike, and the bodies of loops do not say how many there are.
    if let [axis] = axes[..] {
        return Ok(format!("{function}({tensor}, {axis})"));
    }
    let rank = emitter.rank(x)?;
    let rank = if grows { rank + axes.len() } else { rank };
    let mut counted =
        axes.iter().map(|&axis| emitter.axis(axis, rank)).collect::<Result<Vec<_>>>()?;
    counted.sort_unstable();

    // From the back, so that the axes in front keep their numbers.
    if !grows {
        counted.reverse();
    }
    Ok(counted.into_iter().fold(tensor, |tensor, axis| format!("{function}({tensor}, {axis})")))
}

/// The axes of a node: its second input, or its attribute.
fn axes(emitter: &mut Emitter<'_>, node: &Node) -> Result<Option<Vec<i64>>> {
    match node.input(1) {
        Some(axes) => emitter.numbers(axes).map(Some),
        None => Ok(node.ints("axes").map(<[i64]>::to_vec)),
    }
}

fn reshaped(emitter: &mut Emitter<'_>, node: &Node, tensor: &str) -> Result<String> {
    let shape = emitter.input(node, 1)?;
    let keeps = node.int("allowzero").unwrap_or(0) == 0;
    let items = emitter.list(shape)?.into_iter().enumerate().map(|(axis, size)| {
        if size == "0" && keeps { format!("torch.size({tensor}, {axis})") } else { size }
    });
    Ok(format!("torch.reshape({tensor}, {})", sizes(&items.collect::<Vec<_>>())))
}

fn reduced(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    let name = &*node.op.name;
    let keeps = flag(node.int("keepdims").unwrap_or(1) != 0);
    let position = |function: &str| {
        format!("{function}({tensor}, {}, {keeps})", node.int("axis").unwrap_or(0))
    };
    let function = match name {
        "CumSum" => return summed_up(emitter, node, &tensor),
        "ArgMax" | "ArgMin" if node.int("select_last_index").unwrap_or(0) != 0 => {
            return last_place(emitter, node, x, &tensor);
        }
        "ArgMax" => return Ok(position("torch.argmax")),
        "ArgMin" => return Ok(position("torch.argmin")),
        "ReduceMean" => "torch.mean",
        "ReduceSum" => "torch.sum",
        "ReduceMax" => "torch.amax",
        "ReduceMin" => "torch.amin",
        _ => "torch.norm",
    };

    let Some(axes) = reduced_axes(emitter, node, x)? else { return Ok(tensor) };
    Ok(match function {
        "torch.norm" => format!("torch.norm({tensor}, 2, {axes:?}, {keeps})"),
        function => format!("{function}({tensor}, {axes:?}, {keeps})"),
    })
}

/// The last of several places: the first one from the back.
fn last_place(emitter: &mut Emitter<'_>, node: &Node, x: ValueId, tensor: &str) -> Result<String> {
    let rank = emitter.rank(x)?;
    let axis = emitter.axis(node.int("axis").unwrap_or(0), rank)?;
    let keeps = flag(node.int("keepdims").unwrap_or(1) != 0);
    let function = if &*node.op.name == "ArgMax" { "torch.argmax" } else { "torch.argmin" };
    let from_back = format!("{function}(torch.flip({tensor}, [{axis}]), {axis}, {keeps})");
    Ok(format!("torch.rsub({from_back}, torch.size({tensor}, {axis}) - 1)"))
}

fn summed_up(emitter: &mut Emitter<'_>, node: &Node, tensor: &str) -> Result<String> {
    let axis = emitter.input(node, 1)?;
    let is_plain = node.int("exclusive").unwrap_or(0) == 0 && node.int("reverse").unwrap_or(0) == 0;
    let axis = emitter.numbers(axis)?.first().copied().filter(|_| is_plain).ok_or_else(unknown)?;
    Ok(format!("torch.cumsum({tensor}, {axis})"))
}

/// Returns the axes that are reduced, or `None` if there are none.
fn reduced_axes(emitter: &mut Emitter<'_>, node: &Node, x: ValueId) -> Result<Option<Vec<i64>>> {
    let rank = i64::try_from(emitter.rank(x)?).unwrap_or_default();
    let axes = axes(emitter, node)?.filter(|axes| !axes.is_empty());
    if axes.is_none() && node.int("noop_with_empty_axes").unwrap_or(0) != 0 {
        return Ok(None);
    }
    Ok(Some(axes.unwrap_or_else(|| (0..rank).collect())))
}

fn made(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    if &*node.op.name == "ConstantOfShape" {
        let shape = emitter.input(node, 0)?;
        let shape = sizes(&emitter.list(shape)?);
        return Ok(match node.attribute("value") {
            // `torch.full` takes a number, and the value is a tensor.
            Some(AttributeValue::Tensor(value)) => {
                format!("torch.broadcast_tensors([torch.zeros({shape}), {}])[1]", tensor(value)?)
            }
            _ => format!("torch.zeros({shape}, dtype=6)"),
        });
    }

    let mut bounds = Vec::new();
    for position in 0..3 {
        let bound = emitter.input(node, position)?;
        bounds.push(emitter.list(bound).map_err(|_| unknown())?.concat());
    }

    Ok(format!("torch.arange({}, dtype=4)", bounds.join(", ")))
}

fn split(emitter: &mut Emitter<'_>, node: &Node) -> Result<()> {
    let (x, tensor) = first(emitter, node)?;
    let rank = emitter.rank(x)?;
    let axis = emitter.axis(node.int("axis").unwrap_or(0), rank)?;
    let lengths = match (node.input(1), node.ints("split")) {
        (Some(lengths), _) => emitter.list(lengths)?,
        (None, Some(lengths)) => lengths.iter().map(ToString::to_string).collect(),
        (None, None) => {
            // Parts of one length, of which the last may be shorter, as in ONNX.
            emitter
                .set_all(node, &format!("torch.chunk({tensor}, {}, {axis})", node.outputs.len()));
            return Ok(());
        }
    };

    emitter.set_all(node, &format!("torch.split({tensor}, {}, {axis})", list(&lengths)));
    Ok(())
}

fn top_k(emitter: &mut Emitter<'_>, node: &Node) -> Result<()> {
    let (_, tensor) = first(emitter, node)?;
    let count = emitter.input(node, 1)?;
    let count = emitter.list(count)?.concat();
    let truth = |name: &str| flag(node.int(name).unwrap_or(1) != 0);
    let axis = node.int("axis").unwrap_or(-1);
    let (largest, sorted) = (truth("largest"), truth("sorted"));
    emitter.set_all(node, &format!("torch.topk({tensor}, {count}, {axis}, {largest}, {sorted})"));
    Ok(())
}

/// A list of sizes, which may be empty.
pub(crate) fn sizes(items: &[String]) -> String {
    if items.is_empty() { "annotate(List[int], [])".to_owned() } else { list(items) }
}
