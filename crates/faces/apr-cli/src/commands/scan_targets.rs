//! The files that `apr scan` examines: named, in folders, in repositories, in the caches.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apr::scan::check_link;
use apr_io::Spool;
use apr_ops::sha256;
use apr_registry::{ByteSource, Serial};
use apr_scan::{ScanReport, scan_file};
use apr_view::NameChoice;
use base16ct::lower::encode_string;

use super::chosen_files::{choice, chosen, warn_if_idle};
use crate::args::ScanArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model;
use crate::remote::{self, Repository};

/// Bytes of a file, and the spool file if they come from a pipe.
type Opened = (Box<dyn ByteSource>, Option<Spool>);

/// The files of a scan.
pub(super) struct Targets {
    pub(super) files: Vec<Target>,
    /// Files and folders on this machine that were named, or that the caches have.
    pub(super) folders: Vec<PathBuf>,
    /// Number of files that `--include` and `--exclude` leave out.
    pub(super) excluded: usize,
}

/// A file that is scanned.
pub(super) enum Target {
    /// File that was named, or is in a named folder.
    Path(PathBuf),
    /// File of a repository, or of a folder in a repository.
    Remote(Arc<Repository>, String),
}

impl Targets {
    /// Collects the files of the arguments.
    pub(super) fn of(args: &ScanArgs, context: &Context) -> Outcome<Self> {
        let names = choice(context)?;
        let mut targets = Self { files: Vec::new(), folders: Vec::new(), excluded: 0 };
        for path in &args.paths {
            // Whoever trusts a repository loads any of its files.
            match Repository::at(path, &context.sources)? {
                Some(repository) => targets.add_repository(repository, context)?,
                None => targets.add_local(path, &names)?,
            }
        }
        if args.cache {
            let cached = remote::cached_paths()?;
            if cached.is_empty() && !args.paths.is_empty() {
                context.printer.warn("--cache has no effect: the caches have no files");
            }
            for path in cached {
                targets.add_local(&path, &names)?;
            }
        }

        if targets.files.is_empty() && targets.excluded > 0 {
            let message = "no file matches --include and --exclude".to_owned();
            return Err(Failure::Usage(message));
        }
        warn_if_idle(&names, targets.excluded, context);
        Ok(targets)
    }

    fn add_repository(&mut self, repository: Repository, context: &Context) -> Outcome {
        let names = repository.names()?;
        repository.notes().iter().for_each(|note| context.printer.warn(note));
        self.excluded += repository.left_out();
        let repository = Arc::new(repository);
        self.files
            .extend(names.into_iter().map(|name| Target::Remote(Arc::clone(&repository), name)));
        Ok(())
    }

    fn add_local(&mut self, path: &Path, names: &NameChoice) -> Outcome {
        let (files, excluded) = chosen(path, names)?;
        self.files.extend(files.into_iter().map(Target::Path));
        self.excluded += excluded;
        self.folders.push(path.to_owned());
        Ok(())
    }
}

impl Target {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Remote(repository, file) => format!("{}/{file}", repository.location()),
        }
    }

    /// Opens the target's bytes, with the spool file if they come from a pipe.
    fn open(&self, context: &Context) -> Outcome<Opened> {
        match self {
            Self::Path(path) => model::open_bytes(path, context),
            Self::Remote(repository, file) => Ok((repository.open(file)?, None)),
        }
    }

    /// Returns the SHA-256 digest in hexadecimal.
    pub(super) fn digest(&self, context: &Context) -> Outcome<String> {
        let (source, _spool) = self.open(context)?;
        let digest = encode_string(&sha256(&source, &Serial, &())?);
        // A digest of other bytes than those that were scanned would accept them.
        context.sources.check_unchanged()?;
        Ok(digest)
    }

    /// Examines the file. `folders` are the folders that are scanned.
    pub(super) fn scan(&self, folders: &[PathBuf], context: &Context) -> Outcome<ScanReport> {
        let (source, _spool) = self.open(context)?;
        let mut report = scan_file(source, &self.name(), &context.options.limits)?;
        context.sources.check_unchanged()?;
        if let Self::Path(path) = self {
            check_link(path, folders, &mut report);
        }
        Ok(report)
    }
}
