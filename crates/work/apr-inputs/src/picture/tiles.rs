//! Pictures that are split into tiles, before the picture as a whole (Idefics 3: Laurençon et al.
//! 2024, <https://arxiv.org/abs/2408.12637>). Sizes are those of transformers' processor.

use apr_core::{Error, Result};

use super::{Filter, Picture};

/// The longest side that a picture gets before it is split.
const MAX_SIDE: usize = 4096;
/// Maximum number of tiles of an image.
const MAX_TILES: usize = 1024;

/// Division of an image into squares.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tiles {
    /// Length of the longer side after a first resizing, if the image is resized.
    pub longest: Option<usize>,
    /// The side of a square.
    pub side: usize,
    /// `true` to put tiles before the whole image.
    pub splits: bool,
    /// Filter for resizing.
    pub filter: Filter,
}

/// The pictures that a model reads for one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tiled {
    /// The tiles, row by row, then the picture as a whole.
    pub pictures: Vec<Picture>,
    /// Rows of tiles; 0 without any.
    pub rows: usize,
    /// Tiles of a row.
    pub columns: usize,
}

impl Tiles {
    /// The pictures for one.
    ///
    /// # Errors
    /// E001 for a size that can't be, E008 for too many tiles.
    pub(super) fn of(&self, mut picture: Picture) -> Result<Tiled> {
        let &Self { longest, side, splits, filter } = self;
        if side == 0 || picture.width == 0 || picture.height == 0 {
            return Err(Error::format("tiles without pixels"));
        }
        if let Some(longest) = longest {
            let (width, height) = with_longest(&picture, longest);
            picture = picture.resized(width, height, filter)?;
        }
        let (width, height) = in_tiles(&picture, side);
        let (rows, columns) = (height / side, width / side);
        if !splits || rows <= 1 && columns <= 1 {
            let whole = picture.resized(side, side, filter)?;
            return Ok(Tiled { pictures: vec![whole], rows: 0, columns: 0 });
        }
        if rows.saturating_mul(columns) > MAX_TILES {
            return Err(Error::memory(format!("{rows} x {columns} tiles are too many")));
        }
        let picture = picture.resized(width, height, filter)?;
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut pictures: Vec<Picture> =
            places.map(|(row, column)| picture.square(row * side, column * side, side)).collect();
        pictures.push(picture.resized(side, side, filter)?);
        Ok(Tiled { pictures, rows, columns })
    }
}

impl Picture {
    /// Returns the square whose first pixel is at `top` and `left`. It must be within the image.
    fn square(&self, top: usize, left: usize, side: usize) -> Self {
        let row = |row: usize| {
            let start = 3 * ((top + row) * self.width + left);
            &self.pixels[start..start + 3 * side]
        };
        let pixels = (0..side).flat_map(|at| row(at).iter().copied()).collect();
        Self { width: side, height: side, pixels }
    }
}

/// Returns the width and height for a longer side of `longest` and an even shorter side.
///
/// If a side exceeds `MAX_SIDE`, both sides are reduced, and the shorter side may be odd.
fn with_longest(picture: &Picture, longest: usize) -> (usize, usize) {
    // A side that is longer still becomes shorter again.
    let longest = longest.min(16 * MAX_SIDE);
    let ratio = picture.width as f64 / picture.height as f64;
    let even = |side: usize| (side + side % 2).max(1);
    let (width, height) = match picture.width >= picture.height {
        true => (longest, even(whole(longest as f64 / ratio))),
        false => (even(whole(longest as f64 * ratio)), longest),
    };
    let ratio = width as f64 / height as f64;
    match width >= height {
        true if width > MAX_SIDE => (MAX_SIDE, whole(MAX_SIDE as f64 / ratio).max(1)),
        false if height > MAX_SIDE => (whole(MAX_SIDE as f64 * ratio).max(1), MAX_SIDE),
        _ => (width, height),
    }
}

/// Returns the width and height, rounded up to whole tiles.
///
/// The longer side is rounded first. The other side follows from it by the ratio of the image.
fn in_tiles(picture: &Picture, side: usize) -> (usize, usize) {
    let ratio = picture.width as f64 / picture.height as f64;
    let tiles = |length: usize| length.div_ceil(side).saturating_mul(side);
    match picture.width >= picture.height {
        true => {
            let width = tiles(picture.width);
            (width, tiles(whole(width as f64 / ratio)))
        }
        false => {
            let height = tiles(picture.height);
            (tiles(whole(height as f64 * ratio)), height)
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sides are positive")]
fn whole(side: f64) -> usize {
    side as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILES: Tiles =
        Tiles { longest: Some(48), side: 24, splits: true, filter: Filter::Lanczos };

    fn picture(width: usize, height: usize) -> Picture {
        Picture { width, height, pixels: vec![7; 3 * width * height] }
    }

    #[test]
    fn a_picture_is_split_into_whole_tiles_before_it_as_a_whole() {
        let tiled = TILES.of(picture(61, 45)).expect("tiles");
        assert_eq!((tiled.rows, tiled.columns, tiled.pictures.len()), (2, 2, 5));
        assert!(tiled.pictures.iter().all(|it| (it.width, it.height) == (24, 24)));
        let tiled = TILES.of(picture(100, 10)).expect("tiles");
        assert_eq!((tiled.rows, tiled.columns), (1, 2));
        let alone = Tiles { splits: false, ..TILES };
        assert_eq!(alone.of(picture(61, 45)).expect("one").pictures.len(), 1);
        let small = Tiles { longest: None, ..TILES };
        assert_eq!(small.of(picture(20, 10)).expect("one").rows, 0);
    }

    #[test]
    fn sizes_of_a_hostile_processor_are_refused() {
        assert!(Tiles { side: 0, ..TILES }.of(picture(4, 4)).is_err());
        assert!(Tiles { side: 1, longest: Some(4096), ..TILES }.of(picture(4, 4)).is_err());
        assert!(Tiles { longest: Some(usize::MAX), ..TILES }.of(picture(4, 4)).is_err());
        assert!(Tiles { side: usize::MAX, ..TILES }.of(picture(4, 4)).is_err());
    }
}
