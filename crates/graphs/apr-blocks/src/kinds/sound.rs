//! Models that listen.

use apr_core::{Error, Result};
use apr_graph::{Dim, ElementType, Meaning, ValueId};

use super::head;
use super::stack::{Around, layers};
use crate::blocks::activation::Activation;
use crate::blocks::convolution::Convolution;
use crate::blocks::layer::Norms;
use crate::blocks::mask::{Field, Sight};
use crate::blocks::norm::Norm;
use crate::model::{BlockPosition, Model};
use crate::names::{BATCH, SEQUENCE};
use crate::writer::{Writer, signed};

/// Maximum number of convolutions in front of a model; wav2vec2 has seven.
const MAX_CONVOLUTIONS: u64 = 64;

/// States of a log-mel spectrogram (Whisper: Radford et al. 2022,
/// <https://arxiv.org/abs/2212.04356>): two convolutions over time, the second of which halves its
/// length, fixed positions, layers, a norm.
pub(crate) fn encoded_mel(w: &mut Writer<'_>, place: BlockPosition<'_>) -> Result<ValueId> {
    states_of_mel(w, place).map(|(_, last)| last)
}

/// Writes the graph of a model that reads a log-mel spectrogram and writes no text (Whisper's
/// classifier of sounds).
pub(crate) fn write_mel(model: &Model<'_>, w: &mut Writer<'_>, stack: &str) -> Result<()> {
    let place = model.place(stack);
    let (inputs, last) = states_of_mel(w, place)?;
    let x = w.shared_by_layers(place, &inputs, last)?.unwrap_or(last);
    head::write(w, place, x, None)
}

impl Writer<'_> {
    /// The weighted sum of every layer's input and of the last states; the weights are the softmax
    /// of `layer_weights`; `None` where the checkpoint has no such weight.
    fn shared_by_layers(
        &mut self,
        place: BlockPosition<'_>,
        inputs: &[ValueId],
        last: ValueId,
    ) -> Result<Option<ValueId>> {
        let Some(tensor) = place.tensor_or_none("layer_weights") else { return Ok(None) };
        let all: Vec<ValueId> = inputs.iter().copied().chain(std::iter::once(last)).collect();
        let dims = self.model.using(&tensor)?;
        if dims != [all.len() as u64] {
            let message = format!("weights of {dims:?} layers for {} states", all.len());
            return Err(Error::format(message).for_tensor(&tensor));
        }

        self.scope("layer_sum", |w| {
            let weights = w.tensor(&tensor)?;
            let probs = w.op("Softmax", [weights]).attribute("axis", -1).output("probs");
            let probs = w.reshape("column", probs, &[1, signed(all.len() as u64), 1, 1]);
            let states: Vec<ValueId> =
                all.iter().map(|state| w.unsqueeze("layer", *state, &[1])).collect();
            let stacked = w.concat("stacked", &states, 1);
            let shared = w.make("Mul", "shared", [stacked, probs]);
            let sum = w.sum("sum", shared, 1);
            let axis = w.ints(&[1]);
            Ok(Some(w.make("Squeeze", "states", [sum, axis])))
        })
    }
}

/// The input of each layer, and the states after the last one and its norm.
fn states_of_mel(w: &mut Writer<'_>, place: BlockPosition<'_>) -> Result<(Vec<ValueId>, ValueId)> {
    let positions = place.size("max_positions")?;
    let shape = [Dim::symbol(BATCH), Dim::fixed(place.size("mels")?), Dim::fixed(2 * positions)];
    let mel = w.body().input("input_features", ElementType::F32, shape, Meaning::Mel);
    let x = w.scope("embeddings", |w| -> Result<ValueId> {
        let mut x = mel;
        for (part, stride) in [("first_convolution", 1), ("second_convolution", 2)] {
            let convolution = Convolution { strides: vec![stride], padding: vec![1], groups: 1 };
            x = w.convolution(part, &convolution, x, &place.module(part)?)?;
            // Whisper's, whatever the activation of its layers is.
            x = w.activate(&format!("{part}_activation"), Activation::Gelu, x);
        }
        let x = w.transpose("by_frame", x, [0, 2, 1]);
        let table = w.tensor(&place.module("positions")?)?;
        Ok(w.make("Add", "with_positions", [x, table]))
    })?;
    let made = layers(w, place, x, &Around::NOTHING)?;
    let norm = place.module_or_none("final_norm");
    let last = w.norm_part(Norm::of(place)?, "final_norm", made.x, norm)?;
    Ok((made.inputs, last))
}

/// Writes the graph of a model of a waveform (wav2vec 2.0: Baevski et al. 2020,
/// <https://arxiv.org/abs/2006.11477>): convolutions, a projection, positions by a convolution,
/// layers.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let place = model.place("");
    let samples = [Dim::symbol(BATCH), Dim::symbol(SEQUENCE)];
    let samples = w.body().input("input_values", ElementType::F32, samples, Meaning::Waveform);
    let x = w.scope("features", |w| features(w, place, samples))?;
    let x = w.scope("projection", |w| {
        // HuBERT may go without it.
        let x = match place.truth_or("feature_projection_norm", true)? {
            true => w.norm("norm", Norm::of(place)?, x, &place.module("feature_norm")?)?,
            false => x,
        };
        w.projected("dense", x, place.module_or_none("feature_projection"))
    })?;
    let frames = x;
    let x = w.scope("embeddings", |w| with_positions(w, place, x))?;
    let around = Around { field: field(w, place, x), ..Around::NOTHING };
    let (norm, module) = (Norm::of(place)?, place.module("stack_norm")?);

    // Where norms stand before their blocks, that of the stack is after its layers.
    let (made, last) = match Norms::of(place)? {
        Norms::After => {
            let x = w.norm("first_norm", norm, x, &module)?;
            let made = layers(w, place, x, &around)?;
            let last = made.x;
            (made, last)
        }
        Norms::Before => {
            let made = layers(w, place, x, &around)?;
            let last = w.norm("final_norm", norm, made.x, &module)?;
            (made, last)
        }
    };

    // Shares are of the states before the last norm, as transformers collects them here.
    let shared = w.shared_by_layers(place, &made.inputs, made.x)?;
    let x = match (shared, place.module_or_none("upsampling")) {
        (Some(shared), _) => shared,
        (None, Some(module)) => {
            w.scope("upsampling", |w| upsampled(w, place, last, frames, &module))?
        }
        (None, None) => last,
    };
    head::write(w, place, x, None)
}

/// Returns the positions of the frames, or `None` if the scores have no term for their distance.
fn field(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Option<Field> {
    place.layer(0).tensor_or_none("relative")?;
    Some(w.scope("mask", |w| {
        let count = w.length("frame_count", x, 1);
        let (queries, keys) = w.positions(count, count);
        Field {
            sight: Sight::All,
            queries,
            keys,
            counts: None,
            pairs: None,
            pairs_in_windows: false,
        }
    }))
}

/// Restores the number of frames before option `squeeze` (SEW: Wu et al. 2021,
/// <https://arxiv.org/abs/2109.06870>).
///
/// `squeeze` frames became one. A linear layer makes the vectors of `squeeze` frames from each. The
/// remaining frames are zeros.
fn upsampled(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    frames: ValueId,
    module: &str,
) -> Result<ValueId> {
    let activation = Activation::of(place, "feature_activation")?;
    let (squeeze, hidden) = (signed(place.size("squeeze")?), signed(place.size("hidden")?));
    let made = w.outer_linear("dense", x, module)?;
    let made = w.activate("activation", activation, made);

    // One vector of zeros for each frame of a group that was cut off is enough for all lengths.
    let (pads, zero) = (w.ints(&[0, 0, 0, 0, squeeze, 0]), w.float(0.0));
    let made = w.reshape("by_frame", made, &[0, -1, hidden]);
    let padded = w.make("Pad", "with_zeros", [made, pads, zero]);
    let count = w.length("frame_count", frames, 1);
    let (start, axis) = (w.ints(&[0]), w.ints(&[1]));
    Ok(w.make("Slice", "upsampled", [padded, start, count, axis]))
}

/// Vectors of frames, `[batch, frames, features]`. Option `feature_norms`: `first` (a norm of each
/// channel over time, after the first convolution) or `each` (a norm over the channels after each).
fn features(w: &mut Writer<'_>, place: BlockPosition<'_>, samples: ValueId) -> Result<ValueId> {
    let activation = Activation::of(place, "feature_activation")?;
    let strides = place.sizes("convolution_strides")?;
    let norms = place.text("feature_norms")?;
    if strides.len() as u64 > MAX_CONVOLUTIONS {
        return Err(Error::memory(format!(
            "{} convolutions are more than a model has",
            strides.len()
        )));
    }

    let mut x = w.unsqueeze("channel", samples, &[1]);
    for (number, stride) in strides.into_iter().enumerate() {
        let module = |part: &str| {
            place
                .numbered(part, &[("conv", number as u64)])
                .ok_or_else(|| Error::format("a convolution has no name"))
        };
        x = w.scope(&format!("convolution.{number}"), |w| -> Result<ValueId> {
            let convolution = Convolution { strides: vec![stride], padding: vec![0], groups: 1 };
            let mut x = w.convolution("convolution", &convolution, x, &module("convolution")?)?;
            x = match (norms.as_str(), number) {
                ("first", 0) => w.channel_norm("norm", x, &module("convolution_norm")?)?,
                ("first", _) => x,
                ("each", _) => {
                    let by_frame = w.transpose("by_frame", x, [0, 2, 1]);
                    // The epsilon is PyTorch's default, since transformers states none here.
                    let normal = w.norm(
                        "norm",
                        Norm::of(place)?.with_eps(1e-5),
                        by_frame,
                        &module("convolution_norm")?,
                    )?;
                    w.transpose("by_channel", normal, [0, 2, 1])
                }
                (other, _) => return Err(place.unknown("feature_norms", other)),
            };
            Ok(w.activate("activation", activation, x))
        })?;
    }

    Ok(w.transpose("by_frame", x, [0, 2, 1]))
}

/// Adds what a wide, grouped convolution makes of the frames around each. Option `position_norm`:
/// `batch` where a norm stands before it, and the kernel is stored as it is. Option `squeeze`: so
/// many frames become one, their mean, and the convolution steps over as many.
fn with_positions(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    if let Some(count) = place.size_or_none("position_layers")? {
        return with_deep_positions(w, place, x, count);
    }
    let (kernel, width) = position_kernel(w, place)?;
    let activation = Activation::of(place, "feature_activation")?;
    let mut frames = w.transpose("by_channel", x, [0, 2, 1]);
    if place.text_or_none("position_norm")?.is_some() {
        // The epsilon is PyTorch's default, since transformers states none here.
        frames = w.batch_norm("norm", frames, &place.module("position_norm")?, 1e-5)?;
    }
    let squeeze = place.size_or_none("squeeze")?.unwrap_or(1).max(1);
    let convolution = Convolution {
        strides: vec![squeeze],
        padding: vec![width / 2],
        groups: place.size("position_groups")?,
    };
    let bias = place.module("position_bias")?;
    let made = w.convolution_with("positions", &convolution, frames, kernel, &bias)?;

    // An even kernel makes one frame too many.
    let made = if width % 2 == 0 { w.slice("same_length", made, 2, 0, -1) } else { made };
    let made = w.activate("activation", activation, made);
    if squeeze > 1 {
        return Ok(squeezed(w, frames, made, signed(squeeze)));
    }
    let made = w.transpose("by_frame", made, [0, 2, 1]);
    Ok(w.make("Add", "with_positions", [x, made]))
}

/// Returns the means of every `squeeze` frames plus their positions, `[batch, frames, hidden]`.
///
/// The inputs are `[batch, hidden, frames]`. The sum has as many frames as the shorter of the means
/// and the positions.
fn squeezed(w: &mut Writer<'_>, frames: ValueId, positions: ValueId, squeeze: i64) -> ValueId {
    let means = w
        .op("AveragePool", [frames])
        .attribute("kernel_shape", [squeeze])
        .attribute("strides", [squeeze])
        .output("means");
    let counts = [means, positions].map(|it| w.length("frame_count", it, 2));
    let count = w.make("Min", "count", counts);
    let (start, axis) = (w.ints(&[0]), w.ints(&[2]));
    let [means, positions] = [("means_of_all", means), ("positions_of_all", positions)]
        .map(|(name, it)| w.make("Slice", name, [it, start, count, axis]));
    let sum = w.make("Add", "with_positions", [means, positions]);
    w.transpose("by_frame", sum, [0, 2, 1])
}

/// Adds positions by several convolutions in a row, each with a norm without weights and an
/// activation.
///
/// Option `position_layers` is their number (data2vec: Baevski et al. 2022,
/// <https://arxiv.org/abs/2202.03555>).
fn with_deep_positions(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    count: u64,
) -> Result<ValueId> {
    let activation = Activation::of(place, "feature_activation")?;
    let (groups, hidden) = (place.size("position_groups")?, place.size("hidden")?);
    if count > MAX_CONVOLUTIONS {
        return Err(Error::memory(format!("{count} convolutions are more than a model has")));
    }

    let mut frames = w.transpose("by_channel", x, [0, 2, 1]);
    for number in 0..count {
        let module = place
            .numbered("position_convolution", &[("position", number)])
            .ok_or_else(|| Error::format("a convolution has no name"))?;
        let kernel = format!("{module}.weight");
        let dims = w.model.using(&kernel)?;
        let &[_, _, width] = dims.as_slice() else {
            return Err(Error::format("a kernel over time has three dimensions").for_tensor(kernel));
        };
        frames = w.scope(&format!("positions.{number}"), |w| -> Result<ValueId> {
            let convolution = Convolution { strides: vec![1], padding: vec![width / 2], groups };
            let made = w.convolution("convolution", &convolution, frames, &module)?;

            // An even kernel makes one frame too many.
            let made = if width % 2 == 0 { w.slice("same_length", made, 2, 0, -1) } else { made };
            let made = w.transpose("by_frame", made, [0, 2, 1]);
            // The epsilon is PyTorch's default, since transformers states none here.
            let made = w.bare_layer_norm("norm", 1e-5, made, hidden);
            let made = w.transpose("by_channel", made, [0, 2, 1]);
            Ok(w.activate("activation", activation, made))
        })?;
    }

    let made = w.transpose("by_frame", frames, [0, 2, 1]);
    Ok(w.make("Add", "with_positions", [x, made]))
}

/// The kernel of the convolution of positions, and how wide it is. It is a direction and a length
/// for each of its places in time (weight norm: Salimans and Kingma 2016,
/// <https://arxiv.org/abs/1602.07868>), unless the option `position_norm` has a value.
fn position_kernel(w: &mut Writer<'_>, place: BlockPosition<'_>) -> Result<(ValueId, u64)> {
    let is_plain = match place.text_or_none("position_norm")?.as_deref() {
        None => false,
        Some("batch") => true,
        Some(other) => return Err(place.unknown("position_norm", other)),
    };
    let direction = if is_plain {
        format!("{}.weight", place.module("position_convolution")?)
    } else {
        place.module("position_direction")?
    };
    let dims = w.model.using(&direction)?;
    let width = *dims
        .last()
        .ok_or_else(|| Error::format("a kernel has no dimension").for_tensor(&direction))?;
    let kernel = w.tensor(&direction)?;
    if is_plain {
        return Ok((kernel, width));
    }

    let length = w.tensor(&place.module("position_length")?)?;
    let norm = w.euclidean("direction_length", kernel, [0, 1]);
    let unit = w.make("Div", "unit", [kernel, norm]);
    Ok((w.make("Mul", "kernel", [unit, length]), width))
}
