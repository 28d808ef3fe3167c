//! APR1 and the v2 dialects: read from real files and from files packed by hand, broken in every
//! way, and APR1 written.

mod built;
mod real;
mod sweep;
mod written;

use apr_core::{CheckpointReader, DType, Limits, Result};
use apr_format::apr1;
use apr_format::dialect;
use apr_tensor::block::dequantize;

/// Opens a file as the format that its first bytes indicate.
fn open(file: Vec<u8>) -> Result<Box<dyn CheckpointReader>> {
    match (dialect::FORMAT.recognises)(&file) {
        true => Ok(Box::new(dialect::open(file, "old.apr", &Limits::default())?)),
        false => Ok(Box::new(apr1::open(file, "old.apr", &Limits::default())?)),
    }
}

fn bytes_of(reader: &dyn CheckpointReader, name: &str) -> Vec<u8> {
    let at = reader.tensors().iter().position(|info| info.name == name);
    let at = at.unwrap_or_else(|| panic!("there is {name}"));
    let len = reader.tensors()[at].byte_len().expect("checked on opening");
    let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
    reader.read_tensor(at, 0, &mut bytes).expect("it is in the file");
    bytes
}

/// Returns the values of floats, and of the quants that these formats have.
fn values_of(reader: &dyn CheckpointReader, name: &str) -> Vec<f32> {
    let info = reader.tensors().iter().find(|info| info.name == name);
    let info = info.unwrap_or_else(|| panic!("there is {name}"));
    let bytes = bytes_of(reader, name);
    match info.dtype {
        DType::F32 => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        DType::BF16 => {
            let upper =
                |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            bytes.as_chunks().0.iter().map(upper).collect()
        }
        DType::F16 => {
            bytes.as_chunks().0.iter().map(|bytes| half(u16::from_le_bytes(*bytes))).collect()
        }
        dtype => {
            let mut values = Vec::new();
            let row = usize::try_from(info.shape.row_len()).expect("a small tensor");
            dequantize(dtype, &bytes, row, &mut values);
            values
        }
    }
}

/// Returns the value of a finite f16 (IEEE 754).
fn half(bits: u16) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2.0_f32.powi(-24),
        _ => (1024.0 + fraction) * 2.0_f32.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Verifies the CRC-32 over the extents, which must cover the file from its start without gaps.
fn covered(reader: &dyn CheckpointReader, file: &[u8]) -> Option<bool> {
    let checksum = reader.container().checksum()?;
    let end = checksum.extents.iter().fold(0, |end, extent| {
        assert_eq!(extent.offset, end, "{:?}", checksum.extents);
        end + extent.len
    });
    assert_eq!(end + 4, file.len() as u64);
    Some(crc32fast::hash(&file[..file.len() - 4]) == checksum.crc32)
}
