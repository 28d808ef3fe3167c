//! Tensors made of other tensors, read a range at a time: what moves rows, adds a constant,
//! transposes, stacks or cuts.
//!
//! A read costs what the range costs, up to a constant: nothing here ever holds a whole tensor.

pub(crate) mod read;
#[cfg(test)]
pub(crate) mod tests;

use apr_core::{DType, Error, Result, Shape, Strided, TensorInfo};

use crate::affine::{Affine, AffineQuantization};
use crate::four_bits::FourBits;
use crate::mapped::Mapped;
use crate::strided::{Gather, Woven};

/// A tensor that is made of the base's.
#[derive(Debug, Clone)]
pub struct Change(pub(crate) ChangeKind);

#[derive(Debug, Clone)]
pub(crate) enum ChangeKind {
    /// Pieces, one after another.
    Pieces(Vec<Piece>),
    /// Rows in another order.
    Rows(Rows),
    /// A constant added to each element; the sum is single precision.
    Sum { tensor: usize, from: DType, constant: f32 },
    /// Elements at regular distances.
    Gathered(Gather),
    /// Parts that take turns.
    Woven(Woven),
    /// Four-bit floats, put together.
    FourBits(FourBits),
    /// Integers, dequantized to floats.
    Affine(Affine),
    /// Values that are changed one by one.
    Mapped(Mapped),
    /// Change of a tensor whose blocks are first decoded to this dtype.
    Decoded(Box<ChangeKind>, DType),
}

/// A run of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// Position of a tensor of the base, and the offset in it; none for zeros.
    pub(crate) from: Option<(usize, u64)>,
    pub(crate) len: u64,
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
        Ok(Self(ChangeKind::Rows(Rows { tensor: position, order: [a, b, inner], row_bytes })))
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
        Ok(Self(ChangeKind::Sum { tensor: position, from, constant }))
    }

    /// The matrix at `position` of the base with rows and columns exchanged.
    ///
    /// # Errors
    /// E001 when it is not a matrix of plain elements.
    pub fn transposed(info: &mut TensorInfo, position: usize) -> Result<Self> {
        let &[rows, columns] = info.shape.dims() else {
            return Err(Error::format(format!("its shape {} is not a matrix", info.shape))
                .for_tensor(&info.name));
        };
        if info.dtype.block_len() != 1 || info.dtype.is_quantized() {
            return Err(needs_floats(info, "it can be transposed"));
        }
        info.shape = Shape::from([columns, rows]);
        Ok(Self(ChangeKind::Gathered(Gather {
            tensor: position,
            start: 0,
            dims: [1, columns, rows],
            strides: [0, 1, columns],
            element: info.dtype.block_bytes(),
        })))
    }

    /// Returns `true` if these elements can be [gathered](Self::gathered).
    #[must_use]
    pub fn can_gather(elements: &Strided) -> bool {
        elements.elements() > 0 && Gather::of(0, elements, 1).is_some()
    }

    /// These elements of the tensor at `position` of the base, in their order.
    ///
    /// In three dimensions, as which they are read, rows or columns lie together.
    ///
    /// # Errors
    /// E001 when its elements are not plain ones, some lie past its end, or they take more than
    /// three dimensions.
    pub fn gathered(info: &TensorInfo, position: usize, elements: &Strided) -> Result<Self> {
        let element = info.dtype.block_bytes();
        if info.dtype.block_len() != 1
            || info.dtype.is_quantized()
            || ![1, 2, 4, 8].contains(&element)
        {
            return Err(needs_floats(info, "parts can be taken"));
        }
        let end = elements.span().and_then(|span| span.checked_add(elements.start()));
        let is_inside = end.zip(info.shape.elements()).is_some_and(|(end, all)| end <= all);
        let gather = Gather::of(position, elements, element)
            .filter(|_| is_inside && elements.elements() > 0);
        let Some(gather) = gather else {
            let message = format!("its shape {} does not have these parts", info.shape);
            return Err(Error::format(message).for_tensor(&info.name));
        };
        Ok(Self(ChangeKind::Gathered(gather)))
    }

    /// Returns the change that reorders rows from groups (`[groups, queries, rows]`) to all
    /// queries, all keys, all values.
    ///
    /// The rows of the tensor at `position` of the base are groups of `queries` queries, a key and
    /// a value, each of `rows` rows. `back` reverses the change.
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

        Ok(Self(ChangeKind::Pieces(pieces)))
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
        let first = first.ok_or_else(|| Error::format("nothing to stack").for_tensor(name))?;
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
        Ok((info, Self(ChangeKind::Pieces(pieces))))
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
        Ok((part, Self(ChangeKind::Pieces(vec![Piece { from: Some((position, offset)), len }]))))
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
        Ok(Self(ChangeKind::Pieces(pieces.collect())))
    }

    /// The tensor at `position` of the base with `count` rows: zeros follow its own, or its last
    /// ones are left out.
    ///
    /// # Errors
    /// E001 when its rows don't lie apart, or it would have too many.
    pub fn with_rows(info: &mut TensorInfo, position: usize, count: u64) -> Result<Self> {
        let (row, rows) = (row_bytes(info)?, row_count(&info.shape));
        let mut change = Self::some_rows(info, position, 0, rows.min(count))?;
        let Some(more) = count.checked_sub(rows).filter(|more| *more > 0) else {
            return Ok(change);
        };
        let mut dims = info.shape.dims().to_vec();
        if let Some(leading) = dims.first_mut() {
            *leading = count;
        }
        info.shape = dims.into();
        let len = more.checked_mul(row).filter(|_| info.byte_len().is_ok());
        let len =
            len.ok_or_else(|| Error::format("it has too many rows").for_tensor(&info.name))?;
        if let ChangeKind::Pieces(pieces) = &mut change.0 {
            pieces.push(Piece { from: None, len });
        }
        Ok(change)
    }

    /// Integers of a tensor of the base as floats of `dtype`, of which `tensors` are the base's.
    ///
    /// # Errors
    /// E001 where the scales do not fit the tensor.
    pub fn dequantized(
        tensors: &[TensorInfo],
        quantization: AffineQuantization,
        dtype: DType,
    ) -> Result<(TensorInfo, Self)> {
        let affine = Affine::new(tensors, quantization, dtype)?;
        let info = TensorInfo { dtype, ..tensors[quantization.quants].clone() };
        Ok((info, Self(ChangeKind::Affine(affine))))
    }

    /// Returns the same change for tensors whose blocks are decoded to plain floats of this dtype
    /// on reading.
    ///
    /// Other tensors are read unchanged. The change must be made for tensors of that dtype.
    #[must_use]
    pub fn of_decoded(self, dtype: DType) -> Self {
        Self(ChangeKind::Decoded(Box::new(self.0), dtype))
    }

    /// The tensor at `position` of the base, its blocks decoded to plain floats of this dtype.
    ///
    /// # Errors
    /// E001 where a tensor of that shape has more bytes than can be counted.
    pub fn decoded(info: &mut TensorInfo, position: usize, dtype: DType) -> Result<Self> {
        info.dtype = dtype;
        let whole = Piece { from: Some((position, 0)), len: info.byte_len()? };
        Ok(Self(ChangeKind::Pieces(vec![whole])).of_decoded(dtype))
    }

    /// Positions in the base of the tensors it is made of, in the order of their first use.
    pub(crate) fn sources(&self) -> Vec<usize> {
        self.0.sources()
    }
}

impl ChangeKind {
    fn sources(&self) -> Vec<usize> {
        let pieces = match self {
            Self::Pieces(pieces) => pieces,
            Self::Rows(Rows { tensor, .. })
            | Self::Gathered(Gather { tensor, .. })
            | Self::Sum { tensor, .. } => {
                return vec![*tensor];
            }
            Self::Affine(Affine { quantization, .. }) => {
                let AffineQuantization { quants, scales, zero_points, .. } = *quantization;
                return [quants, scales].into_iter().chain(zero_points).collect();
            }
            Self::FourBits(rows) => return rows.sources(),
            Self::Decoded(kind, _) => return kind.sources(),
            Self::Mapped(mapped) => return mapped.kind.sources(),
            Self::Woven(woven) => return woven.parts.iter().map(|(part, _)| part.tensor).collect(),
        };

        let mut seen = std::collections::BTreeSet::new();
        pieces
            .iter()
            .filter_map(|piece| Some(piece.from?.0))
            .filter(|&tensor| seen.insert(tensor))
            .collect()
    }
}

pub(crate) fn needs_floats(info: &TensorInfo, what: &str) -> Error {
    let what = format!(
        "its elements are {}, and {what} only where they are stored one by one",
        info.dtype
    );
    Error::format(format!("{what}; with `dequantize` f16 they are")).for_tensor(&info.name)
}

/// Rows of a tensor: of a vector, its elements.
pub(crate) fn row_count(shape: &Shape) -> u64 {
    shape.dims().first().copied().unwrap_or(1)
}

/// Bytes of all that has the same index in the first dimension.
pub(crate) fn row_bytes(info: &TensorInfo) -> Result<u64> {
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
