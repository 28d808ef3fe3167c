//! A checkpoint seen differently: other names, other metadata, further tensors, without a copy of its weights.

use std::collections::BTreeMap;

use apr::digest::Digest;
use apr::{CheckpointReader, Error, FileInfo, FormatId, Metadata, Result, TensorInfo, keys};
use apr_core::{Companion, StoredRange};
use serde_json::Value;

/// Beginnings of names that an error lists.
const BEGINNINGS: usize = 8;

/// Where the bytes of a tensor are.
#[derive(Debug, Clone)]
enum Origin {
    /// In the base, at this position.
    Base(usize),
    /// Here.
    Own(Vec<u8>),
}

/// A changed look at a checkpoint.
///
/// ```
/// use apr::{CheckpointReader, Limits};
/// use apr_ops::view::View;
///
/// let header = br#"{"gamma":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[0; 8]);
/// let model = apr::open(file, "model.safetensors", &Limits::default())?;
///
/// let mut view = View::new(&*model);
/// view.rename(|_, name| (name == "gamma").then(|| "weight".to_owned()));
/// assert_eq!(view.tensors()[0].name, "weight");
/// # Ok::<(), apr::Error>(())
/// ```
pub struct View<'a> {
    base: &'a dyn CheckpointReader,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    origins: Vec<Origin>,
}

impl<'a> View<'a> {
    /// The checkpoint as it is.
    #[must_use]
    pub fn new(base: &'a dyn CheckpointReader) -> Self {
        Self {
            base,
            metadata: base.metadata().clone(),
            tensors: base.tensors().to_vec(),
            origins: (0..base.tensors().len()).map(Origin::Base).collect(),
        }
    }

    /// The metadata, to be changed.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Gives the tensors for which `name` has one a new name, also where the metadata tell which are tied.
    pub fn rename(&mut self, name: impl Fn(usize, &str) -> Option<String>) {
        let mut renamed = BTreeMap::new();
        for (position, info) in self.tensors.iter_mut().enumerate() {
            if let Some(new) = name(position, &info.name).filter(|new| *new != info.name) {
                let old = std::mem::replace(&mut info.name, new.clone());
                renamed.insert(old, new);
            }
        }
        let Some(ties) = self.metadata.object(keys::TIED) else { return };
        let new = |name: &str| renamed.get(name).cloned().unwrap_or_else(|| name.to_owned());
        let target = |target: &Value| target.as_str().map_or(target.clone(), |target| new(target).into());
        let ties: serde_json::Map<String, Value> = ties.iter().map(|(tied, to)| (new(tied), target(to))).collect();
        self.metadata.set(keys::TIED, ties);
    }

    /// Keeps the tensors whose names start with `prefix`, and takes it off.
    ///
    /// # Errors
    /// E001 when there is none, with the beginnings that there are.
    pub fn select(&mut self, prefix: &str) -> Result<()> {
        if !self.tensors.iter().any(|info| info.name.starts_with(prefix)) {
            let mut beginnings: Vec<&str> =
                self.tensors.iter().filter_map(|info| Some(&info.name[..=info.name.find('.')?])).collect();
            beginnings.sort_unstable();
            beginnings.dedup();
            let beginnings = beginnings.into_iter().take(BEGINNINGS).collect::<Vec<_>>().join(", ");
            return Err(Error::format(format!("no tensor's name starts with '{prefix}'; there are {beginnings}")));
        }
        self.drop_tensors(|name| !name.starts_with(prefix));
        self.rename(|_, name| name.strip_prefix(prefix).filter(|rest| !rest.is_empty()).map(str::to_owned));
        Ok(())
    }

    /// Leaves out the tensors that `unwanted` says yes to.
    pub fn drop_tensors(&mut self, unwanted: impl Fn(&str) -> bool) {
        let keep: Vec<bool> = self.tensors.iter().map(|info| !unwanted(&info.name)).collect();
        let mut kept = keep.iter();
        self.tensors.retain(|_| kept.next().copied().unwrap_or(true));
        let mut kept = keep.iter();
        self.origins.retain(|_| kept.next().copied().unwrap_or(true));
    }

    /// Adds a tensor after the others.
    pub fn add(&mut self, info: TensorInfo, bytes: Vec<u8>) {
        self.tensors.push(info);
        self.origins.push(Origin::Own(bytes));
    }
}

impl CheckpointReader for View<'_> {
    fn format(&self) -> FormatId {
        self.base.format()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> StoredRange {
        match &self.origins[tensor] {
            Origin::Base(position) => self.base.stored(*position),
            Origin::Own(bytes) => StoredRange { file: 0, offset: 0, len: bytes.len() as u64 },
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let bytes = match &self.origins[tensor] {
            Origin::Base(position) => return self.base.read_tensor(*position, offset, buf),
            Origin::Own(bytes) => bytes,
        };
        let wanted = usize::try_from(offset).ok().and_then(|start| bytes.get(start..)?.get(..buf.len()));
        let wanted = wanted.ok_or_else(|| {
            Error::corrupt("the read ends past the tensor").for_tensor(&self.tensors[tensor].name).at(offset)
        })?;
        buf.copy_from_slice(wanted);
        Ok(())
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        match &self.origins[tensor] {
            Origin::Base(position) => self.base.tensor_slice(*position),
            Origin::Own(bytes) => Some(bytes),
        }
    }

    fn digest(&self, tensor: usize) -> Option<Digest> {
        match &self.origins[tensor] {
            Origin::Base(position) => self.base.digest(*position),
            Origin::Own(_) => None,
        }
    }

    fn crc32(&self, tensor: usize) -> Option<u32> {
        match &self.origins[tensor] {
            Origin::Base(position) => self.base.crc32(*position),
            Origin::Own(_) => None,
        }
    }

    fn files(&self) -> &[FileInfo] {
        self.base.files()
    }

    fn header_fields(&self) -> Value {
        self.base.header_fields()
    }

    fn companions(&self) -> &[Companion] {
        self.base.companions()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.base.read_companion(companion)
    }

    fn left_out(&self) -> &[String] {
        self.base.left_out()
    }

    fn warnings(&self) -> &[String] {
        self.base.warnings()
    }
}
