//! Operators of a newer version of ONNX, in the words of an older one.

use super::edit::Edit;
use crate::{Attribute, AttributeValue, Constant, ElementType, Op, Operator, ValueId, ValueOrigin};

/// The oldest version that operators are written in: before, shapes and axes were other attributes
/// of most operators.
pub(super) const OLDEST: i64 = 11;

/// Operators that an older version has under the same name, with the same meaning for the inputs
/// that it supports.
///
/// Later versions only added types, and attributes that [`Edit::fits`] detects.
#[rustfmt::skip]
const SAME: [&str; 88] = [
    "Abs", "Acos", "Add", "And", "ArgMax", "ArgMin", "Asin", "Atan", "Cast", "Ceil", "Clip",
    "Concat", "Constant", "ConstantOfShape", "Conv", "ConvTranspose", "Cos", "Cosh", "CumSum",
    "DepthToSpace", "Div", "Einsum", "Elu", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor",
    "GRU", "Gather", "GatherElements", "GatherND", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
    "Greater", "Identity", "If", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LSTM",
    "LeakyRelu", "Less", "Log", "Loop", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mod", "Mul",
    "Neg", "NonZero", "Not", "OneHot", "Or", "PRelu", "Pow", "RNN", "Range", "Reciprocal", "Relu",
    "Reshape", "Round", "ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sign", "Sin", "Size",
    "Slice", "Softplus", "Softsign", "SpaceToDepth", "Sqrt", "Sub", "Sum", "Tanh", "Tile", "TopK",
    "Transpose", "Where", "Xor",
];

type Step = fn(&mut Edit<'_>) -> Result<(), String>;

/// Returns the step that converts a node of an operator changed in version `since` to the version
/// before.
fn step(name: &str, since: i64) -> Option<Step> {
    Some(match (name, since) {
        ("LayerNormalization", 17) => normalise_by_parts,
        ("LessOrEqual" | "GreaterOrEqual", 12) => or_equal,
        ("Max" | "Min", 12) => extreme_of_integers,
        ("Shape", 15) => part_of_shape,
        ("Softmax" | "LogSoftmax", 13) => softmax_of_the_last,
        ("Split", 13) => |edit| input_to_ints(edit, "split", 1),
        ("Split", 18) => |edit| no_count_of_outputs(edit),
        ("Squeeze" | "Unsqueeze" | "ReduceSum", 13) => |edit| input_to_ints(edit, "axes", 1),
        (name, 18) if name.starts_with("Reduce") => |edit| input_to_ints(edit, "axes", 1),
        ("Pad", _) => pads_that_were_known,
        (name, _) if SAME.contains(&name) => |_| Ok(()),
        (name, _) if name.starts_with("Reduce") || matches!(name, "Split" | "Softmax") => {
            |_| Ok(())
        }
        ("LogSoftmax" | "Squeeze" | "Unsqueeze", _) => |_| Ok(()),
        ("LessOrEqual" | "GreaterOrEqual" | "BatchNormalization", _) => |_| Ok(()),
        _ => return None,
    })
}

/// Takes a node from a version to an older one.
pub(super) fn node(edit: &mut Edit<'_>, from: i64, to: i64) -> Result<(), String> {
    let mut version = from;
    while edit.node.op.domain.is_empty() {
        let Some(now) = Operator::of(&edit.node.op, version).filter(|now| now.since > to) else {
            break;
        };
        let step = step(now.name, now.since)
            .ok_or_else(|| format!("version {} can't be expressed in older ones", now.since))?;
        let (name, since) = (now.name, now.since);
        step(edit)?;

        // Each round goes back to an earlier version, so this ends.
        version = since - 1;
        if let Some(before) = Operator::of(&edit.node.op, version) {
            drop_defaults(edit, now, before);
            edit.fits(before)?;
        } else if &*edit.node.op.name == name {
            return Err(format!("it was added in version {since}"));
        }
    }

    Ok(())
}

/// Removes attributes that the older version does not have and that only restate the default.
fn drop_defaults(edit: &mut Edit<'_>, now: &Operator, before: &Operator) {
    for setting in &now.attributes {
        let is_new = before.setting(setting.name).is_none();
        let given = edit.node.attribute(setting.name);
        if is_new && given.is_some() && given == setting.default.as_ref() {
            edit.take(setting.name);
        }
    }
}

/// Integers that an input holds.
fn ints_of(edit: &Edit<'_>, position: usize) -> Option<Vec<i64>> {
    let id = edit.node.input(position)?;
    match &edit.body.value(id).origin {
        ValueOrigin::Constant(constant) => constant.as_ints(),
        _ => None,
    }
}

/// An input of integers becomes an attribute again.
fn input_to_ints(edit: &mut Edit<'_>, name: &str, position: usize) -> Result<(), String> {
    if edit.take("noop_with_empty_axes").is_some_and(|noop| noop != AttributeValue::Int(0)) {
        return Err("'noop_with_empty_axes' is set".to_owned());
    }
    if edit.node.input(position).is_none() {
        edit.node.inputs.truncate(position);
        return Ok(());
    }
    let values =
        ints_of(edit, position).ok_or_else(|| format!("its '{name}' must be constants"))?;
    edit.node.inputs.truncate(position);
    edit.set(name, AttributeValue::Ints(values));
    Ok(())
}

fn no_count_of_outputs(edit: &mut Edit<'_>) -> Result<(), String> {
    // Parts of one size are the default, but the last may be shorter since this version.
    match edit.take("num_outputs") {
        None => Ok(()),
        Some(_) => Err("'num_outputs' is given".to_owned()),
    }
}

/// Version 19 brought a mode that no attribute's name shows.
fn pads_that_were_known(edit: &mut Edit<'_>) -> Result<(), String> {
    match edit.node.attribute("mode") {
        Some(AttributeValue::Text(mode)) if mode == b"wrap" => {
            Err("older versions do not support the mode 'wrap'".to_owned())
        }
        _ => Ok(()),
    }
}

/// Returns the rank of an input, if known.
fn rank(edit: &Edit<'_>, position: usize) -> Option<usize> {
    let id = edit.node.input(position)?;
    edit.body.value(id).shape().map(<[_]>::len)
}

/// Before version 13, all dimensions from the axis on were one.
fn softmax_of_the_last(edit: &mut Edit<'_>) -> Result<(), String> {
    let axis = edit.node.int("axis").unwrap_or(-1);
    let last = rank(edit, 0).and_then(|rank| i64::try_from(rank).ok()).map(|rank| rank - 1);
    if axis != -1 && Some(axis) != last {
        return Err(format!("unknown whether axis {axis} is the last"));
    }
    edit.set("axis", last.unwrap_or(-1));
    Ok(())
}

/// Before version 15, `Shape` gave all sizes.
fn part_of_shape(edit: &mut Edit<'_>) -> Result<(), String> {
    let (start, end) = (edit.take("start"), edit.take("end"));
    if start.is_none() && end.is_none() {
        return Ok(());
    }

    let number = |value: Option<AttributeValue>, default| match value {
        Some(AttributeValue::Int(value)) => value,
        _ => default,
    };
    // An end of 0 after a start of -1 means the last one.
    let (start, end) = (number(start, 0), number(end, i64::MAX));
    let end = if start < 0 && end == 0 { i64::MAX } else { end };
    let inputs = edit.node.inputs.clone();
    let (all, shape) = edit.made("Shape", "sizes", inputs, Vec::new());
    edit.before.push(shape);
    let bounds = [("start", start), ("end", end), ("axis", 0)]
        .map(|(name, value)| edit.constant(name, Constant::ints(&[value])));
    edit.node.op = Op::onnx("Slice");
    edit.node.inputs = [all].into_iter().chain(bounds).map(Some).collect();
    Ok(())
}

/// Writes `a <= b` as `a < b or a == b`, which gives the same result for NaN.
fn or_equal(edit: &mut Edit<'_>) -> Result<(), String> {
    let strict = if &*edit.node.op.name == "LessOrEqual" { "Less" } else { "Greater" };
    let inputs = edit.node.inputs.clone();
    let (less, first) = edit.made(strict, "strictly", inputs.clone(), Vec::new());
    let (equal, second) = edit.made("Equal", "equal", inputs, Vec::new());
    edit.before.extend([first, second]);
    edit.node.op = Op::onnx("Or");
    edit.node.inputs = vec![Some(less), Some(equal)];
    Ok(())
}

/// Before version 12, `Max` and `Min` took floats alone.
fn extreme_of_integers(edit: &mut Edit<'_>) -> Result<(), String> {
    let element = |id: ValueId| edit.body.value(id).element();
    let is_float = |element: ElementType| element.is_float();
    if edit.node.inputs.iter().flatten().all(|id| element(*id).is_some_and(is_float)) {
        return Ok(());
    }
    let &[Some(a), Some(b)] = edit.node.inputs.as_slice() else {
        return Err("it must have two inputs, or inputs of floats".to_owned());
    };
    let order = if &*edit.node.op.name == "Max" { "Greater" } else { "Less" };
    let (first, compare) = edit.made(order, "order", vec![Some(a), Some(b)], Vec::new());
    edit.before.push(compare);
    edit.node.op = Op::onnx("Where");
    edit.node.inputs = vec![Some(first), Some(a), Some(b)];
    Ok(())
}

/// `LayerNormalization` over the last dimension by its formula.
fn normalise_by_parts(edit: &mut Edit<'_>) -> Result<(), String> {
    if edit.node.outputs.iter().skip(1).any(Option::is_some) {
        return Err("it gives back mean or deviation".to_owned());
    }
    let axis = match edit.take("axis") {
        Some(AttributeValue::Int(axis)) => axis,
        _ => -1,
    };
    let last = rank(edit, 0).and_then(|rank| i64::try_from(rank).ok()).map(|rank| rank - 1);
    if axis != -1 && Some(axis) != last {
        return Err(format!("unknown whether axis {axis} is the last"));
    }
    edit.take("stash_type");
    let epsilon = match edit.take("epsilon") {
        Some(AttributeValue::Float(epsilon)) => epsilon,
        _ => 1e-5,
    };
    let &[Some(x), Some(scale)] = &edit.node.inputs[..2.min(edit.node.inputs.len())] else {
        return Err("it has no scale".to_owned());
    };
    let bias = edit.node.input(2);

    let over_last = || {
        let axes = AttributeValue::Ints(vec![-1]);
        vec![Attribute { name: "axes".into(), value: axes }]
    };
    let mut add = |op: &str, name: &str, inputs: Vec<ValueId>, attributes| {
        let inputs = inputs.into_iter().map(Some).collect();
        let (output, node) = edit.made(op, name, inputs, attributes);
        edit.before.push(node);
        output
    };
    let mean = add("ReduceMean", "mean", vec![x], over_last());
    let centred = add("Sub", "centred", vec![x, mean], Vec::new());
    let squares = add("Mul", "squares", vec![centred, centred], Vec::new());
    let variance = add("ReduceMean", "variance", vec![squares], over_last());
    let epsilon = edit.constant("epsilon", Constant::float(epsilon));
    let mut add = |op: &str, name: &str, inputs: Vec<ValueId>| {
        let inputs = inputs.into_iter().map(Some).collect();
        let (output, node) = edit.made(op, name, inputs, Vec::new());
        edit.before.push(node);
        output
    };
    let shifted = add("Add", "shifted", vec![variance, epsilon]);
    let deviation = add("Sqrt", "deviation", vec![shifted]);
    let normal = add("Div", "normal", vec![centred, deviation]);
    let (op, inputs) = match bias {
        None => ("Mul", vec![Some(normal), Some(scale)]),
        Some(bias) => ("Add", vec![Some(add("Mul", "scaled", vec![normal, scale])), Some(bias)]),
    };
    edit.node.op = Op::onnx(op);
    edit.node.inputs = inputs;
    Ok(())
}
