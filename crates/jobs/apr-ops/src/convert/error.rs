//! Why a conversion ends early.

use apr_registry::{CheckpointReader, DType, Error};

use crate::inline::ValidationError;

/// Reason for the early end of a conversion.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConvertError {
    /// The source can't be read or the target not be written.
    Model(Error),
    /// A tensor is not what a healthy model has, and errors end the job.
    Invalid(ValidationError),
    /// A tensor has values that the dtype it should get can't hold: no quantized one holds NaN or
    /// infinity.
    Unfit {
        /// The error found in the tensor.
        error: ValidationError,
        /// Dtype that can't hold the values.
        dtype: DType,
    },
}

impl From<Error> for ConvertError {
    fn from(error: Error) -> Self {
        Self::Model(error)
    }
}

impl From<ValidationError> for ConvertError {
    fn from(error: ValidationError) -> Self {
        Self::Invalid(error)
    }
}

impl std::fmt::Display for ConvertError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Model(error) => error.fmt(f),
            Self::Invalid(error) => error.fmt(f),
            Self::Unfit { error, dtype } => write!(f, "{error}, which {dtype} can't hold"),
        }
    }
}

impl std::error::Error for ConvertError {}

pub(super) fn digest_mismatch(reader: &dyn CheckpointReader, tensor: usize) -> Error {
    let file = reader.files().first().map_or("", |file| file.name.as_str());
    Error::checksum("its bytes do not match its digest")
        .for_tensor(&reader.tensors()[tensor].name)
        .at(reader.stored(tensor).range.offset)
        .in_file(file)
}
