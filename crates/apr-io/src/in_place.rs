//! Changing the two ends of a file in place, so that a crash in the middle can be undone.
//!
//! Before anything is changed, what will be overwritten goes into a hidden file beside the target and is synced. It is
//! removed when the change is on disk; while it is there, [`roll_back`] gives back the file as it was.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use apr_core::{Error, IoCause, Result, digest};

use crate::atomic::{parent, sync_folder};
use crate::io_error;

const MAGIC: [u8; 8] = *b"APRUNDO1";

/// Where the undo file of `path` is.
fn undo_path(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".undo");
    path.with_file_name(name)
}

/// Whether a change of the file was interrupted, or is being made.
#[must_use]
pub fn is_interrupted(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| undo_path(&path).exists())
}

/// Removes what an interrupted change has left of a file that another one takes the place of.
pub(crate) fn forget(path: &Path) {
    let _ = fs::remove_file(undo_path(path));
}

fn lock(file: &File, path: &Path) -> Result<()> {
    let busy = |_| Error::io(IoCause::Other, "another process is changing the file").in_file(path.display());
    file.try_lock().map_err(busy)
}

/// Overwrites the start of a file with `front` and everything from `tail_offset` on with `tail`.
///
/// # Errors
/// E007; the file is then as it was, or [`roll_back`] makes it so.
pub fn replace_ends(path: &Path, front: &[u8], tail_offset: u64, tail: &[u8]) -> Result<()> {
    let failed = |error: std::io::Error| io_error(&error, path);
    let path = &path.canonicalize().map_err(failed)?;
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    lock(&file, path)?;
    let metadata = file.metadata().map_err(failed)?;
    let old_tail_len = metadata.len().saturating_sub(tail_offset);
    let mut undo = MAGIC.to_vec();
    undo.extend_from_slice(&metadata.ino().to_le_bytes());
    for (offset, len) in [(0, front.len() as u64), (tail_offset, old_tail_len)] {
        undo.extend_from_slice(&offset.to_le_bytes());
        undo.extend_from_slice(&len.to_le_bytes());
        let start = undo.len();
        let len = usize::try_from(len).map_err(|_| Error::memory("the end of the file does not fit in memory"))?;
        undo.resize(start + len, 0);
        file.read_exact_at(&mut undo[start..], offset).map_err(failed)?;
    }
    let mut crc = digest::Crc32::new();
    crc.update(&undo);
    undo.extend_from_slice(&crc.value().to_le_bytes());

    let undo_path = undo_path(path);
    let written = File::create(&undo_path).and_then(|mut file| file.write_all(&undo).and_then(|()| file.sync_all()));
    if let Err(error) = written {
        let _ = fs::remove_file(&undo_path);
        return Err(io_error(&error, &undo_path));
    }
    sync_folder(parent(path))?;
    let change = || {
        // The tail first: it may need room that the disk does not have.
        file.write_all_at(tail, tail_offset)?;
        file.set_len(tail_offset + tail.len() as u64)?;
        file.write_all_at(front, 0)?;
        file.sync_all()
    };
    if let Err(error) = change() {
        undo_change(path, &file, &undo_path)?;
        return Err(failed(error));
    }
    fs::remove_file(&undo_path).map_err(|error| io_error(&error, &undo_path))
}

/// Undoes a change that was interrupted; `false` when there was none.
///
/// # Errors
/// E002 when the undo file is not one, E007.
pub fn roll_back(path: &Path) -> Result<bool> {
    let failed = |error: std::io::Error| io_error(&error, path);
    let path = &path.canonicalize().map_err(failed)?;
    let undo_path = undo_path(path);
    if !undo_path.exists() {
        return Ok(false);
    }
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    lock(&file, path)?;
    undo_change(path, &file, &undo_path)
}

/// Undoes a change of a file that is locked; `false` when there was none, or it was one of another file of this name.
fn undo_change(path: &Path, file: &File, undo_path: &Path) -> Result<bool> {
    let failed = |error: std::io::Error| io_error(&error, path);
    let undo = match fs::read(undo_path) {
        Ok(undo) => undo,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io_error(&error, undo_path)),
    };
    let inode = file.metadata().map_err(failed)?.ino();
    // One that is not complete was written before anything was changed.
    let ends = decode(&undo).filter(|(of, _)| *of == inode).map(|(_, ends)| ends);
    if let Some([front, (tail_offset, tail)]) = ends {
        file.write_all_at(tail, tail_offset).map_err(failed)?;
        file.set_len(tail_offset + tail.len() as u64).map_err(failed)?;
        file.write_all_at(front.1, front.0).map_err(failed)?;
        file.sync_all().map_err(failed)?;
    }
    fs::remove_file(undo_path).map_err(|error| io_error(&error, undo_path))?;
    Ok(ends.is_some())
}

/// The inode of the changed file, and its front and tail with their offsets; `None` for an undo file that is not complete.
#[allow(clippy::type_complexity, reason = "two parts, each an offset and bytes")]
fn decode(undo: &[u8]) -> Option<(u64, [(u64, &[u8]); 2])> {
    let (body, stated) = undo.split_last_chunk::<4>()?;
    let mut crc = digest::Crc32::new();
    crc.update(body);
    if crc.value() != u32::from_le_bytes(*stated) {
        return None;
    }
    let (inode, mut rest) = body.strip_prefix(&MAGIC)?.split_first_chunk::<8>()?;
    let mut part = || {
        let (offset, after) = rest.split_first_chunk::<8>()?;
        let (len, after) = after.split_first_chunk::<8>()?;
        let (bytes, after) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        rest = after;
        Some((u64::from_le_bytes(*offset), bytes))
    };
    Some((u64::from_le_bytes(*inode), [part()?, part()?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.apr");
        std::fs::write(&path, b"front-middle-tail").expect("a file");
        (folder, path)
    }

    #[test]
    fn both_ends_are_replaced_and_nothing_is_left_beside_the_file() {
        let (folder, path) = file();
        replace_ends(&path, b"FRONT", 13, b"longer tail").expect("room");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"FRONT-middle-longer tail");
        replace_ends(&path, b"front", 13, b"t").expect("room");
        assert_eq!(std::fs::read(&path).expect("it is there"), b"front-middle-t");
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 1);
        assert!(!roll_back(&path).expect("nothing to do"));
    }

    #[test]
    fn an_interrupted_change_is_undone_and_a_half_written_undo_file_changes_nothing() {
        let (_folder, path) = file();
        let before = std::fs::read(&path).expect("it is there");
        replace_ends(&path, b"front", 13, b"tail").expect("room");
        for cut in [0, 1] {
            let mut undo = MAGIC.to_vec();
            undo.extend_from_slice(&path.metadata().expect("it is there").ino().to_le_bytes());
            for (offset, bytes) in [(0_u64, &before[..5]), (13, &before[13..])] {
                undo.extend_from_slice(&offset.to_le_bytes());
                undo.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                undo.extend_from_slice(bytes);
            }
            let mut crc = digest::Crc32::new();
            crc.update(&undo);
            undo.extend_from_slice(&crc.value().to_le_bytes());
            undo.truncate(undo.len() - cut);
            std::fs::write(undo_path(&path), &undo).expect("room");
            let torn = b"FRO\0\0-middle-ta";
            std::fs::write(&path, torn).expect("room");
            assert!(is_interrupted(&path));
            assert_eq!(roll_back(&path).expect("it can be written"), cut == 0);
            let expected = if cut == 0 { &before[..] } else { torn };
            assert_eq!(std::fs::read(&path).expect("it is there"), expected);
            assert!(!is_interrupted(&path));
        }
    }

    #[test]
    fn what_is_left_of_another_file_of_the_name_is_never_written_into_this_one() {
        let (_folder, path) = file();
        let mut undo = MAGIC.to_vec();
        undo.extend_from_slice(&(path.metadata().expect("it is there").ino() + 1).to_le_bytes());
        undo.extend_from_slice(&[0; 32]);
        let mut crc = digest::Crc32::new();
        crc.update(&undo);
        undo.extend_from_slice(&crc.value().to_le_bytes());
        std::fs::write(undo_path(&path), &undo).expect("room");
        assert!(!roll_back(&path).expect("nothing to do"));
        assert_eq!(std::fs::read(&path).expect("it is there"), b"front-middle-tail");
        assert!(!is_interrupted(&path));
    }
}
