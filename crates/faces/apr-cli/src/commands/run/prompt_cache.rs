//! `--prompt-cache`: the keys and values of a prompt in a file.

use std::io::Write;
use std::path::Path;

use apr_io::{AtomicOutput, FileSource, Target};
use apr_registry::{Escaped, IoCause, Sink};
use apr_run::{Completion, Generator};

use super::job::Job;
use crate::failure::Outcome;
use crate::printer::DIM;
use crate::signals;

/// The file, and the prompt that it has.
pub(super) struct PromptFile<'a> {
    path: &'a Path,
    known: Vec<i64>,
}

impl<'a> PromptFile<'a> {
    /// Reads the file that `--prompt-cache` names, if it exists.
    ///
    /// A file that cannot be read or written is rejected before anything runs.
    pub(super) fn open(job: &Job<'a>, generator: &mut Generator<'_>) -> Outcome<Option<Self>> {
        let Some(path) = job.args.prompt_cache.as_deref() else { return Ok(None) };
        generator.keep_prompts()?;
        // The copy of what came through a pipe is another file each time.
        let is_named = job.args.model != Path::new("-");
        if let Some(state) = job.context.sources.files_state().filter(|_| is_named) {
            generator.read_from_files(state);
        }
        if !job.context.verifies() {
            generator.distrust_digests();
        }
        match FileSource::open(path) {
            Ok(file) => generator.read_prompt_cache(file, &path.display().to_string())?,
            Err(error) if error.cause() == Some(IoCause::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        // Dropped at once: this only asks whether the file may be written.
        new_file(path)?;
        Ok(Some(Self { path, known: generator.kept_prompt().to_vec() }))
    }

    /// Reports the number of tokens that were reused for the last prompt.
    pub(super) fn tell(&self, job: &Job<'_>, made: &Completion) -> Outcome {
        if job.context.printer.shows_progress() {
            let (reused, given) = (made.reused.unwrap_or_default(), made.given.len());
            let path = self.path.display().to_string();
            let text = format!("{reused} of {given} tokens of the prompt were in the prompt cache");
            writeln!(anstream::stderr().lock(), "{DIM}{}: {text}{DIM:#}", Escaped(&path))?;
        }
        Ok(())
    }

    /// Writes the last prompt if it was read completely and differs from the prompt in the file.
    pub(super) fn write(self, job: &Job<'_>, generator: &Generator<'_>, given: &[i64]) -> Outcome {
        let kept = generator.kept_prompt();
        if kept != given || kept == self.known {
            return Ok(());
        }
        signals::stop_cleanly(&job.context.interrupt)?;
        let mut output = new_file(self.path)?;
        generator.write_prompt_cache(&mut |bytes| output.write_all(bytes))?;
        job.context.printer.committed(&output.commit()?);
        Ok(())
    }
}

/// Creates the file with private permissions, because a prompt and the data derived from it can be
/// private.
fn new_file(path: &Path) -> Outcome<AtomicOutput> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut output = AtomicOutput::create(Target::File(path.to_path_buf()), true, [&*name])?;
    output.next_private_file(&name)?;
    Ok(output)
}
