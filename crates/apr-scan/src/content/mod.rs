//! Files that are no pickles: what loading them would run, or that nothing here knows.

pub(crate) mod coreml;
mod executable;
pub(crate) mod hdf5;
pub(crate) mod jinja;
mod json;
pub(crate) mod tensorflow;
pub(crate) mod text;
pub(crate) mod tflite;
mod yaml;

use apr_registry::coreml::MODEL;
use apr_registry::{ByteSource, HEAD_LEN, Limits, may_hold_code, read_vec, recognise};

use crate::leaf::{Examine, Leaf};
use crate::report::FileVerdict;

/// What says of a file that it is a picture or a sound, which nothing runs.
const MEDIA: [&[u8]; 8] =
    [b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"fLaC", b"OggS", b"ID3", b"BM"];

/// What is found in one file; nothing where it was examined and is harmless.
pub(crate) type ContentRemarks = Vec<(FileVerdict, String)>;

/// Judges files by their bytes, and by their names where loaders go by those.
pub(crate) struct Examiner<'a> {
    pub(crate) limits: &'a Limits,
}

impl Examine for Examiner<'_> {
    fn examine(&self, leaf: &Leaf<'_>) -> ContentRemarks {
        self.judge(leaf).unwrap_or_else(|error| not_examined(&error.to_string()))
    }
}

impl Examiner<'_> {
    fn judge(&self, leaf: &Leaf<'_>) -> apr_registry::Result<ContentRemarks> {
        let source = leaf.source;
        if source.is_empty() {
            return Ok(Vec::new());
        }
        if leaf.is_torchscript {
            return text::torchscript(&self.read(source)?);
        }

        let head = read_vec(source, 0, source.len().min(HEAD_LEN))?;
        // A script that says by its name what it is deceives nobody.
        let is_named = |what| what == executable::SCRIPT && text::is_source(leaf.name);
        if let Some(what) = executable::kind(&head).filter(|what| !is_named(*what)) {
            let message = format!("this is {what}, despite its name");
            return Ok(vec![(FileVerdict::Dangerous, message)]);
        }
        if let Some(found) = hdf5::judge(source, self.limits)? {
            return Ok(found);
        }
        let is_media = MEDIA.iter().any(|magic| head.starts_with(magic));
        if is_media && !text::is_text(leaf.name, &head) {
            return Ok(Vec::new());
        }

        match recognise(&head) {
            Some(format) if may_hold_code(format) => {
                return Ok(not_examined(&format!("{} is not unpacked", format.name)));
            }
            Some(format) if *format == MODEL => return coreml::judge(source, self.limits),
            Some(format) if format.id == "tflite" => return tflite::judge(source, self.limits),
            Some(_) if tensorflow::is_graph(&head) => {}
            Some(_) if !text::is_text(leaf.name, &head) => return Ok(Vec::new()),
            _ => {}
        }
        if coreml::is_weights(&head) {
            return Ok(Vec::new());
        }
        if let Some(found) = tensorflow::judge(leaf, self.limits)? {
            return Ok(found);
        }
        if let Some(found) = text::judge(leaf.name, &self.read(source)?)? {
            return Ok(found);
        }
        Ok(not_examined("unknown format"))
    }

    /// The bytes of a small file.
    ///
    /// # Errors
    /// E007 when reading fails, E008 for a long one.
    fn read(&self, source: &dyn ByteSource) -> apr_registry::Result<Vec<u8>> {
        self.limits.check_companion(source.len())?;
        read_vec(source, 0, source.len())
    }
}

pub(crate) fn not_examined(why: &str) -> ContentRemarks {
    vec![(FileVerdict::NotExamined, why.to_owned())]
}
