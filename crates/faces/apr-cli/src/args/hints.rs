//! What users of other tools type, and what it is called here.

mod words;

use std::ffi::OsString;
use std::path::Path;

use apr_view::slips;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error};

use self::words::{COMMANDS, INNER, OPTIONS};
use super::groups::GROUPS;

/// Adds the hint for what was typed, in place of clap's list of similar names.
pub(super) fn advised(mut error: Error) -> Error {
    blame_environment(&mut error);
    if let Some(other) = of_zero(&error).or_else(|| of_number(&error)) {
        return other;
    }
    let args: Vec<OsString> = crate::arguments().skip(1).collect();
    let hint = hint(&error, &args);
    let typed = error.get(ContextKind::InvalidSubcommand);
    let is_command = matches!(typed, Some(ContextValue::String(typed))
        if command_or_topic(&args) == Some(typed.as_str()));
    if [ErrorKind::UnknownArgument, ErrorKind::InvalidSubcommand].contains(&error.kind()) {
        // clap calls names similar that are far off. Its advice to pass an unknown option as a
        // value behind `--` has no use here, and its usage has the option that it takes for
        // similar.
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::Suggested]
            .into_iter()
            .for_each(|kind| drop(error.remove(kind)));
    }
    if error.kind() == ErrorKind::UnknownArgument {
        if let Some(usage) = usage(&args) {
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        }
        if let Some(name) = hint.is_none().then(|| similar_option(&error, &args)).flatten() {
            error.insert(ContextKind::SuggestedArg, ContextValue::String(name));
        }
    } else if let Some(name) = hint.is_none().then(|| similar_inner(&error, &args)).flatten() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(name));
    }
    let hint = hint.or_else(|| is_command.then(|| "`apr help` lists all commands".to_owned()));
    if let Some(hint) = hint {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(hint)]));
    }
    error
}

/// The error for an option that must not be 0: the parser of such numbers names a type of Rust.
fn of_zero(error: &Error) -> Option<Error> {
    const BY_PARSER: &str = "zero for non-zero type";
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return None };
    let is_zero =
        error.kind() == ErrorKind::ValueValidation && error.to_string().contains(BY_PARSER);
    let option = arg.split(' ').next().unwrap_or(arg);
    is_zero.then(|| Error::raw(ErrorKind::ValueValidation, format!("{option} must be 1 or more\n")))
}

/// The error for a number that is none: the parsers of the standard library do not name what they
/// expect.
fn of_number(error: &Error) -> Option<Error> {
    const EXPECTED: [(&str, &str); 5] = [
        ("invalid digit found in string", "expected a whole number that is not negative"),
        ("cannot parse integer from empty string", "expected a whole number"),
        ("number too large to fit in target type", "the number is too large"),
        ("number too small to fit in target type", "the number is too small"),
        ("invalid float literal", "expected a number"),
    ];
    if error.kind() != ErrorKind::ValueValidation {
        return None;
    }
    let (Some(ContextValue::String(arg)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return None;
    };
    let text = error.to_string();
    let (_, expected) = EXPECTED.into_iter().find(|(by_parser, _)| text.contains(by_parser))?;
    let message = format!("invalid value '{value}' for '{arg}': {expected}\n");
    Some(Error::raw(ErrorKind::ValueValidation, message))
}

/// Names the environment variable that has an invalid value, in place of the option that it sets.
fn blame_environment(error: &mut Error) {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return };
    let option = arg.split(' ').next().unwrap_or(arg);
    let command = super::Cli::command();
    let found = command
        .get_arguments()
        .find(|arg| arg.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long)));
    let variable = found.and_then(clap::Arg::get_env).and_then(|name| name.to_str());
    let is_typed = crate::arguments().any(|arg| {
        let arg = arg.to_string_lossy();
        arg == option || arg.strip_prefix(option).is_some_and(|value| value.starts_with('='))
    });
    if let Some(variable) = variable.filter(|name| !is_typed && std::env::var_os(name).is_some()) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable.to_owned()));
    }
}

/// Returns the command that was typed, as far as its words are known.
fn typed_command(args: &[OsString]) -> Option<Command> {
    let mut all = super::Cli::command();
    all.build();
    let mut typed: Option<Command> = None;
    for word in words(args) {
        match typed.as_ref().unwrap_or(&all).find_subcommand(word).cloned() {
            Some(inner) => typed = Some(inner),
            None => break,
        }
    }
    typed
}

/// Returns the usage of the command that was typed.
fn usage(args: &[OsString]) -> Option<StyledStr> {
    Some(typed_command(args)?.render_usage())
}

/// Returns the option of the command that was typed with a slip of the keys.
fn similar_option(error: &Error, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else { return None };
    let typed = typed.split('=').next()?.strip_prefix("--")?;
    let command = typed_command(args)?;
    let names = command.get_arguments().flat_map(clap::Arg::get_long_and_visible_aliases);
    let names: Vec<&str> = names.flatten().collect();
    Some(format!("--{}", slips(typed, names, 1).first()?))
}

fn hint(error: &Error, args: &[OsString]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = text(ContextKind::InvalidSubcommand)?;
            match command_or_topic(args) {
                Some(outer) if outer != typed => of_inner_command(outer, typed),
                _ => of_command(typed),
            }
        }
        ErrorKind::UnknownArgument => {
            let arg = text(ContextKind::InvalidArg)?;
            if arg.starts_with('-') { of_option(arg, args) } else { of_positional(arg, args) }
        }
        ErrorKind::MissingRequiredArgument => of_missing(error, args),
        _ => None,
    }
}

/// Two models for the command that compares outputs only when it is asked to.
fn of_missing(error: &Error, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let lacks_quality = missing.iter().any(|arg| arg == "--quality");
    (command(args)? == "validate" && lacks_quality).then(|| {
        "`apr validate` takes one model at a time; with --quality, it scores a model, or compares \
         the outputs of two"
            .to_owned()
    })
}

fn find(table: &[(&[&str], &str)], typed: &str) -> Option<String> {
    let row = table.iter().find(|(names, _)| names.contains(&typed));
    row.map(|(_, hint)| (*hint).to_owned())
}

fn of_command(typed: &str) -> Option<String> {
    let is_path = Path::new(typed).exists() || typed.contains(['/', '.']);
    let of_path = || is_path.then(|| format!("the command must be first: `apr inspect {typed}`"));
    let of_code = || {
        let code = apr_ops::explain::error_code(typed)?.code;
        Some(format!("`apr explain {code}` explains the error code"))
    };
    let of_similar = || {
        let names = GROUPS.iter().flat_map(|(_, names)| *names).copied();
        Some(format!("did you mean `apr {}`?", slips(typed, names, 1).first()?))
    };
    let lower = typed.to_lowercase();
    find(&COMMANDS, &lower).or_else(of_path).or_else(of_code).or_else(of_similar)
}

/// Returns the hint for a word after a command that has commands of its own.
fn of_inner_command(outer: &str, typed: &str) -> Option<String> {
    let typed = typed.to_lowercase();
    let known = |(of, names, _): &&(&str, &[&str], &str)| *of == outer && names.contains(&&*typed);
    INNER.iter().find(known).map(|(_, _, hint)| (*hint).to_owned())
}

/// Returns the command within the command that was typed that a slip of the keys away is.
fn similar_inner(error: &Error, args: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let command = typed_command(args)?;
    let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    slips(typed, names, 1).first().map(|name| (*name).to_owned())
}

fn of_option(typed: &str, args: &[OsString]) -> Option<String> {
    let name = typed.split('=').next().unwrap_or(typed);
    // These two have words of their own for it.
    match (command(args)?, name) {
        (
            "quantize",
            "--quantize"
            | "--qtype"
            | "--quant"
            | "--quantization-type"
            | "--bits"
            | "--nbits"
            | "--outtype"
            | "--ftype"
            | "--dtype",
        ) => Some("-t TYPE (--type) sets the quantization type".to_owned()),
        (
            command,
            "--quantize"
            | "--qtype"
            | "--quant"
            | "--quantization-type"
            | "--bits"
            | "--nbits"
            | "--ftype",
        ) if !has_option(command, "quantize") => {
            Some("`apr quantize MODEL --type TYPE -o OUT` quantizes a model".to_owned())
        }
        (command, "-n" | "--n-predict" | "--predict" | "--max-new-tokens" | "--max-length")
            if has_option(command, "max-tokens") =>
        {
            Some("--max-tokens N sets the maximum number of tokens".to_owned())
        }
        ("shard", "--shard-size" | "--max-shard-size" | "--max-size") => {
            Some("--size SIZE sets the maximum size of a shard".to_owned())
        }
        ("inspect", "--tensors") => Some("`apr tensors MODEL` lists the tensors".to_owned()),
        ("inspect", "--metadata" | "--all") => {
            Some("--full shows all metadata and companion files".to_owned())
        }
        (command, "--filter" | "--include" | "--only") if has_option(command, "keep") => {
            Some("--keep GLOB and --drop GLOB choose tensors by name".to_owned())
        }
        (_, "--revision" | "--branch") => {
            Some("the location has the revision: hf://ORG/REPO@REVISION".to_owned())
        }
        ("upgrade", "-o" | "--output") => {
            Some("pass the output without an option: `apr upgrade OLD NEW`".to_owned())
        }
        ("man", "-o" | "--output") => {
            Some("pass the folder without an option: `apr man DIR`".to_owned())
        }
        ("completions", "-o" | "--output") => {
            Some("the script is printed: `apr completions SHELL > FILE`".to_owned())
        }
        ("download", "-o" | "--output") => {
            Some("--local-dir FOLDER copies the files into a folder".to_owned())
        }
        (command, "-p" | "--text" | "--query") if has_option(command, "prompt") => {
            Some("--prompt TEXT sets the prompt".to_owned())
        }
        (command, "-o" | "--output" | "--format") if !has_option(command, "output") => {
            Some(format!(
                "`apr {command}` does not write a model; `apr convert MODEL -o OUT` does, in the \
                 format of --format"
            ))
        }
        _ => find(&OPTIONS, name),
    }
}

/// Returns `true` if the command has this option.
fn has_option(command: &str, long: &str) -> bool {
    let all = super::Cli::command();
    let found = all.find_subcommand(command);
    found.is_some_and(|found| found.get_arguments().any(|arg| arg.get_long() == Some(long)))
}

/// A second name: the output, or another model, as a shell makes of `*.safetensors`.
fn of_positional(typed: &str, args: &[OsString]) -> Option<String> {
    let command = command(args)?;
    if ["run", "tokenize"].contains(&command) && !Path::new(typed).exists() {
        let text = crate::failure::quoted(typed).unwrap_or_else(|| "TEXT".to_owned());
        return Some(format!("--prompt sets the prompt: `apr {command} MODEL --prompt {text}`"));
    }
    if !["convert", "import", "export", "quantize", "encrypt", "decrypt", "shard", "join"]
        .contains(&command)
    {
        return Path::new(typed)
            .exists()
            .then(|| format!("`apr {command}` takes one model at a time"));
    }
    let has_output = args.iter().any(|arg| {
        let arg = arg.to_string_lossy();
        arg.starts_with("--output") || (arg.starts_with("-o") && !arg.starts_with("--"))
    });
    // llama-quantize has the output and the type in this order.
    let scheme = args
        .iter()
        .filter_map(|arg| arg.to_str())
        .skip(1)
        .find(|arg| apr_quantize::Scheme::parse(arg).is_ok() && !Path::new(arg).exists());
    if let Some(scheme) = scheme.filter(|_| command == "quantize" && !Path::new(typed).exists()) {
        let output = if typed == scheme { "OUT" } else { typed };
        return Some(format!(
            "-t sets the type, -o names the output: `apr quantize MODEL -t {scheme} -o {output}`"
        ));
    }
    if !has_output && !Path::new(typed).exists() {
        return Some(format!("-o names the output: `apr {command} MODEL -o {typed}`"));
    }

    Some(format!(
        "`apr {command}` takes one model; name the folder or the index of its parts, or take \
         several models one by one: `for m in *.safetensors; do apr {command} \"$m\" -o \
         \"${{m%.*}}.apr\"; done`"
    ))
}

/// Returns the command that was typed: the first word that is not an option.
fn command(args: &[OsString]) -> Option<&str> {
    words(args).next()
}

/// Returns the command that was typed, or the command whose help was requested.
fn command_or_topic(args: &[OsString]) -> Option<&str> {
    words(args).find(|word| *word != "help")
}

fn words(args: &[OsString]) -> impl Iterator<Item = &str> {
    args.iter().filter_map(|arg| arg.to_str()).filter(|arg| !arg.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_hint_stands_in_the_way_of_a_command() {
        let cli = crate::args::Cli::command();
        let names: Vec<&str> = cli
            .get_subcommands()
            .flat_map(|command| command.get_name_and_visible_aliases())
            .collect();
        let hinted = COMMANDS.iter().flat_map(|(names, _)| *names);
        hinted.for_each(|name| assert!(!names.contains(name), "{name}"));
    }

    #[test]
    fn hints_name_commands_that_exist() {
        let cli = crate::args::Cli::command();
        let inner = INNER.iter().map(|(_, _, hint)| *hint);
        let texts = OPTIONS.iter().chain(&COMMANDS).map(|(_, hint)| *hint).chain(inner);
        let code = texts.flat_map(|hint| hint.split('`').skip(1).step_by(2));
        let named = code.filter_map(|code| code.strip_prefix("apr ")?.split(' ').next());
        for name in named.filter(|name| *name != "COMMAND") {
            assert!(cli.find_subcommand(name).is_some(), "{name}");
        }
    }

    #[test]
    fn slips_of_the_keys_are_recognized_and_other_words_are_not() {
        let cases = [
            ("inspct", Some("did you mean `apr inspect`?")),
            ("quantise", Some("did you mean `apr quantize`?")),
            ("rnu", Some("did you mean `apr run`?")),
            ("frobnicate", None),
            ("cook", None),
            ("ps", None),
            ("lx", None),
            ("lss", None),
            ("e002", Some("`apr explain E002` explains the error code")),
            ("unshard", Some("`apr join MANIFEST -o OUT.apr` puts shards together")),
        ];
        for (typed, expected) in cases {
            assert_eq!(of_command(typed).as_deref(), expected, "{typed}");
        }
    }

    #[test]
    fn no_name_is_hinted_at_twice() {
        for table in [&OPTIONS[..], &COMMANDS[..]] {
            let mut names: Vec<&str> =
                table.iter().flat_map(|(names, _)| *names).copied().collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }
}
