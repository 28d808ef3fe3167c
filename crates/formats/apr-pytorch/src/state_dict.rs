//! State dicts in ZIP files: `torch.save` since 1.6, and TorchScript.

use std::collections::HashMap;
use std::sync::Arc;

use apr_archive::{Archive, Decoded, Entry};
use apr_core::{ByteSource, Error, Escaped, Limits, Result, check_file_name};
use serde_json::{Map, Value};

use crate::contents::{Checksums, ContentOrigin, Contents};
use crate::input::Input;
use crate::options::OpenOptions;
use crate::pickle::{Persistent, Policy, run};
use crate::rest;
use crate::view::Range;

const PICKLE: &str = "data.pkl";
const CONSTANTS: &str = "constants.pkl";

/// The file, and its compressed entries after its end.
type Source = Decoded<Arc<dyn ByteSource>>;

/// Opens what `torch.save` wrote.
pub(crate) fn read_state_dict(
    source: Arc<dyn ByteSource>,
    mut archive: Archive,
    options: &OpenOptions,
    limits: &Limits,
) -> Result<(Contents, Box<dyn ByteSource>)> {
    let source = archive.decoded(source)?;
    let origin = origin(&archive, source.file_len());
    let contents =
        contents(&source, &archive, options, limits).map_err(|error| origin.located(error))?;
    Ok((Contents { origin: Some(origin), ..contents }, Box::new(source)))
}

fn origin(archive: &Archive, file_len: u64) -> ContentOrigin {
    let decoded = archive.entries.iter().filter(|entry| !entry.is_stored());
    let decoded =
        decoded.map(|entry| (entry.offset, Range { offset: entry.place, len: entry.compressed }));
    ContentOrigin { decoded: decoded.collect(), ..ContentOrigin::whole(file_len) }
}

fn contents(
    source: &Source,
    archive: &Archive,
    options: &OpenOptions,
    limits: &Limits,
) -> Result<Contents> {
    let pickle = find_pickle(archive)?;
    let folder = pickle.name.strip_suffix(PICKLE).unwrap_or_default();
    check_byte_order(source, archive, folder, limits)?;

    // The checksum first: a pickle that was damaged should not be judged by what it says now.
    pickle.content(source, limits)?;

    let policy = Policy {
        lenient: false,
        joblib: false,
        arrays: false,
        classes: &options.classes,
        persistent: Persistent::Storage,
    };

    let end = pickle.offset + pickle.len;
    let outcome = run(Input::new(source, pickle.offset, end, limits), &policy, limits);
    let root = outcome.root?;
    let mut rest = rest::Rest::new(source, limits);
    let warnings = rest.check(outcome.end, end)?;

    // `torch.jit.load` reads the other pickles too.
    for other in archive
        .entries
        .iter()
        .filter(|entry| rest::is_pickle_in_archive(&entry.name) && entry.name != pickle.name)
    {
        other.check_packing()?;
        rest.check(other.offset, other.offset + other.len)?;
    }
    let (storages, checksums) = storages(archive, &format!("{folder}data/"))?;
    let header_fields = header_fields(source, archive, folder, limits)?;
    let constants = match options.prefix.as_deref() {
        None | Some("") => constants(source, archive, folder, &policy, limits)?,
        Some(_) => None,
    };
    let left_out = left_out(archive, folder, constants.is_some());
    let code = code(archive, folder);
    let heap = outcome.heap;
    Ok(Contents {
        heap,
        root,
        storages,
        checksums,
        header_fields,
        warnings,
        left_out,
        code,
        origin: None,
        constants,
    })
}

/// Reads the tensors of TorchScript's program.
///
/// Returns `None` if there are none, or if the program has other objects: packed weights of
/// quantized modules, or objects of classes.
fn constants(
    source: &Source,
    archive: &Archive,
    folder: &str,
    policy: &Policy<'_>,
    limits: &Limits,
) -> Result<Option<Box<Contents>>> {
    let pickle = archive.find(&format!("{folder}{CONSTANTS}"));
    let Some(pickle) = pickle.filter(|entry| entry.len > EMPTY_TUPLE) else { return Ok(None) };
    pickle.content(source, limits)?;
    let end = pickle.offset + pickle.len;
    let outcome = run(Input::new(source, pickle.offset, end, limits), policy, limits);
    let Ok(root) = outcome.root else { return Ok(None) };
    let (storages, checksums) = storages(archive, &format!("{folder}constants/"))?;
    Ok(Some(Box::new(Contents {
        heap: outcome.heap,
        root,
        storages,
        checksums,
        header_fields: Map::new(),
        warnings: Vec::new(),
        left_out: Vec::new(),
        code: Vec::new(),
        origin: None,
        constants: None,
    })))
}

/// The one `data.pkl`, at the top or in a folder.
fn find_pickle(archive: &Archive) -> Result<&Entry> {
    let is_pickle = |entry: &&Entry| {
        let folder = entry.name.strip_suffix(PICKLE);
        folder.is_some_and(|folder| folder.is_empty() || folder.find('/') == Some(folder.len() - 1))
    };
    let mut pickles = archive.entries.iter().filter(is_pickle);
    match (pickles.next(), pickles.next()) {
        (Some(pickle), None) => Ok(pickle),
        (Some(one), Some(other)) => {
            let (one, other) = (Escaped::short(&one.name), Escaped::short(&other.name));
            Err(Error::format(format!("the archive has two checkpoints: '{one}' and '{other}'")))
        }
        _ => {
            let old = archive.entries.iter().any(|entry| entry.name.ends_with("/model.json"));
            let what = if old {
                "this TorchScript archive is from before PyTorch 1.4"
            } else {
                "this ZIP archive is not PyTorch's"
            };
            Err(Error::format(format!("{what}: it has no {PICKLE}")).at(0))
        }
    }
}

fn check_byte_order(
    source: &dyn ByteSource,
    archive: &Archive,
    folder: &str,
    limits: &Limits,
) -> Result<()> {
    // Files from before PyTorch 2.1 do not say it.
    let Some(entry) = archive.find(&format!("{folder}byteorder")) else { return Ok(()) };
    match &entry.content(source, limits)?[..] {
        b"little" => Ok(()),
        b"big" => Err(Error::version("the checkpoint was written big-endian, which is not read")
            .at(entry.offset)),
        _ => Err(Error::format("the checkpoint names no byte order that exists").at(entry.offset)),
    }
}

/// Entries `data/KEY` and `constants/KEY`, and their checksums. Older TorchScript archives keep
/// theirs beside a pickle of another name.
fn storages(archive: &Archive, prefix: &str) -> Result<(HashMap<String, Range>, Checksums)> {
    let (mut storages, mut checksums) = (HashMap::new(), Checksums::new());
    for entry in &archive.entries {
        if let Some(key) = entry.name.strip_prefix(prefix) {
            entry.check_packing()?;
            storages.insert(key.to_owned(), Range { offset: entry.offset, len: entry.len });
            checksums.insert((entry.offset, entry.len), entry.crc32);
        }
    }
    Ok((storages, checksums))
}

/// Entries that are neither values nor notes of the container: TorchScript's program in one, others
/// by their names.
fn left_out(archive: &Archive, folder: &str, has_constants: bool) -> Vec<String> {
    /// Names that are listed before the rest is only counted.
    const TOLD: usize = 8;
    const NOTES: [&str; 6] = [
        PICKLE,
        "version",
        "byteorder",
        ".format_version",
        ".storage_alignment",
        ".data/serialization_id",
    ];

    let within = archive.entries.iter().filter(|entry| !entry.name.ends_with('/'));
    let names = within.map(|entry| entry.name.strip_prefix(folder).unwrap_or(&entry.name));
    let names = names.filter(|name| !NOTES.contains(name) && !name.starts_with("data/"));

    // The source is a companion; what is beside it says where its lines come from.
    let names = names.filter(|name| !name.starts_with("code/"));
    let (constants, others): (Vec<&str>, Vec<&str>) =
        names.partition(|name| name.starts_with("constants/") || *name == CONSTANTS);
    let mut left_out = Vec::new();
    let is_empty = |name: &&str| {
        archive.find(&format!("{folder}{name}")).is_some_and(|entry| entry.len <= EMPTY_TUPLE)
    };
    if !has_constants && !constants.iter().all(is_empty) {
        left_out.push("TorchScript's constants".to_owned());
    }

    left_out.extend(others.iter().take(TOLD).map(|name| Escaped::short(name).to_string()));
    if others.len() > TOLD {
        left_out.push(format!("{} more entries", others.len() - TOLD));
    }

    left_out
}

/// Bytes of a pickle with an empty tuple, which a program without constants has.
const EMPTY_TUPLE: u64 = 4;

/// The files of TorchScript's program, each under the name that it has as a companion.
fn code(archive: &Archive, folder: &str) -> Vec<(String, Entry)> {
    let files = archive.entries.iter().filter_map(|entry| {
        let path = entry.name.strip_prefix(folder)?.strip_prefix("code/")?;
        let name = path.strip_suffix(".py")?.replace('/', ".");
        let is_plain = check_file_name(&name).is_ok();
        is_plain.then(|| (format!("torchscript/{name}.py"), entry.clone()))
    });
    files.collect()
}

fn header_fields(
    source: &dyn ByteSource,
    archive: &Archive,
    folder: &str,
    limits: &Limits,
) -> Result<Map<String, Value>> {
    let has_code = archive.entries.iter().any(|entry| {
        entry
            .name
            .strip_prefix(folder)
            .is_some_and(|name| name == CONSTANTS || name.starts_with("code/"))
    });

    let container = if has_code { "TorchScript" } else { "ZIP" };
    let mut fields = Map::from_iter([
        ("container".to_owned(), container.into()),
        ("entries".to_owned(), archive.entries.len().into()),
    ]);
    let compressed = archive.entries.iter().filter(|entry| !entry.is_stored()).count();
    if compressed > 0 {
        fields.insert("compressed_entries".into(), compressed.into());
    }

    if let Some(entry) = archive.find(&format!("{folder}version")).filter(|entry| entry.len <= 16) {
        let text = String::from_utf8_lossy(&entry.content(source, limits)?).trim().to_owned();
        fields.insert("version".into(), text.into());
    }

    Ok(fields)
}
