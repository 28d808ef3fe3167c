use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apr_core::{ByteSource, Error, IoCause, Result};
use apr_platform::{Identity, read_exact_at};

use crate::regular::open_regular;
use crate::{io_error, undo};

/// A regular file, read at positions: no cursor to share, no mapping that faults when the file
/// shrinks.
#[derive(Debug, Clone)]
pub struct FileSource {
    pub(crate) file: Arc<File>,
    len: u64,
    pub(crate) path: PathBuf,
}

impl FileSource {
    /// Opens a regular file. Folders, pipes and devices are refused, since their length is unknown,
    /// and so is a file in which a change in place was interrupted.
    ///
    /// # Errors
    /// E007, also while the file is being changed; E002 when a change was interrupted.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = open_regular(path, OpenOptions::new().read(true))?;
        undo::check_readable(&file, path)?;
        Self::from_file(file, path)
    }

    /// Takes a file that is already open; `path` names it in errors.
    ///
    /// # Errors
    /// E007.
    pub fn from_file(file: File, path: &Path) -> Result<Self> {
        Self::share(&Arc::new(file), path)
    }

    /// Creates a source that reads through a shared descriptor.
    pub(crate) fn share(file: &Arc<File>, path: &Path) -> Result<Self> {
        let len = Identity::of_file(file).map_err(|error| io_error(&error, path))?.len();
        Ok(Self { file: Arc::clone(file), len, path: path.to_path_buf() })
    }
}

impl ByteSource for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            let message =
                format!("{} bytes wanted past the end of the file at byte {}", buf.len(), self.len);
            return Err(Error::corrupt(message).at(offset).in_file(self.path.display()));
        }

        read_exact_at(&self.file, buf, offset).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::io(IoCause::Other, "the file shrank while it was read")
                    .at(offset)
                    .in_file(self.path.display())
            }
            _ => io_error(&error, &self.path).at(offset),
        })
    }
}
