//! Why a run did not happen.

use std::fmt;

use apr_registry::Error;

/// Change that the caller can make. A front end describes it in its own terms, such as the name of
/// an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// [`RunOptions::truncate`](crate::RunOptions::truncate) leaves out what exceeds the context.
    Truncate,
    /// [`RunOptions::pooling`](crate::RunOptions::pooling) chooses another one.
    Pooling,
    /// [`RunOptions::part`](crate::RunOptions::part) chooses one.
    Part,
    /// [`GenerationOptions::max_tokens`](crate::GenerationOptions::max_tokens) sets it.
    MaxTokens,
    /// The inputs as arrays, by their names.
    Arrays,
    /// The name of the input that an array is for.
    NameInput,
    /// Ids of tokens instead of a text.
    TokenIds,
    /// Candidate texts beside an image.
    CandidateTexts,
    /// Neither a language nor translation.
    NoLanguage,
    /// A prompt without the chat template.
    NoChat,
    /// [`TranscriptionOptions::fallback`](crate::TranscriptionOptions::fallback) writes it again.
    Fallback,
    /// The ids of tokens in
    /// [`GenerationOptions::logit_bias`](crate::GenerationOptions::logit_bias).
    BiasedIds,
}

/// Returns the message for something that a model lacks, and for the file that has it.
///
/// A folder is recognized as a model by its config.json, and a packed model contains its files. A
/// file that is later put beside a packed model has no effect.
pub(crate) fn absent(what: &str, file: &str) -> String {
    let place = if file == "config.json" { "the model" } else { "the model's config.json" };
    format!("{what}: put {file} next to {place}; for an .apr file, import that folder again")
}

/// Error of a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The model, its files or this machine.
    Model(Error),
    /// The model lacks what another request would not need.
    Lacking {
        /// The missing part, as an error.
        error: Error,
        /// Change that the caller can make.
        remedy: Remedy,
    },
    /// The request does not fit the model.
    Request {
        /// Description of the problem.
        message: String,
        /// Change that the caller can make.
        remedy: Option<Remedy>,
    },
}

impl RunError {
    /// Creates an error for a request that the model can't fulfil.
    pub fn request(message: impl Into<String>) -> Self {
        Self::Request { message: message.into(), remedy: None }
    }

    /// Creates an error (E003) for a model that lacks something, with the request to make instead.
    pub fn lacking(message: impl Into<String>, remedy: Remedy) -> Self {
        Self::Lacking { error: Error::version(message), remedy }
    }

    /// Creates an error for a request that the model can't fulfil, with the change to make.
    pub fn with_remedy(message: impl Into<String>, remedy: Remedy) -> Self {
        Self::Request { message: message.into(), remedy: Some(remedy) }
    }
}

impl From<Error> for RunError {
    fn from(error: Error) -> Self {
        Self::Model(error)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(error) | Self::Lacking { error, .. } => error.fmt(f),
            Self::Request { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Model(error) | Self::Lacking { error, .. } => Some(error),
            Self::Request { .. } => None,
        }
    }
}

/// Result of running a model.
pub type RunResult<T> = Result<T, RunError>;
