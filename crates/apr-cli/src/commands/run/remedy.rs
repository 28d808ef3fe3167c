//! What to change when a run is refused, in the words of the command line.

use apr_registry::Error;
use apr_run::{Remedy, RunError};

use crate::failure::Failure;

/// The option or file that helps.
pub(super) fn advice(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Truncate => "--truncate leaves out the end",
        Remedy::Pooling => "--pooling chooses another way",
        Remedy::Part => "--part NAME chooses one",
        Remedy::MaxTokens => "--max-tokens says how many to generate",
        Remedy::Arrays => "give arrays, --input NAME=FILE",
        Remedy::NameInput => "--input NAME=FILE says which one a file is for",
        Remedy::TokenIds => "give ids of tokens, --tokens 1,15,7",
        Remedy::CandidateTexts => "give texts that may fit: --prompt \"a cat\" --prompt \"a dog\"",
        Remedy::NoLanguage => "leave --language and --translate out",
        Remedy::NoChat => "leave --chat out",
        _ => "see apr run --help",
    }
}

/// A message, and the advice behind it.
pub(super) fn with_advice(message: &str, remedy: Option<Remedy>) -> String {
    remedy.map_or_else(|| message.to_owned(), |remedy| format!("{message}; {}", advice(remedy)))
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Model(error) => Self::Model(error),
            RunError::Lacking { error, remedy } => {
                let message = with_advice(error.message(), Some(remedy));
                Self::Model(Error::new(error.code(), message))
            }
            RunError::Request { message, remedy } => Self::Usage(with_advice(&message, remedy)),
            other => Self::General(other.to_string()),
        }
    }
}
