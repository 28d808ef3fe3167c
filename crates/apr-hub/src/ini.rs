//! The files of AWS's programs: sections of keys and values.

use std::collections::BTreeMap;
use std::path::Path;

/// The keys of a section, in lower case; none where there is no such file or section.
pub(crate) fn section(path: &Path, name: &str) -> BTreeMap<String, String> {
    read(&std::fs::read_to_string(path).unwrap_or_default(), name)
}

fn read(text: &str, name: &str) -> BTreeMap<String, String> {
    let mut is_ours = false;
    let mut found = BTreeMap::new();
    for line in text.lines() {
        // What is indented belongs to a setting of several lines, and a comment to nobody.
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(section) = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']'))
        {
            is_ours = section.trim() == name;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_ours) {
            found.insert(key.trim().to_lowercase(), value.trim().to_owned());
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
        assert_eq!(
            read(text, "profile x"),
            [("region".into(), "b".into()), ("s3".into(), String::new())].into()
        );
        assert!(read(text, "z").is_empty());
    }
}
