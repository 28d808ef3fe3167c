//! One error type, sorted by who is at fault.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use crate::{Escaped, grouped};

/// Shorthand for a result that fails with [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// The error codes of `docs/format/README.md`, "Words".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Code {
    /// E001: the bytes are not a valid file of the format.
    Format,
    /// E002: the file was valid once; bytes are missing or contradict each other.
    Corrupt,
    /// E003: written by a version, or with a feature, that this build does not read.
    Version,
    /// E004: a checksum or digest does not match the bytes it covers.
    Checksum,
    /// E005: wrong key, or encrypted bytes were changed.
    Decrypt,
    /// E006: a signature is missing, unknown or invalid.
    Signature,
    /// E007: the operating system refused an operation.
    Io,
    /// E008: a limit or the memory budget would be exceeded.
    Memory,
}

impl Code {
    /// All codes, in numeric order.
    pub const ALL: [Self; 8] = [
        Self::Format,
        Self::Corrupt,
        Self::Version,
        Self::Checksum,
        Self::Decrypt,
        Self::Signature,
        Self::Io,
        Self::Memory,
    ];

    /// The code as users see it: `E001` to `E008`.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Format => "E001",
            Self::Corrupt => "E002",
            Self::Version => "E003",
            Self::Checksum => "E004",
            Self::Decrypt => "E005",
            Self::Signature => "E006",
            Self::Io => "E007",
            Self::Memory => "E008",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// Cause of an error of the operating system, as far as callers handle it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoCause {
    /// No such file or folder.
    NotFound,
    /// The target exists and overwriting was not requested.
    AlreadyExists,
    /// The reader of our output went away.
    BrokenPipe,
    /// The user interrupted the job.
    Interrupted,
    /// A server can't be reached, falls silent, or has trouble of its own: with another network, or
    /// later, it may answer.
    Network,
    /// Another cause, which the message describes.
    Other,
}

/// Values of a tensor that are NaN or infinite: the file is whole, but the model is not healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotFinite {
    /// Number of NaN values.
    pub nan: u64,
    /// Number of infinite values.
    pub infinite: u64,
    /// Number of values of the tensor.
    pub of: u64,
    /// Position of the first of them.
    pub first: u64,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, kind) = match self.nan {
            0 => (self.infinite, "infinite"),
            nan => (nan, "NaN"),
        };
        write!(f, "{} of {} values are {kind}", grouped(count), grouped(self.of))
    }
}

/// An error with its code and the place it points at: file, byte offset, tensor.
///
/// ```
/// use apr_core::{Code, Error};
///
/// let error =
///     Error::corrupt("the data ends early").in_file("model.apr").for_tensor("lm_head").at(64);
/// assert_eq!(error.code(), Code::Corrupt);
/// assert_eq!(
///     error.to_string(),
///     "E002: model.apr: tensor 'lm_head': the data ends early (at byte 64)"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(Box<Detail>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Detail {
    code: Code,
    message: String,
    file: Option<String>,
    tensor: Option<String>,
    offset: Option<u64>,
    cause: Option<IoCause>,
    not_finite: Option<NotFinite>,
}

impl Error {
    /// An error of the given code; `message` is a phrase without the place, which the other methods
    /// add.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Detail {
            code,
            message: message.into(),
            file: None,
            tensor: None,
            offset: None,
            cause: (code == Code::Io).then_some(IoCause::Other),
            not_finite: None,
        }))
    }

    /// E001.
    pub fn format(message: impl Into<String>) -> Self {
        Self::new(Code::Format, message)
    }

    /// E002.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(Code::Corrupt, message)
    }

    /// E003.
    pub fn version(message: impl Into<String>) -> Self {
        Self::new(Code::Version, message)
    }

    /// E004.
    pub fn checksum(message: impl Into<String>) -> Self {
        Self::new(Code::Checksum, message)
    }

    /// E007, with the cause that front ends choose an exit code by.
    pub fn io(cause: IoCause, message: impl Into<String>) -> Self {
        let mut error = Self::new(Code::Io, message);
        error.0.cause = Some(cause);
        error
    }

    /// E002 for values that are not finite. Front ends report them as a failed validation.
    #[must_use]
    pub fn of_values(values: NotFinite) -> Self {
        let message = format!("{values}; the first is element {}", values.first);
        let mut error = Self::new(Code::Corrupt, message);
        error.0.not_finite = Some(values);
        error
    }

    /// E008.
    pub fn memory(message: impl Into<String>) -> Self {
        Self::new(Code::Memory, message)
    }

    /// Adds the name of the file, unless an inner layer already did or the name is empty.
    #[must_use]
    pub fn in_file(mut self, file: impl fmt::Display) -> Self {
        if self.0.file.is_none() {
            self.0.file = Some(file.to_string()).filter(|name| !name.is_empty());
        }
        self
    }

    /// Names the file `name`, which an inner layer knows without its folder, by its path.
    #[must_use]
    pub fn placing(mut self, name: &str, path: impl fmt::Display) -> Self {
        if self.0.file.as_deref() == Some(name) {
            self.0.file = Some(path.to_string());
        }
        self
    }

    /// Names the tensor, unless an inner layer already did.
    #[must_use]
    pub fn for_tensor(mut self, tensor: impl fmt::Display) -> Self {
        self.0.tensor.get_or_insert_with(|| tensor.to_string());
        self
    }

    /// Gives the byte offset in the file, unless an inner layer already did.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.0.offset.get_or_insert(offset);
        self
    }

    /// Changes the offset, if there is one: from that in an entry to that in the file, for example.
    #[must_use]
    pub fn moved(mut self, change: impl FnOnce(u64) -> u64) -> Self {
        self.0.offset = self.0.offset.map(change);
        self
    }

    /// Returns the error code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The cause of an E007.
    #[must_use]
    pub fn cause(&self) -> Option<IoCause> {
        self.0.cause
    }

    /// Returns the values that are not finite, if the error is about such values.
    #[must_use]
    pub fn not_finite(&self) -> Option<NotFinite> {
        self.0.not_finite
    }

    /// Returns the message, without code and place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The file, when known.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.0.file.as_deref()
    }

    /// The tensor, when one is at fault.
    #[must_use]
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// The byte offset in the file, when known.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.0.offset
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Detail { code, message, file, tensor, offset, .. } = &*self.0;
        write!(f, "{code}: ")?;
        if let Some(file) = file {
            write!(f, "{}: ", Escaped(file))?;
        }
        if let Some(tensor) = tensor {
            write!(f, "tensor '{}': ", Escaped::short(tensor))?;
        }
        write!(f, "{}", Escaped(message))?;
        if let Some(offset) = offset {
            write!(f, " (at byte {offset})")?;
        }
        Ok(())
    }
}

impl core::error::Error for Error {}
