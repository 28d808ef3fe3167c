//! Errors of the library as exceptions of `apr/_errors.py`.

use apr::report::JobError;
use apr::run::RunError;
use apr::{Error, IoCause};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An error that becomes an exception.
pub(crate) enum Failure {
    /// About the model, a file or this machine.
    Model(Error),
    /// The arguments contradict the model or each other.
    Request(String),
    /// The result failed a check; nothing was written.
    Check(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Model(error)
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Model(error) | RunError::Lacking { error, .. } => Self::Model(error),
            error => Self::Request(error.to_string()),
        }
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Model(error) => Self::Model(error),
            JobError::Request(message) => Self::Request(message),
            other => Self::Check(other.to_string()),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Model(Error::format(error.to_string()))
    }
}

/// Wraps an exception of Python's own code for its way through the library.
pub(crate) fn of_python(error: &PyErr) -> Error {
    Error::io(IoCause::Other, error.to_string())
}

impl Failure {
    /// Returns the exception.
    pub(crate) fn raised(&self, py: Python<'_>) -> PyErr {
        self.exception(py).unwrap_or_else(|error| error)
    }

    fn exception(&self, py: Python<'_>) -> PyResult<PyErr> {
        let fields = PyDict::new(py);
        match self {
            Self::Model(error) => {
                fields.set_item("code", error.code().id())?;
                fields.set_item("message", error.message())?;
                fields.set_item("file", error.file())?;
                fields.set_item("tensor", error.tensor())?;
                fields.set_item("offset", error.offset())?;
                fields.set_item("is_absent", error.cause() == Some(IoCause::NotFound))?;
                fields.set_item("is_there", error.cause() == Some(IoCause::AlreadyExists))?;
            }
            Self::Request(message) => fields.set_item("message", message)?,
            Self::Check(message) => {
                fields.set_item("message", message)?;
                fields.set_item("is_check", true)?;
            }
        }
        let made = py.import("apr._errors")?.getattr("made")?.call((), Some(&fields))?;
        Ok(PyErr::from_value(made))
    }
}
