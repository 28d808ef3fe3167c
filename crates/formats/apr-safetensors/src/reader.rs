//! Reading: one file, or the shards of one model as if they were one.

use std::cmp::Reverse;
use std::sync::Arc;

use apr_core::{
    ByteSource, Error, Escaped, FileInfo, Limits, Result, SharedSource, StoredRange, Table,
    TensorInfo, keys, read_vec,
};

use crate::dtype::rank;
use crate::header::{Entry, Header, LENGTH_BYTES, check_header_len};
use crate::text::Text;

/// Opens one file. Only the header is read; `name` appears in errors and in
/// [`CheckpointReader::files`](apr_core::CheckpointReader::files), and may be empty.
///
/// Metadata is `{"safetensors": {..}}`, see [`keys::SAFETENSORS`]: `metadata` is the file's
/// `__metadata__`, and `metadata_order` lists its keys unless they are sorted.
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
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    table(vec![OpenFile::open(Arc::new(source), name, limits)?])
}

/// A file with its header parsed and its ranges checked; entries are in stored order.
pub(crate) struct OpenFile {
    pub(crate) name: String,
    pub(crate) header: Header,
    source: SharedSource,
    data_start: u64,
}

impl OpenFile {
    pub(crate) fn open(source: SharedSource, name: &str, limits: &Limits) -> Result<Self> {
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

/// Returns the table of one file, or of all shards of a model.
pub(crate) fn table(files: Vec<OpenFile>) -> Result<Table> {
    let mut table = Table::new(&crate::FORMAT);
    table.show("files", files.len());
    // Bytes before the data, over all files.
    table.show("header_size", files.iter().map(|file| file.data_start).sum::<u64>());
    let texts = files.iter().map(|file| (file.name.as_str(), file.header.text.as_ref()));
    let (text, warnings) = Text::merge(texts);
    table.warnings = warnings;
    table.metadata.set(keys::SAFETENSORS, Text::to_value(text.as_ref()));

    let mut tensors = Vec::new();
    for (file, OpenFile { name, header, source, data_start }) in files.into_iter().enumerate() {
        tensors.extend(header.entries.into_iter().map(|Entry { info, begin, end }| {
            (info, StoredRange { file, offset: data_start + begin, len: end - begin })
        }));
        table.add_file(FileInfo { name, len: source.len() }, source);
    }
    merge_canonical_shards(&mut tensors);
    for (info, range) in tensors {
        table.add(info, range)?;
    }
    Ok(table)
}

/// Merges shards that are each in the reference library's order into that order, which the file
/// had before it was split. A large tensor gets its shard before smaller ones that precede it.
fn merge_canonical_shards(tensors: &mut [(TensorInfo, StoredRange)]) {
    fn key((info, _): &(TensorInfo, StoredRange)) -> (Reverse<Option<usize>>, &str) {
        (Reverse(rank(info.dtype)), info.name.as_str())
    }
    let mut by_shard = tensors.chunk_by(|(_, a), (_, b)| a.file == b.file);
    if by_shard.all(|shard| shard.is_sorted_by_key(key)) {
        tensors.sort_by(|a, b| key(a).cmp(&key(b)));
    }
}
