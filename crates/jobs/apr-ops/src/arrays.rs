//! Tensors as NumPy's arrays, a file each.

use apr_core::{DTypeKind, Phase, Progress};
use apr_registry::{CheckpointReader, DType, Pipeline, Result, Shape, Sink, TensorInfo, numpy};
use apr_tensor::element::is_decodable;
use apr_view::chunks::{Chunk, chunks, take};
use apr_view::values::{decode, read_quantized};
use serde::Serialize;

/// An array that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ArrayRow {
    /// Name of the tensor.
    pub name: String,
    /// Name of the file.
    pub file: String,
    /// Dtype of the tensor.
    pub dtype: DType,
    /// Dtype of the array: the dtype of the tensor, or `f32` if NumPy has no such dtype.
    pub array_dtype: DType,
    /// Dimensions of the tensor.
    pub shape: Shape,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Writes tensors as `.npy` files with these names and returns one row per file.
///
/// Floats that NumPy does not have and quantized weights are decoded to `f32`.
///
/// # Errors
/// E001 for a dtype whose elements are not numbers ([`has_array`]), E002 and E007 when bytes can't
/// be read or written.
pub fn write_arrays<P: Pipeline>(
    reader: &dyn CheckpointReader,
    chosen: &[(usize, String)],
    sink: &mut dyn Sink,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<ArrayRow>> {
    let tensors = reader.tensors();
    let mut tasks: Vec<(usize, Chunk)> = Vec::new();
    for (place, (tensor, _)) in chosen.iter().enumerate() {
        tasks.extend(cut(&tensors[*tensor])?.map(|chunk| (place, chunk)));
    }
    progress.begin(Phase::Converting, tasks.iter().map(|(_, chunk)| chunk.len as u64).sum());
    let mut rows: Vec<ArrayRow> = Vec::with_capacity(chosen.len());
    let produce = |at: usize, slot: &mut Piece| {
        let (place, chunk) = tasks[at];
        slot.read(reader, chosen[place].0, chunk)
    };
    pipeline.run(tasks.len(), produce, |at, slot| {
        let (place, chunk) = tasks[at];
        if chunk.offset == 0 {
            let (tensor, file) = &chosen[place];
            sink.next_file(file)?;
            let row = begun(&tensors[*tensor], file, sink)?;
            rows.push(row);
        }
        sink.write_all(&slot.elements)?;
        if let Some(row) = rows.last_mut() {
            row.bytes += slot.elements.len() as u64;
        }
        progress.advance(chunk.len as u64);
        Ok(())
    })?;
    Ok(rows)
}

/// Returns `true` if a dtype has numbers that an array can hold.
#[must_use]
pub fn has_array(dtype: DType) -> bool {
    array_dtype(dtype).is_some()
}

/// The dtype of the array of a tensor.
fn array_dtype(dtype: DType) -> Option<DType> {
    match numpy::descr(dtype) {
        Some(_) => Some(dtype),
        None => {
            matches!(dtype.kind(), DTypeKind::Quantized | DTypeKind::Float | DTypeKind::MiniFloat)
                .then_some(DType::F32)
        }
    }
}

/// The pieces of a tensor: of a quantized one, whole blocks, counted in elements.
fn cut(info: &TensorInfo) -> Result<std::vec::IntoIter<Chunk>> {
    if !info.dtype.is_quantized() {
        return Ok(chunks(info, info.byte_len()?).collect::<Vec<_>>().into_iter());
    }
    /// Elements of a piece, a multiple of every block.
    const PIECE: usize = 1 << 18;
    let elements = info.shape.elements().unwrap_or_default();
    Ok(apr_view::chunks::pieces(elements, PIECE).collect::<Vec<_>>().into_iter())
}

fn begun(info: &TensorInfo, file: &str, sink: &mut dyn Sink) -> Result<ArrayRow> {
    let array_dtype = array_dtype(info.dtype).unwrap_or(DType::F32);
    let descr = numpy::descr(array_dtype).unwrap_or("<f4");
    let header = numpy::header(descr, info.shape.dims())?;
    sink.write_all(&header)?;
    Ok(ArrayRow {
        name: info.name.clone(),
        file: file.to_owned(),
        dtype: info.dtype,
        array_dtype,
        shape: info.shape.clone(),
        bytes: header.len() as u64,
    })
}

/// Elements of a piece on their way.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    row: Vec<f32>,
    values: Vec<f32>,
    elements: Vec<u8>,
}

impl Piece {
    fn read(&mut self, reader: &dyn CheckpointReader, tensor: usize, chunk: Chunk) -> Result<()> {
        let info = &reader.tensors()[tensor];
        self.elements.clear();
        if info.dtype.is_quantized() {
            let range = chunk.offset..chunk.offset + chunk.len as u64;
            let buffers = (&mut self.bytes, &mut self.row);
            read_quantized(reader, tensor, range, buffers, &mut self.values)?;
        } else {
            let bytes = take(&mut self.bytes, chunk.len);
            reader.read_tensor(tensor, chunk.offset, bytes)?;
            if numpy::descr(info.dtype).is_some() {
                self.elements.extend_from_slice(bytes);
                return Ok(());
            }
            debug_assert!(is_decodable(info.dtype), "quantized dtypes were told apart");
            let row = usize::try_from(info.shape.elements().unwrap_or_default());
            decode(info.dtype, bytes, row.unwrap_or(usize::MAX), &mut self.values);
        }
        self.elements.extend(self.values.iter().flat_map(|value| value.to_le_bytes()));
        Ok(())
    }
}
