//! Values that begin with a hyphen.

use clap::Command;

/// Placeholders of values in the words of a human, which may begin with anything.
const TEXTS: [&str; 2] = ["TEXT", "LICENSEE"];

/// The command, whose texts may begin with a hyphen; so may numbers, so that one below zero is
/// refused by the name of its option and not as an option that is not known.
pub(super) fn with_hyphens(command: Command) -> Command {
    command
        .mut_args(|arg| {
            if arg.is_positional() || !arg.get_action().takes_values() {
                return arg;
            }
            let names = arg.get_value_names().unwrap_or_default();
            let is_text = names.iter().any(|name| TEXTS.contains(&name.as_str()));
            let arg = arg.allow_negative_numbers(true);
            if is_text { arg.allow_hyphen_values(true) } else { arg }
        })
        .mut_subcommands(with_hyphens)
}
