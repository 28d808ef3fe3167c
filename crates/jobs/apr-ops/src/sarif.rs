//! Findings in the form that code scanning services take: SARIF 2.1.0 (OASIS).

use std::collections::BTreeMap;

use apr_registry::Error;
use apr_scan::{Action, FileVerdict, ScanReport, ScanSummary, Verdict};
use serde_json::{Value, json};

use crate::validate::{Level, ValidateReport};

/// Descriptions of rules, by the identifiers used in findings.
type Rules = BTreeMap<String, String>;

/// The findings of a validation.
#[must_use]
pub fn of_validation(report: &ValidateReport) -> Value {
    let mut rules = Rules::new();
    let results = report.findings.iter().map(|finding| {
        let check = serde_json::to_value(finding.check).unwrap_or_default();
        let check = check.as_str().unwrap_or_default();
        let rule = format!("apr/{check}");
        rules.insert(rule.clone(), format!("the {check} check of apr validate"));
        let level = if finding.level == Level::Error { "error" } else { "warning" };
        let tensor = finding.tensor.as_ref();
        let text = tensor.map_or(finding.message.clone(), |name| {
            format!("tensor '{name}': {}", finding.message)
        });
        let file =
            finding.file.as_ref().map_or(report.path.clone(), |name| file_in(&report.path, name));
        result(&rule, level, &text, &file, finding.offset, tensor.map(String::as_str))
    });

    let results: Vec<Value> = results.collect();
    log(&rules, &results)
}

/// A file that does not open and is not a pickle.
#[must_use]
pub fn of_error(file: &str, error: &Error) -> Value {
    let rule = format!("apr/{}", error.code());
    let rules = Rules::from([(rule.clone(), "the file is not a valid model".to_owned())]);
    log(&rules, &[result(&rule, "error", &error.to_string(), file, error.offset(), error.tensor())])
}

/// A file of the model: beside an index, or in a folder.
fn file_in(model: &str, name: &str) -> String {
    let folder = if model.ends_with(".json") {
        model.rsplit_once('/').map_or("", |(folder, _)| folder)
    } else {
        model
    };
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{}/{name}", folder.trim_end_matches('/'))
    }
}

/// Returns the log of a rejected file: the imports and calls that loading it would have run.
#[must_use]
pub fn of_scan(scan: &ScanReport, error: &str) -> Value {
    let mut rules = Rules::from([(
        "apr/refused".to_owned(),
        "the file was refused, and nothing was executed".to_owned(),
    )]);
    let mut results = vec![result("apr/refused", "error", error, &scan.path, None, None)];
    add_findings(scan, &mut rules, &mut results);
    log(&rules, &results)
}

/// Returns the log of a scan of several files.
///
/// It has a result with the verdict for each file that is not clean, followed by its findings.
/// Findings are suppressed if a baseline accepts the file.
#[must_use]
pub fn of_scans(summary: &ScanSummary) -> Value {
    let (mut rules, mut results) = (Rules::new(), Vec::<Value>::new());
    for scan in summary.files.iter().filter(|scan| scan.verdict != FileVerdict::Clean) {
        let first = results.len();
        let (word, level) = match scan.verdict {
            FileVerdict::Dangerous => ("dangerous", "error"),
            FileVerdict::NotRun => ("not run", "note"),
            verdict => (verdict.word(), "warning"),
        };
        let rule = format!("scan/{}", word.replace(' ', "-"));
        rules.insert(rule.clone(), format!("apr scan calls the file {word}"));
        results.push(result(
            &rule,
            level,
            &format!("{word}: {}", scan.kind),
            &scan.path,
            None,
            None,
        ));
        add_findings(scan, &mut rules, &mut results);
        add_remarks(scan, &mut rules, &mut results);
        let remarks = [("warning", &scan.warnings), ("problem", &scan.problems)];
        for (kind, text) in
            remarks.into_iter().flat_map(|(kind, list)| list.iter().map(move |text| (kind, text)))
        {
            let rule = format!("scan/{kind}");
            rules.insert(rule.clone(), format!("a {kind} that apr scan met in the file"));
            results.push(result(&rule, "warning", text, &scan.path, None, None));
        }
        if scan.accepted {
            for result in &mut results[first..] {
                result["suppressions"] = json!([{ "kind": "external" }]);
            }
        }
    }

    log(&rules, &results)
}

/// Adds the findings in files that are not pickles.
fn add_remarks(scan: &ScanReport, rules: &mut Rules, results: &mut Vec<Value>) {
    for remark in &scan.remarks {
        let level = match remark.verdict {
            FileVerdict::Dangerous => "error",
            FileVerdict::NotRun => "note",
            _ => "warning",
        };
        let rule = format!("content/{}", remark.verdict.word().replace(' ', "-"));
        rules
            .insert(rule.clone(), format!("content that apr scan calls {}", remark.verdict.word()));
        let text = match remark.entry.as_str() {
            "" => remark.message.clone(),
            entry => format!("'{entry}': {}", remark.message),
        };
        results.push(result(&rule, level, &text, &scan.path, None, None));
    }
}

/// The names of a scan that are not harmless.
fn add_findings(scan: &ScanReport, rules: &mut Rules, results: &mut Vec<Value>) {
    let findings = scan
        .pickles
        .iter()
        .flat_map(|pickle| pickle.findings.iter().map(move |finding| (pickle, finding)));
    for (pickle, finding) in findings.filter(|(_, finding)| finding.verdict != Verdict::Allowed) {
        let (kind, level) = match finding.verdict {
            Verdict::Dangerous => ("dangerous", "error"),
            _ => ("unknown", "warning"),
        };
        let action = match finding.action {
            Action::Call => "call",
            Action::Import => "import",
            Action::Change => "change",
        };
        let rule = format!("pickle/{kind}-{action}");
        rules.insert(
            rule.clone(),
            format!("loading the pickle would {action} a name that is {kind}"),
        );
        let mut text =
            format!("{action} of {}.{} by {}", finding.module, finding.name, finding.opcode);
        if !pickle.entry.is_empty() {
            text.push_str(&format!(" in '{}'", pickle.entry));
        }

        // Bytes that were decoded have no place in the file.
        let offset = (!pickle.decoded).then_some(finding.offset);
        results.push(result(&rule, level, &text, &scan.path, offset, None));
    }
}

fn result(
    rule: &str,
    level: &str,
    text: &str,
    file: &str,
    offset: Option<u64>,
    tensor: Option<&str>,
) -> Value {
    let mut place = json!({ "artifactLocation": { "uri": uri(file) } });
    if let Some(offset) = offset {
        place["region"] = json!({ "byteOffset": offset });
    }
    let mut location = json!({ "physicalLocation": place });
    if let Some(tensor) = tensor {
        location["logicalLocations"] = json!([{ "fullyQualifiedName": tensor }]);
    }
    json!({ "ruleId": rule, "level": level, "message": { "text": text }, "locations": [location] })
}

/// Returns a path as a relative or absolute reference (RFC 3986), with other characters escaped.
fn uri(path: &str) -> String {
    let mut uri = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(byte.into());
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

fn log(rules: &Rules, results: &[Value]) -> Value {
    let rules: Vec<Value> = rules
        .iter()
        .map(|(id, text)| json!({ "id": id, "shortDescription": { "text": text } }))
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {
                "driver": { "name": "apr", "version": env!("CARGO_PKG_VERSION"), "rules": rules },
            },
            "results": results,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_references() {
        assert_eq!(uri("models/my model#1.pt"), "models/my%20model%231.pt");
    }
}
