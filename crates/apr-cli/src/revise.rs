//! Changing an `.apr` file at its two ends: in place, or as a copy.

use std::path::Path;

use apr::apr2::{Apr2Reader, Changes, Flags, Revision, open_with_keys};
use apr::{ByteSource, Error, IoCause, Sink};
use apr_io::{AtomicOutput, FileSource, Target, is_interrupted, replace_ends, roll_back};

use crate::context::Context;
use crate::failure::Failure;
use crate::{Outcome, model, signals};

/// Opens an `.apr` file that is to be changed, in place unless there is an `output`, and first undoes a change that was
/// interrupted.
pub(crate) fn open_to_change(path: &Path, output: Option<&Path>, context: &Context) -> Outcome<Apr2Reader> {
    if is_interrupted(path) && roll_back(path)? {
        context.printer.warn("a change that had been interrupted was undone");
    }
    let reader = open(path, context)?;
    if output.is_none() && reader.header().flags.contains(Flags::SHARDED) {
        let message = "this is a shard, which its manifest would no longer take for its own if it were changed; -o writes \
                       a copy, and `apr sign` signs a whole model by its manifest";
        return Err(Failure::General(format!("{}: {message}", path.display())));
    }
    Ok(reader)
}

/// Opens an `.apr` file as what it is.
pub(crate) fn open(path: &Path, context: &Context) -> Outcome<Apr2Reader> {
    let name = path.display().to_string();
    model::refuse_interrupted(path)?;
    let source = FileSource::open(path)?;
    let mut head = [0; 4];
    source.read_at(0, &mut head[..usize::try_from(source.len().min(4)).unwrap_or_default()])?;
    if head != apr::apr2::MAGIC {
        let message = match &head {
            [b'{', ..] => "this is the manifest of a sharded model; `apr join` makes one file of it",
            b"APRN" | b"APR1" | b"APR\0" => {
                "this is an older APR file; `apr upgrade` makes an .apr file of today of it"
            }
            _ => "this is no .apr file, which alone holds signatures and licences; `apr convert` makes one",
        };
        return Err(Error::format(message).in_file(name).into());
    }
    Ok(open_with_keys(source, &name, &context.options.limits, &context.options.keys)?)
}

/// Writes what a revision changes: into the file itself, or into a copy.
pub(crate) fn write(
    path: &Path,
    output: Option<&Path>,
    force: bool,
    revision: &Revision,
    context: &Context,
) -> Outcome {
    let Some(output) = output else {
        return Ok(replace_ends(path, &revision.front, revision.tail_offset, &revision.tail)?);
    };
    signals::stop_cleanly(&context.interrupt)?;
    let source = FileSource::open(path)?;
    let mut copy = AtomicOutput::create(Target::File(output.to_path_buf()), force, [])?;
    if !force && output.symlink_metadata().is_ok() {
        return Err(Error::io(IoCause::AlreadyExists, "the file exists already").in_file(output.display()).into());
    }
    copy.write_all(&revision.front)?;
    let mut piece = vec![0; 1 << 20];
    let mut position = revision.front.len() as u64;
    while position < revision.tail_offset {
        if context.interrupt.0.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::io(IoCause::Interrupted, "interrupted").into());
        }
        let len = usize::try_from(revision.tail_offset - position).unwrap_or(usize::MAX).min(piece.len());
        source.read_at(position, &mut piece[..len])?;
        copy.write_all(&piece[..len])?;
        position += len as u64;
    }
    copy.write_all(&revision.tail)?;
    Ok(copy.commit()?)
}

/// Makes changes that never move a tensor.
pub(crate) fn revise(reader: &Apr2Reader, changes: &Changes) -> Outcome<Revision> {
    let revision = reader.revise(changes)?;
    revision.ok_or_else(|| Failure::General("the file has no room at its front for the change".to_owned()))
}
