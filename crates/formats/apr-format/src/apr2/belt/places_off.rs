//! The belt where there are no threads: work is done at once, and no parcel is ever on it.

use apr_core::Result;

use super::Parcel;

/// Parcels in the order of the file.
#[derive(Default)]
pub(in crate::apr2) struct Belt;

#[allow(clippy::unused_self, reason = "as with threads")]
impl Belt {
    /// Does the parcel's work and hands it back.
    pub(in crate::apr2) fn put(
        &self,
        mut parcel: Parcel,
        work: impl Fn(&mut Parcel),
    ) -> Option<Parcel> {
        work(&mut parcel);
        Some(parcel)
    }

    pub(in crate::apr2) fn len(&self) -> usize {
        0
    }

    pub(in crate::apr2) fn help(&self, _work: impl Fn(&mut Parcel)) -> bool {
        false
    }

    pub(in crate::apr2) fn take_done(&self) -> Option<Parcel> {
        None
    }

    pub(in crate::apr2) fn take(&self, _work: impl Fn(&mut Parcel)) -> Option<Result<Parcel>> {
        None
    }
}
