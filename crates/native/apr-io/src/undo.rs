//! The undo file: what a change in place overwrites, kept beside the file while the change lasts.
//!
//! ```text
//!  0  8  "APRUNDO2"
//!  8  8  length of the file before the change, little-endian like all that follows
//! 16  8  its length after the change
//! 24  8  length of the front; the same before and after
//! 32  8  where the tail starts, up to the end of the file
//! 40     front before, front after, tail before, tail after
//! -4  4  CRC-32 of everything before it
//! ```
//!
//! The file may have been replaced since: a backup may have been put back, into the same inode. So
//! nothing is restored unless the file proves that it was in this change: each block of 512 bytes,
//! which is what disks write at once, must be the one before or the one after the change. The tail
//! of an `.apr` file ends with a checksum of the whole, so that no other state of a model passes.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr_core::{Error, IoCause, Result, digest};
use apr_platform::{canonicalize, new_like, read_exact_at, write_all_at};

use crate::error::busy;
use crate::io_error;
use crate::regular::open_own;

const MAGIC: [u8; 8] = *b"APRUNDO2";
const HEADER_LEN: u64 = 40;
const CRC_LEN: u64 = 4;

/// Number of bytes that a disk writes completely or not at all. Pages, which a killed process
/// writes that way, are multiples of it.
const BLOCK: u64 = 512;

/// Number of bytes per read; a multiple of [`BLOCK`].
const READ_LEN: u64 = 1 << 16;

/// Maximum length of an undo file in bytes: enough for the largest metadata and index that are read
/// by default, before and after.
const MAX_LEN: u64 = 2 << 30;

/// The two ends of a file before and after a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends<'a> {
    /// Both of the same length.
    pub(crate) front: [&'a [u8]; 2],
    pub(crate) tail_offset: u64,
    pub(crate) tail: [&'a [u8]; 2],
}

/// Returns the path of the undo file of `path`, which must not contain links.
pub(crate) fn path_of(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".undo");
    path.with_file_name(name)
}

/// Writes the undo file and syncs it. It is new, and as readable as the file itself.
///
/// # Errors
/// E007; then there is no undo file. E008 when it would be too large.
pub(crate) fn write(path: &Path, file: &File, ends: &Ends<'_>) -> Result<()> {
    let undo_path = path_of(path);
    let lens = [0, 1].map(|at| ends.tail_offset + ends.tail[at].len() as u64);
    let header = [lens[0], lens[1], ends.front[0].len() as u64, ends.tail_offset];
    let header = [&MAGIC[..], &header.map(u64::to_le_bytes).concat()].concat();
    let parts = [&header[..], ends.front[0], ends.front[1], ends.tail[0], ends.tail[1]];
    if parts.iter().map(|part| part.len() as u64).sum::<u64>() + CRC_LEN > MAX_LEN {
        let message =
            format!("both ends of the file, before and after the change, exceed {MAX_LEN} bytes");
        return Err(Error::memory(message).in_file(path.display()));
    }

    let metadata = file.metadata().map_err(|error| io_error(&error, path))?;
    let mut options = OpenOptions::new();
    let options = new_like(options.write(true).create_new(true), &metadata);
    let mut undo = options.open(&undo_path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => in_the_way(&undo_path),
        _ => io_error(&error, &undo_path),
    })?;
    let mut crc = digest::Crc32::new();
    let mut write = || {
        for part in parts {
            crc.update(part);
            undo.write_all(part)?;
        }
        undo.write_all(&crc.value().to_le_bytes())?;
        undo.sync_all()
    };

    write().map_err(|error| {
        let _ = fs::remove_file(&undo_path);
        io_error(&error, &undo_path)
    })
}

/// Puts back both ends as they were.
pub(crate) fn restore(file: &File, ends: &Ends<'_>) -> io::Result<()> {
    write_all_at(file, ends.tail[0], ends.tail_offset)?;
    file.set_len(ends.tail_offset + ends.tail[0].len() as u64)?;
    write_all_at(file, ends.front[0], 0)?;
    file.sync_all()
}

/// Removes the leftovers of an interrupted change of a file that another one has replaced.
///
/// # Errors
/// E007 with the name of the remaining file.
pub(crate) fn forget(path: &Path) -> Result<()> {
    let undo_path = path_of(path);
    let is_ours = |undo: &File| {
        let mut magic = [0; MAGIC.len()];
        read_exact_at(undo, &mut magic, 0).is_ok_and(|()| magic == MAGIC)
    };
    if open_own(&undo_path).is_ok_and(|undo| undo.as_ref().is_some_and(is_ours)) {
        fs::remove_file(&undo_path).map_err(|error| {
            let message = format!(
                "{error}: the output was written, but the undo file of an interrupted change \
                 could not be removed; remove it"
            );
            Error::io(IoCause::Other, message).in_file(undo_path.display())
        })?;
    }
    Ok(())
}

/// Refuses to read a file in which a change is being made, or was interrupted.
///
/// # Errors
/// E007 for the one, E002 for the other.
pub(crate) fn check_readable(file: &File, path: &Path) -> Result<()> {
    let Ok(real) = canonicalize(path) else { return Ok(()) };

    // What can't be opened is no reason not to read the file.
    let Ok(Some(undo)) = open_own(&path_of(&real)) else { return Ok(()) };
    if matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return Err(busy(path));
    }

    let state =
        Undo::read(&undo).and_then(|undo| undo.as_ref().map(|undo| undo.state(file)).transpose());
    let _ = file.unlock();
    match state {
        Ok(Some(State::Torn)) => {
            let message =
                format!("a change of this file was interrupted; undo it: {}", command(path));
            Err(Error::corrupt(message).in_file(path.display()))
        }
        _ => Ok(()),
    }
}

/// Undoes an interrupted change of a locked file. Returns `false` if there was none, or if it had
/// changed either nothing yet or everything.
///
/// # Errors
/// E007, also when the undo file is of another state of the file.
pub(crate) fn roll_back(file: &File, path: &Path) -> Result<bool> {
    let undo_path = path_of(path);
    let failed = |error: io::Error| io_error(&error, &undo_path);
    if undo_path.symlink_metadata().is_err() {
        return Ok(false);
    }

    let Some(undo) = open_own(&undo_path).map_err(failed)? else {
        return Err(in_the_way(&undo_path));
    };
    if !is_begun(&undo).map_err(failed)? {
        return Err(in_the_way(&undo_path));
    }

    // One that is not complete was written before anything was changed.
    let undo = Undo::read(&undo).map_err(failed)?;
    let state = undo.as_ref().map_or(Ok(State::Whole), |undo| undo.state(file));
    let state = state.map_err(|error| io_error(&error, path))?;
    match (&undo, state) {
        (_, State::Other) => return Err(stale(path, &undo_path)),
        (Some(undo), State::Torn) => undo.restore(file).map_err(|error| io_error(&error, path))?,
        _ => file.sync_all().map_err(|error| io_error(&error, path))?,
    }

    fs::remove_file(&undo_path).map_err(failed)?;
    Ok(state == State::Torn)
}

/// The command that undoes an interrupted change, as a shell takes it.
pub(crate) fn command(path: &Path) -> String {
    format!("`apr edit '{}'`", path.display().to_string().replace('\'', r"'\''"))
}

fn in_the_way(undo_path: &Path) -> Error {
    let message = "a change in place needs this name for its undo file, but the name is in use; \
                   move that file, or write a copy with -o";
    Error::io(IoCause::Other, message).in_file(undo_path.display())
}

fn stale(path: &Path, undo_path: &Path) -> Error {
    let message = format!(
        "'{}' is left over from an interrupted change of another file; if `apr validate` finds \
         this file valid, delete that undo file",
        undo_path.display()
    );
    Error::io(IoCause::Other, message).in_file(path.display())
}

/// Returns `true` if these are the first bytes of an undo file, however few.
fn is_begun(undo: &File) -> io::Result<bool> {
    let len = undo.metadata()?.len().min(MAGIC.len() as u64);
    let magic = read(undo, 0, len)?;
    Ok(MAGIC.starts_with(&magic))
}

/// Result of comparing a file with the two states in an undo file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The file is in the state before or after the change.
    Whole,
    /// Each block is in its state before or after the change.
    Torn,
    /// The file has other contents.
    Other,
}

/// An undo file that is complete.
struct Undo<'a> {
    undo: &'a File,
    /// Lengths before and after the change.
    lens: [u64; 2],
    front_len: u64,
    tail_offset: u64,
}

impl<'a> Undo<'a> {
    /// Reads an undo file, or returns `None` if it is not complete.
    fn read(undo: &'a File) -> io::Result<Option<Self>> {
        let len = undo.metadata()?.len();
        if !(HEADER_LEN + CRC_LEN..=MAX_LEN).contains(&len) {
            return Ok(None);
        }

        let header = read(undo, 0, HEADER_LEN)?;
        let word = |at: usize| {
            header[at..at + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        let this =
            Self { undo, lens: [word(8), word(16)], front_len: word(24), tail_offset: word(32) };
        if !header.starts_with(&MAGIC) || this.expected_len() != Some(len) {
            return Ok(None);
        }

        let mut crc = digest::Crc32::new();
        for at in (0..len - CRC_LEN).step_by(1 << 16) {
            crc.update(&read(undo, at, READ_LEN.min(len - CRC_LEN - at))?);
        }

        let stated = read(undo, len - CRC_LEN, CRC_LEN)?;
        Ok((stated == crc.value().to_le_bytes()).then_some(this))
    }

    fn expected_len(&self) -> Option<u64> {
        let [before, after] = self.lens.map(|len| len.checked_sub(self.tail_offset));
        let front = Some(self.front_len).filter(|&len| len <= self.tail_offset)?;
        front
            .checked_mul(2)?
            .checked_add(before?)?
            .checked_add(after?)?
            .checked_add(HEADER_LEN + CRC_LEN)
    }

    /// Returns front and tail: their ranges in the file, and in the undo file before and after the
    /// change.
    fn parts(&self) -> [UndoRange; 2] {
        let [before, after] = self.lens.map(|len| len - self.tail_offset);
        let fronts = HEADER_LEN + 2 * self.front_len;
        [
            UndoRange {
                offset: 0,
                at: [HEADER_LEN, HEADER_LEN + self.front_len],
                lens: [self.front_len; 2],
            },
            UndoRange {
                offset: self.tail_offset,
                at: [fronts, fronts + before],
                lens: [before, after],
            },
        ]
    }

    fn state(&self, file: &File) -> io::Result<State> {
        let len = file.metadata()?.len();
        let [shorter, longer] = [self.lens[0].min(self.lens[1]), self.lens[0].max(self.lens[1])];
        if !(shorter..=longer).contains(&len) {
            return Ok(State::Other);
        }

        let mut is_whole = self.lens.map(|whole| whole == len);
        for part in self.parts() {
            let part_len = part.lens[0].max(part.lens[1]);
            let mut at = 0;
            while at < part_len {
                let place = part.offset + at;
                let step = (READ_LEN - place % READ_LEN).min(part_len - at);
                let found = read(file, place, step.min(len.saturating_sub(place)))?;
                let known = [self.piece(&part, 0, at, step)?, self.piece(&part, 1, at, step)?];
                if !is_mix(&found, &known, place) {
                    return Ok(State::Other);
                }
                for (is_whole, known) in is_whole.iter_mut().zip(&known) {
                    *is_whole &= found == *known;
                }
                at += step;
            }
        }

        Ok(if is_whole.contains(&true) { State::Whole } else { State::Torn })
    }

    /// Returns bytes of a part before (0) or after (1) the change.
    fn piece(&self, part: &UndoRange, which: usize, at: u64, len: u64) -> io::Result<Vec<u8>> {
        read(self.undo, part.at[which] + at, len.min(part.lens[which].saturating_sub(at)))
    }

    fn restore(&self, file: &File) -> io::Result<()> {
        let [front, tail] = self.parts();
        for part in [tail, front] {
            for at in (0..part.lens[0]).step_by(1 << 16) {
                write_all_at(file, &self.piece(&part, 0, at, READ_LEN)?, part.offset + at)?;
            }
        }
        file.set_len(self.lens[0])?;
        file.sync_all()
    }
}

struct UndoRange {
    offset: u64,
    at: [u64; 2],
    lens: [u64; 2],
}

/// Returns `true` if each block found at `place` is one of two known blocks.
#[allow(clippy::cast_possible_truncation, reason = "a block has 512 bytes")]
fn is_mix(found: &[u8], known: &[Vec<u8>; 2], place: u64) -> bool {
    let mut at = 0;
    while at < found.len() {
        let end = found.len().min(at + (BLOCK - (place + at as u64) % BLOCK) as usize);
        let block = &found[at..end];
        let is = |known: &Vec<u8>, other: &Vec<u8>| {
            let (in_known, beyond) = block.split_at(known.len().clamp(at, end) - at);
            // Past the end of the one state is the other, before the file is cut, or zeros, where
            // the file became longer and the bytes did not reach the disk.
            let follows =
                |rest: &[u8]| rest.starts_with(beyond) || beyond.iter().all(|&byte| byte == 0);
            known[at.min(known.len())..].starts_with(in_known)
                && follows(other.get(at + in_known.len()..).unwrap_or(&[]))
        };

        if !is(&known[0], &known[1]) && !is(&known[1], &known[0]) {
            return false;
        }

        at = end;
    }

    true
}

fn read(file: &File, offset: u64, len: u64) -> io::Result<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mut bytes = vec![0; len];
    read_exact_at(file, &mut bytes, offset)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
