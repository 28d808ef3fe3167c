//! Files of blobs: the constants of a program that are not in it.

use std::collections::HashMap;

use apr_core::{ByteSource, DType, Error, FileInfo, Result, SharedSource, SourceSet, StoredRange};
use apr_core::{Escaped, relative_path};

use crate::tensor::{Bytes, Encoding, Tensor, element_count};

/// Prefix of the names of files: the folder of the model.
pub(crate) const FOLDER: &str = "@model_path/";

/// The version of the layout.
const VERSION: u32 = 2;

/// Bytes of the file's header, and of a blob's.
const HEADER: usize = 64;

/// First bytes of a blob's header.
const MARK: u32 = 0xdead_beef;

/// The files of a model: first the model itself, then the files that its constants refer to.
pub(crate) struct Files<'a> {
    pub(crate) sources: Vec<SharedSource>,
    pub(crate) infos: Vec<FileInfo>,
    set: Option<&'a dyn SourceSet>,
    /// The folder of the model within the set, with a slash at the end.
    folder: String,
    blobs: HashMap<String, usize>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(source: SharedSource, name: &str, set: Option<&'a dyn SourceSet>) -> Self {
        let folder = name.rfind('/').map_or("", |slash| &name[..=slash]);
        Self {
            infos: vec![FileInfo { name: name.to_owned(), len: source.len() }],
            sources: vec![source],
            set,
            folder: folder.to_owned(),
            blobs: HashMap::new(),
        }
    }

    /// The position of a file that a constant names, which is opened once.
    ///
    /// # Errors
    /// E001 for a name that leads out of the model's folder and for a file that is none, E003 for
    /// another version, E007 when it can't be read.
    fn blob_file(&mut self, given: &str) -> Result<usize> {
        if let Some(file) = self.blobs.get(given) {
            return Ok(*file);
        }
        let relative = given.strip_prefix(FOLDER).unwrap_or(given);
        let relative = relative_path(relative).map_err(|_| {
            let given = Escaped::short(given);
            let message =
                format!("the weights are in '{given}', which leads out of the model's folder");
            Error::format(message)
        })?;
        let name = format!("{}{relative}", self.folder);
        let Some(set) = self.set else {
            let message = format!(
                "the weights of this program are in files next to it ({relative}): open it in \
                 their folder"
            );
            return Err(Error::format(message));
        };
        let located = |error: Error| error.in_file(&name);
        let source: SharedSource = set.open(&name).map_err(located)?.into();
        let mut header = [0; 8];
        source.read_at(0, &mut header).map_err(located)?;
        let [_, _, _, _, version @ ..] = header;
        let version = u32::from_le_bytes(version);
        if version != VERSION {
            let message = format!("version {version} of a file of weights; there is {VERSION}");
            return Err(located(Error::version(message).at(4)));
        }
        self.infos.push(FileInfo { name, len: source.len() });
        self.sources.push(source);
        self.blobs.insert(given.to_owned(), self.infos.len() - 1);
        Ok(self.infos.len() - 1)
    }

    /// A constant whose blob has its header at `offset`.
    ///
    /// # Errors
    /// Those of its file; E002 where the header is none, or is of other elements.
    pub(crate) fn blob(
        &mut self,
        given: &str,
        offset: u64,
        encoding: Encoding,
        dims: Vec<u64>,
    ) -> Result<Tensor> {
        let file = self.blob_file(given)?;
        let name = &self.infos[file].name;
        let located = |error: Error| error.in_file(name);
        let mut header = [0; HEADER];
        self.sources[file].read_at(offset, &mut header).map_err(located)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        if word(0) != MARK {
            let message = "no blob at the offset of a constant";
            return Err(located(Error::corrupt(message).at(offset)));
        }
        if Some(word(4)) != blob_type(encoding) {
            let message = format!(
                "a constant of {} elements has a blob of type {}",
                encoding.dtype(),
                word(4)
            );
            return Err(located(Error::corrupt(message).at(offset + 4)));
        }
        let needed = encoding.len_of(element_count(&dims).map_err(located)?);
        let (len, start) = (long(8), long(16));
        if needed != Some(len) {
            let message = format!("a blob of {len} bytes does not match shape {dims:?}");
            return Err(located(Error::corrupt(message).at(offset + 8)));
        }
        if start.checked_add(len).is_none_or(|end| end > self.infos[file].len) {
            let message = format!("{len} bytes end past the end of the file");
            return Err(located(Error::corrupt(message).at(offset + 16)));
        }
        let range = StoredRange { file, offset: start, len };
        Tensor::stored(Bytes::File(range), encoding, dims).map_err(located)
    }
}

/// The number of an encoding in the headers of blobs.
fn blob_type(encoding: Encoding) -> Option<u32> {
    Some(match encoding {
        Encoding::Whole(DType::F16) => 1,
        Encoding::Whole(DType::F32) => 2,
        Encoding::Whole(DType::U8) => 3,
        Encoding::Whole(DType::I8) => 4,
        Encoding::Whole(DType::BF16) => 5,
        Encoding::Whole(DType::I16) => 6,
        Encoding::Whole(DType::U16) => 7,
        Encoding::Bits { bits: 4, signed: true, .. } => 8,
        Encoding::Bits { bits: 1, .. } => 9,
        Encoding::Bits { bits: 2, .. } => 10,
        Encoding::Bits { bits: 4, .. } => 11,
        Encoding::Bits { bits: 3, .. } => 12,
        Encoding::Bits { bits: 6, .. } => 13,
        Encoding::Whole(DType::I32) => 14,
        Encoding::Whole(DType::U32) => 15,
        Encoding::Whole(DType::F8_E4M3) => 16,
        Encoding::Whole(DType::F8_E5M2) => 17,
        _ => return None,
    })
}
