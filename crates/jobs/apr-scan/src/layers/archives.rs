//! Archives of pickles: ZIP and TAR.

use std::sync::Arc;

use apr_archive::{Archive, Cache, Entry, Section, tar};
use apr_core::{ByteSource, Error, Escaped, Result, read_vec};

use apr_pytorch::{PickleSurvey, Verdict};

use super::{Content, Expected, MAX_PICKLES, Scan, ScannedBytes, is_pickle, is_surely_pickle};
use crate::content::text::is_plain;
use crate::content::torch_ops;
use crate::paths::leads_out;
use crate::report::{FileVerdict, PickleReport, Reached, Remark};

/// Pickles that PyTorch's loaders read from their archives, without the folder.
const LOADED: [&str; 4] = ["data.pkl", "constants.pkl", "bytecode.pkl", "mobile_debug_handles.pkl"];

/// Kind of an archive, which determines the entries that a loader reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArchiveKind {
    /// `torch.save`'s: the pickles above, and storages.
    Torch,
    /// Any other: `numpy.load`, or a program, takes what it finds.
    Any,
}

impl Scan<'_> {
    /// An archive, or several one after the other, as a file of a distributed checkpoint has them.
    pub(super) fn zip(&mut self, place: &ScannedBytes<'_>) {
        let mut end = place.end;
        // Each is found by its end; the ones in front of it come next.
        for _ in 0..MAX_PICKLES {
            let section = Section::new(place.source, place.start, end.saturating_sub(place.start));
            match section.and_then(|section| {
                self.zip_entries(&ScannedBytes { end, ..place.clone() }, &section)
            }) {
                Ok(0) => return,
                Ok(before) => end = place.start + before,
                Err(error) => return self.problem(place, &error.to_string()),
            }
        }
        self.problem(place, &format!("only the last {MAX_PICKLES} archives are looked into"));
    }

    /// Examines an archive at the end of the bytes. Python finds it there, whatever precedes it.
    ///
    /// Returns `true` if there is one.
    pub(super) fn zip_at_the_end(&mut self, place: &ScannedBytes<'_>) -> bool {
        let Ok(section) = Section::new(place.source, place.start, place.len()) else {
            return false;
        };
        let found = Archive::survey(&section, self.limits);
        let found = found.is_ok_and(|(archive, ..)| !archive.entries.is_empty());
        if found {
            if !is_tflite(place.source, place.start) && !is_started(&section) {
                self.warn(place, "an archive follows other bytes");
            }
            self.zip(place);
        }
        found
    }

    /// Examines the last archive.
    ///
    /// Returns the number of bytes before it that are archives themselves.
    fn zip_entries(&mut self, place: &ScannedBytes<'_>, section: &dyn ByteSource) -> Result<u64> {
        let (archive, shift, odd) = Archive::survey(section, self.limits)?;
        let mut front = [0; 4];
        section.read_at(0, &mut front)?;

        // Distributed checkpoints write archives one after the other into a file.
        let is_one_of_several = shift > 0 && front == *b"PK\x03\x04";
        let is_distributed =
            is_one_of_several && place.entry.is_empty() && self.report.path.ends_with(".distcp");
        let is_expected = is_distributed || is_tflite(section, 0) || is_started(section);
        if shift > 0 && !is_expected {
            self.warn(place, &format!("{shift} bytes precede the archive"));
        }
        for what in odd {
            self.warn(place, &what);
        }

        let kind = kind(&archive);
        let cache = Arc::new(Cache::default());
        for entry in archive.entries.iter().filter(|entry| entry.compressed > 0) {
            if self.looks == 0 {
                break;
            }
            self.zip_entry(place, section, entry, kind, &cache);
        }

        Ok(if is_one_of_several { shift } else { 0 })
    }

    fn zip_entry(
        &mut self,
        place: &ScannedBytes<'_>,
        section: &dyn ByteSource,
        entry: &Entry,
        kind: ArchiveKind,
        cache: &Arc<Cache>,
    ) {
        let marked = entry.is_marked_encrypted();
        if marked && entry.is_stored() && !entry.is_as_long_as_its_content() {
            return self.problem(place, &format!("'{}' is encrypted", Escaped::short(&entry.name)));
        }

        let paid = if entry.is_stored() { Ok(()) } else { self.pay(entry.len) };
        if let Err(error) = paid {
            let name = Escaped::short(&entry.name);
            return self.problem(place, &format!("'{name}': {}", error.message()));
        }
        let content = match entry.open(section, cache) {
            Ok(content) => content,
            Err(error) => return self.problem(place, error.message()),
        };
        let inner = place_of(entry, place, &*content);
        let head = match inner.head() {
            Ok(head) => head,
            Err(error) => return self.problem(&inner, &error.to_string()),
        };
        let reached = if is_loaded(kind, &entry.name) { place.reached } else { Reached::Nobody };
        let before = self.report.pickles.len();
        let meant = content_of(kind, &entry.name);
        let expected = expected(kind, entry, &head);
        let torch = place.torch || kind == ArchiveKind::Torch;
        self.look(&ScannedBytes { expected, reached, kind: meant, torch, ..inner });
        if kind == ArchiveKind::Torch && base_name(&entry.name) == Some("bytecode.pkl") {
            self.bytecode(place, &*content);
        }

        // TorchScript's positions in the source, which no Python unpickles: only harm counts.
        if kind == ArchiveKind::Torch && entry.name.ends_with(".debug_pkl") {
            let is_harmful = |pickle: &PickleReport| {
                pickle.findings.iter().any(|finding| finding.verdict == Verdict::Dangerous)
            };
            let debug = self.report.pickles.split_off(before);
            self.report.pickles.extend(debug.into_iter().filter(is_harmful));
        }
        let found = self.report.pickles.len() > before;
        if marked {
            self.warn_of_mark(place, entry, found);
        } else if found && reached == Reached::Nobody {
            let name = Escaped::short(&entry.name);
            self.warn(
                place,
                &format!("'{name}' holds a pickle that no loader of this archive reads"),
            );
        }
    }

    /// Operators of TorchScript for mobile devices, which are texts in a pickle.
    fn bytecode(&mut self, place: &ScannedBytes<'_>, content: &dyn ByteSource) {
        let bytes = self.limits.check_companion(content.len());
        let bytes = match bytes.and_then(|()| read_vec(content, 0, content.len())) {
            Ok(bytes) => bytes,
            Err(error) => return self.problem(place, &error.to_string()),
        };
        for operator in torch_ops::reaching() {
            if bytes.windows(operator.len()).any(|window| window == operator.as_bytes()) {
                self.report.remarks.push(Remark {
                    entry: place.entry.clone(),
                    verdict: FileVerdict::Dangerous,
                    message: format!(
                        "its bytecode calls {operator}, which reaches files or other machines"
                    ),
                });
            }
        }
    }

    /// Reports a false or a real encryption mark of an entry.
    ///
    /// `found` is `true` if a pickle was found in its content.
    fn warn_of_mark(&mut self, place: &ScannedBytes<'_>, entry: &Entry, found: bool) {
        let name = Escaped::short(&entry.name);
        if found || entry.is_as_long_as_its_content() {
            self.warn(place, &format!("'{name}' is marked as encrypted, and is not"));
        } else {
            self.problem(place, &format!("'{name}' is encrypted"));
        }
    }

    pub(super) fn tar(&mut self, place: &ScannedBytes<'_>) {
        let survey = match Section::new(place.source, place.start, place.len()) {
            Ok(section) => tar::survey(&section),
            Err(error) => return self.problem(place, &error.to_string()),
        };
        self.tar_paths(place, &survey.paths);
        for what in survey.odd {
            self.warn(place, &what);
        }
        if let Some(error) = survey.problem {
            self.problem(place, &error.to_string());
        }
        let members = survey.members;
        let torch = ["storages", "pickle"]
            .iter()
            .all(|name| members.iter().any(|member| member.plain_name() == *name));
        let kind = if torch { Content::Part } else { Content::File };
        for member in members {
            let start = place.start + member.offset;
            let within = place.within(&member.name);
            let inner = ScannedBytes {
                start,
                end: start + member.len,
                expected: Expected::Pickle,
                kind,
                ..within
            };
            match member.plain_name() {
                "storages" if torch => self.listed(&inner, Listed::Storages),
                "tensors" if torch => self.listed(&inner, Listed::Tensors),
                "pickle" | "sys_info" if torch => drop(self.stream(&inner)),
                name => {
                    let expected =
                        if is_surely_pickle(name) { Expected::Pickle } else { Expected::Anything };
                    self.look(&ScannedBytes { expected, ..inner });
                }
            }
        }
    }

    /// Members and links that lead out of the folder into which an archive is unpacked.
    fn tar_paths(&mut self, place: &ScannedBytes<'_>, paths: &[String]) {
        let out: Vec<&String> = paths.iter().filter(|path| leads_out(path)).collect();
        if let [first, ..] = out.as_slice() {
            let (count, first) = (out.len(), Escaped::short(first));
            self.report.remarks.push(Remark {
                entry: place.entry.clone(),
                verdict: FileVerdict::Dangerous,
                message: format!(
                    "paths that leave the folder into which the archive is unpacked: '{first}' \
                     ({count} in all)"
                ),
            });
        }
    }

    /// Examines a count, a pickle and raw numbers for each item, and the pickles after them.
    fn listed(&mut self, place: &ScannedBytes<'_>, what: Listed) {
        let result = self.pickle_at(place, place.start).and_then(|(count, mut position)| {
            let count = count.number().unwrap_or_default();

            // A file may claim any count: each round reads on, or fails at the end.
            for _ in 0..count {
                if !self.may_look(place) {
                    break;
                }
                let (triple, next) = self.pickle_at(place, position)?;
                position = what.after(place, &triple, next)?;
            }
            Ok(position)
        });

        match result {
            Ok(position) if position < place.end => {
                self.stream(&ScannedBytes { start: position, ..place.clone() });
            }
            Ok(_) => {}
            Err(error) => self.problem(place, &error.to_string()),
        }
    }

    /// Examines one pickle and records its names. Returns the pickle and its end offset.
    fn pickle_at(
        &mut self,
        place: &ScannedBytes<'_>,
        position: u64,
    ) -> Result<(PickleSurvey, u64)> {
        let survey = PickleSurvey::read(place.source, (position, place.end), false, self.limits);
        let (next, broken) = (survey.end, !survey.is_whole());
        if broken || !survey.findings.is_empty() {
            self.stream(&ScannedBytes {
                start: position,
                end: next.max(position + 1),
                ..place.clone()
            });
        }
        if broken {
            return Err(Error::corrupt("a list of storages or tensors is damaged").at(position));
        }
        Ok((survey, next))
    }
}

/// The members of PyTorch's TAR files with numbers between their pickles.
#[derive(Clone, Copy)]
enum Listed {
    Storages,
    Tensors,
}

impl Listed {
    /// Returns the end offset of the numbers after a pickle.
    fn after(self, place: &ScannedBytes<'_>, triple: &PickleSurvey, position: u64) -> Result<u64> {
        let end = match self {
            Self::Storages => triple.storage_end(place.source)?,
            Self::Tensors => {
                let mut dims = [0; 4];
                place.source.read_at(position, &mut dims)?;
                // The dimensions, sizes and strides, and the offset, of eight bytes each.
                position + 8 + 16 * u64::from(u32::from_le_bytes(dims)) + 8
            }
        };

        if end > place.end {
            return Err(
                Error::corrupt("a storage or tensor reaches past its member's end").at(position)
            );
        }

        Ok(end)
    }
}

/// Returns the expected content of an entry, from its name and first bytes.
fn expected(kind: ArchiveKind, entry: &Entry, head: &[u8]) -> Expected {
    let looks_like_one = is_surely_pickle(&entry.name) || is_pickle(head);
    let may_be_one = !is_storage(kind, &entry.name) && !entry.is_marked_encrypted();
    if looks_like_one && may_be_one { Expected::Pickle } else { Expected::Anything }
}

/// Returns the location of an entry's content.
///
/// Stored content is a range of the file. Decompressed content has a source of its own.
fn place_of<'a>(
    entry: &'a Entry,
    place: &'a ScannedBytes<'_>,
    content: &'a dyn ByteSource,
) -> ScannedBytes<'a> {
    let within = place.within(&entry.name);
    if entry.is_stored() {
        let start = place.start + entry.place;
        ScannedBytes { start, end: start.saturating_add(entry.len), ..within }
    } else {
        ScannedBytes { depth: within.depth, ..place.decoded(content, &entry.name) }
    }
}

fn kind(archive: &Archive) -> ArchiveKind {
    let torch = archive.entries.iter().any(|entry| base_name(&entry.name) == Some("data.pkl"));
    // `torch.package` imports the code in its archive, and reads any pickle on the way.
    let package = archive.entries.iter().any(|entry| entry.name.ends_with(".data/extern_modules"));
    if torch && !package { ArchiveKind::Torch } else { ArchiveKind::Any }
}

/// The name of an entry at the top or in a folder there.
fn base_name(name: &str) -> Option<&str> {
    match name.split_once('/') {
        None => Some(name),
        Some((_, rest)) if !rest.contains('/') => Some(rest),
        Some(_) => None,
    }
}

/// Returns the role of an entry for the loader of the archive.
fn content_of(kind: ArchiveKind, name: &str) -> Content {
    match kind {
        ArchiveKind::Any => Content::File,
        ArchiveKind::Torch if name.ends_with(".py") && name.contains("code/") => Content::Code,
        ArchiveKind::Torch if is_of_torch(name) => Content::Part,
        // Whatever else is in there may be for another loader.
        ArchiveKind::Torch => Content::File,
    }
}

/// Returns `true` if an entry is a part of PyTorch's format, not a file of its own.
fn is_of_torch(name: &str) -> bool {
    let is_number = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
    let within =
        base_name(name).unwrap_or_else(|| name.split_once('/').map_or(name, |(_, rest)| rest));
    match within.rsplit_once('/') {
        Some(("data" | "constants" | "tensors", name)) => is_number(name),
        Some((".data", name)) => name == "serialization_id",
        Some(_) => name.ends_with(".debug_pkl"),
        None => {
            let known = ["version", "byteorder", ".format_version", ".storage_alignment"];
            known.contains(&within) || LOADED.contains(&within)
        }
    }
}

fn is_loaded(kind: ArchiveKind, name: &str) -> bool {
    kind == ArchiveKind::Any || base_name(name).is_some_and(|name| LOADED.contains(&name))
}

/// Bytes of a tensor, which may start like a pickle by chance.
fn is_storage(kind: ArchiveKind, name: &str) -> bool {
    kind == ArchiveKind::Torch && (name.starts_with("data/") || name.contains("/data/"))
}

/// Returns `true` for an archive behind a mark of its own: the lines that start a Python
/// application (PEP 441), or the four bytes of a Java module.
fn is_started(section: &dyn ByteSource) -> bool {
    /// Longest lines that start a program, in bytes.
    const LONGEST: u64 = 1024;

    let head = read_vec(section, 0, section.len().min(LONGEST)).unwrap_or_default();
    let start = head.windows(4).position(|bytes| bytes == b"PK\x03\x04").unwrap_or(head.len());
    let (lines, rest) = head.split_at(start);
    !rest.is_empty() && (lines == b"JM\x01\0" || lines.starts_with(b"#!") && is_plain(lines))
}

/// Returns `true` for a TFLite model.
///
/// Its metadata (labels, vocabularies) are an archive at its end.
fn is_tflite(source: &dyn ByteSource, start: u64) -> bool {
    let mut head = [0; 8];
    source.read_at(start, &mut head).is_ok() && head[4..] == *b"TFL3"
}
