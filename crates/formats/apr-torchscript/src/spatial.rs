//! Operators that make images and sequences larger: `Pad` and `Resize`.

use apr_core::{Error, Result};
use apr_graph::{ElementType, Node};

use crate::emit::{Emitter, first, unknown};
use crate::text::{flag, list};

/// Adds a constant before and after.
pub(crate) fn padded(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    if !matches!(node.text("mode"), None | Some("constant")) {
        return Err(Error::version("padding modes other than constant are not written"));
    }

    let (x, tensor) = first(emitter, node)?;
    let rank = emitter.rank(x)?;
    let pads = match (node.input(1), node.ints("pads")) {
        (Some(pads), _) => emitter.list(pads)?,
        (None, Some(pads)) => pads.iter().map(ToString::to_string).collect(),
        (None, None) => return Err(unknown()),
    };
    let axes = match node.input(3) {
        Some(axes) => {
            let axes = emitter.numbers(axes)?;
            axes.iter().map(|&axis| emitter.axis(axis, rank)).collect::<Result<Vec<_>>>()?
        }
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(Error::format("it has not two pads for each axis"));
    }

    // `torch` begins with the last dimension.
    let mut both = Vec::with_capacity(2 * rank);
    for axis in (0..rank).rev() {
        let at = axes.iter().position(|padded| *padded == axis);
        for offset in [0, axes.len()] {
            both.push(at.map_or_else(|| "0".to_owned(), |at| pads[at + offset].clone()));
        }
    }
    let value = match (node.input(2), node.float("value")) {
        (Some(value), _) => {
            let is_float = emitter.element(x).is_none_or(ElementType::is_float);
            let number = if is_float { "float" } else { "int" };
            format!("{number}({})", emitter.tensor(value)?)
        }
        (None, value) => crate::text::number(value.unwrap_or(0.0)),
    };
    Ok(format!("torch.constant_pad_nd({tensor}, {}, {value})", list(&both)))
}

/// Resizes images, `[batch, channels, height, width]`, to a height and width.
pub(crate) fn resized(emitter: &mut Emitter<'_>, node: &Node) -> Result<String> {
    let (x, tensor) = first(emitter, node)?;
    let sizes = node
        .input(3)
        .ok_or_else(|| Error::version("resizing by factors is not written, only that to sizes"))?;
    let sizes = emitter.list(sizes)?;
    let rank = emitter.rank(x)?;
    let sides = match (rank, sizes.as_slice(), node.ints("axes")) {
        (4, [_, _, height, width], None | Some([0, 1, 2, 3]))
        | (4, [height, width], Some([2, 3] | [-2, -1])) => list(&[height.clone(), width.clone()]),
        _ => return Err(Error::version("only the two last of four dimensions are resized")),
    };
    let is_plain = node.int("antialias").unwrap_or(0) == 0
        && node.int("exclude_outside").unwrap_or(0) == 0
        && matches!(node.text("keep_aspect_ratio_policy"), None | Some("stretch"));
    if !is_plain {
        return Err(unknown());
    }

    let by_corners = match node.text("coordinate_transformation_mode") {
        None | Some("half_pixel" | "pytorch_half_pixel") => Some(false),
        Some("align_corners") => Some(true),
        _ => None,
    };
    let is_cubic_of_torch = node.float("cubic_coeff_a").is_some_and(|a| (a + 0.75).abs() < 1e-6);
    let is_floor = node.text("nearest_mode") == Some("floor")
        && node.text("coordinate_transformation_mode") == Some("asymmetric");
    match (node.text("mode"), by_corners) {
        (Some("cubic"), Some(corners)) if is_cubic_of_torch => {
            let corners = flag(corners);
            Ok(format!("torch.upsample_bicubic2d({tensor}, {sides}, {corners}, None, None)"))
        }
        (Some("linear"), Some(corners)) => {
            let corners = flag(corners);
            Ok(format!("torch.upsample_bilinear2d({tensor}, {sides}, {corners}, None, None)"))
        }
        (None | Some("nearest"), _) if is_floor => {
            Ok(format!("torch.upsample_nearest2d({tensor}, {sides}, None, None)"))
        }
        _ => Err(Error::version("this way of resizing is not written")),
    }
}
