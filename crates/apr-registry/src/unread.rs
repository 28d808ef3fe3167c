//! Formats that are told apart, so that an error names them, and not read.

#[cfg(not(all(feature = "keras", feature = "tflite")))]
use apr_core::Format;

/// HDF5, in builds without its reader.
#[cfg(not(feature = "keras"))]
pub(crate) static HDF5: Format = Format {
    id: "hdf5",
    name: "HDF5 (Keras)",
    recognises: |head| head.starts_with(b"\x89HDF"),
    ..Format::READ_ONLY
};

/// TensorFlow Lite, in builds without its reader.
#[cfg(not(feature = "tflite"))]
pub(crate) static TFLITE: Format = Format {
    id: "tflite",
    name: "TensorFlow Lite",
    recognises: |head| head.get(4..8) == Some(b"TFL3"),
    ..Format::READ_ONLY
};
