//! Models that see in stages of layers whose attention reaches as far as windows do.

use apr_core::{Error, Result};
use apr_graph::ValueId;

use super::stages::stages;
use super::{head, vision};
use crate::blocks::norm::Norm;
use crate::blocks::windows::Windows;
use crate::model::{BlockPosition, Model};
use crate::writer::{Writer, signed};

/// Writes the graph of a model of windows. Options `stages`, `layers` and `hidden` of each stage;
/// where a stage has `downsampling`, its map is merged after its layers.
pub(crate) fn write(model: &Model<'_>, w: &mut Writer<'_>) -> Result<()> {
    let place = model.place("");
    let pixels = vision::pixels(w, place)?;
    let (mut x, mut sides) = w.scope("embeddings", |w| embeddings(w, place, pixels))?;
    for stage in 0..stages(place)? {
        let place = place.stage(stage);
        let name = format!("stages.{stage}");
        x = layers(w, place, &name, x, sides)?;
        if place.module_or_none("downsampling").is_some() {
            x = w.scope(&format!("{name}.downsampling"), |w| w.merged_places(place, x, sides))?;
            sides = sides.map(|length| length.div_ceil(2));
        }
    }

    let x = w.norm_part(Norm::of(place)?, "final_norm", x, place.module_or_none("final_norm"))?;
    head::write(w, place, x, None)
}

/// Returns the vectors of the patches, and the number of patches along both sides.
///
/// An image whose sides are not multiples of the patch size is padded with zeros at the end.
fn embeddings(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    pixels: ValueId,
) -> Result<(ValueId, [u64; 2])> {
    let module = place.module("patches")?;
    let weight = format!("{module}.weight");
    let dims = w.model.using(&weight)?;
    let &[channels, _, rows, columns] = dims.as_slice() else {
        return Err(Error::format("a kernel over maps has four dimensions").for_tensor(&weight));
    };
    if rows == 0 || columns == 0 {
        return Err(Error::format("a patch has no pixels").for_tensor(&weight));
    }

    let (height, width) = vision::size_of(place)?
        .ok_or_else(|| Error::format("the configuration does not state the image size"))?;
    let sides = [height.div_ceil(rows), width.div_ceil(columns)];
    let missing = [sides[0] * rows - height, sides[1] * columns - width];
    let pixels = if missing == [0, 0] {
        pixels
    } else {
        let pads = w.ints(&[0, 0, 0, 0, 0, 0, signed(missing[0]), signed(missing[1])]);
        let zero = w.float(0.0);
        w.make("Pad", "padded", [pixels, pads, zero])
    };
    let patches = w.map_convolution("patches", pixels, &module, None, Some(0))?;
    let flat = w.reshape("flat", patches, &[0, signed(channels), -1]);
    let x = w.transpose("by_patch", flat, [0, 2, 1]);

    // The epsilon is PyTorch's default, since transformers states none here.
    let norm = Norm::of(place)?.with_eps(1e-5);
    let mut x = w.norm("norm", norm, x, &place.module("embedding_norm")?)?;
    if let Some(positions) = place.tensor_or_none("positions") {
        let positions = w.tensor(&positions)?;
        x = w.make("Add", "with_positions", [x, positions]);
    }
    Ok((x, sides))
}

/// The layers of a stage, each as a call of a function.
fn layers(
    w: &mut Writer<'_>,
    place: BlockPosition<'_>,
    name: &str,
    x: ValueId,
    sides: [u64; 2],
) -> Result<ValueId> {
    let mut shared: Vec<(Windows, ValueId, Option<ValueId>)> = Vec::new();
    let mut x = x;
    for layer in 0..place.layers()? {
        let place = place.layer(layer);
        let windows = Windows::of(place, sides)?;
        let known = shared.iter().find(|(known, ..)| *known == windows).copied();
        let (_, distances, mask) = match known {
            Some(known) => known,
            None => w.scope(&format!("{name}.windows"), |w| {
                let distances = w.window_distances(windows);
                Ok::<_, Error>((windows, distances, w.window_mask(place, windows)?))
            })?,
        };
        if known.is_none() {
            shared.push((windows, distances, mask));
        }

        let inputs = [("hidden", Some(x)), ("distances", Some(distances)), ("mask", mask)];
        let call = format!("{name}.layers.{layer}");
        let results =
            w.call(&place.function_name(), &call, inputs, |w, [x, distances, mask]| {
                let (Some(x), Some(distances)) = (x, distances) else {
                    return Err(Error::format("a layer needs an input"));
                };
                Ok(vec![("output", w.window_layer(place, windows, x, distances, mask)?)])
            })?;
        x = results[0];
    }

    Ok(x)
}
