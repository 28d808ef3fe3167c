use apr_core::{ByteSource, Error, Result};

/// Source of any length that is zero after its first bytes. The zeros do not use memory.
#[derive(Debug, Clone)]
pub struct SparseSource {
    head: Vec<u8>,
    len: u64,
}

impl SparseSource {
    /// `head`, then zeros up to `len` bytes.
    #[must_use]
    pub fn new(head: Vec<u8>, len: u64) -> Self {
        Self { head, len }
    }
}

impl ByteSource for SparseSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(Error::corrupt("a read past the end").at(offset));
        }
        buf.fill(0);
        let head = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.head.get(offset..))
            .unwrap_or_default();
        let common = head.len().min(buf.len());
        buf[..common].copy_from_slice(&head[..common]);
        Ok(())
    }
}
