//! Saving and loading models of any serde type.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use apr_core::digest::Crc32;
use apr_core::{ByteSource, Error, Limits, Result, Sink};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::container::Container;
use super::header::{Compression, Flags, Header};
use super::metadata::{License, ModelCard, ModelMetadata};
use super::pack::pack;
use super::seal::{self, FillRandom, Protection};
use super::{Andon, LoadOptions, ModelType, Secret, bincode};

/// Options for saving a model.
///
/// ```
/// use apr_format::aprn::{Compression, SaveOptions};
///
/// let options = SaveOptions::default().with_name("spam").with_compression(Compression::None);
/// assert_eq!(options.metadata.model_name.as_deref(), Some("spam"));
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct SaveOptions {
    /// Compression of the payload; Zstandard level 3 by default.
    pub compression: Compression,
    /// Metadata of the model. An empty `aprender_version` becomes this crate's name and version.
    pub metadata: ModelMetadata,
    /// Quality score from 1 to 100, from a validation. 0 is rejected, because it means that the
    /// model failed all of it.
    pub quality_score: Option<u8>,
    /// Encrypts the payload.
    pub protection: Option<Protection>,
    /// Ed25519 secret key, 32 bytes; signs the file.
    pub signing_key: Option<Secret>,
}

impl SaveOptions {
    /// Packs the payload like this.
    #[must_use]
    pub fn with_compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets the name of the model.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.metadata.model_name = Some(name.into());
        self
    }

    /// Describes the model.
    #[must_use]
    pub fn with_description(mut self, description: impl Into<String>) -> Self {
        self.metadata.description = Some(description.into());
        self
    }

    /// Adds a model card.
    #[must_use]
    pub fn with_model_card(mut self, card: ModelCard) -> Self {
        self.metadata.model_card = Some(card);
        self
    }

    /// Adds a commercial licence.
    #[must_use]
    pub fn with_license(mut self, license: License) -> Self {
        self.metadata.license = Some(license);
        self
    }

    /// Sets the score of the model in a validation.
    #[must_use]
    pub fn with_quality_score(mut self, score: u8) -> Self {
        self.quality_score = Some(score);
        self
    }

    /// Encrypts the payload with a password.
    #[must_use]
    pub fn with_password(mut self, password: &str) -> Self {
        self.protection = Some(Protection::Password(password.into()));
        self
    }

    /// Encrypts for the owner of an X25519 public key.
    #[must_use]
    pub fn with_recipient(mut self, public_key: [u8; 32]) -> Self {
        self.protection = Some(Protection::Recipient(public_key));
        self
    }

    /// Signs with an Ed25519 secret key.
    #[must_use]
    pub fn with_signing_key(mut self, key: [u8; 32]) -> Self {
        self.signing_key = Some(key.into());
        self
    }
}

/// Returns the file for a model.
///
/// # Errors
/// E001 for a model that does not serialize, options that contradict themselves, or encryption,
/// which takes randomness: see [`to_bytes_with`]; E003 for what this build leaves out; E008 for
/// parts of 4 GiB.
pub fn to_bytes<M: Serialize + ?Sized>(
    model: &M,
    kind: ModelType,
    options: &SaveOptions,
) -> Result<Vec<u8>> {
    to_bytes_with(model, kind, options, &mut |_| {
        Err(Error::format("encryption needs random bytes, and none were given"))
    })
}

/// Returns the file for a model. `random` provides a salt or key and a nonce if the options request
/// encryption.
///
/// # Errors
/// The errors of [`to_bytes`], and the errors of `random`.
pub fn to_bytes_with<M: Serialize + ?Sized>(
    model: &M,
    kind: ModelType,
    options: &SaveOptions,
    random: &mut FillRandom<'_>,
) -> Result<Vec<u8>> {
    let payload = bincode::to_bytes(model).map_err(|error| {
        Error::format(format!(
            "the model can't be written as a payload: {}",
            apr_core::foreign(&error)
        ))
    })?;
    let packed = pack(&payload, options.compression)?;
    let stored = match &options.protection {
        Some(protection) => seal::seal(&packed, protection, random)?,
        None => packed.into_owned(),
    };
    let mut metadata = options.metadata.clone();
    if metadata.aprender_version.is_empty() {
        metadata.aprender_version = concat!("apr ", env!("CARGO_PKG_VERSION")).to_string();
    }

    let metadata_bytes = metadata.encode()?;

    let header = Header {
        metadata_size: size(&metadata_bytes, "the metadata")?,
        payload_size: size(&stored, "the payload")?,
        uncompressed_size: size(&payload, "the payload")?,
        compression: options.compression,
        flags: flags(options),
        quality_score: quality_score(options)?,
        ..Header::new(kind)
    };

    let mut file = [&header.encode()[..], &metadata_bytes, &stored].concat();
    if let Some(key) = &options.signing_key {
        let block = seal::sign(&file, key)?;
        file.extend_from_slice(&block);
    }

    let mut crc = Crc32::new();
    crc.update(&file);
    file.extend_from_slice(&crc.value().to_le_bytes());
    Ok(file)
}

/// Writes the file for a model to a sink; see [`to_bytes_with`].
///
/// # Errors
/// Those of [`to_bytes_with`], E007 when writing fails.
pub fn save_to<M: Serialize + ?Sized>(
    sink: &mut dyn Sink,
    model: &M,
    kind: ModelType,
    options: &SaveOptions,
    random: &mut FillRandom<'_>,
) -> Result<()> {
    sink.write_all(&to_bytes_with(model, kind, options, random)?)
}

fn size(part: &[u8], what: &str) -> Result<u32> {
    u32::try_from(part.len()).map_err(|_| Error::memory(format!("{what} of APRN ends at 4 GiB")))
}

fn flags(options: &SaveOptions) -> Flags {
    Flags::default()
        .with(Flags::ENCRYPTED, options.protection.is_some())
        .with(Flags::SIGNED, options.signing_key.is_some())
        .with(Flags::LICENSED, options.metadata.license.is_some())
        .with(Flags::MODEL_CARD, options.metadata.model_card.is_some())
}

fn quality_score(options: &SaveOptions) -> Result<u8> {
    match options.quality_score {
        None => Ok(0),
        Some(score @ 1..=100) => Ok(score),
        Some(0) => Err(Error::format(
            "a model with a quality score of 0 failed its validation and is not saved",
        )),
        Some(score) => Err(Error::format(format!("the quality score {score} is above 100"))),
    }
}

/// Loads a model from the bytes of a file, checksum and signature checked first.
///
/// ```
/// use apr_format::aprn::{ModelType, SaveOptions, load_from_bytes, to_bytes};
///
/// let weights = (vec![0.5_f32, -1.0], 0.25_f32);
/// let file = to_bytes(&weights, ModelType::LogisticRegression, &SaveOptions::default())?;
/// let loaded: (Vec<f32>, f32) = load_from_bytes(&file, ModelType::LogisticRegression)?;
/// assert_eq!(loaded, weights);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An error with one of the signals of [`Signal`](super::Signal).
pub fn load_from_bytes<M: DeserializeOwned>(file: &[u8], expected: ModelType) -> Result<M, Andon> {
    load_from_bytes_with(file, expected, &LoadOptions::default())
}

/// Loads a model that is encrypted, or must be signed.
///
/// # Errors
/// An error with one of the signals of [`Signal`](super::Signal).
pub fn load_from_bytes_with<M: DeserializeOwned>(
    file: &[u8],
    expected: ModelType,
    options: &LoadOptions,
) -> Result<M, Andon> {
    let container = Container::locate(&file)?;
    container.check_crc(&file)?;
    if container.header.kind() != Some(expected) {
        let found = match container.header.kind() {
            Some(kind) => kind.to_string(),
            None => format!("a model of the unknown type {:#06x}", container.header.model_type),
        };
        return Err(Andon::model_type_mismatch(format!("the file holds {found}, not {expected}")));
    }

    options.check_signature(&container, &file)?;
    let payload = options.open_payload(&container, &file)?;
    let model = bincode::from_bytes(&payload).map_err(|error| {
        Error::format(format!(
            "the payload does not match the requested type: {}",
            apr_core::foreign(&error)
        ))
    })?;
    Ok(model)
}

/// Description of a file, without its payload.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The header.
    pub header: Header,
    /// The metadata. Invalid values are left out and reported in `warnings`.
    pub metadata: ModelMetadata,
    /// The key that the file names as its signer. It was not verified.
    pub signed_by: Option<[u8; 32]>,
    /// Warnings about the file.
    pub warnings: Vec<String>,
}

impl ModelInfo {
    /// Returns the model type, or `None` if it is unknown.
    #[must_use]
    pub const fn model_type(&self) -> Option<ModelType> {
        self.header.kind()
    }

    /// Returns `true` if the payload is encrypted.
    #[must_use]
    pub const fn encrypted(&self) -> bool {
        self.header.flags.contains(Flags::ENCRYPTED)
    }
}

/// Reads header and metadata. The checksum is not checked, because it also covers the payload.
///
/// # Errors
/// E001 when it is not APRN, E002 when parts are missing, E003 for another version, E004 when
/// metadata don't parse because the file was damaged, E007 when reading fails.
pub fn inspect(source: &dyn ByteSource) -> Result<ModelInfo, Andon> {
    let container = Container::locate(source)?;
    let decoded = container.read_metadata(source, &Limits::default())?;
    Ok(ModelInfo {
        header: container.header,
        metadata: decoded.metadata,
        signed_by: container.signature.map(|(_, key)| key),
        warnings: [container.warnings, decoded.warnings].concat(),
    })
}
