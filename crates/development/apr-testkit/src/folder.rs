use std::collections::BTreeMap;

use apr_core::{ByteSource, Error, IoCause, Result, SourceSet};

/// A model's folder in memory.
#[derive(Debug, Clone, Default)]
pub struct FolderInMemory(pub BTreeMap<String, Vec<u8>>);

impl<const N: usize> From<[(&str, Vec<u8>); N]> for FolderInMemory {
    fn from(files: [(&str, Vec<u8>); N]) -> Self {
        Self(files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect())
    }
}

impl SourceSet for FolderInMemory {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        let bytes = self
            .0
            .get(name)
            .ok_or_else(|| Error::io(IoCause::NotFound, "no such file").in_file(name))?;
        Ok(Box::new(bytes.clone()))
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }
}
