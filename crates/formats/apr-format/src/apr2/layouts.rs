//! Sparse layouts and factors, made dense on reading (`docs/format/codecs.md`, "Layouts").

use apr_core::{Error, Result, StoredForm, TensorInfo};
use apr_tensor::factors::FactorsReader;
use apr_tensor::sparse::{Matrix, SparseReader};

use super::index::LAYOUT;

/// Fills `buf` with dense bytes of a tensor whose layout's bytes `stream` reads.
pub(super) fn read(
    form: StoredForm,
    info: &TensorInfo,
    stream: &dyn Fn(u64, &mut [u8]) -> Result<()>,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    let matrix = Matrix::new(info.dtype, &info.shape)?;
    // Offsets that the matrix's reader tells are within the tensor, not the file.
    let anonymous = |error: Error| Error::new(error.code(), error.message());
    if form.is_factors() {
        let reader = FactorsReader::open(matrix, info.dtype, form.raw_len, stream);
        return reader.map_err(anonymous)?.read(offset, buf, stream).map_err(anonymous);
    }
    let reader = match form.flags & LAYOUT {
        StoredForm::CSR => SparseReader::open_csr(matrix, form.raw_len, stream),
        _ => SparseReader::open_bsr(matrix, form.raw_len, stream),
    };
    reader.map_err(anonymous)?.read(offset, buf, stream).map_err(anonymous)
}
