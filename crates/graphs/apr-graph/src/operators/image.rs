//! Images of another size, and points between pixels.

use super::call::{Call, Rule, axes};
use crate::Dim;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("AffineGrid", affine_grid),
    ("GridSample", grid_sample),
    ("ImageDecoder", image_decoder),
    ("Resize", resize),
    ("Upsample", upsample),
];

fn upsample(call: &mut Call<'_>) -> Result<(), String> {
    let scales = match call.attribute("scales") {
        Some(crate::AttributeValue::Floats(scales)) => Some(scales.clone()),
        _ => call.floats(1),
    };
    scaled(call, scales)
}

/// Each size times a factor, rounded down.
fn scaled(call: &mut Call<'_>, scales: Option<Vec<f32>>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let mut sizes = shape.to_vec();
    let along = along(call, shape.len())?;
    match scales {
        Some(scales) if scales.len() == along.len() => {
            for (position, scale) in along.into_iter().zip(scales) {
                sizes[position] = scale_dim(&sizes[position], scale);
            }
        }
        Some(scales) => {
            return Err(format!(
                "there are {} factors for {} dimensions",
                scales.len(),
                along.len()
            ));
        }
        None => along.into_iter().for_each(|position| sizes[position] = Dim::Unknown),
    }

    call.set_shape(0, sizes);
    Ok(())
}

/// Returns the dimensions that change: the dimensions in `axes`, or all.
fn along(call: &Call<'_>, rank: usize) -> Result<Vec<usize>, String> {
    call.list("axes").map_or_else(|| Ok((0..rank).collect()), |list| axes(list, rank))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "ONNX computes sizes in floats"
)]
fn scale_dim(size: &Dim, scale: f32) -> Dim {
    if let Some(size) = size.as_integer() {
        return Dim::integer((size as f32 * scale).floor() as i64);
    }
    if scale == 1.0 {
        return size.clone();
    }
    let whole = scale.fract() == 0.0 && scale.abs() < 1.0e6;
    if whole { size.times(&Dim::integer(scale as i64)) } else { Dim::Unknown }
}

fn resize(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    // Version 10 had neither a region of interest nor sizes.
    let (scales, sizes) = if call.since() == 10 { (1, usize::MAX) } else { (2, 3) };
    // An empty tensor stands for an input that is left out.
    let empty =
        |position: usize| call.shape(position).is_some_and(|shape| shape == [Dim::fixed(0)]);
    if !call.has(sizes) || empty(sizes) {
        let scales = call.floats(scales);
        return scaled(call, scales);
    }

    let along = along(call, shape.len())?;
    let mut target = shape.to_vec();
    let given = call.dims(sizes);
    if let Some(given) = given.filter(|given| given.len() != along.len()) {
        return Err(format!("there are {} sizes for {} dimensions", given.len(), along.len()));
    }

    let stretch = call.text("keep_aspect_ratio_policy").is_none_or(|policy| policy == "stretch");
    for (position, axis) in along.iter().enumerate() {
        target[*axis] = match given {
            Some(given) if stretch => given[position].clone(),
            _ => Dim::Unknown,
        };
    }

    if let (false, Some(given)) = (stretch, given) {
        keep_ratio(call, shape, &along, given, &mut target);
    }

    call.set_shape(0, target);
    Ok(())
}

/// All sizes times the same factor: the greatest that fits in the given sizes, or the smallest that
/// fills them.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "ONNX computes sizes in floats"
)]
fn keep_ratio(call: &Call<'_>, shape: &[Dim], along: &[usize], given: &[Dim], target: &mut [Dim]) {
    let from: Option<Vec<i64>> = along.iter().map(|axis| shape[*axis].as_integer()).collect();
    let to: Option<Vec<i64>> = given.iter().map(Dim::as_integer).collect();
    let (Some(from), Some(to)) = (from, to) else { return };
    let factors = to.iter().zip(&from).map(|(to, from)| *to as f32 / *from as f32);
    let factor = match call.text("keep_aspect_ratio_policy") {
        Some("not_larger") => factors.fold(f32::INFINITY, f32::min),
        _ => factors.fold(0.0, f32::max),
    };
    for (axis, from) in along.iter().zip(from) {
        target[*axis] = Dim::integer((factor * from as f32).round() as i64);
    }
}

fn grid_sample(call: &mut Call<'_>) -> Result<(), String> {
    let (Some(image), Some(grid)) = (call.shape(0), call.shape(1)) else { return Ok(()) };
    if image.len() != grid.len() || image.len() < 3 {
        return Err(format!(
            "the image has {} dimensions, and the grid {}",
            image.len(),
            grid.len()
        ));
    }
    call.set_shape(0, [&image[..2], &grid[1..grid.len() - 1]].concat());
    Ok(())
}

fn affine_grid(call: &mut Call<'_>) -> Result<(), String> {
    let Some(size) = super::creation::from_sizes(call, 1)? else { return Ok(()) };
    let shape = match size.as_slice() {
        [batch, _, pixels @ ..] if (2..=3).contains(&pixels.len()) => {
            let mut shape = vec![batch.clone()];
            shape.extend_from_slice(pixels);
            shape.push(Dim::fixed(pixels.len() as u64));
            shape
        }
        _ => return Err(format!("an image can't have {} dimensions", size.len())),
    };
    call.set_shape(0, shape);
    Ok(())
}

fn image_decoder(call: &mut Call<'_>) -> Result<(), String> {
    let channels = if call.text("pixel_format") == Some("Grayscale") { 1 } else { 3 };
    call.set_shape(0, vec![Dim::Unknown, Dim::Unknown, Dim::fixed(channels)]);
    Ok(())
}
