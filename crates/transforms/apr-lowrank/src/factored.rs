//! A checkpoint whose tensors are products of factors.

use apr_core::{
    CheckpointReader, Container, DType, Encoded, Error, Metadata, ReadEncoded, Result, Stored,
    StoredForm, StoredRange, TensorInfo, keys, pass_on,
};
use apr_quantize::record_dequantized;
use apr_tensor::factors::FactorsReader;
use apr_tensor::sparse::Matrix;
use apr_view::View;
use apr_view::values::decode;
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
#[derive(Debug, Clone, Copy)]
struct Factors {
    reader: FactorsReader,
    place: Place,
}

/// A checkpoint with factorized tensors.
pub(crate) struct Factored<'b> {
    base: Box<dyn CheckpointReader + 'b>,
    store: Box<dyn FactorStore>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    factors: Vec<Option<Factors>>,
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

impl<'b> Factored<'b> {
    /// The base with these tensors as factors of these dtypes, and quantized ones as floats of
    /// `dequantize`.
    pub(crate) fn new(
        base: Box<dyn CheckpointReader + 'b>,
        store: Box<dyn FactorStore>,
        factorized: &[(usize, DType, Place)],
        dequantize: Option<DType>,
    ) -> Result<Self> {
        let (mut tensors, mut metadata) = (base.tensors().to_vec(), base.metadata().clone());
        let had_blocks = factorized.iter().any(|found| tensors[found.0].dtype.is_quantized());
        if let Some(dtype) = dequantize.filter(|_| had_blocks) {
            let mut view = View::new(&*base);
            record_dequantized(&mut view, dtype)?;
            metadata = view.metadata().clone();
        }
        let mut factors = vec![None; tensors.len()];
        for &(position, dtype, place) in factorized {
            let info = &mut tensors[position];
            info.dtype = dtype;
            let matrix = Matrix::new(dtype, &info.shape)?;
            let read_at = |offset: u64, buf: &mut [u8]| store.read_at(place.offset + offset, buf);
            let reader = FactorsReader::open(matrix, dtype, place.len, read_at)?;
            factors[position] = Some(Factors { reader, place });
        }
        Ok(Self { base, store, metadata, tensors, factors })
    }

    /// Adds a record of the factorization to the metadata.
    pub(crate) fn recorded(mut self, report: &FactorReport) -> Self {
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
        self.metadata.set(keys::FACTORIZED, entry);
        self
    }

    fn factors(&self, tensor: usize) -> Result<&Factors> {
        self.factors[tensor]
            .as_ref()
            .ok_or_else(|| Error::format("the tensor has no other form than its own"))
    }
}

impl Factors {
    fn form(&self) -> StoredForm {
        let len = self.place.len;
        StoredForm { flags: StoredForm::FACTORS, raw_len: len, len }
    }

    /// Fills `buf` with bytes of the factors.
    fn read(&self, store: &dyn FactorStore, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.place.len) {
            return Err(Error::corrupt("the read ends past the tensor").at(offset));
        }
        store.read_at(self.place.offset + offset, buf)
    }
}

impl ReadEncoded for Factored<'_> {
    fn read_form(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let name = &self.tensors[tensor].name;
        let read = self.factors(tensor)?.read(&*self.store, offset, buf);
        read.map_err(|error| error.for_tensor(name))
    }

    fn read_verbatim(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_form(tensor, offset, buf)
    }

    fn piece_len(&self, _tensor: usize) -> Option<u64> {
        None
    }

    fn read_both(
        &self,
        tensor: usize,
        _offset: u64,
        _buf: &mut [u8],
        _verbatim: &mut Vec<u8>,
    ) -> Result<u64> {
        let name = &self.tensors[tensor].name;
        Err(Error::format("it has no pieces of its own").for_tensor(name))
    }
}

impl CheckpointReader for Factored<'_> {
    pass_on!(base: format, files, companions, read_companion, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match &self.factors[tensor] {
            None => self.base.stored(tensor),
            Some(factors) => {
                let derived = Stored::derived_from(&*self.base, &[tensor]);
                let range = StoredRange { len: factors.place.len, ..derived.range };
                let encoded = Encoded::new(self, tensor, Some(factors.form()));
                Stored::encoded_as(range, encoded).with_parts(derived.parts().to_vec())
            }
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(factors) = &self.factors[tensor] else {
            return self.base.read_tensor(tensor, offset, buf);
        };
        let read_at = |offset: u64, buf: &mut [u8]| factors.read(&*self.store, offset, buf);
        let read = factors.reader.read(offset, buf, read_at);
        read.map_err(|error| error.for_tensor(&self.tensors[tensor].name))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        self.factors[tensor].is_none().then(|| self.base.tensor_slice(tensor))?
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }
}
