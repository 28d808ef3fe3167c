//! Opening the shards that an index names.

use apr_core::{Limits, Result, ShardIndex, SourceSet, Table};
use serde::de::IgnoredAny;

use crate::options::OpenOptions;
use crate::reader::{Opened, open_boxed};

/// Opens the shards that an index (`pytorch_model.bin.index.json`) names, through the set, and
/// checks index and shards against each other.
///
/// Tensors come shard by shard, shards sorted by name, each in its file's order.
/// [`CheckpointReader::files`](apr_core::CheckpointReader::files) lists the shards, not the index.
/// Only tensors of one shard can be tied.
///
/// ```
/// use apr_core::{
///     ByteSource, CheckpointReader, CheckpointWriter, Error, IoCause, Limits, Metadata, Notes,
///     Result, SourceSet,
/// };
/// use apr_core::{DType, Shape, TensorInfo};
///
/// struct Folder;
/// impl SourceSet for Folder {
///     fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
///         if name != "m-00001-of-00001.bin" {
///             return Err(Error::io(IoCause::NotFound, "no such file"));
///         }
///         let tensor = TensorInfo { name: "a".into(), dtype: DType::U8, shape: Shape::from([1]) };
///         let mut writer = apr_pytorch::plan(&[tensor], &Metadata::new(), &Default::default())?;
///         let mut file = Vec::new();
///         writer.begin(&mut file)?;
///         writer.write_chunk(&mut file, &[7], None)?;
///         writer.finish(&mut file, &Notes::default())?;
///         Ok(Box::new(file))
///     }
///     fn list(&self) -> Result<Vec<String>> {
///         Ok(vec!["m-00001-of-00001.bin".into()])
///     }
/// }
///
/// let index = br#"{"weight_map": {"a": "m-00001-of-00001.bin"}}"#;
/// let reader = apr_pytorch::open_index(index, "m.bin.index.json", &Folder, &Limits::default())?;
/// assert_eq!(reader.tensor_slice(0), Some(&[7][..]));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// As [`open`](crate::open) for each shard; E001 for an index that is malformed or names a file
/// outside the folder, E002 where index and shards disagree on the tensors, E007 for an absent
/// shard.
pub fn open_index(
    index_json: &[u8],
    index_name: &str,
    set: &dyn SourceSet,
    limits: &Limits,
) -> Result<Table> {
    open_index_with(index_json, index_name, set, limits, &OpenOptions::default())
}

/// Opens the shards of an index, or a part of their tensors.
///
/// The index has the names with the prefix.
///
/// # Errors
/// The errors of [`open_index`]; E001 when no tensor has the prefix.
pub fn open_index_with(
    index_json: &[u8],
    index_name: &str,
    set: &dyn SourceSet,
    limits: &Limits,
    options: &OpenOptions,
) -> Result<Table> {
    // Writers differ on whether tied tensors count twice in the total size, so nothing is compared
    // with it.
    let index = ShardIndex::<IgnoredAny>::parse(index_json, index_name, limits)?;
    let whole = OpenOptions { prefix: None, ..options.clone() };
    let shards =
        index.open_shards(set, |source, shard| open_boxed(source, shard, limits, &whole))?;
    index.check_tensors(
        shards.iter().map(|shard| shard.tensors.iter().map(|info| info.name.as_str())),
    )?;

    let mut joined = Opened::join(shards);
    joined.warnings.extend(index.unread_warning());
    match &options.prefix {
        Some(prefix) => joined.select(prefix).map_err(|error| error.in_file(index_name))?.table(),
        None => joined.table(),
    }
}
