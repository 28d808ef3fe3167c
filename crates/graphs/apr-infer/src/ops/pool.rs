//! Pools: one element for each window.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::window::Windows;
use crate::call::Call;
use crate::cast::from_doubles;
use crate::convert::Number;
use crate::operator::{Operator, computes};
use crate::shape::{count, sizes, strides};
use crate::tensor::with_numbers;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("MaxPool", max),
    computes("AveragePool", average),
    computes("LpPool", lp),
    computes("GlobalMaxPool", |call| {
        global(call, |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max))
    }),
    computes("GlobalAveragePool", |call| {
        global(call, |row| row.iter().sum::<f64>() / row.len() as f64)
    }),
    computes("GlobalLpPool", |call| {
        let p = call.int("p", 2) as f64;
        global(call, move |row| norm(row, p))
    }),
    computes("MaxUnpool", unpool),
    computes("RoiAlign", roi_align),
    computes("MaxRoiPool", max_roi_pool),
];

/// Returns the number of images, and the windows of a pool.
fn windows(call: &Call<'_>, x: &Tensor) -> Result<(usize, Windows)> {
    let (outer, input) =
        x.shape().split_first_chunk::<2>().ok_or_else(|| Error::format("channels are expected"))?;
    let kernel =
        sizes(&call.ints("kernel_shape").ok_or_else(|| Error::format("kernel_shape is missing"))?)?;
    let windows = Windows::of(call, input, kernel)?;

    // Each element of a window is found by itself.
    let places = [count(outer), count(&windows.output), windows.window_len()];
    call.work(&[&places[..], &[input.len() + 1]].concat())?;
    Ok((count(outer), windows))
}

fn output_shape(x: &Tensor, windows: &Windows) -> Vec<usize> {
    [&x.shape()[..2], &windows.output[..]].concat()
}

fn max(call: &mut Call<'_>) -> Result<Vec<Value>> {
    fn run<T: Number>(
        values: &[T],
        images: usize,
        windows: &Windows,
    ) -> (Vec<usize>, Vec<Option<usize>>) {
        let (image, places) = (count(&windows.input), count(&windows.output));
        let mut found = Vec::with_capacity(images * places);
        for number in 0..images {
            let image = &values[number * image..][..image];
            for place in 0..places {
                let mut best: Option<usize> = None;
                windows.at_place(place, |_, at| {
                    if best.is_none_or(|best| image[at] > image[best]) {
                        best = Some(at);
                    }
                });
                found.push(best);
            }
        }

        ((0..images).collect(), found)
    }

    let x = call.tensor(0)?;
    let (images, windows) = windows(call, x)?;
    let shape = output_shape(x, &windows);
    call.room(&shape, ElementType::I64)?;
    let (image, places) = (count(&windows.input), count(&windows.output).max(1));
    let (_, found) =
        with_numbers!(x.data(), values => run(values, images, &windows), Default::default());
    let offset =
        |(at, found): (usize, &Option<usize>)| found.map(|found| at / places * image + found);
    let offsets: Option<Vec<_>> = found.iter().enumerate().map(offset).collect();
    let offsets = offsets.ok_or_else(|| Error::format("a window is outside the image"))?;
    let data = crate::moving::picked(x.data(), offsets.len(), |visit| {
        offsets.iter().for_each(|&at| visit(at));
    });
    let values = x.like(shape.clone(), data)?.into();
    let by_columns = call.flag("storage_order", false);
    let number = |offset: &usize| {
        if by_columns {
            by_column(offset % image, &windows.input) + offset / image * image
        } else {
            *offset
        }
    };

    let indices = offsets.iter().map(|offset| number(offset) as i64).collect();
    Ok(vec![values, Tensor::new(shape, indices)?.into()])
}

/// Returns the number of an element of an image, counted with neighbours along the first dimension
/// adjacent.
fn by_column(offset: usize, image: &[usize]) -> usize {
    let steps = strides(image);
    let mut weight = 1;
    let mut number = 0;
    for dim in 0..image.len() {
        number += offset / steps[dim] % image[dim] * weight;
        weight *= image[dim];
    }
    number
}

/// Applies a function to the elements of each window and to the window's number of elements
/// including padding.
fn each(call: &Call<'_>, of: impl Fn(&[f64], usize) -> f64) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let (images, windows) = windows(call, x)?;
    let shape = output_shape(x, &windows);
    let mut out = Vec::with_capacity(call.room(&shape, ElementType::F64)?);
    let values = x.doubles()?;
    let image = count(&windows.input);
    let mut met = Vec::new();
    for number in 0..images {
        let image = &values[number * image..][..image];
        for place in 0..count(&windows.output) {
            met.clear();
            windows.at_place(place, |_, at| met.push(image[at]));
            out.push(of(&met, windows.padded_len(place)));
        }
    }

    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}

fn average(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let pads_count = call.flag("count_include_pad", false);
    each(call, |met, padded| {
        met.iter().sum::<f64>() / if pads_count { padded } else { met.len() } as f64
    })
}

/// Returns the p-norm of the values.
fn norm(values: &[f64], p: f64) -> f64 {
    libm::pow(values.iter().map(|x| libm::pow(x.abs(), p)).sum(), 1.0 / p)
}

fn lp(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let p = call.int("p", 2) as f64;
    each(call, |met, _| norm(met, p))
}

fn global(call: &mut Call<'_>, of: impl Fn(&[f64]) -> f64) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let (outer, inner) =
        x.shape().split_first_chunk::<2>().ok_or_else(|| Error::format("channels are expected"))?;
    let shape = [&outer[..], &vec![1; inner.len()]].concat();
    let len = count(inner);
    let values = x.doubles()?;
    let out = (0..count(outer)).map(|row| of(&values[row * len..][..len])).collect();
    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}

fn unpool(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, indices) = (call.tensor(0)?, call.tensor(1)?.integers()?);
    let (outer, inner) =
        x.shape().split_first_chunk::<2>().ok_or_else(|| Error::format("channels are expected"))?;
    let kernel = sizes(&call.ints("kernel_shape").unwrap_or_default())?;
    let stride = super::window::positive(call, "strides", inner.len(), 1)?;
    let pads = sizes(&call.ints("pads").unwrap_or_else(|| vec![0; 2 * inner.len()]))?;
    if kernel.len() != inner.len() || pads.len() != 2 * inner.len() {
        return Err(Error::format("kernel_shape and pads do not fit the input"));
    }

    let full = |dim: usize| {
        let size =
            inner[dim].saturating_sub(1).checked_mul(stride[dim])?.checked_add(kernel[dim])?;
        size.checked_sub(pads[dim] + pads[inner.len() + dim])
    };
    let own = (0..inner.len()).map(full).collect::<Option<Vec<_>>>();
    let own = [&outer[..], &own.ok_or_else(|| Error::format("the output has no size"))?].concat();

    if crate::tensor::elements(&own).is_none_or(|count| count == 0) && !indices.is_empty() {
        return Err(Error::format("the output has no elements that an index could name"));
    }

    // Indices are those of the shape that the pool would have had as input; the output may be
    // larger.
    let shape = match call.optional(2)? {
        Some(shape) => sizes(&shape.integers()?)?,
        None => own.clone(),
    };
    if shape.len() != own.len() {
        return Err(Error::format("the output shape does not fit the input"));
    }

    let mut out = vec![0.0; call.room(&shape, ElementType::F64)?];
    let steps = (strides(&own), strides(&shape));
    for (index, value) in indices.into_iter().zip(x.doubles()?) {
        let index = super::gather::position(index, count(&own))?;
        let mut at = 0;
        for (dim, size) in own.iter().enumerate() {
            at += index / steps.0[dim] % size * steps.1[dim];
        }
        *out.get_mut(at).ok_or_else(|| Error::format("an index is outside of the output"))? = value;
    }

    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}

/// Maximum number of points along a side of a bin. More points would take long and add no
/// information.
const MAX_POINTS: usize = 1 << 10;

/// Steps of work for a point, which is interpolated between four pixels.
const POINT: usize = 10;

/// Resizing of regions to one size.
struct Align {
    /// Size of the images. `rows` and `columns` are the size of a resized region.
    image: (usize, usize),
    rows: usize,
    columns: usize,
    /// Points along each side of a bin; 0 for one in each pixel.
    ratio: usize,
    scale: f64,
    /// `true` for the largest of a bin's points instead of the mean.
    largest: bool,
    /// `true` if the centres of pixels are at halves.
    half: bool,
}

/// The bins along one side of a region.
#[derive(Clone, Copy)]
struct Bins {
    start: f64,
    width: f64,
    points: usize,
}

impl Bins {
    fn at(self, bin: usize, point: usize) -> f64 {
        self.start
            + bin as f64 * self.width
            + (point as f64 + 0.5) * self.width / self.points as f64
    }
}

impl Align {
    fn of(call: &Call<'_>, image: (usize, usize)) -> Result<Self> {
        let size = |name: &str| usize::try_from(call.int(name, 1)).unwrap_or(0).max(1);
        let ratio = usize::try_from(call.int("sampling_ratio", 0)).unwrap_or(0);
        if ratio > MAX_POINTS {
            return Err(Error::format(format!("{ratio} points are too many for a bin")));
        }

        // The shift by half a pixel came with opset 16, and is the default since then.
        let default = if call.opset < 16 { "output_half_pixel" } else { "half_pixel" };
        Ok(Self {
            image,
            rows: size("output_height"),
            columns: size("output_width"),
            ratio,
            scale: f64::from(call.float("spatial_scale", 1.0)),
            largest: call.text("mode", "avg") == "max",
            half: call.text("coordinate_transformation_mode", default) == "half_pixel",
        })
    }

    /// Bins between two corners of a region.
    fn bins(&self, from: f64, to: f64, count: usize) -> Bins {
        let offset = if self.half { 0.5 } else { 0.0 };
        let (start, end) = (from * self.scale - offset, to * self.scale - offset);
        let size = if self.half { end - start } else { (end - start).max(1.0) };
        let width = size / count as f64;
        let points = if self.ratio > 0 {
            self.ratio
        } else {
            (width.ceil().max(1.0) as usize).min(MAX_POINTS)
        };
        Bins { start, width, points }
    }

    /// Bins of a region, down and across.
    fn sides(&self, [x1, y1, x2, y2]: [f64; 4]) -> [Bins; 2] {
        [self.bins(y1, y2, self.rows), self.bins(x1, x2, self.columns)]
    }

    /// Points of a region.
    fn points(&self, region: [f64; 4]) -> usize {
        let [down, across] = self.sides(region);
        (self.rows.saturating_mul(self.columns)).saturating_mul(down.points * across.points)
    }

    /// Resizes a region of one channel and appends it to `out`.
    fn region(&self, image: &[f64], region: [f64; 4], out: &mut Vec<f64>) {
        let [down, across] = self.sides(region);
        for bin in 0..self.rows * self.columns {
            let sample = |point: usize| {
                let y = down.at(bin / self.columns, point / across.points);
                let x = across.at(bin % self.columns, point % across.points);
                between(image, self.image, (y, x), self.largest)
            };
            let count = down.points * across.points;
            let samples = (0..count).map(sample);
            out.push(match self.largest {
                true => samples.fold(f64::NEG_INFINITY, f64::max),
                false => samples.sum::<f64>() / count as f64,
            });
        }
    }
}

/// Regions of images, each brought to one size: the mean or the largest of points between pixels.
fn roi_align(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, regions, batches) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?.integers()?);
    let &[n, channels, height, width] = x.shape() else {
        return Err(Error::format("images are expected"));
    };
    let align = Align::of(call, (height, width))?;
    let shape = vec![batches.len(), channels, align.rows, align.columns];
    let mut out = Vec::with_capacity(call.room(&shape, ElementType::F64)?);
    let (values, regions) = (x.doubles()?, regions.doubles()?);
    if regions.len() != batches.len() * 4 {
        return Err(Error::format("a region has four corners"));
    }

    for (region, &batch) in regions.as_chunks::<4>().0.iter().zip(&batches) {
        call.work(&[channels, align.points(*region), POINT])?;
        let batch = super::gather::position(batch, n)?;
        for channel in 0..channels {
            let image = &values[(batch * channels + channel) * height * width..][..height * width];
            align.region(image, *region, &mut out);
        }
    }

    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}

/// The value between four pixels, or the largest of their weighted values.
fn between(
    image: &[f64],
    (height, width): (usize, usize),
    (y, x): (f64, f64),
    largest: bool,
) -> f64 {
    // As in Mask R-CNN: up to a pixel outside of the image, its border counts.
    if y < -1.0 || y > height as f64 || x < -1.0 || x > width as f64 || image.is_empty() {
        return 0.0;
    }

    let along = |at: f64, size: usize| {
        let at = at.max(0.0);
        let low = (at as usize).min(size - 1);
        let (high, at) = if low + 1 >= size { (low, low as f64) } else { (low + 1, at) };
        (low, high, at - low as f64)
    };

    let ((top, bottom, down), (left, right, across)) = (along(y, height), along(x, width));
    let weighted = [
        (1.0 - down) * (1.0 - across) * image[top * width + left],
        (1.0 - down) * across * image[top * width + right],
        down * (1.0 - across) * image[bottom * width + left],
        down * across * image[bottom * width + right],
    ];
    if largest {
        weighted.into_iter().fold(f64::NEG_INFINITY, f64::max)
    } else {
        weighted.iter().sum()
    }
}

/// Regions of images, each cut into windows of whole pixels.
fn max_roi_pool(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, regions) = (call.tensor(0)?, call.tensor(1)?);
    let &[n, channels, height, width] = x.shape() else {
        return Err(Error::format("images are expected"));
    };
    if regions.rank() != 2 || regions.shape()[1] != 5 {
        return Err(Error::format("regions of five numbers are expected"));
    }
    let pooled = sizes(&call.ints("pooled_shape").unwrap_or_default())?;
    let &[rows, columns] = &pooled[..] else {
        return Err(Error::format("pooled_shape has two sizes"));
    };
    let scale = f64::from(call.float("spatial_scale", 1.0));
    let shape = vec![regions.shape().first().copied().unwrap_or(0), channels, rows, columns];
    let mut out = Vec::with_capacity(call.room(&shape, ElementType::F64)?);
    let values = x.doubles()?;

    // A bin may be as large as the image.
    let bins = rows.saturating_mul(columns);
    call.work(&[shape[0], channels, bins, height.saturating_mul(width)])?;
    for region in regions.doubles()?.as_chunks::<5>().0 {
        let batch = super::gather::position(region[0] as i64, n)?;
        let [left, top, right, bottom] = [1, 2, 3, 4].map(|at| (region[at] * scale).round());

        // As in Fast R-CNN: the last pixel belongs to a region, and one without any is taken for 1
        // x 1.
        let bin = |low: f64, high: f64, bins: usize| (high - low + 1.0).max(1.0) / bins as f64;
        let (bin_h, bin_w) = (bin(top, bottom, rows), bin(left, right, columns));
        let range = |start: f64, bin: f64, at: usize, size: usize| {
            let from = (start + (at as f64 * bin).floor()).clamp(0.0, size as f64) as usize;
            let to = (start + ((at + 1) as f64 * bin).ceil()).clamp(0.0, size as f64) as usize;
            from..to
        };
        for channel in 0..channels {
            let image = &values[(batch * channels + channel) * height * width..][..height * width];
            for place in 0..rows * columns {
                let (ys, xs) = (
                    range(top, bin_h, place / columns, height),
                    range(left, bin_w, place % columns, width),
                );
                let pixels = ys.flat_map(|y| xs.clone().map(move |x| y * width + x));
                let best = pixels.map(|at| image[at]).fold(f64::NEG_INFINITY, f64::max);
                out.push(if best.is_finite() { best } else { 0.0 });
            }
        }
    }

    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}
