//! A tensor as a matrix of single-precision numbers in memory.

use apr_core::{CheckpointReader, Error, Result, TensorInfo};
use apr_view::values::{decode, read_quantized};

/// Number of elements per read.
const PIECE: u64 = 1 << 18;

/// Rows and columns of a tensor that is a matrix.
pub(crate) fn sides(info: &TensorInfo) -> Option<(usize, usize)> {
    let &[rows, columns] = info.shape.dims() else { return None };
    let sides = usize::try_from(rows).ok().zip(usize::try_from(columns).ok())?;
    (rows > 0 && columns > 0).then_some(sides)
}

/// All elements of a tensor, row by row.
///
/// # Errors
/// E002 and E007 when they can't be read, E008 when they do not fit in memory.
pub(crate) fn read(reader: &dyn CheckpointReader, tensor: usize) -> Result<Vec<f32>> {
    let info = &reader.tensors()[tensor];
    let elements = info.shape.elements().unwrap_or_default();
    let mut values = Vec::new();
    let len = usize::try_from(elements).map_err(|_| too_large(info))?;
    values.try_reserve_exact(len).map_err(|_| too_large(info))?;
    each_piece(reader, tensor, |piece| values.extend_from_slice(piece))?;
    Ok(values)
}

/// Subtracts the elements of a tensor of as many; returns their sum of squares.
///
/// # Errors
/// E002 and E007 when they can't be read.
pub(crate) fn subtract(
    values: &mut [f32],
    reader: &dyn CheckpointReader,
    tensor: usize,
) -> Result<f64> {
    let (mut rest, mut squares) = (values.iter_mut(), 0.0);
    each_piece(reader, tensor, |piece| {
        // The piece first: of the other, nothing is taken past its end.
        for (other, value) in piece.iter().zip(rest.by_ref()) {
            *value -= other;
            squares += f64::from(*other).powi(2);
        }
    })?;
    Ok(squares)
}

fn too_large(info: &TensorInfo) -> Error {
    Error::memory("it does not fit in memory").for_tensor(&info.name)
}

/// Hands over the elements of a tensor, some at a time.
fn each_piece(
    reader: &dyn CheckpointReader,
    tensor: usize,
    mut take: impl FnMut(&[f32]),
) -> Result<()> {
    let info = &reader.tensors()[tensor];
    let elements = info.shape.elements().unwrap_or_default();
    let (mut bytes, mut row, mut piece) = (Vec::new(), Vec::new(), Vec::new());
    let step = PIECE.next_multiple_of(info.dtype.block_len());
    for start in (0..elements.div_ceil(step)).map(|at| at * step) {
        let end = (start + step).min(elements);
        if info.dtype.is_quantized() {
            read_quantized(reader, tensor, start..end, (&mut bytes, &mut row), &mut piece)?;
        } else {
            let width = info.dtype.block_bytes();
            bytes.resize(usize::try_from((end - start) * width).map_err(|_| too_large(info))?, 0);
            reader.read_tensor(tensor, start * width, &mut bytes)?;
            decode(info.dtype, &bytes, 1, &mut piece);
        }
        take(&piece);
    }
    Ok(())
}
