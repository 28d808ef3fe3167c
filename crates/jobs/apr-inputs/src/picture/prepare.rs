//! The steps of a preprocessor.

use apr_core::{Error, Result};
use serde_json::Value as Json;

use super::sides::{Side, by_image, side};
use super::{Canvas, Filter, MAX_PIXELS, Picture, Resolutions, Tiled, Tiles, Tiling};

/// Steps that a preprocessor applies to an image, in this order.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PixelSettings {
    /// First, its size changes.
    pub size: Option<(Side, Filter)>,
    /// Size of the middle part that is cut out: rows, pixels in a row.
    pub crop: Option<(usize, usize)>,
    /// Division into several images of one size, instead of `size` and `crop`.
    pub tiles: Option<Tiling>,
    /// Factor of the values, which are from 0 to 255.
    pub factor: f64,
    /// Mean and standard deviation of each colour, for normalization.
    ///
    /// The mean is subtracted, and the result is divided by the deviation.
    pub normal: Option<([f64; 3], [f64; 3])>,
}

impl PixelSettings {
    /// Reads the settings from the metadata key `image_config`, which contains the steps of
    /// `preprocessor_config.json`. `expected` is the size that the model accepts, for a missing
    /// size.
    ///
    /// # Errors
    /// E003 for an unknown step.
    pub fn from_json(config: &Json, expected: (usize, usize)) -> Result<Self> {
        let flag =
            |key: &str, default: bool| config.get(key).and_then(Json::as_bool).unwrap_or(default);
        let by_shorter = config.get("crop_size").is_some();
        let longest = |key: &str| {
            let edge = config.get(key)?.get("longest_edge")?.as_u64()?;
            usize::try_from(edge).ok()
        };
        let tile = longest("max_image_size");
        let by_image = by_image(config)?;
        let canvas = Canvas::of_config(config);
        let size = match (by_image, config.get("size").filter(|_| tile.is_none())) {
            (Some(by_image), _) => by_image,
            (None, Some(size)) => side(size, by_shorter)?,
            (None, None) => Side::Both { height: expected.0, width: expected.1 },
        };
        // What transformers' class takes where the file does not say.
        let resolutions = Resolutions::of_config(config)?;
        let is_newer = by_image.is_some() || canvas.is_some() || resolutions.is_some();
        let is_plain = matches!(by_image, Some(Side::Squares { .. }));
        let (filter_number, usual) = match is_newer {
            true => (3, (!is_plain).then_some(CLIP)),
            false => (2, None),
        };
        let number = config.get("resample").and_then(Json::as_u64).unwrap_or(filter_number);
        let filter = Filter::by_number(number).ok_or_else(|| {
            Error::version(format!("unknown resample {number} of the preprocessor"))
        })?;
        let crop = match config.get("crop_size").map(|crop| side(crop, false)).transpose()? {
            Some(Side::Both { height, width }) => Some((height, width)),
            _ => None,
        };
        let channels = |key: &str| -> Option<[f64; 3]> {
            let list: Vec<f64> =
                config.get(key)?.as_array()?.iter().filter_map(Json::as_f64).collect();
            list.try_into().ok()
        };
        let normal = channels("mean").zip(channels("std")).or(usual);
        let normal = normal.filter(|_| flag("do_normalize", !is_plain));
        let factor = config.get("rescale_factor").and_then(Json::as_f64).unwrap_or(1.0 / 255.0);
        let (size, crop) = match (share(config), size) {
            // ConvNeXT's processor: small pictures lose their border, large ones their ratio.
            (Some(share), Side::Shorter(side) | Side::Both { height: side, .. }) => {
                by_share(side, share)?
            }
            (_, size) => (size, crop.filter(|_| flag("do_center_crop", true))),
        };
        let squares = tile.map(|side| {
            Tiling::Squares(Tiles {
                longest: longest("size").filter(|_| flag("do_resize", true)),
                side,
                splits: flag("do_image_splitting", true),
                filter,
            })
        });
        let tiles = match (canvas, size) {
            (Some(counts), Side::Both { height, width }) => {
                Some(Tiling::Canvas(Canvas { height, width, filter, ..counts }))
            }
            (Some(_), _) => {
                return Err(Error::version("tiles of a size that is not a height and a width"));
            }
            (None, _) => squares,
        };
        let tiles = match resolutions {
            Some(sizes) => Some(Tiling::Resolutions(Resolutions { filter, ..sizes })),
            None => tiles,
        };
        // Tiles are of one size, and images are read one by one, so that nothing is padded.
        if flag("do_pad", false) && tiles.is_none() && by_image.is_none() {
            return Err(Error::version("padding by the preprocessor is not supported"));
        }

        Ok(Self {
            size: (flag("do_resize", true) && tiles.is_none()).then_some((size, filter)),
            crop,
            tiles,
            factor: if flag("do_rescale", true) { factor } else { 1.0 },
            normal,
        })
    }

    /// The pictures that a model reads for one, which are to be [applied](Self::apply): most often
    /// the picture itself.
    ///
    /// # Errors
    /// E001 for a size that can't be, E008 for one that is too large.
    pub fn tiled(&self, picture: Picture) -> Result<Tiled> {
        match &self.tiles {
            Some(tiles) => tiles.of(picture),
            None => Ok(Tiled { pictures: vec![picture], rows: 0, columns: 0 }),
        }
    }

    /// Sets the step of sides that are multiples of the model's own step ([`Side::Longest`]).
    #[must_use]
    pub fn with_step(mut self, own: usize) -> Self {
        if let Some((Side::Longest { step, .. }, _)) = &mut self.size {
            *step = own;
        }
        self
    }

    /// The pixels of a picture as the model gets them, `[3, height, width]`, with these sides.
    ///
    /// # Errors
    /// E001 for a size that can't be, E008 for one that is too large.
    pub fn apply(&self, picture: &Picture) -> Result<(Vec<f32>, usize, usize)> {
        let mut picture = std::borrow::Cow::Borrowed(picture);
        if let Some((side, filter)) = self.size {
            let (height, width) = side.of(&picture)?;
            picture = std::borrow::Cow::Owned(picture.resized(width, height, filter)?);
        }

        if let Some((height, width)) = self.crop {
            picture = std::borrow::Cow::Owned(picture.middle(height, width)?);
        }

        let (mean, deviation) = self.normal.unwrap_or(([0.0; 3], [1.0; 3]));
        let mut values = Vec::with_capacity(picture.pixels.len());
        for colour in 0..3 {
            let (mean, deviation) = (mean[colour], deviation[colour]);
            #[expect(clippy::cast_possible_truncation, reason = "pixels have single precision")]
            let value = |byte: &u8| ((f64::from(*byte) * self.factor - mean) / deviation) as f32;
            values.extend(picture.pixels.iter().skip(colour).step_by(3).map(value));
        }

        Ok((values, picture.height, picture.width))
    }
}

/// Mean and deviation of CLIP's training images.
const CLIP: ([f64; 3], [f64; 3]) =
    ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]);

/// Returns the share of an image that is kept, if a processor of transformers declares it. timm's
/// processors have no `size` beside it.
fn share(config: &Json) -> Option<f64> {
    config.get("size")?;
    config.get("crop_pct")?.as_f64()
}

/// Returns the size before the crop, and the crop of the middle, which is `share` of the image.
fn by_share(side: usize, share: f64) -> Result<(Side, Option<(usize, usize)>)> {
    /// Minimum side of images that are not cropped.
    const LARGE: usize = 384;
    if side >= LARGE {
        return Ok((Side::Both { height: side, width: side }, None));
    }
    let whole = side as f64 / share;
    if !(share > 0.0 && whole <= MAX_PIXELS as f64) {
        return Err(Error::format(format!(
            "crop_pct is {share}: expected a number between 0 and 1"
        )));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
    let whole = whole as usize;
    Ok((Side::Shorter(whole), Some((side, side))))
}

impl Picture {
    /// Returns the middle of the image. If the requested size is larger, it is padded with black.
    ///
    /// # Errors
    /// E008 for a size that is too large.
    pub fn middle(&self, height: usize, width: usize) -> Result<Self> {
        if height.saturating_mul(width) > MAX_PIXELS {
            return Err(Error::memory(format!("a crop of {width} x {height} is too large")));
        }

        // As transformers: half of what is left over lies before, rounded down, and up where there
        // is too little.
        let before = |has: usize, wants: usize| {
            if has >= wants {
                (has - wants) as i64 / 2
            } else {
                -((wants - has).div_ceil(2) as i64)
            }
        };

        let (top, left) = (before(self.height, height), before(self.width, width));
        let mut pixels = vec![0; 3 * height * width];
        for (number, pixel) in pixels.chunks_exact_mut(3).enumerate() {
            let place = |at: usize, before: i64, side: usize| {
                usize::try_from(at as i64 + before).ok().filter(|place| *place < side)
            };
            let row = place(number / width, top, self.height);
            if let Some((row, column)) = row.zip(place(number % width, left, self.width)) {
                let at = 3 * (row * self.width + column);
                pixel.copy_from_slice(&self.pixels[at..at + 3]);
            }
        }

        Ok(Self { width, height, pixels })
    }
}
