//! Operators that compute with weights.

use apr_core::{Error, Result};
use apr_graph::Node;

use crate::emit::{Emitter, first, unknown};
use crate::text::{flag, number};

/// Writes a node that computes with weights.
pub(crate) fn learnt(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    match &*node.op.name {
        "LayerNormalization" => layer_norm(emitter, node),
        "InstanceNormalization" | "BatchNormalization" => norm_of_channels(emitter, node),
        "MaxPool" | "AveragePool" => pooled(emitter, node),
        "GlobalAveragePool" => of_all_places(emitter, node, "torch.mean"),
        "GlobalMaxPool" => of_all_places(emitter, node, "torch.amax"),
        "Gemm" => gemm(emitter, node),
        _ => convolution(emitter, node),
    }
}

fn layer_norm(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (_, tensor) = first(emitter, node)?;
    let scale = emitter.input(node, 1)?;
    let dims = emitter.sizes(scale).ok_or_else(|| Error::version("unknown sizes of its scale"))?;
    let scale = emitter.tensor(scale)?;
    let bias = match node.input(2) {
        Some(bias) => emitter.tensor(bias)?,
        None => "None".to_owned(),
    };
    let epsilon = number(node.float("epsilon").unwrap_or(1e-5));
    Ok(format!("torch.layer_norm({tensor}, {dims:?}, {scale}, {bias}, {epsilon})"))
}

/// Writes a normalization of each channel, by its own statistics or by the learnt ones.
fn norm_of_channels(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let mut inputs = Vec::new();
    for position in 0..node.inputs.len() {
        let value = emitter.input(node, position)?;
        inputs.push(emitter.tensor(value)?);
    }

    let epsilon = number(node.float("epsilon").unwrap_or(1e-5));
    match (&*node.op.name, inputs.as_slice()) {
        ("InstanceNormalization", [x, scale, bias]) => Ok(format!(
            "torch.instance_norm({x}, {scale}, {bias}, None, None, True, 0.1, {epsilon}, False)"
        )),
        ("BatchNormalization", [x, scale, bias, mean, variance])
            if node.int("training_mode").unwrap_or(0) == 0 =>
        {
            Ok(format!(
                "torch.batch_norm({x}, {scale}, {bias}, {mean}, {variance}, False, 0.1, {epsilon}, \
                 False)"
            ))
        }
        _ => Err(unknown()),
    }
}

/// The largest value, or the mean, of each window.
fn pooled(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    let axes = emitter.rank(x)?.saturating_sub(2);
    if !(1..=3).contains(&axes) {
        return Err(unknown());
    }
    let kernel = node.ints("kernel_shape").ok_or_else(unknown)?;
    let ones = vec![1; axes];
    let strides = node.ints("strides").unwrap_or(&ones);
    let dilations = node.ints("dilations").unwrap_or(&ones);
    let pads = even_pads(node, axes)?;

    // Half of a window of padding is all that torch takes, and the two round up differently.
    let is_wide = pads.iter().zip(kernel).any(|(pad, size)| 2 * pad > *size);
    if is_wide || node.int("ceil_mode").unwrap_or(0) != 0 {
        return Err(Error::version("windows beyond the end of the input are not written"));
    }
    if &*node.op.name == "MaxPool" {
        return Ok(format!(
            "torch.max_pool{axes}d({tensor}, {kernel:?}, {strides:?}, {pads:?}, {dilations:?}, \
             False)"
        ));
    }
    if dilations.iter().any(|step| *step != 1) {
        return Err(unknown());
    }
    let counts = flag(node.int("count_include_pad").unwrap_or(0) != 0);
    Ok(format!(
        "torch.avg_pool{axes}d({tensor}, {kernel:?}, {strides:?}, {pads:?}, False, {counts})"
    ))
}

/// One value of each channel.
fn of_all_places(emitter: &mut Emitter<'_>, node: &Node, function: &str) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    let axes: Vec<usize> = (2..emitter.rank(x)?).collect();
    Ok(format!("{function}({tensor}, {axes:?}, True)"))
}

/// Padding that is the same before and after, which is all that torch has.
fn even_pads(node: &Node, axes: usize) -> Result<Vec<i64>> {
    let pads = node.ints("pads").map_or_else(|| vec![0; 2 * axes], <[i64]>::to_vec);
    let (begins, ends) = pads.split_at(pads.len() / 2);
    let pads_itself = !matches!(node.text("auto_pad"), None | Some("NOTSET" | "VALID"));
    if begins != ends || pads_itself {
        return Err(Error::version("padding that differs before and after is not written"));
    }
    Ok(begins.to_vec())
}

fn gemm(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let mut sides = Vec::new();
    for (position, attribute) in [(0, "transA"), (1, "transB")] {
        let side = emitter.input(node, position)?;
        let side = emitter.tensor(side)?;
        let is_turned = node.int(attribute).unwrap_or(0) != 0;
        sides.push(if is_turned { format!("torch.permute({side}, [1, 0])") } else { side });
    }

    let factor =
        |name: &str| node.float(name).filter(|factor| (*factor - 1.0).abs() > 0.0).map(number);
    let mut product = format!("torch.matmul({})", sides.join(", "));
    if let Some(alpha) = factor("alpha") {
        product = format!("torch.mul({product}, {alpha})");
    }

    let Some(bias) = node.input(2) else { return Ok(product) };
    let mut bias = emitter.tensor(bias)?;
    if let Some(beta) = factor("beta") {
        bias = format!("torch.mul({bias}, {beta})");
    }

    Ok(format!("torch.add({product}, {bias})"))
}

fn convolution(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    let axes = emitter.rank(x)?.saturating_sub(2);
    let weight = emitter.input(node, 1)?;
    let weight = emitter.tensor(weight)?;
    let bias = match node.input(2) {
        Some(bias) => emitter.tensor(bias)?,
        None => "None".to_owned(),
    };
    let ones = vec![1; axes];
    let pads = even_pads(node, axes)?;
    let (strides, dilations) =
        (node.ints("strides").unwrap_or(&ones), node.ints("dilations").unwrap_or(&ones));
    let (none, groups) = (vec![0; axes], node.int("group").unwrap_or(1));
    Ok(format!(
        "torch.convolution({tensor}, {weight}, {bias}, {strides:?}, {pads:?}, {dilations:?}, \
         False, {none:?}, {groups})"
    ))
}
