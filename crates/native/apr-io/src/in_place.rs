//! Changing the two ends of a file in place, so that a crash in the middle can be undone.
//!
//! Before anything is changed, what will be overwritten goes into an [undo file](crate::undo)
//! beside the file, which is removed when the change is on disk.

use std::fs;
use std::io;

use apr_core::{Error, IoCause, Result};
use apr_platform::{Identity, read_exact_at, write_all_at};
use apr_registry::apr2::Revision;

use crate::atomic::sync_folder;
use crate::lock::{LockedFile, changed};
use crate::partial::parent;
use crate::undo::{self, Ends};
use crate::{io_error, undo::path_of};

impl LockedFile {
    /// Writes the changes of a revision, if the file is still the one that the revision was made
    /// from.
    ///
    /// # Errors
    /// E007; the file is then as it was, or opening it to be changed makes it so.
    pub fn replace_ends(&self, revision: &Revision) -> Result<()> {
        let ends = Ends {
            front: [&revision.old_front, &revision.front],
            tail_offset: revision.tail_offset,
            tail: [&revision.old_tail, &revision.tail],
        };
        self.check_unchanged()?;
        self.check_one_name()?;
        self.check_ends(&ends)?;
        undo::write(&self.path, &self.file, &ends)?;
        if let Err(error) = sync_folder(parent(&self.path)) {
            // Without it a crash could leave the change and not what undoes it.
            remove_undo(&self.path)?;
            return Err(error);
        }

        let failed = |error: &io::Error| io_error(error, &self.path);
        if let Err(error) = self.write_ends(&ends) {
            // Where even this fails, the undo file stays.
            undo::restore(&self.file, &ends)
                .map_err(|_| interrupted(&failed(&error), &self.path))?;
            remove_undo(&self.path)?;
            return Err(failed(&error));
        }

        remove_undo(&self.path)
    }

    /// Rejects a file that has other hard links, perhaps a backup, because they would change as
    /// well.
    fn check_one_name(&self) -> Result<()> {
        let found = Identity::of_file(&self.file).map_err(|error| io_error(&error, &self.path))?;
        let names = found.links();
        if names <= 1 {
            return Ok(());
        }
        let message = format!(
            "the file has {names} hard links, and a change in place would affect all of them; \
             `output` with its own name and `overwrite` writes a separate file"
        );
        Err(Error::io(IoCause::Other, message).in_file(self.path.display()))
    }

    fn write_ends(&self, ends: &Ends<'_>) -> io::Result<()> {
        let tail = ends.tail[1];
        // The tail first: it may need room that the disk does not have.
        write_all_at(&self.file, tail, ends.tail_offset)?;
        self.file.set_len(ends.tail_offset + tail.len() as u64)?;
        write_all_at(&self.file, ends.front[1], 0)?;
        self.file.sync_all()
    }

    /// Compares the bytes to be overwritten with the bytes that the revision was made from.
    fn check_ends(&self, ends: &Ends<'_>) -> Result<()> {
        let is_there = |expected: &[u8], offset: u64| {
            let mut found = vec![0; expected.len()];
            read_exact_at(&self.file, &mut found, offset).map(|()| found == expected)
        };
        let len = self.file.metadata().map(|metadata| metadata.len());
        let same = len.and_then(|len| {
            let whole = len == ends.tail_offset + ends.tail[0].len() as u64;
            Ok(whole && is_there(ends.front[0], 0)? && is_there(ends.tail[0], ends.tail_offset)?)
        });
        let same = same.map_err(|error| io_error(&error, &self.path))?;
        if same { Ok(()) } else { Err(changed(&self.path)) }
    }
}

fn remove_undo(path: &std::path::Path) -> Result<()> {
    let undo_path = path_of(path);
    fs::remove_file(&undo_path).map_err(|error| io_error(&error, &undo_path))
}

fn interrupted(error: &Error, path: &std::path::Path) -> Error {
    let message =
        format!("{}; the change was not undone; undo it: {}", error.message(), undo::command(path));
    let told = Error::io(IoCause::Other, message);
    error.file().into_iter().fold(told, Error::in_file)
}

#[cfg(test)]
mod tests;
