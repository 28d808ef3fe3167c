//! Which tensor of one model is which of the other: by name, by the user's word, by their bytes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use apr_core::Progress;
use apr_registry::digest::{ChunkSums, Digest, TensorDigest};
use apr_registry::{CheckpointReader, Error, Pipeline, Result, TensorInfo};
use apr_source::naming::NAMES;
use apr_view::NamePattern;
use apr_view::chunks::{chunks, take};

use super::explained::{Explained, explain};
use super::options::{DiffOptions, Side};

/// Positions of a tensor and its counterpart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) left: usize,
    pub(super) right: usize,
    /// The pair was found by equal bytes, so the values need no comparison.
    pub(super) renamed: bool,
    /// The pair was found by digests that a file states, which were not checked against the bytes.
    pub(super) by_digest: bool,
    /// Shapes differ, and the elements are compared in their order nevertheless.
    pub(super) is_flat: bool,
}

/// All pairs, and the tensors without a counterpart.
#[derive(Debug, Default)]
pub(super) struct Pairing {
    pub(super) pairs: Vec<Pair>,
    pub(super) removed: Vec<String>,
    pub(super) added: Vec<String>,
    pub(super) lonely_elements: u64,
    pub(super) bytes_read: u64,
    /// Tensors that only one model has and that are not a difference.
    pub(super) explained: Vec<Explained>,
}

/// Pairs tensors by name, then by canonical name; those left over by the digest of their bytes,
/// which are read only where a tensor of the same dtype and length is left over on the other side,
/// too.
pub(super) fn pair<P: Pipeline>(
    left_side: Side<'_>,
    right_side: Side<'_>,
    options: &DiffOptions,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Pairing> {
    let mapping: HashMap<&str, &str> =
        options.mapping.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let (Side { reader: left, .. }, Side { reader: right, .. }) = (left_side, right_side);
    check_mapping(&mapping, left, right)?;
    let names = Names::of(right_side);

    // A pattern may be of either side's names, or of the canonical ones.
    let wanted = |side: Side<'_>, position: usize| {
        let is_match =
            |filter: &NamePattern| aliases(side, position).any(|name| filter.is_match(name));
        options.filter.as_ref().is_none_or(is_match)
    };

    let mut pairing = Pairing::default();
    let mut taken = vec![false; right.tensors().len()];
    let mut left_over = Vec::new();
    for (position, info) in left.tensors().iter().enumerate() {
        let found = match mapping.get(info.name.as_str()) {
            Some(name) => names.own.get(name).copied(),
            None => aliases(left_side, position).find_map(|alias| names.find(alias)),
        };
        let is_wanted =
            wanted(left_side, position) || found.is_some_and(|right| wanted(right_side, right));
        if !is_wanted {
            continue;
        }

        // Several names may lead to one tensor: the first of them gets it.
        match found.filter(|&right| !std::mem::replace(&mut taken[right], true)) {
            Some(right) => {
                pairing.pairs.push(Pair {
                    left: position,
                    right,
                    renamed: false,
                    by_digest: false,
                    is_flat: false,
                });
            }
            None if is_auxiliary(left, position) => {}
            None => left_over.push(position),
        }
    }

    let right_over: Vec<usize> = (0..taken.len())
        .filter(|&position| {
            !taken[position] && wanted(right_side, position) && !is_auxiliary(right, position)
        })
        .collect();
    pairing.match_by_bytes(
        (left, &left_over),
        (right, &right_over),
        options.read,
        pipeline,
        progress,
    )?;
    pairing.pairs.sort_by_key(|pair| pair.left);
    explain(&mut pairing, [left_side, right_side], options.read, pipeline, progress)?;
    Ok(pairing)
}

/// Positions of the tensors of a side, by name.
struct Names<'a> {
    own: HashMap<&'a str, usize>,
    /// Positions by own name, canonical name and name in the source.
    aliases: HashMap<&'a str, usize>,
}

impl<'a> Names<'a> {
    fn of(side: Side<'a>) -> Self {
        let tensors = side.reader.tensors();
        let own = tensors.iter().map(|info| info.name.as_str()).zip(0..).collect();
        let aliases = (0..tensors.len())
            .flat_map(|at| aliases(side, at).map(move |alias| (alias, at)))
            .collect();
        Self { own, aliases }
    }

    /// Returns the tensor of this name; names in the checkpoint precede other names.
    fn find(&self, name: &str) -> Option<usize> {
        self.own.get(name).or_else(|| self.aliases.get(name)).copied()
    }
}

/// Returns `true` if a tensor is not a weight but data that an import added.
///
/// The other side is not expected to have such a tensor.
fn is_auxiliary(reader: &dyn CheckpointReader, position: usize) -> bool {
    reader.metadata().auxiliary_tensor() == Some(&reader.tensors()[position].name)
}

/// Returns the names of a tensor: its own, the canonical one, and that recorded by an import.
///
/// An import records the name in its source.
fn aliases(side: Side<'_>, position: usize) -> impl Iterator<Item = &str> {
    let own = side.reader.tensors()[position].name.as_str();
    let canonical = side.model.and_then(|model| model.canonical(position));
    let record = side
        .reader
        .metadata()
        .object(NAMES)
        .and_then(|record| record.get("exceptions")?.get(own)?.as_str());
    [Some(own), canonical, record].into_iter().flatten()
}

fn check_mapping(
    mapping: &HashMap<&str, &str>,
    left: &dyn CheckpointReader,
    right: &dyn CheckpointReader,
) -> Result<()> {
    if mapping.is_empty() {
        return Ok(());
    }

    let names = |reader: &dyn CheckpointReader| -> HashSet<String> {
        reader.tensors().iter().map(|info| info.name.clone()).collect()
    };
    let (left, right) = (names(left), names(right));
    for (&a, &b) in mapping {
        for (name, known, side) in [(a, &left, "left"), (b, &right, "right")] {
            if !known.contains(name) {
                let message =
                    format!("the mapping names a tensor that the {side} model does not have");
                return Err(Error::format(message).for_tensor(name));
            }
        }
    }

    Ok(())
}

/// Positions of tensors that have no counterpart yet.
type LeftOver<'a> = (&'a dyn CheckpointReader, &'a [usize]);

impl Pairing {
    fn match_by_bytes<P: Pipeline>(
        &mut self,
        left: LeftOver<'_>,
        right: LeftOver<'_>,
        read: bool,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<()> {
        let form = |info: &TensorInfo| (info.dtype, info.byte_len().unwrap_or_default());
        let mut candidates: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for &position in right.1 {
            candidates.entry(form(&right.0.tensors()[position])).or_default().push(position);
        }

        // Thousands of tensors may have the same bytes: zeros.
        let mut by_digest: HashMap<(apr_registry::DType, Digest), VecDeque<usize>> = HashMap::new();
        let mut digested = BTreeSet::new();
        for &position in left.1 {
            let info = &left.0.tensors()[position];

            // The first that asks has all of this form read; they are not read again.
            let alike = candidates.remove(&form(info)).unwrap_or_default();
            for other in alike {
                let digest = self.digest(right.0, other, read, pipeline, progress)?;
                by_digest.entry((info.dtype, digest)).or_default().push_back(other);
                digested.insert(form(info));
            }

            let counterpart = if digested.contains(&form(info)) {
                let digest = self.digest(left.0, position, read, pipeline, progress)?;
                by_digest.get_mut(&(info.dtype, digest)).and_then(VecDeque::pop_front)
            } else {
                None
            };

            match counterpart {
                Some(other) => {
                    let states =
                        |reader: &dyn CheckpointReader, at| reader.stored(at).digest().is_some();
                    let by_digest = !read && (states(left.0, position) || states(right.0, other));
                    self.pairs.push(Pair {
                        left: position,
                        right: other,
                        renamed: true,
                        by_digest,
                        is_flat: false,
                    });
                }
                None => self.lonely(info, true),
            }
        }

        let undigested = candidates.into_values().flatten();
        let mut unmatched: Vec<usize> =
            undigested.chain(by_digest.into_values().flatten()).collect();

        // A hash map gives them in another order each time.
        unmatched.sort_unstable();
        unmatched.into_iter().for_each(|position| self.lonely(&right.0.tensors()[position], false));
        Ok(())
    }

    /// Names of the tensors that only the left model has, or the right one.
    pub(super) fn lonely_names(&mut self, left: bool) -> &mut Vec<String> {
        if left { &mut self.removed } else { &mut self.added }
    }

    fn lonely(&mut self, info: &TensorInfo, left: bool) {
        self.lonely_elements += info.shape.elements().unwrap_or_default();
        self.lonely_names(left).push(info.name.clone());
    }

    /// Returns the digest stated by the file, or computes it. With `read`, always computes it.
    pub(super) fn digest<P: Pipeline>(
        &mut self,
        reader: &dyn CheckpointReader,
        tensor: usize,
        read: bool,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Digest> {
        #[derive(Default)]
        struct Hashed {
            bytes: Vec<u8>,
            sums: Option<ChunkSums>,
        }
        if let Some(digest) = reader.stored(tensor).digest().filter(|_| !read) {
            return Ok(digest);
        }

        let info = &reader.tensors()[tensor];
        let len = info.byte_len()?;
        let pieces: Vec<_> = chunks(info, len).collect();
        let mut digest = TensorDigest::new();
        let produce = |at: usize, slot: &mut Hashed| {
            let bytes = take(&mut slot.bytes, pieces[at].len);
            reader.read_tensor(tensor, pieces[at].offset, bytes)?;
            slot.sums = pieces[at].summable.then(|| ChunkSums::of(bytes, pieces[at].offset, len));
            Ok(())
        };

        pipeline.run(pieces.len(), produce, |at, slot: &mut Hashed| {
            match slot.sums {
                Some(sums) => digest.append(sums),
                None => digest.update(&slot.bytes[..pieces[at].len]),
            }
            progress.advance(pieces[at].len as u64);
            Ok(())
        })?;
        self.bytes_read += len;
        Ok(digest.value())
    }
}
