//! What users of other tools type, and what it is called here.

use std::ffi::OsString;
use std::path::Path;

use clap::Error;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options of llama.cpp, hf, ffmpeg and others, and what does the same; the name is the one that
/// was typed.
const OPTIONS: [(&[&str], &str); 13] = [
    (
        &[
            "--outfile",
            "--out",
            "--out-file",
            "--output-file",
            "--outdir",
            "--output-dir",
            "--dest",
            "--local-dir",
        ],
        "-o PATH (--output) names the output",
    ),
    (
        &["--outtype", "--dtype", "--torch-dtype", "--fp16", "--f16", "--bf16", "--half"],
        "--precision f16 casts floats (bf16, f32 ...); `apr quantize --type q8_0` and --quantize \
         make blocks",
    ),
    (
        &["--to", "--target", "--output-format", "--to-format"],
        "the output's extension says the format, or else --format",
    ),
    (&["--input", "-i", "--model", "-m", "--in"], "the model needs no option: `apr COMMAND MODEL`"),
    (
        &["--qtype", "--quant", "--quantization-type", "--bits", "--ftype"],
        "--quantize TYPE, or `apr quantize --type TYPE`",
    ),
    (
        &["--force", "--yes", "-y", "--clobber", "--replace"],
        "-f (--overwrite) replaces what is there",
    ),
    (&["--max-shard-size", "--split-max-size"], "--shard-size SIZE cuts the output into files"),
    (&["--leave-output-tensor"], "--output-type TYPE sets the type of the output projection"),
    (
        &["--token-embedding-type", "--output-tensor-type"],
        "--embedding-type and --output-type set these types",
    ),
    (
        &["--pattern", "--grep"],
        "--filter of `apr tensors` and --tensors of `apr diff` select by name",
    ),
    (
        &["--stat", "--statistics", "--histogram"],
        "`apr tensors --stats` and --hist NAME look at values",
    ),
    (&["--no-color", "--no-colour", "--colour"], "--color never, or NO_COLOR"),
    (&["--jobs", "-j", "-t", "--nthreads", "--num-threads"], "--threads N, or APR_THREADS"),
];

/// Commands of other tools.
const COMMANDS: [(&[&str], &str); 16] = [
    (&["list", "dir", "layers", "weights"], "`apr tensors MODEL` lists the tensors"),
    (
        &["show", "cat", "view", "open", "describe", "head", "dump", "metadata", "stat"],
        "`apr inspect MODEL` shows what a model is",
    ),
    (&["stats", "hist", "histogram"], "`apr tensors MODEL --stats`, or --hist NAME"),
    (
        &["check", "test", "doctor", "fsck", "hash", "checksum"],
        "`apr validate MODEL` checks a model",
    ),
    (
        &["serve", "web", "browse", "browser", "gui", "netron"],
        "`apr page MODEL` opens a model in the browser",
    ),
    (&["compare", "cmp"], "`apr diff A B` compares two models"),
    (&["pack", "add"], "`apr import SOURCE -o OUT.apr` packs a model"),
    (&["unpack", "extract", "save"], "`apr export MODEL -o FOLDER` writes the files back"),
    (
        &["transcode", "cast", "compress", "decompress", "copy", "cp"],
        "`apr convert MODEL -o OUT`, with --precision or --compress",
    ),
    (&["dequantize"], "`apr convert MODEL --dequantize f16 -o OUT`"),
    (&["split"], "`apr shard MODEL --size 5GB -o OUT.apr`, or `apr convert --shard-size`"),
    (&["concat", "cat-shards", "unsplit"], "`apr join MANIFEST -o OUT.apr` puts shards together"),
    (
        &["rename", "set", "rm", "remove", "drop"],
        "`apr edit MODEL --rename OLD=NEW`, --set, --drop",
    ),
    (&["hexdump", "xxd", "hex", "strings"], "`apr debug FILE --hex`, or --strings"),
    (&["key", "genkey", "gen-key", "key-gen"], "`apr keygen -o KEY` makes a key pair"),
    (&["completion", "complete"], "`apr completions SHELL` prints a completion script"),
];

/// The error with what was meant, where that is known better than by the likeness of names.
pub(super) fn advised(mut error: Error) -> Error {
    let args: Vec<OsString> = crate::arguments().skip(1).collect();
    if let Some(hint) = hint(&error, &args) {
        // Names that are only alike would lead astray.
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand]
            .into_iter()
            .for_each(|kind| drop(error.remove(kind)));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(hint)]));
    }
    error
}

fn hint(error: &Error, args: &[OsString]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => of_command(text(ContextKind::InvalidSubcommand)?),
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
        "`apr validate` takes one model at a time; with --quality, two are compared by what they \
         compute"
            .to_owned()
    })
}

fn find(table: &[(&[&str], &str)], typed: &str) -> Option<String> {
    let row = table.iter().find(|(names, _)| names.contains(&typed));
    row.map(|(_, hint)| (*hint).to_owned())
}

fn of_command(typed: &str) -> Option<String> {
    let is_path = Path::new(typed).exists() || typed.contains(['/', '.']);
    let of_path = || is_path.then(|| format!("a command comes first: `apr inspect {typed}`"));
    find(&COMMANDS, &typed.to_lowercase()).or_else(of_path)
}

fn of_option(typed: &str, args: &[OsString]) -> Option<String> {
    let name = typed.split('=').next().unwrap_or(typed);
    // These two have words of their own for it.
    match (command(args)?, name) {
        (
            "quantize",
            "--quantize" | "--qtype" | "--quant" | "--outtype" | "--ftype" | "--dtype",
        ) => Some("-t TYPE (--type) says what to quantize to".to_owned()),
        ("shard", "--shard-size" | "--max-shard-size") => {
            Some("--size SIZE says how large a shard may be".to_owned())
        }
        _ => find(&OPTIONS, name),
    }
}

/// A second name: the output, or another model, as a shell makes of `*.safetensors`.
fn of_positional(typed: &str, args: &[OsString]) -> Option<String> {
    let command = command(args)?;
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
    if !has_output && !Path::new(typed).exists() {
        return Some(format!("-o names the output: `apr {command} MODEL -o {typed}`"));
    }

    Some(format!(
        "`apr {command}` takes one model; name the folder or the index of its parts, or take \
         several models one by one: `for m in *.safetensors; do apr {command} \"$m\" -o \
         \"${{m%.*}}.apr\"; done`"
    ))
}

/// The command that was typed: the first word that is no option.
fn command(args: &[OsString]) -> Option<&str> {
    args.iter().filter_map(|arg| arg.to_str()).find(|arg| !arg.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
