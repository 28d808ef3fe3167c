//! `apr version`: what this binary is, and what it can do.

use std::env::consts;
use std::io::{self, Write};

use apr_registry::formats;
use serde::Serialize;

use super::page;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::Outcome;
use crate::printer::{BOLD, DIM};

/// Parts of the binary that can be left out when it is built, and whether they are in it. A build
/// with the feature `page` has the page only where its files were there.
fn parts() -> [(&'static str, bool); 13] {
    [
        ("infer", cfg!(feature = "infer")),
        ("hub", cfg!(feature = "hub")),
        ("text", cfg!(feature = "text")),
        ("chat", cfg!(feature = "chat")),
        ("audio", cfg!(feature = "audio")),
        ("images", cfg!(feature = "images")),
        ("grammar", cfg!(feature = "grammar")),
        ("page", page::is_built_in()),
        ("tui", cfg!(feature = "tui")),
        ("linalg", cfg!(feature = "linalg")),
        ("qa", cfg!(feature = "qa")),
        ("seals", cfg!(feature = "seals")),
        ("simd", cfg!(feature = "simd")),
    ]
}

/// Report of this binary's version and features.
#[derive(Serialize)]
struct VersionReport {
    /// Version of the program.
    version: &'static str,
    /// Commit from which the binary was built, if the build recorded it.
    commit: Option<&'static str>,
    /// Target triple of the build: processor, vendor, system and C library.
    platform: String,
    /// Features that it was built with.
    features: Vec<&'static str>,
    /// Features that it was built without.
    without: Vec<&'static str>,
    /// Formats that it reads or detects.
    formats: Vec<FormatSupport>,
}

impl Document for VersionReport {
    const SCHEMA: &'static str = "version";
}

/// Format that can be read, or is detected only.
#[derive(Serialize)]
struct FormatSupport {
    /// Name of the format in reports and options.
    id: &'static str,
    /// Name of the format.
    name: &'static str,
    /// File extensions of the format.
    extensions: &'static [&'static str],
    /// `true` if the format can be written.
    writes: bool,
}

pub(super) fn run(context: &Context) -> Outcome {
    let features = |is_in: bool| {
        let chosen = parts().into_iter().filter(move |(_, there)| *there == is_in);
        chosen.map(|(name, _)| name).collect()
    };
    let report = VersionReport {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("APR_COMMIT"),
        platform: platform(),
        features: features(true),
        without: features(false),
        formats: formats().map(support).collect(),
    };
    context.printer.report(&report, render)
}

/// Returns the name of the platform in Rust: `x86_64-unknown-linux-gnu`.
fn platform() -> String {
    let (system, library) = match consts::OS {
        "macos" => ("apple-darwin", ""),
        "windows" => ("pc-windows", "msvc"),
        "linux" => ("unknown-linux", ""),
        other => (other, ""),
    };
    let library = if cfg!(target_env = "musl") {
        "musl"
    } else if cfg!(target_env = "gnu") {
        "gnu"
    } else {
        library
    };
    let parts = [consts::ARCH, system, library];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

fn support(format: &'static apr_core::Format) -> FormatSupport {
    let (id, name, extensions) = (format.id, format.name, format.extensions);
    FormatSupport { id, name, extensions, writes: format.target.is_some() }
}

fn render(out: &mut dyn Write, report: &VersionReport) -> io::Result<()> {
    write!(out, "{BOLD}apr {}{BOLD:#} ({}", report.version, report.platform)?;
    if let Some(commit) = report.commit {
        write!(out, ", {commit}")?;
    }
    writeln!(out, ")")?;
    let features = if report.features.is_empty() { "none" } else { &report.features.join(", ") };
    writeln!(out, "features: {features}")?;
    if !report.without.is_empty() {
        writeln!(out, "built without: {}", report.without.join(", "))?;
    }
    let named = |writes: bool| {
        let chosen = report.formats.iter().filter(|format| format.writes == writes);
        chosen.map(|format| format.name).collect::<Vec<_>>().join(", ")
    };
    writeln!(out, "reads and writes: {}", named(true))?;
    writeln!(out, "reads or detects: {}", named(false))?;
    writeln!(out, "{DIM}apr version --json lists them with their extensions{DIM:#}")
}
