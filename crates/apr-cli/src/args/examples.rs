//! Examples of each command, which its help and its manual page end with.

use clap::{Arg, Command};

/// A command line, and what it does.
type Example = (&'static str, &'static str);

/// By the words of the command.
const EXAMPLES: [(&str, &[Example]); 44] = [
    (
        "",
        &[
            ("apr inspect model.gguf", "what a model is; reads no weights"),
            (
                "apr import llama-folder -o llama.apr",
                "pack a Hugging Face folder, and check every tensor",
            ),
            (
                "apr quantize llama.apr --type q4_k_m -o llama.gguf",
                "blocks of 4 bits, with llama.cpp's bytes",
            ),
        ],
    ),
    (
        "inspect",
        &[
            ("apr inspect model.safetensors", "family, size, dtypes, metadata"),
            (
                "apr inspect hf://openai/whisper-tiny",
                "a model on a hub; only its header is fetched",
            ),
            ("apr inspect *.gguf --quantization", "how several models are quantized"),
            ("apr inspect model.apr --json", "the same for programs"),
        ],
    ),
    (
        "tensors",
        &[
            ("apr tensors model.gguf --filter attn_q --stats", "statistics of some tensors"),
            ("apr tensors model.apr --hist norm.weight", "the distribution of one"),
            ("apr tensors model.apr --values 'lm_head.weight[0:4, -3:]'", "values of a part"),
        ],
    ),
    (
        "validate",
        &[
            ("apr validate model.apr", "all checks, in one read"),
            (
                "apr validate model.safetensors --nan-check --strict",
                "one check, and fail on warnings",
            ),
            (
                "apr validate model.apr small.gguf --quality",
                "compare outputs on ten inputs; exit 5 when they are too far apart",
            ),
            (
                "apr validate model.apr small.gguf --quality --text wiki.txt",
                "perplexity and KL divergence, as llama-perplexity has them",
            ),
            (
                "apr validate pytorch_model.bin --sarif found.sarif",
                "what a pickle would run, for a code scanner",
            ),
        ],
    ),
    (
        "canary",
        &[
            (
                "apr canary create model.apr --prompt \"12+34=\" -o canary.json",
                "record what the model answers",
            ),
            ("apr canary check small.gguf --canary canary.json", "exit 5 when an answer differs"),
        ],
    ),
    (
        "canary create",
        &[
            (
                "apr canary create whisper --input speech.wav -o canary.json",
                "a transcription; the file is named with its SHA-256",
            ),
            (
                "apr canary create model.apr --prompt 2+2= --expect 4 -o canary.json",
                "expect another answer than the model's own",
            ),
        ],
    ),
    (
        "canary check",
        &[(
            "apr canary check small.gguf --canary canary.json --json",
            "answers, error rates and failures for programs",
        )],
    ),
    (
        "scan",
        &[
            ("apr scan checkpoint.pt", "what loading it would run; nothing of it is run"),
            ("apr scan downloads --sarif -", "a folder, for a code scanner"),
        ],
    ),
    (
        "diff",
        &[
            ("apr diff model.apr model.gguf", "what differs, and what a type rounds"),
            ("apr diff a.apr b.apr --read --exit-code", "compare bytes; exit 5 when they differ"),
            ("apr diff a.apr b.safetensors --max-l2 1.0", "a gate on the distance"),
        ],
    ),
    (
        "debug",
        &[
            ("apr debug broken.apr", "what can be said of a file that does not open"),
            ("apr debug model.apr --hex --tensor norm.weight", "the first bytes of a tensor"),
        ],
    ),
    (
        "lint",
        &[
            ("apr lint model.apr", "what could be better"),
            ("apr lint llama-folder --strict", "exit 5 when there is a warning"),
        ],
    ),
    (
        "explain",
        &[
            ("apr explain model.gguf", "what kind of model it is"),
            ("apr explain model.apr --tensor norm.weight", "what a tensor is for"),
            ("apr explain E002", "what an error means"),
        ],
    ),
    (
        "graph",
        &[
            ("apr graph llama-folder", "the structure as a tree; repeated layers are one row"),
            ("apr graph model.onnx --format svg -o model.svg", "a picture"),
            (
                "apr graph model.onnx --node /encoder/layer.0/attention/MatMul",
                "one node, and what it touches",
            ),
        ],
    ),
    (
        "tokenize",
        &[
            (
                "apr tokenize llama.gguf --prompt \"Once upon a time\"",
                "ids, tokens and their places",
            ),
            ("apr tokenize tiny-llama --tokens 256,49,50 --decode", "the text of ids"),
            (
                "apr tokenize model.apr --input text.txt --no-special-tokens --json",
                "without the tokens that begin and end a text",
            ),
        ],
    ),
    (
        "run",
        &[
            ("apr run model.onnx --input pixels.npy", "one array in, arrays out"),
            (
                "apr run model.onnx -i input_ids=ids.json -i attention_mask=mask.json --json",
                "several, as JSON",
            ),
            ("apr run llama.gguf --prompt \"Once upon a time\"", "a text that goes on"),
            (
                "apr run chat.gguf --prompt \"What is a llama?\" --chat",
                "an answer, by the model's chat template",
            ),
            ("apr run MiniLM --prompt \"a text\" -o vector.npy", "a vector"),
            ("apr run whisper-tiny --input speech.mp3 --timestamps", "what is said, and when"),
            (
                "apr run whisper-tiny --input speech.mp3 --want features -o mel.npy",
                "the log-mel spectrogram that goes in",
            ),
            (
                "apr run clip --input cat.jpg --prompt \"a cat\" --prompt \"a dog\"",
                "which text fits",
            ),
        ],
    ),
    (
        "trace",
        &[
            ("apr trace llama.gguf --prompt \"Once upon a time\"", "time and memory of each block"),
            (
                "apr trace llama.gguf --prompt \"Once upon a time\" --detect-anomalies",
                "what healthy models do not do",
            ),
            (
                "apr trace llama llama-q4.gguf --diff --prompt \"Once upon a time\"",
                "where two models part, and which weights to look at",
            ),
            (
                "apr trace whisper-tiny --input speech.wav --trace-payload",
                "what every step makes, and what is predicted",
            ),
            (
                "apr trace MiniLM --prompt \"a text\" --export trace.perfetto",
                "every operator on a time line, for ui.perfetto.dev",
            ),
            (
                "apr trace vit --input cat.jpg --dump-activations activations",
                "every activation as .npy",
            ),
        ],
    ),
    (
        "import",
        &[
            (
                "apr import llama-folder -o llama.apr",
                "weights, configuration and tokenizer in one file",
            ),
            ("apr import model.safetensors -o model.apr --quantize q8_0", "quantized on the way"),
            (
                "apr import checkpoint.pt -o model.apr --prefix state_dict.",
                "a part of a checkpoint",
            ),
        ],
    ),
    (
        "convert",
        &[
            ("apr convert model.safetensors -o model.gguf", "the extension says the format"),
            (
                "apr convert model.apr -o small.apr --precision bf16 --compress",
                "other floats, compressed without loss",
            ),
            ("apr convert model.gguf -o back.safetensors --dequantize f16", "blocks as floats"),
        ],
    ),
    (
        "quantize",
        &[
            ("apr quantize model.safetensors --type q4_k_m -o model.gguf", "a mix of K-quants"),
            (
                "apr quantize model.apr -t q8_0 -o q.apr --max-drift 0.01",
                "write nothing if it costs too much",
            ),
            (
                "apr quantize llama-folder -t q4_k_m --imatrix imatrix.gguf -o q.gguf",
                "weighed by an importance matrix",
            ),
        ],
    ),
    (
        "export",
        &[
            ("apr export model.apr -o folder", "a folder as transformers load it"),
            (
                "apr export model.gguf --format safetensors --dequantize f16 -o folder",
                "from blocks to floats",
            ),
        ],
    ),
    (
        "keygen",
        &[
            ("apr keygen -o signing.pem", "to sign with; signing.pem.pub is for others"),
            ("apr keygen --for encryption -o anna.pem", "to receive encrypted models"),
        ],
    ),
    (
        "sign",
        &[("apr sign model.apr --key signing.pem", "in place, without reading the weights again")],
    ),
    (
        "verify",
        &[(
            "apr verify model.apr --trusted signing.pem.pub",
            "who signed it, and that no byte was changed since",
        )],
    ),
    (
        "encrypt",
        &[
            (
                "apr encrypt model.apr -o sealed.apr --recipient anna.pem.pub",
                "for the owner of a key",
            ),
            (
                "apr encrypt model.apr -o sealed.apr --password-file -",
                "for a password from standard input",
            ),
        ],
    ),
    ("decrypt", &[("apr decrypt sealed.apr -o model.apr --key anna.pem", "with the private key")]),
    (
        "license issue",
        &[(
            "apr license issue model.apr --licensee Anna --expires 2027-01-31 --key signing.pem",
            "for a person, until a day",
        )],
    ),
    ("license show", &[("apr license show model.apr", "what it says")]),
    (
        "license check",
        &[(
            "apr license check model.apr --trusted signing.pem.pub --licensee Anna",
            "whether it covers this use",
        )],
    ),
    (
        "edit",
        &[
            ("apr edit model.apr --set license=mit", "metadata, in place"),
            ("apr edit model.apr --chat-template template.jinja", "another chat template"),
            ("apr edit model.apr --drop 'vision.*' -o text.apr", "a copy without some tensors"),
        ],
    ),
    ("upgrade", &[("apr upgrade old.apr new.apr", "a file of today, with the same weights")]),
    (
        "shard",
        &[(
            "apr shard model.apr --size 5GB -o parts.apr",
            "parts-00001-of-00004.apr ..., and a manifest",
        )],
    ),
    ("join", &[("apr join parts.apr -o model.apr", "the file that it was")]),
    (
        "plan",
        &[
            (
                "apr plan --parts 8 -o plan.json quantize llama.apr -t q4_k_m -o small.apr",
                "a job in 8 parts",
            ),
            (
                "apr plan --max-part 5GB -o plan.json convert hf://org/llama -o llama.apr",
                "each reads its ranges only",
            ),
        ],
    ),
    ("run-part", &[("apr run-part plan.json 0", "the first part; a second time, it is skipped")]),
    (
        "finish",
        &[(
            "apr finish plan.json",
            "check all parts, and write the manifest; or what is still to do",
        )],
    ),
    (
        "watermark embed",
        &[(
            "apr watermark embed model.apr -o annas.apr --id anna-2026 --key secret",
            "a copy that says whose it is",
        )],
    ),
    ("watermark detect", &[("apr watermark detect leaked.gguf --key secret", "whose copy it was")]),
    (
        "ls",
        &[
            ("apr ls hf://openai/whisper-tiny", "the files of a repository, and what they are"),
            ("apr ls model.gguf", "the tensors of a model"),
        ],
    ),
    (
        "download",
        &[
            (
                "apr download hf://openai/whisper-tiny",
                "one model, into the cache that Python's client uses too",
            ),
            ("apr download hf://org/model --file model-Q8_0.gguf", "one of several models"),
        ],
    ),
    ("cache info", &[("apr cache info", "where it is and what it holds")]),
    (
        "cache clear",
        &[
            ("apr cache clear --older 30d --dry-run", "what was not used for a month"),
            ("apr cache clear hf://openai/whisper-tiny", "one model"),
        ],
    ),
    ("cache verify", &[("apr cache verify", "every file against its digest")]),
    (
        "completions",
        &[
            (
                "apr completions bash > ~/.local/share/bash-completion/completions/apr",
                "for bash, from the next shell on",
            ),
            ("apr completions fish > ~/.config/fish/completions/apr.fish", "for fish"),
            ("apr completions zsh > ~/.zfunc/_apr", "for zsh, where ~/.zfunc is in fpath"),
        ],
    ),
    ("man", &[("apr man ~/.local/share/man/man1", "then: man apr")]),
];

/// The examples of a command, by its words after `apr`.
pub(crate) fn examples(words: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(of, _)| *of == words).map_or(&[], |(_, examples)| examples)
}

/// Every command with its examples at the end of its help, and without the options that all of them
/// have, which `apr --help` lists.
pub(super) fn with_examples(command: Command) -> Command {
    let global: Vec<Arg> =
        command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    let command = global
        .iter()
        .fold(command, |command, arg| command.mut_arg(arg.get_id(), |arg| arg.hide(true)));
    let codes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let long = [global_options(&global), text(""), codes].join("\n\n");
    with_examples_of(command, "").after_long_help(long)
}

fn with_examples_of(command: Command, words: &str) -> Command {
    const REST: &str =
        "Options of every command, such as --json, -q, --threads and --key: `apr --help`";
    let own = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let names: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let words = format!("{words} {name}").trim_start().to_owned();
        command.mut_subcommand(name, |command| with_examples_of(command, &words))
    });
    let mut after = vec![text(words), own, REST.to_owned()];
    after.retain(|text| !text.is_empty());
    command.after_help(after.join("\n\n"))
}

/// The options of every command, one a line or two.
fn global_options(options: &[Arg]) -> String {
    let mut text = "Options of every command:".to_owned();
    for option in options {
        let short =
            option.get_short().map_or_else(|| "    ".to_owned(), |short| format!("-{short}, "));
        let long = option.get_long().unwrap_or_default();
        let takes_value = option.get_action().takes_values();
        let value = option.get_value_names().unwrap_or_default().first().filter(|_| takes_value);
        let value = value.map_or_else(String::new, |value| format!(" <{value}>"));
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!("\n  {short}--{long}{value}\n          {help}"));
    }
    text
}

/// Each example below its purpose, since some are long.
fn text(words: &str) -> String {
    let examples = examples(words);
    if examples.is_empty() {
        return String::new();
    }
    let lines: Vec<String> =
        examples.iter().map(|(line, what)| format!("  # {what}\n  {line}")).collect();
    format!("Examples:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;

    /// Words as a shell takes them, where quotes keep spaces.
    fn words_of(line: &str) -> Vec<String> {
        let quoted = line.split(['\'', '"']).enumerate();
        let words = quoted.flat_map(|(at, part)| match at % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    #[test]
    fn every_command_has_examples_that_can_be_typed() {
        fn check(command: &Command, words: &str) {
            let own = examples(words);
            let has_subcommands = command.get_subcommands().next().is_some();
            assert!(
                !own.is_empty() || has_subcommands || words == "cache clear",
                "{words} has no example"
            );
            for (line, _) in own {
                assert!(
                    line.starts_with(format!("apr {words}").trim_end()) || words.is_empty(),
                    "{line}"
                );
                let args = words_of(line.split('>').next().unwrap_or_default());
                let parsed = Cli::command_with_help().try_get_matches_from(args);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
            for command in command.get_subcommands() {
                check(command, format!("{words} {}", command.get_name()).trim_start());
            }
        }
        check(&Cli::command_with_help(), "");
    }
}
