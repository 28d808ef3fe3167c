//! Rows that are in other places, and rows that are dealt to several tensors.

use apr_core::{DType, Error, Result, Shape, TensorInfo};

use crate::transform::{Change, ChangeKind, Piece, row_bytes, row_count};

/// Rows of a tensor in groups, of which some make another tensor: those of the first range of all
/// groups, then those of the second, and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deal {
    /// Number of groups of rows, all alike.
    pub groups: u64,
    /// Ranges of rows of each group: the first row and the number of rows.
    pub ranges: Vec<(u64, u64)>,
}

impl Deal {
    /// Number of rows of a group.
    fn rows(&self) -> Option<u64> {
        self.ranges.iter().try_fold(0_u64, |sum, (_, count)| sum.checked_add(*count))
    }

    /// Returns the range that starts at row `first` of a group: the rows of the dealt tensor
    /// before it, and its number of rows.
    fn range(&self, first: u64) -> Option<(u64, u64)> {
        let mut before = 0_u64;
        for (start, count) in &self.ranges {
            if *start == first && *count > 0 {
                return Some((before, *count));
            }
            before = before.checked_add(count.checked_mul(self.groups)?)?;
        }
        None
    }
}

impl Change {
    /// The tensor at `position` of the base as it is.
    ///
    /// # Errors
    /// E001 when a tensor of that shape has more bytes than can be counted.
    pub fn whole(info: &TensorInfo, position: usize) -> Result<Self> {
        let whole = Piece { from: Some((position, 0)), len: info.byte_len()? };
        Ok(Self(ChangeKind::Pieces(vec![whole])))
    }

    /// The tensor at `position` of the base with its rows from `from` on in another order, as
    /// [`rows`](Self::rows) has them.
    ///
    /// With `width`, a row is that many elements, whatever the shape.
    ///
    /// # Errors
    /// E001 when its rows are not that many or don't lie apart.
    pub fn moved(
        info: &TensorInfo,
        position: usize,
        order: [u64; 4],
        from: u64,
        width: Option<u64>,
    ) -> Result<Self> {
        let mut info = info.clone();
        if let Some(width) = width {
            let elements = info.shape.elements().filter(|_| width > 0);
            let rows = elements.filter(|elements| elements.is_multiple_of(width));
            let rows = rows.map(|elements| elements / width).ok_or_else(|| {
                let message = format!("its shape {} has no rows of {width} elements", info.shape);
                Error::format(message).for_tensor(&info.name)
            })?;
            info.shape = Shape::from([rows, width]);
        }
        if from == 0 {
            return Self::rows(&info, position, order);
        }

        let row = row_bytes(&info)?;
        let [outer, a, b, inner] = order;
        let moved = [a, b, inner].iter().try_fold(outer, |product, &x| product.checked_mul(x));
        let all = moved.and_then(|moved| moved.checked_add(from));
        if all != Some(row_count(&info.shape)) || moved == Some(0) {
            let order = order.map(|factor| factor.to_string()).join(" x ");
            let message =
                format!("its shape {} does not have {order} rows behind {from}", info.shape);
            return Err(Error::format(message).for_tensor(&info.name));
        }
        let piece =
            |first: u64, rows: u64| Piece { from: Some((position, first * row)), len: rows * row };
        let mut pieces = vec![piece(0, from)];
        for block in 0..outer {
            for y in 0..b {
                let runs = (0..a).map(|x| from + ((block * a + x) * b + y) * inner);
                pieces.extend(runs.map(|first| piece(first, inner)));
            }
        }
        Ok(Self(ChangeKind::Pieces(pieces)))
    }

    /// Some rows of each group of the tensor at `position` of the base, under this name.
    ///
    /// # Errors
    /// E001 when it does not have such groups, or its rows don't lie apart.
    pub fn dealt(
        info: &TensorInfo,
        position: usize,
        deal: &Deal,
        name: &str,
    ) -> Result<(TensorInfo, Self)> {
        let unfit = || {
            let (groups, shape) = (deal.groups, &info.shape);
            Error::format(format!("its shape {shape} does not have {groups} groups of such rows"))
                .for_tensor(&info.name)
        };
        let (rows, row) = rows_of(info)?;
        let is_matrix = info.shape.dims().len() <= 2;
        if deal.groups == 0 || !is_matrix || !rows.is_multiple_of(deal.groups) {
            return Err(unfit());
        }
        let of_group = rows / deal.groups;
        let is_inside =
            |(first, count): &(u64, u64)| first.checked_add(*count).is_some_and(|e| e <= of_group);
        let taken = deal.rows().filter(|_| deal.ranges.iter().all(is_inside)).ok_or_else(unfit)?;
        let mut pieces = Vec::new();
        for (first, count) in &deal.ranges {
            pieces.extend((0..deal.groups).map(|group| Piece {
                from: Some((position, (group * of_group + first) * row)),
                len: count * row,
            }));
        }
        let mut dims = info.shape.dims().to_vec();
        let leading = dims.first_mut().ok_or_else(unfit)?;
        *leading = taken.checked_mul(deal.groups).ok_or_else(unfit)?;
        let dealt = TensorInfo { name: name.to_owned(), dtype: info.dtype, shape: dims.into() };
        Ok((dealt, Self(ChangeKind::Pieces(pieces))))
    }

    /// The tensor of this shape whose rows were [dealt](Self::dealt) to these tensors.
    ///
    /// # Errors
    /// E001 when they do not make up such a tensor.
    pub fn gathered_in(
        parts: &[(TensorInfo, usize, Deal)],
        shape: &Shape,
        name: &str,
    ) -> Result<(TensorInfo, Self)> {
        let unfit = || {
            Error::format(format!("its parts do not make up a tensor of shape {shape}"))
                .for_tensor(name)
        };
        let (first, _, deal) = parts.first().ok_or_else(unfit)?;
        let (dtype, groups) = (first.dtype, deal.groups);
        let info = TensorInfo { name: name.to_owned(), dtype, shape: shape.clone() };
        let (rows, row) = rows_of(&info)?;
        let of_group = rows.checked_div(groups).ok_or_else(unfit)?;
        for (part, _, deal) in parts {
            let own = deal.rows().and_then(|rows| rows.checked_mul(groups));
            let is_alike = part.dtype == dtype && deal.groups == groups;
            let (rows_of_part, row_of_part) = rows_of(part)?;
            if !is_alike || own != Some(rows_of_part) || row_of_part != row {
                return Err(unfit());
            }
        }

        // The ranges of a group, in the order of its rows.
        let (mut ranges, mut next) = (Vec::new(), 0);
        while next < of_group {
            let range = parts.iter().find_map(|(_, position, deal)| {
                let (before, count) = deal.range(next)?;
                Some((*position, before, count))
            });
            let (position, before, count) = range.ok_or_else(unfit)?;
            ranges.push((position, before, count));
            next = next.checked_add(count).ok_or_else(unfit)?;
        }
        if next != of_group || of_group.checked_mul(groups) != Some(rows) {
            return Err(unfit());
        }
        let pieces = (0..groups).flat_map(|group| {
            ranges.iter().map(move |&(position, before, count)| Piece {
                from: Some((position, (before + group * count) * row)),
                len: count * row,
            })
        });
        let change = Self(ChangeKind::Pieces(pieces.collect()));
        Ok((info, change))
    }

    /// Gives a tensor another shape with as many elements.
    ///
    /// # Errors
    /// E001 when the numbers of elements differ.
    pub fn reshape(info: &mut TensorInfo, shape: Shape) -> Result<()> {
        if info.shape.elements() != shape.elements() {
            let message = format!("its shape {} can't become {shape}", info.shape);
            return Err(Error::format(message).for_tensor(&info.name));
        }
        info.shape = shape;
        Ok(())
    }

    /// Returns `true` if rows of this many elements can be moved in blocks of the dtype.
    #[must_use]
    pub fn moves_blocks(dtype: DType, width: u64) -> bool {
        width.is_multiple_of(dtype.block_len()) && !matches!(dtype, DType::I8_ROW | DType::I4_ROW)
    }
}

/// Returns the number of rows of a tensor and the bytes of each. Of more than two dimensions, a row
/// is all that lies in the last one.
fn rows_of(info: &TensorInfo) -> Result<(u64, u64)> {
    let mut matrix = info.clone();
    if let [outer @ .., columns] = info.shape.dims()
        && outer.len() > 1
    {
        let rows = outer.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
        let rows =
            rows.ok_or_else(|| Error::format("it has too many rows").for_tensor(&info.name))?;
        matrix.shape = Shape::from([rows, *columns]);
    }
    Ok((row_count(&matrix.shape), row_bytes(&matrix)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::Formula;
    use crate::transform::tests::bytes;

    fn model(shape: &[u64], dtype: &str, bytes: &[u8]) -> Box<dyn apr_core::CheckpointReader> {
        let len = bytes.len();
        let header =
            format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[0,{len}]}}}}"#);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.extend(bytes);
        apr_registry::open(file, "model.safetensors", &apr_core::Limits::default())
            .expect("a model")
    }

    /// `np.concatenate([w[:2], w[2:].reshape(2, 3, 1, 2).swapaxes(0, 1).reshape(6, 2)])` of
    /// `w = np.arange(16).reshape(8, 2)`.
    #[test]
    fn rows_behind_the_first_are_moved_and_moved_back() {
        let all: Vec<u8> = (0..16).collect();
        let base = model(&[8, 2], "U8", &all);
        let info = &base.tensors()[0];
        let change = Change::moved(info, 0, [1, 2, 3, 1], 2, None).expect("rows");
        let moved = bytes(&change, &*base, 16);
        assert_eq!(moved, [0, 1, 2, 3, 4, 5, 10, 11, 6, 7, 12, 13, 8, 9, 14, 15]);
        let base = model(&[8, 2], "U8", &moved);
        let back = Change::moved(&base.tensors()[0], 0, [1, 3, 2, 1], 2, None).expect("rows");
        assert_eq!(bytes(&back, &*base, 16), all);
        for (order, from) in [([1, 2, 3, 1], 1), ([1, 2, 3, 1], u64::MAX), ([0, 2, 3, 1], 8)] {
            assert!(Change::moved(info, 0, order, from, None).is_err());
        }
    }

    /// `np.arange(16).reshape(2, 2, 2, 2).swapaxes(1, 2)`
    #[test]
    fn parts_of_rows_are_moved() {
        let base = model(&[2, 8], "U8", &(0..16).collect::<Vec<u8>>());
        let info = &base.tensors()[0];
        let change = Change::moved(info, 0, [2, 2, 2, 1], 0, Some(2)).expect("parts of rows");
        let moved = bytes(&change, &*base, 16);
        assert_eq!(moved, [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]);
        for width in [0, 3, 32] {
            assert!(Change::moved(info, 0, [2, 2, 2, 1], 0, Some(width)).is_err());
        }
    }

    #[test]
    fn rows_are_dealt_and_gathered_in() {
        let all: Vec<u8> = (0..20).collect();
        let base = model(&[10, 2], "U8", &all);
        let info = &base.tensors()[0];
        let first = Deal { groups: 2, ranges: vec![(0, 1), (1, 2)] };
        let second = Deal { groups: 2, ranges: vec![(3, 2)] };
        let (a, of_a) = Change::dealt(info, 0, &first, "a").expect("a part");
        let (b, of_b) = Change::dealt(info, 0, &second, "b").expect("a part");
        let (bytes_a, bytes_b) = (bytes(&of_a, &*base, 12), bytes(&of_b, &*base, 8));
        assert_eq!(bytes_a, [0, 1, 10, 11, 2, 3, 4, 5, 12, 13, 14, 15]);
        assert_eq!(bytes_b, [6, 7, 8, 9, 16, 17, 18, 19]);

        // Both in one tensor of the base, which is enough to read them from.
        let base = model(&[10, 2], "U8", &[bytes_a, bytes_b.clone()].concat());
        let parts = [(a.clone(), 0, first.clone()), (b, 0, second)];
        let shape = Shape::from([10, 2]);
        let (whole, change) = Change::gathered_in(&parts, &shape, "t").expect("whole");
        assert_eq!(whole.shape, shape);
        let joined = bytes(&change, &*base, 20);
        assert_eq!((&joined[..6], &joined[10..16]), (&all[..6], &all[10..16]));
        assert!(Change::gathered_in(&parts[..1], &shape, "t").is_err(), "half of it");
        assert!(Change::gathered_in(&[], &shape, "t").is_err(), "nothing");
        let none = [(a, 0, Deal { groups: 0, ranges: first.ranges })];
        assert!(Change::gathered_in(&none, &shape, "t").is_err(), "no groups");
        for wrong in [
            Deal { groups: 3, ranges: vec![(0, 1)] },
            Deal { groups: 0, ranges: vec![(0, 1)] },
            Deal { groups: 2, ranges: vec![(4, 2)] },
            Deal { groups: 2, ranges: vec![(u64::MAX, 2)] },
        ] {
            assert!(Change::dealt(info, 0, &wrong, "a").is_err(), "{wrong:?}");
        }
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "rounded once")]
    fn values_are_mapped_and_mapped_back() {
        let values = [-0.5_f32, 0.25, 1.0, 2.5];
        let input: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
        };
        let base = model(&[4], "F32", &input);
        let mapped = |base: &dyn apr_core::CheckpointReader, formula: Formula| {
            let mut info = base.tensors()[0].clone();
            let whole = Change::whole(&info, 0).expect("a tensor");
            let change = whole.mapped(&mut info, formula, DType::F32).expect("floats");
            bytes(&change, base, 16)
        };
        let fading = mapped(&*base, Formula::NegativeExponential);
        assert_eq!(floats(&fading), values.map(|value| -(f64::from(value).exp()) as f32));
        let base_of_fading = model(&[4], "F32", &fading);
        let back = floats(&mapped(&*base_of_fading, Formula::LogarithmOfNegative));
        assert!(back.iter().zip(&values).all(|(a, b)| (a - b).abs() < 1e-6), "{back:?}");
        let product = Formula::Product(vec![(1, vec![2.0, 3.0]), (2, vec![0.5])]);
        assert_eq!(floats(&mapped(&*base, product)), [-3.0, 0.125, 0.5, 2.5]);

        let mut info = base.tensors()[0].clone();
        let whole = Change::whole(&info, 0).expect("a tensor");
        let change = whole.mapped(&mut info, Formula::LogarithmOfNegative, DType::F32);
        let change = change.expect("floats");
        assert!(change.read(&*base, None, 0, &mut [0; 16]).is_err(), "values above 0");
    }
}
