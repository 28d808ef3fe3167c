//! Picture files: PNG, JPEG, WebP, GIF, BMP, TIFF.

use std::io::Cursor;

use apr_core::{Error, Escaped, Result, grouped};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, RgbImage};

use super::{Picture, jpeg};
use crate::guard::guarded;

/// Pixels on a side.
const MAX_SIDE: u32 = 1 << 16;

/// The picture of a file, in red, green and blue, as transformers' `load_image` makes it with
/// Pillow: the first one of several, turned as its EXIF data say; what is transparent keeps its
/// colour.
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
            "unsupported image format: expected PNG, JPEG, WebP, GIF, BMP or TIFF",
        ));
    }

    let is_jpeg = reader.format() == Some(ImageFormat::Jpeg);
    let mut decoder = reader.into_decoder().map_err(|error| wrong(&error))?;
    let (width, height) = decoder.dimensions();

    // As it is stored, and in 8 bits of three colours.
    let needed = decoder.total_bytes().saturating_add(3 * u64::from(width) * u64::from(height));
    if needed > most {
        let [width, height, needed] = [width.into(), height.into(), needed].map(grouped);
        return Err(Error::memory(format!(
            "an image of {width} x {height} needs {needed} bytes of memory"
        )));
    }

    // EXIF data that can't be read turn nothing, in Pillow either.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let exact = if is_jpeg { jpeg::decode(bytes, most).and_then(of_picture) } else { None };
    let picture = match exact {
        Some(picture) => picture,
        None => colours(DynamicImage::from_decoder(decoder).map_err(|error| wrong(&error))?)?,
    };
    let mut picture = DynamicImage::ImageRgb8(picture);
    picture.apply_orientation(orientation);
    let picture = picture.into_rgb8();
    Ok(Picture {
        width: picture.width() as usize,
        height: picture.height() as usize,
        pixels: picture.into_raw(),
    })
}

fn of_picture(picture: Picture) -> Option<RgbImage> {
    let side = |side: usize| u32::try_from(side).ok();
    RgbImage::from_raw(side(picture.width)?, side(picture.height)?, picture.pixels)
}

/// Converts an image to three colours of 8 bits, as Pillow does. 16-bit colours keep their upper
/// half. 16-bit grey keeps its value, limited to the maximum of 8 bits.
fn colours(picture: DynamicImage) -> Result<RgbImage> {
    let (width, height) = (picture.width(), picture.height());
    let upper = |value: u16| value.to_be_bytes()[0];
    let pixels: Vec<u8> = match picture {
        DynamicImage::ImageLuma16(grey) => {
            let low = |value: u16| u8::try_from(value).unwrap_or(u8::MAX);
            grey.iter().flat_map(|value| [low(*value); 3]).collect()
        }
        DynamicImage::ImageLumaA16(grey) => {
            grey.chunks_exact(2).flat_map(|pair| [upper(pair[0]); 3]).collect()
        }
        DynamicImage::ImageRgb16(colours) => colours.iter().map(|value| upper(*value)).collect(),
        DynamicImage::ImageRgba16(colours) => colours
            .chunks_exact(4)
            .flat_map(|four| [four[0], four[1], four[2]].map(upper))
            .collect(),
        DynamicImage::ImageRgb32F(_) | DynamicImage::ImageRgba32F(_) => {
            return Err(Error::version("floating-point pixels are not supported"));
        }
        other => return Ok(other.into_rgb8()),
    };
    RgbImage::from_raw(width, height, pixels)
        .ok_or_else(|| Error::format("the image has fewer pixels than its header states"))
}

fn wrong(error: &ImageError) -> Error {
    let text = apr_core::foreign(&error);
    match error {
        ImageError::Limits(_) => {
            Error::memory(format!("the image is too large: {}", Escaped::short(&text)))
        }
        ImageError::Unsupported(_) => {
            Error::version(format!("can't decode the image: {}", Escaped::short(&text)))
        }
        _ => Error::format(format!("damaged image: {}", Escaped::short(&text))),
    }
}
