//! What a pickle asks Python to import and to call.

use std::collections::HashMap;

use serde::Serialize;

/// Effect of a name on the program that loads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Part of how tensors are pickled.
    Allowed,
    /// Not known to be harmless, so the reader rejects it.
    Unknown,
    /// Runs code, or reaches files, processes or the network.
    Dangerous,
}

/// Use of a name by a pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The name is imported.
    Import,
    /// The name is called, or an instance of it is created.
    Call,
    /// The name itself gets a state: attributes of a class, function or module are replaced.
    Change,
}

/// A name and its first use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Module as the pickle spells it.
    pub module: String,
    /// Name in the module.
    pub name: String,
    /// Import or call.
    pub action: Action,
    /// Arguments of the call, shortened, if the call is dangerous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argument: Option<String>,
    /// Opcode of the first use.
    pub opcode: &'static str,
    /// Offset of the opcode in bytes from the start of the file.
    pub offset: u64,
    /// Number of uses.
    pub count: u64,
    /// Judgement on the name.
    pub verdict: Verdict,
}

/// Maximum number of findings of each verdict per pickle, so that many harmless names hide none
/// that is dangerous. Further findings do not change the verdict.
const MAX_FINDINGS: usize = 10_000;

/// Findings in order of appearance, one for each name, action and argument.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) findings: Vec<Finding>,
    known: HashMap<(String, String, Action, Option<String>), usize>,
    /// Number of findings of each verdict.
    counts: [usize; 3],
}

impl Uses {
    pub(crate) fn record(&mut self, finding: Finding) {
        let key = (
            finding.module.clone(),
            finding.name.clone(),
            finding.action,
            finding.argument.clone(),
        );

        // A pickle may use one name a million times.
        if let Some(&at) = self.known.get(&key) {
            let known = &mut self.findings[at];
            known.count += 1;
            // The same name may be judged by how it is used.
            known.verdict = known.verdict.max(finding.verdict);
            return;
        }
        let count = &mut self.counts[finding.verdict as usize];
        if *count < MAX_FINDINGS {
            *count += 1;
            self.known.insert(key, self.findings.len());
            self.findings.push(finding);
        }
    }
}
