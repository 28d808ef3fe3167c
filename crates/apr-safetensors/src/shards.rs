//! Opening the shards that an index names.

use apr_core::{CheckpointReader, Code, Error, Escaped, IoCause, Limits, Result, SourceSet};

use crate::index::Index;
use crate::reader::{OpenFile, SafetensorsReader};

/// Opens the shards that an index (`*.index.json`) names, through the set, and checks index and shards against each other.
///
/// Tensors come in the reference library's order where each shard keeps it, otherwise shard by shard, shards sorted by
/// name. [`CheckpointReader::files`] lists the shards, not the index.
///
/// ```
/// use apr_core::{ByteSource, CheckpointReader, Error, IoCause, Limits, Result, SourceSet};
///
/// struct Folder;
/// impl SourceSet for Folder {
///     fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
///         let header = br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   "#;
///         match name {
///             "m-00001-of-00001.safetensors" => {
///                 Ok(Box::new([&(header.len() as u64).to_le_bytes()[..], &header[..], &[7][..]].concat()))
///             }
///             _ => Err(Error::io(IoCause::NotFound, "no such file")),
///         }
///     }
///     fn list(&self) -> Result<Vec<String>> {
///         Ok(vec!["m-00001-of-00001.safetensors".into()])
///     }
/// }
///
/// let index = br#"{"weight_map": {"a": "m-00001-of-00001.safetensors"}}"#;
/// let reader = apr_safetensors::open_index(index, "m.safetensors.index.json", &Folder, &Limits::default())?;
/// assert_eq!(reader.tensor_slice(0), Some(&[7][..]));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// As [`open`](crate::open) for each shard; E001 for an index that is malformed or names a file outside the folder,
/// E002 where index and shards disagree on the tensors, E007 for an absent shard.
pub fn open_index(
    index_json: &[u8],
    index_name: &str,
    set: &dyn SourceSet,
    limits: &Limits,
) -> Result<SafetensorsReader> {
    let index = Index::parse(index_json, limits).map_err(|error| error.in_file(index_name))?;
    let open = |shard: &String| {
        let source = set.open(shard).map_err(|error| named_by(index_name, shard, error))?;
        OpenFile::open(source, shard, limits)
    };
    let files = index.shards.iter().map(open).collect::<Result<Vec<_>>>()?;
    check_names(&index, &files, index_name)?;

    let mut reader = SafetensorsReader::new(files);
    check_metadata(&index, &mut reader, index_name);
    Ok(reader)
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
fn check_names(index: &Index, files: &[OpenFile], index_name: &str) -> Result<()> {
    let Index { shards, weights, .. } = index;
    let mut found = vec![false; weights.len()];
    for (shard, file) in files.iter().enumerate() {
        for entry in &file.header.entries {
            let name = &entry.info.name;
            let problem = match weights.binary_search_by(|(known, _)| known.cmp(name)) {
                Ok(weight) if weights[weight].1 == shard => {
                    found[weight] = true;
                    continue;
                }
                Ok(weight) => {
                    format!("{index_name} says that it is in '{}'", Escaped::short(&shards[weights[weight].1]))
                }
                Err(_) => format!("{index_name} does not list it"),
            };
            return Err(Error::corrupt(problem).in_file(&file.name).for_tensor(name));
        }
    }
    if let Some(((name, shard), _)) = weights.iter().zip(&found).find(|(_, found)| !**found) {
        let message = format!("{index_name} lists it, but this shard has no such tensor");
        return Err(Error::corrupt(message).in_file(&shards[*shard]).for_tensor(name));
    }
    Ok(())
}

/// Says what of the index's metadata is wrong or goes unused; neither makes the weights unreadable.
fn check_metadata(index: &Index, reader: &mut SafetensorsReader, index_name: &str) {
    let index_name = Escaped::short(index_name);
    let total: u128 = (0..reader.tensors().len()).map(|tensor| u128::from(reader.stored(tensor).len)).sum();
    // Some writers give the size as a float.
    if let Some(stated) = index.total_size.as_ref().and_then(serde_json::Number::as_f64)
        && stated != total as f64
    {
        reader.warn(format!("{index_name}: total_size is {stated}, but the tensors take {total} bytes"));
    }
    if !index.unread.is_empty() {
        reader.warn(format!("{index_name}: metadata is not kept: {}", index.unread.join(", ")));
    }
}
