//! `apr page`: the page that opens models in the browser, served on this machine.

mod listing;
mod server;
mod site;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr_io::is_remote;
use apr_registry::Error;
use serde::Serialize;

use self::listing::Folder;
use self::server::Server;
use self::site::{MAIN, Site, beside_program, is_site};
use crate::args::PageArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};
use crate::secrets;

/// Report of the served page.
#[derive(Serialize)]
struct PageReport {
    /// Address to open in a browser.
    address: String,
    /// Folder of the page's files; `None` if they are in the program.
    site: Option<PathBuf>,
    /// Number of files of the model that the page may read.
    file_count: usize,
    /// Number of the model's files and folders that the page may not read.
    ///
    /// These are hidden ones, names that are not UTF-8, pipes, and links that lead nowhere or out
    /// of the folder.
    hidden_count: usize,
}

impl Document for PageReport {
    const SCHEMA: &'static str = "page";
}

/// Returns whether the program has the page's files in it.
pub(super) fn is_built_in() -> bool {
    Site::built().is_some()
}

/// Serves until the process is ended.
pub(super) fn run(args: &PageArgs, context: &Context) -> Outcome {
    let site = match &args.site {
        Some(folder) if is_site(folder) => Some(folder.clone()),
        Some(folder) => {
            let message = format!("no files of the page: {MAIN} is missing");
            return Err(Error::format(message).in_file(folder.display().to_string()).into());
        }
        None => beside_program(),
    };
    let page = match &site {
        Some(folder) => Site::of_folder(folder)?,
        None => Site::built().ok_or_else(|| {
            Failure::General(
                "this program was built without the page's files. To make them, run `cargo xtask \
                 web` in a clone of apr's repository; then pass --site CLONE/target/web, or \
                 install again with `cargo install --locked --profile local --path \
                 crates/faces/apr-cli --features page`"
                    .to_owned(),
            )
        })?,
    };
    let local = args.model.as_deref().filter(|model| !is_remote(model));
    let model = local.map(Folder::of_model).transpose()?;
    let opened = match (&args.model, &model) {
        (Some(location), None) => format!("#model={}", address_of(location)?),
        (Some(_), Some(_)) => "#model=open/".to_owned(),
        (None, _) => String::new(),
    };
    // Other users of this machine can reach the port, but not guess the path.
    let mut secret = [0; 16];
    secrets::random(&mut secret)?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let file_count = model.as_ref().map_or(0, Folder::len);
    let hidden_count = model.as_ref().map_or(0, Folder::left_out);
    let server = Server::bind(args.port, &secret, page, model)?;
    let address = format!("{}{opened}", server.address());
    context.printer.report(&PageReport { address, site, file_count, hidden_count }, render)?;
    server.run()
}

fn render(out: &mut dyn Write, report: &PageReport) -> io::Result<()> {
    writeln!(out, "{BOLD}{}{BOLD:#}", report.address)?;
    if report.hidden_count > 0 {
        let names = if report.hidden_count == 1 { "name" } else { "names" };
        writeln!(
            out,
            "{DIM}not served: {} {names}: hidden, not UTF-8, not a file, or a link out of the \
             folder{DIM:#}",
            report.hidden_count
        )?;
    }
    writeln!(out, "{DIM}Only this machine can open it. Press Ctrl-C to stop.{DIM:#}")
}

/// A location as a browser reaches it.
fn address_of(location: &Path) -> Outcome<String> {
    let text = location.to_str().unwrap_or_default();
    let is_known = ["hf://", "http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
    if is_known {
        // What ends the value within the address, or is read as a space, is written as a number.
        let escaped = text.replace('%', "%25").replace('&', "%26").replace('#', "%23");
        return Ok(escaped.replace('+', "%2B"));
    }
    let message = "a browser opens files, folders, hf:// and https:// locations only";
    Err(Error::version(message).in_file(text).into())
}
