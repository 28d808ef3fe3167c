//! A checkpoint some of whose matrices were computed anew.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use apr_core::{
    CheckpointReader, Container, Error, Metadata, Result, Stored, TensorInfo, keys, pass_on,
};
use apr_lowrank::FactorStore;
use apr_tensor::cast::cast_values;
use serde_json::{Map, json};

use crate::report::PruneReport;

/// Matrices that were computed, by the names of their tensors, in a store.
pub struct Rewrites {
    store: Box<dyn FactorStore>,
    places: RwLock<HashMap<String, u64>>,
}

impl Rewrites {
    /// None yet.
    #[must_use]
    pub fn new(store: Box<dyn FactorStore>) -> Self {
        Self { store, places: RwLock::default() }
    }

    /// Keeps the elements of a tensor, in its dtype.
    pub(super) fn put(&self, info: &TensorInfo, values: &[f32]) -> Result<()> {
        let mut bytes = Vec::new();
        cast_values(values, info.dtype, &mut bytes);
        let place = self.store.append(&bytes)?;
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        places.insert(info.name.clone(), place);
        Ok(())
    }

    fn place(&self, name: &str) -> Option<u64> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.get(name).copied()
    }
}

/// A checkpoint with the matrices that were computed anew in place of its own.
pub struct Rewritten<'b> {
    base: Box<dyn CheckpointReader + 'b>,
    rewrites: Arc<Rewrites>,
    metadata: Metadata,
}

impl<'b> Rewritten<'b> {
    /// Over a base, with what there is and comes.
    #[must_use]
    pub fn new(base: Box<dyn CheckpointReader + 'b>, rewrites: Arc<Rewrites>) -> Self {
        let metadata = base.metadata().clone();
        Self { base, rewrites, metadata }
    }

    /// With what was done in the metadata.
    #[must_use]
    pub fn recorded(mut self, report: &PruneReport) -> Self {
        let mut entry = Map::new();
        entry.insert("method".to_owned(), report.method.as_str().into());
        if let Some(share) = report.share {
            entry.insert("share".to_owned(), json!(share));
        }
        entry.insert("tensors".to_owned(), report.tensors.len().into());
        entry.insert("elements".to_owned(), report.total.elements.into());
        entry.insert("zeros".to_owned(), report.total.zeros.into());
        self.metadata.set(keys::SPARSITY, entry);
        self
    }

    fn place(&self, tensor: usize) -> Option<u64> {
        self.rewrites.place(&self.base.tensors()[tensor].name)
    }
}

impl CheckpointReader for Rewritten<'_> {
    pass_on!(base: format, tensors, files, companions, read_companion, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.place(tensor) {
            Some(_) => Stored::derived_from(&*self.base, &[tensor]),
            None => self.base.stored(tensor),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(place) = self.place(tensor) else {
            return self.base.read_tensor(tensor, offset, buf);
        };
        let info = &self.base.tensors()[tensor];
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| info.byte_len().map_or(true, |len| end > len)) {
            return Err(Error::corrupt("the read ends past the tensor").for_tensor(&info.name));
        }
        self.rewrites.store.read_at(place + offset, buf)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        if self.place(tensor).is_some() { None } else { self.base.tensor_slice(tensor) }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }
}
