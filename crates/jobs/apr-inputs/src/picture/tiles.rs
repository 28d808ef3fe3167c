//! Pictures that are split into tiles, before the picture as a whole (Idefics 3: Laurençon et al.
//! 2024, <https://arxiv.org/abs/2408.12637>; InternVL: Chen et al. 2024,
//! <https://arxiv.org/abs/2404.16821>). Sizes are those of transformers' processors.

use apr_core::{Error, Result};
use serde_json::Value as Json;

use super::{Filter, Picture, Resolutions};

/// The longest side that a picture gets before it is split.
const MAX_SIDE: usize = 4096;
/// Maximum number of tiles of an image.
const MAX_TILES: usize = 1024;

/// Division of an image into tiles.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tiling {
    /// As many squares as the image has room for (Idefics 3).
    Squares(Tiles),
    /// A grid with nearly the same ratio of sides as the image (InternVL).
    Canvas(Canvas),
    /// The grid of a list that suits the image best, with padding (LLaVA-NeXT).
    Resolutions(Resolutions),
}

impl Tiling {
    /// The pictures for one.
    ///
    /// # Errors
    /// E001 for a size that can't be, E008 for too many tiles.
    pub(super) fn of(&self, picture: Picture) -> Result<Tiled> {
        match self {
            Self::Squares(tiles) => tiles.of(picture),
            Self::Canvas(canvas) => canvas.of(&picture),
            Self::Resolutions(sizes) => sizes.of(&picture),
        }
    }
}

/// A grid of tiles whose ratio of sides is the nearest to the image's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Canvas {
    /// Rows of pixels of a tile.
    pub height: usize,
    /// Pixels of a row of a tile.
    pub width: usize,
    /// Minimum number of tiles.
    pub fewest: usize,
    /// Maximum number of tiles.
    pub most: usize,
    /// Filter for resizing.
    pub filter: Filter,
}

impl Canvas {
    /// Returns the numbers of tiles of a preprocessor of InternVL, without sizes; `None` for other
    /// preprocessors. InternVL's processor splits images, whatever the preprocessor says.
    pub(super) fn of_config(config: &Json) -> Option<Self> {
        let class = config.get("image_processor_type")?.as_str()?;
        let number = |key: &str, default: usize| {
            let stated = config.get(key).and_then(Json::as_u64);
            stated.and_then(|count| usize::try_from(count).ok()).unwrap_or(default)
        };
        let (fewest, most) = (number("min_patches", 1), number("max_patches", 12));
        let none = Self { height: 0, width: 0, fewest, most, filter: Filter::Bicubic };
        class.starts_with("GotOcr2").then_some(none)
    }

    fn of(&self, picture: &Picture) -> Result<Tiled> {
        let &Self { height, width, filter, .. } = self;
        if height == 0 || width == 0 || picture.width == 0 || picture.height == 0 {
            return Err(Error::format("tiles without pixels"));
        }
        if self.most > MAX_TILES {
            return Err(Error::memory(format!("{} tiles are too many", self.most)));
        }
        let (rows, columns) = if self.most > 1 { self.grid(picture) } else { (1, 1) };
        let whole = picture.resized(width, height, filter)?;
        if rows * columns == 1 {
            return Ok(Tiled { pictures: vec![whole], rows: 0, columns: 0 });
        }
        let sides = (columns.saturating_mul(width), rows.saturating_mul(height));
        let canvas = picture.resized(sides.0, sides.1, filter)?;
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let tile = |(row, column): (usize, usize)| {
            canvas.part(row * height, column * width, height, width)
        };
        let pictures = places.map(tile).chain([whole]).collect();
        Ok(Tiled { pictures, rows, columns })
    }

    /// Returns the rows and columns of tiles.
    ///
    /// Of grids with the same ratio, the last one counts whose tiles have less than twice the
    /// pixels of the image.
    fn grid(&self, picture: &Picture) -> (usize, usize) {
        let ratio = picture.width as f64 / picture.height as f64;
        let area = picture.width as f64 * picture.height as f64;
        let range = self.fewest..=self.most;
        let of_width = |columns| (1..=self.most).map(move |rows| (rows, columns));
        let mut grids: Vec<(usize, usize)> = (1..=self.most).flat_map(of_width).collect();
        grids.retain(|(rows, columns)| range.contains(&(rows * columns)));
        grids.sort_by_key(|(rows, columns)| rows * columns);
        let (mut best, mut least) = ((1, 1), f64::INFINITY);
        for (rows, columns) in grids {
            let difference = (ratio - columns as f64 / rows as f64).abs();
            let pixels = 0.5 * (self.height * self.width) as f64 * (rows * columns) as f64;
            if difference < least || difference == least && area > pixels {
                (best, least) = ((rows, columns), difference);
            }
        }
        best
    }
}

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
        let mut pictures: Vec<Picture> = places
            .map(|(row, column)| picture.part(row * side, column * side, side, side))
            .collect();
        pictures.push(picture.resized(side, side, filter)?);
        Ok(Tiled { pictures, rows, columns })
    }
}

impl Picture {
    /// Returns the part whose first pixel is at `top` and `left`. It must be within the image.
    pub(super) fn part(&self, top: usize, left: usize, height: usize, width: usize) -> Self {
        let row = |row: usize| {
            let start = 3 * ((top + row) * self.width + left);
            &self.pixels[start..start + 3 * width]
        };
        let pixels = (0..height).flat_map(|at| row(at).iter().copied()).collect();
        Self { width, height, pixels }
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
    fn a_canvas_has_the_ratio_of_the_picture() {
        let of = |width, height, most| {
            let canvas = Canvas { height: 6, width: 6, fewest: 1, most, filter: Filter::Bicubic };
            let tiled = canvas.of(&picture(width, height)).expect("tiles");
            (tiled.rows, tiled.columns, tiled.pictures.len())
        };
        assert_eq!(of(20, 10, 12), (2, 4, 9));
        assert_eq!(of(6, 3, 12), (1, 2, 3));
        assert_eq!(of(7, 7, 12), (0, 0, 1));
        assert_eq!(of(20, 10, 1), (0, 0, 1));
        let hostile = Canvas { height: 6, width: 6, fewest: 1, most: 9999, filter: Filter::Box };
        assert!(hostile.of(&picture(4, 4)).is_err());
        assert!(Canvas { height: 0, ..hostile }.of(&picture(4, 4)).is_err());
    }

    #[test]
    fn sizes_of_a_hostile_processor_are_refused() {
        assert!(Tiles { side: 0, ..TILES }.of(picture(4, 4)).is_err());
        assert!(Tiles { side: 1, longest: Some(4096), ..TILES }.of(picture(4, 4)).is_err());
        assert!(Tiles { longest: Some(usize::MAX), ..TILES }.of(picture(4, 4)).is_err());
        assert!(Tiles { side: usize::MAX, ..TILES }.of(picture(4, 4)).is_err());
    }
}
