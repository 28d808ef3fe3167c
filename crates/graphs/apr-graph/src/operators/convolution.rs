//! Windows that move over an image: convolutions and pools.

use super::call::{Call, Rule, same, show};
use crate::gradient::{Rule as Gradient, Step, index};
use crate::{AttributeValue, Dim, ValueId};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("AveragePool", pool),
    ("Col2Im", col_to_im),
    ("Conv", conv),
    ("ConvInteger", conv),
    ("ConvTranspose", conv_transpose),
    ("DeformConv", conv),
    ("GlobalAveragePool", global_pool),
    ("GlobalLpPool", global_pool),
    ("GlobalMaxPool", global_pool),
    ("LpPool", pool),
    ("MaxPool", pool),
    ("MaxRoiPool", max_roi_pool),
    ("MaxUnpool", max_unpool),
    ("QLinearConv", q_linear_conv),
    ("RoiAlign", roi_align),
];

/// Gradient rules of the operators.
pub(super) const GRADIENTS: &[(&str, Gradient)] =
    &[("Conv", conv_gradient), ("GlobalAveragePool", average_gradient), ("MaxPool", max_gradient)];

/// Window that moves over an image.
struct Window {
    kernel: Vec<Dim>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Pads,
    ceil: bool,
}

enum Pads {
    /// Before each dimension, then after each.
    Given(Vec<i64>),
    /// Padding with which the output's size is the input's size divided by the stride.
    Same,
}

impl Window {
    /// The window of a node over an image of `rank` dimensions.
    fn of(call: &Call<'_>, kernel: Vec<Dim>) -> Result<Self, String> {
        let rank = kernel.len();
        let list = |name: &str| -> Result<Vec<i64>, String> {
            let list = call.list(name).map_or_else(|| vec![1; rank], <[i64]>::to_vec);
            if list.len() != rank || list.iter().any(|value| *value < 1) {
                return Err(format!("'{name}' is {list:?}, which does not fit {rank} dimensions"));
            }
            Ok(list)
        };

        let pads = match call.text("auto_pad") {
            Some("SAME_UPPER" | "SAME_LOWER") => Pads::Same,
            Some("VALID") => Pads::Given(vec![0; 2 * rank]),
            _ => Pads::Given(call.list("pads").map_or_else(|| vec![0; 2 * rank], <[i64]>::to_vec)),
        };
        if let Pads::Given(pads) = &pads
            && pads.len() != 2 * rank
        {
            return Err(format!("'pads' has {} numbers, not {}", pads.len(), 2 * rank));
        }
        let (strides, dilations) = (list("strides")?, list("dilations")?);
        Ok(Self { kernel, strides, dilations, pads, ceil: call.is_set("ceil_mode") })
    }

    /// Returns the number of positions of the window in a dimension.
    fn places(&self, position: usize, size: &Dim) -> Result<Dim, String> {
        let stride = Dim::integer(self.strides[position]);
        let Pads::Given(pads) = &self.pads else {
            return Ok(size.plus(&stride).minus(&Dim::fixed(1)).quotient(&stride));
        };
        let before = Dim::integer(pads[position]);
        let after = Dim::integer(pads[position + self.kernel.len()]);
        let padded = size.plus(&before).plus(&after);
        let room = padded.minus(&self.reach(position));
        if room.as_integer().is_some_and(|room| room < 0) {
            return Err(format!(
                "the window of {} does not fit {padded} elements",
                self.reach(position)
            ));
        }

        if !self.ceil {
            return Ok(room.quotient(&stride).plus(&Dim::fixed(1)));
        }

        let places =
            room.plus(&stride).minus(&Dim::fixed(1)).quotient(&stride).plus(&Dim::fixed(1));

        // The last place must begin in the input or in the padding before it.
        let last = places.minus(&Dim::fixed(1)).times(&stride).as_integer();
        let outside = match last.zip(size.plus(&before).as_integer()) {
            Some((last, end)) => last >= end,
            // A window no smaller than the stride and the padding together: the last place is
            // within at any size.
            None if self.reach(position).minus(&after).minus(&stride).is_at_least(0) => false,
            None => return Ok(Dim::Unknown),
        };

        Ok(if outside { places.minus(&Dim::fixed(1)) } else { places })
    }

    /// Returns the distance from the first to the last element under the window, plus 1.
    fn reach(&self, position: usize) -> Dim {
        let steps = self.kernel[position].minus(&Dim::fixed(1));
        steps.times(&Dim::integer(self.dilations[position])).plus(&Dim::fixed(1))
    }

    fn over(&self, image: &[Dim]) -> Result<Vec<Dim>, String> {
        image.iter().enumerate().map(|(position, size)| self.places(position, size)).collect()
    }
}

/// `[batch, channels]`, and the sizes of the image.
type Image<'a> = (&'a [Dim], &'a [Dim]);

/// Returns the image of an input, if its shape is known.
fn image<'a>(call: &Call<'a>, position: usize) -> Result<Option<Image<'a>>, String> {
    match call.shape(position) {
        None => Ok(None),
        Some(shape) if shape.len() < 2 => {
            Err(format!("{} is {}, no image", call.name_of(position), show(shape)))
        }
        Some(shape) => Ok(Some(shape.split_at(2))),
    }
}

/// The size of the kernel: an attribute, or what follows the weight's first two dimensions.
fn kernel(call: &Call<'_>, weight: Option<usize>) -> Option<Vec<Dim>> {
    if let Some(kernel) = call.list("kernel_shape") {
        return Some(kernel.iter().copied().map(Dim::integer).collect());
    }
    call.shape(weight?)?.get(2..).map(<[Dim]>::to_vec)
}

fn conv(call: &mut Call<'_>) -> Result<(), String> {
    convolve(call, 1)
}

fn q_linear_conv(call: &mut Call<'_>) -> Result<(), String> {
    convolve(call, 3)
}

/// `weight`: which input is `[outputs, inputs of a group, kernel...]`.
pub(super) fn convolve(call: &mut Call<'_>, weight: usize) -> Result<(), String> {
    let Some((front, pixels)) = image(call, 0)? else { return Ok(()) };
    if let Some(weights) = call.shape(weight) {
        if weights.len() != pixels.len() + 2 {
            let (weights, image) = (weights.len(), pixels.len() + 2);
            return Err(format!("the weight has {weights} dimensions, and the input {image}"));
        }
        let group = Dim::integer(call.int("group").unwrap_or(1));
        same(&front[1], &weights[1].times(&group)).map_err(|error| format!("channels: {error}"))?;
    }

    let Some(kernel) = kernel(call, Some(weight)).filter(|kernel| kernel.len() == pixels.len())
    else {
        return Ok(());
    };
    let channels = call.shape(weight).map_or(Dim::Unknown, |shape| shape[0].clone());
    let window = Window::of(call, kernel)?;
    let mut shape = vec![front[0].clone(), channels];
    shape.extend(window.over(pixels)?);
    call.set_shape(0, shape);
    Ok(())
}

pub(super) fn pool(call: &mut Call<'_>) -> Result<(), String> {
    let Some((front, pixels)) = image(call, 0)? else { return Ok(()) };
    let Some(kernel) = kernel(call, None) else { return Ok(()) };
    if kernel.len() != pixels.len() {
        return Err(format!(
            "the kernel has {} dimensions, and the image {}",
            kernel.len(),
            pixels.len()
        ));
    }

    let mut shape = front.to_vec();
    shape.extend(Window::of(call, kernel)?.over(pixels)?);
    call.set_shape(1, shape.clone());
    call.set_shape(0, shape);
    Ok(())
}

pub(super) fn global_pool(call: &mut Call<'_>) -> Result<(), String> {
    let Some((front, pixels)) = image(call, 0)? else { return Ok(()) };
    let ones = vec![Dim::fixed(1); pixels.len()];
    call.set_shape(0, [front, &ones].concat());
    Ok(())
}

fn conv_transpose(call: &mut Call<'_>) -> Result<(), String> {
    let Some((front, pixels)) = image(call, 0)? else { return Ok(()) };
    let Some(kernel) = kernel(call, Some(1)).filter(|kernel| kernel.len() == pixels.len()) else {
        return Ok(());
    };
    let group = Dim::integer(call.int("group").unwrap_or(1));
    let channels = call
        .shape(1)
        .and_then(|shape| shape.get(1))
        .map_or(Dim::Unknown, |size| size.times(&group));
    let mut shape = vec![front[0].clone(), channels];
    match call.list("output_shape") {
        // It may name only the sizes of the image, or all.
        Some(sizes) if sizes.len() >= pixels.len() => {
            shape.extend(sizes[sizes.len() - pixels.len()..].iter().copied().map(Dim::integer));
        }
        Some(_) => return Err("'output_shape' has too few sizes".to_owned()),
        None => shape.extend(grown(call, kernel, pixels)?),
    }

    call.set_shape(0, shape);
    Ok(())
}

/// The image that a transposed convolution makes.
fn grown(call: &Call<'_>, kernel: Vec<Dim>, pixels: &[Dim]) -> Result<Vec<Dim>, String> {
    let window = Window::of(call, kernel)?;
    let extra = call.list("output_padding").map_or_else(|| vec![0; pixels.len()], <[i64]>::to_vec);
    let size = |position: usize, size: &Dim| {
        let stride = Dim::integer(window.strides[position]);
        // SAME makes each size that of the input times the stride.
        let Pads::Given(pads) = &window.pads else { return size.times(&stride) };
        let cut = Dim::integer(pads[position]).plus(&Dim::integer(pads[position + pixels.len()]));
        let extra = Dim::integer(extra.get(position).copied().unwrap_or(0));
        let last = size.minus(&Dim::fixed(1)).times(&stride);
        last.plus(&window.reach(position)).plus(&extra).minus(&cut)
    };
    Ok(pixels.iter().enumerate().map(|(position, pixel)| size(position, pixel)).collect())
}

fn max_unpool(call: &mut Call<'_>) -> Result<(), String> {
    let Some((front, pixels)) = image(call, 0)? else { return Ok(()) };
    if call.has(2) {
        if let Some(sizes) = call.dims(2) {
            call.set_shape(0, sizes.to_vec());
        }
        return Ok(());
    }

    let Some(kernel) = kernel(call, None).filter(|kernel| kernel.len() == pixels.len()) else {
        return Ok(());
    };
    let mut shape = front.to_vec();
    shape.extend(grown(call, kernel, pixels)?);
    call.set_shape(0, shape);
    Ok(())
}

fn max_roi_pool(call: &mut Call<'_>) -> Result<(), String> {
    let (Some((front, _)), Some(rois)) = (image(call, 0)?, call.shape(1)) else { return Ok(()) };
    let (Some(count), Some(pooled)) = (rois.first(), call.list("pooled_shape")) else {
        return Ok(());
    };
    let mut shape = vec![count.clone(), front[1].clone()];
    shape.extend(pooled.iter().copied().map(Dim::integer));
    call.set_shape(0, shape);
    Ok(())
}

fn roi_align(call: &mut Call<'_>) -> Result<(), String> {
    call.expect_rank(0, 4)?;
    call.expect_rank(1, 2)?;
    call.expect_rank(2, 1)?;
    let channels = call.shape(0).map_or(Dim::Unknown, |shape| shape[1].clone());
    let count =
        [1, 2].into_iter().find_map(|position| call.shape(position)).map(|shape| shape[0].clone());
    let side = |name: &str| Dim::integer(call.int(name).unwrap_or(1));
    let shape =
        vec![count.unwrap_or(Dim::Unknown), channels, side("output_height"), side("output_width")];
    call.set_shape(0, shape);
    Ok(())
}

fn col_to_im(call: &mut Call<'_>) -> Result<(), String> {
    call.expect_rank(0, 3)?;
    let block = call.dims(2).map(super::call::product);
    let batch = call.shape(0).map_or(Dim::Unknown, |shape| shape[0].clone());
    let channels = match (call.shape(0), block) {
        (Some(shape), Some(block)) => shape[1].quotient(&block),
        _ => Dim::Unknown,
    };
    let Some(pixels) = super::creation::from_sizes(call, 1)? else { return Ok(()) };
    let mut shape = vec![batch, channels];
    shape.extend(pixels);
    call.set_shape(0, shape);
    Ok(())
}

/// Writes the gradients of a convolution.
///
/// - The gradient of the image is a transposed convolution.
/// - The gradient of the kernel is the image convolved with the gradient. Channels and images are
///   swapped, and so are strides and dilations.
/// - The gradient of the bias is a sum.
fn conv_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, x, kernel) = (step.gradient()?, step.input(0)?, step.input(1)?);
    if step.text("auto_pad")?.is_some_and(|pad| pad != "NOTSET") {
        return Err("it pads by 'auto_pad'".to_owned());
    }
    let (image, window) = (step.shape(x)?, step.shape(kernel)?);
    let rank = image.len().saturating_sub(2);
    let ones = || vec![1; rank];
    let strides = step.list("strides")?.unwrap_or_else(ones);
    let dilations = step.list("dilations")?.unwrap_or_else(ones);
    let pads = step.list("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
    let group = step.int("group")?.unwrap_or(1);
    let sizes: Option<Vec<i64>> = window.iter().map(Dim::as_integer).collect();
    let sizes = sizes.ok_or("the size of its kernel is not known")?;
    let fits = [strides.len(), dilations.len(), pads.len() / 2, window.len().saturating_sub(2)];
    if rank == 0 || fits.iter().any(|len| *len != rank) {
        return Err("its attributes do not fit".to_owned());
    }

    if step.wants(2) {
        let others: Vec<i64> = (0..image.len()).filter(|at| *at != 1).map(index).collect();
        let bias = step.sum(gradient, &others, false);
        step.give(2, bias);
    }

    if step.wants(0) {
        // Places behind what the last window reached: as many as there can be, where the image's
        // size is not known, and cut off afterwards.
        let mut rest = vec![0; rank];
        let mut is_known = true;
        for at in 0..rank {
            let reach = dilations[at] * (sizes[at + 2] - 1) + 1;
            rest[at] = match image[at + 2].as_integer() {
                Some(size) => (size + pads[at] + pads[rank + at] - reach).rem_euclid(strides[at]),
                None => {
                    is_known = false;
                    strides[at] - 1
                }
            };
        }
        let attributes: [(&str, AttributeValue); 5] = [
            ("strides", strides.clone().into()),
            ("dilations", dilations.clone().into()),
            ("pads", pads.clone().into()),
            ("output_padding", rest.into()),
            ("group", group.into()),
        ];
        let mut of_image = step.with("ConvTranspose", &[gradient, kernel], &attributes);
        if !is_known {
            let starts = step.ints(&vec![0; rank]);
            let range = [("start", 2.into()), ("end", index(image.len()).into())];
            let ends = step.with("Shape", &[x], &range);
            let axes: Vec<i64> = (2..image.len()).map(index).collect();
            let axes = step.ints(&axes);
            of_image = step.op("Slice", &[of_image, starts, ends, axes]);
        }
        step.give(0, of_image);
    }

    if step.wants(1) {
        let window = [strides, dilations, pads];
        let of_kernel = kernel_gradient(step, [gradient, x], (&sizes, group), window);
        step.give(1, of_kernel);
    }
    Ok(())
}

fn kernel_gradient(
    step: &mut Step<'_>,
    [gradient, x]: [ValueId; 2],
    (sizes, group): (&[i64], i64),
    [strides, dilations, pads]: [Vec<i64>; 3],
) -> ValueId {
    let mut order: Vec<i64> = (0..sizes.len()).map(index).collect();
    order.swap(0, 1);
    let turned = |step: &mut Step<'_>, value| {
        step.with("Transpose", &[value], &[("perm", order.clone().into())])
    };
    let image = if group == 1 { turned(step, x) } else { grouped(step, x, sizes, group) };
    let window = turned(step, gradient);
    let attributes: [(&str, AttributeValue); 4] = [
        ("strides", dilations.into()),
        ("dilations", strides.into()),
        ("pads", pads.into()),
        ("group", group.into()),
    ];
    let sums = step.with("Conv", &[image, window], &attributes);
    // What the last stride did not reach gives places behind the kernel's.
    let rank = sizes.len() - 2;
    let starts = step.ints(&vec![0; rank]);
    let ends = step.ints(&sizes[2..]);
    let axes: Vec<i64> = (2..sizes.len()).map(index).collect();
    let axes = step.ints(&axes);
    let cut = step.op("Slice", &[sums, starts, ends, axes]);
    turned(step, cut)
}

/// Images of groups of channels, `[images, groups * channels, ...]`, as `[channels, groups *
/// images, ...]`, so that each group's images meet its own gradients.
fn grouped(step: &mut Step<'_>, x: ValueId, sizes: &[i64], group: i64) -> ValueId {
    let rank = sizes.len();
    let range = |step: &mut Step<'_>, from: usize, to: usize| {
        let range = [("start", index(from).into()), ("end", index(to).into())];
        step.with("Shape", &[x], &range)
    };
    let (images, behind) = (range(step, 0, 1), range(step, 2, rank));
    let channels = step.ints(&[group, sizes[1]]);
    let shape = step.with("Concat", &[images, channels, behind], &[("axis", 0.into())]);
    let apart = step.op("Reshape", &[x, shape]);
    let mut order: Vec<i64> = vec![2, 1, 0];
    order.extend((3..=rank).map(index));
    let turned = step.with("Transpose", &[apart], &[("perm", order.into())]);
    let together = step.ints(&[sizes[1], -1]);
    let shape = step.with("Concat", &[together, behind], &[("axis", 0.into())]);
    step.op("Reshape", &[turned, shape])
}

/// An equal part for every place.
fn average_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let rank = step.rank(x)?;
    let behind: Vec<usize> = (2..rank).collect();
    let count = step.elements(x, &behind)?;
    let part = step.op("Div", &[gradient, count]);
    let sizes = step.op("Shape", &[x]);
    let wide = step.op("Expand", &[part, sizes]);
    step.give(0, wide);
    Ok(())
}

/// Writes the gradient of a max pooling: each gradient is added at the position of its maximum.
///
/// The pool returns these positions as indices into the whole tensor.
fn max_gradient(step: &mut Step<'_>) -> Result<(), String> {
    if step.int("storage_order")?.unwrap_or(0) != 0 {
        return Err("its places are counted by columns".to_owned());
    }
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let [_, places] = step.again();
    let flat = step.ints(&[-1]);
    let [x_flat, places, updates] =
        [x, places, gradient].map(|value| step.op("Reshape", &[value, flat]));
    let sizes = step.op("Shape", &[x_flat]);
    let zeros = step.op("ConstantOfShape", &[sizes]);
    let add = [("axis", 0.into()), ("reduction", "add".into())];
    let sums = step.with("ScatterElements", &[zeros, places, updates], &add);
    let sums = step.reshaped(sums, x)?;
    step.give(0, sums);
    Ok(())
}
