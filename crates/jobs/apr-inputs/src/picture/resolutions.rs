//! Pictures that are fitted into one of several sizes, and split into squares (LLaVA-NeXT: Liu et
//! al. 2024, <https://llava-vl.github.io/blog/2024-01-30-llava-next/>). Sizes are those of
//! transformers' processor.

use apr_core::{Error, Result};
use serde_json::{Value as Json, json};

use super::{Filter, MAX_PIXELS, Picture, Tiled};

/// Sizes that an image is fitted into.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolutions {
    /// Heights and widths.
    pub sizes: Vec<[usize; 2]>,
    /// The side of a square.
    pub side: usize,
    /// Filter for resizing.
    pub filter: Filter,
}

impl Resolutions {
    /// Returns the sizes of a preprocessor of LLaVA-NeXT; `None` for other preprocessors.
    ///
    /// # Errors
    /// E003 for squares of another size than the image as a whole, and sizes that are not squares
    /// side by side.
    pub(super) fn of_config(config: &Json) -> Result<Option<Self>> {
        let class = config.get("image_processor_type").and_then(Json::as_str).unwrap_or_default();
        if !class.starts_with("LlavaNextImage") {
            return Ok(None);
        }
        let number = |json: Option<&Json>| usize::try_from(json?.as_u64()?).ok();
        let of = |key: &str, edge: &str| number(config.get(key)?.get(edge));
        let shortest = of("size", "shortest_edge").or_else(|| of("size", "height"));
        let sides = [
            shortest,
            of("size", "width").or(shortest),
            of("crop_size", "height").or(shortest),
            of("crop_size", "width").or(shortest),
        ];
        let side = sides[0].filter(|side| *side > 0 && sides.iter().all(|own| *own == sides[0]));
        let unknown = |what: &str| Error::version(format!("{what} of the preprocessor"));
        let side = side.ok_or_else(|| unknown("tiles of several sizes or of none"))?;
        let usual = json!([[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]);
        let listed = config.get("image_grid_pinpoints").unwrap_or(&usual).as_array();
        let size = |json: &Json| match json.as_array()?.as_slice() {
            [height, width] => Some([number(Some(height))?, number(Some(width))?]),
            _ => None,
        };
        let sizes: Option<Vec<[usize; 2]>> =
            listed.and_then(|listed| listed.iter().map(size).collect());
        let is_whole = |size: &[usize; 2]| size.iter().all(|own| *own > 0 && own % side == 0);
        let sizes = sizes.filter(|sizes| !sizes.is_empty() && sizes.iter().all(is_whole));
        let sizes = sizes.ok_or_else(|| unknown("unknown image_grid_pinpoints"))?;
        Ok(Some(Self { sizes, side, filter: Filter::Bicubic }))
    }

    /// The pictures for one.
    ///
    /// # Errors
    /// E001 for a size that can't be, E008 for one that is too large.
    pub(super) fn of(&self, picture: &Picture) -> Result<Tiled> {
        let &Self { side, filter, .. } = self;
        if side == 0 || picture.width == 0 || picture.height == 0 {
            return Err(Error::format("tiles without pixels"));
        }
        let [height, width] = self.best(picture);
        if height.saturating_mul(width) > MAX_PIXELS {
            return Err(Error::memory(format!("an image of {width} x {height} is too large")));
        }
        let [own_height, own_width] = fitting(picture, [height, width]);
        let fitted = picture.resized(own_width, own_height, filter)?;
        let canvas = fitted.padded(height, width);
        let (rows, columns) = (height / side, width / side);
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let tile =
            |(row, column): (usize, usize)| canvas.part(row * side, column * side, side, side);
        let whole = picture.resized(side, side, filter)?;
        let pictures = places.map(tile).chain([whole]).collect();
        Ok(Tiled { pictures, rows, columns })
    }

    /// Returns the size that keeps most pixels of the image, and of these the one with the least
    /// padding.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sides are positive"
    )]
    fn best(&self, picture: &Picture) -> [usize; 2] {
        let (own_height, own_width) = (picture.height as f64, picture.width as f64);
        let own = picture.height * picture.width;
        let (mut best, mut most, mut least) = ([self.side; 2], 0, usize::MAX);
        for &[height, width] in &self.sizes {
            let scale = (width as f64 / own_width).min(height as f64 / own_height);
            let sides = [own_width, own_height].map(|side| (side * scale) as usize);
            let kept = sides[0].saturating_mul(sides[1]).min(own);
            let wasted = height.saturating_mul(width).saturating_sub(kept);
            if kept > most || kept == most && wasted < least {
                (best, most, least) = ([height, width], kept, wasted);
            }
        }
        best
    }
}

/// Returns the height and width of an image that is fitted into a size with its own ratio.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sides are positive")]
fn fitting(picture: &Picture, [height, width]: [usize; 2]) -> [usize; 2] {
    let across = width as f64 / picture.width as f64;
    let down = height as f64 / picture.height as f64;
    if across < down {
        [((picture.height as f64 * across).ceil() as usize).min(height), width]
    } else {
        [height, ((picture.width as f64 * down).ceil() as usize).min(width)]
    }
}

impl Picture {
    /// Returns the image in the middle of a larger black one.
    fn padded(&self, height: usize, width: usize) -> Self {
        let (top, left) = ((height - self.height) / 2, (width - self.width) / 2);
        let mut pixels = vec![0; 3 * height * width];
        for (row, own) in self.pixels.chunks_exact(3 * self.width).enumerate() {
            let start = 3 * ((top + row) * width + left);
            pixels[start..start + own.len()].copy_from_slice(own);
        }
        Self { width, height, pixels }
    }
}

/// Returns the rows and columns of vectors that are left of a grid of `rows` and `columns`, without
/// those of the padding around an image: how many are cut off on either side, above and to the
/// left.
///
/// `height` and `width` are those of the image.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sides are positive")]
#[must_use]
pub fn padding_of(height: usize, width: usize, rows: usize, columns: usize) -> [usize; 2] {
    let (tall, wide) = (height as f64, width as f64);
    let (down, across) = (rows as f64, columns as f64);
    // Seven digits, as transformers rounds.
    let whole = |side: f64| ((side * 1e7).round() / 1e7) as usize;
    if wide / tall > across / down {
        [rows.saturating_sub(whole(tall * (across / wide))) / 2, 0]
    } else {
        [0, columns.saturating_sub(whole(wide * (down / tall))) / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: usize, height: usize) -> Picture {
        Picture { width, height, pixels: vec![7; 3 * width * height] }
    }

    #[test]
    fn an_image_is_fitted_into_the_size_that_suits_it() {
        let sizes = vec![[6, 12], [12, 6], [12, 12]];
        let resolutions = Resolutions { sizes, side: 6, filter: Filter::Bicubic };
        let of = |width, height| {
            let tiled = resolutions.of(&picture(width, height)).expect("tiles");
            (tiled.rows, tiled.columns, tiled.pictures.len())
        };
        assert_eq!(of(40, 20), (1, 2, 3));
        assert_eq!(of(20, 40), (2, 1, 3));
        assert_eq!(of(30, 30), (2, 2, 5));
        let hostile = Resolutions { sizes: vec![[1 << 40, 6]], ..resolutions };
        assert!(hostile.of(&picture(4, 4)).is_err());
    }

    #[test]
    fn vectors_of_padding_are_cut_off_on_both_sides() {
        assert_eq!(padding_of(10, 40, 8, 8), [3, 0]);
        assert_eq!(padding_of(40, 10, 8, 8), [0, 3]);
        assert_eq!(padding_of(10, 10, 8, 8), [0, 0]);
    }

    #[test]
    fn settings_of_several_sizes_are_refused() {
        let config = |pinpoints: Json| {
            json!({ "image_processor_type": "LlavaNextImageProcessor",
                    "size": { "shortest_edge": 6 }, "image_grid_pinpoints": pinpoints })
        };
        assert!(Resolutions::of_config(&config(json!([[6, 12]]))).is_ok_and(|it| it.is_some()));
        for wrong in [json!([[6, 13]]), json!([]), json!([6]), json!([[0, 6]])] {
            assert!(Resolutions::of_config(&config(wrong.clone())).is_err(), "{wrong}");
        }
    }
}
