//! How a weight of one model became that of another.

use apr_core::{CheckpointReader, DType, Error, Result};
use apr_graph::{View, WeightRef};
use apr_view::values::read;
use serde::Serialize;

/// Elements that are read at a time.
const CHUNK: u64 = 1 << 20;
/// Elements of a run that is looked at for zeros.
const RUN: usize = 8;

/// A weight of two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightDrift {
    /// Name in the original's file.
    pub tensor: String,
    /// Name in the other one's file, where it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_tensor: Option<String>,
    /// Its dtype in the original.
    pub dtype: DType,
    /// Its dtype in the other one.
    pub other_dtype: DType,
    /// Norm of the difference over that of the original; infinite where elements are not finite.
    pub relative_l2: f64,
    /// Cosine between both.
    pub cosine: f64,
    /// What happened to it.
    pub change: WeightChange,
}

/// What makes one weight of another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WeightChange {
    /// Nothing.
    None,
    /// Many small differences, as rounding and training make them.
    Noise,
    /// All elements times a factor.
    Scaled {
        /// The factor.
        factor: f64,
    },
    /// The sign of a share of the elements, all of them for 1.
    SignFlipped {
        /// From 0 to 1.
        share: f64,
    },
    /// A share of the elements became zero, in runs.
    Zeroed {
        /// From 0 to 1.
        share: f64,
    },
    /// Rows or columns changed places.
    Moved {
        /// `rows` or `columns`.
        what: &'static str,
        /// How many.
        count: usize,
        /// The first of them.
        first: usize,
        /// Where the first of them is now.
        to: usize,
    },
    /// Elements are NaN or infinite.
    NotFinite,
    /// Other values.
    Other,
}

impl WeightChange {
    /// Whether it is what no rounding makes.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::None | Self::Noise | Self::Other)
    }

    /// In words, as what follows a weight's name.
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
    /// Whether the graph looks at it transposed.
    is_turned: bool,
}

impl Matrix {
    /// The tensor of a weight; `None` where the checkpoint does not have it.
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

    /// Bytes that a comparison takes: sums of each line, and a chunk or, where it has to be turned,
    /// all of it three times.
    fn bytes(&self, is_turned: bool) -> u64 {
        let line = size_of::<Pair>() as u64;
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

/// What a comparison of a weight comes to.
pub(crate) enum Compared {
    /// How it changed.
    Drift(WeightDrift),
    /// Why there is no comparison, as the end of a sentence that begins with its name.
    Not(String),
    /// Bytes that it takes, more than the limit.
    TooLarge(u64),
}

/// Compares a weight of two models in at most so many bytes.
///
/// # Errors
/// E002 and E007 when it can't be read.
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
    let mut sums = if !is_turned {
        if (one.rows, one.columns) != (two.rows, two.columns) {
            return not("has another shape in the second model");
        }
        let mut sums = Sums::new(in_memory(one.rows)?, in_memory(one.columns)?);
        // Whole rows, or pieces of a vector.
        let total = one.rows * one.columns;
        let at_once =
            if sums.has_lines { (CHUNK / one.columns.max(1)).max(1) * one.columns } else { CHUNK };
        let mut start = 0;
        while start < total {
            let range = start..(start + at_once).min(total);
            start = range.end;
            let a = read(original.0, one.position, range.clone())?;
            sums.add(&a, &read(other.0, two.position, range)?);
        }
        sums
    } else {
        let Some(a) = one.laid_out_as(original.0, &two)? else {
            return not("has another shape in the second model");
        };
        let mut sums = Sums::new(in_memory(two.rows)?, in_memory(two.columns)?);
        sums.add(&a, &read(other.0, two.position, 0..two.rows * two.columns)?);
        sums
    };

    sums.finish();
    let (name, other_name) = (&original.1.tensor, &other.1.tensor);
    Ok(Compared::Drift(WeightDrift {
        tensor: name.clone(),
        other_tensor: (name != other_name).then(|| other_name.clone()),
        dtype: one.dtype,
        other_dtype: two.dtype,
        relative_l2: sums.all.relative(),
        cosine: sums.all.cosine(),
        change: sums.change(),
    }))
}

/// Sums over a pair of rows, columns or tensors.
#[derive(Debug, Clone, Copy, Default)]
struct Pair {
    squares: f64,
    other_squares: f64,
    products: f64,
    error: f64,
    /// Projections on one direction, by which rows are known again.
    mark: f64,
    other_mark: f64,
}

impl Pair {
    fn add(&mut self, a: f64, b: f64, mark: f64) {
        self.squares += a * a;
        self.other_squares += b * b;
        self.products += a * b;
        self.error += (a - b) * (a - b);
        self.mark += a * mark;
        self.other_mark += b * mark;
    }

    fn cosine(&self) -> f64 {
        let norms = (self.squares * self.other_squares).sqrt();
        if norms > 0.0 {
            (self.products / norms).clamp(-1.0, 1.0)
        } else {
            f64::from(self.error == 0.0)
        }
    }

    fn relative(&self) -> f64 {
        match (self.error == 0.0, self.squares > 0.0) {
            (true, _) => 0.0,
            // NaN and infinity are as far from a number as can be.
            (false, true) if self.error.is_finite() => (self.error / self.squares).sqrt(),
            (false, _) => f64::INFINITY,
        }
    }

    /// Whether this line of the other one is that line of the original.
    fn is(&self, original: &Self) -> bool {
        let norm = original.squares.sqrt();
        norm > 0.0
            && (self.other_squares.sqrt() - norm).abs() < 0.1 * norm
            && (self.other_mark - original.mark).abs() < 0.1 * norm
    }
}

/// What is summed up of two matrices.
struct Sums {
    /// Elements of a row.
    width: usize,
    /// Whether there are several rows and columns, which are summed up apart.
    has_lines: bool,
    columns: Vec<Pair>,
    rows: Vec<Pair>,
    all: Pair,
    /// Runs of zeros that were none, and all runs.
    zeroed: u64,
    runs: u64,
    /// Squares of the runs that became zero.
    lost: f64,
    flipped: u64,
    count: u64,
    not_finite: bool,
}

/// A direction that no two rows agree in by chance: numbers of magnitude 1, by position.
fn mark(at: usize) -> f64 {
    let mixed = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 11) as f64 / (1_u64 << 53) as f64).mul_add(2.0, -1.0) * 1.732
}

impl Sums {
    fn new(rows: usize, columns: usize) -> Self {
        // Lines of one element say nothing: a sign changes by rounding.
        let has_lines = rows > 1 && columns > 1;
        Self {
            width: columns,
            has_lines,
            columns: if has_lines { vec![Pair::default(); columns] } else { Vec::new() },
            rows: Vec::new(),
            all: Pair::default(),
            zeroed: 0,
            runs: 0,
            lost: 0.0,
            flipped: 0,
            count: 0,
            not_finite: false,
        }
    }

    fn add(&mut self, a: &[f64], b: &[f64]) {
        // A vector comes in pieces.
        let width = if self.has_lines { self.width } else { a.len() }.max(1);
        for (a, b) in a.chunks(width).zip(b.chunks(width)) {
            let mut row = Pair::default();
            let row_mark = mark(self.rows.len());
            for (at, (a, b)) in a.iter().zip(b).enumerate() {
                self.not_finite |= !b.is_finite();
                row.add(*a, *b, mark(at));
                if let Some(column) = self.columns.get_mut(at) {
                    column.add(*a, *b, row_mark);
                }
                self.flipped += u64::from(*a * *b < 0.0);
                self.count += u64::from(*a != 0.0);
            }
            for (a, b) in a.chunks(RUN).zip(b.chunks(RUN)) {
                self.runs += 1;
                let squares: f64 = a.iter().map(|a| a * a).sum();
                if squares > 0.0 && b.iter().all(|b| *b == 0.0) {
                    self.zeroed += 1;
                    self.lost += squares;
                }
            }
            self.rows.push(row);
        }
    }

    fn finish(&mut self) {
        for row in &self.rows {
            self.all.squares += row.squares;
            self.all.other_squares += row.other_squares;
            self.all.products += row.products;
            self.all.error += row.error;
        }
    }

    fn change(&self) -> WeightChange {
        let all = &self.all;
        if self.not_finite {
            return WeightChange::NotFinite;
        }
        if all.error == 0.0 {
            return WeightChange::None;
        }
        let factor = if all.squares > 0.0 { all.products / all.squares } else { 1.0 };
        let is_parallel = all.cosine().abs() > 0.9;
        if is_parallel && factor < 0.0 {
            return WeightChange::SignFlipped { share: 1.0 };
        }
        if is_parallel && !(0.8..1.25).contains(&factor) {
            return WeightChange::Scaled { factor };
        }

        // Blocks of few bits round small elements to zero, but not whole runs of usual ones.
        if self.lost > 0.002 * all.squares && self.zeroed * 500 > self.runs {
            return WeightChange::Zeroed { share: self.zeroed as f64 / self.runs as f64 };
        }
        let moved = || moved("rows", &self.rows).or_else(|| moved("columns", &self.columns));
        if let Some(moved) = self.has_lines.then(moved).flatten() {
            return moved;
        }
        let turned = |lines: &[Pair]| {
            let is = |line: &&Pair| line.cosine() < -0.9 && line.squares > 0.0;
            lines.iter().filter(is).count() as f64 / lines.len().max(1) as f64
        };
        let share = turned(&self.rows).max(turned(&self.columns));
        if share > 0.0 && self.has_lines {
            return WeightChange::SignFlipped { share };
        }
        if !self.has_lines && self.flipped * 10 > self.count {
            return WeightChange::SignFlipped { share: self.flipped as f64 / self.count as f64 };
        }
        if all.relative() < 0.5 { WeightChange::Noise } else { WeightChange::Other }
    }
}

/// Lines that are where others were.
fn moved(what: &'static str, lines: &[Pair]) -> Option<WeightChange> {
    if lines.len() < 2 {
        return None;
    }
    let strange: Vec<usize> = (0..lines.len())
        .filter(|&at| lines[at].cosine() < 0.7 && lines[at].squares > 0.0)
        .collect();
    // Where all lines are strange, it is another tensor, unless each of them is known again.
    let found: Vec<(usize, usize)> = strange
        .iter()
        .filter_map(|&at| {
            // The nearest one: of many lines, several may look alike.
            let far = |from: usize| (lines[at].other_mark - lines[from].mark).abs();
            let known = strange.iter().filter(|&&from| from != at && lines[at].is(&lines[from]));
            let from = known.min_by(|one, other| far(**one).total_cmp(&far(**other)))?;
            Some((at, *from))
        })
        .collect();
    if found.is_empty() || found.len() * 10 < strange.len() * 9 {
        return None;
    }
    let (first, to) = found[0];
    Some(WeightChange::Moved { what, count: found.len(), first: to, to: first })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as weights have them: of both signs, few near zero.
    fn weights(rows: usize, columns: usize) -> Vec<f64> {
        (0..rows * columns).map(|at| mark(at + 77)).collect()
    }

    fn change(columns: usize, a: &[f64], b: &[f64]) -> WeightChange {
        let mut sums = Sums::new(a.len() / columns, columns);
        sums.add(a, b);
        sums.finish();
        sums.change()
    }

    #[test]
    fn what_happened_to_a_weight_is_seen() {
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
    fn lines_that_changed_places_are_named() {
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
    fn a_vector_has_no_lines_that_change_places() {
        // By rounding to few values, elements of a vector equal others.
        let a: Vec<f64> = (0..64).map(|at| 1.0 + 0.01 * f64::from(at)).collect();
        let b: Vec<f64> = a.iter().map(|value| (value * 8.0).round() / 8.0).collect();
        for columns in [1, 64] {
            assert_eq!(change(columns, &a, &b), WeightChange::Noise);
        }
    }
}
