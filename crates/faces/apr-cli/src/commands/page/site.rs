//! The page's own files: a folder of them, or those that the program was built with.

use std::path::{Path, PathBuf};

use super::listing::Folder;
use super::server::Body;
use crate::failure::Outcome;

#[cfg(feature = "page")]
mod built {
    include!(concat!(env!("OUT_DIR"), "/page.rs"));
}

#[cfg(not(feature = "page"))]
mod built {
    /// Files of the page: none in a build without the feature `page`.
    pub(super) static FILES: &[(&str, bool, &[u8])] = &[];
}

/// File that every folder of the page contains.
pub(super) const MAIN: &str = "page/main.js";

/// Script that registers the service worker, which keeps the page for later visits.
///
/// The address changes on each start, so the service worker is not registered.
const OFFLINE: &str = "page/offline.js";
const SERVICE_WORKER: &str = "service-worker.js";

/// Source of the page's files.
pub(super) enum Site {
    /// Folder with the files of the page.
    Folder(Box<Folder>),
    /// Files that are built into the program.
    Built,
}

impl Site {
    /// The files in a folder.
    ///
    /// # Errors
    /// E007 where it can't be read.
    pub(super) fn of_folder(folder: &Path) -> Outcome<Self> {
        Folder::of_site(folder).map(|folder| Self::Folder(Box::new(folder)))
    }

    /// The files that the program was built with, if there were any.
    pub(super) fn built() -> Option<Self> {
        built::FILES.iter().any(|(name, ..)| *name == MAIN).then_some(Self::Built)
    }

    /// The file of a path.
    pub(super) fn file(&self, path: &str) -> Option<Body<'_>> {
        match (path, self) {
            (SERVICE_WORKER, _) => None,
            (OFFLINE, _) => Some(Body::Bytes(b"")),
            (_, Self::Folder(folder)) => folder.file(path).map(Body::File),
            (_, Self::Built) => {
                let (_, is_packed, bytes) = built::FILES.iter().find(|(name, ..)| *name == path)?;
                Some(if *is_packed { Body::Packed(bytes) } else { Body::Bytes(bytes) })
            }
        }
    }
}

/// Returns `true` if a folder has the page's files.
pub(super) fn is_site(folder: &Path) -> bool {
    folder.join(MAIN).is_file()
}

/// Folders of the page's files relative to the program's folder: in an archive, beside a system's
/// `bin`, in a build.
const SITES: [&str; 3] = ["page", "../share/apr/page", "../web"];

/// The folder of the page's files beside the program.
pub(super) fn beside_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let folder = program.parent()?;
    let found = SITES.iter().map(|site| folder.join(site)).find(|site| is_site(site))?;
    found.canonicalize().ok()
}
