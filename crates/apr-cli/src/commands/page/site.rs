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
    /// A build without the feature `page` has none.
    pub(super) static FILES: &[(&str, bool, &[u8])] = &[];
}

/// What every folder of the page has.
pub(super) const MAIN: &str = "page/main.js";

/// What registers the script that keeps the page for later visits: the address is another one next
/// time, so that nothing is registered.
const OFFLINE: &str = "page/offline.js";
const SERVICE_WORKER: &str = "service-worker.js";

/// Where the page's files are taken from.
pub(super) enum Site {
    /// A folder.
    Folder(Folder),
    /// The program.
    Built,
}

impl Site {
    /// The files in a folder.
    ///
    /// # Errors
    /// E007 where it can't be read.
    pub(super) fn of_folder(folder: &Path) -> Outcome<Self> {
        Folder::of_site(folder).map(Self::Folder)
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

/// Whether a folder has the page's files.
pub(super) fn is_site(folder: &Path) -> bool {
    folder.join(MAIN).is_file()
}

/// Where the page's files are, seen from the folder of the program: in an archive, in a system's
/// `bin`, in a build.
const SITES: [&str; 3] = ["page", "../share/apr/page", "../web"];

/// The folder of the page's files beside the program.
pub(super) fn beside_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let folder = program.parent()?;
    let found = SITES.iter().map(|site| folder.join(site)).find(|site| is_site(site))?;
    found.canonicalize().ok()
}
