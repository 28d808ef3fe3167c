//! Picture files: PNG, JPEG, WebP.

use std::io::Cursor;

use apr_core::{Error, Escaped, Result, grouped};
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits};

use super::Picture;
use crate::guard::guarded;

/// Pixels on a side.
const MAX_SIDE: u32 = 1 << 16;

/// The picture of a file, in red, green and blue; what is transparent keeps its colour.
///
/// # Errors
/// E001 for what is no picture, or a damaged one; E003 for one of a kind that is not read; E008 for
/// one that takes more than `most` bytes.
pub fn decode(bytes: &[u8], most: u64) -> Result<Picture> {
    if bytes.is_empty() {
        return Err(Error::format("the file is empty"));
    }
    guarded("the picture", || read(bytes, most))
}

fn read(bytes: &[u8], most: u64) -> Result<Picture> {
    let mut reader = ImageReader::new(Cursor::new(bytes));
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(most);
    reader.limits(limits);
    let reader = reader.with_guessed_format().map_err(|error| Error::format(error.to_string()))?;
    if reader.format().is_none() {
        return Err(Error::version(
            "the file is no picture of a kind that is read: PNG, JPEG and WebP are",
        ));
    }

    let decoder = reader.into_decoder().map_err(|error| wrong(&error))?;
    let (width, height) = decoder.dimensions();

    // As it is stored, and in 8 bits of three colours.
    let needed = decoder.total_bytes().saturating_add(3 * u64::from(width) * u64::from(height));
    if needed > most {
        let [width, height, needed] = [width.into(), height.into(), needed].map(grouped);
        return Err(Error::memory(format!(
            "a picture of {width} x {height} takes {needed} bytes of memory"
        )));
    }

    let picture = DynamicImage::from_decoder(decoder).map_err(|error| wrong(&error))?.into_rgb8();
    Ok(Picture {
        width: picture.width() as usize,
        height: picture.height() as usize,
        pixels: picture.into_raw(),
    })
}

fn wrong(error: &ImageError) -> Error {
    let text = error.to_string();
    match error {
        ImageError::Limits(_) => {
            Error::memory(format!("the picture is too large: {}", Escaped::short(&text)))
        }
        ImageError::Unsupported(_) => {
            Error::version(format!("the picture can't be read: {}", Escaped::short(&text)))
        }
        _ => Error::format(format!("the picture is damaged: {}", Escaped::short(&text))),
    }
}
