//! Models that see.

use apr_core::{Error, Result};
use apr_graph::{Dim, ElementType, Meaning, ValueId, View};

use super::head;
use super::stack::{Around, layers};
use crate::blocks::heads::Heads;
use crate::blocks::norm::Norm;
use crate::blocks::places::GridOrder;
use crate::model::{BlockPosition, Model};
use crate::names::{BATCH, HEIGHT, WIDTH};
use crate::writer::{Writer, signed};

/// Writes the graph of a model that sees sounds: a log-mel spectrogram of options `max_positions`
/// frames and `mels` bands is an image, with bands from top to bottom (AST: Gong et al. 2021,
/// <https://arxiv.org/abs/2104.01778>).
pub(crate) fn write_spectrogram(model: &Model<'_>, w: &mut Writer<'_>, stack: &str) -> Result<()> {
    let place = model.place(stack);
    let shape = [
        Dim::symbol(BATCH),
        Dim::fixed(place.size("max_positions")?),
        Dim::fixed(place.size("mels")?),
    ];
    let mel = w.body().input("input_values", ElementType::F32, shape, Meaning::Unknown);
    let channel = w.unsqueeze("channel", mel, &[1]);
    let image = w.transpose("image", channel, [0, 1, 3, 2]);
    let x = encoded(w, place, image)?;
    head::write(w, place, x, None)
}

/// Writes the graph of a model of images (ViT: Dosovitskiy et al. 2020,
/// <https://arxiv.org/abs/2010.11929>).
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>, stack: &str) -> Result<()> {
    let place = model.place(stack);
    let pixels = pixels(w, place)?;
    let x = encoded(w, place, pixels)?;
    head::write(w, place, x, None)
}

/// Adds the input `[batch, channels, height, width]`, of any height and width if option `image` has
/// no value.
///
/// Option `image`: a size, or a height and a width.
pub(crate) fn pixels(w: &mut Writer<'_>, place: BlockPosition<'_>) -> Result<ValueId> {
    let channels = Dim::fixed(place.size("channels")?);
    let [height, width] = match size_of(place)? {
        Some((height, width)) => [Dim::fixed(height), Dim::fixed(width)],
        None => [Dim::symbol(HEIGHT), Dim::symbol(WIDTH)],
    };
    let shape = [Dim::symbol(BATCH), channels, height, width];
    Ok(w.body().input("pixel_values", ElementType::F32, shape, Meaning::Pixels))
}

/// Returns the height and width of an image in pixels: option `image`, and `image_width` if the
/// width differs.
pub(crate) fn size_of(place: BlockPosition<'_>) -> Result<Option<(u64, u64)>> {
    let Some(height) = place.size_or_none("image")? else { return Ok(None) };
    Ok(Some((height, place.size_or_none("image_width")?.unwrap_or(height))))
}

/// Patches of a picture below each other and next to each other, of options `image` and `patch`.
pub(crate) fn sides_in_patches(place: BlockPosition<'_>) -> Result<[u64; 2]> {
    let patch = place.size("patch")?;
    let Some((height, width)) = size_of(place)? else {
        return Err(Error::format("distances of patches need the size of the image"));
    };
    Ok([height, width].map(|side| side.checked_div(patch).unwrap_or(0)))
}

/// Outputs of a tower.
pub(crate) struct Tower {
    /// Vectors of the patches, preceded by the vector of the whole image if the family has one.
    pub(crate) x: ValueId,
    /// Map of the patches before the layers, `[batch, hidden, rows, columns]`.
    pub(crate) patches: ValueId,
    /// Vectors behind each layer.
    pub(crate) behind: Vec<ValueId>,
}

/// Returns the vectors of the patches, preceded by the vector of the whole image if the family has
/// one.
pub(crate) fn encoded(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    pixels: ValueId,
) -> Result<ValueId> {
    Ok(tower(w, place, pixels)?.x)
}

/// Writes the layers of a model of images. Option `rotary_grid`: patches have rotary positions by
/// their row and column, and windows of attention are squares of patches.
pub(crate) fn tower(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    pixels: ValueId,
) -> Result<Tower> {
    let (x, patches) = w.scope("embeddings", |w| embeddings(w, place, pixels))?;
    let after = positions_of_layers(w, place, patches)?;
    let grid = GridOrder::of(place)?.map(|_| w.patch_grid(patches));
    let around = Around { after: ("with_positions", &after), grid, ..Around::NOTHING };
    let made = layers(w, place, x, &around)?;
    let behind = made.inputs.iter().skip(1).copied().chain([made.x]).collect();
    let norm = Norm::of(place)?;
    let x = w.norm_part(norm, "final_norm", made.x, place.module_or_none("final_norm"))?;
    Ok(Tower { x, patches, behind })
}

/// A vector for each patch, by a convolution whose kernel is as large as its step, or with the
/// steps of option `patch_strides`, down and to the side; one or two for the whole in front,
/// learned positions, registers, and a norm, where the family has them. Option `patch`: the side of
/// one that is square, or no value. Vectors that look for things, `detection_vectors`, stand behind
/// the patches. Option `frames`: the number of frames of a film that a kernel sees, all of which
/// are the image. Option `patch_order` `channels_last`: the kernel is a matrix, with the channels
/// of a pixel next to each other. Option `pixels_centred`: pixels from 0 to 1 are first brought to
/// -1 to 1. A tensor `axis_positions` has vectors for columns and rows of patches. Returns the map
/// of the patches, too.
fn embeddings(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    pixels: ValueId,
) -> Result<(ValueId, ValueId)> {
    let (patch, hidden) = (place.size_or_none("patch")?, signed(place.size("hidden")?));
    let module = place.module("patches")?;
    let is_matrix = match place.text_or_none("patch_order")?.as_deref() {
        None => false,
        Some("channels_last") => true,
        Some(other) => return Err(place.unknown("patch_order", other)),
    };
    let pixels = match place.truth("pixels_centred")? {
        true => {
            let half = w.float(0.5);
            let around_zero = w.make("Sub", "around_zero", [pixels, half]);
            w.scaled("centred", around_zero, 2.0)
        }
        false => pixels,
    };
    let patches = match (place.states("patch_strides"), place.states("frames")) {
        (true, _) => {
            let strides = place.sizes("patch_strides")?;
            w.stepping_convolution("patches", pixels, &module, strides)?
        }
        _ if is_matrix => w.pixel_convolution("patches", pixels, &module, place.size("patch")?)?,
        (false, true) => w.still_convolution("patches", pixels, &module, place.size("frames")?)?,
        (false, false) => w.map_convolution("patches", pixels, &module, patch, Some(0))?,
    };
    let rows = w.reshape("rows", patches, &[0, hidden, -1]);
    let mut x = w.transpose("by_patch", rows, [0, 2, 1]);
    for name in ["distillation", "class"] {
        x = behind_vector(w, place, name, x)?;
    }
    x = before_detections(w, place, x)?;

    if let Some(positions) = place.tensor_or_none("positions") {
        let is_fixed = place.states("patch_strides") || place.size_or_none("image")?.is_some();
        let positions = if is_fixed {
            w.tensor(&positions)?
        } else {
            w.resized_positions(place, &positions, None, patches)?
        };
        x = w.make("Add", "with_positions", [x, positions]);
    }

    if let Some(table) = place.tensor_or_none("axis_positions") {
        let grid = w.patch_grid(patches);
        let positions = w.axis_positions(&table, grid)?;
        x = w.make("Add", "with_axis_positions", [x, positions]);
    }

    let x = with_registers(w, place, x)?;
    let x = w.norm_part(Norm::of(place)?, "norm", x, place.module_or_none("embedding_norm"))?;
    Ok((x, patches))
}

/// Returns the terms to add to the output of each layer but the last.
///
/// They are the layers' own positions, if the checkpoint has `layer_positions`; otherwise the list
/// is empty.
fn positions_of_layers(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    patches: ValueId,
) -> Result<Vec<ValueId>> {
    let Some(tensor) = place.tensor_or_none("layer_positions") else { return Ok(Vec::new()) };
    (0..place.layers()?.saturating_sub(1))
        .map(|layer| {
            w.scope(&format!("positions.{layer}"), |w| {
                w.resized_positions(place, &tensor, Some(layer), patches)
            })
        })
        .collect()
}

/// Returns the number of vectors that detect objects (YOLOS: Fang et al. 2021,
/// <https://arxiv.org/abs/2106.00666>).
///
/// Returns 0 if the family does not have them.
pub(crate) fn detections(place: BlockPosition<'_>) -> Result<u64> {
    let Some(tensor) = place.tensor_or_none("detection_vectors") else { return Ok(0) };
    let dims = place.model.using(&tensor)?;
    let &[1, count, _] = dims.as_slice() else {
        return Err(Error::format("vectors of a model have three dimensions").for_tensor(tensor));
    };
    Ok(count)
}

/// Appends the vectors `detection_vectors` of the checkpoint to `x`, if the family has them.
fn before_detections(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let Some(tensor) = place.tensor_or_none("detection_vectors") else { return Ok(x) };
    let vectors = repeated(w, place, "detections", &tensor, detections(place)?, x)?;
    Ok(w.concat("with_detections", &[x, vectors], 1))
}

/// Repeats `count` vectors of the checkpoint, `[1, count, hidden]`, for each image in the batch of
/// `x`.
fn repeated(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    name: &str,
    tensor: &str,
    count: u64,
    x: ValueId,
) -> Result<ValueId> {
    let vectors = w.tensor(tensor)?;
    let batch = w.length("batch", x, 0);
    let rest = w.ints(&[signed(count), signed(place.size("hidden")?)]);
    let shape = w.concat(&format!("{name}_shape"), &[batch, rest], 0);
    Ok(w.make("Expand", name, [vectors, shape]))
}

/// Prepends the vector `NAME_vector` of the checkpoint to `x`, if the family has it.
///
/// It is the vector of the `class`, or of a teacher's prediction for the image (`distillation`:
/// Touvron et al. 2020, <https://arxiv.org/abs/2012.12877>).
fn behind_vector(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    name: &str,
    x: ValueId,
) -> Result<ValueId> {
    let Some(vector) = place.tensor_or_none(&format!("{name}_vector")) else { return Ok(x) };
    let hidden = place.size("hidden")?;
    let vector = reshaped(w, &vector, vec![1, 1, hidden])?;
    let batch = w.length("batch", x, 0);
    let rest = w.ints(&[1, signed(hidden)]);
    let shape = w.concat(&format!("{name}_shape"), &[batch, rest], 0);
    let vector = w.make("Expand", name, [vector, shape]);
    Ok(w.concat(&format!("with_{name}"), &[vector, x], 1))
}

/// Inserts the vectors `registers` of the checkpoint between the class vector and the patch
/// vectors.
///
/// This applies to families that have registers (Darcet et al. 2023,
/// <https://arxiv.org/abs/2309.16588>).
fn with_registers(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let Some(tensor) = place.tensor_or_none("registers") else { return Ok(x) };
    let registers = repeated(w, place, "registers", &tensor, registers(place)?, x)?;
    let class = w.slice("class_alone", x, 1, 0, 1);
    let patches = w.slice("patches_alone", x, 1, 1, i64::MAX);
    Ok(w.concat("with_registers", &[class, registers, patches], 1))
}

/// Returns the number of registers in the checkpoint.
pub(crate) fn registers(place: BlockPosition<'_>) -> Result<u64> {
    let Some(tensor) = place.tensor_or_none("registers") else { return Ok(0) };
    let dims = place.model.using(&tensor)?;
    let &[1, count, _] = dims.as_slice() else {
        return Err(Error::format("registers have three dimensions").for_tensor(tensor));
    };
    Ok(count)
}

/// A tensor with other dimensions.
pub(crate) fn reshaped(w: &mut Writer<'_>, tensor: &str, shape: Vec<u64>) -> Result<ValueId> {
    let dims = w.model.using(tensor)?;
    let product =
        |dims: &[u64]| dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(*dim));
    if product(&dims) != product(&shape) {
        return Err(
            Error::format(format!("it can't have the dimensions {shape:?}")).for_tensor(tensor)
        );
    }
    w.viewed(tensor, vec![View::Reshaped(shape.clone())], shape)
}

/// A vector for the whole image: attention of one learned query to all patches, then a feed-forward
/// network (SigLIP: Zhai et al. 2023, <https://arxiv.org/abs/2303.15343>).
pub(crate) fn attended_pool(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
) -> Result<ValueId> {
    let heads = Heads::of(place)?;
    let width = heads.heads * heads.head_dim;
    let probe = place.module("probe")?;
    let qkv = place.module("probe_qkv")?;
    let qkv_bias = place.module("probe_qkv_bias")?;
    w.scope("pooler", |w| {
        let probe = w.tensor(&probe)?;
        // One matrix has the rows of queries, keys and values, as `torch.nn.MultiheadAttention`
        // does.
        let part = |w: &mut Writer<'_>, name: &str, x: ValueId, number: u64| -> Result<ValueId> {
            let rows = w.linear_rows(name, x, &qkv, number * width, width)?;
            let views = vec![View::Slice { axis: 0, start: number * width, len: width }];
            let bias = w.viewed(&qkv_bias, views, vec![width])?;
            let sum = w.scope(name, |w| w.make("Add", "bias", [rows, bias]));
            Ok(w.heads_of(name, sum, heads.heads, heads.head_dim))
        };
        let query = part(w, "query", probe, 0)?;
        let key = part(w, "key", x, 1)?;
        let value = part(w, "value", x, 2)?;
        let all = crate::blocks::attention::KeyValue { key, value };
        let context = w.context(&heads, query, all, None, None)?;
        let attended = w.outer_linear("output", context, &place.module("probe_output")?)?;
        let normal = w.norm("norm", Norm::of(place)?, attended, &place.module("probe_norm")?)?;
        let up = w.outer_linear("up", normal, &place.module("probe_up")?)?;
        let activation = crate::blocks::activation::Activation::of(place, "activation")?;
        let up = w.activate("activation", activation, up);
        let down = w.outer_linear("down", up, &place.module("probe_down")?)?;
        let sum = w.make("Add", "sum", [attended, down]);
        Ok(w.first_vector(sum))
    })
}
