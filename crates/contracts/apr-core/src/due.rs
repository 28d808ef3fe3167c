//! Keeping count of what a writer has been given.

use alloc::format;
use alloc::string::String;

use crate::{Error, Layout, PlannedTensor, Result};

/// The planned tensor whose bytes are due, and the number of its bytes written so far.
///
/// ```
/// use apr_core::{Due, Layout, PlannedTensor};
///
/// let tensor = PlannedTensor { source: 0, file: 0, offset: 0, len: 4 };
/// let layout = Layout { tensors: vec![tensor], ..Layout::default() };
/// let names = ["bias".to_string()];
/// let mut due = Due::default();
/// due.take(&layout, &names, 4)?;
/// assert_eq!(due.complete(&layout), Some(tensor));
/// assert!(due.take(&layout, &names, 1).is_err());
/// due.finish(&layout, &names)?;
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Due {
    tensor: usize,
    written: u64,
}

impl Due {
    /// The tensor that is due; `None` after the last.
    #[must_use]
    pub fn tensor(self, layout: &Layout) -> Option<&PlannedTensor> {
        layout.tensors.get(self.tensor)
    }

    /// Returns the tensor's position in the layout.
    #[must_use]
    pub const fn position(self) -> usize {
        self.tensor
    }

    /// Counts `len` bytes of the tensor that is due.
    ///
    /// `names` are the names of the layout's tensors.
    ///
    /// # Errors
    /// E002 when there are more bytes than planned.
    pub fn take(&mut self, layout: &Layout, names: &[String], len: u64) -> Result<()> {
        match self.tensor(layout) {
            Some(tensor) if len > tensor.len - self.written => {
                let (left, planned) = (tensor.len - self.written, tensor.len);
                let message = format!(
                    "received {len} more bytes, but {left} of the planned {planned} are left"
                );
                Err(Error::corrupt(message).for_tensor(&names[self.tensor]))
            }
            None if len > 0 => {
                Err(Error::corrupt(format!("received {len} bytes after the last planned tensor")))
            }
            _ => {
                self.written += len;
                Ok(())
            }
        }
    }

    /// Advances to the next tensor if the current one is complete, and returns the complete one.
    ///
    /// An empty tensor is complete from the start.
    pub fn complete(&mut self, layout: &Layout) -> Option<PlannedTensor> {
        let complete = *self.tensor(layout).filter(|tensor| tensor.len == self.written)?;
        *self = Self { tensor: self.tensor + 1, written: 0 };
        Some(complete)
    }

    /// Checks that all tensors are complete.
    ///
    /// # Errors
    /// E002 when a tensor got fewer bytes than planned.
    pub fn finish(self, layout: &Layout, names: &[String]) -> Result<()> {
        let Some(tensor) = self.tensor(layout) else { return Ok(()) };
        let message =
            format!("it ends after {} bytes, but {} are planned", self.written, tensor.len);
        Err(Error::corrupt(message).for_tensor(&names[self.tensor]))
    }
}
