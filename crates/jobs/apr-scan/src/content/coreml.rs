//! Core ML: layers and models that a class of the loading program computes, and files elsewhere.

use apr_registry::coreml::{Hazard, HazardKind, hazards};
use apr_registry::{ByteSource, Code, Escaped, Limits, Result};

use super::{ContentRemarks, not_examined};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// Returns `true` for the weights file of a package: numbers after headers.
pub(crate) fn is_weights(head: &[u8]) -> bool {
    let parts = (head.get(4..8), head.get(8..64), head.get(64..68));
    let (Some(version), Some(zeros), Some(mark)) = parts else { return false };
    version == [2, 0, 0, 0] && zeros.iter().all(|&byte| byte == 0) && mark == b"\xef\xbe\xad\xde"
}

/// Examines a model for layers and files that Core ML does not compute itself.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn judge(source: &dyn ByteSource, limits: &Limits) -> Result<ContentRemarks> {
    match hazards(source, limits) {
        Ok(found) => Ok(found.iter().map(remark).collect()),
        Err(error) if error.code() == Code::Io => Err(error),
        Err(error) => {
            let message = format!("its layers can't be listed: {}", error.message());
            Ok(not_examined(&message))
        }
    }
}

/// Examines a compiled program as text (`model.mil`), whose weights have paths in it.
pub(super) fn of_text(text: &str) -> ContentRemarks {
    if !text.trim_start().starts_with("program(") {
        return ContentRemarks::new();
    }
    let paths = text.match_indices("BLOBFILE").filter_map(|(at, _)| {
        let quoted = text[at..].split_once('"')?.1;
        let (path, _) = quoted.split_once('"')?;
        let inside = path.strip_prefix("@model_path/").unwrap_or(path);
        leads_out(inside).then(|| Escaped::short(path).to_string())
    });
    let remark = |path| {
        let message = format!("weights are read from '{path}', outside the model's folder");
        (FileVerdict::Dangerous, message)
    };
    paths.take(1).map(remark).collect()
}

fn remark(hazard: &Hazard) -> (FileVerdict, String) {
    let name = Escaped::short(&hazard.name);
    let place = match hazard.path.as_str() {
        "" => String::new(),
        path => format!(" ({})", Escaped::short(path)),
    };
    match hazard.kind {
        HazardKind::CustomLayer => {
            let message = format!("the class '{name}' of the loading program is a layer{place}");
            (FileVerdict::Suspicious, message)
        }
        HazardKind::CustomModel => {
            let message = format!("the class '{name}' of the loading program is a model{place}");
            (FileVerdict::Suspicious, message)
        }
        HazardKind::OutsideFile => {
            let message =
                format!("weights are read from '{name}', outside the model's folder{place}");
            (FileVerdict::Dangerous, message)
        }
        // Another model, which loading this one loads too.
        _ => {
            let verdict = if leads_out(&hazard.name) {
                FileVerdict::Dangerous
            } else {
                FileVerdict::Suspicious
            };
            (verdict, format!("loading it loads the model '{name}'{place}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_core_ml_does_not_compute_are_reported_with_their_path() {
        let path = apr_testkit::locate::fixture("coreml").join("hazards.mlmodel");
        let model = std::fs::read(path).expect("the fixture");
        let found = judge(&model, &Limits::default()).expect("readable");
        let expected = [
            (FileVerdict::Suspicious, "'MyModel' of the loading program is a model (a)"),
            (FileVerdict::Dangerous, "loads the model '../elsewhere/other.mlmodelc' (b)"),
            (FileVerdict::Suspicious, "'MySwish' of the loading program is a layer (c/choice/"),
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((verdict, message), (expected, says)) in found.iter().zip(expected) {
            assert!(*verdict == expected && message.contains(says), "{verdict:?} {message}");
        }
        for len in 12..model.len() {
            let found = judge(&model[..len].to_vec(), &Limits::default()).expect("readable");
            assert!(!found.is_empty(), "cut at {len}");
        }
    }

    #[test]
    fn paths_in_compiled_programs_that_leave_the_folder_are_dangerous() {
        let program = |path: &str| {
            format!("program(1.0) {{ x = BLOBFILE(path = tensor<string, []>(\"{path}\")) }}")
        };
        assert_eq!(of_text(&program("@model_path/weights/weight.bin")), []);
        assert_eq!(of_text("BLOBFILE(\"../x\")"), []);
        let found = of_text(&program("@model_path/../x"));
        assert_eq!(found[0].0, FileVerdict::Dangerous);
    }

    #[test]
    fn weights_of_packages_are_detected_by_their_first_header() {
        let mut head = vec![0; 128];
        head[0] = 3;
        head[4] = 2;
        head[64..68].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
        assert!(is_weights(&head) && !is_weights(&head[..67]));
        head[20] = 1;
        assert!(!is_weights(&head));
    }
}
