//! Versions of operators that need more than another number.

use super::edit::Edit;
use crate::{
    Attribute, AttributeValue, Constant, ConstantData, ElementType, Op, ValueId, ValueType,
};

pub(super) type Step = fn(&mut Edit<'_>) -> Result<(), String>;

/// Returns the step that converts a node of an operator that changed in a version.
pub(super) fn step(name: &str, since: i64) -> Option<Step> {
    Some(match (name, since) {
        (
            "Add" | "Sub" | "Mul" | "Div" | "Pow" | "And" | "Or" | "Xor" | "Greater" | "Less"
            | "Equal" | "Gemm",
            7,
        ) => broadcast_is_implied,
        ("Dropout" | "BatchNormalization", 7) => is_always_a_test,
        ("BatchNormalization", 9) => spatial_is_implied,
        ("BatchNormalization", 14) => no_training_outputs,
        ("Clip", 11) => clip_bounds_are_inputs,
        ("DFT", 20) => dft_axis_is_an_input,
        ("Dropout", 10) => mask_is_truth,
        ("Dropout", 12) => dropout_ratio_is_an_input,
        ("GridSample", 20) => grid_modes_have_new_names,
        ("GroupNormalization", 21) => scales_are_of_channels,
        ("LogSoftmax" | "Softmax" | "Hardmax", 13) => softmax_of_one_dimension,
        ("Pad", 11) => pads_are_inputs,
        ("PRelu", 7) => slope_is_widened,
        ("Reshape", 5) => |edit| edit.ints_to_input("shape", 1),
        ("Resize", 11) => resize_says_how,
        ("Resize", 13) => resize_mode_that_is_gone,
        ("Scan", 9) => scan_without_batch,
        ("Scatter", 11) => scatter_elements,
        ("Slice", 10) => slice_bounds_are_inputs,
        ("Split", 13) => |edit| edit.ints_to_input("split", 1),
        ("Split", 18) => split_counts_its_outputs,
        ("Squeeze" | "Unsqueeze" | "ReduceSum", 13) => |edit| edit.ints_to_input("axes", 1),
        ("TopK", 10) => top_k_is_an_input,
        ("Upsample", 9) => upsample_scales_are_an_input,
        ("Upsample", 10) => upsample_is_resize,
        (_, 6) => |edit| {
            edit.take("consumed_inputs");
            Ok(())
        },
        (name, 18) if name.starts_with("Reduce") => |edit| edit.ints_to_input("axes", 1),
        _ => return None,
    })
}

/// Since version 7 inputs are always widened, from the last dimension on.
fn broadcast_is_implied(edit: &mut Edit<'_>) -> Result<(), String> {
    let widened = matches!(edit.take("broadcast"), Some(AttributeValue::Int(1)));
    let Some(AttributeValue::Int(axis)) = edit.take("axis").filter(|_| widened) else {
        return Ok(());
    };

    // The second input stood from that dimension on: it gets dimensions of 1 behind its own.
    let rank =
        |at: usize| edit.node.input(at).and_then(|id| edit.body.value(id).shape()).map(<[_]>::len);
    let (Some(first), Some(second)) = (rank(0), rank(1)) else {
        return Err("unknown shapes of its inputs".to_owned());
    };
    let axis = usize::try_from(axis).unwrap_or(first.saturating_sub(second));
    let behind = first.saturating_sub(axis + second);
    if behind > 0 {
        unsqueeze_input(edit, 1, behind);
    }

    Ok(())
}

/// Appends dimensions of size 1 to an input.
fn unsqueeze_input(edit: &mut Edit<'_>, position: usize, behind: usize) {
    let shape =
        edit.node.input(position).and_then(|id| edit.body.value(id).shape()).unwrap_or_default();
    let mut sizes: Vec<i64> = vec![0; shape.len()];
    // A size of 0 is that of the input at the same place; those behind are 1.
    sizes.resize(shape.len() + behind, 1);
    let target = edit.constant("wide", Constant::ints(&sizes));
    let inputs = vec![edit.node.inputs[position], Some(target)];
    let (wide, node) = edit.made("Reshape", "widened", inputs, Vec::new());
    edit.before.push(node);
    edit.node.inputs[position] = Some(wide);
}

/// The slope of `[channels]` was for the second dimension.
fn slope_is_widened(edit: &mut Edit<'_>) -> Result<(), String> {
    let shape = |at: usize| edit.node.input(at).and_then(|id| edit.body.value(id).shape());
    let (Some(x), Some(slope)) = (shape(0), shape(1)) else {
        return Err("unknown shapes of its inputs".to_owned());
    };
    let single = slope.iter().all(|size| size.as_integer() == Some(1));
    if slope.len() == 1 && !single && x.len() > 2 {
        let behind = x.len() - 2;
        unsqueeze_input(edit, 1, behind);
    }
    Ok(())
}

fn is_always_a_test(edit: &mut Edit<'_>) -> Result<(), String> {
    edit.take("consumed_inputs");
    match edit.take("is_test") {
        None | Some(AttributeValue::Int(0))
            if edit.node.outputs.iter().skip(1).any(Option::is_some) =>
        {
            Err("it is for training".to_owned())
        }
        _ => Ok(()),
    }
}

fn spatial_is_implied(edit: &mut Edit<'_>) -> Result<(), String> {
    match edit.take("spatial") {
        None | Some(AttributeValue::Int(1)) => Ok(()),
        _ => Err("'spatial' is 0".to_owned()),
    }
}

fn no_training_outputs(edit: &mut Edit<'_>) -> Result<(), String> {
    if edit.node.outputs.iter().skip(1).any(Option::is_some) {
        return Err("it has outputs for training".to_owned());
    }

    // Older versions have five outputs, of which this one knows three.
    edit.node.outputs.truncate(1);
    Ok(())
}

/// The mask becomes one of truth values.
fn mask_is_truth(edit: &mut Edit<'_>) -> Result<(), String> {
    let Some(mask) = edit.node.outputs.get(1).copied().flatten() else { return Ok(()) };
    if edit.outputs.contains(&mask) {
        return Err("its mask would be of other elements".to_owned());
    }
    if let ValueType::Tensor(tensor) = &mut edit.body.value_mut(mask).kind {
        tensor.element = Some(ElementType::Bool);
    }
    Ok(())
}

fn dropout_ratio_is_an_input(edit: &mut Edit<'_>) -> Result<(), String> {
    if let Some(AttributeValue::Float(ratio)) = edit.take("ratio") {
        edit.input(1, "ratio", Constant::float(ratio));
    }
    Ok(())
}

/// A number of the type of the node's first input.
fn number_like(edit: &Edit<'_>, value: f32) -> Result<Constant, String> {
    let element =
        edit.node.input(0).and_then(|id| edit.body.value(id).element()).unwrap_or(ElementType::F32);
    let bytes = match element {
        ElementType::F32 => value.to_le_bytes().to_vec(),
        ElementType::F64 => f64::from(value).to_le_bytes().to_vec(),
        _ => return Err(format!("its input is of {element}")),
    };
    Ok(Constant { element, data: ConstantData::Bytes(bytes), ..Constant::float(value) })
}

fn clip_bounds_are_inputs(edit: &mut Edit<'_>) -> Result<(), String> {
    for (position, name) in [(1, "min"), (2, "max")] {
        if let Some(AttributeValue::Float(bound)) = edit.take(name) {
            let bound = number_like(edit, bound)?;
            edit.input(position, name, bound);
        }
    }
    Ok(())
}

fn pads_are_inputs(edit: &mut Edit<'_>) -> Result<(), String> {
    edit.ints_to_input("pads", 1)?;
    if let Some(AttributeValue::Float(value)) = edit.take("value") {
        let value = number_like(edit, value)?;
        edit.input(2, "value", value);
    }
    Ok(())
}

fn slice_bounds_are_inputs(edit: &mut Edit<'_>) -> Result<(), String> {
    edit.ints_to_input("starts", 1)?;
    edit.ints_to_input("ends", 2)?;
    edit.ints_to_input("axes", 3)
}

fn top_k_is_an_input(edit: &mut Edit<'_>) -> Result<(), String> {
    let Some(AttributeValue::Int(k)) = edit.take("k") else {
        return Err("it has no 'k'".to_owned());
    };
    edit.input(1, "k", Constant::ints(&[k]));
    Ok(())
}

fn dft_axis_is_an_input(edit: &mut Edit<'_>) -> Result<(), String> {
    let axis = match edit.take("axis") {
        Some(AttributeValue::Int(axis)) => axis,
        // The default of version 17.
        _ => 1,
    };
    edit.input(2, "axis", Constant::int(axis));
    Ok(())
}

fn grid_modes_have_new_names(edit: &mut Edit<'_>) -> Result<(), String> {
    let mode = match edit.node.text("mode") {
        None | Some("bilinear") => "linear",
        Some("bicubic") => "cubic",
        Some(_) => "nearest",
    };
    edit.set("mode", mode);
    Ok(())
}

/// Before version 13 it was of all dimensions from the axis on together.
fn softmax_of_one_dimension(edit: &mut Edit<'_>) -> Result<(), String> {
    let axis = edit.node.int("axis").unwrap_or(1);
    let input = edit.node.inputs.first().copied().flatten();
    let rank = input.and_then(|id| edit.body.value(id).shape()).map(<[_]>::len);
    let last = rank.and_then(|rank| i64::try_from(rank).ok()).map(|rank| rank - 1);

    // Of the last dimension alone, both versions say the same.
    if axis == -1 || last == Some(axis) {
        edit.set("axis", -1);
        return Ok(());
    }

    let (shape, shape_node) = edit.made("Shape", "shape", vec![input], Vec::new());
    let along = vec![Attribute { name: "axis".into(), value: AttributeValue::Int(axis) }];
    let (flat, flat_node) = edit.made("Flatten", "flat", vec![input], along);
    let (result, mut back) = edit.made("Reshape", "back", vec![None, Some(shape)], Vec::new());
    back.inputs[0] = Some(result);
    back.outputs = std::mem::replace(&mut edit.node.outputs, vec![Some(result)]);
    edit.node.inputs = vec![Some(flat)];
    edit.set("axis", -1);
    edit.before.extend([shape_node, flat_node]);
    edit.after.push(back);
    Ok(())
}

/// Repeats scale and bias, which were per group and are per channel, once for each channel of a
/// group.
fn scales_are_of_channels(edit: &mut Edit<'_>) -> Result<(), String> {
    let channels =
        edit.node.input(0).and_then(|id| edit.body.value(id).shape()?.get(1)?.as_integer());
    let groups = edit.node.int("num_groups").filter(|groups| *groups > 0);
    let (Some(channels), Some(groups)) = (channels, groups) else {
        return Err("unknown number of channels of its input".to_owned());
    };
    for (position, name) in [(1, "scale"), (2, "bias")] {
        let given = edit.node.input(position).ok_or_else(|| format!("it has no {name}"))?;
        let column = edit.constant("column", Constant::ints(&[-1, 1]));
        let wide = edit.constant("wide", Constant::ints(&[1, channels / groups]));
        let flat = edit.constant("flat", Constant::ints(&[-1]));
        let mut value = given;
        for (op, shape) in [("Reshape", column), ("Expand", wide), ("Reshape", flat)] {
            let (made, node) = edit.made(op, name, vec![Some(value), Some(shape)], Vec::new());
            edit.before.push(node);
            value = made;
        }
        edit.node.inputs[position] = Some(value);
    }

    Ok(())
}

fn split_counts_its_outputs(edit: &mut Edit<'_>) -> Result<(), String> {
    // Version 18 wants the sizes of the parts, or their number.
    if edit.node.input(1).is_none() {
        let outputs = i64::try_from(edit.node.outputs.len()).unwrap_or(i64::MAX);
        edit.set("num_outputs", outputs);
    }
    Ok(())
}

fn upsample_scales_are_an_input(edit: &mut Edit<'_>) -> Result<(), String> {
    let Some(AttributeValue::Floats(scales)) = edit.take("scales") else {
        return Err("it has no 'scales'".to_owned());
    };
    edit.input(1, "scales", Constant::floats(&scales));
    Ok(())
}

fn upsample_is_resize(edit: &mut Edit<'_>) -> Result<(), String> {
    edit.node.op = Op::onnx("Resize");
    Ok(())
}

/// Sets the options that version 10 implied.
fn resize_says_how(edit: &mut Edit<'_>) -> Result<(), String> {
    let scales: Option<ValueId> = edit.node.input(1);
    edit.input(1, "roi", Constant::floats(&[]));
    edit.node.inputs.truncate(2);
    edit.node.inputs.push(scales);
    edit.set("coordinate_transformation_mode", "asymmetric");
    if edit.node.text("mode").is_none_or(|mode| mode == "nearest") {
        edit.set("nearest_mode", "floor");
    }
    Ok(())
}

fn resize_mode_that_is_gone(edit: &mut Edit<'_>) -> Result<(), String> {
    match edit.node.text("coordinate_transformation_mode") {
        Some("tf_half_pixel_for_nn") => Err("'tf_half_pixel_for_nn' is gone".to_owned()),
        _ => Ok(()),
    }
}

fn scan_without_batch(_: &mut Edit<'_>) -> Result<(), String> {
    Err("it scans batches, which newer ones do not".to_owned())
}

fn scatter_elements(edit: &mut Edit<'_>) -> Result<(), String> {
    edit.node.op = Op::onnx("ScatterElements");
    Ok(())
}
