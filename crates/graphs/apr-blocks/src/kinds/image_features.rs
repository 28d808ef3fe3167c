//! Images for a language model: a tower's vectors of patches, and the projector that makes vectors
//! of the language model's size of them.

use apr_core::{Error, Result};
use apr_graph::{Meaning, ValueId};

use super::vision;
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
    let x = w.scope("tower", |w| vision::encoded(w, tower, pixels))?;
    let x = w.scope("projector", |w| {
        // Option `patches_alone`: the vector of the whole, which stands in front, is left out.
        let x =
            match tower.truth("patches_alone")? && tower.tensor_or_none("class_vector").is_some() {
                true => w.slice("patches", x, 1, 1, i64::MAX),
                false => x,
            };
        projected(w, place, x)
    })?;
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
///   2024, <https://arxiv.org/abs/2408.12637>).
///
/// Option `projector_tokens` is the number of squares.
fn projected(w: &mut Writer<'_>, place: BlockPosition<'_>, x: ValueId) -> Result<ValueId> {
    match place.text("projector")?.as_str() {
        "two_layers" => {
            let x = w.outer_linear("up", x, &place.module("projector_up")?)?;
            let x = w.activate("activation", Activation::of(place, "activation")?, x);
            w.outer_linear("down", x, &place.module("projector_down")?)
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
        other => Err(place.unknown("projector", other)),
    }
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
