//! The compiled part of the Python package `apr`: calls of the library, each with the interpreter
//! let go while it works. What users see, arrays among it, is Python, in `apr/`.

#![allow(
    clippy::needless_pass_by_value,
    reason = "arguments are taken out of Python's objects, and so are owned"
)]

mod errors;
mod generation;
mod jobs;
mod model;
mod supervised;

use std::ffi::OsString;

use pyo3::prelude::*;

/// The module `apr._apr`.
#[pymodule(gil_used = false)]
mod _apr {
    #[pymodule_export]
    use crate::generation::{Generation, History};
    #[pymodule_export]
    use crate::jobs::{convert, pack, save, scan, schemes, writable_formats};
    #[pymodule_export]
    use crate::main;
    #[pymodule_export]
    use crate::model::Model;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Runs the command with these arguments, its name first, and returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| apr_cli::main(arguments))
}
