//! What is under a view: a checkpoint of somebody else's, or its own.

use std::ops::Deref;
use std::sync::Arc;

use apr_core::CheckpointReader;

/// A checkpoint that is borrowed or owned.
pub enum Base<'a> {
    /// Somebody else's.
    Borrowed(&'a dyn CheckpointReader),
    /// Kept as long as what is over it.
    Owned(Box<dyn CheckpointReader + 'a>),
    /// Used by others, too.
    Shared(Arc<dyn CheckpointReader + 'a>),
}

impl<'a> Base<'a> {
    /// Creates a base that owns the checkpoint.
    pub fn owning(reader: impl CheckpointReader + 'a) -> Self {
        Self::Owned(Box::new(reader))
    }
}

impl<'a> Deref for Base<'a> {
    type Target = dyn CheckpointReader + 'a;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Borrowed(reader) => *reader,
            Self::Owned(reader) => &**reader,
            Self::Shared(reader) => &**reader,
        }
    }
}

impl<'a> From<&'a dyn CheckpointReader> for Base<'a> {
    fn from(reader: &'a dyn CheckpointReader) -> Self {
        Self::Borrowed(reader)
    }
}

impl<'a> From<Box<dyn CheckpointReader + 'a>> for Base<'a> {
    fn from(reader: Box<dyn CheckpointReader + 'a>) -> Self {
        Self::Owned(reader)
    }
}

impl<'a> From<Arc<dyn CheckpointReader + 'a>> for Base<'a> {
    fn from(reader: Arc<dyn CheckpointReader + 'a>) -> Self {
        Self::Shared(reader)
    }
}
