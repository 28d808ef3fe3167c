//! Errors as JavaScript gets them: an object in JSON, of which `web/src/api` makes an exception.

use std::fmt::Display;

use apr_core::Error;
use apr_ops::inline::ValidationError;
use apr_ops::job::JobError;
use serde::Serialize;
use wasm_bindgen::JsValue;

/// Result of a call from JavaScript.
pub type JsResult<T = String> = Result<T, Thrown>;

/// Error that is thrown to JavaScript.
#[derive(Debug, Default, Serialize)]
pub struct Thrown {
    /// `E001` to `E008`; `null` if the request itself is invalid.
    code: Option<&'static str>,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
}

impl Thrown {
    /// A request that can't be met.
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

impl From<Error> for Thrown {
    fn from(error: Error) -> Self {
        Self {
            code: Some(error.code().id()),
            message: error.message().to_owned(),
            file: error.file().map(str::to_owned),
            tensor: error.tensor().map(str::to_owned),
            offset: error.offset(),
        }
    }
}

impl From<JobError> for Thrown {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Model(error) => error.into(),
            JobError::Misfit { file, misfits, .. } => {
                let first = misfits.first().map(ValidationError::to_string).unwrap_or_default();
                Self { file: Some(file), ..Self::request(first) }
            }
            other => Self::request(other.to_string()),
        }
    }
}

#[cfg(feature = "run")]
impl From<apr_run::RunError> for Thrown {
    fn from(error: apr_run::RunError) -> Self {
        match error {
            apr_run::RunError::Model(error) | apr_run::RunError::Lacking { error, .. } => {
                error.into()
            }
            other => Self::request(other.to_string()),
        }
    }
}

impl From<Thrown> for JsValue {
    fn from(thrown: Thrown) -> Self {
        apr_core::json::to_string(&thrown).unwrap_or(thrown.message).into()
    }
}

/// A report as JSON.
pub(crate) fn json(report: &impl Serialize) -> Result<String, JsValue> {
    apr_core::json::to_string(report).map_err(|error| refused(&error))
}

/// Returns the error of a call that failed for a reason other than the model.
fn refused(error: &dyn Display) -> JsValue {
    Thrown::request(error.to_string()).into()
}
