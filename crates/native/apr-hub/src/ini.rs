//! The files of AWS's programs: sections of keys and values.

use std::collections::BTreeMap;
use std::path::Path;

/// Returns the sections of a file by name, each with its keys in lower case; empty if the file does
/// not exist.
pub(crate) fn sections(path: &Path) -> BTreeMap<String, BTreeMap<String, String>> {
    read(&std::fs::read_to_string(path).unwrap_or_default())
}

fn read(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut current: Option<&mut BTreeMap<String, String>> = None;
    for line in text.lines() {
        // What is indented belongs to a setting of several lines, and a comment to nobody.
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(section) = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']'))
        {
            current = Some(found.entry(section.trim().to_owned()).or_default());
        } else if let (Some(keys), Some((key, value))) = (&mut current, line.split_once('=')) {
            keys.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
    }

    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_its_keys_and_no_others() {
        let text =
            "# c\n[default]\nregion = a\n[profile x]\nRegion=b\ns3 =\n  max = 3\n\n[y]\nregion=c\n";
        let found = read(text);
        assert_eq!(
            found["profile x"],
            [("region".into(), "b".into()), ("s3".into(), String::new())].into()
        );
        assert_eq!(found.keys().collect::<Vec<_>>(), ["default", "profile x", "y"]);
    }
}
