//! Reading: one file, or the parts of one model as if they were one.

use std::fmt;

use apr_core::{
    ByteSource, CheckpointReader, ContainerFacts, Error, FileInfo, Format, KeyValues, Limits,
    Metadata, Result, Stored, StoredRange, TensorInfo, check_range, has_no, has_own, keys,
};
use serde_json::{Map, Value as Json, json};

use crate::derived::derived;
use crate::open_file::{OpenFile, in_file_warning, is_tied};
use crate::part::SplitPart;
use crate::swap;
use crate::tail::TAIL;

/// Number of bytes of a big-endian tensor that are swapped together.
const TURNED: usize = 1 << 16;

/// Opens one file. Only the header is read; `name` appears in errors and in
/// [`CheckpointReader::files`], and may be empty.
///
/// A part of a split model is opened by itself, with a warning; [`open_split`](crate::open_split)
/// opens all of them.
///
/// ```
/// use apr_core::{CheckpointReader, Code, Limits};
///
/// let mut file = b"GGUF\x03\0\0\0".to_vec();
/// file.extend(1_u64.to_le_bytes()); // tensors
/// file.extend(0_u64.to_le_bytes()); // key-value pairs
/// file.extend(5_u64.to_le_bytes());
/// file.extend(b"scale");
/// file.extend(1_u32.to_le_bytes()); // dimensions
/// file.extend(3_u64.to_le_bytes());
/// file.extend(24_u32.to_le_bytes()); // i8
/// file.extend(0_u64.to_le_bytes()); // offset
/// file.resize(64, 0);
/// file.extend([1, 2, 3]);
///
/// let reader = apr_gguf::open(file.clone(), "tiny.gguf", &Limits::default())?;
/// assert_eq!(reader.tensors()[0].name, "scale");
/// assert_eq!(reader.tensor_slice(0), Some(&[1, 2, 3][..]));
///
/// file.pop();
/// let error = apr_gguf::open(file, "tiny.gguf", &Limits::default()).unwrap_err();
/// assert_eq!(error.code(), Code::Corrupt);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a header that breaks the format, E002 where it contradicts the file's length or itself,
/// E003 for a newer version, a type that was removed from ggml, or a big-endian type without an
/// agreed order of bytes, E007 when reading fails, E008 for a header over the limits.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<GgufReader> {
    Ok(GgufReader::alone(OpenFile::open(Box::new(source), name, limits)?))
}

/// A GGUF checkpoint opened for reading: one file, or all parts of a split model.
///
/// [`open`] and [`open_split`](crate::open_split) create it. Metadata hold all key-value pairs,
/// typed and in order, under [`keys::GGUF`] ([`key_values`](crate::key_values) returns them), and
/// the result of [`derived`](crate::derived()). Bytes of tensors are little-endian, whatever the
/// file's order. Tensor positions passed to its methods must be below the number of
/// [`tensors`](CheckpointReader::tensors).
pub struct GgufReader {
    sources: Vec<Box<dyn ByteSource>>,
    files: Vec<FileInfo>,
    /// `true` for each file whose numbers are big-endian.
    big_endian: Vec<bool>,
    tensors: Vec<TensorInfo>,
    stored: Vec<StoredRange>,
    metadata: Metadata,
    header_fields: Json,
    warnings: Vec<String>,
}

impl GgufReader {
    /// One file, which may be a part of a split model.
    pub(crate) fn alone(file: OpenFile) -> Self {
        let part = SplitPart::of(&file).filter(|part| part.count > 1);
        let mut reader = Self::new(vec![file]);
        if let Some(SplitPart { number, count }) = part {
            let number = number.saturating_add(1);
            let warning = format!(
                "this is part {number} of {count} alone; the others hold the rest of the model"
            );
            reader.warn(in_file_warning(&reader.files[0].name, &warning));
        }
        reader
    }

    /// The files of a model, the one with its metadata first.
    pub(crate) fn new(files: Vec<OpenFile>) -> Self {
        let header_size: u64 = files.iter().map(|file| file.header.end).sum();
        let mut reader = Self {
            sources: Vec::new(),
            files: Vec::new(),
            big_endian: Vec::new(),
            tensors: Vec::new(),
            stored: Vec::new(),
            metadata: Metadata::new(),
            header_fields: Json::Null,
            warnings: Vec::new(),
        };

        let mut first = None;
        let is_split = files.len() > 1;
        for (file, OpenFile { name, header, source, len, data_start, tail, warnings }) in
            files.into_iter().enumerate()
        {
            reader.warnings.extend(warnings);
            for entry in header.entries {
                // Lengths were checked when the file was opened.
                let len = entry.info.dtype.stored_len(&entry.info.shape).unwrap_or_default();
                reader.stored.push(StoredRange { file, offset: data_start + entry.offset, len });
                reader.tensors.push(entry.info);
            }
            reader.big_endian.push(header.big_endian);
            reader.files.push(FileInfo { name, len });
            reader.sources.push(source);
            let alignment = header.states_alignment.then_some(header.alignment);
            let tail = tail.filter(|_| !is_split);
            first.get_or_insert((
                header.version,
                alignment,
                header.alignment,
                header.big_endian,
                header.pairs,
                tail,
            ));
        }
        if let Some((version, stated, alignment, big_endian, pairs, tail)) = first {
            let endian = if big_endian { "big" } else { "little" };
            reader.header_fields = json!({
                "files": reader.files.len(),
                "version": version,
                "endian": endian,
                "alignment": alignment,
                "key_values": pairs.len(),
                "header_size": header_size,
            });
            reader.describe(version, endian, stated, pairs);
            if let (Some(tail), Some(mut gguf)) =
                (tail, reader.metadata.object(keys::GGUF).cloned())
            {
                gguf.insert(TAIL.into(), tail.into_json());
                reader.metadata.set(keys::GGUF, gguf);
            }
        }

        reader
    }

    fn describe(&mut self, version: u32, endian: &str, alignment: Option<u64>, pairs: KeyValues) {
        self.metadata = derived(&pairs);
        // An importance matrix is no model, and has none.
        let is_model = pairs.text("general.type") != Some("imatrix");
        if is_model && self.metadata.get(keys::MODEL_TYPE).is_none() {
            let warning = "missing general.architecture; llama.cpp refuses such files";
            self.warn(in_file_warning(&self.files[0].name, warning));
        }

        if is_tied(&self.tensors) {
            let architecture = self.metadata.object(keys::ARCHITECTURE).cloned();
            let mut architecture = architecture.unwrap_or_default();
            architecture.insert("tie_word_embeddings".into(), true.into());
            self.metadata.set(keys::ARCHITECTURE, architecture);
        }

        let mut gguf = Map::new();
        gguf.insert("version".into(), version.into());
        gguf.insert("endian".into(), endian.into());
        if let Some(alignment) = alignment {
            gguf.insert("alignment".into(), alignment.into());
        }

        self.metadata.set(keys::GGUF, gguf);
        self.metadata.set_key_values(pairs);
    }

    pub(crate) fn is_one_little_endian_file(&self) -> bool {
        self.big_endian == [false]
    }

    pub(crate) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Returns `true` if the file stores the numbers of a tensor in the other byte order.
    fn is_turned(&self, tensor: usize) -> bool {
        self.big_endian[self.stored[tensor].file]
            && swap::numbers(self.tensors[tensor].dtype) != Some(&[])
    }

    /// Fills `buf` from whole blocks that are turned little-endian on the way. The range is inside
    /// the tensor.
    fn read_turned(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (range, dtype) = (self.stored[tensor], self.tensors[tensor].dtype);
        let (block_len, numbers) = (dtype.block_bytes(), swap::numbers(dtype).unwrap_or_default());
        let block = usize::try_from(block_len).unwrap_or(1);
        let end = offset + buf.len() as u64;
        let mut whole = Vec::new();
        let (mut rest, mut position) = (buf, offset);
        while position < end {
            let start = position - position % block_len;
            let piece =
                (end.next_multiple_of(block_len) - start).min((TURNED / block * block) as u64);
            whole.resize(usize::try_from(piece).unwrap_or(block), 0);
            self.sources[range.file].read_at(range.offset + start, &mut whole)?;
            swap::swap(&mut whole, block, numbers);

            let wanted = &whole[usize::try_from(position - start).unwrap_or_default()..];
            let (now, later) = rest.split_at_mut(wanted.len().min(rest.len()));
            now.copy_from_slice(&wanted[..now.len()]);
            position += now.len() as u64;
            rest = later;
        }

        Ok(())
    }
}

impl ContainerFacts for GgufReader {
    fn header_fields(&self) -> Json {
        self.header_fields.clone()
    }
}

impl CheckpointReader for GgufReader {
    has_own!(metadata, tensors, container, files, warnings);
    has_no!(companions, left_out);

    fn format(&self) -> &'static Format {
        &crate::FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let range = self.stored[tensor];
        if self.is_turned(tensor) { Stored::derived(range) } else { Stored::plain(range) }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (range, name) = (self.stored[tensor], &self.tensors[tensor].name);
        let locate = |error: Error| error.in_file(&self.files[range.file].name).for_tensor(name);
        check_range(offset, buf.len(), range.len).map_err(locate)?;
        if self.big_endian[range.file] {
            return self.read_turned(tensor, offset, buf).map_err(locate);
        }
        self.sources[range.file].read_at(range.offset + offset, buf).map_err(locate)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let StoredRange { file, offset, len } = *self.stored.get(tensor)?;
        if self.is_turned(tensor) {
            return None;
        }
        self.sources[file].slice_at(offset, len)
    }
}

impl fmt::Debug for GgufReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("GgufReader");
        debug
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .field("header", &self.header_fields);
        debug.finish_non_exhaustive()
    }
}
