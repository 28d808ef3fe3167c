//! Tensors made of other tensors, read a range at a time: what moves rows, adds a constant,
//! transposes, stacks or cuts.
//!
//! A read costs what the range costs, up to a constant: nothing here ever holds a whole tensor.

use apr_core::{CheckpointReader, DType, Error, Result, Shape, TensorInfo};
use apr_tensor::cast::{can_cast, cast_float};

use crate::four_bits::FourBits;
use crate::strided::{Strided, Woven};
use crate::windows::Windows;

/// Bytes of scratch that a read may use: a head's rows of the largest models are 2 MiB.
const SCRATCH: usize = 4 << 20;

/// A tensor that is made of the base's.
#[derive(Debug, Clone)]
pub struct Change(pub(crate) Kind);

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Pieces, one after another.
    Pieces(Vec<Piece>),
    /// Rows in another order.
    Rows(Rows),
    /// A constant added to each element; the sum is single precision.
    Sum { tensor: usize, from: DType, constant: f32 },
    /// Elements at regular distances.
    Strided(Strided),
    /// Parts that take turns.
    Woven(Woven),
    /// Four-bit floats, put together.
    FourBits(FourBits),
}

/// A run of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// Position of a tensor of the base, and the offset in it; none for zeros.
    from: Option<(usize, u64)>,
    len: u64,
}

/// The rows of a tensor, seen as `[outer, a, b, inner]`, in the order `[outer, b, a, inner]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    tensor: usize,
    /// `[a, b, inner]` of the source.
    order: [u64; 3],
    row_bytes: u64,
}

impl Change {
    /// The tensor at `position` of the base with its rows in another order.
    ///
    /// # Errors
    /// E001 when its rows are not that many or don't lie apart.
    pub fn rows(info: &TensorInfo, position: usize, order: [u64; 4]) -> Result<Self> {
        let row_bytes = row_bytes(info)?;
        let [outer, a, b, inner] = order;
        let rows =
            [a, b, inner].iter().try_fold(outer, |product, &factor| product.checked_mul(factor));
        if rows != Some(row_count(&info.shape)) || rows == Some(0) {
            let order = order.map(|factor| factor.to_string()).join(" x ");
            return Err(Error::format(format!(
                "its shape {} does not have {order} rows",
                info.shape
            ))
            .for_tensor(&info.name));
        }
        Ok(Self(Kind::Rows(Rows { tensor: position, order: [a, b, inner], row_bytes })))
    }

    /// The tensor at `position` of the base with a constant added; its dtype becomes single
    /// precision.
    ///
    /// # Errors
    /// E001 when its elements are not plain floats.
    pub fn sum(info: &mut TensorInfo, position: usize, constant: f32) -> Result<Self> {
        let from = info.dtype;
        if !from.is_float() {
            return Err(needs_floats(info, "a constant can be added"));
        }
        info.dtype = DType::F32;
        Ok(Self(Kind::Sum { tensor: position, from, constant }))
    }

    /// The matrix at `position` of the base with rows and columns exchanged.
    ///
    /// # Errors
    /// E001 when it is not a matrix of plain elements.
    pub fn transposed(info: &mut TensorInfo, position: usize) -> Result<Self> {
        let &[rows, columns] = info.shape.dims() else {
            return Err(Error::format(format!("its shape {} is not that of a matrix", info.shape))
                .for_tensor(&info.name));
        };
        if info.dtype.block_len() != 1 || info.dtype.is_quantized() {
            return Err(needs_floats(info, "it can be transposed"));
        }
        info.shape = Shape::from([columns, rows]);
        let element = info.dtype.block_bytes();
        let (dims, strides) = ([1, columns, rows], [0, 1, columns]);
        Ok(Self(Kind::Strided(Strided { tensor: position, start: 0, dims, strides, element })))
    }

    /// Elements at regular distances of the tensor at `position` of the base:
    /// `[groups, rows, columns]` from element `start` on, each index so many elements (`strides`)
    /// apart in the source.
    ///
    /// Rows or columns lie together: one of their two strides is 1.
    ///
    /// # Errors
    /// E001 when its elements are not plain ones, or some lie past its end.
    pub fn strided(
        info: &TensorInfo,
        position: usize,
        start: u64,
        dims: [u64; 3],
        strides: [u64; 3],
    ) -> Result<Self> {
        let element = info.dtype.block_bytes();
        if info.dtype.block_len() != 1
            || info.dtype.is_quantized()
            || ![1, 2, 4, 8].contains(&element)
        {
            return Err(needs_floats(info, "parts can be taken"));
        }
        let last = dims.iter().zip(strides).try_fold(start, |last, (dim, stride)| {
            last.checked_add(dim.checked_sub(1)?.checked_mul(stride)?)
        });
        let is_inside =
            last.zip(info.shape.elements()).is_some_and(|(last, elements)| last < elements);
        if !is_inside || !strides[1..].contains(&1) {
            let message = format!("its shape {} does not have these parts", info.shape);
            return Err(Error::format(message).for_tensor(&info.name));
        }
        Ok(Self(Kind::Strided(Strided { tensor: position, start, dims, strides, element })))
    }

    /// The rows of the tensor at `position` of the base as groups of so many queries, a key and a
    /// value, of so many rows each (`[groups, queries, rows]`): all queries, then all keys, then
    /// all values; or the way `back`.
    ///
    /// # Errors
    /// E001 when its rows are not that many or don't lie apart.
    pub fn grouped(
        info: &TensorInfo,
        position: usize,
        order: [u64; 3],
        back: bool,
    ) -> Result<Self> {
        let [groups, queries, rows] = order;
        let bytes = row_bytes(info)?;
        let of_group = queries.checked_add(2).and_then(|heads| heads.checked_mul(rows));
        let fits = of_group.and_then(|of_group| of_group.checked_mul(groups))
            == Some(row_count(&info.shape));
        if !fits || queries == 0 || rows == 0 {
            let order =
                format!("{groups} groups of {queries} queries, a key and a value of {rows} rows");
            return Err(Error::format(format!("its shape {} is not {order}", info.shape))
                .for_tensor(&info.name));
        }
        let (query, head) = (queries * rows * bytes, rows * bytes);
        // Where a group's queries, key and value lie among groups, and among their like.
        let grouped = |group: u64| {
            let start = group * (query + 2 * head);
            [(start, query), (start + query, head), (start + query + head, head)]
        };
        let alike = |group: u64| {
            let (keys, values) = (groups * query, groups * (query + head));
            [(group * query, query), (keys + group * head, head), (values + group * head, head)]
        };
        let piece = |(offset, len): (u64, u64)| Piece { from: Some((position, offset)), len };
        let pieces = if back {
            (0..groups).flat_map(alike).map(piece).collect()
        } else {
            (0..3)
                .flat_map(|kind| (0..groups).map(move |group| grouped(group)[kind]))
                .map(piece)
                .collect()
        };
        Ok(Self(Kind::Pieces(pieces)))
    }

    /// The tensors at these positions of the base, all alike, as one with a leading dimension more.
    ///
    /// # Errors
    /// E001 when they differ in dtype or shape.
    pub fn stack(
        tensors: &[TensorInfo],
        positions: &[usize],
        name: &str,
    ) -> Result<(TensorInfo, Self)> {
        let first = positions.first().and_then(|&position| tensors.get(position));
        let first =
            first.ok_or_else(|| Error::format("there is nothing to stack").for_tensor(name))?;
        let len = first.byte_len()?;
        let mut pieces = Vec::with_capacity(positions.len());
        for &position in positions {
            let part = &tensors[position];
            if (part.dtype, &part.shape) != (first.dtype, &first.shape) {
                let other = format!(
                    "it is {} {}, but {} is {}",
                    part.dtype, part.shape, first.name, first.shape
                );
                return Err(Error::format(format!(
                    "{other}: the two can't be parts of one tensor"
                ))
                .for_tensor(&part.name));
            }
            pieces.push(Piece { from: Some((position, 0)), len });
        }
        let mut dims = vec![positions.len() as u64];
        dims.extend_from_slice(first.shape.dims());
        let info = TensorInfo { name: name.to_owned(), dtype: first.dtype, shape: dims.into() };
        Ok((info, Self(Kind::Pieces(pieces))))
    }

    /// Part `place` of the tensor at `position` of the base, which has a leading dimension for its
    /// parts.
    ///
    /// # Errors
    /// E001 when it has no such part.
    pub fn part(
        info: &TensorInfo,
        position: usize,
        place: u64,
        name: &str,
    ) -> Result<(TensorInfo, Self)> {
        let none = || Error::format(format!("it has no part {place}")).for_tensor(&info.name);
        let (&parts, rest) = info.shape.dims().split_first().ok_or_else(none)?;
        if place >= parts {
            return Err(none());
        }
        let part =
            TensorInfo { name: name.to_owned(), dtype: info.dtype, shape: rest.to_vec().into() };
        let len = part.byte_len()?;
        let offset = len.checked_mul(place).ok_or_else(none)?;
        Ok((part, Self(Kind::Pieces(vec![Piece { from: Some((position, offset)), len }]))))
    }

    /// The tensor at `position` of the base without what is outside rows `first..first + count`;
    /// rows before its first are zeros.
    ///
    /// # Errors
    /// E001 when it has not that many rows, or they don't lie apart.
    pub fn some_rows(
        info: &mut TensorInfo,
        position: usize,
        skipped: i64,
        count: u64,
    ) -> Result<Self> {
        let row = row_bytes(info)?;
        let rows = row_count(&info.shape);
        let zeros = if skipped < 0 { skipped.unsigned_abs() } else { 0 };
        let first = u64::try_from(skipped).unwrap_or(0);
        let taken = count.checked_sub(zeros);
        let fits = taken.and_then(|taken| taken.checked_add(first)).is_some_and(|end| end <= rows);
        let bytes = |rows: u64| rows.checked_mul(row);
        let (Some(taken), true, Some(before), Some(offset)) =
            (taken, fits, bytes(zeros), bytes(first))
        else {
            return Err(Error::format(format!("its shape {} has too few rows", info.shape))
                .for_tensor(&info.name));
        };
        let mut dims = info.shape.dims().to_vec();
        if let Some(leading) = dims.first_mut() {
            *leading = count;
        }
        info.shape = dims.into();
        let len = bytes(taken)
            .ok_or_else(|| Error::format("it has too many rows").for_tensor(&info.name))?;
        let zeros = (before > 0).then_some(Piece { from: None, len: before });
        let pieces = zeros.into_iter().chain([Piece { from: Some((position, offset)), len }]);
        Ok(Self(Kind::Pieces(pieces.collect())))
    }

    /// Positions in the base of the tensors it is made of, in the order of their first use.
    pub(crate) fn sources(&self) -> Vec<usize> {
        let pieces = match &self.0 {
            Kind::Pieces(pieces) => pieces,
            Kind::Rows(Rows { tensor, .. })
            | Kind::Strided(Strided { tensor, .. })
            | Kind::Sum { tensor, .. } => {
                return vec![*tensor];
            }
            Kind::FourBits(rows) => return rows.sources(),
            Kind::Woven(woven) => return woven.parts.iter().map(|(part, _)| part.tensor).collect(),
        };
        let mut seen = std::collections::BTreeSet::new();
        pieces
            .iter()
            .filter_map(|piece| Some(piece.from?.0))
            .filter(|&tensor| seen.insert(tensor))
            .collect()
    }

    /// All bytes, where they lie in one piece of the base.
    pub(crate) fn slice<'b>(&self, base: &'b dyn CheckpointReader) -> Option<&'b [u8]> {
        let Kind::Pieces(pieces) = &self.0 else { return None };
        let [Piece { from: Some((tensor, offset)), len }] = pieces[..] else { return None };
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        base.tensor_slice(tensor)?.get(offset..)?.get(..len)
    }

    /// Fills `buf` with bytes from `offset` on; the range lies within the tensor.
    pub(crate) fn read(
        &self,
        base: &dyn CheckpointReader,
        windows: Option<&Windows>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        match &self.0 {
            Kind::Pieces(pieces) => read_pieces(pieces, base, offset, buf),
            Kind::Rows(rows) => rows.read(base, offset, buf),
            Kind::Sum { tensor, from, constant } => aligned(4, offset, buf, |offset, buf| {
                read_sum(base, (*tensor, *from), *constant, offset, buf)
            }),
            Kind::Strided(strided) => aligned(strided.element, offset, buf, |offset, buf| {
                strided.read(base, windows, offset, buf)
            }),
            Kind::FourBits(rows) => {
                aligned(FourBits::block(), offset, buf, |offset, buf| rows.read(base, offset, buf))
            }
            Kind::Woven(woven) => {
                aligned(woven.element(), offset, buf, |offset, buf| woven.read(base, offset, buf))
            }
        }
    }
}

pub(crate) fn needs_floats(info: &TensorInfo, what: &str) -> Error {
    let what = format!(
        "its elements are {}, and {what} only where they are stored one by one",
        info.dtype
    );
    Error::format(format!("{what}; with --dequantize f16 they are")).for_tensor(&info.name)
}

/// Rows of a tensor: of a vector, its elements.
fn row_count(shape: &Shape) -> u64 {
    shape.dims().first().copied().unwrap_or(1)
}

/// Bytes of all that has the same index in the first dimension.
fn row_bytes(info: &TensorInfo) -> Result<u64> {
    // These keep scales apart from the elements.
    let is_apart = !matches!(info.dtype, DType::I8_ROW | DType::I4_ROW);
    let rows = row_count(&info.shape);
    let inner: u64 = info
        .shape
        .dims()
        .iter()
        .skip(1)
        .try_fold(1_u64, |len, &dim| len.checked_mul(dim))
        .unwrap_or(0);
    if !is_apart || !inner.is_multiple_of(info.dtype.block_len()) {
        return Err(needs_floats(info, "rows can be moved"));
    }
    Ok(info.byte_len()?.checked_div(rows).unwrap_or(0))
}

/// Reads a range whose ends split elements of `element` bytes through one that does not.
fn aligned(
    element: u64,
    offset: u64,
    buf: &mut [u8],
    read: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<()> {
    let before = offset % element;
    let end = offset + buf.len() as u64;
    if before == 0 && end.is_multiple_of(element) {
        return read(offset, buf);
    }
    // The whole elements in between need no detour.
    let first_whole = offset.next_multiple_of(element);
    let last_whole = end - end % element;
    if first_whole >= last_whole {
        let start = offset - before;
        let mut scratch = vec![0; usize_of(end.next_multiple_of(element) - start)?];
        read(start, &mut scratch)?;
        buf.copy_from_slice(&scratch[usize_of(before)?..][..buf.len()]);
        return Ok(());
    }
    let (head, rest) = buf.split_at_mut(usize_of(first_whole - offset)?);
    let (whole, tail) = rest.split_at_mut(usize_of(last_whole - first_whole)?);
    let mut scratch = vec![0; usize_of(element)?];
    if !head.is_empty() {
        read(offset - before, &mut scratch)?;
        head.copy_from_slice(&scratch[usize_of(before)?..]);
    }
    read(first_whole, whole)?;
    if !tail.is_empty() {
        read(last_whole, &mut scratch)?;
        let len = tail.len();
        tail.copy_from_slice(&scratch[..len]);
    }
    Ok(())
}

/// Lengths within a buffer that exists.
fn usize_of(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Error::memory("a range is larger than memory can be"))
}

fn read_pieces(
    pieces: &[Piece],
    base: &dyn CheckpointReader,
    offset: u64,
    mut buf: &mut [u8],
) -> Result<()> {
    let mut skipped = offset;
    for piece in pieces {
        if buf.is_empty() {
            break;
        }
        if skipped >= piece.len {
            skipped -= piece.len;
            continue;
        }
        let len = usize_of((piece.len - skipped).min(buf.len() as u64))?;
        let (here, rest) = std::mem::take(&mut buf).split_at_mut(len);
        match piece.from {
            Some((tensor, start)) => base.read_tensor(tensor, start + skipped, here)?,
            None => here.fill(0),
        }
        (buf, skipped) = (rest, 0);
    }
    Ok(())
}

fn read_sum(
    base: &dyn CheckpointReader,
    (tensor, from): (usize, DType),
    constant: f32,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    debug_assert!(can_cast(from, DType::F32), "only floats are added to");
    let element = from.block_bytes();
    let mut at = offset / 4 * element;
    let (mut input, mut wide) = (Vec::new(), Vec::new());
    for sums in buf.chunks_mut(SCRATCH / 8 * 4) {
        input.resize(sums.len() / 4 * usize_of(element)?, 0);
        base.read_tensor(tensor, at, &mut input)?;
        at += input.len() as u64;
        cast_float(from, DType::F32, &input, &mut wide);
        for (sum, value) in sums.as_chunks_mut::<4>().0.iter_mut().zip(wide.as_chunks::<4>().0) {
            *sum = (f32::from_le_bytes(*value) + constant).to_le_bytes();
        }
    }
    Ok(())
}

impl Rows {
    fn read(self, base: &dyn CheckpointReader, offset: u64, buf: &mut [u8]) -> Result<()> {
        let [a, b, inner] = self.order;
        let block = a * b * inner * self.row_bytes;
        let mut scratch = Vec::new();
        let mut filled = 0;
        while filled < buf.len() {
            let at = offset + filled as u64;
            let here = usize_of((block - at % block).min((buf.len() - filled) as u64))?;
            let target = &mut buf[filled..filled + here];
            // Rows that are mixed among few are read together: one by one they cost a call each.
            if block <= SCRATCH as u64
                && here as u64 >= block / 4
                && inner * self.row_bytes < 1 << 16
            {
                scratch.resize(usize_of(block)?, 0);
                base.read_tensor(self.tensor, at - at % block, &mut scratch)?;
                self.runs(at % block, target, |from, run| {
                    let from = usize_of(from)?;
                    run.copy_from_slice(&scratch[from..from + run.len()]);
                    Ok(())
                })?;
            } else {
                let start = at - at % block;
                self.runs(at % block, target, |from, run| {
                    base.read_tensor(self.tensor, start + from, run)
                })?;
            }
            filled += here;
        }
        Ok(())
    }

    /// Calls `copy` with each run of bytes that lie together in the source: where they are in the
    /// block, and what to fill.
    fn runs(
        self,
        offset: u64,
        mut target: &mut [u8],
        mut copy: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let [a, b, inner] = self.order;
        let run = inner * self.row_bytes;
        let mut at = offset;
        while !target.is_empty() {
            let (group, within) = (at / run, at % run);
            // In the target, groups of `inner` rows stand as [b, a].
            let source = (group % a) * b + group / a;
            let len = usize_of((run - within).min(target.len() as u64))?;
            let (here, rest) = std::mem::take(&mut target).split_at_mut(len);
            copy(source * run + within, here)?;
            at += len as u64;
            target = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use apr_registry::Limits;

    use super::*;
    use crate::view::View;
    use crate::windows::tests::Counted;

    /// One tensor `t` with these bytes.
    fn model(dtype: &str, shape: &[u64], bytes: &[u8]) -> Box<dyn CheckpointReader> {
        let header = format!(
            r#"{{"t":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[0,{}]}}}}"#,
            bytes.len()
        );
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.extend(bytes);
        apr_registry::open(file, "model.safetensors", &Limits::default()).expect("a model")
    }

    /// The bytes, which every range is part of.
    pub(crate) fn bytes(change: &Change, base: &dyn CheckpointReader, len: usize) -> Vec<u8> {
        let mut whole = vec![0; len];
        change.read(base, None, 0, &mut whole).expect("bytes");
        let counted = Counted::new(base);
        let lends_nothing: &dyn CheckpointReader = &counted;
        let windows = [1, 5, 1 << 20].map(Windows::of);
        let ways = windows.iter().map(|windows| (lends_nothing, Some(windows)));
        for (base, windows) in ways.chain([(base, None), (lends_nothing, None)]) {
            for offset in 0..len {
                for end in offset..=len {
                    let mut part = vec![0; end - offset];
                    change.read(base, windows, offset as u64, &mut part).expect("bytes");
                    assert_eq!(part, whole[offset..end], "{offset}..{end}");
                }
            }
        }
        whole
    }

    fn counting(count: u8) -> Vec<u8> {
        (0..count).collect()
    }

    /// `np.arange(24).reshape(2, 2, 3, 2).swapaxes(1, 2)`: two heads of six rows of two bytes.
    #[test]
    fn rows_of_heads_are_interleaved() {
        let base = model("U8", &[12, 2], &counting(24));
        let change = Change::rows(&base.tensors()[0], 0, [2, 2, 3, 1]).expect("twelve rows");
        let expected =
            [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, 12, 13, 18, 19, 14, 15, 20, 21, 16, 17, 22, 23];
        assert_eq!(bytes(&change, &*base, 24), expected);
        let base = model("U8", &[12, 2], &expected);
        let back = Change::rows(&base.tensors()[0], 0, [2, 3, 2, 1]).expect("twelve rows");
        assert_eq!(bytes(&back, &*base, 24), counting(24));
    }

    /// `np.arange(12).reshape(2, 3, 2).swapaxes(0, 1)`: two heads with two rows each of queries,
    /// keys and values.
    #[test]
    fn runs_of_rows_are_grouped() {
        let base = model("U8", &[12], &counting(12));
        let change = Change::rows(&base.tensors()[0], 0, [1, 2, 3, 2]).expect("twelve rows");
        assert_eq!(bytes(&change, &*base, 12), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
    }

    /// `g = np.arange(16).reshape(2, 4, 2)`, then `g[:, :2]`, `g[:, 2]` and `g[:, 3]` one after
    /// another.
    #[test]
    fn queries_keys_and_values_of_groups_are_told_apart() {
        let base = model("U8", &[16], &counting(16));
        let change = Change::grouped(&base.tensors()[0], 0, [2, 2, 2], false).expect("two groups");
        let expected = [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15];
        assert_eq!(bytes(&change, &*base, 16), expected);
        let base = model("U8", &[16], &expected);
        let back = Change::grouped(&base.tensors()[0], 0, [2, 2, 2], true).expect("two groups");
        assert_eq!(bytes(&back, &*base, 16), counting(16));
        for order in [[2, 3, 2], [0, 2, 2], [4, 0, 2], [u64::MAX, 2, 2], [2, u64::MAX, 2]] {
            assert!(Change::grouped(&base.tensors()[0], 0, order, false).is_err(), "{order:?}");
        }
    }

    #[test]
    fn quantized_rows_move_as_a_whole_and_stay_what_they_are() {
        let weights = model("U8", &[1], &[0]);
        let mut base = View::new(&*weights);
        let info = TensorInfo { name: "q".to_owned(), dtype: DType::Q8_0, shape: [4, 64].into() };
        let rows: Vec<u8> = (0..4).flat_map(|row| [row; 68]).collect();
        base.add(info.clone(), rows);
        let change = Change::rows(&info, 1, [1, 2, 2, 1]).expect("four rows");
        let expected: Vec<u8> = [0, 2, 1, 3].iter().flat_map(|&row| [row; 68]).collect();
        let mut moved = vec![0; 4 * 68];
        change.read(&base, None, 0, &mut moved).expect("bytes");
        assert_eq!(moved, expected);
        for refused in
            [Change::sum(&mut info.clone(), 1, 1.0), Change::transposed(&mut info.clone(), 1)]
        {
            let error = refused.expect_err("its elements have no bytes of their own").to_string();
            assert!(error.starts_with("E001: tensor 'q': its elements are q8_0"), "{error}");
            assert!(error.ends_with("with --dequantize f16 they are"), "{error}");
        }
        let vector = TensorInfo { shape: [64].into(), ..info };
        assert!(Change::rows(&vector, 1, [1, 2, 32, 1]).is_err(), "a block is not a row");
    }

    #[test]
    fn rows_that_are_not_there_are_refused() {
        let base = model("U8", &[12, 2], &counting(24));
        for order in [[2, 2, 2, 1], [0, 2, 3, 1], [u64::MAX, 2, 3, 1]] {
            assert!(Change::rows(&base.tensors()[0], 0, order).is_err(), "{order:?}");
        }
    }

    /// `np.arange(6).reshape(2, 3).T`
    #[test]
    fn columns_become_rows() {
        for (dtype, width) in [("U8", 1), ("I16", 2), ("F32", 4), ("F64", 8)] {
            let wide = |elements: &[u8]| -> Vec<u8> {
                elements.iter().flat_map(|&at| vec![at; width]).collect()
            };
            let base = model(dtype, &[2, 3], &wide(&counting(6)));
            let mut info = base.tensors()[0].clone();
            let change = Change::transposed(&mut info, 0).expect("a matrix");
            assert_eq!(info.shape.dims(), [3, 2]);
            assert_eq!(bytes(&change, &*base, 6 * width), wide(&[0, 3, 1, 4, 2, 5]), "{dtype}");
        }
        let base = model("U8", &[6], &counting(6));
        assert!(Change::transposed(&mut base.tensors()[0].clone(), 0).is_err());
    }

    /// `np.float32(x) + np.float32(1)`
    #[test]
    fn sums_are_single_precision() {
        let half: Vec<u8> =
            [0x3c00_u16, 0x1001, 0xbc00].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let base = model("F16", &[3], &half);
        let mut info = base.tensors()[0].clone();
        let change = Change::sum(&mut info, 0, 1.0).expect("floats");
        assert_eq!(info.dtype, DType::F32);
        let expected: Vec<u8> =
            [0x4000_0000_u32, 0x3f80_1004, 0].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        assert_eq!(bytes(&change, &*base, 12), expected);
        let base = model("I16", &[3], &half);
        let error = Change::sum(&mut base.tensors()[0].clone(), 0, 1.0).expect_err("integers");
        assert!(error.message().contains("--dequantize f16"), "{error}");
    }

    #[test]
    fn parts_are_stacked_and_taken_apart() {
        let base = model("U8", &[3, 2], &counting(6));
        let (info, part) = Change::part(&base.tensors()[0], 0, 1, "second").expect("a part");
        assert_eq!((info.name.as_str(), info.shape.dims()), ("second", &[2][..]));
        assert_eq!(bytes(&part, &*base, 2), [2, 3]);
        assert!(Change::part(&base.tensors()[0], 0, 3, "fourth").is_err());
        let (info, stack) = Change::stack(base.tensors(), &[0, 0], "both").expect("alike");
        assert_eq!(info.shape.dims(), [2, 3, 2]);
        assert_eq!(bytes(&stack, &*base, 12), [counting(6), counting(6)].concat());
    }

    #[test]
    fn rows_are_left_out_and_come_back_as_zeros() {
        let base = model("U8", &[3, 2], &counting(6));
        let mut info = base.tensors()[0].clone();
        let later = Change::some_rows(&mut info, 0, 1, 2).expect("two rows");
        assert_eq!((info.shape.dims(), bytes(&later, &*base, 4)), (&[2, 2][..], vec![2, 3, 4, 5]));
        let mut info = base.tensors()[0].clone();
        let padded = Change::some_rows(&mut info, 0, -1, 4).expect("four rows");
        assert_eq!(
            (info.shape.dims(), bytes(&padded, &*base, 8)),
            (&[4, 2][..], vec![0, 0, 0, 1, 2, 3, 4, 5])
        );
        for (skipped, count) in [(2, 2), (0, 4), (-5, 3), (i64::MIN, 1)] {
            assert!(
                Change::some_rows(&mut base.tensors()[0].clone(), 0, skipped, count).is_err(),
                "{skipped} {count}"
            );
        }
    }
}
