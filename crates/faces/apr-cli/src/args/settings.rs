//! Environment variables, files and configuration keys, as the manual pages list them;
//! `docs/configuration.md` has the details.

/// Environment variables, and the purpose of each.
pub(crate) const ENVIRONMENT: [(&str, &str); 20] = [
    ("APR_CONFIG", "The configuration file, in place of ~/.config/apr/config.toml."),
    ("APR_CACHE", "The cache folder, in place of ~/.cache/apr."),
    (
        "APR_LOG_LEVEL",
        "error, warn, info or debug: messages on standard error; -q and -v override it.",
    ),
    ("APR_COLOR", "auto, always or never; --color overrides it."),
    ("NO_COLOR", "If set, output has no colours unless --color or APR_COLOR require them."),
    ("APR_THREADS", "Number of threads; --threads overrides it."),
    ("APR_RAM_LIMIT", "Memory limit, such as 512M; --max-memory overrides it."),
    ("APR_PASSWORD", "The password of encrypted models; --password-file overrides it."),
    (
        "HF_TOKEN, HF_TOKEN_PATH",
        "The token for the hub, or its file; by default the token of `hf auth login`.",
    ),
    ("HF_HOME, HF_HUB_CACHE", "In place of ~/.cache/huggingface, and of hub in it."),
    ("HF_ENDPOINT", "Endpoint of hf:// [default: https://huggingface.co]."),
    ("HF_HUB_OFFLINE", "1 is --offline."),
    ("HF_HUB_DOWNLOAD_TIMEOUT", "The default of --timeout, in seconds, in place of 30."),
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN",
        "The key for s3://; by default the key of the profile AWS_PROFILE in ~/.aws.",
    ),
    ("AWS_REGION, AWS_ENDPOINT_URL", "The server of s3://."),
    ("HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY", "Proxies, and hosts without a proxy."),
    (
        "SSL_CERT_FILE, SSL_CERT_DIR",
        "Certificates to trust, in place of the system's; after them REQUESTS_CA_BUNDLE, \
         CURL_CA_BUNDLE, AWS_CA_BUNDLE.",
    ),
    ("APR_COMPLETE", "Set by the scripts of `apr completions`, which call apr to complete a word."),
    ("COLUMNS", "Width of lists of tensors in columns; by default the width of the terminal."),
    ("XDG_CONFIG_HOME, XDG_CACHE_HOME", "In place of ~/.config and ~/.cache."),
];

/// Files, and the purpose of each.
pub(crate) const FILES: [(&str, &str); 3] = [
    ("~/.config/apr/config.toml", "The configuration. Optional. Unknown keys are errors."),
    (
        "~/.cache/apr",
        "Files from servers, and temporary copies of piped input. `apr cache clear` removes them.",
    ),
    (
        "~/.cache/huggingface/hub",
        "Hugging Face models, in the layout of huggingface_hub, which uses the same folder.",
    ),
];

/// Keys of the configuration, their defaults, and the purpose of each.
pub(crate) const KEYS: [(&str, &str, &str); 10] = [
    (
        "defaults.output_format",
        "\"text\"",
        "\"json\" prints every report and every error as with --json.",
    ),
    (
        "defaults.color",
        "true",
        "false is --color never; NO_COLOR, APR_COLOR and --color override it.",
    ),
    ("inspect.show_vocab", "false", "true is --vocab of every `apr inspect`."),
    ("inspect.max_tokens_display", "20", "Tokens that --vocab shows."),
    ("debug.drama_mode", "false", "true is --drama of every `apr debug`."),
    ("debug.hex_limit", "256", "Bytes that `apr debug --hex` shows without --limit."),
    ("validate.strict", "false", "true is --strict of every `apr validate`."),
    ("validate.require_signature", "false", "true is --signature of every `apr validate`."),
    (
        "validate.trusted",
        "[]",
        "Files of public keys that `apr validate` trusts; paths count from the configuration's \
         folder.",
    ),
    ("hub.timeout", "30", "The default of --timeout; HF_HUB_DOWNLOAD_TIMEOUT overrides it."),
];

#[cfg(test)]
mod tests {
    use apr_core::setting::SETTINGS;
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;
    use crate::config::Config;
    use crate::options::option;

    #[test]
    fn every_setting_that_libraries_name_is_an_option() {
        let cli = Cli::command();
        let inner = || cli.get_subcommands().flat_map(clap::Command::get_subcommands);
        let commands = || std::iter::once(&cli).chain(cli.get_subcommands()).chain(inner());
        for setting in SETTINGS {
            let option = option(setting);
            let is_known = commands().any(|command| {
                let mut names = command.get_arguments().filter_map(|argument| argument.get_long());
                names.any(|name| option.strip_prefix("--") == Some(name))
            });
            assert!(is_known, "{setting}: no command has {option}");
        }
    }

    #[test]
    fn every_key_with_its_default_is_a_configuration() {
        for (key, default, _) in KEYS {
            let (table, key) = key.split_once('.').expect("a table and a key");
            let text = format!("[{table}]\n{key} = {default}\n");
            assert!(toml::from_str::<Config>(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn the_page_about_the_configuration_names_everything() {
        let page = include_str!("../../../../../docs/configuration.md");
        let names =
            ENVIRONMENT.iter().map(|(name, _)| *name).chain(FILES.iter().map(|(name, _)| *name));
        let keys = KEYS.iter().map(|(key, ..)| key.split_once('.').expect("a table and a key").1);
        for name in names.flat_map(|names| names.split(", ")).chain(keys) {
            assert!(page.contains(name), "docs/configuration.md does not name {name}");
        }
    }
}
