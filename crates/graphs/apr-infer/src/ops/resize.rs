//! Images in other sizes, and points of images.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::call::Call;
use crate::cast::from_doubles;
use crate::operator::{Operator, computes};
use crate::shape::{around, axis, count, sizes, strides};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("Upsample", |call| old(call, "scales", 1)),
    computes("Resize", |call| old(call, "scales", 1)).since(10),
    computes("Resize", resize).since(11),
    computes("GridSample", grid_sample),
    computes("AffineGrid", affine_grid),
];

/// Steps of work that a place in an image is.
const POINT: usize = 10;

/// Elements of the input that one of the output is made of, with weights. Empty: the value outside
/// of the image.
type Taps = Vec<(usize, f64)>;

/// Interpolation method.
struct Method {
    mode: String,
    nearest: String,
    coordinates: String,
    cubic: f64,
    antialias: bool,
    exclude_outside: bool,
}

/// One dimension that is resized.
#[derive(Clone, Copy)]
struct Line {
    input: usize,
    output: usize,
    scale: f64,
    region: (f64, f64),
}

impl Method {
    /// Returns `true` if resizing changes a dimension.
    fn changes(&self, line: Line) -> bool {
        let cropped = self.coordinates == "tf_crop_and_resize" && line.region != (0.0, 1.0);
        line.input != 0 && (line.scale != 1.0 || line.output != line.input || cropped)
    }

    /// Returns the position of an output element in the input, or `None` if it is outside.
    fn coordinate(&self, x: usize, line: Line) -> Option<f64> {
        let Line { input, output, scale, region: (start, end) } = line;
        let (x, last, length) = (x as f64, input as f64 - 1.0, scale * input as f64);
        Some(match self.coordinates.as_str() {
            "align_corners" if length == 1.0 => 0.0,
            "align_corners" => x * last / (length - 1.0),
            "asymmetric" => x / scale,
            "tf_crop_and_resize" => {
                let at = if length == 1.0 {
                    (end - start) * last / 2.0
                } else {
                    x * (end - start) * last / (length - 1.0)
                };
                let at = at + start * last;
                return (0.0..=last).contains(&at).then_some(at);
            }
            "pytorch_half_pixel" if length == 1.0 => -0.5,
            "half_pixel_symmetric" => {
                let adjustment = output as f64 / length;
                input as f64 / 2.0 * (1.0 - adjustment) + (x + 0.5) / scale - 0.5
            }
            _ => (x + 0.5) / scale - 0.5,
        })
    }

    /// Returns the weights of neighbours, and the position of the first one relative to the left
    /// neighbour. The ratio is above 0 and at most 1.
    fn weights(&self, ratio: f64, scale: f64) -> (i64, Vec<f64>) {
        if self.mode == "nearest" {
            return (0, if self.nearest_is_left(ratio) { vec![1.0, 0.0] } else { vec![0.0, 1.0] });
        }

        // Only shrinking needs more neighbours.
        let scale = if self.antialias { scale.min(1.0) } else { 1.0 };
        let reach = if self.mode == "cubic" { 2.0 } else { 1.0 };
        let first = (-reach / scale).floor() as i64 + 1;
        let of = |at: i64| {
            let distance = ((at as f64 - ratio) * scale).abs();
            if self.mode == "cubic" {
                self.cubic_weight(distance)
            } else {
                (1.0 - distance).clamp(0.0, 1.0)
            }
        };

        let weights: Vec<_> = (first..2 - first).map(of).collect();
        let sum: f64 = if self.antialias { weights.iter().sum() } else { 1.0 };
        (first, weights.into_iter().map(|weight| weight / sum).collect())
    }

    /// Returns the maximum number of neighbours that contribute to an output element.
    fn most_taps(&self, line: Line) -> usize {
        let scale = if self.antialias { line.scale.min(1.0) } else { 1.0 };
        (4.0 / scale).ceil() as usize
    }

    /// Returns `true` if the left neighbour is the one that counts.
    fn nearest_is_left(&self, ratio: f64) -> bool {
        match self.nearest.as_str() {
            _ if ratio == 1.0 => false,
            "round_prefer_ceil" => ratio < 0.5,
            "floor" => true,
            "ceil" => false,
            _ => ratio <= 0.5,
        }
    }

    fn cubic_weight(&self, x: f64) -> f64 {
        let a = self.cubic;
        if x <= 1.0 {
            ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        } else if x < 2.0 {
            ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
        } else {
            0.0
        }
    }

    fn taps(&self, x: usize, line: Line) -> Taps {
        let Some(at) = self.coordinate(x, line) else { return Taps::new() };

        // ONNX's reference counts a whole coordinate from the neighbour before it.
        let whole = at.floor();
        let (left, ratio) =
            if at == whole { (whole as i64 - 1, 1.0) } else { (whole as i64, at - whole) };
        let (first, mut weights) = self.weights(ratio, line.scale);
        let place = |number: usize| left + first + number as i64;
        if self.exclude_outside {
            for (number, weight) in weights.iter_mut().enumerate() {
                if !(0..line.input as i64).contains(&place(number)) {
                    *weight = 0.0;
                }
            }
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }

        let inside = |number: usize| place(number).clamp(0, line.input as i64 - 1) as usize;
        weights
            .iter()
            .enumerate()
            .filter(|(_, weight)| **weight != 0.0)
            .map(|(at, weight)| (inside(at), *weight))
            .collect()
    }
}

/// Versions before 11: scales alone, corners at the corners.
fn old(call: &mut Call<'_>, attribute: &str, input: usize) -> Result<Vec<Value>> {
    let scales = match call.optional(input)? {
        Some(scales) => scales.doubles()?,
        None => call.floats(attribute).unwrap_or_default().into_iter().map(f64::from).collect(),
    };
    let x = call.tensor(0)?;
    let mode = call.text("mode", "nearest");
    let method = Method {
        mode: if mode == "bilinear" { "linear".into() } else { mode },
        nearest: "floor".into(),
        coordinates: "asymmetric".into(),
        cubic: -0.75,
        antialias: false,
        exclude_outside: false,
    };

    let lines = lines_by_scales(x.shape(), &(0..x.rank()).collect::<Vec<_>>(), &scales)?;
    Ok(vec![resized(call, x, &lines, &method, 0.0)?.into()])
}

fn lines_by_scales(shape: &[usize], axes: &[usize], scales: &[f64]) -> Result<Vec<Line>> {
    if scales.len() != axes.len() || scales.iter().any(|scale| !(*scale > 0.0 && scale.is_finite()))
    {
        return Err(Error::format(format!("the scales {scales:?} do not fit {axes:?}")));
    }
    let mut lines = unchanged(shape);
    for (&at, &scale) in axes.iter().zip(scales) {
        lines[at].scale = scale;
        lines[at].output = (shape[at] as f64 * scale).floor() as usize;
    }
    Ok(lines)
}

fn unchanged(shape: &[usize]) -> Vec<Line> {
    shape
        .iter()
        .map(|&size| Line { input: size, output: size, scale: 1.0, region: (0.0, 1.0) })
        .collect()
}

fn lines_by_sizes(
    shape: &[usize],
    axes: &[usize],
    wanted: &[usize],
    policy: &str,
) -> Result<Vec<Line>> {
    if wanted.len() != axes.len() || axes.iter().any(|&at| shape[at] == 0) {
        return Err(Error::format(format!("the sizes {wanted:?} do not match {shape:?}")));
    }

    let scales: Vec<_> =
        axes.iter().zip(wanted).map(|(&at, &size)| size as f64 / shape[at] as f64).collect();
    let common = match policy {
        "not_larger" => Some(scales.iter().copied().fold(f64::INFINITY, f64::min)),
        "not_smaller" => Some(scales.iter().copied().fold(0.0, f64::max)),
        _ => None,
    };
    let mut lines = unchanged(shape);
    for (number, &at) in axes.iter().enumerate() {
        lines[at].scale = common.unwrap_or(scales[number]);
        let rounded = common.map(|scale| (scale * shape[at] as f64 + 0.5).floor() as usize);
        lines[at].output = rounded.unwrap_or(wanted[number]);
    }

    Ok(lines)
}

fn resize(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let axes = match call.ints("axes") {
        Some(axes) => axes.iter().map(|&at| axis(at, x.rank())).collect::<Result<Vec<_>>>()?,
        None => (0..x.rank()).collect(),
    };
    let given =
        |position| call.optional(position).map(|tensor| tensor.filter(|tensor| !tensor.is_empty()));
    let mut lines = match (given(2)?, given(3)?) {
        (Some(scales), _) => lines_by_scales(x.shape(), &axes, &scales.doubles()?)?,
        (None, Some(wanted)) => {
            let policy = call.text("keep_aspect_ratio_policy", "stretch");
            lines_by_sizes(x.shape(), &axes, &sizes(&wanted.integers()?)?, &policy)?
        }
        (None, None) => return Err(Error::format("missing scales or sizes")),
    };

    let method = Method {
        mode: call.text("mode", "nearest"),
        nearest: call.text("nearest_mode", "round_prefer_floor"),
        coordinates: call.text("coordinate_transformation_mode", "half_pixel"),
        cubic: f64::from(call.float("cubic_coeff_a", -0.75)),
        antialias: call.flag("antialias", false),
        exclude_outside: call.flag("exclude_outside", false),
    };

    if let (Some(region), true) = (given(1)?, method.coordinates == "tf_crop_and_resize") {
        let region = region.doubles()?;
        if region.len() != 2 * axes.len() {
            return Err(Error::format("the region does not fit the axes"));
        }
        for (number, &at) in axes.iter().enumerate() {
            lines[at].region = (region[number], region[axes.len() + number]);
        }
    }

    let outside = f64::from(call.float("extrapolation_value", 0.0));
    Ok(vec![resized(call, x, &lines, &method, outside)?.into()])
}

fn resized(
    call: &Call<'_>,
    x: &Tensor,
    lines: &[Line],
    method: &Method,
    outside: f64,
) -> Result<Tensor> {
    let shape: Vec<_> = lines.iter().map(|line| line.output).collect();
    call.room(&shape, ElementType::F64)?;
    let (mut values, mut now) = (x.doubles()?, x.shape().to_vec());
    let mut empty: Vec<(usize, Vec<bool>)> = Vec::new();

    // An element's weights are products of those along each dimension: one after the other will do.
    for (dim, line) in lines.iter().enumerate().filter(|(_, line)| method.changes(**line)) {
        let most = method.most_taps(*line);
        call.room_for(&[line.output, most], size_of::<(usize, f64)>() as u64)?;
        let (before, _, after) = around(&now, dim);
        call.work(&[line.output, most, before.saturating_mul(after).saturating_add(POINT)])?;
        let taps: Vec<_> = (0..line.output).map(|at| method.taps(at, *line)).collect();
        let sizes = around(&now, dim);
        let mut out = vec![0.0; call.room(&[sizes.0, line.output, sizes.2], ElementType::F64)?];
        sum_taps(&values, sizes, &taps, &mut out);
        empty.push((dim, taps.iter().map(Vec::is_empty).collect()));
        (values, now[dim]) = (out, line.output);
    }

    // What is outside along one dimension is outside, whatever later dimensions made of it.
    let steps = strides(&shape);
    for (dim, empty) in empty.iter().filter(|(_, empty)| empty.contains(&true)) {
        for (at, value) in values.iter_mut().enumerate() {
            if empty[at / steps[*dim] % shape[*dim]] {
                *value = outside;
            }
        }
    }

    from_doubles(values, shape, x.element())
}

/// Maximum number of dimensions of an image whose points are sampled. A point between pixels has
/// two or four neighbours along each dimension.
const MAX_GRID_RANK: usize = 6;

/// Puts together the elements along one dimension. `sizes` are those before, at and after it in the
/// input.
fn sum_taps(
    values: &[f64],
    (_, size, after): (usize, usize, usize),
    taps: &[Taps],
    out: &mut [f64],
) {
    for (number, out) in out.chunks_mut(after.max(1)).enumerate() {
        let (outer, at) = (number / taps.len(), number % taps.len());
        for &(from, weight) in &taps[at] {
            let row = &values[(outer * size + from) * after..][..after];
            out.iter_mut().zip(row).for_each(|(out, value)| *out += weight * value);
        }
    }
}

/// Settings for sampling points of an image.
struct Sampler<'a> {
    image: &'a [f64],
    sizes: &'a [usize],
    mode: &'a str,
    padding: &'a str,
    align: bool,
}

impl Sampler<'_> {
    fn bounds(&self, dim: usize) -> (f64, f64) {
        let size = self.sizes[dim] as f64;
        if self.align { (0.0, size - 1.0) } else { (-0.5, size - 0.5) }
    }

    fn reflected(&self, x: f64, dim: usize) -> f64 {
        let (low, high) = self.bounds(dim);
        let range = high - low;
        if range <= 0.0 {
            return 0.0;
        }
        let distance = (x - low).rem_euclid(2.0 * range);
        low + if distance > range { 2.0 * range - distance } else { distance }
    }

    /// Places and weights along one dimension.
    fn taps(&self, x: f64, dim: usize) -> Vec<(Option<usize>, f64)> {
        let last = self.sizes[dim] as f64 - 1.0;
        let (low, high) = self.bounds(dim);

        // ONNX's reference rounds with `rint`, PyTorch with `nearbyint`: both halves to even.
        let mut at = if self.mode == "nearest" { x.round_ties_even() } else { x };
        if (at < low || at > high) && self.mode != "cubic" {
            match self.padding {
                "border" => at = at.clamp(0.0, last),
                "reflection" => at = self.reflected(at, dim),
                _ => {}
            }
        }

        let floor = at.floor();
        let ratio = at - floor;
        let weights = match self.mode {
            "nearest" => vec![(0.0, 1.0)],
            "cubic" => {
                let cubic = Method {
                    mode: "cubic".into(),
                    nearest: String::new(),
                    coordinates: String::new(),
                    cubic: -0.75,
                    antialias: false,
                    exclude_outside: false,
                };
                (-1..3)
                    .map(|step| {
                        (f64::from(step), cubic.cubic_weight((f64::from(step) - ratio).abs()))
                    })
                    .collect()
            }
            _ => vec![(0.0, 1.0 - ratio), (1.0, ratio)],
        };

        weights.into_iter().map(|(step, weight)| (self.place(floor + step, dim), weight)).collect()
    }

    /// Returns the pixel along one dimension, or `None` if it counts as 0.
    fn place(&self, at: f64, dim: usize) -> Option<usize> {
        let last = self.sizes[dim] as f64 - 1.0;
        let at = match self.padding {
            _ if (0.0..=last).contains(&at) => at,
            "border" => at.clamp(0.0, last),
            "reflection" => self.reflected(at, dim).round().clamp(0.0, last),
            _ => return None,
        };
        Some(at as usize)
    }

    /// The value at a point, whose coordinates are from -1 to 1, the last dimension first.
    fn value(&self, point: &[f64]) -> f64 {
        let rank = self.sizes.len();
        let mut sum = vec![(Some(0_usize), 1.0)];
        for dim in 0..rank {
            let (size, x) = (self.sizes[dim] as f64, point[rank - 1 - dim]);
            let x = if self.align {
                (x + 1.0) / 2.0 * (size - 1.0)
            } else {
                ((x + 1.0) * size - 1.0) / 2.0
            };

            // As an integer, a coordinate that is no number would be some place.
            let taps = if x.is_finite() { self.taps(x, dim) } else { vec![(None, 1.0)] };
            let joined = |(offset, weight): &(Option<usize>, f64)| {
                let of = |(place, own): &(Option<usize>, f64)| {
                    (
                        offset.zip(*place).map(|(offset, place)| offset * self.sizes[dim] + place),
                        weight * own,
                    )
                };
                taps.iter().map(of).collect::<Vec<_>>()
            };

            sum = sum.iter().flat_map(joined).collect();
        }

        sum.into_iter().map(|(at, weight)| at.map_or(0.0, |at| self.image[at] * weight)).sum()
    }
}

fn grid_sample(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, grid) = (call.tensor(0)?, call.tensor(1)?);
    let wrong =
        || Error::format(format!("a grid of {:?} does not fit {:?}", grid.shape(), x.shape()));
    let (&[n, channels], inner) = x.shape().split_first_chunk::<2>().ok_or_else(wrong)?;
    let rank = inner.len();
    if rank > MAX_GRID_RANK
        || grid.rank() != rank + 2
        || grid.shape()[0] != n
        || grid.shape()[rank + 1] != rank
        || inner.contains(&0)
    {
        return Err(wrong());
    }

    // Before opset 20 the modes were called `bilinear` and `bicubic`.
    let mode = match call.text("mode", "linear").as_str() {
        "nearest" => "nearest",
        "cubic" | "bicubic" => "cubic",
        _ => "linear",
    };
    let (padding, align) = (call.text("padding_mode", "zeros"), call.flag("align_corners", false));
    let shape = [&[n, channels], &grid.shape()[1..=rank]].concat();
    let mut out = Vec::with_capacity(call.room(&shape, ElementType::F64)?);
    let neighbours = if mode == "cubic" { 4_usize } else { 2 }.pow(rank as u32);
    call.work(&[&shape[..], &[neighbours, POINT]].concat())?;
    let (values, points) = (x.doubles()?, grid.doubles()?);
    let (image, per_image) = (count(inner), count(&grid.shape()[1..=rank]) * rank);
    for batch in 0..n {
        for channel in 0..channels {
            let image = &values[(batch * channels + channel) * image..][..image];
            let sampler = Sampler { image, sizes: inner, mode, padding: &padding, align };
            out.extend(
                points[batch * per_image..][..per_image]
                    .chunks(rank)
                    .map(|point| sampler.value(point)),
            );
        }
    }

    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}

fn affine_grid(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (theta, size) = (call.tensor(0)?, sizes(&call.tensor(1)?.integers()?)?);
    let rank = size.len().saturating_sub(2);
    let n = size.first().copied().unwrap_or(0);
    if rank == 0 || theta.shape() != [n, rank, rank + 1] {
        return Err(Error::format(format!(
            "a matrix of {:?} does not fit {size:?}",
            theta.shape()
        )));
    }

    let align = call.flag("align_corners", false);
    let inner = &size[2..];
    let shape = [&[n], inner, &[rank]].concat();
    let mut out = Vec::with_capacity(call.room(&shape, ElementType::F64)?);
    let (matrices, steps) = (theta.doubles()?, strides(inner));
    for batch in 0..n {
        let matrix = &matrices[batch * rank * (rank + 1)..][..rank * (rank + 1)];
        for place in 0..count(inner) {
            let coordinate = |dim: usize| {
                let (at, size) = ((place / steps[dim] % inner[dim]) as f64, inner[dim] as f64);
                match align {
                    true if size > 1.0 => 2.0 * at / (size - 1.0) - 1.0,
                    true => -1.0,
                    false => (2.0 * at + 1.0) / size - 1.0,
                }
            };
            for row in matrix.chunks(rank + 1) {
                // A point is (x, y, z), so that its first coordinate is of the last dimension.
                let sum: f64 =
                    (0..rank).map(|column| row[column] * coordinate(rank - 1 - column)).sum();
                out.push(sum + row[rank]);
            }
        }
    }

    Ok(vec![from_doubles(out, shape, theta.element())?.into()])
}
