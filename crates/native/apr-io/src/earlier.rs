//! What an earlier output of the same name left: other shards than the new ones, and the data of a
//! graph.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use apr_core::{Error, IoCause, Result};
use apr_platform::{Identity, list_folder};
use apr_registry::{shard_number, shard_stem};

use crate::io_error;
use crate::model::is_manifest;
use crate::partial::parent;

/// Returns the files of an earlier output named `path` that are not among those written now. Must
/// be called before the new files are in place.
///
/// Only files of one model under that name are found: shards of other counts if the new output is a
/// whole set of shards, the shards of a manifest or an index that is replaced, whole sets of
/// numbered shards if the new output is one file, and the data beside a graph that is replaced.
/// `sources` are files that the output was made from. They stay unless the file that lists them is
/// replaced.
/// `count` is the number of shards written before, if the output is their manifest.
///
/// # Errors
/// E007 when the folder can't be listed.
pub(crate) fn files(
    path: &Path,
    written: &[&Path],
    sources: &[Identity],
    count: Option<u32>,
) -> Result<Vec<PathBuf>> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Ok(Vec::new());
    };
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let index = path.with_file_name(format!("{name}.index.json"));
    let is_written = |path: &Path| written.contains(&path);
    let is_shard = |name: &str| {
        shard_stem(name) == Some(stem)
            && name.rsplit_once('.').map_or("", |(_, extension)| extension) == extension
    };
    let new = written.iter().filter_map(|path| path.file_name()?.to_str());
    let new: Vec<&str> = new.filter(|name| is_shard(name)).collect();
    let first = new.first().and_then(|name| shard_number(name));
    let is_set =
        first.is_some_and(|(_, count)| u32::try_from(new.len()) == Ok(count)) || count.is_some();

    let has_index = index.is_file();
    let was_manifest = is_written(path) && path.is_file() && is_manifest(path).unwrap_or(false);
    // One file where a set was.
    let is_one = written.len() == 1 && is_written(path);
    let data = data_of_graph(path, written, sources);
    if !is_set && !is_one {
        return Ok(data);
    }

    let mut found = Vec::new();
    let folder = parent(path);
    for name in list_folder(folder).map_err(|error| io_error(&error, folder))? {
        if name.to_str().is_some_and(is_shard) {
            found.push(path.with_file_name(name));
        }
    }
    // Without a file that lists them, a set is known by its numbers, and must be whole.
    if !is_set && !has_index && !was_manifest {
        found = whole_sets(found);
    }
    let is_before = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(shard_number).is_some_and(|(_, of)| Some(of) == count)
    };
    found.retain(|path| !is_written(path) && !is_before(path));
    let replaced = was_manifest || (has_index && is_written(&index));
    let others = [path, &index].into_iter().filter(|path| !is_written(path) && path.is_file());
    let others = others.map(Path::to_path_buf).filter(|path| !is_of(path, sources));
    found.retain(|path| replaced || !is_of(path, sources));
    found.extend(others);
    found.extend(data);
    Ok(found)
}

/// Returns those of the shards that are of a set without gaps.
fn whole_sets(shards: Vec<PathBuf>) -> Vec<PathBuf> {
    let number = |path: &PathBuf| shard_number(path.file_name()?.to_str()?);
    let mut sets: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (at, count) in shards.iter().filter_map(number) {
        sets.entry(count).or_default().insert(at);
    }
    sets.retain(|count, numbers| u32::try_from(numbers.len()) == Ok(*count));
    shards
        .into_iter()
        .filter(|path| number(path).is_some_and(|(_, count)| sets.contains_key(&count)))
        .collect()
}

/// Returns the file with the data of an ONNX graph that is replaced by one without such a file.
fn data_of_graph(path: &Path, written: &[&Path], sources: &[Identity]) -> Vec<PathBuf> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let data = path.with_file_name(format!("{name}_data"));
    let is_replaced = name.ends_with(".onnx") && written.contains(&path) && path.is_file();
    let is_left = is_replaced && !written.contains(&&*data) && data.is_file();
    // The graph of a source that has another name stays, and so do its data.
    let is_of_another = is_of(&data, sources) && !is_of(path, sources);
    if is_left && !is_of_another { vec![data] } else { Vec::new() }
}

fn is_of(path: &Path, sources: &[Identity]) -> bool {
    Identity::of_path(path).is_ok_and(|found| sources.iter().any(|source| found.is_file_of(source)))
}

/// Removes the files that [`files`] found. Returns an error for each that could not be removed.
pub(crate) fn remove(found: &[PathBuf]) -> Vec<Error> {
    let removed = |path: &&PathBuf| match std::fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(
            IoCause::Other,
            format!(
                "{error}: the output was written, but this file of the previous output was not \
                 removed"
            ),
        )
        .in_file(path.display())),
    };
    found.iter().filter_map(|path| removed(&path).err()).collect()
}
