//! The files that follow a model as a ZIP archive: labels, vocabularies.

use std::sync::Arc;

use apr_archive::{Archive, Decoded, Section};
use apr_core::{Companion, Limits, Result, SharedSource, Table, read_vec};

/// Bytes of the record that an archive ends with, and of the longest comment behind it.
const END_RECORD: u64 = 22;
const LONGEST_COMMENT: u64 = 65_535;

/// The files of an archive behind the flatbuffer.
pub(crate) struct Associated {
    archive: Archive,
    content: Decoded<Arc<Section<SharedSource>>>,
    /// Numbers of the entries that are companions.
    entries: Vec<usize>,
    /// Offset of the archive in the file.
    pub(crate) start: u64,
    /// Names of the files that exceed the size limit of a companion.
    pub(crate) left_out: Vec<String>,
}

impl Associated {
    /// Reads the directory of the archive, or returns `None` if there is none.
    ///
    /// # Errors
    /// E002 for a damaged archive, E007 when reading fails, E008 over a limit.
    pub(crate) fn find(source: &SharedSource, limits: &Limits) -> Result<Option<Self>> {
        let tail = source.len().min(END_RECORD + LONGEST_COMMENT);
        let tail = read_vec(source, source.len() - tail, tail)?;
        if !tail.windows(4).any(|bytes| bytes == b"PK\x05\x06") {
            return Ok(None);
        }

        // Places count from the archive's start, or from the file's.
        let (_, before, _) = Archive::survey(source, limits)?;
        let len = source.len().saturating_sub(before);
        let archive_source = Arc::new(Section::new(Arc::clone(source), before, len)?);
        let mut archive = Archive::read(&archive_source, limits)?;

        // Where places count from the file's start, that is not where the archive begins.
        let Some(start) = archive.start().map(|first| before.saturating_add(first)) else {
            return Ok(None);
        };
        let content = archive.decoded(archive_source)?;
        let (mut entries, mut left_out) = (Vec::new(), Vec::new());
        for (number, entry) in archive.entries.iter().enumerate() {
            if entry.name.ends_with('/') {
                continue;
            }
            if entry.len > limits.max_companion.min(limits.max_metadata) {
                left_out.push(entry.name.clone());
                continue;
            }
            entries.push(number);
        }
        Ok(Some(Self { archive, content, entries, start, left_out }))
    }

    /// Offers the files as companions.
    pub(crate) fn offer(self, table: &mut Table) {
        let (archive, content) = (Arc::new(self.archive), Arc::new(self.content));
        for number in self.entries {
            let (archive, content) = (Arc::clone(&archive), Arc::clone(&content));
            let entry = &archive.entries[number];
            let companion = Companion { name: entry.name.clone(), len: entry.len };
            table.offer(companion, move |_| {
                let entry = &archive.entries[number];
                let mut limits = Limits::default();
                limits.max_metadata = entry.len;
                entry.content(&content, &limits)
            });
        }
    }
}
