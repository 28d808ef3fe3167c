use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr_core::{Error, IoCause, Result, Sink};

use crate::io_error;

/// Standard output, a pipe or a device: bytes go out as they come, and there is no way back.
pub struct StreamSink {
    out: Box<dyn Write>,
    name: PathBuf,
    position: u64,
}

impl StreamSink {
    /// Locks standard output.
    #[must_use]
    pub fn stdout() -> Self {
        Self { out: Box::new(io::stdout().lock()), name: "standard output".into(), position: 0 }
    }

    /// Whether a path is there and no regular file or folder, so that it can only be streamed to.
    #[must_use]
    pub fn is_for(path: &Path) -> bool {
        path.metadata().is_ok_and(|target| !target.is_file() && !target.is_dir())
    }

    /// Opens a pipe or a device.
    ///
    /// # Errors
    /// E007.
    pub fn open(path: &Path) -> Result<Self> {
        let out = OpenOptions::new().write(true).open(path).map_err(|error| io_error(&error, path))?;
        Ok(Self { out: Box::new(out), name: path.into(), position: 0 })
    }

    /// Hands what is buffered to the operating system.
    ///
    /// # Errors
    /// E007.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|error| io_error(&error, &self.name))
    }
}

impl std::fmt::Debug for StreamSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamSink").field("name", &self.name).field("position", &self.position).finish_non_exhaustive()
    }
}

impl Sink for StreamSink {
    fn next_file(&mut self, name: &str) -> Result<()> {
        let message = format!("'{name}' is a second file, and a stream holds one");
        Err(Error::io(IoCause::Other, message).in_file(self.name.display()))
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| io_error(&error, &self.name))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn can_patch(&self) -> bool {
        false
    }

    fn patch(&mut self, offset: u64, _bytes: &[u8]) -> Result<()> {
        Err(Error::io(IoCause::Other, "a stream can't go back").in_file(self.name.display()).at(offset))
    }
}
