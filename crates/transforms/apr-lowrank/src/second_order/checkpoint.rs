//! A checkpoint some of whose matrices were computed anew.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use apr_core::{
    CheckpointReader, Container, DType, Error, Metadata, Result, Stored, TensorInfo, pass_on,
};
use apr_tensor::cast::cast_values;

use crate::store::FactorStore;

/// Matrices that were computed, by the names of their tensors, in a store.
pub struct Rewrites {
    store: Box<dyn FactorStore>,
    places: RwLock<HashMap<String, Place>>,
}

/// Position of a matrix in the store, and its dtype there.
#[derive(Debug, Clone, Copy)]
struct Place {
    start: u64,
    dtype: DType,
}

impl Rewrites {
    /// Creates an empty set of rewrites.
    #[must_use]
    pub fn new(store: Box<dyn FactorStore>) -> Self {
        Self { store, places: RwLock::default() }
    }

    /// Keeps the elements of a tensor as floats of a dtype.
    ///
    /// # Errors
    /// E007 when they can't be written, E008 when there is no room.
    pub fn put(&self, name: &str, dtype: DType, values: &[f32]) -> Result<()> {
        let mut bytes = Vec::new();
        cast_values(values, dtype, &mut bytes);
        let place = Place { start: self.store.append(&bytes)?, dtype };
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        places.insert(name.to_owned(), place);
        Ok(())
    }

    fn place(&self, name: &str) -> Option<Place> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.get(name).copied()
    }
}

/// Checkpoint with rewritten matrices in place of its own.
pub struct Rewritten<'b> {
    base: Box<dyn CheckpointReader + 'b>,
    rewrites: Arc<Rewrites>,
    tensors: Vec<TensorInfo>,
    /// Locations of the tensors in the store, by position.
    places: Vec<Option<Place>>,
    metadata: Metadata,
}

impl<'b> Rewritten<'b> {
    /// Over a base, with the matrices that are done.
    #[must_use]
    pub fn new(base: Box<dyn CheckpointReader + 'b>, rewrites: Arc<Rewrites>) -> Self {
        let metadata = base.metadata().clone();
        let mut tensors = base.tensors().to_vec();
        let place = |info: &mut TensorInfo| {
            let place = rewrites.place(&info.name)?;
            info.dtype = place.dtype;
            Some(place)
        };
        let places = tensors.iter_mut().map(place).collect();
        Self { base, rewrites, tensors, places, metadata }
    }

    /// Returns the metadata, to record the changes.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }
}

impl CheckpointReader for Rewritten<'_> {
    pass_on!(base: format, files, companions, read_companion, left_out, warnings);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.places[tensor] {
            Some(_) => Stored::derived_from(&*self.base, &[tensor]),
            None => self.base.stored(tensor),
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(place) = self.places[tensor] else {
            return self.base.read_tensor(tensor, offset, buf);
        };
        let info = &self.tensors[tensor];
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| info.byte_len().map_or(true, |len| end > len)) {
            return Err(Error::corrupt("the read ends past the tensor").for_tensor(&info.name));
        }
        self.rewrites.store.read_at(place.start + offset, buf)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        if self.places[tensor].is_some() { None } else { self.base.tensor_slice(tensor) }
    }

    fn container(&self) -> Container<'_> {
        self.base.container().altered()
    }
}
