//! Examples of commands about hubs, caches and this program.

use super::Example;

/// By the words of the command.
pub(super) const OF_SETUP: [(&str, &[Example]); 9] = [
    (
        "ls",
        &[
            ("apr ls hf://openai/whisper-tiny", "list the files of a repository"),
            ("apr ls model.gguf", "list the tensors of a model"),
        ],
    ),
    (
        "download",
        &[
            (
                "apr download hf://openai/whisper-tiny",
                "download one model into the Hugging Face cache",
            ),
            (
                "apr download hf://org/model --file model-Q8_0.gguf",
                "download one file of a repository with several models",
            ),
            (
                "apr download hf://org/model --all --include '*.json' --local-dir model",
                "copy the files that match into a folder",
            ),
        ],
    ),
    (
        "upload",
        &[
            ("apr upload model hf://org/model --create private", "upload a folder"),
            (
                "apr upload model.Q8_0.gguf hf://org/model-GGUF --pull-request",
                "propose one more file for a repository of others",
            ),
            (
                "apr upload model hf://org/model --exclude '*.bin' --dry-run",
                "show what would be sent",
            ),
        ],
    ),
    ("cache info", &[("apr cache info", "show location and contents")]),
    (
        "cache clear",
        &[
            ("apr cache clear --older 30d --dry-run", "show what was not used for 30 days"),
            ("apr cache clear hf://openai/whisper-tiny", "remove one model"),
            ("apr cache clear --all-hub", "also remove files that other programs downloaded"),
        ],
    ),
    ("cache verify", &[("apr cache verify", "verify every file against its digest")]),
    (
        "completions",
        &[
            (
                "apr completions bash > ~/.local/share/bash-completion/completions/apr",
                "install for bash",
            ),
            ("apr completions fish > ~/.config/fish/completions/apr.fish", "install for fish"),
            ("apr completions zsh > ~/.zfunc/_apr", "install for zsh, with ~/.zfunc in fpath"),
        ],
    ),
    ("man", &[("apr man ~/.local/share/man/man1", "write the manual pages")]),
    ("version", &[("apr version --json", "list features and formats for a script")]),
];
