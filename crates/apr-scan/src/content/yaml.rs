//! YAML: tags that import or call, and settings that name what is imported.

use apr_registry::Escaped;

use super::ContentRemarks;
use super::json;
use crate::report::FileVerdict;

/// Tags that make what PyYAML's unsafe loaders call or import.
const TAGS: [&str; 2] = ["!!python/", "tag:yaml.org,2002:python/"];

/// Those of them that are plain values.
const VALUES: [&str; 11] =
    ["bool", "bytes", "complex", "dict", "float", "int", "list", "long", "none", "str", "tuple"];

/// Where a line ends for PyYAML.
const BREAKS: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];

/// Judges a text that a loader may take for YAML.
pub(super) fn judge(text: &str) -> ContentRemarks {
    let mut found = ContentRemarks::new();
    let mut quoted = false;
    for line in text.split(BREAKS) {
        // A mark of a comment may stand in a quoted text, which may go on over lines.
        quoted |= line.contains(['"', '\'']);
        let bare = if quoted { line } else { without_comment(line) };
        tags(&unescaped(bare), &mut found);
        directive(bare, &mut found);
        setting(bare, &mut found);
    }
    found.truncate(20);
    found
}

fn without_comment(line: &str) -> &str {
    if line.trim_start().starts_with('#') {
        return "";
    }
    line.split(" #").next().unwrap_or_default()
}

/// Tags may be written with escapes: `%6f`.
fn unescaped(line: &str) -> String {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tags(line: &str, found: &mut ContentRemarks) {
    for tag in TAGS {
        for (at, _) in line.match_indices(tag) {
            let kind: String = line[at + tag.len()..]
                .chars()
                .take_while(|c| !c.is_whitespace() && *c != '>')
                .collect();
            if !VALUES.contains(&kind.as_str()) && found.len() < 20 {
                let kind = Escaped::short(&kind);
                let message = format!("YAML's tag !!python/{kind} imports or calls a name");
                found.push((FileVerdict::Dangerous, message));
            }
        }
    }
}

/// `%TAG` gives a beginning of tags a short name, under which the rest of them follows.
fn directive(line: &str, found: &mut ContentRemarks) {
    let Some(rest) = line.strip_prefix("%TAG") else { return };
    let prefix = unescaped(rest.split_whitespace().nth(1).unwrap_or_default());
    let full = "tag:yaml.org,2002:python/";
    let is_part = !prefix.is_empty() && full.starts_with(prefix.as_str());
    if is_part && prefix.len() > "tag:yaml.org,2002:".len() {
        let message =
            format!("YAML gives tags of Python a name of its own: {}", Escaped::short(line));
        found.push((FileVerdict::Dangerous, message));
    } else if is_part && prefix != "tag:yaml.org,2002:" {
        let message = format!("YAML cuts the names of its tags: {}", Escaped::short(line));
        found.push((FileVerdict::Suspicious, message));
    }
}

/// Settings that name a class or function, as Hydra and MLflow import it.
fn setting(line: &str, found: &mut ContentRemarks) {
    let line = line.trim_start().trim_start_matches(['-', ' ', '{', '?']);
    let Some((key, value)) = line.split_once(':') else { return };
    let plain = |text: &str| text.trim().trim_matches(['"', '\'', ',', '}', ' ']).to_owned();
    json::setting(&plain(key), &plain(value), found);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_however_they_are_spelled() {
        use FileVerdict::{Dangerous, Suspicious};
        for (text, expected) in [
            ("a: 1 # !!python/object/apply:os.system", None),
            ("# !!python/object/apply:os.system\na: 1", None),
            ("a: !!python/tuple [1, 2]", None),
            ("\"a #\": !!python/object/apply:os.system []", Some(Dangerous)),
            ("[\"a\n # b\", !!python/object/apply:os.system []]", Some(Dangerous)),
            ("# a\u{2028}b: !!python/object/apply:os.system []", Some(Dangerous)),
            ("a: !!pyth%6fn/object/apply:os.system []", Some(Dangerous)),
            (
                "%TAG !p! tag:yaml.org,2002:pyth\n---\na: !p!on/object/apply:os.system",
                Some(Dangerous),
            ),
            ("%TAG !p! tag:yaml.org,20\n---\na: !p!02:python/name:os.system", Some(Dangerous)),
            ("%TAG !p! tag:yaml\n---\na: 1", Some(Suspicious)),
            ("_target_: os.system", Some(Dangerous)),
            ("- _target_: torch.nn.Linear", None),
            ("    loader_module: evil", Some(Suspicious)),
            ("    loader_module: mlflow.sklearn", None),
        ] {
            let worst = judge(text).into_iter().map(|(verdict, _)| verdict).max();
            if text.contains("tag:yaml.org,20\n") {
                assert!(worst.is_some(), "{text}");
            } else {
                assert_eq!(worst, expected, "{text}");
            }
        }
    }
}
