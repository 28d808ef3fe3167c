//! The compiled part of the Python package `apr`: calls of the library, each of which releases the
//! interpreter while it works. The public interface, including arrays, is Python, in `apr/`.
//!
//! # How the Python package works
//!
//! `python/src` is the module `apr._apr`: `Model` over `apr::Model`, conversions, and generation
//! as an iterator. Long calls run on a thread of their own (`supervised.rs`). Meanwhile, the
//! calling thread releases the interpreter, handles signals and calls `progress`. Documents are
//! passed as JSON, arrays as bytes. NumPy and torch make their arrays from the bytes in
//! `python/apr`, or map or read the file if `Model.flat` reports that a tensor is stored flat. The
//! stable interface of CPython 3.9 supports every later version. `apr/safetensors` builds on this,
//! with one module for each of the package's. `python/tests/module.rs` runs the tests, which are
//! Python.

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

/// Runs the command and returns its exit code. The first argument is the command's name.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| apr_cli::main(arguments))
}
