//! Names of other files in a model's files.

/// Returns `true` if a path leaves the folder that it is relative to.
///
/// Such paths are absolute, contain `..`, or start with a Windows drive, the home folder or a URL.
pub(crate) fn leads_out(path: &str) -> bool {
    let is_drive = path.as_bytes().get(1) == Some(&b':');
    path.starts_with(['/', '\\', '~'])
        || is_drive
        || path.contains("://")
        || path.split(['/', '\\']).any(|part| part == "..")
}

/// Returns `true` for names under which formats store only the values of an array.
///
/// These are chunks of zarr (`0.0`, `c/0/0`), nodes of OCDBT and shards of TensorFlow.js.
pub(crate) fn is_values(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let base = parts.next().unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_node = base.len() == 32 && base.bytes().all(|byte| byte.is_ascii_hexdigit());
    let shard = base.strip_prefix("group").and_then(|rest| rest.split_once("-shard"));
    let is_shard = shard.is_some_and(|(group, rest)| {
        let numbers = rest.strip_suffix(".bin").unwrap_or(rest).split_once("of");
        is_number(group) && numbers.is_some_and(|(one, all)| is_number(one) && is_number(all))
    });
    base.split('.').all(is_number)
        || is_node && parts.next() == Some("d")
        || base == "manifest.ocdbt"
        || is_shard
        || base.ends_with(".weights.bin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_folder_are_known() {
        for path in ["/etc/x", "../x", "a/../../x", "a\\..\\x", "C:\\x", "~/x", "file:///x"] {
            assert!(leads_out(path), "{path}");
        }
        for path in ["x", "a/b", "a..b/c", "./x", ""] {
            assert!(!leads_out(path), "{path}");
        }
    }

    #[test]
    fn names_of_array_values_match_only_names_of_arrays() {
        for path in [
            "a/0.0",
            "a/c/0/1",
            "x/d/c1884966245762786a20a8c0aef09587",
            "x/group1-shard1of2.bin",
            "model.weights.bin",
        ] {
            assert!(is_values(path), "{path}");
        }
        for path in ["a/0.x", "x/c1884966245762786a20a8c0aef09587", "model.bin", "group-shard1of2"]
        {
            assert!(!is_values(path), "{path}");
        }
    }
}
