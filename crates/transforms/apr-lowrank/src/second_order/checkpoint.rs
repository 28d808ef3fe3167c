//! A checkpoint some of whose matrices were computed anew.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use apr_core::{CheckpointReader, DType, Result};
use apr_tensor::cast::cast_values;
use apr_view::{Computation, Derived, Target};

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

    /// Returns a checkpoint with the matrices that are done in place of its own.
    #[must_use]
    pub fn over<'b>(
        self: &Arc<Self>,
        base: Box<dyn CheckpointReader + 'b>,
    ) -> Derived<'b, Rewritten> {
        let mut rewritten = Derived::new(base);
        for tensor in 0..rewritten.tensors().len() {
            let info = rewritten.info_mut(tensor);
            let Some(place) = self.place(&info.name) else { continue };
            info.dtype = place.dtype;
            rewritten.compute(tensor, Rewritten { rewrites: Arc::clone(self), place });
        }
        rewritten
    }

    fn place(&self, name: &str) -> Option<Place> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.get(name).copied()
    }
}

/// A matrix that is read from the store of [`Rewrites`].
pub struct Rewritten {
    rewrites: Arc<Rewrites>,
    place: Place,
}

impl Computation for Rewritten {
    fn read(&self, _target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.rewrites.store.read_at(self.place.start + offset, buf)
    }
}
