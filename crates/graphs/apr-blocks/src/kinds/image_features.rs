//! Images for a language model: a tower's vectors of patches, and the projector that makes vectors
//! of the language model's size of them.

use apr_core::{Error, Result};
use apr_graph::{Meaning, ValueId};

use super::vision::{self, Tower};
use crate::blocks::activation::Activation;
use crate::blocks::norm::Norm;
use crate::model::{BlockPosition, Model};
use crate::writer::{Writer, signed};

/// The stack of the tower's layers, in the table of the part for images.
const TOWER: &str = "vision";
/// Name of the image encoder's output, which is an input of the decoder.
pub const IMAGE_FEATURES: &str = "image_features";

/// Writes the graph that makes vectors of images, `[batch, tokens, hidden]`.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let (place, tower) = (model.place(""), model.place(TOWER));
    let pixels = vision::pixels(w, tower)?;
    let Tower { x, patches, behind } = w.scope("tower", |w| vision::tower(w, tower, pixels))?;
    let x = w.scope("projector", |w| {
        // Option `patches_alone`: the vector of the whole, which stands in front, is left out.
        let x =
            match tower.truth("patches_alone")? && tower.tensor_or_none("class_vector").is_some() {
                true => w.slice("patches", x, 1, 1, i64::MAX),
                false => x,
            };
        let x = projected(w, place, x, patches)?;
        with_newline(w, place, x)
    })?;
    let x = with_deep_vectors(w, place, x, &behind, patches)?;
    w.body().output(IMAGE_FEATURES, x, Meaning::HiddenStates);
    Ok(())
}

/// Projects the tower's vectors to vectors of the language model, by option `projector`:
///
/// - `two_layers`: a linear layer, option `activation`, and another linear layer (LLaVA 1.5: Liu et
///   al. 2023, <https://arxiv.org/abs/2310.03744>);
/// - `average`: the means of squares of patches, a norm, and a matrix of `[inputs, outputs]` (Gemma
///   3: <https://arxiv.org/abs/2503.19786>);
/// - `joined`: the patches of each square in a row, and a linear layer (Idefics 3: Laurençon et al.
///   2024, <https://arxiv.org/abs/2408.12637>);
/// - `merged`: a norm, the patches of each square in a row, a linear layer, option `activation`,
///   and another linear layer (Qwen2-VL: <https://arxiv.org/abs/2409.12191>);
/// - `squares`: the same, with the norm of the vectors in a row (InternVL: Chen et al. 2024,
///   <https://arxiv.org/abs/2404.16821>);
/// - `merged_by_channel`: as `merged`, with a matrix from the patches of a square to one vector,
///   channel by channel, before the linear layers (Mistral 3);
/// - `pooled`: the means of squares of patches of a map of any size, times the root of their width,
///   less `projector_shift` and times `projector_scale` where the checkpoint has these, a norm
///   without weights, and a linear layer (Gemma 4);
/// - `linear`: a linear layer (PaliGemma: Beyer et al. 2024, <https://arxiv.org/abs/2407.07726>).
///
/// Option `projector_tokens` is the number of squares, or `merge` the patches along a side of one,
/// for images of any size. `patches` is the map of the patches.
fn projected(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    patches: ValueId,
) -> Result<ValueId> {
    match place.text("projector")?.as_str() {
        "two_layers" => {
            let [up, down] = ["projector_up", "projector_down"].map(|part| place.module(part));
            two_layers(w, place, x, &up?, &down?)
        }
        "average" => {
            let x = averaged(w, place, x)?;
            let x = w.norm("norm", Norm::of(place)?, x, &place.module("projector_norm")?)?;
            let matrix = w.matrix(&place.module("projector")?, true)?;
            Ok(w.make("MatMul", "projected", [x, matrix]))
        }
        "joined" => {
            let x = joined(w, place, x)?;
            w.outer_linear("projected", x, &place.module("projector")?)
        }
        "merged" => {
            let norm = place.module("projector_norm")?;
            let x = w.norm("norm", Norm::of(place)?, x, &norm)?;
            let x = merged(w, place, x, patches)?;
            let [up, down] = ["projector_up", "projector_down"].map(|part| place.module(part));
            two_layers(w, place, x, &up?, &down?)
        }
        "pooled" => {
            let x = pooled(w, place, x, patches)?;
            let eps = Norm::of(place)?.eps();
            let x = w.scope("norm", |w| w.bare_rms_norm(eps, x));
            w.outer_linear("projected", x, &place.module("projector")?)
        }
        "linear" => w.outer_linear("projected", x, &place.module("projector")?),
        "squares" => {
            let x = merged(w, place, x, patches)?;
            let x = w.norm("norm", Norm::of(place)?, x, &place.module("projector_norm")?)?;
            let [up, down] = ["projector_up", "projector_down"].map(|part| place.module(part));
            two_layers(w, place, x, &up?, &down?)
        }
        "merged_by_channel" => {
            let norm = place.module("projector_norm")?;
            let x = w.norm("norm", Norm::of(place)?, x, &norm)?;
            let x = merged(w, place, x, patches)?;
            let x = by_channel(w, place, x)?;
            let x = w.outer_linear("one", x, &place.module("projector")?)?;
            let [up, down] = ["projector_up", "projector_down"].map(|part| place.module(part));
            two_layers(w, place, x, &up?, &down?)
        }
        other => Err(place.unknown("projector", other)),
    }
}

/// Appends the vector `newline` of the checkpoint, which stands behind rows of vectors, if option
/// `image_rows` is true.
fn with_newline(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    if !place.truth("image_rows")? {
        return Ok(x);
    }
    let Some(newline) = place.tensor_or_none("newline") else {
        return Err(Error::version("rows of vectors without a vector behind them"));
    };
    let &[width] = place.model.using(&newline)?.as_slice() else {
        return Err(Error::format("expected one vector behind rows").for_tensor(newline));
    };
    let newline = vision::reshaped(w, &newline, vec![1, 1, width])?;
    let batch = w.length("batch", x, 0);
    let rest = w.ints(&[1, signed(width)]);
    let shape = w.concat("newline_shape", &[batch, rest], 0);
    let newline = w.make("Expand", "newline", [newline, shape]);
    Ok(w.concat("with_newline", &[x, newline], 1))
}

/// A linear layer, option `activation`, and another linear layer.
fn two_layers(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    up: &str,
    down: &str,
) -> Result<ValueId> {
    let x = w.outer_linear("up", x, up)?;
    let x = w.activate("activation", Activation::of(place, "activation")?, x);
    w.outer_linear("down", x, down)
}

/// Appends to each vector those of the same patches behind some layers of the tower, each by a
/// projector of its own: the language model adds them behind its first layers (Qwen3-VL, after
/// DeepStack: Meng et al. 2024, <https://arxiv.org/abs/2406.04334>).
///
/// Option `image_layers` is their number, and `deep_layers` are the layers.
fn with_deep_vectors(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    behind: &[ValueId],
    patches: ValueId,
) -> Result<ValueId> {
    if place.size_or_none("image_layers")?.unwrap_or_default() == 0 {
        return Ok(x);
    }
    let layers = place.sizes("deep_layers")?;
    let mut all = vec![x];
    // In the order of the tower's layers, whatever the order of the list.
    for (layer, states) in (0..).zip(behind) {
        let Some(number) = layers.iter().position(|deep| *deep == layer) else { continue };
        let module = |part: &str| {
            let name = place.numbered(part, &[("deep", number as u64)]);
            name.ok_or_else(|| Error::format("a projector of a layer has no name"))
        };
        let [norm, up, down] = ["deep_norm", "deep_up", "deep_down"].map(module);
        let made = w.scope(&format!("deep.{number}"), |w| {
            let x = merged(w, place, *states, patches)?;
            let x = w.norm("norm", Norm::of(place)?, x, &norm?)?;
            two_layers(w, place, x, &up?, &down?)
        })?;
        all.push(made);
    }
    if all.len() != layers.len() + 1 {
        let message = format!("layers {layers:?} are not all in a tower of {}", behind.len());
        return Err(Error::format(message));
    }
    Ok(w.concat("with_deep_vectors", &all, -1))
}

/// The vectors of each square of patches in a row, row by row of the square, for a map of patches
/// of any size. Option `merge`: patches along a side of a square.
fn merged(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    patches: ValueId,
) -> Result<ValueId> {
    let side = signed(place.size("merge")?);
    let width = signed(place.model.place(TOWER).size("hidden")?).saturating_mul(side);
    Ok(w.scope("squares", |w| {
        let columns = w.length("columns", patches, 3);
        let step = w.ints(&[side]);
        let across = w.make("Div", "across", [columns, step]);
        let (front, last) = (w.ints(&[0, -1, side]), w.ints(&[width]));
        let shape = w.concat("shape", &[front, across, last], 0);
        let by_square = w.make("Reshape", "by_square", [x, shape]);
        let by_square = w.transpose("squares", by_square, [0, 1, 3, 2, 4]);
        w.reshape("joined", by_square, &[0, -1, side.saturating_mul(width)])
    }))
}

/// The numbers of the patches of a square by channel, from those of the patches in a row.
fn by_channel(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let width = signed(place.model.place(TOWER).size("hidden")?);
    let by_patch = w.reshape("by_patch", x, &[0, 0, -1, width]);
    let by_channel = w.transpose("by_channel", by_patch, [0, 1, 3, 2]);
    Ok(w.reshape("channels_in_a_row", by_channel, &[0, 0, -1]))
}

/// The means of squares of patches. Options `image`, `patch` and `projector_tokens`.
fn averaged(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let (side, step) = squares(place)?;
    let width = signed(place.model.place(TOWER).size("hidden")?);
    let rows = side * step;
    let by_channel = w.transpose("by_channel", x, [0, 2, 1]);
    let map = w.reshape("map", by_channel, &[0, width, rows, rows]);
    let means = w
        .op("AveragePool", [map])
        .attribute("kernel_shape", [step, step])
        .attribute("strides", [step, step])
        .output("means");
    let means = w.reshape("means_in_a_row", means, &[0, width, -1]);
    Ok(w.transpose("averaged", means, [0, 2, 1]))
}

/// The means of squares of patches of a map of any size, times the root of their width. Option
/// `merge`: patches along a side of a square.
fn pooled(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    x: ValueId,
    patches: ValueId,
) -> Result<ValueId> {
    let side = signed(place.size("merge")?);
    let width = place.model.place(TOWER).size("hidden")?;
    let by_channel = w.transpose("by_channel", x, [0, 2, 1]);
    let shape = w.make("Shape", "map_shape", [patches]);
    let map = w.make("Reshape", "map", [by_channel, shape]);
    let means = w
        .op("AveragePool", [map])
        .attribute("kernel_shape", [side, side])
        .attribute("strides", [side, side])
        .output("means");
    let means = w.reshape("means_in_a_row", means, &[0, signed(width), -1]);
    let means = w.transpose("averaged", means, [0, 2, 1]);
    let mut x = w.scaled("long", means, (width as f64).sqrt());
    for (part, op) in [("projector_shift", "Sub"), ("projector_scale", "Mul")] {
        if let Some(tensor) = place.tensor_or_none(part) {
            let tensor = w.tensor(&tensor)?;
            x = w.make(op, part, [x, tensor]);
        }
    }
    Ok(x)
}

/// The vectors of each square of patches in a row, row by row of the square. Options as for
/// [`averaged`].
fn joined(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    let (side, step) = squares(place)?;
    let width = signed(place.model.place(TOWER).size("hidden")?) * step;
    let by_square = w.reshape("by_square", x, &[0, side, step, side, width]);
    let by_square = w.transpose("squares", by_square, [0, 1, 3, 2, 4]);
    Ok(w.reshape("joined", by_square, &[0, side * side, step * width]))
}

/// Squares below each other, and patches along a side of each. Options `image`, `patch` and
/// `projector_tokens`, the number of squares.
fn squares(place: BlockPosition<'_>) -> Result<(i64, i64)> {
    let [rows, columns] = vision::sides_in_patches(place)?;
    let tokens = place.size("projector_tokens")?;
    let side = tokens.isqrt();
    if side == 0 || side * side != tokens || rows < side || rows % side != 0 || rows != columns {
        let message = format!("{rows} x {columns} patches are not {tokens} squares");
        return Err(Error::version(message));
    }
    Ok((signed(side), signed(rows / side)))
}
