//! How a weight of one model became that of another.

use apr_core::{CheckpointReader, DType, Error, Result};
use apr_graph::{View, WeightRef};
use apr_view::values::read;
use serde::Serialize;

use super::counterparts::{self, Elements};
use super::sums::{Pair as PairSums, Sums};

/// Elements that are read at a time.
pub(super) const CHUNK: u64 = 1 << 20;
/// A weight of two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightDrift {
    /// Name in the original's file.
    pub tensor: String,
    /// Name in the other model's file, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_tensor: Option<String>,
    /// Dtype in the original.
    pub dtype: DType,
    /// Dtype in the other model.
    pub other_dtype: DType,
    /// Norm of the difference divided by the norm of the original; infinite if elements are not
    /// finite.
    pub relative_l2: f64,
    /// Relative difference that rounding to the dtypes can cause; 0 if they are equal, or if both
    /// are exact.
    pub allowed: f64,
    /// Cosine between both.
    pub cosine: f64,
    /// Change of the weight.
    pub change: WeightChange,
}

/// Change from one weight to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WeightChange {
    /// The weight is unchanged.
    None,
    /// Many small differences, as rounding and training make them.
    Noise,
    /// All elements times a factor.
    Scaled {
        /// Factor of the elements.
        factor: f64,
    },
    /// The sign of a share of the elements, all of them for 1.
    SignFlipped {
        /// Share from 0 to 1.
        share: f64,
    },
    /// A share of the elements became zero, in runs.
    Zeroed {
        /// Share from 0 to 1.
        share: f64,
    },
    /// Rows or columns changed places.
    Moved {
        /// `rows` or `columns`.
        what: &'static str,
        /// Number of lines that moved.
        count: usize,
        /// The first of them.
        #[serde(rename = "first_line")]
        first: usize,
        /// New position of the first of them.
        to: usize,
    },
    /// Rows and columns changed places with each other.
    Transposed,
    /// Another weight of the original.
    Replaced {
        /// The name of that one in the original's file.
        by: String,
    },
    /// Elements are NaN or infinite.
    NotFinite,
    /// The values differ in another way.
    Other,
}

impl WeightChange {
    /// Returns `true` if rounding can't cause the change.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::None | Self::Noise | Self::Other)
    }

    /// Returns a description that can follow the weight's name.
    #[must_use]
    pub fn described(&self) -> String {
        match self {
            Self::None => "equal".to_owned(),
            Self::Noise => "small differences everywhere".to_owned(),
            Self::Scaled { factor } => format!("scaled by {factor:.4}"),
            Self::SignFlipped { share } if *share > 0.999 => "its sign is flipped".to_owned(),
            Self::SignFlipped { share } => {
                format!("the sign of {:.0} % of it is flipped", 100.0 * share)
            }
            Self::Zeroed { share } => format!("{:.1} % of it became zero", 100.0 * share),
            Self::Moved { what, count, first, to } => {
                format!("{count} {what} changed places: {first} is where {to} was")
            }
            Self::Transposed => "its rows are columns".to_owned(),
            Self::Replaced { by } => format!("it is {by} of the first model"),
            Self::NotFinite => "has NaN or infinite elements".to_owned(),
            Self::Other => "other values".to_owned(),
        }
    }
}

/// A weight of a checkpoint, as a matrix.
pub(crate) struct Matrix {
    pub(crate) position: usize,
    pub(crate) dtype: DType,
    rows: u64,
    columns: u64,
    /// `true` if the graph reads the matrix transposed.
    is_turned: bool,
}

impl Matrix {
    /// Returns the tensor of a weight, or `None` if the checkpoint does not have it.
    pub(crate) fn of(reader: &dyn CheckpointReader, weight: &WeightRef) -> Option<Self> {
        let position = reader.tensors().iter().position(|info| info.name == weight.tensor)?;
        let info = &reader.tensors()[position];
        let dims = info.shape.dims();
        let (columns, outer) = dims.split_last().map_or((1, dims), |(last, outer)| (*last, outer));
        let rows = outer.iter().try_fold(1_u64, |rows, dim| rows.checked_mul(*dim))?;
        let is_turned = weight
            .views
            .iter()
            .filter(|view| matches!(view, View::Transposed(order) if order[..] == [1, 0]))
            .count()
            % 2
            == 1;
        Some(Self { position, dtype: info.dtype, rows, columns, is_turned })
    }

    /// Returns the memory for a comparison in bytes: sums for each line and a chunk, or all
    /// elements three times.
    ///
    /// The latter applies to a matrix that must be transposed.
    fn bytes(&self, is_turned: bool) -> u64 {
        let line = size_of::<PairSums>() as u64;
        let lines = self.rows.saturating_add(self.columns).saturating_mul(line);
        let elements = self.rows.saturating_mul(self.columns);
        let values = if is_turned { elements.saturating_mul(3) } else { elements.min(CHUNK) };
        let is_vector = self.rows == 1 || self.columns == 1;
        let lines = if is_vector { 0 } else { lines };
        lines.saturating_add(values.saturating_mul(8))
    }

    /// All its elements, in the layout that another one is stored in.
    pub(crate) fn laid_out_as(
        &self,
        reader: &dyn CheckpointReader,
        other: &Self,
    ) -> Result<Option<Vec<f64>>> {
        let total = self.rows.saturating_mul(self.columns);
        let is_turned = self.is_turned != other.is_turned;
        let shape = if is_turned { (self.columns, self.rows) } else { (self.rows, self.columns) };
        if shape != (other.rows, other.columns) {
            return Ok(None);
        }
        let values = read(reader, self.position, 0..total)?;
        if !is_turned {
            return Ok(Some(values));
        }
        let (rows, columns) = (in_memory(self.rows)?, in_memory(self.columns)?);
        let turned = (0..columns).flat_map(|column| {
            let values = &values;
            (0..rows).map(move |row| values[row * columns + column])
        });
        Ok(Some(turned.collect()))
    }
}

fn in_memory(count: u64) -> Result<usize> {
    usize::try_from(count).map_err(|_| Error::memory("a weight does not fit the memory"))
}

/// Result of a comparison of a weight.
pub(crate) enum Compared {
    /// Drift of the weight.
    Drift(WeightDrift),
    /// Reason why the weight was not compared, as the end of a sentence that begins with the
    /// weight's name.
    Not(String),
    /// Bytes that it takes, more than the limit.
    TooLarge(u64),
}

/// Compares a weight of two models in at most `most` bytes of memory.
///
/// # Errors
/// E002 and E007 if it can't be read.
pub(crate) fn compare(
    original: (&dyn CheckpointReader, &WeightRef),
    other: (&dyn CheckpointReader, &WeightRef),
    most: u64,
) -> Result<Compared> {
    let not = |why: &str| Ok(Compared::Not(why.to_owned()));
    let Some(one) = Matrix::of(original.0, original.1) else { return not("is not in the file") };
    let Some(two) = Matrix::of(other.0, other.1) else {
        return not("has no counterpart in the file");
    };
    let is_turned = one.is_turned != two.is_turned;
    let needed = one.bytes(is_turned);
    if needed > most {
        return Ok(Compared::TooLarge(needed));
    }
    let turned = match is_turned {
        true => match one.laid_out_as(original.0, &two)? {
            Some(values) => Some(values),
            None => return not("has another shape in the second model"),
        },
        false => None,
    };
    if turned.is_none() && (one.rows, one.columns) != (two.rows, two.columns) {
        return not("has another shape in the second model");
    }
    let elements = match &turned {
        Some(values) => Elements::Held(values),
        None => Elements::Stored(original.0, one.position),
    };
    let pair = counterparts::Pair {
        original: elements,
        other: Elements::Stored(other.0, two.position),
        rows: two.rows,
        columns: two.columns,
        dtypes: [one.dtype, two.dtype],
    };
    let sums = pair.sums()?;
    let (name, other_name) = (&original.1.tensor, &other.1.tensor);
    Ok(Compared::Drift(WeightDrift {
        tensor: name.clone(),
        other_tensor: (name != other_name).then(|| other_name.clone()),
        dtype: one.dtype,
        other_dtype: two.dtype,
        relative_l2: sums.all.relative(),
        allowed: sums.allowed(),
        cosine: sums.all.cosine(),
        change: change(&pair, &sums, (original.0, one.position), most)?,
    }))
}

/// Returns the change of a weight. A reported change was reversed and verified against the
/// original.
fn change(
    pair: &counterparts::Pair<'_>,
    sums: &Sums,
    original: (&dyn CheckpointReader, usize),
    most: u64,
) -> Result<WeightChange> {
    if let Some(change) = sums.whole_change() {
        return Ok(change);
    }
    for moves in sums.moves() {
        let verified = pair.verified(moves)?;
        if verified.explain_all() {
            return Ok(verified.change());
        }
    }
    let change = sums.change_in_place();
    if change != WeightChange::Other {
        return Ok(change);
    }
    if pair.is_transposed(most)? {
        return Ok(WeightChange::Transposed);
    }
    let by = pair.replacement(original, sums)?;
    Ok(by.map_or(change, |by| WeightChange::Replaced { by }))
}

#[cfg(test)]
mod tests {
    use apr_testkit::safetensors::SafeTensor;

    use super::super::counterparts::{Elements, Pair};
    use super::super::sums::mark;
    use super::*;

    /// Numbers as weights have them: of both signs, few near zero.
    fn weights(rows: usize, columns: usize) -> Vec<f64> {
        (0..rows * columns).map(|at| mark(at + 77)).collect()
    }

    /// Returns a model with tensors of the given numbers of columns.
    #[expect(clippy::cast_possible_truncation, reason = "small numbers, rounded")]
    fn model(tensors: &[(&str, usize, &[f64])]) -> Box<dyn CheckpointReader> {
        let tensors: Vec<SafeTensor> = tensors
            .iter()
            .map(|(name, columns, values)| {
                let bytes = values.iter().flat_map(|value| (*value as f32).to_le_bytes());
                let shape = [values.len() / columns, *columns].map(|size| size as u64).to_vec();
                let (name, dtype) = ((*name).to_owned(), "F32".to_owned());
                SafeTensor { name, dtype, shape, bytes: bytes.collect() }
            })
            .collect();
        let bytes = apr_testkit::safetensors::file(None, &tensors);
        apr_registry::open(bytes, "m.safetensors", apr_registry::OpenOptions::default()).unwrap()
    }

    fn change(columns: usize, a: &[f64], b: &[f64]) -> WeightChange {
        change_in(columns, a, b, &*model(&[("a", columns, a)]))
    }

    fn change_in(
        columns: usize,
        a: &[f64],
        b: &[f64],
        reader: &dyn CheckpointReader,
    ) -> WeightChange {
        let pair = Pair {
            original: Elements::Held(a),
            other: Elements::Held(b),
            rows: (a.len() / columns) as u64,
            columns: columns as u64,
            dtypes: [DType::F32, DType::F32],
        };
        super::change(&pair, &pair.sums().unwrap(), (reader, 0), u64::MAX).unwrap()
    }

    #[test]
    fn changes_of_a_weight_are_detected() {
        let (rows, columns) = (32, 24);
        let a = weights(rows, columns);
        let each = |change: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
            a.iter().enumerate().map(|(at, value)| change(at, *value)).collect()
        };
        let noise = |at: usize| 0.05 * mark(at + 10_000);
        assert_eq!(change(columns, &a, &a), WeightChange::None);
        assert_eq!(change(columns, &a, &each(&|at, v| v + noise(at))), WeightChange::Noise);
        let flipped = each(&|at, v| noise(at) - v);
        assert_eq!(change(columns, &a, &flipped), WeightChange::SignFlipped { share: 1.0 });
        let part = each(&|at, v| if at / columns < 8 { -v } else { v } + noise(at));
        assert_eq!(change(columns, &a, &part), WeightChange::SignFlipped { share: 0.25 });
        let zeroed = each(&|at, v| if at / columns < 8 { 0.0 } else { v + noise(at) });
        assert_eq!(change(columns, &a, &zeroed), WeightChange::Zeroed { share: 0.25 });
        let WeightChange::Scaled { factor } = change(columns, &a, &each(&|_, v| 10.0 * v)) else {
            panic!()
        };
        assert!((factor - 10.0).abs() < 1e-9);
        let other: Vec<f64> = (0..a.len()).map(|at| mark(at + 50_000)).collect();
        assert_eq!(change(columns, &a, &other), WeightChange::Other);
    }

    #[test]
    fn swapped_lines_are_detected() {
        let (rows, columns) = (32, 24);
        let a = weights(rows, columns);
        let swapped = |row: usize| if row < 16 { (row + 8) % 16 } else { row };
        let b: Vec<f64> = (0..a.len())
            .map(|at| a[swapped(at / columns) * columns + at % columns] + 0.02 * mark(at + 9))
            .collect();
        let expected = WeightChange::Moved { what: "rows", count: 16, first: 8, to: 0 };
        assert_eq!(change(columns, &a, &b), expected);
        let turn = |m: &[f64]| -> Vec<f64> {
            (0..a.len()).map(|at| m[at % rows * columns + at / rows]).collect()
        };
        let expected = WeightChange::Moved { what: "columns", count: 16, first: 8, to: 0 };
        assert_eq!(change(rows, &turn(&a), &turn(&b)), expected);
    }

    #[test]
    fn a_vector_has_no_swapped_lines() {
        // By rounding to few values, elements of a vector equal others.
        let a: Vec<f64> = (0..64).map(|at| 1.0 + 0.01 * f64::from(at)).collect();
        let b: Vec<f64> = a.iter().map(|value| (value * 8.0).round() / 8.0).collect();
        for columns in [1, 64] {
            assert_eq!(change(columns, &a, &b), WeightChange::Noise);
        }
    }

    #[test]
    fn noise_does_not_make_lines_change_places() {
        let (rows, columns) = (8, 512);
        let a = weights(rows, columns);
        // As large as the values: cosines are low, and norms and projections alike.
        let b: Vec<f64> =
            a.iter().enumerate().map(|(at, value)| value + 1.3 * mark(at + 4_321)).collect();
        assert_eq!(change(columns, &a, &b), WeightChange::Other);
    }

    #[test]
    fn a_transposed_matrix_is_detected() {
        let side = 24;
        let a = weights(side, side);
        let b: Vec<f64> = (0..a.len()).map(|at| a[at % side * side + at / side]).collect();
        assert_eq!(change(side, &a, &b), WeightChange::Transposed);
    }

    #[test]
    fn replacement_by_another_weight_is_detected_by_name() {
        let columns = 24;
        let a = weights(16, columns);
        let b: Vec<f64> = (0..a.len()).map(|at| mark(at + 60_000)).collect();
        let rounded: Vec<f64> = b.iter().map(|value| (value * 256.0).round() / 256.0).collect();
        let reader = model(&[("a", columns, &a), ("b", columns, &b)]);
        let by = WeightChange::Replaced { by: "b".to_owned() };
        assert_eq!(change_in(columns, &a, &rounded, &*reader), by);
    }
}
