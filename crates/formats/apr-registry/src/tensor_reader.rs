//! A tensor as [`std::io::Read`], for libraries that take one.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};

use apr_core::{CheckpointReader, Code, Error, Escaped, IoCause, Result};

/// The decoded bytes of one tensor, little-endian, from first to last.
///
/// Each call of `read` reads the checkpoint: of a compressed or encrypted tensor it decodes whole
/// blocks. Read large pieces, or put a [`BufReader`](std::io::BufReader) around it. Digests are not
/// checked, since they cover whole tensors; [`TensorLoader`](crate::TensorLoader) checks them.
///
/// ```
/// use std::io::{Read, Seek, SeekFrom};
///
/// use apr_registry::{Limits, TensorReader};
///
/// let header = br#"{"bias":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[5, 6, 7, 8]);
/// let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
///
/// let mut bias = TensorReader::open(&*model, "bias")?;
/// bias.seek(SeekFrom::End(-2))?;
/// let mut last = Vec::new();
/// bias.read_to_end(&mut last)?;
/// assert_eq!(last, [7, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct TensorReader<'a> {
    reader: &'a dyn CheckpointReader,
    tensor: usize,
    len: u64,
    /// May be past the end, as with files.
    position: u64,
}

impl<'a> TensorReader<'a> {
    /// The tensor of this name.
    ///
    /// # Errors
    /// E001 when there is no such tensor, or its dtype and shape do not go together.
    pub fn open(reader: &'a dyn CheckpointReader, name: &str) -> Result<Self> {
        let found = reader.tensors().iter().position(|info| info.name == name);
        let tensor = found.ok_or_else(|| Error::format("no such tensor").for_tensor(name))?;
        let len = reader.tensors()[tensor].byte_len()?;
        Ok(Self { reader, tensor, len, position: 0 })
    }

    /// Bytes of the whole tensor.
    #[must_use]
    pub const fn byte_len(&self) -> u64 {
        self.len
    }
}

impl Read for TensorReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.len.saturating_sub(self.position);
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        if len == 0 {
            return Ok(0);
        }
        self.reader.read_tensor(self.tensor, self.position, &mut buf[..len]).map_err(into_io)?;
        self.position += len as u64;
        Ok(len)
    }
}

impl Seek for TensorReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let before = || {
            io::Error::new(io::ErrorKind::InvalidInput, "the position is before the tensor's start")
        };
        self.position = position.ok_or_else(before)?;
        Ok(self.position)
    }
}

/// The kind that callers match on; the error itself is inside.
fn into_io(error: Error) -> io::Error {
    let kind = match (error.code(), error.cause()) {
        (Code::Io, Some(IoCause::NotFound)) => io::ErrorKind::NotFound,
        // Not `Interrupted`: callers of `Read` try again after that one.
        (Code::Io, _) => io::ErrorKind::Other,
        (Code::Memory, _) => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

impl fmt::Debug for TensorReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.reader.tensors()[self.tensor].name;
        f.debug_struct("TensorReader")
            .field("tensor", &Escaped(name))
            .field("position", &self.position)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
