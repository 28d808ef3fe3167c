//! XML: entities and types of PMML, libraries of OpenVINO.

use apr_registry::Escaped;

use super::{ContentRemarks, not_examined, not_run};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// XML, such as PMML: entities read files and URLs, or grow without end.
pub(super) fn judge(base: &str, text: &str) -> ContentRemarks {
    /// Characters of a declaration that are looked at.
    const DECLARATION: usize = 1024;
    /// Remarks of one verdict.
    const REMARKS: usize = 20;

    // Other documents name their types as a matter of course, and no loader of models reads them.
    let is_model =
        base.ends_with(".pmml") || ["<PMML", "<net"].iter().any(|root| text.contains(root));
    let mut found = ContentRemarks::new();
    let declarations = text.match_indices("<!").map(|(at, _)| &text[at..]);
    for rest in
        declarations.filter(|rest| ["<!ENTITY", "<!DOCTYPE"].iter().any(|d| rest.starts_with(d)))
    {
        // A declaration that ends nowhere would be copied as often as there are of them.
        let declared = rest.chars().take_while(|c| !['>', '['].contains(c));
        let declared: String = declared.take(DECLARATION).collect();
        let is_entity = declared.starts_with("<!ENTITY");
        // What stands behind so much is taken for the worst.
        let is_cut = declared.len() >= DECLARATION;
        let is_outside = is_cut || ["SYSTEM", "PUBLIC"].iter().any(|word| declared.contains(word));
        if !(is_model || is_entity && is_outside) {
            continue;
        }
        // Documents of other programs have their own types beside them, or on the web.
        let file = declared.rsplit(['"', '\'']).nth(1).unwrap_or_default();
        let is_web = ["http://", "https://"].iter().any(|start| file.starts_with(start));
        if !is_model && !is_cut && (is_web || !leads_out(file)) {
            continue;
        }
        let (verdict, what) = match (is_entity, is_outside) {
            (true, true) => (FileVerdict::Dangerous, "an entity that reads a file or a URL"),
            (true, false) => {
                (FileVerdict::Suspicious, "an entity of its own, which may grow without end")
            }
            (false, true) => (FileVerdict::Suspicious, "a type that is read from a file or a URL"),
            (false, false) => continue,
        };
        // Pages of the web name a type that no browser fetches.
        let is_page = !is_entity && declared.to_ascii_lowercase().contains("html");
        if is_page || found.iter().filter(|(known, _)| *known == verdict).count() == REMARKS {
            continue;
        }
        found.push((verdict, format!("XML declares {what}: {}", Escaped::short(&declared))));
    }

    if text.contains("http://www.w3.org/2001/XInclude") {
        let message = "XML includes other files or URLs".to_owned();
        found.push((FileVerdict::Suspicious, message));
    }
    let declared = text.split("?>").next().unwrap_or_default().to_ascii_lowercase();
    let encoding = declared.split_once("encoding").map(|(_, rest)| {
        rest.trim_start_matches([' ', '=', '"', '\'', '\n', '\t'])
            .chars()
            .take(12)
            .collect::<String>()
    });
    let known = ["utf-8", "us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252"];
    if encoding.is_some_and(|name| {
        declared.starts_with("<?xml") && !known.iter().any(|k| name.starts_with(k))
    }) {
        found.extend(not_examined("XML of an encoding that is not read"));
    }
    if text.contains("<script") || text.contains("javascript:") {
        found.extend(not_run("a page whose scripts run in a browser"));
    }
    if text.contains("<net") {
        openvino(text, &mut found);
    }
    found
}

/// Layers of OpenVINO that a library of the loading program computes.
fn openvino(text: &str, found: &mut ContentRemarks) {
    for (name, value) in attributes(text) {
        let shown = Escaped::short(&value);
        let remark = match name {
            "library" if leads_out(&value) => (
                FileVerdict::Dangerous,
                format!("OpenVINO loads a library outside the model's folder: '{shown}'"),
            ),
            "library" => (FileVerdict::Dangerous, format!("OpenVINO loads the library '{shown}'")),
            "version" if value == "extension" || value == "custom_opset" => (
                FileVerdict::NotExamined,
                format!("a layer of '{shown}', which the loading program registers"),
            ),
            _ => continue,
        };
        if found.len() < 20 && !found.contains(&remark) {
            found.push(remark);
        }
    }
}

/// Returns the attributes of elements, with the five named entities and numeric ones decoded.
fn attributes(text: &str) -> impl Iterator<Item = (&str, String)> {
    let elements = text.split('<').skip(1).filter(|element| !element.starts_with(['!', '?', '/']));
    elements.flat_map(|element| {
        let mut rest = element;
        std::iter::from_fn(move || {
            let (before, after) = rest.split_once('=')?;
            let name = before.split_ascii_whitespace().next_back()?;
            let after = after.trim_start();
            let quote = after.chars().next().filter(|c| ['"', '\''].contains(c))?;
            let (value, left) = after[1..].split_once(quote)?;
            rest = left;
            Some((name, unescaped(value)))
        })
    })
}

fn unescaped(value: &str) -> String {
    let mut text = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once('&') {
        text.push_str(before);
        let Some((name, left)) = after.split_once(';') else {
            rest = after;
            break;
        };
        let number = name.strip_prefix('#').and_then(|digits| match digits.strip_prefix('x') {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        });
        text.extend(number.and_then(char::from_u32).or(match name {
            "amp" => Some('&'),
            "apos" => Some('\''),
            "gt" => Some('>'),
            "lt" => Some('<'),
            "quot" => Some('"'),
            _ => None,
        }));
        rest = left;
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_count_by_the_files_that_they_read() {
        let entity =
            |file: &str| format!("<?xml version='1.0'?><!ENTITY % a PUBLIC 'b' \"{file}\">");
        for (name, file, expected) in [
            ("x.dtd", "datatypes.dtd", None),
            ("x.dtd", "http://www.w3.org/TR/xhtml1/DTD/xhtml-lat1.ent", None),
            ("x.xml", "file:///etc/passwd", Some(FileVerdict::Dangerous)),
            ("x.xml", "../secret", Some(FileVerdict::Dangerous)),
            ("x.pmml", "datatypes.dtd", Some(FileVerdict::Dangerous)),
            ("x.pmml", "http://x/y", Some(FileVerdict::Dangerous)),
        ] {
            let worst = judge(name, &entity(file)).into_iter().map(|(verdict, _)| verdict).max();
            assert_eq!(worst, expected, "{name} {file}");
        }
    }

    #[test]
    fn libraries_of_openvino_are_found() {
        use FileVerdict::{Dangerous, NotExamined};
        for (text, expected) in [
            ("<net name='x'><layer type=\"Relu\" version='opset1'/></net>", None),
            ("<net><layer library=\"x.so\"/></net>", Some(Dangerous)),
            ("<net><layer a = 'b' librar&#121;='x' library = '&#47;x.so'/></net>", Some(Dangerous)),
            ("<net><layer type='Mine' version='extension'/></net>", Some(NotExamined)),
        ] {
            let found = judge("m.xml", text);
            let worst = found.iter().map(|(verdict, _)| *verdict).max();
            assert_eq!(worst, expected, "{text}: {found:?}");
        }
    }
}
