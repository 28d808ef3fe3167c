use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use apr_core::{ByteSource, Error, IoCause, Result};

use crate::io_error;

/// A regular file, read at positions: no cursor to share, no mapping that faults when the file shrinks.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    len: u64,
    path: PathBuf,
}

impl FileSource {
    /// Opens a regular file. Folders, pipes and devices are refused, since their length is unknown.
    ///
    /// # Errors
    /// E007.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // The check precedes the opening: opening a pipe waits for its writer.
        let metadata = path.metadata().map_err(|error| io_error(&error, path))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "a folder" } else { "a pipe or a device" };
            let message = format!("this is {what}, where a regular file is needed");
            return Err(Error::io(IoCause::Other, message).in_file(path.display()));
        }
        let file = File::open(path).map_err(|error| io_error(&error, path))?;
        Self::from_file(file, path)
    }

    /// Takes a file that is already open; `path` names it in errors.
    ///
    /// # Errors
    /// E007.
    pub fn from_file(file: File, path: &Path) -> Result<Self> {
        let len = file.metadata().map_err(|error| io_error(&error, path))?.len();
        Ok(Self { file, len, path: path.to_path_buf() })
    }
}

impl ByteSource for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            let message = format!("{} bytes wanted past the end of the file at byte {}", buf.len(), self.len);
            return Err(Error::corrupt(message).at(offset).in_file(self.path.display()));
        }
        self.file.read_exact_at(buf, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::io(IoCause::Other, "the file shrank while it was read").at(offset).in_file(self.path.display())
            }
            _ => io_error(&error, &self.path).at(offset),
        })
    }
}
