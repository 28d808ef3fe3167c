//! Vectors of the tiles of an image, put together as those of one image.

use apr_inputs::picture::padding_of;
use apr_registry::{Error, Result};

/// Sizes of the vectors of an image: tiles row by row, then the image as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiled {
    /// Vectors of a picture; the last one stands behind rows.
    pub(super) vectors: usize,
    /// Numbers of a vector.
    pub(super) width: usize,
    /// Rows of tiles.
    pub(super) rows: usize,
    /// Tiles of a row.
    pub(super) columns: usize,
}

impl Tiled {
    /// Returns the vectors of the image as a whole, then those of the tiles, row by row of the
    /// image, without those of padding. Another vector stands behind each row (LLaVA-NeXT).
    ///
    /// `sides` are the height and the width of the image.
    ///
    /// # Errors
    /// E001 if the vectors of a tile are not a square.
    pub(super) fn joined(self, values: &[f32], sides: [usize; 2]) -> Result<Vec<f32>> {
        let Self { vectors, width, rows, columns } = self;
        let patches = vectors.saturating_sub(1);
        let side = patches.isqrt();
        let tiles = rows * columns;
        if side * side != patches || values.len() != (tiles + 1) * vectors * width {
            let message = format!("{patches} vectors of a tile are not a square");
            return Err(Error::format(message));
        }
        let vector = |picture: usize, patch: usize| {
            let start = (picture * vectors + patch) * width;
            &values[start..start + width]
        };
        let newline = vector(tiles, patches);
        let whole = (0..patches).map(|patch| vector(tiles, patch));
        let mut joined: Vec<f32> = whole.flatten().copied().collect();
        if tiles == 0 {
            joined.extend_from_slice(newline);
            return Ok(joined);
        }
        let [height, across] = [rows * side, columns * side];
        let [above, before] = padding_of(sides[0], sides[1], height, across);
        for row in above..height - above {
            for column in before..across - before {
                let tile = row / side * columns + column / side;
                joined.extend_from_slice(vector(tile, row % side * side + column % side));
            }
            joined.extend_from_slice(newline);
        }
        Ok(joined)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_through_all_tiles_beside_each_other() {
        // Two tiles of 2 x 2 vectors and the whole: 0 to 3, 10 to 13, 20 to 23, and 9 behind rows.
        let values: Vec<f32> = [[0, 1, 2, 3, 9], [10, 11, 12, 13, 9], [20, 21, 22, 23, 9]]
            .concat()
            .iter()
            .map(|it| *it as f32)
            .collect();
        let tiles = Tiled { vectors: 5, width: 1, rows: 1, columns: 2 };
        let whole = [20.0, 21.0, 22.0, 23.0];
        let joined = tiles.joined(&values, [10, 20]).expect("a square");
        assert_eq!(joined[..4], whole);
        assert_eq!(joined[4..], [0.0, 1.0, 10.0, 11.0, 9.0, 2.0, 3.0, 12.0, 13.0, 9.0]);
        // An image that is not as wide has padding to the left and to the right.
        let joined = tiles.joined(&values, [10, 10]).expect("a square");
        assert_eq!(joined[4..], [1.0, 10.0, 9.0, 3.0, 12.0, 9.0]);
        assert!(Tiled { vectors: 4, ..tiles }.joined(&values, [10, 10]).is_err());
    }
}
