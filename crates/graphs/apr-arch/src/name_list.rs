//! One name or several, in a family's file.

use serde::Deserialize;

/// One name or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(crate) enum Names {
    One(String),
    Many(Vec<String>),
}

impl Names {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
        .iter()
        .map(String::as_str)
    }
}
