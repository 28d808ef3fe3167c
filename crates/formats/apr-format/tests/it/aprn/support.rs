//! The linear regression of the sample files, and opening in memory.

use apr_core::{CheckpointReader, Limits};
use apr_format::aprn::{self, AprnReader, Compression, LoadOptions, SaveOptions};
use apr_testkit::locate::shared_data;
use serde::{Deserialize, Serialize};

/// Fields as the published library declares them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinearRegression {
    pub(crate) coefficients: Option<Vec<f32>>,
    pub(crate) intercept: f32,
    pub(crate) fit_intercept: bool,
}

/// The model in all sample files: `y = x0 + 2 x1`, as it was fitted.
pub(crate) fn fitted() -> LinearRegression {
    LinearRegression {
        coefficients: Some(vec![f32::from_bits(0x3f80_0004), 2.0]),
        intercept: f32::from_bits(0xb5d1_05eb),
        fit_intercept: true,
    }
}

/// Payload of the model, as every sample file holds it.
pub(crate) const PAYLOAD: [u8; 22] =
    [1, 2, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0xeb, 5, 0xd1, 0xb5, 1];

/// Returns the options that the sample files were saved with.
pub(crate) fn as_published(compression: Compression) -> SaveOptions {
    let mut options = SaveOptions::default().with_compression(compression);
    options.metadata.created_at = "1795218935".into();
    options.metadata.aprender_version = "0.20.0".into();
    options
}

/// Returns a sample file, or `None` if the samples are absent.
pub(crate) fn sample(name: &str) -> Option<Vec<u8>> {
    let path = shared_data(&format!("apr/aprender-0.20.0-{name}.aprn.apr"))?;
    Some(std::fs::read(path).expect("a readable sample"))
}

pub(crate) fn open(file: Vec<u8>) -> AprnReader {
    open_with(file, &LoadOptions::default())
}

pub(crate) fn open_with(file: Vec<u8>, options: &LoadOptions) -> AprnReader {
    aprn::open(file, "model.apr", &Limits::default(), options).expect("a sound file")
}

pub(crate) fn with_password(password: &str) -> LoadOptions {
    LoadOptions { password: Some(password.into()), ..LoadOptions::default() }
}

/// Returns all bytes of the tensor with this name.
pub(crate) fn bytes_of(reader: &dyn CheckpointReader, name: &str) -> Vec<u8> {
    let tensor =
        reader.tensors().iter().position(|info| info.name == name).expect("the tensor is there");
    let len = reader.tensors()[tensor].byte_len().expect("checked on opening");
    let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
    reader.read_tensor(tensor, 0, &mut bytes).expect("the tensor is in the file");
    bytes
}

/// Returns the file with a checksum that matches its bytes.
pub(crate) fn resealed(mut file: Vec<u8>) -> Vec<u8> {
    let end = file.len() - 4;
    let crc = crc32fast::hash(&file[..end]);
    file[end..].copy_from_slice(&crc.to_le_bytes());
    file
}

/// Random bytes that are the same every time.
pub(crate) fn seven(bytes: &mut [u8]) -> apr_core::Result<()> {
    bytes.fill(7);
    Ok(())
}
