//! Programs that a step needs and cargo can install, kept apart from the user's own.

use std::path::PathBuf;

use crate::process::{cargo, find_program, run, target_dir};
use crate::steps::{Outcome, in_ci};

/// A program on the crate registry.
pub(crate) struct Tool {
    /// Name of the program.
    pub(crate) name: &'static str,
    /// The crate that has it.
    pub(crate) package: &'static str,
    /// Version to install. A version that is already installed is used unchanged.
    pub(crate) version: &'static str,
}

impl Tool {
    /// A program whose crate has its name.
    pub(crate) const fn new(name: &'static str, version: &'static str) -> Self {
        Self { name, package: name, version }
    }

    pub(crate) fn installed(&self) -> Option<PathBuf> {
        find_program(|name| name == self.name)
            .or_else(|| Some(self.own()).filter(|path| path.exists()))
    }

    /// Without optimization they build in a third of the time, and their own work takes a second
    /// either way.
    pub(crate) fn install(&self) -> Outcome<PathBuf> {
        self.install_with(&[])
    }

    /// Installs the tool with options of `cargo install`, such as features.
    ///
    /// The dependencies are from the package's lock file: newer ones may require a newer Rust than
    /// ours.
    pub(crate) fn install_with(&self, options: &[&str]) -> Outcome<PathBuf> {
        let mut install =
            cargo("install", ["--quiet", "--debug", "--version", self.version, self.package]);
        if !in_ci() {
            // In CI, every call of cargo has it.
            install.arg("--locked");
        }
        run(install.args(options).arg("--root").arg(folder()))?;
        Ok(self.own())
    }

    pub(crate) fn installed_or_install(&self) -> Outcome<PathBuf> {
        self.installed().map_or_else(|| self.install(), Ok)
    }

    fn own(&self) -> PathBuf {
        folder().join("bin").join(self.name).with_extension(std::env::consts::EXE_EXTENSION)
    }
}

fn folder() -> PathBuf {
    target_dir().join("tools")
}
