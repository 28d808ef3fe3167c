//! Licences: recognising their text, and telling what the strict ones forbid.

/// The warning that the files of a model state no licence.
pub const NO_LICENSE: &str = "no licence stated";

/// Bytes of a licence's text that are looked at; the GPL has 35,000.
const MAX_TEXT: usize = 256 << 10;

/// Characters that hold a licence's title.
const TITLE: usize = 400;

/// Licences whose title names them: identifier, and title in lower case with single spaces.
const TITLES: [(&str, &str); 24] = [
    ("apache-2.0", "apache license version 2.0"),
    ("agpl-3.0", "gnu affero general public license version 3"),
    ("lgpl-3.0", "gnu lesser general public license version 3"),
    ("lgpl-2.1", "gnu lesser general public license version 2.1"),
    ("gpl-3.0", "gnu general public license version 3"),
    ("gpl-2.0", "gnu general public license version 2"),
    ("mpl-2.0", "mozilla public license version 2.0"),
    ("cc-by-nc-nd-4.0", "attribution-noncommercial-noderivatives 4.0 international"),
    ("cc-by-nc-sa-4.0", "attribution-noncommercial-sharealike 4.0 international"),
    ("cc-by-nc-4.0", "attribution-noncommercial 4.0 international"),
    ("cc-by-nd-4.0", "attribution-noderivatives 4.0 international"),
    ("cc-by-sa-4.0", "attribution-sharealike 4.0 international"),
    ("cc-by-4.0", "attribution 4.0 international"),
    ("cc0-1.0", "cc0 1.0 universal"),
    ("llama2", "llama 2 community license agreement"),
    ("llama3", "llama 3 community license agreement"),
    ("llama3.1", "llama 3.1 community license agreement"),
    ("llama3.2", "llama 3.2 community license agreement"),
    ("llama3.3", "llama 3.3 community license agreement"),
    ("llama4", "llama 4 community license agreement"),
    ("gemma", "gemma terms of use"),
    ("creativeml-openrail-m", "creativeml open rail-m"),
    ("bigscience-bloom-rail-1.0", "bigscience rail license v1.0"),
    ("unlicense", "this is free and unencumbered software released into the public domain"),
];

/// The identifier of a licence whose text this clearly is.
pub(super) fn recognise(text: &str) -> Option<&'static str> {
    let plain = plain(text);
    let title = plain.get(..plain.char_indices().nth(TITLE).map_or(plain.len(), |(end, _)| end))?;
    let mut found: Vec<_> =
        TITLES.iter().filter(|(_, words)| title.contains(words)).map(|&(id, _)| id).collect();
    found.extend(by_grant(&plain));
    match *found {
        [only] => Some(only),
        _ => None,
    }
}

/// Returns licences that are detected by their wording, because their title is often left out.
fn by_grant(plain: &str) -> impl Iterator<Item = &'static str> {
    let says = |words: &str| plain.contains(words);
    let mit = says("permission is hereby granted free of charge to any person obtaining a copy")
        && says("the above copyright notice and this permission notice shall be included");
    let bsd = says(
        "redistribution and use in source and binary forms with or without modification are \
         permitted",
    ) && !says("all advertising materials");
    let bsd = match (bsd, says("neither the name")) {
        (true, true) => Some("bsd-3-clause"),
        (true, false) => Some("bsd-2-clause"),
        (false, _) => None,
    };
    mit.then_some("mit").into_iter().chain(bsd)
}

/// Normalizes a text: lower case, single spaces, and without the signs in which copies of a text
/// differ.
fn plain(text: &str) -> String {
    let end =
        (0..=MAX_TEXT.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    let mut plain = String::new();
    for word in text
        .get(..end)
        .unwrap_or_default()
        .split(|c: char| c.is_whitespace() || ",;:()\"*#=_".contains(c))
    {
        if !word.is_empty() {
            plain.extend(word.chars().flat_map(char::to_lowercase));
            plain.push(' ');
        }
    }
    plain
}

/// Licences for research only, or against commercial use, whose identifiers do not show it.
const RESTRICTED: [(&str, Terms); 5] = [
    ("apple-amlr", Terms::Research),
    ("deepfloyd-if-license", Terms::Research),
    ("h-research", Terms::NonCommercial),
    ("mnpl", Terms::NonProduction),
    ("mrl", Terms::Research),
];

#[derive(Clone, Copy)]
enum Terms {
    NonCommercial,
    NoDerivatives,
    Research,
    NonProduction,
}

/// Returns a sentence about a licence that forbids commercial use, or `None` for any other (QA
/// point 94).
///
/// Licences that allow commercial use under conditions (`llama3.1`, `gemma`, `openrail`, the GPL)
/// get no warning: their names are in the metadata, and users stop reading a warning that every
/// second import prints.
///
/// ```
/// use apr_source::companions::license_warning;
///
/// assert!(
///     license_warning("cc-by-nc-4.0")
///         .is_some_and(|warning| warning.contains("forbids commercial use"))
/// );
/// assert_eq!(license_warning("apache-2.0"), None);
/// ```
#[must_use]
pub fn license_warning(license: &str) -> Option<String> {
    // Of several, the strictest binds whoever can't tell which part is under which.
    license.split(", ").find_map(|license| {
        let forbidden = match terms(&license.to_lowercase())? {
            Terms::NonCommercial => "forbids commercial use of the model and its derivatives",
            Terms::NoDerivatives => {
                "forbids commercial use of the model and its derivatives, and distribution of \
                 changed versions"
            }
            Terms::Research => "allows research only, and forbids commercial use",
            Terms::NonProduction => {
                "forbids use in production and commercial use; it allows tests \
                and research"
            }
        };
        Some(format!("the licence {} {forbidden}", apr_core::Escaped::short(license)))
    })
}

fn terms(license: &str) -> Option<Terms> {
    if let Some((_, terms)) =
        RESTRICTED.iter().find(|(id, _)| license.strip_prefix(id).is_some_and(is_version))
    {
        return Some(*terms);
    }
    let words: Vec<_> = license.split(|c: char| !c.is_alphanumeric()).collect();
    let pair = words.windows(2).any(|pair| matches!(pair, ["non", "commercial"]));
    if pair || words.iter().any(|word| matches!(*word, "nc" | "noncommercial")) {
        return Some(if words.contains(&"nd") {
            Terms::NoDerivatives
        } else {
            Terms::NonCommercial
        });
    }

    words.contains(&"research").then_some(Terms::Research)
}

/// Returns `true` for a version such as `-0.1`.
fn is_version(rest: &str) -> bool {
    rest.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | '.' | 'v'))
}

#[cfg(test)]
mod tests {
    use apr_testkit::locate;

    use super::*;

    #[test]
    fn only_licences_that_forbid_commercial_use_are_warned_of() {
        for license in [
            "cc-by-nc-4.0",
            "CC-BY-NC-SA-3.0",
            "cc-by-nc-nd-4.0",
            "apple-amlr",
            "fair-noncommercial-research-license",
            "flux-1-dev-non-commercial-license",
            "stabilityai-nc-community",
            "qwen-research",
            "llama2-research",
            "intel-research",
            "mnpl-0.1",
            "mit, cc-by-nc-4.0",
            "PolyForm-Noncommercial-1.0.0",
        ] {
            assert!(license_warning(license).is_some(), "{license}");
        }
        for license in [
            "mit",
            "apache-2.0",
            "llama3.1",
            "gemma",
            "openrail",
            "creativeml-openrail-m",
            "bigscience-openrail-m",
            "cc-by-nd-4.0",
            "cc-by-sa-4.0",
            "gpl-3.0",
            "ncsa",
            "other",
            "",
        ] {
            assert_eq!(license_warning(license), None, "{license}");
        }
        let warning = license_warning("cc-by-nc-nd-4.0").unwrap();
        assert!(
            warning.starts_with(
                "the licence cc-by-nc-nd-4.0 forbids commercial use of the model and its"
            ),
            "{warning}"
        );
    }

    #[test]
    fn licence_files_of_real_projects_are_recognised() {
        let Some(folder) = locate::shared_data("LICENSES") else { return };
        for (name, expected) in [
            ("huggingface_candle__LICENSE-APACHE", Some("apache-2.0")),
            ("huggingface_candle__LICENSE-MIT", Some("mit")),
            ("openai_whisper__LICENSE", Some("mit")),
            ("onnx_onnx__LICENSE", Some("apache-2.0")),
            ("keras-team_keras__LICENSE", Some("apache-2.0")),
            ("h5py_h5py__LICENSE", Some("bsd-3-clause")),
            ("apple_coremltools__LICENSE.txt", Some("bsd-3-clause")),
        ] {
            let text = std::fs::read_to_string(folder.join(name)).unwrap();
            assert_eq!(recognise(&text), expected, "{name}");
        }
    }

    #[test]
    fn titles_distinguish_licences() {
        for (text, expected) in [
            ("GNU GENERAL PUBLIC LICENSE\n   Version 3, 29 June 2007", Some("gpl-3.0")),
            ("GNU AFFERO GENERAL PUBLIC LICENSE\nVersion 3", Some("agpl-3.0")),
            ("GNU LESSER GENERAL PUBLIC LICENSE\nVersion 2.1", Some("lgpl-2.1")),
            (
                "Attribution-NonCommercial-ShareAlike 4.0 International\n\n====",
                Some("cc-by-nc-sa-4.0"),
            ),
            ("Attribution 4.0 International", Some("cc-by-4.0")),
            ("LLAMA 2 COMMUNITY LICENSE AGREEMENT\nLlama 2 Version", Some("llama2")),
            ("META LLAMA 3 COMMUNITY LICENSE AGREEMENT\nMeta Llama 3 Version", Some("llama3")),
            ("LLAMA 3.1 COMMUNITY LICENSE AGREEMENT", Some("llama3.1")),
            ("All rights reserved.", None),
            ("Apache License Version 2.0 or: GNU GENERAL PUBLIC LICENSE Version 2", None),
            ("", None),
        ] {
            assert_eq!(recognise(text), expected, "{text}");
        }
    }
}
