//! Why a run did not happen.

use std::fmt;

use apr_registry::Error;

/// What the caller can change. A front end words it in its own terms, such as an option's name.
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

/// What a model lacks, and the file that has it. A folder is a model's by its config.json, and a
/// packed model has its files within, so what is put beside it later changes nothing.
pub(crate) fn absent(what: &str, file: &str) -> String {
    let place = if file == "config.json" { "the model" } else { "the model's config.json" };
    format!("{what}: put {file} next to {place}; for an .apr file, import that folder again")
}

/// Why a run did not happen.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The model, its files or this machine.
    Model(Error),
    /// The model lacks what another request would not need.
    Lacking {
        /// What it lacks.
        error: Error,
        /// What the caller can change.
        remedy: Remedy,
    },
    /// What was asked for does not go with the model.
    Request {
        /// What is wrong.
        message: String,
        /// What the caller can change.
        remedy: Option<Remedy>,
    },
}

impl RunError {
    /// A request that the model can't meet.
    pub fn request(message: impl Into<String>) -> Self {
        Self::Request { message: message.into(), remedy: None }
    }

    /// A model that lacks something, by E003, and what to ask for instead.
    pub fn lacking(message: impl Into<String>, remedy: Remedy) -> Self {
        Self::Lacking { error: Error::version(message), remedy }
    }

    /// A request that the model can't meet, and what to change.
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

/// What running comes to.
pub type RunResult<T> = Result<T, RunError>;
