//! Opening the shards that an index names.

use apr_core::{CheckpointReader, Escaped, Limits, Result, ShardIndex, SourceSet, Table};
use serde_json::Number;

use crate::reader::{OpenFile, table};

/// Opens the shards that an index (`*.index.json`) names, through the set, and checks index and
/// shards against each other.
///
/// Tensors are listed in the reference library's order if each shard keeps it, otherwise shard by
/// shard, with shards sorted by name. [`CheckpointReader::files`] lists the shards, not the index.
///
/// ```
/// use apr_core::{ByteSource, CheckpointReader, Error, IoCause, Limits, Result, SourceSet};
///
/// struct Folder;
/// impl SourceSet for Folder {
///     fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
///         let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   "#;
///         match name {
///             "m-00001-of-00001.safetensors" => Ok(Box::new(
///                 [&(header.len() as u64).to_le_bytes()[..], &header[..], &[7][..]].concat(),
///             )),
///             _ => Err(Error::io(IoCause::NotFound, "no such file")),
///         }
///     }
///     fn list(&self) -> Result<Vec<String>> {
///         Ok(vec!["m-00001-of-00001.safetensors".into()])
///     }
/// }
///
/// let index = br#"{"weight_map": {"a": "m-00001-of-00001.safetensors"}}"#;
/// let reader = apr_safetensors::open_index(
///     index,
///     "m.safetensors.index.json",
///     &Folder,
///     &Limits::default(),
/// )?;
/// assert_eq!(reader.tensor_slice(0), Some(&[7][..]));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// As [`open`](crate::open) for each shard; E001 for an index that is malformed or names a file
/// outside the folder, E002 if index and shards disagree on the tensors, E007 for an absent shard.
pub fn open_index(
    index_json: &[u8],
    index_name: &str,
    set: &dyn SourceSet,
    limits: &Limits,
) -> Result<Table> {
    let index = ShardIndex::parse(index_json, index_name, limits)?;
    let files =
        index.open_shards(set, |source, shard| OpenFile::open(source.into(), shard, limits))?;
    index.check_tensors(
        files.iter().map(|file| file.header.entries.iter().map(|entry| entry.info.name.as_str())),
    )?;

    let mut table = table(files)?;
    check_metadata(&index, &mut table, index_name);
    Ok(table)
}

/// Adds warnings about wrong or unused metadata in the index. The weights stay readable in both
/// cases.
fn check_metadata(index: &ShardIndex<Number>, table: &mut Table, index_name: &str) {
    let index_name = Escaped::short(index_name);
    let total: u128 =
        (0..table.tensors().len()).map(|tensor| u128::from(table.stored(tensor).range.len)).sum();

    // Some writers give the size as a float.
    if let Some(stated) = index.total_size().and_then(Number::as_f64)
        && stated != total as f64
    {
        table.warnings.push(format!(
            "{index_name}: total_size is {stated}, but the tensors take {total} bytes"
        ));
    }
    if let Some(warning) = index.unread_warning() {
        table.warnings.push(warning);
    }
}
