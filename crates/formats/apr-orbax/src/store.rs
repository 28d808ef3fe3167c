//! Where values are by their keys: in files of their names, or in a database.

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::{
    ByteSource, Code, Error, FileInfo, IoCause, Limits, Result, SourceSet, StoredRange, read_vec,
};

use crate::ocdbt;

/// Files that may be open at a time. Systems allow a program some thousand.
const MAX_FILES: usize = 900;

/// The files of a checkpoint that are open.
pub(crate) struct Files<'a> {
    set: &'a dyn SourceSet,
    pub(crate) sources: Vec<Arc<dyn ByteSource>>,
    pub(crate) infos: Vec<FileInfo>,
    by_name: HashMap<String, usize>,
}

/// Bytes of a value.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// A value in a node of the database.
    Inline(Arc<[u8]>),
    Range(StoredRange),
}

impl Place {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Range(range) => range.len,
        }
    }
}

impl<'a> Files<'a> {
    pub(crate) fn new(set: &'a dyn SourceSet) -> Self {
        Self { set, sources: Vec::new(), infos: Vec::new(), by_name: HashMap::new() }
    }

    /// Opens a file, or finds it open; its number.
    pub(crate) fn open(&mut self, name: &str) -> Result<usize> {
        if let Some(&file) = self.by_name.get(name) {
            return Ok(file);
        }
        if self.sources.len() == MAX_FILES {
            return Err(Error::version(format!(
                "the checkpoint has more than {MAX_FILES} chunk files, which is not supported; \
                 Orbax joins them by default (use_ocdbt)"
            )));
        }
        let source = self.set.open(name).map_err(|error| error.in_file(name))?;
        let file = self.sources.len();
        self.infos.push(FileInfo { name: name.to_owned(), len: source.len() });
        self.sources.push(Arc::from(source));
        self.by_name.insert(name.to_owned(), file);
        Ok(file)
    }

    /// A whole file.
    pub(crate) fn whole(&mut self, name: &str, limits: &Limits) -> Result<Vec<u8>> {
        let file = self.open(name)?;
        let source = &self.sources[file];
        limits.check_metadata(source.len())?;
        read_vec(source, 0, source.len()).map_err(|error| error.in_file(name))
    }

    /// The bytes of a value.
    pub(crate) fn read(&self, place: &Place, limits: &Limits) -> Result<Vec<u8>> {
        match place {
            Place::Inline(bytes) => Ok(bytes.to_vec()),
            Place::Range(StoredRange { file, offset, len }) => {
                limits.check_metadata(*len)?;
                let read = read_vec(&self.sources[*file], *offset, *len);
                read.map_err(|error| error.in_file(&self.infos[*file].name))
            }
        }
    }
}

/// Values by their keys.
pub(crate) enum Store {
    /// A file for each.
    Files,
    /// All values of a database.
    Database(HashMap<String, Place>),
}

impl Store {
    pub(crate) fn open(ocdbt: bool, files: &mut Files<'_>, limits: &Limits) -> Result<Self> {
        if ocdbt { Ok(Self::Database(ocdbt::read(files, limits)?)) } else { Ok(Self::Files) }
    }

    /// Returns the position of a value, or `None` if the key does not exist.
    pub(crate) fn find(&self, key: &str, files: &mut Files<'_>) -> Result<Option<Place>> {
        match self {
            Self::Database(places) => Ok(places.get(key).cloned()),
            Self::Files => match files.open(key) {
                Ok(file) => {
                    let len = files.infos[file].len;
                    Ok(Some(Place::Range(StoredRange { file, offset: 0, len })))
                }
                Err(error)
                    if error.code() == Code::Io && error.cause() == Some(IoCause::NotFound) =>
                {
                    Ok(None)
                }
                Err(error) => Err(error),
            },
        }
    }
}
