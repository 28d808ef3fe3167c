//! Files of a place, fetched into the cache.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use apr_core::{Error, IoCause, Phase, Progress, Result};

use super::{OpenedFile, ResolvedLocation};
use crate::download::Download;
use crate::lock::disk;

/// A file that is in the cache.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Downloaded {
    /// Name in the location.
    pub name: String,
    /// Path in the cache.
    pub path: PathBuf,
    /// Length in bytes.
    pub len: u64,
    /// Number of bytes received over the network, including repeated tries; 0 if the file was
    /// already cached.
    pub fetched: u64,
}

/// A file that is wanted in the cache.
enum Begun {
    Here(PathBuf),
    Coming(Arc<Download>),
}

fn finished((name, begun): (String, Begun), progress: &dyn Progress) -> Result<Downloaded> {
    let (path, fetched) = match begun {
        Begun::Here(path) => {
            progress.advance(path.metadata().map_or(0, |found| found.len()));
            (path, 0)
        }
        Begun::Coming(download) => {
            download.finish(progress)?;
            (download.path(), download.received())
        }
    };
    let len = path.metadata().map_err(|error| disk(&error, &path))?.len();
    Ok(Downloaded { name, path, len, fetched })
}

impl ResolvedLocation {
    /// Fetches files into the cache. Returns the path of each, and the number of bytes received
    /// over the network.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open) and [`finish`](Self::finish), and E007 when shards of the
    /// model are absent.
    pub fn download(
        &self,
        names: &[String],
        progress: &(dyn Progress + Sync),
    ) -> Result<Vec<Downloaded>> {
        /// The longest file that waits for the server rather than for the line.
        const SMALL: u64 = 1 << 20;

        let len = |name: &String| {
            self.files.iter().find(|file| file.name == *name).and_then(|file| file.len)
        };
        let is_small = |name: &&String| len(name).is_some_and(|len| len <= SMALL);
        let (small, large): (Vec<&String>, Vec<&String>) = names.iter().partition(is_small);

        // Before what is large, so that nobody waits for what can't be complete.
        self.check_numbers(names)?;
        for name in self.indexes(names) {
            let index = finished((name.clone(), self.begin(name)?), &())?;
            self.check_index(name, &index.path)?;
        }

        progress.begin(Phase::Downloading, names.iter().filter_map(len).sum());
        // Small files come beside the large ones, and not after them.
        let (large, small) = std::thread::scope(|scope| {
            let small = scope.spawn(|| self.download_in_turn(&small, progress));
            (self.download_in_turn(&large, progress), small.join())
        });
        let small = small.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut done: Vec<Downloaded> = large?;
        done.extend(small?);
        done.sort_by_key(|file| names.iter().position(|name| *name == file.name));
        Ok(done)
    }

    fn download_in_turn(
        &self,
        names: &[&String],
        progress: &dyn Progress,
    ) -> Result<Vec<Downloaded>> {
        /// Files that are fetched at the same time.
        const AT_ONCE: usize = 4;

        let mut begun = VecDeque::new();
        let mut done = Vec::with_capacity(names.len());
        for &name in names {
            if begun.len() == AT_ONCE {
                done.extend(begun.pop_front().map(|begun| finished(begun, progress)).transpose()?);
            }
            begun.push_back((name.clone(), self.begin(name)?));
        }

        for begun in begun {
            done.push(finished(begun, progress)?);
        }

        Ok(done)
    }

    fn begin(&self, name: &str) -> Result<Begun> {
        let source = match self.open(name)? {
            OpenedFile::Local(path) => return Ok(Begun::Here(path)),
            OpenedFile::Remote(source) => source,
        };
        let download = source.download().ok_or_else(|| {
            let message = "the hub sends no ETag for the file, which the cache requires; other \
                           commands read it without the cache";
            Error::io(IoCause::Other, message).in_file(self.name_of(name))
        })?;
        download.start();
        Ok(Begun::Coming(download))
    }
}
