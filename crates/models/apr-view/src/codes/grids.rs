//! Which elements of a weight share a scale: what methods write, and what a configuration states.
//!
//! Scales of another shape belong to another weight, or some of them are missing. That their number
//! divides the rows or the columns does not make them the scales of a grid.

use std::fmt;

use apr_core::json::entries;
use apr_core::{Result, Shape};
use serde_json::Value;

use super::find::Tensors;
use super::stated::Stated;

/// Elements of a matrix that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    /// All elements.
    All,
    /// The elements of a row.
    Row,
    /// The elements of a column.
    Column,
    /// This many neighbours in a row.
    Group(u64),
    /// A block of this many rows and columns.
    Block([u64; 2]),
}

impl Shared {
    /// Returns the elements that share a scale in blocks of this many rows and columns.
    pub(super) fn of_sides([high, wide]: [u64; 2], [rows, columns]: [u64; 2]) -> Self {
        match [high >= rows, wide >= columns] {
            [true, true] => Self::All,
            [_, true] if high == 1 => Self::Row,
            _ if high == 1 => Self::Group(wide),
            _ => Self::Block([high, wide]),
        }
    }

    /// Returns the numbers of scales down and along a matrix.
    pub(super) fn counts(self, matrix @ [rows, columns]: [u64; 2]) -> [u64; 2] {
        let [high, wide] = self.sides(matrix);
        [rows.div_ceil(high), columns.div_ceil(wide)]
    }

    /// Returns the rows and columns that share a scale.
    pub(super) fn sides(self, [rows, columns]: [u64; 2]) -> [u64; 2] {
        let sides = match self {
            Self::All => [rows, columns],
            Self::Row => [1, columns],
            Self::Column => [rows, 1],
            Self::Group(wide) => [1, wide],
            Self::Block(sides) => sides,
        };
        sides.map(|side| side.max(1))
    }

    /// Returns what such scales are, as a need: `a scale for each row`.
    fn needed(self) -> String {
        match self {
            Self::All => "one scale".to_owned(),
            Self::Row | Self::Column => self.to_string(),
            Self::Group(wide) => format!("a scale for each group of {wide} columns"),
            Self::Block([high, wide]) => format!("a scale for each block of {high} x {wide}"),
        }
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => out.write_str("a scale"),
            Self::Row => out.write_str("a scale for each row"),
            Self::Column => out.write_str("a scale for each column"),
            Self::Group(wide) => write!(out, "groups of {wide}"),
            Self::Block([high, wide]) => write!(out, "blocks of {high} x {wide}"),
        }
    }
}

/// Grids that the scales of a weight can have.
pub(super) struct Grids<'a> {
    /// Grids that the configuration states, if it states all of them.
    pub(super) stated: Option<Vec<Shared>>,
    /// Grids that are written, for a configuration that states none.
    pub(super) written: &'a [Shared],
}

impl Grids<'_> {
    /// Returns the first grid that has these numbers of scales down and along a matrix.
    ///
    /// # Errors
    /// E001 with the names of the weight and of its part `scale`, and the grids.
    pub(super) fn matching(
        &self,
        tensors: &Tensors<'_>,
        (weight, scale): (&str, usize),
        matrix: [u64; 2],
        counts: Option<[u64; 2]>,
    ) -> Result<Shared> {
        let grids = self.stated.as_deref().unwrap_or(self.written);
        let has_counts = |grid: &&Shared| Some(grid.counts(matrix)) == counts;
        grids.iter().find(has_counts).copied().ok_or_else(|| {
            let mut needs: Vec<String> = grids.iter().map(|grid| grid.needed()).collect();
            needs.dedup();
            let by = if self.stated.is_some() { ", which the configuration states," } else { "" };
            let needed = format!("{} of {}{by}", needs.join(" or "), Shape::from(matrix));
            tensors.unfit(scale, weight, &needed)
        })
    }
}

/// The grids that a configuration states for its weights; `None` if it leaves some open.
///
/// Stacked experts of fbgemm have inputs as rows.
pub(super) fn stated_grids(stated: &Stated, is_stacked: bool) -> Option<Vec<Shared>> {
    if let Some(sides) = stated.get("weight_block_size").and_then(sides_of) {
        return Some(vec![of_block(sides)]);
    }
    let groups = stated.get("config_groups").and_then(Value::as_object);
    let weights = groups
        .into_iter()
        .flat_map(entries)
        .filter_map(|(_, group)| group.get("weights").filter(|weights| weights.is_object()));
    let of_groups = weights.map(of_scheme).collect::<Option<Vec<_>>>();
    of_groups.filter(|grids| !grids.is_empty()).or_else(|| {
        // The algorithms of modelopt, and fbgemm's only one.
        let algorithm = stated.text("quant_algo").map(str::to_ascii_lowercase);
        let grid = match (algorithm.as_deref(), stated.method().as_deref()) {
            (Some("fp8"), _) => Shared::All,
            (None, Some("fbgemm_fp8")) if is_stacked => Shared::Column,
            (Some("fp8_per_channel_per_token"), _) | (None, Some("fbgemm_fp8")) => Shared::Row,
            (Some("fp8_pb_wo"), _) => Shared::Block([128, 128]),
            (Some("mxfp8"), _) => Shared::Group(32),
            _ => return None,
        };
        Some(vec![grid])
    })
}

/// The grid of a scheme of compressed-tensors.
fn of_scheme(weights: &Value) -> Option<Shared> {
    let group = || weights.get("group_size")?.as_u64().filter(|&group| group > 0);
    match weights.get("strategy")?.as_str()? {
        "tensor" => Some(Shared::All),
        "channel" => Some(Shared::Row),
        "group" | "tensor_group" => Some(Shared::Group(group()?)),
        "block" => Some(of_block(weights.get("block_structure").and_then(sides_of)?)),
        _ => None,
    }
}

/// Rows and columns of a block: `[128, 128]`, or `128x128` in older configurations.
fn sides_of(value: &Value) -> Option<[u64; 2]> {
    let sides: Vec<u64> = match value {
        Value::String(text) => text.split('x').map(|side| side.parse().ok()).collect(),
        other => other.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>(),
    }?;
    let sides: [u64; 2] = sides.try_into().ok()?;
    (!sides.contains(&0)).then_some(sides)
}

fn of_block([high, wide]: [u64; 2]) -> Shared {
    if high == 1 { Shared::Group(wide) } else { Shared::Block([high, wide]) }
}
