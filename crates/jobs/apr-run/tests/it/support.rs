//! Models of the fixtures in memory.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use apr_arch::Families;
use apr_infer::{Alone, Workers};
use apr_registry::{Limits, Result, open_folder};
use apr_run::{Facts, Host, Remedy, RunError, RunOptions, Runner, with_runner};
use apr_source::Source;
use apr_testkit::{FolderInMemory, locate};

/// The files of a fixture's folder, with these in place of its own.
pub(crate) fn folder(fixture: &str, files: &[(&str, &str)]) -> FolderInMemory {
    let entries = fs::read_dir(locate::fixture(fixture)).expect("the fixture is there");
    let paths = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
    let own = paths.map(|path| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, fs::read(&path).expect("a file"))
    });
    let given = files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()));
    FolderInMemory(own.chain(given).collect())
}

/// Prepares the model of a folder.
pub(crate) fn with_model<R>(
    folder: &FolderInMemory,
    host: &dyn Host,
    then: impl FnOnce(&Runner<'_>) -> R,
) -> R {
    with_options(folder, &RunOptions::default(), host, then)
}

/// Prepares the model of a folder with options.
pub(crate) fn with_options<R>(
    folder: &FolderInMemory,
    options: &RunOptions,
    host: &dyn Host,
    then: impl FnOnce(&Runner<'_>) -> R,
) -> R {
    let model = open_folder(folder, &Limits::default()).expect("a model");
    let families = Families::builtin();
    let facts = Facts::of(&model).expect("facts");
    let source = Source::new(&model, &families);
    let made: std::result::Result<R, RunError> =
        with_runner(&source, &facts, options, host, |runner| Ok(then(runner)));
    made.expect("it runs")
}

/// Calls `then` with the model of a folder, before it is ready to run.
pub(crate) fn with_source<R>(
    folder: &FolderInMemory,
    then: impl FnOnce(&Source<'_>, &Facts) -> R,
) -> R {
    let model = open_folder(folder, &Limits::default()).expect("a model");
    let families = Families::builtin();
    let facts = Facts::of(&model).expect("facts");
    then(&Source::new(&model, &families), &facts)
}

/// Host that keeps warnings, and cancels the run after a number of checks.
pub(crate) struct Watched {
    left: AtomicI64,
    pub(crate) warnings: Mutex<Vec<String>>,
}

impl Default for Watched {
    fn default() -> Self {
        Self { left: AtomicI64::new(i64::MAX), warnings: Mutex::default() }
    }
}

impl Watched {
    /// Returns the number of checks for cancellation, one before every operator.
    pub(crate) fn questions(&self) -> i64 {
        i64::MAX - self.left.load(Ordering::Relaxed)
    }

    /// Cancels the run at the check after this many more.
    pub(crate) fn cancel_after(&self, questions: i64) {
        self.left.store(questions, Ordering::Relaxed);
    }
}

impl Host for Watched {
    fn workers(&self) -> &dyn Workers {
        &Alone
    }

    fn is_cancelled(&self) -> bool {
        self.left.fetch_sub(1, Ordering::Relaxed) <= 0
    }

    fn warn(&self, message: &str, _: Option<Remedy>) {
        self.warnings.lock().expect("no panic").push(message.to_owned());
    }

    fn now(&self) -> i64 {
        0
    }

    fn isolate(&self, _: &str, work: Box<dyn FnOnce() + Send>) -> Result<()> {
        work();
        Ok(())
    }
}
