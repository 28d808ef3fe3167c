//! Changing an `.apr` file at its two ends: in place, or as a copy.

use std::io::{self, Write};
use std::path::Path;

use apr_io::{AtomicOutput, FileSource, LockedFile, Target};
use apr_registry::apr2::{Apr2Reader, Changes, Flags, Revision, open_with_keys};
use apr_registry::{ByteSource, Error, IoCause, Sink};

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::compare_tensors;
use crate::printer::DIM;
use crate::signals;

/// Parts of a model that a change in place does not read: it goes by the digests of tensors.
pub(crate) const UNREAD: &str = "tensors";

const UNDONE: &str = "an interrupted change was undone";

/// An `.apr` file that is to be changed.
pub(crate) struct Changing {
    pub(crate) reader: Apr2Reader,
    source: FileSource,
    /// Lock on the file, if the file itself is changed.
    lock: Option<LockedFile>,
}

/// Opens an `.apr` file that is to be changed: in place unless there is an `output`. Then it is
/// locked before it is read, and a change that was interrupted is undone first.
pub(crate) fn open_to_change(
    path: &Path,
    output: Option<&Path>,
    context: &Context,
) -> Outcome<Changing> {
    let is_itself = output.is_none_or(|output| is_same(path, output));
    let lock = if is_itself { Some(lock(path, context)?) } else { None };
    let source = match &lock {
        Some(lock) => lock.source()?,
        None => context.sources.open_file(path)?,
    };
    let reader = read(source.clone(), path, context)?;
    if output.is_none() && reader.header().flags.contains(Flags::SHARDED) {
        let message = "this is a shard, and its manifest states its digest; -o writes a copy, \
                       and `apr sign` signs the manifest";
        return Err(Failure::General(format!("{}: {message}", path.display())));
    }
    Ok(Changing { reader, source, lock })
}

/// Locks a file that is to be changed, and undoes a change of it that was interrupted.
pub(crate) fn lock(path: &Path, context: &Context) -> Outcome<LockedFile> {
    let locked = LockedFile::open(path)?;
    if locked.was_undone() {
        context.printer.warn(UNDONE);
    }
    Ok(locked)
}

/// Undoes an interrupted change of a file that is to be changed in place, before anything reads it.
pub(crate) fn undo_interrupted(path: &Path, context: &Context) -> Outcome {
    if LockedFile::undo_interrupted(path)? {
        context.printer.warn(UNDONE);
    }
    Ok(())
}

/// Returns `true` if two paths lead to the same file.
pub(crate) fn is_same(path: &Path, output: &Path) -> bool {
    matches!((path.canonicalize(), output.canonicalize()), (Ok(path), Ok(output)) if path == output)
}

/// Opens an `.apr` file as what it is.
pub(crate) fn open(path: &Path, context: &Context) -> Outcome<Apr2Reader> {
    let reader = read(context.sources.open_file(path)?, path, context);
    // What was read in two states may look damaged.
    context.sources.check_unchanged()?;
    reader
}

fn read(source: FileSource, path: &Path, context: &Context) -> Outcome<Apr2Reader> {
    let name = path.display().to_string();
    let mut head = [0; 4];
    source.read_at(0, &mut head[..usize::try_from(source.len().min(4)).unwrap_or_default()])?;
    if head != apr_registry::apr2::MAGIC {
        let message = match &head {
            [b'{', ..] => {
                "this is the manifest of a sharded model; `apr join` joins it into one file"
            }
            b"APRN" | b"APR1" | b"APR\0" => "this is an older APR file; `apr upgrade` it first",
            _ => {
                "not an .apr file: only .apr files hold signatures and licences; `apr convert` \
                 it first"
            }
        };
        return Err(Error::format(message).in_file(name).into());
    }

    Ok(open_with_keys(source, &name, &context.options.limits, &context.options.keys)?)
}

impl Changing {
    /// Creates the output for a file that is not changed in place: a replacement of the file, or a
    /// copy.
    pub(crate) fn output(
        &mut self,
        output: Option<&Path>,
        replace: bool,
        context: &Context,
    ) -> Outcome<AtomicOutput> {
        signals::stop_cleanly(&context.interrupt)?;
        if let Some(output) = output.filter(|output| !replace && output.symlink_metadata().is_ok())
        {
            return Err(Error::io(IoCause::AlreadyExists, "the file already exists")
                .in_file(output.display())
                .into());
        }
        Ok(match (self.lock.take(), output) {
            (Some(lock), _) => AtomicOutput::replacing(lock),
            (None, Some(output)) => {
                let target = Target::File(output.to_path_buf());
                let mut copy = AtomicOutput::create(target, replace, [])?;
                copy.made_from(&context.sources);
                copy
            }
            (None, None) => return Err(Failure::General("the file is not locked".to_owned())),
        })
    }

    /// Writes what a revision changes: into the file itself, or into a copy of tensors that were
    /// compared with their checksums. Returns the parts that were not read.
    pub(crate) fn write(
        mut self,
        output: Option<&Path>,
        replace: bool,
        revision: &Revision,
        context: &Context,
    ) -> Outcome<Option<&'static str>> {
        if let (Some(lock), None) = (&self.lock, output) {
            // From here on Ctrl-C comes too late, and a file that outgrows a limit is an error that
            // is undone.
            signals::stop_cleanly(&context.interrupt)?;
            lock.replace_ends(revision)?;
            return Ok(Some(UNREAD));
        }

        compare_tensors(&self.reader)?;
        let mut copy = self.output(output, replace, context)?;
        copy.write_all(&revision.front)?;
        let mut piece = vec![0; 1 << 20];
        let mut position = revision.front.len() as u64;
        while position < revision.tail_offset {
            if context.interrupt.0.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(Error::io(IoCause::Interrupted, "interrupted").into());
            }
            let len = usize::try_from(revision.tail_offset - position)
                .unwrap_or(usize::MAX)
                .min(piece.len());
            self.source.read_at(position, &mut piece[..len])?;
            copy.write_all(&piece[..len])?;
            position += len as u64;
        }

        copy.write_all(&revision.tail)?;
        context.sources.check_unchanged()?;
        context.printer.committed(&copy.commit()?);
        Ok(None)
    }
}

/// Reports on the terminal that a file was changed whose tensors were not read.
pub(crate) fn render_unverified(
    out: &mut dyn Write,
    unverified: Option<&'static str>,
) -> io::Result<()> {
    match unverified {
        Some(_) => writeln!(
            out,
            "{DIM}unverified: the tensors were not read; `apr validate` reads them{DIM:#}"
        ),
        None => Ok(()),
    }
}

/// Applies changes that never move a tensor.
pub(crate) fn revise(reader: &Apr2Reader, changes: &Changes) -> Outcome<Revision> {
    let revision = reader.revise(changes)?;
    revision.ok_or_else(|| Failure::General("the header has no space for the change".to_owned()))
}
