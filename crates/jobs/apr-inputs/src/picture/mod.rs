//! Pictures as a model's input: pixels, resized, cropped and normalised as the model's preprocessor
//! says.
//!
//! Values are those of transformers with Pillow 13: sizes are changed in whole numbers of 8 bits,
//! rows first.

#[cfg(feature = "images")]
mod decode;
#[cfg(not(feature = "images"))]
#[path = "decode_off.rs"]
mod decode;
#[cfg(feature = "images")]
mod jpeg;
mod prepare;
mod resize;
mod resolutions;
mod sides;
mod tiles;

pub use decode::decode;
pub use prepare::PixelSettings;
pub use resize::Filter;
pub use resolutions::{Resolutions, padding_of};
pub use sides::Side;
pub use tiles::{Canvas, Tiled, Tiles, Tiling};

/// Maximum number of pixels of an image that a preprocessor requests, far more than any model
/// accepts.
const MAX_PIXELS: usize = 1 << 25;

/// A picture in red, green and blue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// Three bytes a pixel, row by row.
    pub pixels: Vec<u8>,
}
