//! What was scanned, as a bill of materials: CycloneDX 1.6 (ECMA-424) or SPDX 3.0.1 (ISO/IEC 5962).

use std::collections::BTreeMap;

use apr_registry::formats;
use apr_scan::{ScanReport, ScanSummary, Verdict};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Kinds of scanned files that are models, beside the formats of checkpoints.
const CONTAINERS: [&str; 4] = ["pickle", "ZIP archive", "NumPy array", "HDF5"];

/// Format of a bill of materials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BillFormat {
    /// CycloneDX 1.6. It has no serial number and no time: the same files give the same bytes.
    CycloneDx,
    /// SPDX 3.0.1 as JSON-LD.
    Spdx {
        /// Time of making, which the format requires, in seconds since 1970.
        created: u64,
    },
}

/// A bill of the files of a scan, each with its SHA-256 as hexadecimal digits under its path, the
/// verdict and what was found.
///
/// A file without a digest is one that could not be read.
#[must_use]
pub fn of_scan(
    summary: &ScanSummary,
    digests: &BTreeMap<String, String>,
    format: BillFormat,
) -> Value {
    match format {
        BillFormat::CycloneDx => cyclonedx(summary, digests),
        BillFormat::Spdx { created } => spdx(summary, digests, created),
    }
}

fn cyclonedx(summary: &ScanSummary, digests: &BTreeMap<String, String>) -> Value {
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
    properties.extend(findings(file).map(|text| property("apr:finding", &text)));
    let mut component = json!({
        "type": if is_model(file) { "machine-learning-model" } else { "file" },
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

/// Returns what was found in a file, a text for each finding.
fn findings(file: &ScanReport) -> impl Iterator<Item = String> {
    let found = file.findings().filter(|finding| finding.verdict != Verdict::Allowed);
    let names = found.map(|finding| format!("{}.{}", finding.module, finding.name));
    let remarks = file.remarks.iter().map(|remark| remark.message.clone());
    names.chain(remarks).chain(file.warnings.clone()).chain(file.problems.clone())
}

fn is_model(file: &ScanReport) -> bool {
    let kind = file.kind.as_str();
    CONTAINERS.contains(&kind) || formats().any(|format| format.name == kind)
}

/// A document of SPDX: elements in a list, which refer to each other by their identifiers.
///
/// The verdict and the findings of a file are an annotation of it.
fn spdx(summary: &ScanSummary, digests: &BTreeMap<String, String>, created: u64) -> Value {
    let base = namespace(digests, created);
    let id = |name: &str| format!("{base}#{name}");
    let (info, agent) = ("_:creation", id("agent"));
    let element = |kind: &str, name: &str, rest: Value| {
        let mut element = json!({ "type": kind, "spdxId": id(name), "creationInfo": info });
        if let (Value::Object(element), Value::Object(rest)) = (&mut element, rest) {
            element.extend(rest);
        }
        element
    };

    let (mut files, mut names) = (Vec::new(), Vec::new());
    for (number, file) in summary.files.iter().enumerate() {
        let name = format!("file-{}", number + 1);
        let purpose = if is_model(file) { "model" } else { "file" };
        let mut own = json!({ "name": file.path, "software_primaryPurpose": purpose });
        if let Some(digest) = digests.get(&file.path) {
            let hash = json!({ "type": "Hash", "algorithm": "sha256", "hashValue": digest });
            own["verifiedUsing"] = json!([hash]);
        }
        files.push(element("software_File", &name, own));
        let note = format!("note-{}", number + 1);
        let statement = json!({
            "annotationType": "review",
            "subject": id(&name),
            "statement": statement(file),
        });
        files.push(element("Annotation", &note, statement));
        names.extend([id(&name), id(&note)]);
    }
    let roots: Vec<&String> = names.iter().step_by(2).collect();

    let bill = json!({
        "rootElement": roots, "element": names, "software_sbomType": ["analyzed"],
    });
    let document = json!({
        "name": "apr scan",
        "comment": format!("verdict: {}", summary.verdict.word()),
        "profileConformance": ["core", "software"],
        "rootElement": [id("bill")],
        "element": [id("bill"), agent],
    });
    let mut graph = vec![
        json!({
            "type": "CreationInfo",
            "@id": info,
            "specVersion": "3.0.1",
            "created": utc(created),
            "createdBy": [agent],
        }),
        element(
            "SoftwareAgent",
            "agent",
            json!({ "name": format!("apr {}", env!("CARGO_PKG_VERSION")) }),
        ),
        element("SpdxDocument", "document", document),
        element("software_Sbom", "bill", bill),
    ];
    graph.append(&mut files);
    json!({ "@context": "https://spdx.org/rdf/3.0.1/spdx-context.jsonld", "@graph": graph })
}

/// Returns the verdict, the kind and the findings of a file as lines.
fn statement(file: &ScanReport) -> String {
    let accepted = if file.accepted { " (accepted by a baseline)" } else { "" };
    let head = format!("apr scan: {}{accepted}; {}", file.verdict.word(), file.kind);
    std::iter::once(head).chain(findings(file)).collect::<Vec<_>>().join("\n")
}

/// Returns the identifier of a document: another one for each time and for other files.
fn namespace(digests: &BTreeMap<String, String>, created: u64) -> String {
    let mut hash = Sha256::new();
    hash.update(created.to_le_bytes());
    for text in digests.iter().flat_map(|(path, digest)| [path, digest]) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let digits: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("urn:apr-scan:{digits}")
}

/// Formats a time in UTC, as RFC 3339 has it, from seconds since 1970.
fn utc(seconds: u64) -> String {
    /// Years after this one have five digits, which the format does not have.
    const LAST: u64 = 253_402_300_799;

    let seconds = seconds.min(LAST);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March end with the leap day; 400 of them have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (400 * era + year, month + 3),
        _ => (400 * era + year + 1, month - 9),
    };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // date -u -d @SECONDS +%FT%TZ
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }

    #[test]
    fn documents_of_other_files_or_times_have_other_identifiers() {
        let digests = BTreeMap::from([("a".to_owned(), "0".to_owned())]);
        let other = BTreeMap::from([("a0".to_owned(), String::new())]);
        assert_eq!(namespace(&digests, 1), namespace(&digests, 1));
        assert_ne!(namespace(&digests, 1), namespace(&digests, 2));
        assert_ne!(namespace(&digests, 1), namespace(&other, 1));
    }
}
