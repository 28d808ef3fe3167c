//! Tensors that are cut out of one, and one that such parts are joined to.

use apr_core::{DType, Error, Result, Shape, TensorInfo};

use crate::four_bits::FourBits;
use crate::rows::{Cut, Turned};
use crate::strided::{Gather, Woven};
use crate::transform::{Change, ChangeKind, needs_floats};

impl Change {
    /// The rows that are cut out of four-bit floats, in GGUF's blocks; elements and exponents are
    /// at these positions of the base.
    ///
    /// # Errors
    /// E001 when the two tensors are not those of one of four-bit floats.
    pub fn four_bits(
        blocks: (&TensorInfo, usize),
        scales: (&TensorInfo, usize),
        cut: Cut,
        name: &str,
    ) -> Result<(TensorInfo, Self)> {
        let (info, rows) = FourBits::of(blocks, scales, cut, name)?;
        Ok((info, Self(ChangeKind::FourBits(rows))))
    }

    /// Returns the change that cuts rows out of the tensor at `position` of the base, under this
    /// name.
    ///
    /// # Errors
    /// E001 when it is not made of such groups, or its elements are not plain.
    pub fn cut(
        info: &TensorInfo,
        position: usize,
        cut: Cut,
        name: &str,
    ) -> Result<(TensorInfo, Self)> {
        if info.dtype.block_len() != 1 || info.dtype.is_quantized() {
            return Err(needs_floats(info, "it can be cut"));
        }

        let Cut { groups, first, step, count, turned } = cut;
        let whole = Groups::of(info.shape.dims(), groups, turned == Turned::Before);
        let fits = |rows: u64| {
            let last = count.checked_sub(1)?.checked_mul(step)?.checked_add(first)?;
            (step > 0 && last < rows).then_some(())
        };
        let whole = whole.filter(|whole| fits(whole.rows).is_some()).ok_or_else(|| {
            let shape = &info.shape;
            Error::format(format!(
                "its shape {shape} does not have {groups} groups with {count} rows from {first} on"
            ))
            .for_tensor(&info.name)
        })?;
        let Groups { rows, columns, .. } = whole;
        let (dims, strides, start) = match turned {
            Turned::No => {
                ([groups, count, columns], [rows * columns, step * columns, 1], first * columns)
            }
            Turned::After => {
                ([groups, columns, count], [rows * columns, 1, step * columns], first * columns)
            }
            Turned::Before => ([groups, count, columns], [rows * columns, step, rows], first),
        };

        let shape = if whole.is_flat { Shape::from([groups, count]) } else { Shape::from(dims) };
        let target = TensorInfo { name: name.to_owned(), dtype: info.dtype, shape };
        let element = info.dtype.block_bytes();
        Ok((
            target,
            Self(ChangeKind::Gathered(Gather { tensor: position, start, dims, strides, element })),
        ))
    }

    /// The tensor of this shape that parts were cut out of: [`cut`](Self::cut) the other way round.
    /// All are to be there.
    ///
    /// # Errors
    /// E001 when the parts do not make up such a tensor, or their elements are not plain.
    pub fn joined(
        parts: &[(TensorInfo, usize, Cut)],
        shape: Shape,
        name: &str,
    ) -> Result<(TensorInfo, Self)> {
        let unfit = || {
            Error::format(format!("its parts do not make up a tensor of shape {shape}"))
                .for_tensor(name)
        };
        let mut parts = parts.to_vec();
        parts.sort_by_key(|(_, _, cut)| cut.first);
        let (dtype, first) =
            parts.first().map(|(info, _, cut)| (info.dtype, *cut)).ok_or_else(unfit)?;
        let whole = Whole::of(&shape, first, dtype).ok_or_else(unfit)?;
        let mut woven = Vec::with_capacity(parts.len());
        let mut next = 0;
        for (info, position, cut) in &parts {
            let (position, cut) = (*position, *cut);
            if info.dtype.block_len() != 1 || info.dtype.is_quantized() {
                return Err(needs_floats(info, "it can be joined"));
            }
            if !whole.has_next(info, cut, next) {
                return Err(unfit());
            }
            next += whole.rows_in_a_row(cut);
            woven.push((whole.part(info, position, cut), whole.run(cut)));
        }

        if !whole.ends_at(next) {
            return Err(unfit());
        }

        let info = TensorInfo { name: name.to_owned(), dtype, shape };
        Ok((info, Self(ChangeKind::Woven(Woven { parts: woven }))))
    }
}

/// A tensor that parts are joined to.
struct Whole {
    dtype: DType,
    /// Number of groups of its rows.
    count: u64,
    groups: Groups,
    /// Distance between the rows of one part.
    step: u64,
    /// `true` if its rows are stored as columns.
    is_turned: bool,
}

impl Whole {
    /// Returns the whole tensor with this shape, if the first part was cut like `first`.
    ///
    /// Returns `None` if the shape does not have such groups.
    fn of(shape: &Shape, first: Cut, dtype: DType) -> Option<Self> {
        let is_turned = first.turned == Turned::Before;
        let groups = Groups::of(shape.dims(), first.groups, is_turned)?;
        let is_some = groups.rows > 0 && groups.columns > 0;
        is_some.then_some(Self { dtype, count: first.groups, groups, step: first.step, is_turned })
    }

    /// Returns `true` if the part matches the others and starts at row `next`.
    fn has_next(&self, info: &TensorInfo, cut: Cut, next: u64) -> bool {
        let elements = self
            .count
            .checked_mul(cut.count)
            .and_then(|part| part.checked_mul(self.groups.columns));
        let is_alike =
            cut.groups == self.count && cut.step == self.step && info.dtype == self.dtype;
        is_alike && cut.first == next && elements.is_some() && info.shape.elements() == elements
    }

    /// Returns the rows of a part up to the next part's first: all of them, or one if parts
    /// alternate.
    fn rows_in_a_row(&self, cut: Cut) -> u64 {
        if self.step == 1 { cut.count } else { 1 }
    }

    /// The elements of a part, in the order in which the whole has them.
    fn part(&self, info: &TensorInfo, position: usize, cut: Cut) -> Gather {
        let columns = self.groups.columns;
        let (x, y) = if self.is_turned { (columns, cut.count) } else { (cut.count, columns) };
        let strides = if cut.turned == Turned::No { [x * y, y, 1] } else { [x * y, 1, x] };
        Gather {
            tensor: position,
            start: 0,
            dims: [self.count, x, y],
            strides,
            element: info.dtype.block_bytes(),
        }
    }

    /// Elements of a part that follow one another in the whole.
    fn run(&self, cut: Cut) -> u64 {
        let columns = if self.is_turned { 1 } else { self.groups.columns };
        self.rows_in_a_row(cut) * columns
    }

    /// Returns `true` if the parts are complete when the next one would start at row `next`.
    fn ends_at(&self, next: u64) -> bool {
        let rows = self.groups.rows;
        if self.step == 1 {
            next == rows
        } else {
            next == self.step && rows.is_multiple_of(self.step)
        }
    }
}

/// Rows of a tensor in groups.
#[derive(Debug, Clone, Copy)]
struct Groups {
    /// Rows of a group.
    rows: u64,
    /// Elements of a row.
    columns: u64,
    /// `true` if rows have one element and no dimension of their own.
    is_flat: bool,
}

impl Groups {
    /// Returns the groups of a shape whose first dimension counts groups, or the rows of all
    /// groups.
    ///
    /// `turned` is `true` if rows are the last dimension.
    fn of(dims: &[u64], groups: u64, turned: bool) -> Option<Self> {
        let flat = Self { rows: *dims.get(1)?, columns: 1, is_flat: true };
        match *dims {
            [first, a, b] if first == groups => {
                let (rows, columns) = if turned { (b, a) } else { (a, b) };
                Some(Self { rows, columns, is_flat: false })
            }
            [first, _] if first == groups => Some(flat),
            [first, columns] if groups > 0 && first.is_multiple_of(groups) => {
                Some(Self { rows: first / groups, columns, is_flat: false })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use apr_core::{CheckpointReader, Limits};

    use super::*;
    use crate::transform::tests::bytes;

    /// Tensors of bytes that count up, one file.
    fn model(shapes: &[&[u64]], bytes: &[u8]) -> Box<dyn CheckpointReader> {
        let (mut entries, mut start) = (Vec::new(), 0);
        for (at, shape) in shapes.iter().enumerate() {
            let end = start + shape.iter().product::<u64>();
            entries.push(format!(
                r#""t{at}":{{"dtype":"U8","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
            ));
            start = end;
        }
        let header = format!("{{{}}}", entries.join(","));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.extend(bytes);
        apr_registry::open(file, "model.safetensors", &Limits::default()).expect("a model")
    }

    fn taken_apart_and_joined(shape: &[u64], cuts: &[Cut], expected: &[&[u8]]) {
        let count = u8::try_from(shape.iter().product::<u64>()).expect("few elements");
        let all: Vec<u8> = (0..count).collect();
        let base = model(&[shape], &all);
        let (mut shapes, mut parts) = (Vec::new(), Vec::new());
        for (cut, expected) in cuts.iter().zip(expected) {
            let (info, change) = Change::cut(&base.tensors()[0], 0, *cut, "part").expect("a part");
            assert_eq!(bytes(&change, &*base, expected.len()), *expected, "{cut:?}");
            shapes.push(info.shape.dims().to_vec());
            parts.extend_from_slice(expected);
        }
        let shapes: Vec<&[u64]> = shapes.iter().map(Vec::as_slice).collect();
        let base = model(&shapes, &parts);
        let parts = base
            .tensors()
            .iter()
            .cloned()
            .zip(cuts)
            .enumerate()
            .map(|(at, (info, cut))| (info, at, *cut));
        let parts: Vec<_> = parts.collect();
        let (info, change) =
            Change::joined(&parts, shape.to_vec().into(), "whole").expect("joined");
        assert_eq!((info.shape.dims(), bytes(&change, &*base, all.len())), (shape, all));
    }

    /// `kv = np.arange(24).reshape(2, 6, 2)`, and of it `kv[:, :2].swapaxes(1, 2)` and `kv[:, 2:]`.
    #[test]
    fn keys_and_values_of_heads_are_cut_and_joined() {
        let keys = Cut { groups: 2, first: 0, step: 1, count: 2, turned: Turned::After };
        let values = Cut { groups: 2, first: 2, step: 1, count: 4, turned: Turned::No };
        taken_apart_and_joined(
            &[12, 2],
            &[keys, values],
            &[
                &[0, 2, 1, 3, 12, 14, 13, 15],
                &[4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 20, 21, 22, 23],
            ],
        );
    }

    /// `w = np.arange(24).reshape(2, 3, 4).swapaxes(1, 2)`, and of it `w[:, ::2]` and `w[:, 1::2]`;
    /// for biases `np.arange(8).reshape(2, 4)`.
    #[test]
    fn columns_that_take_turns_are_cut_and_joined() {
        let part = |first, turned| Cut { groups: 2, first, step: 2, count: 2, turned };
        taken_apart_and_joined(
            &[2, 3, 4],
            &[part(0, Turned::Before), part(1, Turned::Before)],
            &[
                &[0, 4, 8, 2, 6, 10, 12, 16, 20, 14, 18, 22],
                &[1, 5, 9, 3, 7, 11, 13, 17, 21, 15, 19, 23],
            ],
        );
        let biases = [part(0, Turned::No), part(1, Turned::No)];
        taken_apart_and_joined(&[2, 4], &biases, &[&[0, 2, 4, 6], &[1, 3, 5, 7]]);
    }

    /// `np.arange(12).reshape(2, 2, 3).swapaxes(1, 2)`
    #[test]
    fn the_matrices_of_groups_are_transposed() {
        let whole = Cut { groups: 2, first: 0, step: 1, count: 3, turned: Turned::Before };
        taken_apart_and_joined(&[2, 2, 3], &[whole], &[&[0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]]);
    }

    #[test]
    fn parts_that_are_not_there_are_refused() {
        let base = model(&[&[12, 2], &[2, 4, 2]], &(0..40).collect::<Vec<u8>>());
        let cut = Cut { groups: 2, first: 0, step: 1, count: 2, turned: Turned::No };
        for wrong in [
            Cut { groups: 5, ..cut },
            Cut { groups: 0, ..cut },
            Cut { count: 7, ..cut },
            Cut { count: 0, ..cut },
            Cut { step: 0, ..cut },
            Cut { first: u64::MAX, ..cut },
            Cut { step: u64::MAX, ..cut },
        ] {
            assert!(Change::cut(&base.tensors()[0], 0, wrong, "part").is_err(), "{wrong:?}");
        }
        let values = Cut { count: 4, first: 2, ..cut };
        let part = &base.tensors()[1];
        for shape in [[12, 2], [8, 2], [10, 2]] {
            assert!(
                Change::joined(&[(part.clone(), 1, values)], Shape::from(shape), "whole").is_err(),
                "no keys"
            );
        }
        assert!(Change::joined(&[], Shape::from([12, 2]), "whole").is_err(), "nothing");
    }
}
