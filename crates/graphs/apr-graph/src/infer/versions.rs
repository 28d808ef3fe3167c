//! Versions of operators by domain: a file may state any number of them.

use std::collections::HashMap;

use crate::{Name, Opset};

/// Version of each domain. If a domain is declared twice, the first version counts.
#[derive(Debug, Default)]
pub(crate) struct Versions(HashMap<Name, i64>);

impl Versions {
    pub(crate) fn new(opsets: &[Opset]) -> Self {
        let mut versions = Self(HashMap::with_capacity(opsets.len()));
        opsets.iter().for_each(|opset| versions.add(opset));
        versions
    }

    /// Adds a domain, unless it is there.
    pub(crate) fn add(&mut self, opset: &Opset) {
        self.0.entry(opset.domain.clone()).or_insert(opset.version);
    }

    /// Returns the version of a domain's operators, or `None` if none is declared.
    pub(crate) fn of(&self, domain: &str) -> Option<i64> {
        self.0.get(domain).copied()
    }
}
