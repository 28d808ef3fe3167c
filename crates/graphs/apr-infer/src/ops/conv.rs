//! Convolutions.

use std::ops::Range;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::window::{Windows, positive};
use crate::call::Call;
use crate::cast::singles;
use crate::matrix::{Left, Matrix, Right, Rows, product};
use crate::operator::{Operator, computes, moves};
use crate::shape::{count, sizes};
use crate::tensor::Data;
use crate::workers::{Alone, Workers, in_pieces, try_in_pieces};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("Conv", conv).decodes(),
    computes("com.microsoft::FusedConv", fused).decodes(),
    computes("ConvTranspose", transposed),
    moves("ConvInteger", integer),
];

/// Places whose windows are multiplied at a time, so that they stay in a cache.
const PLACES: usize = 512;

/// Sizes of a convolution.
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Number of input channels of a group. `filters` is the number of its output channels.
    pub(super) channels: usize,
    pub(super) filters: usize,
    pub(super) windows: Windows,
}

impl Sizes {
    pub(super) fn of(call: &Call<'_>, x: &[usize], weights: &[usize]) -> Result<Self> {
        let wrong =
            || Error::format(format!("filters of {weights:?} do not fit an input of {x:?}"));
        let (&[batch, channels], input) = x.split_first_chunk::<2>().ok_or_else(wrong)?;
        let (&[filters, in_group], kernel) = weights.split_first_chunk::<2>().ok_or_else(wrong)?;
        let groups = usize::try_from(call.int("group", 1)).unwrap_or(0);
        let fits =
            groups > 0 && in_group.checked_mul(groups) == Some(channels) && filters % groups == 0;
        if !fits
            || call
                .ints("kernel_shape")
                .is_some_and(|shape| sizes(&shape).ok().as_deref() != Some(kernel))
        {
            return Err(wrong());
        }
        let windows = Windows::of(call, input, kernel.to_vec())?;

        // The columns that `each` makes on each thread: of a small input, pads can make many.
        let places = PLACES.min(count(&windows.output));
        let columns = [call.workers().count(), in_group, windows.window_len(), places];
        call.room(&columns, ElementType::F32)?;
        let sizes = Self { batch, groups, channels: in_group, filters: filters / groups, windows };
        sizes.count(call)?;
        Ok(sizes)
    }

    /// Counts the products, and the windows, whose elements are put into columns.
    fn count(&self, call: &Call<'_>) -> Result<()> {
        let windows = self.batch.saturating_mul(self.groups).saturating_mul(self.channels);
        let elements = self.windows.window_len().saturating_mul(count(&self.windows.output));
        call.work(&[windows, elements])?;
        call.multiplications(&[windows, elements, self.filters])
    }

    /// Shape of the output.
    pub(super) fn shape(&self) -> Vec<usize> {
        [&[self.batch, self.groups * self.filters], &self.windows.output[..]].concat()
    }

    /// Returns `true` if the windows are the image itself.
    fn is_plain(&self) -> bool {
        let windows = &self.windows;
        let ones = |list: &[usize]| list.iter().all(|&size| size == 1);
        let no_pads = windows.before.iter().chain(&windows.after).all(|&pad| pad == 0);
        ones(&windows.kernel) && ones(&windows.strides) && no_pads
    }

    /// Runs `multiply` for each group of each image and each range of places, with the number of
    /// the first channel that comes in, the windows (`channels * window_len` rows, a column for
    /// each place), and where the result goes, in rows.
    pub(super) fn each<T: Copy + Default + Send + Sync>(
        &self,
        workers: &dyn Workers,
        x: &[T],
        out: &mut [T],
        multiply: impl Fn(usize, &[T], usize, &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        let (image, places) = (count(&self.windows.input), count(&self.windows.output));
        let block = self.filters * places;
        if block == 0 || self.channels == 0 || image == 0 {
            return Ok(());
        }

        let depth = self.channels * self.windows.window_len();

        // Where there are few groups, the places of each are cut as well.
        try_in_pieces(workers, out, block, |number, out| {
            let group = number % self.groups;
            let input = &x[number * self.channels * image..][..self.channels * image];
            if self.is_plain() {
                return multiply(group, input, places, out);
            }
            let mut columns = vec![T::default(); depth * PLACES.min(places)];
            let mut result = vec![T::default(); self.filters * PLACES.min(places)];
            for first in (0..places).step_by(PLACES) {
                let width = PLACES.min(places - first);
                for (row, columns) in columns[..depth * width].chunks_mut(width).enumerate() {
                    let len = self.windows.window_len();
                    let channel = &input[row / len * image..][..image];
                    self.windows.row(channel, row % len, first..first + width, columns);
                }
                let result = &mut result[..self.filters * width];

                // `multiply` may add to what it finds.
                result.fill(T::default());
                multiply(group, &columns[..depth * width], width, result)?;
                for (out, result) in out.chunks_mut(places).zip(result.chunks(width)) {
                    out[first..first + width].copy_from_slice(result);
                }
            }
            Ok(())
        })
    }
}

/// Elements of filters that are decoded at a time.
const FILTERS: usize = 1 << 20;

/// Filters of a convolution: in memory, or in the checkpoint, a row each.
enum Filters<'a> {
    Memory(&'a [f32]),
    Stored(Matrix<'a>),
}

impl Filters<'_> {
    /// Adds the product of a range of filters and the windows to `out`.
    fn multiply(
        &self,
        filters: Range<usize>,
        depth: usize,
        windows: Right<'_>,
        out: &mut [f32],
        workers: &dyn Workers,
    ) -> Result<()> {
        let matrix = match self {
            Self::Memory(values) => {
                let values = &values[filters.start * depth..filters.end * depth];
                return product(Left::in_rows(values, filters.len(), depth), windows, out, workers);
            }
            Self::Stored(matrix) => matrix,
        };

        let (mut scratch, mut decoded) = (Vec::new(), Vec::new());
        let step = (FILTERS / depth.max(1)).max(1);
        for first in filters.clone().step_by(step) {
            let rows = first..(first + step).min(filters.end);
            decoded.clear();
            matrix.decode(rows.clone(), 0, depth, &mut scratch, &mut decoded)?;
            let place = (first - filters.start) * windows.width()
                ..(rows.end - filters.start) * windows.width();
            product(Left::in_rows(&decoded, rows.len(), depth), windows, &mut out[place], workers)?;
        }

        Ok(())
    }
}

/// Computes the convolution with filters from the checkpoint. Returns `None` if the filters are not
/// decoded by rows.
fn stored(call: &Call<'_>) -> Result<Option<Tensor>> {
    let Value::Weight(handle) = call.value(1)? else { return Ok(None) };
    let x = call.tensor(0)?;
    let (Some(matrix), Some(weights)) = (call.flat_matrix(handle), call.weight_shape(handle))
    else {
        return Ok(None);
    };
    let sizes = Sizes::of(call, x.shape(), &weights)?;

    // Filters of single channels are small, and `depthwise` needs no windows in memory.
    if x.element() != ElementType::F32 || sizes.channels == 1 && sizes.filters == 1 {
        return Ok(None);
    }

    let shape = sizes.shape();
    let mut out = crate::pool::zeros(call.room(&shape, ElementType::F32)?);
    single(call, &sizes, x.values()?, &Filters::Stored(matrix), &mut out)?;
    add_bias(&mut out, call.optional(2)?.map(Tensor::values::<f32>).transpose()?, &sizes)?;
    Tensor::new(shape, out).map(Some)
}

fn conv(call: &mut Call<'_>) -> Result<Vec<Value>> {
    call.decode_inputs(&[0, 2, 3])?;
    if let Some(result) = stored(call)? {
        return Ok(vec![result.into()]);
    }

    call.decode_inputs(&[1])?;
    let (x, weights) = (call.tensor(0)?, call.tensor(1)?);
    let sizes = Sizes::of(call, x.shape(), weights.shape())?;
    let shape = sizes.shape();
    let total = call.room(&shape, x.element())?;
    match (x.data(), weights.data()) {
        (Data::F32(values), Data::F32(weights)) => {
            let mut out = crate::pool::zeros(total);
            if sizes.channels == 1 && sizes.filters == 1 {
                depthwise(call, &sizes, values, weights, &mut out);
            } else {
                single(call, &sizes, values, &Filters::Memory(weights), &mut out)?;
            }
            let bias = call.optional(2)?.map(Tensor::values::<f32>).transpose()?;
            add_bias(&mut out, bias, &sizes)?;
            Ok(vec![Tensor::new(shape, out)?.into()])
        }
        (Data::F64(values), Data::F64(weights)) => {
            let mut out = vec![0.0; total];
            multiply_plain(call.workers(), &sizes, values, weights, &mut out, |sum, a, b| {
                sum + a * b
            })?;
            let bias = call.optional(2)?.map(Tensor::values::<f64>).transpose()?;
            add_bias(&mut out, bias, &sizes)?;
            Ok(vec![Tensor::new(shape, out)?.into()])
        }
        _ => Err(Error::format(format!(
            "{} and {} can't be multiplied",
            x.element(),
            weights.element()
        ))),
    }
}

fn single(
    call: &Call<'_>,
    sizes: &Sizes,
    x: &[f32],
    weights: &Filters<'_>,
    out: &mut [f32],
) -> Result<()> {
    let depth = sizes.channels * sizes.windows.window_len();
    let one = sizes.batch * sizes.groups == 1;
    // With one group, the product itself is cut into pieces.
    let (outer, inner): (&dyn Workers, &dyn Workers) =
        if one { (&Alone, call.workers()) } else { (call.workers(), &Alone) };
    sizes.each(outer, x, out, |group, columns, width, out| {
        let filters = group * sizes.filters..(group + 1) * sizes.filters;
        weights.multiply(filters, depth, Right::Rows(columns, width), out, inner)
    })
}

/// One filter for each channel: a sum of shifted lines.
fn depthwise(call: &Call<'_>, sizes: &Sizes, x: &[f32], weights: &[f32], out: &mut [f32]) {
    let (image, places, len) =
        (count(&sizes.windows.input), count(&sizes.windows.output), sizes.windows.window_len());
    in_pieces(call.workers(), out, places.max(1), |number, out| {
        let input = &x[number * image..][..image];
        let filter = &weights[number % sizes.groups * len..][..len];
        let mut row = vec![0.0; places];
        for (at, weight) in filter.iter().enumerate() {
            sizes.windows.row(input, at, 0..places, &mut row);
            out.iter_mut().zip(&row).for_each(|(out, value)| *out += weight * value);
        }
    });
}

/// Any numbers, one multiplication after the other.
pub(super) fn multiply_plain<T: Copy + Default + Send + Sync>(
    workers: &dyn Workers,
    sizes: &Sizes,
    x: &[T],
    weights: &[T],
    out: &mut [T],
    add: impl Fn(T, T, T) -> T + Sync,
) -> Result<()> {
    let depth = sizes.channels * sizes.windows.window_len();
    sizes.each(workers, x, out, |group, columns, width, out| {
        for (filter, out) in out.chunks_mut(width).enumerate() {
            let filter = &weights[(group * sizes.filters + filter) * depth..][..depth];
            for (weight, row) in filter.iter().zip(columns.chunks(width)) {
                out.iter_mut().zip(row).for_each(|(out, value)| *out = add(*out, *weight, *value));
            }
        }
        Ok(())
    })
}

fn add_bias<T: Copy + std::ops::AddAssign>(
    out: &mut [T],
    bias: Option<&[T]>,
    sizes: &Sizes,
) -> Result<()> {
    let Some(bias) = bias else { return Ok(()) };
    let (filters, places) = (sizes.groups * sizes.filters, count(&sizes.windows.output));
    if bias.len() != filters {
        return Err(Error::format(format!("{} biases do not fit {filters} filters", bias.len())));
    }
    for (row, out) in out.chunks_mut(places.max(1)).enumerate() {
        out.iter_mut().for_each(|value| *value += bias[row % filters]);
    }
    Ok(())
}

/// A convolution with an activation behind it.
fn fused(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let mut result = conv(call)?.remove(0).tensor()?.clone();
    if let Some(more) = call.optional(3)? {
        result = super::binary::join(call, &result, more, super::binary::Sum)?;
    }
    let settings = call.floats("activation_params").unwrap_or_default();
    let activation = super::recurrent::activation(
        &call.text("activation", ""),
        settings.first().copied(),
        settings.get(1).copied(),
    )?;
    Ok(vec![super::elementwise::change::<f32>(call, result, activation)?.into()])
}

/// Returns the sizes of a transposed convolution: the sizes of the convolution whose input is this
/// one's output.
fn turned_sizes(call: &Call<'_>, x: &[usize], weights: &[usize]) -> Result<Sizes> {
    let wrong = || Error::format(format!("filters of {weights:?} do not fit an input of {x:?}"));
    let (&[batch, channels], input) = x.split_first_chunk::<2>().ok_or_else(wrong)?;

    // The filters of `ConvTranspose` begin with the channels that come in.
    let (&[in_channels, filters], kernel) = weights.split_first_chunk::<2>().ok_or_else(wrong)?;
    let groups = usize::try_from(call.int("group", 1)).unwrap_or(0);
    let rank = input.len();
    let grouped = (1..=channels).contains(&groups)
        && channels.is_multiple_of(groups)
        && channels == in_channels;
    if !grouped || kernel.len() != rank || kernel.contains(&0) {
        return Err(wrong());
    }

    let (strides, dilations) =
        (positive(call, "strides", rank, 1)?, positive(call, "dilations", rank, 1)?);
    let pads = fitting(call, "pads", 2 * rank)?.unwrap_or_else(|| vec![0; 2 * rank]);
    let extra = fitting(call, "output_padding", rank)?.unwrap_or_else(|| vec![0; rank]);
    let wanted = match call.ints("output_shape") {
        Some(shape) => {
            Some(sizes(shape.get(shape.len().saturating_sub(rank)..).unwrap_or_default())?)
        }
        None => None,
    };

    let auto = call.text("auto_pad", "NOTSET");
    let mut windows = Windows {
        input: vec![0; rank],
        kernel: kernel.to_vec(),
        strides,
        dilations,
        before: pads[..rank].to_vec(),
        after: pads[rank..].to_vec(),
        output: input.to_vec(),
    };

    for (dim, &extra) in extra.iter().enumerate() {
        let wanted = wanted.as_ref().and_then(|wanted| wanted.get(dim).copied());
        turned_size(&mut windows, dim, extra, wanted, &auto)?;
    }

    let sizes = Sizes { batch, groups, channels: filters, filters: channels / groups, windows };
    sizes.count(call)?;
    Ok(sizes)
}

/// Returns the sizes in an attribute, which must have `len` numbers.
fn fitting(call: &Call<'_>, name: &str, len: usize) -> Result<Option<Vec<usize>>> {
    let list = call.ints(name).map(|list| sizes(&list)).transpose()?;
    if list.as_ref().is_some_and(|list| list.len() != len) {
        return Err(Error::format(format!("{name} has not {len} numbers")));
    }
    Ok(list)
}

/// Computes the size of the result along a dimension, or the pads if the size is given.
fn turned_size(
    windows: &mut Windows,
    dim: usize,
    extra: usize,
    wanted: Option<usize>,
    auto: &str,
) -> Result<()> {
    let too_large = || Error::memory("the output does not fit the memory");
    let (places, stride) = (windows.output[dim], windows.strides[dim]);
    let full = places.saturating_sub(1).checked_mul(stride).ok_or_else(too_large)?;
    let full =
        full.checked_add(extra.saturating_add(windows.extent(dim)?)).ok_or_else(too_large)?;
    let same = auto.starts_with("SAME").then(|| places.saturating_mul(stride));
    if let Some(size) = wanted.or(same) {
        let total = full.saturating_sub(size);
        let half = total / 2;

        // The odd pad goes to the end for `SAME_UPPER` alone, by the formula of `ConvTranspose`.
        windows.before[dim] = if auto == "SAME_UPPER" { half } else { total - half };
        windows.after[dim] = total - windows.before[dim];
        windows.input[dim] = size;
    } else {
        let cut = windows.before[dim].saturating_add(windows.after[dim]);
        windows.input[dim] =
            full.checked_sub(cut).ok_or_else(|| Error::format("the pads cut off everything"))?;
    }

    Ok(())
}

fn transposed(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, weights) = (call.tensor(0)?, call.tensor(1)?);
    let sizes = turned_sizes(call, x.shape(), weights.shape())?;
    let element = x.element();
    let shape = [&[sizes.batch, sizes.groups * sizes.channels], &sizes.windows.input[..]].concat();
    let mut out = crate::pool::zeros(call.room(&shape, ElementType::F32)?);
    let (x, weights) = (singles(x)?, singles(weights)?);
    let (image, places) = (count(&sizes.windows.input), count(&sizes.windows.output));
    let (len, depth) = (sizes.windows.window_len(), sizes.channels * sizes.windows.window_len());
    let block = sizes.channels * image;

    // Each thread makes the columns of a whole image.
    call.room(&[call.workers().count(), depth, places], ElementType::F32)?;
    if block > 0 {
        try_in_pieces(call.workers(), &mut out, block, |number, out| {
            let group = number % sizes.groups;
            let filters = &weights[group * sizes.filters * depth..][..sizes.filters * depth];
            let left = Left {
                values: filters,
                rows: depth,
                depth: sizes.filters,
                row_step: 1,
                depth_step: depth,
            };
            let input = &x[number * sizes.filters * places..][..sizes.filters * places];
            let mut columns = vec![0.0; depth * places];
            product(left, Right::Rows(input, places), &mut columns, &Alone)?;
            for place in 0..places {
                sizes.windows.at_place(place, |at, offset| {
                    for channel in 0..sizes.channels {
                        out[channel * image + offset] +=
                            columns[(channel * len + at) * places + place];
                    }
                });
            }
            Ok(())
        })?;
    }

    if let Some(bias) = call.optional(2)? {
        let bias = singles(bias)?;
        let filters = sizes.groups * sizes.channels;
        if bias.len() != filters {
            return Err(Error::format(format!(
                "{} biases do not fit {filters} filters",
                bias.len()
            )));
        }
        for (row, out) in out.chunks_mut(image.max(1)).enumerate() {
            out.iter_mut().for_each(|value| *value += bias[row % filters]);
        }
    }

    Ok(vec![crate::cast::from_floats(out, shape, element)?.into()])
}

fn integer(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, weights) = (call.tensor(0)?, call.tensor(1)?);
    let sizes = Sizes::of(call, x.shape(), weights.shape())?;
    let shape = sizes.shape();
    let mut out = vec![0; call.room(&shape, ElementType::I32)?];
    let x = super::matmul::without_zero(x, call.optional(2)?, true)?;
    let weights = filters_without_zero(weights, call.optional(3)?)?;
    multiply_plain(call.workers(), &sizes, &x, &weights, &mut out, |sum: i32, a, b| {
        sum.wrapping_add(a.wrapping_mul(b))
    })?;
    Ok(vec![Tensor::new(shape, out)?.into()])
}

/// Filters minus their zero point, which is one number, or one for each filter.
pub(super) fn filters_without_zero(weights: &Tensor, zero: Option<&Tensor>) -> Result<Vec<i32>> {
    let mut shape = vec![1; weights.rank()];
    let Some(zero) = zero.filter(|zero| zero.len() > 1) else {
        return super::matmul::without_zero(weights, zero, true);
    };
    shape[0] = zero.len();
    super::matmul::without_zero(weights, Some(&zero.clone().reshaped(shape)?), true)
}
