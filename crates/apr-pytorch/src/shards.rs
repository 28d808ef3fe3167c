//! Opening the shards that an index names.

use std::collections::HashSet;

use apr_core::{CheckpointReader, Code, Error, Escaped, IoCause, Limits, Result, SourceSet};

use crate::index::Index;
use crate::options::OpenOptions;
use crate::reader::{PytorchReader, open_boxed};

/// Opens the shards that an index (`pytorch_model.bin.index.json`) names, through the set, and checks index and shards
/// against each other.
///
/// Tensors come shard by shard, shards sorted by name, each in its file's order. [`CheckpointReader::files`] lists the
/// shards, not the index. Only tensors of one shard can be tied.
///
/// ```
/// use apr_core::{CheckpointWriter, Notes, ByteSource, CheckpointReader, Error, IoCause, Limits, Metadata, Result, SourceSet};
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
/// As [`open`](crate::open) for each shard; E001 for an index that is malformed or names a file outside the folder,
/// E002 where index and shards disagree on the tensors, E007 for an absent shard.
pub fn open_index(index_json: &[u8], index_name: &str, set: &dyn SourceSet, limits: &Limits) -> Result<PytorchReader> {
    open_index_with(index_json, index_name, set, limits, &OpenOptions::default())
}

/// Opens the shards that an index names, or a part of what they hold. The index has the names without a prefix taken off.
///
/// # Errors
/// Those of [`open_index`]; E001 when no tensor has the prefix.
pub fn open_index_with(
    index_json: &[u8],
    index_name: &str,
    set: &dyn SourceSet,
    limits: &Limits,
    options: &OpenOptions,
) -> Result<PytorchReader> {
    let index = Index::parse(index_json, limits).map_err(|error| error.in_file(index_name))?;
    let whole = OpenOptions { prefix: None, ..options.clone() };
    let open = |shard: &String| {
        let source = set.open(shard).map_err(|error| named_by(index_name, shard, error))?;
        open_boxed(source, shard, limits, &whole)
    };
    let shards = index.shards.iter().map(open).collect::<Result<Vec<_>>>()?;
    check_names(&index, &shards, index_name)?;

    let mut reader = PytorchReader::join(shards);
    if !index.unread.is_empty() {
        let name = Escaped::short(index_name);
        reader.warn(format!("{name}: metadata is not kept: {}", index.unread.join(", ")));
    }
    match &options.prefix {
        Some(prefix) => reader.select(prefix).map_err(|error| error.in_file(index_name)),
        None => Ok(reader),
    }
}

/// Adds to an absent shard's error who asked for it.
fn named_by(index_name: &str, shard: &str, error: Error) -> Error {
    if error.code() != Code::Io {
        return error.in_file(shard);
    }
    let message = format!("{index_name} names this shard: {}", error.message());
    Error::io(error.cause().unwrap_or(IoCause::Other), message).in_file(error.file().unwrap_or(shard))
}

/// Every tensor of the index is in its shard, and every tensor of a shard is in the index.
fn check_names(index: &Index, shards: &[PytorchReader], index_name: &str) -> Result<()> {
    let mut found = HashSet::with_capacity(index.weights.len());
    for (position, shard) in shards.iter().enumerate() {
        for info in shard.tensors() {
            let problem = match index.weights.get(&info.name) {
                Some(&listed) if listed == position => {
                    found.insert(info.name.as_str());
                    continue;
                }
                Some(&listed) => format!("{index_name} says that it is in '{}'", Escaped::short(&index.shards[listed])),
                None => format!("{index_name} does not list it"),
            };
            return Err(Error::corrupt(problem).in_file(&index.shards[position]).for_tensor(&info.name));
        }
    }
    match index.weights.iter().find(|(name, _)| !found.contains(name.as_str())) {
        Some((name, &shard)) => {
            let message = format!("{index_name} lists it, but this shard has no such tensor");
            Err(Error::corrupt(message).in_file(&index.shards[shard]).for_tensor(name))
        }
        None => Ok(()),
    }
}
