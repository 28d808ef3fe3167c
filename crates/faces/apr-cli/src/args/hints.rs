//! What users of other tools type, and what it is called here.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Error};

use super::groups::GROUPS;

/// Options of llama.cpp, hf, ffmpeg and others, and what does the same; the name is the one that
/// was typed.
const OPTIONS: [(&[&str], &str); 16] = [
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
        &["--target", "--output-format", "--to-format"],
        "the output's extension sets the format; otherwise pass --format",
    ),
    (
        &["--input", "-i", "--model", "-m", "--in"],
        "pass the model without an option: `apr \
         COMMAND MODEL`",
    ),
    (
        &["--qtype", "--quant", "--quantization-type", "--bits", "--nbits", "--ftype"],
        "--quantize TYPE, or `apr quantize --type TYPE`",
    ),
    (
        &["--force", "--yes", "-y", "--clobber", "--replace"],
        "-f (--overwrite) overwrites an existing output",
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
        "`apr tensors --stats` and --hist NAME show values",
    ),
    (&["--no-color", "--no-colour", "--colour"], "--color never, or NO_COLOR"),
    (&["--jobs", "-t", "--nthreads", "--num-threads"], "--threads N, or APR_THREADS"),
    (&["-j"], "--json prints the report as JSON; --threads N sets the number of threads"),
    (&["--parents", "--mkdir"], "apr creates the missing folders of an output"),
    (&["--recursive", "-R"], "folders are read with all folders below them"),
];

/// Commands of other tools.
const COMMANDS: [(&[&str], &str); 40] = [
    (&["list", "dir", "layers", "weights"], "`apr tensors MODEL` lists the tensors"),
    (
        &[
            "show",
            "cat",
            "view",
            "open",
            "describe",
            "head",
            "header",
            "metadata",
            "stat",
            "summary",
            "summarize",
            "size",
            "du",
            "params",
            "parameters",
            "details",
            "file",
        ],
        "`apr inspect MODEL` shows family, size, dtypes and metadata",
    ),
    (
        &["chat", "talk", "repl"],
        "`apr run MODEL --chat` holds a conversation, if the model has a chat template; --prompt \
         TEXT is a single prompt",
    ),
    (
        &[
            "infer",
            "inference",
            "generate",
            "predict",
            "prompt",
            "embed",
            "embedding",
            "embeddings",
            "transcribe",
            "translate",
            "exec",
        ],
        "`apr run MODEL` runs a model: --prompt TEXT, or --input FILE",
    ),
    (
        &["pull", "fetch", "get", "clone"],
        "`apr download hf://ORG/REPO` downloads a model; other commands read hf:// themselves",
    ),
    (
        &["perplexity", "ppl", "eval", "evaluate", "score", "quality", "benchmark-quality"],
        "`apr validate MODEL --quality --text FILE` measures perplexity, `apr validate MODEL \
         --quality` scores a model",
    ),
    (
        &["vocab", "vocabulary", "encode", "decode", "tokens", "tokenizer"],
        "`apr tokenize MODEL --prompt TEXT` shows tokens and their ids",
    ),
    (&["licence", "licences", "licenses"], "`apr license` issues, shows and verifies licences"),
    (
        &["sha256", "sha256sum", "digest", "blake3", "md5", "hash", "checksum"],
        "`apr validate MODEL --sha256 HEX` checks the digest of a file; `apr tensors MODEL \
         --digest` lists the digests of its tensors",
    ),
    (&["search", "find", "grep"], "`apr tensors MODEL --filter NAME` selects tensors by name"),
    (&["finetune", "train"], "apr trains students only: `apr distill MODEL -o OUT --data TEXT`"),
    (&["svd", "lowrank", "low-rank"], "`apr factorize MODEL --rank R -o OUT`"),
    (&["time", "profile", "speed", "benchmark", "perf"], "`apr bench MODEL`, or `apr trace MODEL`"),
    (&["topology", "netgraph", "plot", "draw"], "`apr graph MODEL` draws the graph"),
    (&["stats", "hist", "histogram"], "`apr tensors MODEL --stats`, or --hist NAME"),
    (&["check", "test", "doctor", "fsck", "repair", "fix"], "`apr validate MODEL` checks a model"),
    (
        &["serve", "server", "web", "browse", "browser", "gui", "netron"],
        "`apr page MODEL` opens a model in the browser",
    ),
    (&["compare", "cmp"], "`apr diff A B` compares two models"),
    (&["pack", "add"], "`apr import SOURCE -o OUT.apr` packs a model"),
    (&["unpack", "extract", "save"], "`apr export MODEL -o FOLDER` writes the files back"),
    (
        &["transcode", "cast", "compress", "decompress", "copy", "cp"],
        "`apr convert MODEL -o OUT`, with --precision or --compress",
    ),
    (
        &["gguf", "safetensors", "onnx", "to-gguf", "hf-to-gguf", "convert-hf-to-gguf"],
        "`apr convert MODEL -o OUT` converts by the extension of the output",
    ),
    (
        &["login", "auth", "whoami"],
        "`hf auth login` stores the token that apr sends to the hub, or set HF_TOKEN",
    ),
    (&["push", "upload", "publish"], "`apr export MODEL -o FOLDER` writes a folder to upload"),
    (&["dequantize"], "`apr convert MODEL --dequantize f16 -o OUT`"),
    (
        &["split", "gguf-split"],
        "`apr shard MODEL --size 5GB -o OUT.apr`, or `apr convert --shard-size`",
    ),
    (
        &["concat", "cat-shards", "unsplit", "unshard"],
        "`apr join MANIFEST -o OUT.apr` puts shards together",
    ),
    (&["rename", "set", "drop"], "`apr edit MODEL --rename OLD=NEW`, --set, --drop"),
    (
        &["rm", "remove", "delete", "uninstall"],
        "`apr cache clear` removes downloads; `apr edit MODEL --drop GLOB` removes tensors",
    ),
    (&["quant", "quants"], "`apr quantize MODEL --type TYPE -o OUT` quantizes a model"),
    (
        &["optimize", "optimise", "shrink"],
        "`apr quantize MODEL --type TYPE -o OUT` makes a model smaller; so do `apr prune` and \
         `apr factorize`",
    ),
    (
        &["memory", "mem", "vram", "ram"],
        "`apr inspect MODEL --memory` estimates the memory that a run requires",
    ),
    (
        &["template", "chat-template"],
        "`apr run MODEL --chat` applies the chat template; `apr edit MODEL --chat-template FILE` \
         replaces it",
    ),
    (&["config", "configuration"], "`apr inspect MODEL --full` shows all metadata"),
    (&["safe", "safety", "security", "picklescan"], "`apr scan MODEL` looks for malicious code"),
    (&["lora-extract", "extract-lora"], "`apr lora extract` extracts an adapter"),
    (&["sparsify", "sparse"], "`apr prune MODEL --prune 0.5 -o OUT` sets weights to zero"),
    (&["dump", "hexdump", "xxd", "hex", "strings"], "`apr debug FILE --hex`, or --strings"),
    (&["key", "genkey", "gen-key", "key-gen"], "`apr keygen -o KEY` makes a key pair"),
    (&["completion", "complete"], "`apr completions SHELL` prints a completion script"),
];

/// Adds the hint for what was typed, in place of clap's list of similar names.
pub(super) fn advised(mut error: Error) -> Error {
    if let Some(other) = of_zero(&error).or_else(|| of_number(&error)) {
        return other;
    }
    let args: Vec<OsString> = crate::arguments().skip(1).collect();
    let hint = hint(&error, &args);
    if error.kind() == ErrorKind::UnknownArgument {
        // clap's advice to pass an unknown option as a value behind `--` has no use here, and its
        // usage has the option that it takes for similar.
        drop(error.remove(ContextKind::Suggested));
        if let Some(usage) = usage(&args) {
            error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        }
    }
    let typed = error.get(ContextKind::InvalidSubcommand);
    let is_command = matches!(typed, Some(ContextValue::String(typed))
        if command_or_topic(&args) == Some(typed.as_str()));
    if hint.is_some() || is_command || is_far(&error) {
        // Names that are only similar would mislead.
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand]
            .into_iter()
            .for_each(|kind| drop(error.remove(kind)));
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

/// Returns the usage of the command that was typed.
fn usage(args: &[OsString]) -> Option<StyledStr> {
    let mut all = super::Cli::command();
    all.build();
    let words = args.iter().filter_map(|arg| arg.to_str()).filter(|arg| !arg.starts_with('-'));
    let mut typed = None;
    for word in words {
        let inner = typed.as_ref().unwrap_or(&all).find_subcommand(word).cloned();
        match inner {
            Some(inner) => typed = Some(inner),
            None => break,
        }
    }
    Some(typed?.render_usage())
}

/// Returns `true` if clap takes a name for similar that is more than a slip of the keys away.
fn is_far(error: &Error) -> bool {
    let texts = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.as_str()],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let typed = texts(ContextKind::InvalidArg);
    let similar_to = |typed: &str| {
        let typed = typed.split('=').next().unwrap_or(typed);
        similar(typed, texts(ContextKind::SuggestedArg).into_iter()).is_some()
    };
    error.kind() == ErrorKind::UnknownArgument && !typed.iter().any(|typed| similar_to(typed))
}

fn hint(error: &Error, args: &[OsString]) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = text(ContextKind::InvalidSubcommand)?;
            if command_or_topic(args) == Some(typed) { of_command(typed) } else { None }
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
        "`apr validate` takes one model at a time; with --quality, it compares the outputs of two \
         models"
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
    let of_similar = || {
        let name = similar(typed, GROUPS.iter().flat_map(|(_, names)| *names).copied())?;
        Some(format!("did you mean `apr {name}`?"))
    };
    let typed = typed.to_lowercase();
    find(&COMMANDS, &typed).or_else(of_path).or_else(of_similar)
}

/// Returns the name that a slip of the keys away is: one edit, or two in a long word.
fn similar<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    const LONG: usize = 6;
    /// Words of two letters are all near each other.
    const SHORT: usize = 2;
    let most = match typed.chars().count() {
        0..=SHORT => 0,
        len if len < LONG => 1,
        _ => 2,
    };
    let names = names.filter(|name| name.chars().count() > SHORT);
    let distances = names.map(|name| (strsim::damerau_levenshtein(typed, name), name));
    let nearest = distances.min_by_key(|(distance, _)| *distance);
    nearest.filter(|(distance, _)| *distance <= most).map(|(_, name)| name)
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
        ("shard", "--shard-size" | "--max-shard-size") => {
            Some("--size SIZE sets the maximum size of a shard".to_owned())
        }
        ("upgrade", "-o" | "--output") => {
            Some("pass the output without an option: `apr upgrade OLD NEW`".to_owned())
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
        let texts = OPTIONS.iter().chain(&COMMANDS).map(|(_, hint)| *hint);
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
