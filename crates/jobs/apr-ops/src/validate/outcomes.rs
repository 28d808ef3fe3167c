//! What became of each check, in the order in which the report lists them.

use std::collections::BTreeSet;

use apr_core::counted;
use apr_graph::Severity;
use apr_registry::keys;

use crate::graph::GraphPart;
use crate::physics::expectation;

use super::pass::Pass;
use super::{Check, CheckOutcome, Finding, Level, Status, ValidateOptions};

/// Detail of a check, or the reason for skipping it.
type Detail = Result<String, &'static str>;

impl Pass<'_> {
    pub(super) fn outcomes(&self) -> Vec<CheckOutcome> {
        let ValidateOptions { nan, zero, shapes, .. } = self.options;
        let all = self.reader.tensors().len();
        let undecoded = undecoded_names(&self.findings).len();
        let tensors = count(all, "tensor");
        let decoded = count(all.saturating_sub(undecoded), "tensor");
        let files = count(self.reader.files().len(), "file");
        let checks = [
            (Check::Structure, Ok(format!("{tensors}, {files}"))),
            (Check::Checksum, self.checksum_detail()),
            (Check::Digests, self.digests_detail()),
            (Check::Finite, self.read(nan, finite_detail(&decoded, self.constants.infinite))),
            (Check::Zeros, self.read(zero, decoded)),
            (Check::Shapes, self.shapes_detail()),
            (Check::Hyperparameters, asked(shapes, "GGUF's key-value pairs".to_owned())),
            (Check::Graph, asked(shapes, self.graph_detail())),
            (Check::Physics, self.physics_detail()),
            (
                Check::Signature,
                asked(
                    self.checks_signature() || self.has(Check::Signature),
                    "by a trusted key".to_owned(),
                ),
            ),
        ];
        let has_pairs = self.reader.metadata().get(keys::GGUF).is_some();
        let applies = |check: Check| match check {
            Check::Hyperparameters => has_pairs,
            Check::Graph => self.known.graphs.is_some(),
            _ => true,
        };
        let checks = checks.into_iter().filter(|(check, _)| applies(*check));
        let outcomes = checks.map(|(check, detail)| self.outcome(check, detail));
        let (compared, uncompared) = self.sums();
        let unread = |made: CheckOutcome| match made.check {
            Check::Finite | Check::Zeros | Check::Physics => with_unread(made, (undecoded, all)),
            Check::Digests => with_unread(made, (uncompared, compared + uncompared)),
            _ => vec![made],
        };
        outcomes.flat_map(unread).collect()
    }

    fn checksum_detail(&self) -> Detail {
        match &self.checksum {
            Some(checksum) => Ok(format!("CRC-32 {:#010x}", checksum.crc32)),
            None => asked(self.options.checksum, String::new()).and(Err("not part of this format")),
        }
    }

    fn digests_detail(&self) -> Detail {
        let has_digest = |&tensor: &usize| self.reader.stored(tensor).digest().is_some();
        let digests = (0..self.reader.tensors().len()).filter(has_digest).count();
        let asked = |detail| asked(self.options.checksum, detail);
        match (digests, self.sums().0) {
            (0, 0) if self.sums().1 == 0 => asked(String::new()).and(Err("not in this file")),
            (0, sums) => asked(format!("CRC-32 of {}", count(sums, "tensor"))),
            (digests, _) => asked(format!("BLAKE3 of {}", count(digests, "tensor"))),
        }
    }

    fn shapes_detail(&self) -> Detail {
        asked(self.options.shapes, String::new())?;
        if let Some(adapter) = &self.adapter {
            return Ok(format!("{} of a {} adapter", count(adapter.pairs, "pair"), adapter.kind));
        }
        match self.family("shapes") {
            Err(_) if self.has(Check::Shapes) => Ok(String::new()),
            known => known,
        }
    }

    /// Returns the number of checked nodes and of notices about them.
    fn graph_detail(&self) -> String {
        let graphs = || self.known.graphs.and_then(Result::ok);
        let parts = || graphs().into_iter().flat_map(|graphs| &graphs.parts);
        let nodes_of = |part: &GraphPart| {
            let functions = part.graph.functions.iter().map(|function| function.body.nodes.len());
            part.graph.body.nodes.len() + functions.sum::<usize>()
        };
        let notices = parts().flat_map(|part| &part.findings.list);
        let notices = notices.filter(|finding| finding.severity == Severity::Notice).count();
        let nodes = count(parts().map(nodes_of).sum(), "node");
        if notices > 0 {
            format!("{nodes}; `apr graph` has {}", count(notices, "notice"))
        } else {
            nodes
        }
    }

    fn physics_detail(&self) -> Detail {
        self.read(self.options.physics, String::new())?;
        if let Ok(ranges) = self.family("ranges") {
            return Ok(ranges);
        }
        let mut infos = self.reader.tensors().iter().enumerate();
        let has_range = infos.any(|(tensor, info)| expectation(None, tensor, info).is_some());
        if has_range || self.has(Check::Physics) {
            Ok("layer norms and projections, guessed from names".to_owned())
        } else {
            Err("unknown family, and no name of a layer norm or projection")
        }
    }

    /// Returns the detail of a check that reads the weights.
    fn read(&self, is_asked: bool, detail: String) -> Detail {
        if is_asked && self.reader.container().is_locked() {
            return Err("the tensors are encrypted: no key given");
        }
        if self.reader.tensors().is_empty() {
            return asked(is_asked, String::new()).and(Err("the model has no tensors"));
        }
        asked(is_asked, detail)
    }

    fn has(&self, check: Check) -> bool {
        self.findings.iter().any(|finding| finding.check == check)
    }

    /// Returns the number of tensors that the file states a CRC-32 of, or of the parts that they
    /// are made of, and the number of those whose parts don't decode, so that nothing was compared.
    pub(super) fn sums(&self) -> (usize, usize) {
        let undecoded = undecoded_names(&self.findings);
        let (mut compared, mut uncompared) = (0, 0);
        for (tensor, info) in self.reader.tensors().iter().enumerate() {
            let stored = self.reader.stored(tensor);
            if stored.crc32().is_some() {
                compared += 1;
            } else if stored.parts().iter().any(|part| !self.is_the_file(part)) {
                let decodes = !undecoded.contains(info.name.as_str());
                *(if decodes { &mut compared } else { &mut uncompared }) += 1;
            }
        }
        (compared, uncompared)
    }

    fn family(&self, what: &str) -> Detail {
        let model = self.known.model.ok_or("unknown family")?;
        let guessed = if model.is_guessed() { ", guessed from tensor names" } else { "" };
        Ok(format!("{what} of the {} family{guessed}", model.family().title()))
    }

    fn outcome(&self, check: Check, detail: Detail) -> CheckOutcome {
        match detail {
            Err(why) => CheckOutcome { check, status: Status::Skipped, detail: why.to_owned() },
            Ok(detail) => CheckOutcome::of(check, &self.findings, detail),
        }
    }
}

/// Reason for not checking a tensor.
const UNDECODED: &str = "bytes that don't decode";

/// Returns the detail for tensors without NaN, and without infinity except in some constants.
pub(crate) fn finite_detail(tensors: &str, infinite: usize) -> String {
    match infinite {
        0 => format!("none in {tensors}"),
        some => format!("no NaN in {tensors}, infinity only in {}", count(some, "constant")),
    }
}

/// Returns the names of tensors that can't be decoded, so that their values are not known.
pub(crate) fn undecoded_names(findings: &[Finding]) -> BTreeSet<&str> {
    let is_undecoded = |finding: &&Finding| {
        finding.check == Check::Structure && finding.level == Level::Error && finding.code.is_some()
    };
    findings.iter().filter(is_undecoded).filter_map(|finding| finding.tensor.as_deref()).collect()
}

/// Adds a skipped outcome for `unread` tensors to the outcome of a check.
///
/// If the check could not read any of the tensors, only the skipped outcome is returned.
fn with_unread(made: CheckOutcome, (unread, all): (usize, usize)) -> Vec<CheckOutcome> {
    if unread == 0 || made.status == Status::Skipped {
        return vec![made];
    }
    let detail = format!("{} not read: {UNDECODED}", count(unread, "tensor"));
    let skipped = CheckOutcome { check: made.check, status: Status::Skipped, detail };
    if unread >= all && made.status == Status::Pass { vec![skipped] } else { vec![made, skipped] }
}

fn asked(is_asked: bool, detail: String) -> Detail {
    if is_asked { Ok(detail) } else { Err("not requested") }
}

fn count(number: usize, noun: &str) -> String {
    counted(number as u64, noun)
}
