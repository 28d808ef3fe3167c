//! Convolutions whose windows are bent.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::window::Windows;
use crate::call::Call;
use crate::cast::from_doubles;
use crate::operator::{Operator, computes};
use crate::shape::{count, sizes, strides};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[computes("DeformConv", deformed)];

/// Maximum number of dimensions of an image. A point between pixels has two neighbours along each
/// dimension.
const MAX_RANK: usize = 6;

/// Positions that the windows sample in an image.
struct Bent<'a> {
    windows: &'a Windows,
    /// Groups of channels that are bent alike.
    groups: usize,
    /// Offsets of one image: group, element of the window, dimension, place.
    offsets: &'a [f64],
    /// Group, element of the window, place.
    mask: Option<&'a [f64]>,
}

impl Bent<'_> {
    /// Returns the sample of a channel for an element of the window at a place.
    fn sample(&self, image: &[f64], group: usize, at: usize, place: usize) -> f64 {
        let Windows { kernel, dilations, before, .. } = self.windows;
        let (rank, len) = (kernel.len(), self.windows.window_len());
        let places = count(&self.windows.output);
        let start = self.windows.place(place);
        let steps = strides(kernel);
        let mut point = [0.0; MAX_RANK];
        for (dim, point) in point[..rank].iter_mut().enumerate() {
            let within = at / steps[dim] % kernel[dim] * dilations[dim];
            let moved = self.offsets[((group * len + at) * rank + dim) * places + place];
            *point = (start[dim] + within) as f64 - before[dim] as f64 + moved;
        }
        let weight = self.mask.map_or(1.0, |mask| mask[(group * len + at) * places + place]);
        weight * between(image, &self.windows.input, &point[..rank])
    }
}

/// The value between pixels, which are 0 outside of the image.
fn between(image: &[f64], input: &[usize], point: &[f64]) -> f64 {
    let steps = strides(input);
    let mut sum = 0.0;
    for corner in 0..1_usize << point.len() {
        let mut at = Some(0);
        let mut weight = 1.0;
        for (dim, &x) in point.iter().enumerate() {
            let (low, ahead) = (x.floor(), x - x.floor());
            let (place, share) =
                if corner >> dim & 1 == 1 { (low + 1.0, ahead) } else { (low, 1.0 - ahead) };
            weight *= share;
            let inside = place >= 0.0 && place < input[dim] as f64;
            at = at.filter(|_| inside).map(|at| at + place as usize * steps[dim]);
        }
        sum += at.map_or(0.0, |at: usize| weight * image[at]);
    }
    sum
}

/// Inputs: images, filters, offsets, bias, mask.
fn deformed(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, filters) = (call.tensor(0)?, call.tensor(1)?);
    let wrong =
        || Error::format(format!("filters of {:?} do not fit {:?}", filters.shape(), x.shape()));
    let (&[batch, channels], input) = x.shape().split_first_chunk::<2>().ok_or_else(wrong)?;
    let (&[out_channels, in_group], kernel) =
        filters.shape().split_first_chunk::<2>().ok_or_else(wrong)?;
    let number = |name: &str| usize::try_from(call.int(name, 1)).unwrap_or(0);
    let (groups, bent_groups) = (number("group"), number("offset_group"));
    let said = call.ints("kernel_shape").map(|shape| sizes(&shape)).transpose()?;
    if input.len() > MAX_RANK
        || kernel.len() != input.len()
        || said.is_some_and(|said| said != kernel)
        || groups == 0
        || bent_groups == 0
        || in_group.checked_mul(groups) != Some(channels)
        || !out_channels.is_multiple_of(groups)
        || !channels.is_multiple_of(bent_groups)
    {
        return Err(wrong());
    }

    let windows = Windows::of(call, input, kernel.to_vec())?;
    let (places, len, rank) = (count(&windows.output), windows.window_len(), input.len());
    let of_group = |per_element: usize| {
        [&[batch, bent_groups * len * per_element], &windows.output[..]].concat()
    };
    let (offsets, mask) = (call.tensor(2)?, call.optional(4)?);
    if offsets.shape() != of_group(rank) || mask.is_some_and(|mask| mask.shape() != of_group(1)) {
        return Err(Error::format("offsets or mask do not fit the windows"));
    }

    let shape = [&[batch, out_channels], &windows.output[..]].concat();
    let mut out = vec![0.0; call.room(&shape, ElementType::F64)?];
    call.room(&[channels, len], ElementType::F64)?;
    call.work(&[batch, places, len, channels, (1 << rank) * 4 * rank])?;
    call.work(&[batch, places, len, in_group, out_channels])?;
    let (values, weights) = (x.doubles()?, filters.doubles()?);
    let (offsets, mask) = (offsets.doubles()?, mask.map(Tensor::doubles).transpose()?);
    let (image, per_image) = (count(input), bent_groups * len * places);
    let mut columns = vec![0.0; channels * len];
    for number in 0..batch {
        let bent = Bent {
            windows: &windows,
            groups: bent_groups,
            offsets: &offsets[number * per_image * rank..][..per_image * rank],
            mask: mask.as_ref().map(|mask| &mask[number * per_image..][..per_image]),
        };
        for place in 0..places {
            for (at, column) in columns.iter_mut().enumerate() {
                let channel = at / len;
                let pixels = &values[(number * channels + channel) * image..][..image];
                let group = channel / (channels / bent.groups);
                *column = bent.sample(pixels, group, at % len, place);
            }
            for filter in 0..out_channels {
                let first = filter / (out_channels / groups) * in_group * len;
                let weights = &weights[filter * in_group * len..][..in_group * len];
                let seen = &columns[first..][..in_group * len];
                out[(number * out_channels + filter) * places + place] =
                    weights.iter().zip(seen).map(|(a, b)| a * b).sum();
            }
        }
    }

    if let Some(bias) = call.optional(3)? {
        let bias = bias.doubles()?;
        if bias.len() != out_channels {
            return Err(Error::format(format!("{} biases do not fit the filters", bias.len())));
        }
        for (row, out) in out.chunks_mut(places.max(1)).enumerate() {
            out.iter_mut().for_each(|value| *value += bias[row % out_channels]);
        }
    }
    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}
