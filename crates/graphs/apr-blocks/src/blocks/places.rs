//! Positions of patches of an image, and rotary positions with several numbers for each token.
//!
//! The patches of an image have a row and a column (Heo et al. 2024,
//! <https://arxiv.org/abs/2403.13298>). Tokens of a text that shows images have a time, a row and a
//! column, which are the same for words (Wang et al. 2024, <https://arxiv.org/abs/2409.12191>).
//! Each angle of a rotation grows with one of these numbers.

use apr_core::{Error, Result};
use apr_graph::{ElementType, ValueId, View};

use super::mask::Reach;
use super::rotary::Rotary;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Numbers of the axes of [`PatchGrid`].
const ROW: i64 = 0;
const COLUMN: i64 = 1;

/// Places of the patches of an image, row by row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PatchGrid {
    /// Row of each patch, `[patches]`.
    rows: ValueId,
    /// Column of each patch, `[patches]`.
    columns: ValueId,
    /// Patches of a row, a number.
    width: ValueId,
}

/// Inputs of rotations: positions of the tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Positions {
    /// One number for each token, `[batch, sequence]`.
    One(ValueId),
    /// Several numbers for each token, `[axes, batch, sequence]`.
    Several(ValueId),
}

/// Order in which the angles of a rotation of patches grow with rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GridOrder {
    /// The same angles for rows and for columns, those of half of a head (Qwen2-VL).
    Same,
    /// Every second angle of a head, then the others (Pixtral).
    Alternating,
    /// Columns turn the first half of a head, rows the second one, both by the same angles. Pairs
    /// are in one half (Gemma 4).
    Apart,
}

impl GridOrder {
    /// Option `rotary_grid`: `same`, `alternating` or `apart` for patches of an image, no value for
    /// tokens.
    pub(crate) fn of(place: BlockPosition<'_>) -> Result<Option<Self>> {
        match place.text_or_none("rotary_grid")?.as_deref() {
            None => Ok(None),
            Some("same") => Ok(Some(Self::Same)),
            Some("alternating") => Ok(Some(Self::Alternating)),
            Some("apart") => Ok(Some(Self::Apart)),
            Some(other) => Err(place.unknown("rotary_grid", other)),
        }
    }
}

/// Returns the axis of the positions that each angle grows with.
///
/// Options: `rotary_grid`, see [`GridOrder`]. Otherwise `rotary_sections`, the number of angles for
/// each axis, and `rotary_order`: `blocks`, axis by axis, or `interleaved`, one of each axis in
/// turn, and angles of the first axis in place of those that an axis no longer has (Qwen3-VL).
fn axes_of_angles(place: BlockPosition<'_>, rotary: &Rotary) -> Result<Vec<i64>> {
    let half = rotary.angles();
    if let Some(order) = GridOrder::of(place)? {
        let (first, second) = match order {
            GridOrder::Same | GridOrder::Alternating => (ROW, COLUMN),
            GridOrder::Apart => (COLUMN, ROW),
        };
        let axis = |angle: u64| if angle < half / 2 { first } else { second };
        return Ok((0..half).map(axis).collect());
    }
    let sections = place.sizes("rotary_sections")?;
    let count = |axis: usize| sections.get(axis).copied().unwrap_or_default();
    match place.text_or_none("rotary_order")?.as_deref() {
        None | Some("blocks") => {
            let sum = sections.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count));
            if sum != Some(half) {
                return Err(Error::format(format!(
                    "sections {sections:?} of rotary positions are not {half} angles"
                )));
            }
            let axes = sections.iter().zip((0..3).cycle());
            Ok(axes.flat_map(|(count, axis)| (0..*count).map(move |_| axis)).collect())
        }
        Some("interleaved") => {
            let axis = |angle: u64| match angle % 3 {
                1 if angle < count(1).saturating_mul(3) => 1,
                2 if angle < count(2).saturating_mul(3) => 2,
                _ => 0,
            };
            Ok((0..half).map(axis).collect())
        }
        Some(other) => Err(place.unknown("rotary_order", other)),
    }
}

impl Writer<'_> {
    /// Places of the patches of a map, `[batch, channels, rows, columns]`.
    pub(crate) fn patch_grid(&mut self, patches: ValueId) -> PatchGrid {
        self.scope("places", |w| {
            let scalar = w.ints(&[]);
            let height = w.length("height", patches, 2);
            let width = w.length("width", patches, 3);
            let width = w.make("Reshape", "per_row", [width, scalar]);
            let height = w.make("Reshape", "per_column", [height, scalar]);
            let count = w.make("Mul", "count", [height, width]);
            let (zero, one) = (w.int(0), w.int(1));
            let number = w.make("Range", "number", [zero, count, one]);
            let rows = w.make("Div", "row", [number, width]);
            let before = w.make("Mul", "before_row", [rows, width]);
            let columns = w.make("Sub", "column", [number, before]);
            PatchGrid { rows, columns, width }
        })
    }

    /// Rows and columns of patches as positions, `[2, 1, patches]`.
    pub(crate) fn grid_positions(&mut self, grid: PatchGrid) -> Positions {
        let rows = self.unsqueeze("rows_of_patches", grid.rows, &[0, 1]);
        let columns = self.unsqueeze("columns_of_patches", grid.columns, &[0, 1]);
        Positions::Several(self.concat("places_of_patches", &[rows, columns], 0))
    }

    /// Returns the sum of a vector for the column of each patch and one for its row, `[patches,
    /// hidden]`, from a tensor of both tables, `[2, positions, hidden]`.
    pub(crate) fn axis_positions(&mut self, tensor: &str, grid: PatchGrid) -> Result<ValueId> {
        let &[2, positions, hidden] = self.model.using(tensor)?.as_slice() else {
            let message = "expected a table of positions for columns and one for rows";
            return Err(Error::format(message).for_tensor(tensor.to_owned()));
        };
        self.scope("axis_positions", |w| {
            let mut of = |name: &str, start: u64, numbers: ValueId| -> Result<ValueId> {
                let slice = View::Slice { axis: 0, start, len: 1 };
                let views = vec![slice, View::Reshaped(vec![positions, hidden])];
                let table = w.viewed(tensor, views, vec![positions, hidden])?;
                Ok(w.make("Gather", name, [table, numbers]))
            };
            let columns = of("of_columns", 0, grid.columns)?;
            let rows = of("of_rows", 1, grid.rows)?;
            Ok(w.make("Add", "sum", [columns, rows]))
        })
    }

    /// Returns the mask of patches that see those of their own square of the image, `[patches,
    /// patches]`.
    ///
    /// A window of `side` is a square of `side` patches, from the first row and column on (Swin:
    /// Liu et al. 2021, <https://arxiv.org/abs/2103.14030>).
    pub(crate) fn grid_mask(&mut self, grid: PatchGrid, reach: Reach) -> Result<Option<ValueId>> {
        let side = match reach {
            Reach::Whole => return Ok(None),
            Reach::Window(side) => side,
            Reach::Chunk(_) => return Err(Error::version("patches of an image have no chunks")),
        };
        Ok(Some(self.scope(&format!("window.{side}"), |w| {
            let side = w.int(signed(side));
            let down = w.make("Div", "down", [grid.rows, side]);
            let across = w.make("Div", "across", [grid.columns, side]);
            let start = w.make("Mul", "start", [down, grid.width]);
            let window = w.make("Add", "window", [start, across]);
            let of_queries = w.unsqueeze("by_query", window, &[1]);
            let seen = w.make("Equal", "seen", [of_queries, window]);
            w.additive("additive", seen)
        })))
    }

    /// Returns the angles of positions with several numbers, `[batch, 1, sequence, angles]`, from
    /// `positions`, `[axes, batch, sequence]`, and the angles per position, `[angles]`.
    pub(crate) fn angles_of_axes(
        &mut self,
        place: BlockPosition<'_>,
        rotary: &Rotary,
        positions: ValueId,
        inverse: ValueId,
    ) -> Result<ValueId> {
        let axes = axes_of_angles(place, rotary)?;
        let positions = self.cast("positions", positions, ElementType::F32);
        let axes = self.ints(&axes);
        let by_angle = self.op("Gather", [positions, axes]).attribute("axis", 0).output("by_angle");
        let by_token = self.transpose("by_token", by_angle, [1, 2, 0]);
        let column = self.unsqueeze("column", by_token, &[1]);
        Ok(self.make("Mul", "angles", [column, inverse]))
    }
}
