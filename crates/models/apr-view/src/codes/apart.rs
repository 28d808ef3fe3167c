//! The parts of weights in codes and scales under the names that the weights have by then.

use std::collections::HashMap;

use apr_core::{
    CheckpointReader, Companion, Container, Metadata, Result, Stored, StoredRange, TensorInfo,
    keys, pass_on,
};

use serde_json::Map;

use super::coded::CONFIG;
use super::stated;
use crate::base::Base;
use crate::companions::Companions;

/// A checkpoint with the parts of each weight that is stored in codes and scales in its place, and
/// with the configuration that says how they are read: what [`Coded`](super::Coded) put together,
/// whatever renamed it since.
pub struct Apart<'a> {
    base: Base<'a>,
    tensors: Vec<TensorInfo>,
    origins: Vec<PartOrigin>,
    metadata: Metadata,
    companions: Companions,
}

/// Source of a tensor of [`Apart`] in its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartOrigin {
    /// Position of a tensor of the base.
    pub tensor: usize,
    /// Part of the base's tensor; `None` for the whole tensor.
    pub part: Option<usize>,
}

impl<'a> Apart<'a> {
    /// Returns the source in the base for each tensor.
    #[must_use]
    pub fn origins(&self) -> &[PartOrigin] {
        &self.origins
    }

    /// Returns `true` if the base has weights stored in codes and scales.
    #[must_use]
    pub fn is_needed(base: &dyn CheckpointReader) -> bool {
        (0..base.tensors().len()).any(|tensor| base.stored(tensor).coding().is_some())
    }
}

impl<'a> Apart<'a> {
    /// Separates all coded weights into their parts.
    ///
    /// # Errors
    /// E007 when a companion can't be read.
    pub fn new(base: Base<'a>) -> Result<Self> {
        Self::of(base, |_| true)
    }

    /// Separates the weights of the wanted kinds into their parts; other weights are unchanged.
    ///
    /// # Errors
    /// E007 when a companion can't be read.
    pub fn of(base: Base<'a>, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let mut found = Vec::new();
        let mut undecoded = None;
        let mut renamed = Map::new();
        for (position, info) in base.tensors().iter().enumerate() {
            let coding = base.stored(position).coding();
            let Some(coding) = coding.filter(|coding| wanted(coding.kind)) else {
                found.push((info.clone(), PartOrigin { tensor: position, part: None }));
                continue;
            };
            undecoded = Some(coding.base);
            let names = coding.parts.iter().map(|part| part.name_of(&info.name));
            let names = names.collect::<Option<Vec<String>>>().unwrap_or_else(|| {
                renamed.insert(coding.weight.to_owned(), info.name.clone().into());
                coding.names().map(str::to_owned).collect()
            });
            let infos = coding.parts.iter().map(|part| &coding.base.tensors()[part.tensor]);
            let parts = infos.zip(names).enumerate().map(|(part, (info, name))| {
                let origin = PartOrigin { tensor: position, part: Some(part) };
                (TensorInfo { name, ..info.clone() }, origin)
            });
            found.extend(parts);
        }
        if let Some(undecoded) = undecoded {
            sort_as_listed(&*base, undecoded, &mut found);
        }
        let (tensors, origins) = found.into_iter().unzip();

        let mut metadata = base.metadata().clone();
        if !renamed.is_empty() {
            metadata.set(keys::CODED, renamed);
        }
        let mut companions = Companions::of(&*base);
        if let Some(undecoded) = undecoded {
            stated::put_back(undecoded.metadata(), &mut metadata);
            put_statements_back(&mut companions, &*base, undecoded)?;
        }
        Ok(Self { tensors, origins, metadata, companions, base })
    }
}

/// Sorts parts as `undecoded` lists them, if the base's other tensors are in that order.
///
/// A weight has one position, and its parts have several. Shards may store them in another order
/// than the model lists them in.
fn sort_as_listed(
    base: &dyn CheckpointReader,
    undecoded: &dyn CheckpointReader,
    found: &mut [(TensorInfo, PartOrigin)],
) {
    let place = |range: StoredRange| (range.file, range.offset, range.len);
    let listed = (0..undecoded.tensors().len()).rev();
    let listed: HashMap<(usize, u64, u64), usize> =
        listed.map(|at| (place(undecoded.stored(at).range), at)).collect();
    let position = |origin: &PartOrigin| {
        let stored = base.stored(origin.tensor);
        match origin.part.zip(stored.coding()) {
            Some((part, coding)) => Some(coding.parts[part].tensor),
            None => listed.get(&place(stored.range)).copied(),
        }
    };
    let whole = found.iter().filter(|(_, origin)| origin.part.is_none());
    let whole: Option<Vec<usize>> = whole.map(|(_, origin)| position(origin)).collect();
    if whole.is_some_and(|whole| whole.is_sorted()) {
        found.sort_by_cached_key(|(_, origin)| position(origin));
    }
}

/// Gives the companions of `base` the statements of the quantization that `undecoded` has.
fn put_statements_back(
    companions: &mut Companions,
    base: &dyn CheckpointReader,
    undecoded: &dyn CheckpointReader,
) -> Result<()> {
    for (position, companion) in undecoded.companions().iter().enumerate() {
        let there = companions.position(&companion.name);
        if companion.name == CONFIG {
            let Some(there) = there else { continue };
            let original = undecoded.read_companion(position)?;
            let now = base.read_companion(there)?;
            if let Some(bytes) = stated::back(&original, &now) {
                companions.set(there, bytes);
            }
        } else if stated::is_statement(&companion.name) && there.is_none() {
            companions.put(&companion.name, undecoded.read_companion(position)?);
        }
    }
    Ok(())
}

impl CheckpointReader for Apart<'_> {
    pass_on!(base: format, files, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let PartOrigin { tensor: position, part } = self.origins[tensor];
        let stored = self.base.stored(position);
        match part.zip(stored.coding()) {
            Some((part, coding)) => coding.base.stored(coding.parts[part].tensor),
            None => stored,
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let PartOrigin { tensor: position, part } = self.origins[tensor];
        match part.zip(self.base.stored(position).coding()) {
            Some((part, coding)) => coding.base.read_tensor(coding.parts[part].tensor, offset, buf),
            None => self.base.read_tensor(position, offset, buf),
        }
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let PartOrigin { tensor: position, part } = self.origins[tensor];
        match part {
            Some(part) => {
                let coding = self.base.stored(position).coding()?;
                coding.base.tensor_slice(coding.parts[part].tensor)
            }
            None => self.base.tensor_slice(position),
        }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(&*self.base, companion)
    }
}
