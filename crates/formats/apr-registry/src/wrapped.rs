//! Models inside other files: a checkpoint of PyTorch in a TAR archive with its configuration, a
//! GGUF model in a program.
//!
//! ```text
//! .nemo, a TAR archive                    .llamafile, a program that is a ZIP archive, too
//! ├─ ./model_config.yaml                  ├─ "MZqFpD", the program
//! ├─ ./model_weights.ckpt   torch.save    ├─ model.gguf   stored
//! └─ ./..._tokenizer.model                └─ directory
//! ```
//!
//! The inner file is read in place, by the reader of its own format; what lies beside it are
//! companions.

use std::sync::Arc;

#[cfg(feature = "gguf")]
use apr_archive::Archive;
use apr_archive::Section;
#[cfg(feature = "pytorch")]
use apr_archive::tar;
#[cfg(feature = "pytorch")]
use apr_core::{ByteSource, check_file_name};
use apr_core::{
    CheckpointReader, Companion, Error, Escaped, FileInfo, Format, Limits, Result, Stored, pass_on,
};

use crate::formats::{Bytes, Reader};
use crate::options::OpenOptions;

/// An archive of NeMo.
#[cfg(feature = "pytorch")]
pub(crate) static NEMO: Format = Format {
    id: "nemo",
    name: "NeMo archive",
    recognises: starts_like_nemo,
    extensions: &["nemo"],
    ..Format::READ_ONLY
};

/// A program with a model in it.
#[cfg(feature = "gguf")]
pub(crate) static LLAMAFILE: Format = Format {
    id: "llamafile",
    name: "llamafile",
    // A program for several systems (APE), which begins like one for DOS.
    recognises: |head| head.starts_with(b"MZqFpD"),
    extensions: &["llamafile"],
    ..Format::READ_ONLY
};

/// Returns `true` if a TAR archive starts with a member that NeMo writes first.
#[cfg(feature = "pytorch")]
fn starts_like_nemo(head: &[u8]) -> bool {
    let name = head.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = name.strip_prefix(b"./").unwrap_or(name);
    tar::recognise(head)
        && (name.is_empty() || [&b"model_config.yaml"[..], b"model_weights.ckpt"].contains(&name))
}

/// Reader of a part of a file, with the companions stored beside that part.
struct Inside {
    inner: Reader,
    /// Offset of the part in the file.
    start: u64,
    files: Vec<FileInfo>,
    source: Arc<Bytes>,
    companions: Vec<Companion>,
    /// Offsets of the companions in the file.
    places: Vec<u64>,
    left_out: Vec<String>,
}

impl Inside {
    fn new(inner: Reader, source: Arc<Bytes>, start: u64, name: &str) -> Self {
        let files = vec![FileInfo { name: name.to_owned(), len: source.len() }];
        let left_out = inner.left_out().to_vec();
        let (companions, places) = (Vec::new(), Vec::new());
        Self { inner, start, files, source, companions, places, left_out }
    }
}

impl CheckpointReader for Inside {
    pass_on!(inner: format, metadata, tensors, read_tensor, tensor_slice, container, warnings);

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let mut stored = self.inner.stored(tensor);
        stored.range.offset = stored.range.offset.saturating_add(self.start);
        stored
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let place = self.places.get(companion).ok_or_else(|| Companion::absent(companion))?;
        apr_core::read_vec(&*self.source, *place, self.companions[companion].len)
            .map_err(|error| error.in_file(&self.files[0].name))
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }
}

/// Opens the GGUF model in an executable: the largest one if there are several.
///
/// # Errors
/// E001 if there is none, otherwise the errors of the archive and of GGUF.
#[cfg(feature = "gguf")]
pub(crate) fn open_llamafile(source: Bytes, name: &str, options: &OpenOptions) -> Result<Reader> {
    let source = Arc::new(source);
    let located = |error: Error| error.in_file(name);
    let archive = Archive::read(&source, &options.limits).map_err(located)?;
    let models = || archive.entries.iter().filter(|entry| entry.name.ends_with(".gguf"));
    let model = models().max_by_key(|entry| entry.len).ok_or_else(|| {
        located(Error::format(
            "the program does not contain a GGUF model; it loads one from elsewhere",
        ))
    })?;
    if !model.is_as_long_as_its_content() {
        let message = format!("'{}' is compressed", Escaped::short(&model.name));
        return Err(located(Error::version(message)));
    }
    let section = Section::new(Arc::clone(&source), model.place, model.len).map_err(located)?;
    let inner_name = format!("{name}/{}", Escaped::short(&model.name));
    let inner = Box::new(apr_gguf::open(section, &inner_name, &options.limits)?);
    let mut inside = Inside::new(inner, Arc::clone(&source), model.place, name);
    inside.left_out.push("the program around the model".to_owned());
    let others = models().filter(|other| other.name != model.name);
    inside.left_out.extend(others.map(|other| Escaped::short(&other.name).to_string()));
    Ok(Box::new(inside))
}

/// Opens the checkpoint in an archive of NeMo.
///
/// # Errors
/// E001 where there is none, E003 for one in several files or in a compressed archive, otherwise
/// those of the archive and of PyTorch.
#[cfg(feature = "pytorch")]
pub(crate) fn open_nemo(source: Bytes, name: &str, options: &OpenOptions) -> Result<Reader> {
    let source = Arc::new(source);
    let located = |error: Error| error.in_file(name);
    let mut head = [0; 2];
    if source.read_at(0, &mut head).is_ok() && head == [0x1f, 0x8b] {
        let message = "the archive is compressed: `gunzip` or `tar` unpacks it first";
        return Err(located(Error::version(message)));
    }
    let members = tar::all_members(&source).map_err(located)?;
    let weights: Vec<_> = members.iter().filter(|member| member.name.ends_with(".ckpt")).collect();
    let member = match weights.as_slice() {
        [member] => *member,
        [] => {
            let message = "the archive has no .ckpt: its layout is not supported; unpack it with \
                           NeMo";
            return Err(located(Error::format(message)));
        }
        several => {
            let message = format!("the weights are in {} parts of tensors", several.len());
            return Err(located(Error::version(message)));
        }
    };
    let section = Section::new(Arc::clone(&source), member.offset, member.len).map_err(located)?;
    let inner_name = format!("{name}/{}", Escaped::short(member.plain_name()));
    let limits = &options.limits;
    let inner = apr_pytorch::open_with(section, &inner_name, limits, &options.pytorch())?;
    let mut inside = Inside::new(Box::new(inner), Arc::clone(&source), member.offset, name);
    for other in members.iter().filter(|other| other.offset != member.offset) {
        inside.add(other, limits);
    }
    Ok(Box::new(inside))
}

#[cfg(feature = "pytorch")]
impl Inside {
    /// Adds a file beside the weights as a companion, if it can be one.
    fn add(&mut self, member: &tar::Member, limits: &Limits) {
        let name = member.plain_name();
        let total = self.companions.iter().fold(member.len, |total, other| total + other.len);
        if check_file_name(name).is_err() || limits.check_companion(total).is_err() {
            self.left_out.push(Escaped::short(name).to_string());
            return;
        }
        self.companions.push(Companion { name: name.to_owned(), len: member.len });
        self.places.push(member.offset);
    }
}
