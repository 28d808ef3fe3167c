//! Pre-ZIP files: `torch.save` before 1.6, and since then with
//! `_use_new_zipfile_serialization=False`.

use std::collections::HashMap;

use apr_core::{ByteSource, Error, Escaped, Limits, Result, read_vec};
use serde_json::Map;

use crate::contents::{ContentOrigin, Contents};
use crate::input::Input;
use crate::latin1::Latin1Source;
use crate::options::OpenOptions;
use crate::paddle;
use crate::pickle::{Heap, Id, Node, Outcome, Persistent, Policy, run};
use crate::rest;
use crate::view::Range;

/// The number the file starts with, as a pickle.
pub(crate) const MAGIC: i128 = 0x1950_a86a_20f9_469c_fc6c;

const PROTOCOL: i128 = 1001;

/// Reads one pickle after the other.
struct Pickles<'a> {
    source: &'a dyn ByteSource,
    limits: &'a Limits,
    position: u64,
    end: u64,
}

impl Pickles<'_> {
    fn next(&mut self, policy: &Policy<'_>) -> Result<(Heap, Id)> {
        let input = Input::new(self.source, self.position, self.end, self.limits);
        let Outcome { heap, end, root, .. } = run(input, policy, self.limits);
        self.position = end;
        Ok((heap, root?))
    }
}

/// For the pickles around the weights: no names at all would be needed, and none that is not
/// harmless is taken.
pub(crate) const PLAIN: Policy<'static> = Policy {
    lenient: false,
    joblib: false,
    arrays: false,
    classes: &[],
    persistent: Persistent::None,
};

pub(crate) fn read(
    source: Box<dyn ByteSource>,
    options: &OpenOptions,
    limits: &Limits,
) -> Result<(Contents, Box<dyn ByteSource>)> {
    let mut pickles = Pickles { source: &*source, limits, position: 0, end: source.len() };
    let (heap, magic) = pickles.next(&Policy { arrays: true, ..PLAIN })?;
    if matches!(heap.get(magic), Node::Dict(_)) && !heap.arrays.is_empty() {
        let end = pickles.position;
        let texts = heap.texts.clone();
        let contents = of_arrays(&*source, heap, magic, end, limits)?;
        let source: Box<dyn ByteSource> =
            if texts.is_empty() { source } else { Box::new(Latin1Source::new(source, texts)) };
        return Ok((contents, source));
    }
    let contents = of_storages(pickles, &heap, magic, options)?;
    Ok((contents, source))
}

/// PyTorch's file, of which the first pickle has been read.
fn of_storages(
    mut pickles: Pickles<'_>,
    heap: &Heap,
    magic: Id,
    options: &OpenOptions,
) -> Result<Contents> {
    let source = pickles.source;
    if !matches!(heap.get(magic), Node::Int(MAGIC)) {
        return Err(Error::format(
            "this is a pickle, but not PyTorch's: it does not start with the magic number; `apr \
             scan` lists the code that it would run",
        )
        .at(0));
    }

    let at = pickles.position;
    let (heap, protocol) = pickles.next(&PLAIN)?;
    if !matches!(heap.get(protocol), Node::Int(PROTOCOL)) {
        return Err(Error::version(format!(
            "the protocol is not {PROTOCOL}, the only one there was"
        ))
        .at(at));
    }

    let at = pickles.position;
    let (heap, system) = pickles.next(&PLAIN)?;
    check_byte_order(&heap, system).map_err(|error| error.at(at))?;

    let policy = Policy {
        lenient: false,
        joblib: false,
        arrays: false,
        classes: &options.classes,
        persistent: Persistent::Storage,
    };

    let (heap, root) = pickles.next(&policy)?;
    let at = pickles.position;
    let (keys, list) = pickles.next(&PLAIN)?;
    let keys = key_list(&keys, list).map_err(|error| error.at(at))?;
    let (storages, end) = storages(source, &heap, &keys, pickles.position)?;
    let mut warnings = Vec::new();
    if end < source.len() {
        warnings.push(format!("{} bytes after the last storage are not read", source.len() - end));
    }

    let header_fields = Map::from_iter([("container".to_owned(), "pre-ZIP".into())]);
    Ok(Contents {
        checksums: HashMap::new(),
        heap,
        root,
        storages,
        header_fields,
        warnings,
        left_out: Vec::new(),
        code: Vec::new(),
        origin: None,
        constants: None,
    })
}

/// Returns the contents of a pickle of named NumPy arrays, as Paddle saves them.
fn of_arrays(
    source: &dyn ByteSource,
    mut heap: Heap,
    root: Id,
    end: u64,
    limits: &Limits,
) -> Result<Contents> {
    // Beyond the file are the bytes of texts, which lie elsewhere in it.
    let decoded = heap.texts.iter().map(|text| (text.decoded.offset, text.text)).collect();
    let origin = ContentOrigin { decoded, ..ContentOrigin::whole(source.len()) };
    paddle::join(&mut heap, root)?;
    let mut warnings = rest::check_rest(source, end, source.len(), limits)?;
    if end < source.len() {
        warnings.push(format!("{} bytes after the pickle are not read", source.len() - end));
    }
    let header_fields = Map::from_iter([("container".to_owned(), "pickle of arrays".into())]);
    Ok(Contents {
        checksums: HashMap::new(),
        storages: heap.arrays.iter().cloned().collect(),
        heap,
        root,
        header_fields,
        warnings,
        left_out: Vec::new(),
        code: Vec::new(),
        origin: Some(origin),
        constants: None,
    })
}

pub(crate) fn check_byte_order(heap: &Heap, system: Id) -> Result<()> {
    match heap.entry(system, "little_endian").map(|little| heap.get(little)) {
        Some(Node::Bool(true)) => Ok(()),
        Some(Node::Bool(false)) => {
            Err(Error::version("the checkpoint was written big-endian, which is not read"))
        }
        _ => Err(Error::format("unknown byte order of the file")),
    }
}

fn key_list(heap: &Heap, list: Id) -> Result<Vec<String>> {
    let keys = heap
        .items(list)
        .and_then(|keys| keys.iter().map(|&key| heap.text(key).map(str::to_owned)).collect());
    keys.ok_or_else(|| Error::format("the list of storages is not a list of texts"))
}

/// After the pickles: for each key a count of elements, u64, and the elements.
fn storages(
    source: &dyn ByteSource,
    heap: &Heap,
    keys: &[String],
    mut position: u64,
) -> Result<(HashMap<String, Range>, u64)> {
    let declared: HashMap<&str, _> =
        heap.storages.iter().map(|storage| (storage.key.as_str(), storage)).collect();

    // The file counts elements: with two widths, a storage would have two lengths.
    if let Some(other) =
        heap.storages.iter().find(|s| declared[s.key.as_str()].element.width != s.element.width)
    {
        let key = Escaped::short(&other.key);
        return Err(Error::corrupt(format!(
            "storage '{key}' is declared with elements of two sizes"
        ))
        .at(position));
    }
    let mut storages = HashMap::new();
    for key in keys {
        let shown = Escaped::short(key);
        let Some(storage) = declared.get(key.as_str()) else {
            return Err(Error::corrupt(format!(
                "storage '{shown}' belongs to no tensor, so its size is unknown"
            ))
            .at(position));
        };

        let range = sized(source, position, storage.element.width)?;
        if range.len != storage.len.saturating_mul(storage.element.width) {
            let message = format!(
                "storage '{shown}' has {} bytes, but {} elements are declared",
                range.len, storage.len
            );
            return Err(Error::corrupt(message).at(position));
        }

        position = range.offset + range.len;
        if storages.insert(key.clone(), range).is_some() {
            return Err(Error::corrupt(format!("storage '{shown}' is listed twice")).at(position));
        }
    }

    Ok((storages, position))
}

/// The storage at `position`: a count of elements, then the elements.
pub(crate) fn sized(source: &dyn ByteSource, position: u64, width: u64) -> Result<Range> {
    let bytes = read_vec(source, position, 8)?;
    let count = bytes.iter().rev().fold(0, |count, &byte| count << 8 | u64::from(byte));
    let (offset, len) = (position + 8, count.saturating_mul(width));
    if offset.checked_add(len).is_none_or(|end| end > source.len()) {
        let message =
            format!("a storage of {count} elements is expected, but the file is truncated");
        return Err(Error::corrupt(message).at(position));
    }
    Ok(Range { offset, len })
}
