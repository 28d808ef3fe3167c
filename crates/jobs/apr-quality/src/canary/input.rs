//! Inputs of a canary: texts, tokens, and files, by their content or their names.

use apr_registry::{Error, Limits, Result, open};
use apr_run::{Given, arrays_of};
use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::samples::Sample;

/// Extensions of audio files.
pub const AUDIO_EXTENSIONS: [&str; 8] = ["wav", "rf64", "aiff", "aif", "flac", "mp3", "ogg", "oga"];
/// Extensions of image files.
pub const IMAGE_EXTENSIONS: [&str; 8] = ["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"];

/// Returns the bytes of a file that a canary names.
pub type Load<'l> = dyn Fn(&str) -> Result<Vec<u8>> + 'l;

/// An input of a canary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum CanaryInput {
    /// Text prompt.
    Text {
        /// The text, or the message of a chat.
        prompt: String,
        /// `true` to apply the model's chat template.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        chat: bool,
        /// The system message of a chat.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        system: Option<String>,
    },
    /// Token ids.
    Tokens {
        /// Token ids in the vocabulary.
        ids: Vec<i64>,
    },
    /// Audio, an image, or arrays, by the extension of the name.
    File {
        /// Relative to the canary file.
        file: String,
        /// SHA-256 of the file's bytes, in hexadecimal.
        sha256: String,
        /// Bytes of the file in base 64, if the canary file contains them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<String>,
    },
}

impl CanaryInput {
    /// A text without a chat template.
    pub fn text(prompt: impl Into<String>) -> Self {
        Self::Text { prompt: prompt.into(), chat: false, system: None }
    }

    /// A file, which `embed` puts into the canary.
    #[must_use]
    pub fn file(file: impl Into<String>, bytes: &[u8], embed: bool) -> Self {
        Self::File {
            file: file.into(),
            sha256: hex(bytes),
            data: embed.then(|| Base64::encode_string(bytes)),
        }
    }

    /// The input as a model takes it.
    ///
    /// # Errors
    /// E004 for a file that is not the one it was recorded with, E001 for data that is no base 64
    /// and for an unknown kind of file; what `load` and reading arrays end with.
    pub(crate) fn sample(&self, name: &str, load: &Load<'_>) -> Result<Sample> {
        let mut sample = Sample { name: name.to_owned(), ..Sample::default() };
        match self {
            Self::Text { prompt, .. } => sample.text = Some(prompt.clone()),
            Self::Tokens { ids } => sample.tokens.clone_from(ids),
            Self::File { file, sha256, data } => {
                let bytes = match data {
                    Some(data) => Base64::decode_vec(data).map_err(|_| {
                        Error::format("the data of the canary are not base 64").in_file(file)
                    })?,
                    None => load(file)?,
                };
                if hex(&bytes) != sha256.to_ascii_lowercase() {
                    let message = "it is not the file that the canary was recorded with: its \
                                   SHA-256 differs";
                    return Err(Error::checksum(message).in_file(file));
                }
                fill(&mut sample, file, bytes)?;
            }
        }
        Ok(sample)
    }
}

/// Fills a sample with the contents of a file, by the file's extension.
fn fill(sample: &mut Sample, file: &str, bytes: Vec<u8>) -> Result<()> {
    let extension = file.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    match extension.as_deref().unwrap_or_default() {
        audio if AUDIO_EXTENSIONS.contains(&audio) => sample.audio = Some(bytes),
        image if IMAGE_EXTENSIONS.contains(&image) => sample.image = Some(bytes),
        "json" => {
            let text = String::from_utf8(bytes);
            let text = text.map_err(|_| Error::format("the text is not UTF-8").in_file(file))?;
            sample.arrays = Given::from_json(&text).map_err(|error| error.in_file(file))?;
        }
        "npy" | "npz" | "safetensors" => {
            let reader = open(bytes, file, &Limits::default())?;
            let arrays = arrays_of(&*reader).map_err(|error| error.in_file(file))?;
            let given = |(name, tensor)| (Some(name), Given::Array(tensor));
            sample.arrays = arrays.into_iter().map(given).collect();
        }
        "txt" => {
            let text = String::from_utf8(bytes);
            let text = text.map_err(|_| Error::format("the text is not UTF-8").in_file(file))?;
            sample.text = Some(text);
        }
        _ => {
            let message = "it is not known as audio, an image, a text or arrays by its extension";
            return Err(Error::format(message).in_file(file));
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(bytes))
}

impl Sample {
    /// Creates a sample from a file, by the file's extension.
    ///
    /// # Errors
    /// E001 for an unknown extension. Also the errors of reading arrays.
    pub fn of_file(file: &str, bytes: Vec<u8>) -> Result<Self> {
        let mut sample = Self { name: file.to_owned(), ..Self::default() };
        fill(&mut sample, file, bytes)?;
        Ok(sample)
    }
}
