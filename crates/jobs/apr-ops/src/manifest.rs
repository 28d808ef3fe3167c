//! SHA-256 of tensors, as lists of `sha256sum` and of `gguf-hash` have them.

use std::collections::HashMap;
use std::fmt::Write;

use apr_core::{Escaped, Phase, Progress, Sum};
use apr_registry::{CheckpointReader, Error, Pipeline, Result};
use apr_view::chunks::{chunks, take};
use apr_view::nearest;
use sha2::{Digest, Sha256};

use crate::integrity::{Tally, check_parts, of_plain};
use crate::tensors::{compare, sums_of};

/// Findings that an error lists before the rest is only counted.
const LISTED: usize = 5;

/// SHA-256 digests of tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorDigests {
    /// SHA-256 digests of the chosen tensors, in their order.
    pub tensors: Vec<[u8; 32]>,
    /// SHA-256 digest of all chosen tensors, concatenated.
    pub all: [u8; 32],
}

/// Computes the SHA-256 of the decoded bytes of tensors.
///
/// # Errors
/// E002 and E007 when bytes can't be read, E004 when they don't match a checksum that the source
/// states.
pub fn digests<P: Pipeline>(
    reader: &dyn CheckpointReader,
    chosen: &[usize],
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<TensorDigests> {
    check_parts(reader, chosen.iter().copied(), pipeline)?;
    let tensors = reader.tensors();
    let stated: Vec<Option<Sum>> = chosen.iter().map(|&tensor| of_plain(reader, tensor)).collect();
    let mut tasks = Vec::new();
    for (place, &tensor) in chosen.iter().enumerate() {
        let len = tensors[tensor].byte_len()?;
        tasks.extend(chunks(&tensors[tensor], len).map(|chunk| (place, tensor, chunk)));
    }
    let mut tally = Tally::default();
    let mut hashes = vec![Sha256::new(); chosen.len()];
    let mut all = Sha256::new();
    let produce = |at: usize, (bytes, sums): &mut (Vec<u8>, Option<_>)| {
        let (place, tensor, chunk) = tasks[at];
        let bytes = take(bytes, chunk.len);
        reader.read_tensor(tensor, chunk.offset, bytes)?;
        *sums = sums_of(stated[place], chunk, bytes, tensors[tensor].byte_len()?);
        Ok(())
    };
    progress.begin(Phase::Hashing, tasks.iter().map(|(.., chunk)| chunk.len as u64).sum());
    pipeline.run(tasks.len(), produce, |at, (bytes, sums)| {
        let (place, tensor, chunk) = tasks[at];
        hashes[place].update(&bytes[..chunk.len]);
        all.update(&bytes[..chunk.len]);
        compare(reader, (tensor, stated[place]), chunk, &mut tally, (bytes, *sums))?;
        progress.advance(chunk.len as u64);
        Ok(())
    })?;
    let tensors = hashes.into_iter().map(|hash| hash.finalize().into()).collect();
    Ok(TensorDigests { tensors, all: all.finalize().into() })
}

/// Returns a line of a manifest as `sha256sum` writes it, without its end.
///
/// ```
/// use apr_ops::manifest::line;
///
/// assert_eq!(line("ab".repeat(32).as_str(), "a\nb"), format!("\\{}  a\\nb", "ab".repeat(32)));
/// ```
#[must_use]
pub fn line(digest: &str, name: &str) -> String {
    let escaped = name.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
    let mark = if escaped == name { "" } else { "\\" };
    format!("{mark}{digest}  {escaped}")
}

/// A list of digests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Manifest {
    entries: Vec<Entry>,
    /// Number of lines of `gguf-hash` with another algorithm.
    pub other_algorithms: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    line: usize,
    digest: [u8; 32],
    name: String,
    /// `true` if the name may start with a file name and a colon, or be the name of a whole file.
    is_of_file: bool,
}

impl Manifest {
    /// Reads a manifest: lines of `sha256sum` (`DIGEST  NAME`) or of `gguf-hash`
    /// (`sha256  DIGEST  FILE:NAME`). Empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    /// E001 for a line of another form, and a manifest without a digest.
    pub fn parse(text: &str) -> Result<Self> {
        let mut manifest = Self::default();
        for (at, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            manifest.add(at + 1, line)?;
        }
        if manifest.entries.is_empty() {
            return Err(Error::format("no line has a SHA-256"));
        }
        Ok(manifest)
    }

    fn add(&mut self, number: usize, line: &str) -> Result<()> {
        /// Other algorithms supported by `gguf-hash`.
        const OTHERS: [&str; 3] = ["xxh64", "sha1", "uuid"];
        let wrong = || {
            Error::format(format!(
                "line {number}: expected a SHA-256 and a name, found '{}'",
                Escaped::short(line)
            ))
        };
        let (first, rest) = line.split_once(char::is_whitespace).ok_or_else(wrong)?;
        if OTHERS.contains(&first) {
            self.other_algorithms += 1;
            return Ok(());
        }
        let is_of_file = first == "sha256";
        let (digest, name) = match is_of_file {
            true => rest.trim_start().split_once(char::is_whitespace).ok_or_else(wrong)?,
            false => (first, rest),
        };
        let (digest, is_escaped) = match digest.strip_prefix('\\') {
            Some(digest) => (digest, true),
            None => (digest, false),
        };
        let digest =
            base16ct::mixed::decode_vec(digest).ok().and_then(|bytes| bytes.try_into().ok());
        // One more space, or a star for a file that was read in binary.
        let name = match is_of_file {
            true => name.trim_start(),
            false => name.strip_prefix([' ', '*']).unwrap_or(name),
        };
        let name = if is_escaped { unescaped(name) } else { name.to_owned() };
        let digest = digest.filter(|_| !name.is_empty()).ok_or_else(wrong)?;
        self.entries.push(Entry { line: number, digest, name, is_of_file });
        Ok(())
    }

    /// Compares a model with the manifest, and returns what was compared, in words.
    ///
    /// # Errors
    /// E004 with the tensors that differ or are missing, and those of [`digests`].
    pub fn check<P: Pipeline>(
        &self,
        reader: &dyn CheckpointReader,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<String> {
        let tensors = reader.tensors();
        let positions: HashMap<&str, usize> =
            tensors.iter().enumerate().map(|(at, info)| (info.name.as_str(), at)).collect();
        let found: Vec<Option<usize>> =
            self.entries.iter().map(|entry| entry.position(&positions)).collect();
        let is_whole = |at: usize| self.entries[at].is_whole(found[at]);
        let needs_all = (0..self.entries.len()).any(is_whole);
        let mut chosen: Vec<usize> = found.iter().copied().flatten().collect();
        if needs_all {
            chosen = (0..tensors.len()).collect();
        }
        chosen.sort_unstable();
        chosen.dedup();
        let computed = digests(reader, &chosen, pipeline, progress)?;
        let of = |tensor: usize| chosen.binary_search(&tensor).map(|at| computed.tensors[at]).ok();

        let mut problems = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let actual = match found[at] {
                Some(tensor) => of(tensor),
                None if is_whole(at) => Some(computed.all),
                None => None,
            };
            if actual != Some(entry.digest) {
                problems.push(entry.problem(actual.is_some(), &positions));
            }
        }
        if let Some(message) = summary(&problems, self.entries.len()) {
            return Err(Error::checksum(message));
        }
        Ok(self.passed(found.iter().flatten().count(), tensors.len(), needs_all))
    }

    fn passed(&self, listed: usize, all: usize, is_whole: bool) -> String {
        let mut text = format!("{listed} of {} match the manifest", tensors_of(all));
        if is_whole {
            text.push_str(", and all of them together");
        }
        if self.other_algorithms > 0 {
            let _ = write!(text, "; {} lines of other algorithms skipped", self.other_algorithms);
        }
        text
    }
}

fn tensors_of(count: usize) -> String {
    apr_core::counted(count as u64, "tensor")
}

impl Entry {
    fn position(&self, positions: &HashMap<&str, usize>) -> Option<usize> {
        let name = self.name.as_str();
        let behind = || {
            let mut colons = name.match_indices(':').filter(|_| self.is_of_file);
            colons.find_map(|(at, _)| positions.get(&name[at + 1..]))
        };
        positions.get(name).or_else(behind).copied()
    }

    /// Returns `true` if the entry is the digest of a whole file's tensors.
    fn is_whole(&self, tensor: Option<usize>) -> bool {
        tensor.is_none() && self.is_of_file && !self.name.contains(':')
    }

    fn problem(&self, is_there: bool, positions: &HashMap<&str, usize>) -> String {
        let name = Escaped::short(&self.name);
        if is_there {
            return format!("'{name}' differs (line {})", self.line);
        }
        let similar = nearest(&self.name, positions.keys().copied(), 1);
        let hint = similar.first().map_or_else(String::new, |similar| {
            format!("; the nearest name is '{}'", Escaped::short(similar))
        });
        format!("'{name}' is missing (line {}{hint})", self.line)
    }
}

fn summary(problems: &[String], all: usize) -> Option<String> {
    let [_, ..] = problems else { return None };
    let listed = problems.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match problems.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let count = problems.len();
    Some(format!("{count} of {all} digests do not match: {listed}{more}"))
}

/// A name that `sha256sum` wrote with escapes.
fn unescaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut chars = name.chars();
    while let Some(char) = chars.next() {
        let next = if char == '\\' { chars.next() } else { None };
        match next {
            None => text.push(char),
            Some('n') => text.push('\n'),
            Some('r') => text.push('\r'),
            Some(other) => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let manifest = Manifest::parse(text).expect("a manifest");
        manifest.entries.into_iter().map(|entry| entry.name).collect()
    }

    #[test]
    fn lines_of_both_programs_are_read() {
        let digest = "0f".repeat(32);
        let text = format!(
            "# a comment\n{digest}  a.weight\n{digest} *b c\n\nsha256  {digest}  m.gguf:a:b\n\
             xxh64  0123  m.gguf:a\n\\{digest}  x\\ny\\\\\n"
        );
        assert_eq!(names(&text), ["a.weight", "b c", "m.gguf:a:b", "x\ny\\"]);
        assert_eq!(Manifest::parse(&text).expect("a manifest").other_algorithms, 1);
        for name in ["a", " a", "a\\b", "a\r\nb", "*"] {
            assert_eq!(names(&line(&digest, name)), [name]);
        }
    }

    #[test]
    fn lines_of_another_form_are_refused_with_their_number() {
        let digest = "0f".repeat(32);
        for wrong in ["x", "0f  a", "sha256 a", &digest, &format!("{digest}  ")] {
            let text = format!("{digest}  a\n{wrong}\n");
            let error = Manifest::parse(&text).expect_err(wrong);
            assert!(error.message().contains("line 2"), "{error}");
        }
        assert!(Manifest::parse("# nothing\n").is_err());
    }
}
