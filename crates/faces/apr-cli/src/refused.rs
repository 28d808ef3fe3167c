//! Arguments that could not be read.

use std::io::Write;

use clap::error::ErrorKind;

use crate::config::{Config, OutputFormat};
use crate::documents::FailureDocument;
use crate::failure::{ARGUMENTS, Failure};

/// Reports arguments that cannot be parsed, or prints the requested help.
pub(crate) fn report(error: &clap::Error) -> u8 {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    if !error.use_stderr() {
        let failed = |unwritten: std::io::Error| Failure::from(unwritten).report(wants_json());
        return printed.map_or_else(failed, |()| 0);
    }
    if wants_json() {
        let text = error.render().to_string();
        let message = match error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
                "a command is missing: `apr help` lists all"
            }
            _ => text.split("\n\nUsage:").next().unwrap_or(&text),
        };
        let message = message.trim_start_matches("error: ").trim_end();
        let _ = FailureDocument::of(&Failure::Usage(message.to_owned()), None).print();
    }
    ARGUMENTS
}

/// Returns `true` if reports are requested as JSON, for arguments that could not be parsed.
fn wants_json() -> bool {
    let is_asked = crate::arguments().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    is_asked
        || Config::load().is_ok_and(|config| config.defaults.output_format == OutputFormat::Json)
}
