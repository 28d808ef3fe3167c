//! Companion files of a checkpoint over another one.

use apr_core::{CheckpointReader, Companion, Result};

/// Companion files of a base, of which some are replaced, removed or added.
#[derive(Debug, Clone, Default)]
pub struct Companions {
    list: Vec<Companion>,
    contents: Vec<Content>,
}

/// Location of a companion file's bytes.
#[derive(Debug, Clone)]
enum Content {
    /// Companion file at this position in the base.
    Base(usize),
    /// Bytes in memory.
    Own(Vec<u8>),
}

impl Companions {
    /// Returns the companion files of a base, unchanged.
    #[must_use]
    pub fn of(base: &dyn CheckpointReader) -> Self {
        let list = base.companions().to_vec();
        Self { contents: (0..list.len()).map(Content::Base).collect(), list }
    }

    /// Returns names and lengths.
    #[must_use]
    pub fn list(&self) -> &[Companion] {
        &self.list
    }

    /// Returns the position of the file with this name.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|file| file.name == name)
    }

    /// Reads the file at a position; `base` is the checkpoint that the files were of.
    ///
    /// # Errors
    /// E001 without such a file, and the errors of
    /// [`read_companion`](CheckpointReader::read_companion).
    pub fn read(&self, base: &dyn CheckpointReader, position: usize) -> Result<Vec<u8>> {
        match self.contents.get(position) {
            Some(Content::Base(position)) => base.read_companion(*position),
            Some(Content::Own(bytes)) => Ok(bytes.clone()),
            None => Err(Companion::absent(position)),
        }
    }

    /// Reads the file with this name, if there is one.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_named(&self, base: &dyn CheckpointReader, name: &str) -> Result<Option<Vec<u8>>> {
        self.position(name).map(|position| self.read(base, position)).transpose()
    }

    /// Replaces the contents of the file at a position.
    pub fn set(&mut self, position: usize, bytes: Vec<u8>) {
        self.list[position].len = bytes.len() as u64;
        self.contents[position] = Content::Own(bytes);
    }

    /// Replaces the contents of the file with this name, or adds the file after the others.
    pub fn put(&mut self, name: &str, bytes: Vec<u8>) {
        match self.position(name) {
            Some(position) => self.set(position, bytes),
            None => {
                self.list.push(Companion { name: name.to_owned(), len: bytes.len() as u64 });
                self.contents.push(Content::Own(bytes));
            }
        }
    }

    /// Keeps only the files for which `wanted` returns `true`.
    pub fn keep(&mut self, wanted: impl Fn(&str) -> bool) {
        let files = self.list.drain(..).zip(self.contents.drain(..));
        (self.list, self.contents) = files.filter(|(file, _)| wanted(&file.name)).unzip();
    }
}
