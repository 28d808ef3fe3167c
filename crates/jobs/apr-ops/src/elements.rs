//! A part of a tensor, as numbers.

use std::ops::Range;

use apr_registry::{CheckpointReader, Error, Result, Shape};
use apr_view::values::read;
use serde::Serialize;

use crate::tensors::{TensorRow, row};

/// Maximum number of values that are read together: 8 MiB.
const MOST: u64 = 1 << 20;
/// Columns and rows of a corner.
const CORNER: [u64; 2] = [6, 8];

/// Range of indices for each dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(Vec<Range<u64>>);

/// The values of a part of a tensor: the report of `apr tensors --values`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ValuesReport {
    /// Path or location of the opened model.
    pub path: String,
    /// Description of the tensor.
    pub tensor: TensorRow,
    /// First index and the one after the last, for each dimension.
    pub ranges: Vec<[u64; 2]>,
    /// The values, the last dimension fastest. A value that is not a number is `null` in JSON.
    pub values: Vec<f64>,
}

impl Selection {
    /// Parses `2, 0:4, :, -1`: an index or a range for each dimension, from the first; those left
    /// out are taken whole. Negative indices count from the end.
    ///
    /// ```
    /// use apr_ops::elements::Selection;
    /// use apr_registry::Shape;
    ///
    /// let shape = Shape::from([4, 8]);
    /// assert_eq!(Selection::parse("1, 2:4", &shape)?.ranges(), [[1, 2], [2, 4]]);
    /// assert_eq!(Selection::parse("-1", &shape)?.ranges(), [[3, 4], [0, 8]]);
    /// assert!(Selection::parse("4", &shape).is_err());
    /// # Ok::<(), apr_registry::Error>(())
    /// ```
    ///
    /// # Errors
    /// E001 for what is no range of the shape.
    pub fn parse(text: &str, shape: &Shape) -> Result<Self> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let dims = shape.dims();
        if parts.len() > dims.len() {
            return Err(Error::format(format!(
                "{} ranges are given, of a tensor of shape {shape}",
                parts.len()
            )));
        }
        let whole = std::iter::repeat(":");
        let ranges =
            dims.iter().zip(parts.into_iter().chain(whole)).map(|(&dim, part)| range(part, dim));
        Ok(Self(ranges.collect::<Result<_>>()?))
    }

    /// Returns `true` if a valid text selects elements beyond the end of a dimension, which
    /// [`parse`](Self::parse) leaves out as NumPy does.
    #[must_use]
    pub fn exceeds(text: &str, shape: &Shape) -> bool {
        text.split(',').zip(shape.dims()).any(|(part, &dim)| {
            let end = part.split_once(':').and_then(|(_, end)| end.trim().parse::<u64>().ok());
            end.is_some_and(|end| end > dim)
        })
    }

    /// The first values of the last two dimensions, and the first index of the others.
    #[must_use]
    pub fn corner(shape: &Shape) -> Self {
        let dims = shape.dims();
        // Counted from the last dimension.
        let most = |place: usize| CORNER.get(dims.len() - 1 - place).copied().unwrap_or(1);
        Self(dims.iter().enumerate().map(|(place, &dim)| 0..dim.min(most(place))).collect())
    }

    /// First index and the one after the last, for each dimension.
    #[must_use]
    pub fn ranges(&self) -> Vec<[u64; 2]> {
        self.0.iter().map(|range| [range.start, range.end]).collect()
    }

    fn count(&self) -> u64 {
        self.0.iter().fold(1, |count, range| count.saturating_mul(range.end - range.start))
    }
}

fn range(part: &str, dim: u64) -> Result<Range<u64>> {
    let wrong =
        || Error::format(format!("'{part}' is not a valid range of {dim}; try 3, 0:4, -1 or :"));
    let index = |text: &str, default: u64| -> Option<u64> {
        match text.trim() {
            "" => Some(default),
            text => match text.strip_prefix('-') {
                Some(back) => dim.checked_sub(back.parse().ok()?),
                None => text.parse().ok(),
            },
        }
    };

    let (start, end) = match part.split_once(':') {
        Some((start, end)) => (index(start, 0), index(end, dim).map(|end| end.min(dim))),
        None if part.is_empty() => return Err(wrong()),
        None => (
            index(part, 0),
            index(part, 0).and_then(|at| at.checked_add(1)).filter(|&end| end <= dim),
        ),
    };

    let range = start.zip(end).filter(|(start, end)| start <= end);
    range.map(|(start, end)| start..end).ok_or_else(wrong)
}

/// Reads a part of a tensor of the model at `path`.
///
/// # Errors
/// E001 for a dtype whose elements are no real numbers, E002 and E007 when bytes can't be read,
/// E008 for more than a million values.
pub fn elements(
    reader: &dyn CheckpointReader,
    path: &str,
    tensor: usize,
    selection: &Selection,
) -> Result<ValuesReport> {
    let info = &reader.tensors()[tensor];
    let report = |values| {
        let (path, tensor) = (path.to_owned(), row(reader, tensor)?);
        Ok(ValuesReport { path, tensor, ranges: selection.ranges(), values })
    };
    let count = selection.count();
    if count > MOST {
        let message =
            format!("{count} values requested, and {MOST} is the maximum; choose a smaller slice");
        return Err(Error::memory(message).for_tensor(&info.name));
    }

    if count == 0 {
        return report(Vec::new());
    }

    let dims = info.shape.dims();
    let Some((columns, outer)) = selection.0.split_last() else {
        return report(read(reader, tensor, 0..1)?);
    };
    let row_len = dims[dims.len() - 1];
    let mut values = Vec::new();
    let mut index: Vec<u64> = outer.iter().map(|range| range.start).collect();
    loop {
        // A flat index is below the number of elements, which fits.
        let first = index.iter().zip(dims).fold(0, |flat, (&at, &dim)| flat * dim + at) * row_len;
        values.extend(read(reader, tensor, first + columns.start..first + columns.end)?);
        if !advance(&mut index, outer) {
            return report(values);
        }
    }
}

/// The next index within the ranges, the last dimension fastest; `false` after the last one.
fn advance(index: &mut [u64], ranges: &[Range<u64>]) -> bool {
    for (at, range) in index.iter_mut().zip(ranges).rev() {
        *at += 1;
        if *at < range.end {
            return true;
        }
        *at = range.start;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_the_rules_of_python() {
        let shape = Shape::from([4, 8, 2]);
        let parse = |text: &str| Selection::parse(text, &shape).map(|selection| selection.ranges());
        assert_eq!(parse(":, -3:, 0:1"), Ok(vec![[0, 4], [5, 8], [0, 1]]));
        assert_eq!(parse("0:99"), Ok(vec![[0, 4], [0, 8], [0, 2]]));
        assert_eq!(parse("2:2"), Ok(vec![[2, 2], [0, 8], [0, 2]]));
        for wrong in ["", "4", "-5", "3:1", "x", "0:y", ":,:,:,:", "1:2:3", "18446744073709551615"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_corner_of_any_shape_is_small() {
        let of = |dims: &[u64]| Selection::corner(&Shape::from(dims.to_vec())).ranges();
        assert_eq!(of(&[]), [[0; 2]; 0]);
        assert_eq!(of(&[3]), [[0, 3]]);
        assert_eq!(of(&[5, 100, 100]), [[0, 1], [0, 8], [0, 6]]);
    }
}
