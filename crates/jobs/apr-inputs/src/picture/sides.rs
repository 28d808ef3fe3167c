//! Sizes that preprocessors request.

use apr_core::{Error, Result};
use serde_json::Value as Json;

use super::Picture;

/// Size that a preprocessor requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Exact sizes of both sides.
    Both {
        /// Number of rows.
        height: usize,
        /// Pixels in a row.
        width: usize,
    },
    /// The shorter side; the other one keeps its ratio to it.
    Shorter(usize),
    /// Sides that are multiples of `step`, near those of the image, with a number of pixels in a
    /// range (Qwen2-VL).
    Multiples {
        /// Pixels of a step.
        step: usize,
        /// Fewest pixels.
        fewest: usize,
        /// Most pixels.
        most: usize,
    },
    /// Sides of the image, made smaller where one is longer than `most`, then rounded up to
    /// multiples of `step` (Pixtral).
    Longest {
        /// Maximum length of a side before it is rounded up.
        most: usize,
        /// Pixels of a step.
        step: usize,
    },
    /// The longest sides that are multiples of `step`, in about the ratio of the image's, with at
    /// most this number of squares of a step (Gemma 4).
    Squares {
        /// Pixels of a step.
        step: usize,
        /// Most squares.
        most: usize,
    },
}

/// Longest ratio of the sides of an image for [`Side::Multiples`].
const MAX_RATIO: f64 = 200.0;

impl Side {
    /// Rows, and pixels in a row, of a picture that is brought to this.
    ///
    /// # Errors
    /// E003 for a picture that is too narrow.
    pub(super) fn of(self, picture: &Picture) -> Result<(usize, usize)> {
        Ok(match self {
            Self::Both { height, width } => (height, width),
            Self::Shorter(short) => {
                let other = |long: usize, side: usize| short.saturating_mul(long) / side.max(1);
                if picture.width <= picture.height {
                    (other(picture.height, picture.width), short)
                } else {
                    (short, other(picture.width, picture.height))
                }
            }
            Self::Multiples { step, fewest, most } => {
                multiple_sides(picture, step as f64, fewest as f64, most as f64)?
            }
            Self::Longest { most, step } => longest_sides(picture, most, step),
            Self::Squares { step, most } => square_sides(picture, step, most)?,
        })
    }
}

/// Sides of a picture for [`Side::Multiples`], as `smart_resize` of transformers computes them.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sides are positive")]
fn multiple_sides(picture: &Picture, step: f64, fewest: f64, most: f64) -> Result<(usize, usize)> {
    let (height, width) = (picture.height as f64, picture.width as f64);
    let ratio = height.max(width) / height.min(width);
    if ratio > MAX_RATIO {
        return Err(Error::version(format!(
            "one side is {ratio:.0} times the other; the model's preprocessor accepts at most \
             {MAX_RATIO} times"
        )));
    }
    let near = |side: f64| (side / step).round_ties_even() * step;
    let pixels = near(height) * near(width);
    let sides = if pixels > most {
        let beta = (height * width / most).sqrt();
        [height, width].map(|side| ((side / beta / step).floor() * step).max(step))
    } else if pixels < fewest {
        let beta = (fewest / (height * width)).sqrt();
        [height, width].map(|side| (side * beta / step).ceil() * step)
    } else {
        [height, width].map(near)
    };
    Ok((sides[0] as usize, sides[1] as usize))
}

/// Sides of a picture for [`Side::Longest`].
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sides are positive")]
fn longest_sides(picture: &Picture, most: usize, step: usize) -> (usize, usize) {
    let sides = [picture.height, picture.width];
    let ratio = sides.iter().map(|side| *side as f64 / most as f64).fold(0.0, f64::max);
    let [height, width] = sides.map(|side| {
        let side = if ratio > 1.0 { (side as f64 / ratio).floor() as usize } else { side };
        side.div_ceil(step.max(1)).saturating_mul(step)
    });
    (height, width)
}

/// Sides of a picture for [`Side::Squares`], with the roundings of transformers.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sides are positive")]
fn square_sides(picture: &Picture, step: usize, most: usize) -> Result<(usize, usize)> {
    let (height, width) = (picture.height as f64, picture.width as f64);
    let pixels = most as f64 * (step as f64).powi(2);
    let factor = (pixels / (height * width)).sqrt();
    let squares = |side: f64| (factor * side / step as f64).floor() as usize;
    // One square is as high or as wide as there is room for, where a side has room for none.
    let ratio = |long: f64, short: f64| ((long / short).floor() as usize).min(most);
    let (rows, columns) = match (squares(height), squares(width)) {
        (0, 0) => return Err(Error::version("the preprocessor's images have no pixels")),
        (0, _) => (1, ratio(width, height)),
        (_, 0) => (ratio(height, width), 1),
        sides => sides,
    };
    Ok((rows.saturating_mul(step), columns.saturating_mul(step)))
}

/// Returns the size of a processor whose sizes follow from the image; `None` for other processors.
///
/// # Errors
/// E003 for a size without the entries that its class needs.
pub(super) fn by_image(config: &Json) -> Result<Option<Side>> {
    let class = config.get("image_processor_type").and_then(Json::as_str).unwrap_or_default();
    match class {
        _ if ["Qwen2VL", "Qwen2_5_VL"].iter().any(|of| class.starts_with(of)) => {
            multiples(config).map(Some)
        }
        _ if class.starts_with("Pixtral") => longest(config).map(Some),
        _ if class.starts_with("Gemma4") => squares(config).map(Some),
        _ => Ok(None),
    }
}

/// Returns the number of an entry.
fn number(object: &Json, key: &str) -> Option<usize> {
    object.get(key).and_then(Json::as_u64).and_then(|size| usize::try_from(size).ok())
}

/// Returns the size that Pixtral's processor requests.
fn longest(config: &Json) -> Result<Side> {
    let most = match config.get("size") {
        None => Some(1024),
        Some(size) => number(size, "longest_edge"),
    };
    let most = most.filter(|most| *most > 0);
    let most = most.ok_or_else(|| Error::version("the preprocessor's size has no longest_edge"))?;
    let patch = config.get("patch_size");
    let height = patch.and_then(|patch| patch.get("height"));
    let step = height.or(patch).map_or(Some(16), Json::as_u64);
    let step = step.and_then(|step| usize::try_from(step).ok()).filter(|step| *step > 0);
    let step = step.ok_or_else(|| Error::format("the preprocessor has patches without pixels"))?;
    Ok(Side::Longest { most, step })
}

/// Returns the size that a processor of Qwen2-VL and later requests.
///
/// The range of pixels is `min_pixels` and `max_pixels`, or since transformers 5 the edges of
/// `size`, which are no edges.
fn multiples(config: &Json) -> Result<Side> {
    let range = |key: &str, edge: &str, default: usize| {
        let of_size = || match config.get("size") {
            None => Some(default),
            Some(size) => number(size, edge).or_else(|| number(size, key)),
        };
        number(config, key).or_else(of_size).filter(|pixels| *pixels > 0).ok_or_else(|| {
            Error::version(format!("the preprocessor's size has neither '{edge}' nor '{key}'"))
        })
    };
    let side = |key: &str, default: usize| number(config, key).unwrap_or(default);
    let step = side("patch_size", 14).saturating_mul(side("merge_size", 2));
    if step == 0 {
        return Err(Error::format("the preprocessor has patches without pixels"));
    }
    Ok(Side::Multiples {
        step,
        fewest: range("min_pixels", "shortest_edge", 56 * 56)?,
        most: range("max_pixels", "longest_edge", 28 * 28 * 1280)?,
    })
}

/// Returns the size that Gemma 4's processor requests.
fn squares(config: &Json) -> Result<Side> {
    let entry = |key: &str, default: usize| number(config, key).unwrap_or(default);
    let step = entry("patch_size", 16).saturating_mul(entry("pooling_kernel_size", 3));
    let most = entry("max_soft_tokens", 280);
    if step == 0 || most == 0 {
        return Err(Error::format("the preprocessor has patches without pixels"));
    }
    Ok(Side::Squares { step, most })
}

/// A number, or an object of sides.
pub(super) fn side(size: &Json, by_shorter: bool) -> Result<Side> {
    let of = |key: &str| {
        size.get(key).and_then(Json::as_u64).and_then(|side| usize::try_from(side).ok())
    };
    if let Some(number) = size.as_u64().and_then(|side| usize::try_from(side).ok()) {
        return Ok(if by_shorter {
            Side::Shorter(number)
        } else {
            Side::Both { height: number, width: number }
        });
    }

    match (of("height"), of("width"), of("shortest_edge"), of("longest_edge")) {
        (Some(height), Some(width), ..) => Ok(Side::Both { height, width }),
        (None, None, Some(short), None) => Ok(Side::Shorter(short)),
        _ => Err(Error::version(format!("unknown size {size} of the preprocessor"))),
    }
}
