//! Writing and opening in memory.
#![allow(dead_code, reason = "each test binary uses its part")]

use apr_core::{
    CheckpointReader, CheckpointWriter, DType, Error, Limits, Loss, Metadata, Notes, TensorInfo,
};
use apr_format::apr2::{self, Apr2Reader, CompanionFile, WriteOptions};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::peak_memory;

/// A tensor with its bytes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) info: TensorInfo,
    pub(crate) bytes: Vec<u8>,
}

/// A model to be written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) metadata: Metadata,
    pub(crate) companions: Vec<CompanionFile>,
    pub(crate) align_32: bool,
    pub(crate) losses: Vec<Loss>,
}

impl Model {
    pub(crate) fn infos(&self) -> Vec<TensorInfo> {
        self.tensors.iter().map(|tensor| tensor.info.clone()).collect()
    }

    pub(crate) fn plan(&self) -> apr_core::Result<apr2::Apr2Writer> {
        let options = WriteOptions { align_32: self.align_32, ..WriteOptions::default() };
        apr2::plan(&self.infos(), &self.metadata, self.companions.clone(), &options)
    }

    /// The file, each tensor written in one piece.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut writer = self.plan().expect("a model that can be written");
        let mut file = Vec::new();
        writer.begin(&mut file).expect("memory takes everything");
        for tensor in &self.tensors {
            writer.write_chunk(&mut file, &tensor.bytes, None).expect("the planned bytes");
        }
        writer
            .finish(&mut file, &Notes { losses: self.losses.clone(), ..Notes::default() })
            .expect("all tensors are there");
        file
    }
}

/// Bytes that differ from tensor to tensor and place to place.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed * 31).to_le_bytes()[0]).collect()
}

/// A tensor of `dtype` and `dims` with a pattern in it.
pub(crate) fn tensor(name: &str, dtype: DType, dims: &[u64]) -> Tensor {
    let info = TensorInfo { name: name.into(), dtype, shape: dims.to_vec().into() };
    let len = info.byte_len().expect("dtype and shape go together");
    Tensor { info, bytes: pattern(usize::try_from(len).expect("a small tensor"), name.len()) }
}

pub(crate) fn open(file: Vec<u8>) -> Apr2Reader {
    apr2::open(file, "model.apr", &Limits::default()).expect("a sound file")
}

/// Opens a broken file, and returns the error. It must name the file and a place in it.
///
/// Opening must not take memory that the file does not justify. The fields of a file of a few
/// hundred bytes can cost at most some multiple of its length.
pub(crate) fn refused(file: Vec<u8>) -> Error {
    let justified = 16 * file.len() + 4096;
    let (opened, peak) =
        peak_memory(|| apr2::open(file, "model.apr", &Limits::default()).map(drop));
    let error = opened.expect_err("a broken file");
    assert!(peak < justified, "{peak} bytes: {error}");
    assert_eq!(error.file(), Some("model.apr"), "{error}");
    assert!(error.tensor().is_some() || error.offset().is_some(), "no place: {error}");
    assert!(!error.to_string().contains(char::is_control), "{error}");
    error
}

/// Returns all bytes of a tensor.
pub(crate) fn bytes_of(reader: &dyn CheckpointReader, tensor: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("checked on opening");
    let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
    reader.read_tensor(tensor, 0, &mut bytes).expect("the tensor is in the file");
    bytes
}

/// A sound file of three tensors, two of them with bytes, to be broken.
pub(crate) fn sound() -> Apr2Builder {
    Apr2Builder::new()
        .entry(Apr2Entry::new("b.weight", DType::F32, &[2, 3], &pattern(24, 1)))
        .entry(Apr2Entry::new("a.bias", DType::F16, &[5], &pattern(10, 2)))
        .entry(Apr2Entry::new("c.empty", DType::I64, &[4, 0], &[]))
}
