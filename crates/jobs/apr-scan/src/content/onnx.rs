//! ONNX models and models of onnxruntime: operators of other libraries, Python, and files outside
//! of the model's folder.

use apr_registry::onnx::scan::{Scan, is_known_domain, scan};
use apr_registry::{ByteSource, Code, Escaped, Limits, Result, ort};

use super::{ContentRemarks, bounded, not_examined};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// Examines a model in an archive, or one that only its name makes a model.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn judge(source: &dyn ByteSource, limits: &Limits) -> Result<ContentRemarks> {
    let found = match scan(source, limits) {
        Ok(found) => found,
        Err(error) if error.code() == Code::Io => return Err(error),
        Err(error) => {
            return Ok(not_examined(&format!("an ONNX model that can't be read: {error}")));
        }
    };
    let mut remarks = contexts(&found);
    remarks.extend(found.outside.iter().map(|(tensor, location)| {
        let (tensor, location) = (Escaped::short(tensor), Escaped::short(location));
        let message = format!("the tensor '{tensor}' is outside the model's folder: '{location}'");
        (FileVerdict::Dangerous, message)
    }));
    for message in found.warnings() {
        let verdict = match found.python.is_empty() {
            true => FileVerdict::NotExamined,
            false => FileVerdict::Suspicious,
        };
        remarks.push((verdict, message));
    }
    bounded(&mut remarks);
    Ok(remarks)
}

/// Returns the remarks on programs of accelerators in files of their own.
pub(crate) fn contexts(found: &Scan) -> ContentRemarks {
    let remark = |(node, file): &(String, String)| {
        let verdict = match leads_out(file) {
            true => FileVerdict::Dangerous,
            false => FileVerdict::NotExamined,
        };
        let (node, file) = (Escaped::short(node), Escaped::short(file));
        let message = format!("the node '{node}' loads a program of an accelerator from '{file}'");
        (verdict, message)
    };
    found.contexts.iter().map(remark).collect()
}

/// Examines a model in onnxruntime's own format by the operators of its nodes.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn judge_ort(source: &dyn ByteSource, limits: &Limits) -> Result<ContentRemarks> {
    let operators = match ort::operators(source, limits) {
        Ok(operators) => operators,
        Err(error) if error.code() == Code::Io => return Err(error),
        Err(error) => {
            let message = format!("its operators can't be listed: {}", error.message());
            return Ok(not_examined(&message));
        }
    };
    let mut remarks = ContentRemarks::new();
    for operator in &operators {
        let (domain, name) = operator.split_once("::").unwrap_or(("", operator));
        let shown = Escaped::short(operator);
        if ["PyOp", "PythonOp", "PyCustomOp"].contains(&name) {
            remarks.push((FileVerdict::Suspicious, format!("the operator {shown} runs Python")));
        } else if name == "EPContext" {
            remarks.extend(not_examined("a node has a program of an accelerator"));
        } else if !is_known_domain(domain) {
            remarks.extend(not_examined(&format!(
                "the operator {shown} is of a domain that apr does not know"
            )));
        }
        bounded(&mut remarks);
    }
    Ok(remarks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_of_other_domains_are_found_in_models_of_onnxruntime() {
        let path = apr_testkit::locate::fixture("ort").join("model.ort");
        let model = std::fs::read(path).expect("the fixture");
        assert_eq!(judge_ort(&model, &Limits::default()), Ok(Vec::new()));
        for len in 8..model.len().min(600) {
            let found = judge_ort(&model[..len].to_vec(), &Limits::default()).expect("in memory");
            assert!(!found.is_empty(), "cut at {len}");
        }
    }

    #[test]
    fn bytes_that_are_no_model_are_reported_as_not_examined() {
        let found = judge(&b"no model".to_vec(), &Limits::default()).expect("in memory");
        assert_eq!(found[0].0, FileVerdict::NotExamined);
    }
}
