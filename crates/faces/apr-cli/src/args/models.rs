//! The arguments that name models.

use clap::{Arg, ArgMatches, Command, CommandFactory};

use super::Cli;

/// Placeholders of options that take a model.
const MODELS: [&str; 2] = ["MODEL", "ADAPTER"];
/// The placeholder of the argument in the place of a model that is none.
const PLAN: &str = "PLAN";
/// Commands whose models can be named in a file.
const BY_FILE: [&str; 3] = ["merge", "run-part", "finish"];

/// Returns `true` if a path was typed as a model, or is that of a model in a file that was typed.
pub(crate) fn names_model(path: &str) -> bool {
    let command = super::hyphens::with_hyphens(Cli::command());
    let Ok(matches) = command.clone().try_get_matches_from(crate::arguments()) else {
        return false;
    };
    let mut of_models = None;
    let leaf = visit(&command, &matches, &mut |arg, value| {
        let is_it = value == path
            || value.rsplit_once('=').is_some_and(|(_, value)| value == path)
            || value.rsplit_once(':').is_some_and(|(value, _)| value == path);
        if is_it {
            of_models = Some(of_models == Some(true) || takes_model(arg));
        }
    });
    of_models.unwrap_or_else(|| BY_FILE.contains(&leaf))
}

fn takes_model(arg: &Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    match arg.is_positional() {
        true => names.iter().all(|name| name != PLAN),
        false => names.iter().any(|name| MODELS.iter().any(|model| name.starts_with(model))),
    }
}

/// Visits the values of all arguments of the command and of those within it. Returns the name of
/// the innermost.
fn visit<'c>(
    command: &'c Command,
    matches: &ArgMatches,
    then: &mut dyn FnMut(&Arg, &str),
) -> &'c str {
    for arg in command.get_arguments() {
        let values = matches.try_get_raw(arg.get_id().as_str()).ok().flatten();
        for value in values.into_iter().flatten().filter_map(|value| value.to_str()) {
            then(arg, value);
        }
    }
    let inner = matches
        .subcommand()
        .and_then(|(name, matches)| Some(visit(command.find_subcommand(name)?, matches, then)));
    inner.unwrap_or_else(|| command.get_name())
}
