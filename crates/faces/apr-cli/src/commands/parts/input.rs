//! What a plan says of a model that is read, and whether it still is so.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use apr_io::{FileSource, is_remote};
use apr_ops::parts::{
    CompanionInput, FileInput, Input, JobWords, SettingsFile, TensorInput, bytes_digest,
    front_digest, pinned_files, tensor_digests,
};
use apr_registry::Serial;
use apr_registry::{CheckpointReader, Error, FileInfo};
use base16ct::lower::encode_string;

use super::on_disk::OpenPlan;
use super::options::settings as of_parts;
use super::words::{placed, values};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::progress::Bar;

/// Pins locations on a hub to their current commit, so that all parts read and record the same one.
pub(super) fn pin(job: &mut JobWords, option: &str, context: &Context) -> Outcome {
    let mut paths: Vec<String> = values(job, option).into_iter().map(str::to_owned).collect();
    for path in paths.iter_mut().filter(|path| is_remote(Path::new(path))) {
        let location = PathBuf::from(path.as_str());
        context.sources.is_remote_set(&location)?;
        if let Some((pinned, _)) = context.sources.state(&location, &[]) {
            *path = pinned;
        }
    }
    match &mut paths[..] {
        [] => {}
        [path] => {
            job.options.insert(option.to_owned(), std::mem::take(path).into());
        }
        paths => {
            job.options.insert(option.to_owned(), paths.to_vec().into());
        }
    }
    Ok(())
}

/// Describes a model for a plan, under the name `path`.
///
/// `digests` requests the digests of the tensors, for which the model is read.
pub(super) fn describe(
    model: &Model,
    path: &str,
    digests: bool,
    context: &Context,
) -> Outcome<Input> {
    let reader = &*model.reader;
    let remote = is_remote(Path::new(&model.name));
    let takes_digests = digests && !remote;
    let names: Vec<&str> = reader.files().iter().map(|file| own_name(&file.name, model)).collect();
    let states = context.sources.state(Path::new(&model.name), &names);
    let states = states.map_or_else(|| vec![None; names.len()], |(_, states)| states);
    let mut files = Vec::new();
    for (file, etag) in reader.files().iter().zip(states) {
        // Digests tell more than times, and a server tells the states of its files.
        let is_timed = !takes_digests && !remote;
        let modified = if is_timed { Some(modified(&path_of(&file.name, model))?) } else { None };
        files.push(FileInput {
            name: own_name(&file.name, model).to_owned(),
            size: file.len,
            modified,
            etag,
        });
    }

    let bar = Bar::new(&context.printer, reader.files().iter().map(|file| file.len).sum());
    let digests = if takes_digests {
        tensor_digests(pinned_files(reader), &context.pipeline()?, &bar)?
    } else {
        Vec::new()
    };
    let tensors = pinned_files(reader).tensors().iter().zip(digests);
    let tensors = tensors.map(|(info, digest)| TensorInput {
        name: info.name.clone(),
        blake3: encode_string(&digest),
    });
    Ok(Input {
        path: path.to_owned(),
        files,
        companions: companions(reader)?,
        front: encode_string(&front_digest(reader)),
        tensors: tensors.collect(),
    })
}

/// Checks that a model is the one of the plan, as far as that is seen without its weights.
///
/// # Errors
/// E004 with the file that is another one.
pub(super) fn check(input: &Input, model: &Model, context: &Context) -> Outcome {
    let reader = &*model.reader;
    if reader.files().len() != input.files.len() {
        return Err(changed(&model.name, "the files of the model changed"));
    }

    let names: Vec<&str> = input.files.iter().map(|file| file.name.as_str()).collect();
    let states = context.sources.state(Path::new(&model.name), &names).map(|(_, states)| states);
    let mut states = states.unwrap_or_default().into_iter();
    for (file, known) in reader.files().iter().zip(&input.files) {
        let path = path_of(&file.name, model);
        if let Some(what) = difference(file, known, states.next().flatten(), &path)? {
            return Err(changed(&path.display().to_string(), &what));
        }
    }

    if encode_string(&front_digest(reader)) != input.front {
        return Err(changed(
            &model.name,
            "metadata, or names, shapes or offsets of tensors, changed",
        ));
    }

    let found = companions(reader)?;
    match input.companions.iter().find(|known| !found.contains(known)) {
        Some(known) => Err(changed(&known.name, "it changed or was removed")),
        None if found.len() != input.companions.len() => {
            Err(changed(&model.name, "companions were added"))
        }
        None => Ok(()),
    }
}

fn changed(file: &str, what: &str) -> Failure {
    let message = format!("{what} since the plan was made; make a new plan");
    Error::checksum(message).in_file(apr_registry::Escaped(file)).into()
}

/// Returns the difference between a file and the file of the plan, or `None` if they are the same.
///
/// `state` is the server's current identifier of the file.
fn difference(
    file: &FileInfo,
    known: &FileInput,
    state: Option<String>,
    path: &Path,
) -> Outcome<Option<String>> {
    if file.len != known.size {
        return Ok(Some(format!("its length changed from {} to {} bytes", known.size, file.len)));
    }
    let is_touched =
        known.modified.map(|time| Ok::<_, Failure>(modified(path)? != time)).transpose()?;
    if is_touched == Some(true) {
        return Ok(Some("it was modified".to_owned()));
    }
    let is_other = known.etag.as_ref().zip(state).is_some_and(|(known, state)| *known != state);
    Ok(is_other.then(|| "it changed on the server".to_owned()))
}

/// Returns the other files that a job reads.
pub(super) fn settings(job: &JobWords, folder: &Path) -> Outcome<Vec<SettingsFile>> {
    let paths = of_parts().flat_map(|key| values(job, key));
    let describe = |path: &str| {
        let file = FileSource::open(placed(path, folder))?;
        let blake3 = encode_string(&bytes_digest(&file, &Serial, &())?);
        Ok(SettingsFile {
            path: path.to_owned(),
            size: apr_registry::ByteSource::len(&file),
            blake3,
        })
    };
    paths.map(describe).collect()
}

/// Checks that the other files match those of the plan.
///
/// # Errors
/// E004 with the file that is another one.
pub(super) fn check_settings(open: &OpenPlan) -> Outcome {
    let found = settings(&open.plan.job, open.folder())?;
    match open.plan.settings.iter().find(|known| !found.contains(known)) {
        Some(known) => {
            let error = Error::checksum("it changed since the plan was made; make a new plan");
            Err(error.in_file(apr_registry::Escaped(&known.path)).into())
        }
        None => Ok(()),
    }
}

fn companions(reader: &dyn CheckpointReader) -> Outcome<Vec<CompanionInput>> {
    let companions = reader.companions().iter().enumerate();
    let describe = |(position, companion): (usize, &apr_core::Companion)| {
        let bytes = reader.read_companion(position)?;
        let blake3 = encode_string(&bytes_digest(bytes.as_slice(), &Serial, &())?);
        Ok(CompanionInput { name: companion.name.clone(), size: bytes.len() as u64, blake3 })
    };
    companions.map(describe).collect()
}

/// Returns the name of a file within the model; the only file of a model may have its path as its
/// name.
fn own_name<'a>(name: &'a str, model: &Model) -> &'a str {
    if name == model.name { name.rsplit('/').next().unwrap_or(name) } else { name }
}

/// Returns the path of a file of a model on this machine.
fn path_of(name: &str, model: &Model) -> PathBuf {
    let path = Path::new(&model.name);
    if name == model.name || is_remote(path) {
        PathBuf::from(name)
    } else if path.is_dir() {
        path.join(name)
    } else {
        path.with_file_name(name)
    }
}

/// Returns the time of a file's last change, in nanoseconds since 1970.
fn modified(path: &Path) -> Outcome<u64> {
    let time = path.metadata().and_then(|metadata| metadata.modified());
    let time = time.map_err(|error| apr_io::io_error(&error, path))?;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
