//! A checkpoint seen differently: other names, other metadata, further tensors, without a copy of
//! its weights.

use std::collections::BTreeMap;

use apr_core::{
    CheckpointReader, Companion, Container, Error, Metadata, Result, Shape, Stored, StoredRange,
    TensorInfo, WEIGHTS_KEY, keys, pass_on,
};
use serde_json::Value;

use crate::base::Base;
use crate::companions::Companions;
use crate::transform::Change;
use crate::windows::Windows;

/// Beginnings of names that an error lists.
const BEGINNINGS: usize = 8;

/// Location of a tensor's bytes.
#[derive(Debug, Clone)]
pub enum TensorOrigin {
    /// Tensor at this position in the base.
    Base(usize),
    /// Bytes in memory.
    Own(Vec<u8>),
    /// Made of the base's.
    Changed(Change),
}

/// A changed look at a checkpoint.
///
/// ```
/// use apr_registry::{CheckpointReader, Limits};
/// use apr_view::View;
///
/// let header = br#"{"gamma":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[0; 8]);
/// let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
///
/// let mut view = View::new(&*model);
/// view.rename(|_, name| (name == "gamma").then(|| "weight".to_owned()));
/// assert_eq!(view.tensors()[0].name, "weight");
/// # Ok::<(), apr_registry::Error>(())
/// ```
pub struct View<'a> {
    base: Base<'a>,
    mapping: Mapping,
}

/// Contents of a [`View`] of a checkpoint, without the checkpoint.
pub struct Mapping {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    origins: Vec<TensorOrigin>,
    companions: Companions,
    windows: Option<Windows>,
}

impl<'a> View<'a> {
    /// Returns a view of the unchanged checkpoint.
    #[must_use]
    pub fn new(base: &'a dyn CheckpointReader) -> Self {
        let tensors = base.tensors().iter().cloned().enumerate();
        Self::of(
            base,
            tensors.map(|(position, info)| (info, TensorOrigin::Base(position))).collect(),
        )
    }

    /// Tensors of your own choice over the base's metadata.
    #[must_use]
    pub fn of(base: &'a dyn CheckpointReader, tensors: Vec<(TensorInfo, TensorOrigin)>) -> Self {
        let (tensors, origins) = tensors.into_iter().unzip();
        let mapping = Mapping {
            metadata: base.metadata().clone(),
            tensors,
            origins,
            companions: Companions::of(base),
            windows: None,
        };
        Self { base: base.into(), mapping }
    }

    /// Drops the base and returns the mapping, to build a view that owns its base.
    ///
    /// ```
    /// use apr_registry::{CheckpointReader, Limits};
    /// use apr_view::View;
    ///
    /// let file = b"\x02\0\0\0\0\0\0\0{}".to_vec();
    /// let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
    /// let mapping = View::new(&*model).into_mapping();
    /// let owner: View<'static> = mapping.over(model);
    /// assert!(owner.tensors().is_empty());
    /// # Ok::<(), apr_registry::Error>(())
    /// ```
    #[must_use]
    pub fn into_mapping(self) -> Mapping {
        self.mapping
    }

    /// Optimizes the view for reading from front to back.
    ///
    /// Transposed tensors are then computed from long pieces of their source, for which two buffers
    /// of `room` bytes are kept.
    #[must_use]
    pub fn read_in_order(self, room: u64) -> Self {
        let mapping = Mapping { windows: Some(Windows::of(room)), ..self.mapping };
        Self { mapping, ..self }
    }

    /// Returns the names of the base tensors from which the tensor with this name is made.
    ///
    /// The result is empty if there is no such tensor, or if it is not from the base.
    #[must_use]
    pub fn names_below(&self, name: &str) -> Vec<&str> {
        let found = self.mapping.tensors.iter().position(|info| info.name == name);
        let below = match found.and_then(|position| self.mapping.origins.get(position)) {
            Some(TensorOrigin::Base(position)) => vec![*position],
            Some(TensorOrigin::Changed(change)) => change.sources(),
            Some(TensorOrigin::Own(_)) | None => Vec::new(),
        };
        below
            .into_iter()
            .filter_map(|position| Some(self.base.tensors().get(position)?.name.as_str()))
            .collect()
    }

    /// The metadata, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.mapping.metadata
    }

    /// Renames the tensors for which `name` returns a new name, including in the metadata's list of
    /// tied tensors.
    pub fn rename(&mut self, name: impl Fn(usize, &str) -> Option<String>) {
        let mut renamed = BTreeMap::new();
        for (position, info) in self.mapping.tensors.iter_mut().enumerate() {
            if let Some(new) = name(position, &info.name).filter(|new| *new != info.name) {
                let old = std::mem::replace(&mut info.name, new.clone());
                renamed.insert(old, new);
            }
        }

        let Some(ties) = self.mapping.metadata.object(keys::TIED) else { return };
        let new = |name: &str| renamed.get(name).cloned().unwrap_or_else(|| name.to_owned());
        let target =
            |target: &Value| target.as_str().map_or(target.clone(), |target| new(target).into());
        let ties: serde_json::Map<String, Value> =
            ties.iter().map(|(tied, to)| (new(tied), target(to))).collect();
        self.mapping.metadata.set(keys::TIED, ties);
    }

    /// Keeps the tensors whose names start with `prefix`, and removes the prefix.
    ///
    /// A prefix that the reader has already removed from the names counts as present.
    ///
    /// # Errors
    /// E001 when there is none, with the beginnings that there are.
    pub fn select(&mut self, prefix: &str) -> Result<()> {
        let own = |name: &str| self.mapping.tensors.iter().any(|info| info.name.starts_with(name));
        let taken = if own(prefix) { None } else { self.behind_the_weights_key(prefix) };
        let prefix = taken.as_deref().filter(|rest| own(rest)).unwrap_or(prefix);
        if !self.mapping.tensors.iter().any(|info| info.name.starts_with(prefix)) {
            let mut beginnings: Vec<&str> = self
                .mapping
                .tensors
                .iter()
                .filter_map(|info| Some(&info.name[..=info.name.find('.')?]))
                .collect();
            beginnings.sort_unstable();
            beginnings.dedup();
            let more = if beginnings.len() > BEGINNINGS { " and others" } else { "" };
            let listed = beginnings.iter().take(BEGINNINGS).copied().collect::<Vec<_>>().join(", ");
            let there_are = match listed.as_str() {
                "" => "no name has a prefix that ends with a dot".to_owned(),
                listed => format!("prefixes in the file: {listed}{more}"),
            };
            return Err(Error::format(format!(
                "no tensor's name starts with the prefix '{prefix}'; {there_are}"
            )));
        }

        self.drop_tensors(|name| !name.starts_with(prefix));
        self.rename(|_, name| {
            name.strip_prefix(prefix).filter(|rest| !rest.is_empty()).map(str::to_owned)
        });
        Ok(())
    }

    /// Returns the rest of a prefix after the key of a training checkpoint's weights, if the reader
    /// removed that key from the names.
    fn behind_the_weights_key(&self, prefix: &str) -> Option<String> {
        let fields = self.base.container().header_fields();
        let key = fields.get(WEIGHTS_KEY)?.as_str()?;
        Some(prefix.strip_prefix(key)?.strip_prefix('.')?.to_owned())
    }

    /// Removes the tensors for which `unwanted` returns `true`.
    pub fn drop_tensors(&mut self, unwanted: impl Fn(&str) -> bool) {
        let keep: Vec<bool> =
            self.mapping.tensors.iter().map(|info| !unwanted(&info.name)).collect();
        let mut kept = keep.iter();
        self.mapping.tensors.retain(|_| kept.next().copied().unwrap_or(true));
        let mut kept = keep.iter();
        self.mapping.origins.retain(|_| kept.next().copied().unwrap_or(true));
    }

    /// Sorts the tensors by a key of their names.
    pub fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&str) -> K) {
        let mut tensors: Vec<_> =
            self.mapping.tensors.drain(..).zip(self.mapping.origins.drain(..)).collect();
        tensors.sort_by_cached_key(|(info, _)| key(&info.name));
        (self.mapping.tensors, self.mapping.origins) = tensors.into_iter().unzip();
    }

    /// Removes outermost dimensions of 1, which ggml's tensors do not have; a scalar becomes one
    /// element.
    pub fn drop_outer_ones(&mut self) {
        for info in &mut self.mapping.tensors {
            let dims = info.shape.dims();
            let kept =
                dims.iter().position(|&dim| dim != 1).unwrap_or(dims.len().saturating_sub(1));
            if kept > 0 || dims.is_empty() {
                let dims = if dims.is_empty() { vec![1] } else { dims[kept..].to_vec() };
                info.shape = Shape::from(dims);
            }
        }
    }

    /// Replaces tensors of the base by changed ones at the same position.
    ///
    /// `change` gets the position in the base and the tensor as the view describes it, and returns
    /// `None` for an unchanged tensor.
    ///
    /// # Errors
    /// Returns the errors of `change`.
    pub fn change(
        &mut self,
        change: impl Fn(usize, &TensorInfo) -> Result<Option<(TensorInfo, Change)>>,
    ) -> Result<()> {
        let Mapping { tensors, origins, .. } = &mut self.mapping;
        for (info, origin) in tensors.iter_mut().zip(origins) {
            let TensorOrigin::Base(position) = origin else { continue };
            if let Some((changed, by)) = change(*position, info)? {
                *info = changed;
                *origin = TensorOrigin::Changed(by);
            }
        }
        Ok(())
    }

    /// Keeps only the companion files for which `wanted` returns `true`.
    pub fn keep_companions(&mut self, wanted: impl Fn(&str) -> bool) {
        self.mapping.companions.keep(wanted);
    }

    /// Returns the companion files, to be changed.
    pub fn companions_mut(&mut self) -> &mut Companions {
        &mut self.mapping.companions
    }

    /// Adds a companion after the others, and removes one of that name.
    pub fn add_companion(&mut self, name: &str, bytes: Vec<u8>) {
        self.keep_companions(|other| other != name);
        self.mapping.companions.put(name, bytes);
    }

    /// Adds a tensor after the others.
    pub fn add(&mut self, info: TensorInfo, bytes: Vec<u8>) {
        self.mapping.tensors.push(info);
        self.mapping.origins.push(TensorOrigin::Own(bytes));
    }

    /// Adds a tensor before the one at this position, or after all.
    pub fn insert(&mut self, position: usize, info: TensorInfo, bytes: Vec<u8>) {
        let position = position.min(self.mapping.tensors.len());
        self.mapping.tensors.insert(position, info);
        self.mapping.origins.insert(position, TensorOrigin::Own(bytes));
    }
}

impl Mapping {
    /// The view over the checkpoint that it was made of, or one with the same tensors and
    /// companions.
    #[must_use]
    pub fn over<'a>(self, base: impl Into<Base<'a>>) -> View<'a> {
        View { base: base.into(), mapping: self }
    }
}

fn past_end(info: &TensorInfo, offset: u64) -> Error {
    Error::corrupt("the read ends past the tensor").for_tensor(&info.name).at(offset)
}

impl CheckpointReader for View<'_> {
    pass_on!(base: format, files, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.mapping.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.mapping.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match &self.mapping.origins[tensor] {
            TensorOrigin::Base(position) => self.base.stored(*position),
            TensorOrigin::Own(bytes) => {
                Stored::derived(StoredRange { file: 0, offset: 0, len: bytes.len() as u64 })
            }
            TensorOrigin::Changed(change) => {
                let sources = change.sources();
                let stored = Stored::derived_from(&*self.base, &sources);
                let elements = self.mapping.tensors[tensor].shape.elements();
                let is_whole = |at: usize| self.base.tensors()[at].shape.elements() == elements;
                match sources[..] {
                    // One tensor, decoded or turned.
                    [only] if is_whole(only) => stored.converted_from(&*self.base, only, true),
                    _ => stored,
                }
            }
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bytes = match &self.mapping.origins[tensor] {
            TensorOrigin::Base(position) => return self.base.read_tensor(*position, offset, buf),
            TensorOrigin::Own(bytes) => bytes,
            TensorOrigin::Changed(change) => {
                let end = offset.checked_add(buf.len() as u64);
                if end.is_none_or(|end| {
                    self.mapping.tensors[tensor].byte_len().is_ok_and(|len| end > len)
                }) {
                    return Err(past_end(&self.mapping.tensors[tensor], offset));
                }
                return change
                    .read(&*self.base, self.mapping.windows.as_ref(), offset, buf)
                    .map_err(|error| error.for_tensor(&self.mapping.tensors[tensor].name));
            }
        };

        let wanted =
            usize::try_from(offset).ok().and_then(|start| bytes.get(start..)?.get(..buf.len()));
        let wanted = wanted.ok_or_else(|| past_end(&self.mapping.tensors[tensor], offset))?;
        buf.copy_from_slice(wanted);
        Ok(())
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        match &self.mapping.origins[tensor] {
            TensorOrigin::Base(position) => self.base.tensor_slice(*position),
            TensorOrigin::Own(bytes) => Some(bytes),
            TensorOrigin::Changed(change) => change.slice(&*self.base),
        }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }

    fn companions(&self) -> &[Companion] {
        self.mapping.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.mapping.companions.read(&*self.base, companion)
    }
}
