//! What was scanned, as a bill of materials: CycloneDX 1.6 (ECMA-424).

use std::collections::BTreeMap;

use apr_scan::{ScanReport, ScanSummary, Verdict};
use serde_json::{Value, json};

/// A bill of the files of a scan, each with its SHA-256 as hexadecimal digits under its path, the
/// verdict and what was found.
///
/// It has no serial number and no time, so that the same files give the same bytes. A file without
/// a digest is one that could not be read.
#[must_use]
pub fn of_scan(summary: &ScanSummary, digests: &BTreeMap<String, String>) -> Value {
    let components = summary.files.iter().map(|file| component(file, digests.get(&file.path)));
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": { "components": [{
                "type": "application", "name": "apr", "version": env!("CARGO_PKG_VERSION"),
            }] },
            "properties": [property("apr:verdict", summary.verdict.word())],
        },
        "components": components.collect::<Vec<_>>(),
    })
}

fn component(file: &ScanReport, digest: Option<&String>) -> Value {
    let mut properties =
        vec![property("apr:verdict", file.verdict.word()), property("apr:kind", &file.kind)];
    if file.accepted {
        properties.push(property("apr:accepted", "true"));
    }
    let found = file.findings().filter(|finding| finding.verdict != Verdict::Allowed);
    let names = found.map(|finding| format!("{}.{}", finding.module, finding.name));
    let remarks = file.remarks.iter().map(|remark| remark.message.clone());
    let texts = names.chain(remarks).chain(file.warnings.clone()).chain(file.problems.clone());
    properties.extend(texts.map(|text| property("apr:finding", &text)));
    let mut component = json!({
        "type": "file",
        "bom-ref": file.path,
        "name": file.path,
        "properties": properties,
    });
    if let Some(digest) = digest {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": digest }]);
    }
    component
}

fn property(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}
