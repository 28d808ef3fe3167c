//! Reading: one file, or the shards of one model as if they were one.

use std::cmp::Reverse;
use std::fmt;

use apr_core::{
    ByteSource, CheckpointReader, ContainerFacts, Error, Escaped, FileInfo, Format, Limits,
    Metadata, Result, Stored, StoredRange, TensorInfo, check_range, has_no, has_own, keys,
    read_vec,
};

use serde_json::{Value, json};

use crate::dtype::rank;
use crate::header::{Entry, Header, LENGTH_BYTES, check_header_len};
use crate::text::Text;

/// Opens one file. Only the header is read; `name` appears in errors and in
/// [`CheckpointReader::files`], and may be empty.
///
/// ```
/// use apr_core::{CheckpointReader, Code, Limits};
///
/// let header = br#"{"scale":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&[1, 2, 3]);
///
/// let reader = apr_safetensors::open(file.clone(), "tiny.safetensors", &Limits::default())?;
/// assert_eq!(reader.tensors()[0].name, "scale");
/// assert_eq!(reader.tensor_slice(0), Some(&[1, 2, 3][..]));
///
/// file.pop();
/// let error = apr_safetensors::open(file, "tiny.safetensors", &Limits::default()).unwrap_err();
/// assert_eq!(error.code(), Code::Corrupt);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a header that breaks the format, E002 where it contradicts the file's length or itself,
/// E003 for an unknown dtype, E007 when reading fails, E008 for a header over the limit.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<SafetensorsReader> {
    Ok(SafetensorsReader::new(vec![OpenFile::open(Box::new(source), name, limits)?]))
}

/// A file with its header parsed and its ranges checked; entries are in stored order.
pub(crate) struct OpenFile {
    pub(crate) name: String,
    pub(crate) header: Header,
    source: Box<dyn ByteSource>,
    data_start: u64,
}

impl OpenFile {
    pub(crate) fn open(source: Box<dyn ByteSource>, name: &str, limits: &Limits) -> Result<Self> {
        let parse = || {
            // Asked for once: the sums below must hold even where a source changes its mind.
            let file_len = source.len();
            let header_len = header_len(&*source, file_len, limits)?;
            let mut header = Header::parse(&read_vec(&*source, LENGTH_BYTES, header_len)?)?;
            let data_start = LENGTH_BYTES + header_len;
            check_ranges(&mut header.entries, data_start, file_len)?;
            Ok((header, data_start))
        };
        let (header, data_start) = parse().map_err(|error: Error| error.in_file(name))?;
        Ok(Self { name: name.to_owned(), header, source, data_start })
    }
}

/// Returns the header's length, after checking that the file has that many bytes and that the
/// limits permit them.
fn header_len(source: &dyn ByteSource, file_len: u64, limits: &Limits) -> Result<u64> {
    let truncated = |what: &str| {
        Error::corrupt(format!("{what}, but the file is truncated to {file_len} bytes"))
    };
    if file_len < LENGTH_BYTES {
        return Err(truncated("the header's length takes 8 bytes").at(0));
    }

    let mut length = [0; 8];
    source.read_at(0, &mut length)?;
    let header_len = u64::from_le_bytes(length);
    if header_len == 0 {
        return Err(Error::format("the header is empty: its length is 0").at(0));
    }

    if file_len > LENGTH_BYTES {
        // Checked before the length is believed: files of other formats have neither.
        let mut first = [0];
        source.read_at(LENGTH_BYTES, &mut first)?;
        if first != [b'{'] {
            return Err(Error::format(
                "this is not safetensors: the header does not start with '{'",
            )
            .at(LENGTH_BYTES));
        }
    }

    if header_len > file_len - LENGTH_BYTES {
        return Err(truncated(&format!("the header takes {header_len} bytes")).at(0));
    }

    limits.check_metadata(header_len).map_err(|error| error.at(0))?;
    check_header_len(header_len).map_err(|error| error.at(0))?;
    Ok(header_len)
}

/// Sorts entries in stored order, and checks that they cover the data without holes or overlaps.
fn check_ranges(entries: &mut [Entry], data_start: u64, file_len: u64) -> Result<()> {
    for Entry { info, begin, end } in entries.iter() {
        check_length(info, *begin, *end).map_err(|error| error.for_tensor(&info.name))?;
    }

    // Empty tensors come before one that starts where they lie; among themselves they keep the
    // header's order.
    entries.sort_by_key(|entry| (entry.begin, entry.end));

    let data_len = file_len - data_start;
    let mut covered = 0;
    let mut previous: Option<&str> = None;
    for Entry { info, begin, end } in entries.iter() {
        let problem = if *end > data_len {
            let end = data_start.saturating_add(*end);
            format!(
                "its bytes reach to byte {end}, but the file is truncated to \
                 {file_len} bytes"
            )
        } else if *begin > covered {
            format!("the {} bytes before it belong to no tensor", begin - covered)
        } else if *begin < covered {
            format!(
                "its bytes overlap the bytes of '{}'",
                Escaped::short(previous.unwrap_or_default())
            )
        } else {
            covered = *end;
            previous = Some(&info.name);
            continue;
        };

        return Err(Error::corrupt(problem)
            .for_tensor(&info.name)
            .at(data_start.saturating_add(*begin)));
    }

    if covered < data_len {
        let rest = data_len - covered;
        let error = Error::corrupt(match previous {
            Some(_) => format!("{rest} bytes after it, the last one, belong to no tensor"),
            None => format!("the header names no tensor, but {rest} bytes follow it"),
        });
        let error = if let Some(last) = previous { error.for_tensor(last) } else { error };
        return Err(error.at(data_start + covered));
    }

    Ok(())
}

fn check_length(info: &TensorInfo, begin: u64, end: u64) -> Result<()> {
    let TensorInfo { dtype, shape, .. } = info;
    let Some(len) = end.checked_sub(begin) else {
        return Err(Error::format(format!("data_offsets [{begin}, {end}] end before they begin")));
    };
    match dtype.stored_len(shape) {
        Some(expected) if expected == len => Ok(()),
        Some(expected) => Err(Error::corrupt(format!(
            "the shape {shape} of {dtype} takes {expected} bytes, but data_offsets [{begin}, \
             {end}] hold {len}"
        ))),
        None => Err(Error::corrupt(format!(
            "the shape {shape} of {dtype} has no valid length in bytes"
        ))),
    }
}

/// A safetensors checkpoint opened for reading: one file, or all shards of a model.
///
/// [`open`] and [`open_index`](crate::open_index) make it. Metadata is `{"safetensors": {..}}`, see
/// [`keys::SAFETENSORS`]: `metadata` is the file's `__metadata__`, and `metadata_order` lists its
/// keys unless they are sorted. Tensor positions given to its methods must be below the number of
/// [`tensors`](CheckpointReader::tensors).
pub struct SafetensorsReader {
    sources: Vec<Box<dyn ByteSource>>,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    stored: Vec<StoredRange>,
    metadata: Metadata,
    /// Bytes before the data, over all files.
    header_size: u64,
    warnings: Vec<String>,
}

impl SafetensorsReader {
    pub(crate) fn new(files: Vec<OpenFile>) -> Self {
        let texts = files.iter().map(|file| (file.name.as_str(), file.header.text.as_ref()));
        let (text, warnings) = Text::merge(texts);
        let mut metadata = Metadata::new();
        metadata.set(keys::SAFETENSORS, Text::to_value(text.as_ref()));

        let (tensors, stored) = (Vec::new(), Vec::new());
        let header_size = files.iter().map(|file| file.data_start).sum();
        let mut reader = Self {
            sources: Vec::new(),
            files: Vec::new(),
            tensors,
            stored,
            metadata,
            header_size,
            warnings,
        };

        for (file, OpenFile { name, header, source, data_start }) in files.into_iter().enumerate() {
            for Entry { info, begin, end } in header.entries {
                reader.tensors.push(info);
                reader.stored.push(StoredRange {
                    file,
                    offset: data_start + begin,
                    len: end - begin,
                });
            }
            reader.files.push(FileInfo { name, len: source.len() });
            reader.sources.push(source);
        }

        reader.merge_canonical_shards();
        reader
    }

    /// Merges shards that are each in the reference library's order into that order, which the file
    /// had before it was split. A large tensor gets its shard before smaller ones that precede it.
    fn merge_canonical_shards(&mut self) {
        let key =
            |&at: &usize| (Reverse(rank(self.tensors[at].dtype)), self.tensors[at].name.as_str());
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        let by_shard = order.chunk_by(|&a, &b| self.stored[a].file == self.stored[b].file);
        if self.files.len() < 2 || !by_shard.into_iter().all(|shard| shard.is_sorted_by_key(key)) {
            return;
        }
        order.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut tensors: Vec<_> = std::mem::take(&mut self.tensors).into_iter().map(Some).collect();
        self.tensors = order.iter().filter_map(|&at| tensors[at].take()).collect();
        self.stored = order.iter().map(|&at| self.stored[at]).collect();
    }

    pub(crate) fn sources(&self) -> &[Box<dyn ByteSource>] {
        &self.sources
    }

    pub(crate) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }
}

impl ContainerFacts for SafetensorsReader {
    fn header_fields(&self) -> Value {
        json!({ "files": self.files.len(), "header_size": self.header_size })
    }
}

impl CheckpointReader for SafetensorsReader {
    has_own!(metadata, tensors, container, files, warnings);
    has_no!(companions, left_out);

    fn format(&self) -> &'static Format {
        &crate::FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        Stored::plain(self.stored[tensor])
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (range, name) = (self.stored[tensor], &self.tensors[tensor].name);
        let locate = |error: Error| error.in_file(&self.files[range.file].name).for_tensor(name);
        check_range(offset, buf.len(), range.len).map_err(locate)?;
        self.sources[range.file].read_at(range.offset + offset, buf).map_err(locate)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let StoredRange { file, offset, len } = *self.stored.get(tensor)?;
        self.sources[file].slice_at(offset, len)
    }
}

impl fmt::Debug for SafetensorsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("SafetensorsReader");
        debug
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .field("metadata", &self.metadata);
        debug.finish_non_exhaustive()
    }
}
