//! What to change when a run is refused, in the words of the command line.

use apr_registry::Error;
use apr_run::{Remedy, RunError};

use crate::failure::Failure;

/// The option or file that helps.
pub(in crate::commands) fn advice(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Truncate => "pass --truncate to shorten it",
        Remedy::Pooling => "pass --pooling to choose another",
        Remedy::Part => "pass --part NAME",
        Remedy::MaxTokens => "pass --max-tokens",
        Remedy::Arrays => "pass arrays with --input NAME=FILE",
        Remedy::NameInput => "pass --input NAME=FILE",
        Remedy::TokenIds => "pass token ids with --tokens 1,15,7",
        Remedy::CandidateTexts => "pass candidate texts: --prompt \"a cat\" --prompt \"a dog\"",
        Remedy::NoLanguage => "remove --language and --translate",
        Remedy::NoChat => {
            "add one to an .apr or .gguf file with `apr edit MODEL --chat-template FILE`, or \
             give the text alone with --prompt"
        }
        Remedy::Fallback => "pass --fallback to transcribe it again",
        Remedy::BiasedIds => "pass the id of each with --logit-bias ID=X",
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
