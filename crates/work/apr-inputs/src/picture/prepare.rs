//! The steps of a preprocessor.

use apr_core::{Error, Result};
use serde_json::Value as Json;

use super::{Filter, MAX_PIXELS, Picture, Tiled, Tiles};

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
}

/// Steps that a preprocessor applies to an image, in this order.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PixelSettings {
    /// First, its size changes.
    pub size: Option<(Side, Filter)>,
    /// Size of the middle part that is cut out: rows, pixels in a row.
    pub crop: Option<(usize, usize)>,
    /// Division into several images of one size, instead of `size` and `crop`.
    pub tiles: Option<Tiles>,
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
        let size = match config.get("size").filter(|_| tile.is_none()) {
            Some(size) => side(size, by_shorter)?,
            None => Side::Both { height: expected.0, width: expected.1 },
        };
        let number = config.get("resample").and_then(Json::as_u64).unwrap_or(2);
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
        let normal = channels("mean").zip(channels("std")).filter(|_| flag("do_normalize", true));
        let factor = config.get("rescale_factor").and_then(Json::as_f64).unwrap_or(1.0 / 255.0);
        let (size, crop) = match (share(config), size) {
            // ConvNeXT's processor: small pictures lose their border, large ones their ratio.
            (Some(share), Side::Shorter(side) | Side::Both { height: side, .. }) => {
                by_share(side, share)?
            }
            (None, size) => (size, crop.filter(|_| flag("do_center_crop", true))),
        };
        let tiles = tile.map(|side| Tiles {
            longest: longest("size").filter(|_| flag("do_resize", true)),
            side,
            splits: flag("do_image_splitting", true),
            filter,
        });
        // Tiles are of one size, so that nothing is padded.
        if flag("do_pad", false) && tiles.is_none() {
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

    /// The pixels of a picture as the model gets them, `[3, height, width]`, with these sides.
    ///
    /// # Errors
    /// E001 for a size that can't be, E008 for one that is too large.
    pub fn apply(&self, picture: &Picture) -> Result<(Vec<f32>, usize, usize)> {
        let mut picture = std::borrow::Cow::Borrowed(picture);
        if let Some((side, filter)) = self.size {
            let (height, width) = side.of(&picture);
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

impl Side {
    /// Rows, and pixels in a row, of a picture that is brought to this.
    fn of(self, picture: &Picture) -> (usize, usize) {
        match self {
            Self::Both { height, width } => (height, width),
            Self::Shorter(short) => {
                let other = |long: usize, side: usize| short.saturating_mul(long) / side.max(1);
                if picture.width <= picture.height {
                    (other(picture.height, picture.width), short)
                } else {
                    (short, other(picture.width, picture.height))
                }
            }
        }
    }
}

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

/// A number, or an object of sides.
fn side(size: &Json, by_shorter: bool) -> Result<Side> {
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
