//! Models of the fixtures in memory.

use std::fs;

use apr_arch::Families;
use apr_registry::{Limits, open_folder};
use apr_run::{Facts, Host, RunError, RunOptions, Runner, with_runner};
use apr_source::Source;
use apr_testkit::{FolderInMemory, locate};

/// A fixture's folder, with these files in place of its own.
pub(crate) fn folder(fixture: &str, files: &[(&str, &str)]) -> FolderInMemory {
    let entries = fs::read_dir(locate::fixture(fixture)).expect("the fixture is there");
    let own = entries.map(|entry| {
        let path = entry.expect("an entry").path();
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
    let model = open_folder(folder, &Limits::default()).expect("a model");
    let families = Families::builtin();
    let facts = Facts::of(&model).expect("facts");
    let source = Source::new(&model, &families);
    let options = RunOptions::default();
    let made: Result<R, RunError> =
        with_runner(&source, &facts, &options, host, |runner| Ok(then(runner)));
    made.expect("it runs")
}
