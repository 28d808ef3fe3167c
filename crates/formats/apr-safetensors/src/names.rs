//! Names that come out of a file or go into one.

use apr_core::{Error, Result};

/// Key of the text in a header; no tensor may have this name.
pub(crate) const METADATA: &str = "__metadata__";

/// Longest tensor name in bytes: the maximum of a 16-bit length, far beyond any real name.
const MAX_NAME: usize = 65_535;

pub(crate) fn check_tensor_name(name: &str) -> Result<()> {
    let problem = match name.len() {
        0 => "a tensor has an empty name".into(),
        len if len > MAX_NAME => {
            format!("the tensor's name is {len} bytes long; {MAX_NAME} is the limit")
        }
        _ if name == METADATA => "this name is reserved for the header's metadata".into(),
        _ => return Ok(()),
    };
    Err(Error::format(problem).for_tensor(name))
}

/// A name that occurs more than once.
pub(crate) fn duplicate<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut sorted: Vec<&str> = names.collect();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_found_wherever_they_are() {
        assert_eq!(duplicate(["b", "a", "c", "a"].into_iter()), Some("a"));
        assert_eq!(duplicate(["b", "a", "ab"].into_iter()), None);
    }
}
