//! The operators of TensorFlow by what they touch, and the functions of its API that only compute.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

/// Effects of operators, one line each (`fixtures/scan/tensorflow_names.py`).
const NAMES: &str = include_str!("tensorflow_names.txt");

/// Functions that only compute.
static FUNCTIONS: LazyLock<HashSet<&str>> = LazyLock::new(|| {
    let names = NAMES.lines().find_map(|line| line.strip_prefix("functions "));
    names.into_iter().flat_map(|names| names.split(' ')).collect()
});

/// Resources that an operator accesses when a graph runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touches {
    /// The operator accesses only its inputs.
    Nothing,
    /// A checkpoint, vocabulary or file of records, whose path it is given.
    Path,
    /// Other files, processes or machines, with a description of the effect.
    System(&'static str),
}

/// Operators and functions, by their names.
static OPERATORS: LazyLock<HashMap<&str, Touches>> = LazyLock::new(|| {
    let lines = NAMES.lines().filter_map(|line| line.split_once(' '));
    let lines = lines.filter_map(|(what, names)| {
        let touches = match what {
            "computes" => Touches::Nothing,
            "path" => Touches::Path,
            "network" => Touches::System("calls other machines"),
            "process" => Touches::System("ends the process"),
            "python" => Touches::System("runs Python"),
            "reads" => Touches::System("reads files"),
            "writes" => Touches::System("writes files"),
            _ => return None,
        };
        Some(names.split(' ').map(move |name| (name, touches)))
    });
    lines.flatten().collect()
});

/// Returns the resources that an operator accesses, or `None` if TensorFlow has no such operator.
pub(super) fn touches(operator: &str) -> Option<Touches> {
    OPERATORS.get(operator).copied()
}

/// Returns `true` if a function of TensorFlow's API only computes: `nn.relu`, `raw_ops.AddV2`.
pub(super) fn is_function(name: &str) -> bool {
    if let Some(operator) = name.strip_prefix("raw_ops.") {
        return touches(operator) == Some(Touches::Nothing);
    }
    FUNCTIONS.contains(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_listed_with_the_resources_that_they_access() {
        assert_eq!(OPERATORS.len(), 1908);
        assert_eq!(touches("MatMul"), Some(Touches::Nothing));
        assert_eq!(touches("RestoreV2"), Some(Touches::Path));
        assert_eq!(touches("PyFunc"), Some(Touches::System("runs Python")));
        assert_eq!(touches("Mine"), None);
    }

    #[test]
    fn functions_that_load_libraries_are_not_on_the_list() {
        for name in ["nn.relu", "math.add", "compat.v1.to_float", "raw_ops.AddV2"] {
            assert!(is_function(name), "{name}");
        }
        for name in [
            "load_library",
            "compat.v1.load_file_system_library",
            "compat.v1.py_func",
            "raw_ops.WriteFile",
            "",
        ] {
            assert!(!is_function(name), "{name}");
        }
    }
}
