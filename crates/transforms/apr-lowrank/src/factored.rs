//! A checkpoint whose tensors are products of factors.

use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, Metadata, Result, StoredForm, TensorInfo, keys};
use apr_quantize::record_dequantized;
use apr_tensor::factors::FactorsReader;
use apr_tensor::sparse::Matrix;
use apr_view::values::decode;
use apr_view::{Computation, Derived, Target};
use serde_json::{Map, json};

use crate::report::{FactorReport, Loss};
use crate::store::FactorStore;

/// Number of bytes of the product per comparison step.
const PIECE: usize = 1 << 20;

/// Location of a tensor's factors in the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A tensor that is stored as factors.
pub(crate) struct Factors {
    store: Arc<dyn FactorStore>,
    reader: FactorsReader,
    place: Place,
}

/// Returns the difference between a matrix and the product of its stored factors.
pub(crate) fn loss(stored: &[u8], info: &TensorInfo, values: &[f32]) -> Result<Loss> {
    let read_at = |offset: u64, buf: &mut [u8]| {
        let bytes = usize::try_from(offset).ok().and_then(|at| stored.get(at..)?.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or_else(|| Error::corrupt("the factors end too early"))?);
        Ok(())
    };
    let matrix = Matrix::new(info.dtype, &info.shape)?;
    let reader = FactorsReader::open(matrix, info.dtype, stored.len() as u64, read_at)?;
    let width = usize::try_from(info.dtype.block_bytes()).unwrap_or(1);
    let (mut bytes, mut product) = (Vec::new(), Vec::new());
    let mut loss = Loss::default();
    for (at, values) in values.chunks(PIECE / width).enumerate() {
        bytes.resize(values.len() * width, 0);
        reader.read((at * (PIECE / width) * width) as u64, &mut bytes, read_at)?;
        decode(info.dtype, &bytes, 1, &mut product);
        for (value, now) in values.iter().zip(&product) {
            loss.energy += f64::from(*value).powi(2);
            loss.lost += (f64::from(*value) - f64::from(*now)).powi(2);
        }
    }
    Ok(loss)
}

/// Returns the base with these tensors as factors of these dtypes, and quantized ones as floats of
/// `dequantize`.
pub(crate) fn factored<'b>(
    base: Box<dyn CheckpointReader + 'b>,
    store: Box<dyn FactorStore>,
    factorized: &[(usize, DType, Place)],
    dequantize: Option<DType>,
) -> Result<Derived<'b, Factors>> {
    let (mut factored, store) = (Derived::new(base), Arc::from(store));
    let tensors = factored.tensors();
    let had_blocks = factorized.iter().any(|found| tensors[found.0].dtype.is_quantized());
    if let Some(dtype) = dequantize.filter(|_| had_blocks) {
        record_dequantized(factored.metadata_mut(), dtype)?;
    }
    for &(tensor, dtype, place) in factorized {
        let info = factored.info_mut(tensor);
        info.dtype = dtype;
        let factors = Factors::open(Arc::clone(&store), info, place)?;
        factored.compute(tensor, factors);
    }
    Ok(factored)
}

/// Adds a record of the factorization to the metadata.
pub(crate) fn record(metadata: &mut Metadata, report: &FactorReport) {
    let mut entry = Map::new();
    entry.insert("method".to_owned(), report.method.as_str().into());
    if let Some(rank) = report.rank {
        entry.insert("rank".to_owned(), rank.into());
    }
    if let Some(energy) = report.energy {
        entry.insert("energy".to_owned(), json!(energy));
    }
    entry.insert("tensors".to_owned(), report.tensors.len().into());
    entry.insert("relative_error".to_owned(), json!(report.total.relative_error));
    metadata.set(keys::FACTORIZED, entry);
}

impl Factors {
    fn open(store: Arc<dyn FactorStore>, info: &TensorInfo, place: Place) -> Result<Self> {
        let matrix = Matrix::new(info.dtype, &info.shape)?;
        let read_at = |offset: u64, buf: &mut [u8]| store.read_at(place.offset + offset, buf);
        let reader = FactorsReader::open(matrix, info.dtype, place.len, read_at)?;
        Ok(Self { store, reader, place })
    }

    /// Fills `buf` with bytes of the factors.
    fn read_factors(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.place.len) {
            return Err(Error::corrupt("the read ends past the tensor").at(offset));
        }
        self.store.read_at(self.place.offset + offset, buf)
    }
}

impl Computation for Factors {
    fn read(&self, _target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.reader.read(offset, buf, |offset, buf| self.read_factors(offset, buf))
    }

    fn form(&self) -> Option<StoredForm> {
        let len = self.place.len;
        Some(StoredForm { flags: StoredForm::FACTORS, raw_len: len, len })
    }

    fn read_form(&self, _target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_factors(offset, buf)
    }
}
