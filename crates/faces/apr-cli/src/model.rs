//! Opening what MODEL names.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use apr_io::{FileSource, Spool, io_error, is_index, is_manifest, is_remote};
use apr_llama::describe;
use apr_registry::{ByteSource, CheckpointReader, Convention, Error, IoCause};
use apr_view::{Checked, Verified};

use crate::config::cache_folder;
use crate::context::Context;
use crate::failure::Outcome;
use crate::{secrets, signals};

/// Name of standard input on the command line.
const STDIN: &str = "-";

/// Name of the companion file that `--config` replaces.
const CONFIG: &str = "config.json";

/// An opened model.
pub(crate) struct Model {
    pub(crate) reader: Box<dyn CheckpointReader>,
    /// Model as the user wrote it.
    pub(crate) name: String,
    /// Notes on how the model was fetched; already printed on the terminal.
    pub(crate) notes: Vec<String>,
    /// Copy of standard input, which is removed on drop.
    spool: Option<Spool>,
}

impl Model {
    /// Returns the model with its reader wrapped in another one.
    pub(crate) fn read_by(
        self,
        wrap: impl FnOnce(Box<dyn CheckpointReader>) -> Outcome<Box<dyn CheckpointReader>>,
    ) -> Outcome<Self> {
        Ok(Self { reader: wrap(self.reader)?, ..self })
    }

    /// Returns the path of the copy of standard input, if standard input was a pipe.
    pub(crate) fn spool(&self) -> Option<&Path> {
        self.spool.as_ref().map(Spool::path)
    }
}

/// Compares all tensors with the checksums that their files state.
///
/// # Errors
/// E004 for the first tensor that differs, E007 when reading fails.
pub(crate) fn compare_tensors(reader: &dyn CheckpointReader) -> Outcome {
    let checked = Checked::default();
    let tensors = Verified::new(reader, &checked);
    Ok((0..reader.tensors().len()).try_for_each(|tensor| tensors.check(tensor))?)
}

/// Opens a file, a folder, an index or manifest of shards, or standard input, to read its tensors:
/// of an encrypted model, the password is asked for where none was given.
pub(crate) fn open(path: &Path, context: &Context) -> Outcome<Model> {
    unlocked(|context| open_locked(path, context), context)
}

/// Opens a model whose metadata are only copied: the keys of a GGUF file are not translated.
pub(crate) fn open_plain(path: &Path, context: &Context) -> Outcome<Model> {
    let reader = context.sources.open_model(path, &context.options)?;
    Ok(Model { reader, name: path.display().to_string(), notes: context.tell_notes(), spool: None })
}

/// A model that is open already.
pub(crate) fn opened(
    reader: Box<dyn CheckpointReader>,
    name: String,
    context: &Context,
) -> Outcome<Model> {
    Ok(Model { reader: described(reader, context)?, name, notes: Vec::new(), spool: None })
}

/// Opens a model that may be encrypted without asking for a password.
pub(crate) fn open_locked(path: &Path, context: &Context) -> Outcome<Model> {
    let name = path.display().to_string();
    let options = &context.options;
    if name == STDIN {
        let (source, spool) = open_stdin(context)?;
        let reader = apr_registry::open(source, "standard input", options)?;
        return Ok(Model { reader: described(reader, context)?, name, notes: Vec::new(), spool });
    }
    let reader = described(context.sources.open_model(path, options)?, context)?;
    Ok(Model { reader, name, notes: context.tell_notes(), spool: None })
}

/// Opens a model together with the configuration and tokenizer files beside it, to read its
/// tensors.
pub(crate) fn open_with_companions(path: &Path, context: &Context) -> Outcome<Model> {
    unlocked(|context| with_companions(path, context), context)
}

/// Opens a model; if it is locked, asks the user for the password and opens it again.
fn unlocked(open: impl Fn(&Context) -> Outcome<Model>, context: &Context) -> Outcome<Model> {
    let model = open(context)?;
    if !model.reader.container().is_locked() {
        return Ok(model);
    }
    let locked = || secrets::locked(context.key.as_deref(), &model.name);
    let password = secrets::ask(&format!("Password of {}: ", apr_registry::Escaped(&model.name)))?
        .ok_or_else(locked)?;
    open(&context.with_password(password))
}

/// Opens a model with its configuration and tokenizer files to inspect the parts readable without a
/// key and without the shards that are absent.
pub(crate) fn look_with_companions(path: &Path, context: &Context) -> Outcome<Model> {
    with_companions(path, &context.without_shards())
}

fn with_companions(path: &Path, context: &Context) -> Outcome<Model> {
    if path.as_os_str() == STDIN {
        return open_locked(path, context);
    }
    let reader = context.sources.open_model_with_companions(path, &context.options)?;
    Ok(Model {
        reader: described(reader, context)?,
        name: path.display().to_string(),
        notes: context.tell_notes(),
        spool: None,
    })
}

/// Returns the reader with the keys of a GGUF file translated.
fn described(
    reader: Box<dyn CheckpointReader>,
    context: &Context,
) -> Outcome<Box<dyn CheckpointReader>> {
    let is_gguf = reader.format().convention == Convention::LlamaCpp;
    if is_gguf && context.model_config.is_some() {
        context
            .printer
            .warn("--config has no effect: the keys of a GGUF file are its configuration");
    }
    let reader = if is_gguf { reader } else { configured(reader, context)? };
    // An unknown name is reported where a family is needed.
    let architecture = context.architecture().unwrap_or_default();
    Ok(describe(reader, context.families()?, &architecture))
}

/// Returns the reader with the configuration of `--config`, if the model has no configuration.
fn configured(
    reader: Box<dyn CheckpointReader>,
    context: &Context,
) -> Outcome<Box<dyn CheckpointReader>> {
    let Some(path) = &context.model_config else { return Ok(reader) };
    if reader.companions().iter().any(|companion| companion.name == CONFIG) {
        context.printer.warn("--config has no effect: the model has its own config.json");
        return Ok(reader);
    }
    let source = context.sources.open_file(path)?;
    let configured = apr_registry::with_config(reader, Box::new(source), &context.options.limits);
    Ok(Box::new(configured.map_err(|error| error.in_file(path.display()))?))
}

/// Returns `true` if a model's tensors are encrypted, even if a key opens them.
pub(crate) fn is_encrypted(reader: &dyn CheckpointReader) -> bool {
    reader.container().features().encrypted
}

/// Returns `true` if the path refers to several files, so that its own bytes are not the model.
pub(crate) fn is_set(path: &Path, context: &Context) -> Outcome<bool> {
    if is_remote(path) {
        return Ok(context.sources.is_remote_set(path)?);
    }
    Ok(path.is_dir() || is_index(path) || is_manifest(path).unwrap_or(false))
}

/// Opens the bytes of one file, whatever they are.
pub(crate) fn open_bytes(
    path: &Path,
    context: &Context,
) -> Outcome<(Box<dyn ByteSource>, Option<Spool>)> {
    if path.as_os_str() == STDIN {
        let (source, spool) = open_stdin(context)?;
        return Ok((Box::new(source), spool));
    }
    if is_remote(path) {
        return Ok((context.sources.open_remote_file(path)?, None));
    }
    Ok((Box::new(context.sources.open_file(path)?), None))
}

/// Opens standard input.
///
/// A redirected file is read in place. A pipe is first copied to the cache folder, because readers
/// need random access.
fn open_stdin(context: &Context) -> Outcome<(FileSource, Option<Spool>)> {
    let path = PathBuf::from("standard input");
    let file = apr_platform::standard_input()?;
    if apr_platform::is_regular(&file)? {
        let source = context.sources.remember(FileSource::from_file(file, &path)?)?;
        return Ok((source, None));
    }
    signals::stop_cleanly(&context.interrupt)?;
    let spool = Spool::create(&cache_folder()?.join("spool"))?;
    copy(file, &spool, context).map_err(|error| error.in_file("standard input"))?;
    let source = FileSource::from_file(spool.file().try_clone()?, &path)?;
    Ok((source, Some(spool)))
}

/// The next bytes of a pipe; `None` at its end.
fn next_piece(from: &mut File) -> Option<std::io::Result<Vec<u8>>> {
    /// Bytes per read: the capacity of a pipe.
    const PIPE_LEN: usize = 1 << 16;

    let mut piece = vec![0; PIPE_LEN];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return None,
            Ok(len) => {
                piece.truncate(len);
                return Some(Ok(piece));
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

fn copy(mut from: File, to: &Spool, context: &Context) -> apr_registry::Result<()> {
    /// Pieces read ahead.
    const AHEAD: usize = 16;
    /// Maximum wait for a silent pipe before the interrupt flag is checked.
    const PATIENCE: Duration = Duration::from_millis(50);

    // A read that waits goes on waiting after a signal: another thread does the waiting, and ends
    // with the process.
    let (sender, pieces) = mpsc::sync_channel(AHEAD);
    let read = move || {
        while let Some(read) = next_piece(&mut from) {
            let failed = read.is_err();
            if sender.send(read).is_err() || failed {
                return;
            }
        }
    };
    thread::Builder::new()
        .spawn(read)
        .map_err(|error| Error::memory(format!("can't start a thread: {error}")))?;
    loop {
        if context.interrupt.0.load(Ordering::Relaxed) {
            return Err(Error::io(IoCause::Interrupted, "interrupted"));
        }
        match pieces.recv_timeout(PATIENCE) {
            Ok(Ok(piece)) => {
                to.file().write_all(&piece).map_err(|error| io_error(&error, to.path()))?;
            }
            Ok(Err(error)) => return Err(io_error(&error, Path::new("standard input"))),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}
