//! Sums over two matrices, by which changes of one are known.

use apr_core::DType;
use apr_tensor::room::Room;

use super::weights::WeightChange;

/// Elements of a run that is looked at for zeros.
const RUN: usize = 8;

/// Sums over a pair of rows, columns or tensors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pair {
    pub(super) squares: f64,
    other_squares: f64,
    products: f64,
    error: f64,
    /// Projections on one direction, by which rows are known again.
    mark: f64,
    other_mark: f64,
}

impl Pair {
    pub(super) fn add(&mut self, a: f64, b: f64, mark: f64) {
        self.squares += a * a;
        self.other_squares += b * b;
        self.products += a * b;
        self.error += (a - b) * (a - b);
        self.mark += a * mark;
        self.other_mark += b * mark;
    }

    pub(super) fn cosine(&self) -> f64 {
        let norms = (self.squares * self.other_squares).sqrt();
        if norms > 0.0 {
            (self.products / norms).clamp(-1.0, 1.0)
        } else {
            f64::from(self.error == 0.0)
        }
    }

    pub(super) fn relative(&self) -> f64 {
        match (self.error == 0.0, self.squares > 0.0) {
            (true, _) => 0.0,
            // NaN and infinity are as far from a number as can be.
            (false, true) if self.error.is_finite() => (self.error / self.squares).sqrt(),
            (false, _) => f64::INFINITY,
        }
    }

    /// Returns `true` if this line of the other matrix matches a line of the original.
    fn is(&self, original: &Self) -> bool {
        let norm = original.squares.sqrt();
        norm > 0.0
            && (self.other_squares.sqrt() - norm).abs() < 0.1 * norm
            && (self.other_mark - original.mark).abs() < 0.1 * norm
    }
}

/// Sums over two matrices.
pub(super) struct Sums {
    /// Elements of a row.
    width: usize,
    /// `true` if there are several rows and columns, which are summed separately.
    pub(super) has_lines: bool,
    columns: Vec<Pair>,
    rows: Vec<Pair>,
    pub(super) all: Pair,
    /// Rounding of the other matrix's dtype.
    room: Room,
    /// Maximum rounding errors of both dtypes, squared.
    rooms: [f64; 2],
    /// Number of runs of non-zero elements that became zero. `runs` counts all runs.
    zeroed: u64,
    runs: u64,
    /// Squares of the runs that became zero.
    lost: f64,
    flipped: u64,
    count: u64,
    not_finite: bool,
}

/// A direction that no two rows agree in by chance: numbers of magnitude 1, by position.
pub(super) fn mark(at: usize) -> f64 {
    let mixed = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 11) as f64 / (1_u64 << 53) as f64).mul_add(2.0, -1.0) * 1.732
}

impl Sums {
    /// For a matrix whose other side has this dtype.
    pub(super) fn new(rows: usize, columns: usize, dtype: DType) -> Self {
        // Lines of one element say nothing: a sign changes by rounding.
        let has_lines = rows > 1 && columns > 1;
        Self {
            width: columns,
            has_lines,
            columns: if has_lines { vec![Pair::default(); columns] } else { Vec::new() },
            rows: Vec::new(),
            all: Pair::default(),
            room: Room::of(dtype),
            rooms: [0.0; 2],
            zeroed: 0,
            runs: 0,
            lost: 0.0,
            flipped: 0,
            count: 0,
            not_finite: false,
        }
    }

    pub(super) fn add(&mut self, a: &[f64], b: &[f64]) {
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
            let block = self.room.block_len(a.len());
            a.chunks(block).zip(b.chunks(block)).for_each(|(a, b)| self.add_runs(a, b));
            self.rows.push(row);
        }
    }

    /// Looks for runs that became zero, within a block of values that the dtype rounds together:
    /// rounding to few bits makes zero of all that is small beside the block's largest.
    fn add_runs(&mut self, a: &[f64], b: &[f64]) {
        let small = self.room.zero_below(a);
        for (a, b) in a.chunks(RUN).zip(b.chunks(RUN)) {
            self.runs += 1;
            let is_large = a.iter().any(|a| a.abs() > small);
            if is_large && b.iter().all(|b| *b == 0.0) {
                self.zeroed += 1;
                self.lost += a.iter().map(|a| a * a).sum::<f64>();
            }
        }
    }

    /// Adds the possible rounding errors of both dtypes for these values.
    pub(super) fn add_rooms(&mut self, dtypes: [DType; 2], values: [&[f64]; 2]) {
        let rooms = Room::of_pair(dtypes, values);
        self.rooms.iter_mut().zip(rooms).for_each(|(sum, room)| *sum += room);
    }

    /// Returns the relative difference that rounding can cause.
    pub(super) fn allowed(&self) -> f64 {
        let [one, two] = self.rooms.map(f64::sqrt);
        let norm = self.all.squares.sqrt();
        if norm > 0.0 { (one + two) / norm } else { 0.0 }
    }

    pub(super) fn finish(&mut self) {
        for row in &self.rows {
            self.all.squares += row.squares;
            self.all.other_squares += row.other_squares;
            self.all.products += row.products;
            self.all.error += row.error;
        }
    }

    /// Returns the change of the weight, if it shows without examining single lines.
    pub(super) fn whole_change(&self) -> Option<WeightChange> {
        let all = &self.all;
        if self.not_finite {
            return Some(WeightChange::NotFinite);
        }
        if all.error == 0.0 {
            return Some(WeightChange::None);
        }
        let factor = if all.squares > 0.0 { all.products / all.squares } else { 1.0 };
        let is_parallel = all.cosine().abs() > 0.9;
        if is_parallel && factor < 0.0 {
            return Some(WeightChange::SignFlipped { share: 1.0 });
        }
        if is_parallel && !(0.8..1.25).contains(&factor) {
            return Some(WeightChange::Scaled { factor });
        }

        let is_zeroed = self.lost > 0.002 * all.squares && self.zeroed * 500 > self.runs;
        is_zeroed.then(|| WeightChange::Zeroed { share: self.zeroed as f64 / self.runs as f64 })
    }

    /// Lines that may have changed places: `rows` or `columns`.
    pub(super) fn moves(&self) -> Vec<Moves> {
        if !self.has_lines {
            return Vec::new();
        }
        let both = [("rows", &self.rows), ("columns", &self.columns)];
        both.into_iter().filter_map(|(what, lines)| Moves::of(what, lines)).collect()
    }

    /// Returns the change of a weight whose lines are in their original positions.
    pub(super) fn change_in_place(&self) -> WeightChange {
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
        if self.all.relative() < 0.5 { WeightChange::Noise } else { WeightChange::Other }
    }
}

/// Lines of a matrix that seem to have swapped positions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Moves {
    /// `rows` or `columns`.
    pub(super) what: &'static str,
    /// Lines of the other matrix, each with the original's line that it seems to be.
    pub(super) lines: Vec<(usize, usize)>,
    /// Number of lines that do not match the original line at their position.
    pub(super) strange: usize,
}

impl Moves {
    fn of(what: &'static str, lines: &[Pair]) -> Option<Self> {
        if lines.len() < 2 {
            return None;
        }
        let is_strange = |at: &usize| lines[*at].cosine() < 0.7 && lines[*at].squares > 0.0;
        let strange: Vec<usize> = (0..lines.len()).filter(is_strange).collect();
        // Where all lines are strange, it is another tensor, unless each of them is known again.
        let origin = |at: usize| {
            // The nearest one: of many lines, several may look alike.
            let far = |from: usize| (lines[at].other_mark - lines[from].mark).abs();
            let known = strange.iter().filter(|&&from| from != at && lines[at].is(&lines[from]));
            known.min_by(|one, other| far(**one).total_cmp(&far(**other))).copied()
        };
        let found = strange.iter().filter_map(|&at| Some((at, origin(at)?))).collect();
        let found = Self { what, lines: found, strange: strange.len() };
        found.explain_all().then_some(found)
    }

    /// Returns `true` if nearly all changed lines match another line of the original.
    pub(super) fn explain_all(&self) -> bool {
        !self.lines.is_empty() && self.lines.len() * 10 >= self.strange * 9
    }

    /// Returns the change that these lines represent.
    pub(super) fn change(&self) -> WeightChange {
        let (first, to) = self.lines.first().copied().unwrap_or_default();
        WeightChange::Moved { what: self.what, count: self.lines.len(), first: to, to: first }
    }
}
