//! HDF5: configurations of Keras in attributes, and what leads into other files.

use apr_registry::{ByteSource, Code, Escaped, Limits, Result, keras};

use super::document::Document;
use super::{ContentRemarks, json, not_examined};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// Examines an HDF5 file, whatever its first bytes are. Returns `None` for any other file.
///
/// # Errors
/// E007 when reading fails.
pub(crate) fn judge(source: &dyn ByteSource, limits: &Limits) -> Result<Option<ContentRemarks>> {
    let found = match keras::scan(source, limits) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(None),
        Err(error) if error.code() == Code::Io => return Err(error),
        Err(error) => return Ok(Some(not_examined(&format!("HDF5 that can't be read: {error}")))),
    };

    let mut remarks = ContentRemarks::new();
    for (name, config) in &found.configs {
        match serde_json::from_str(config) {
            Ok(Document(value)) => remarks.extend(json::judge_value("", &value)),
            Err(error) => remarks.extend(not_examined(&format!(
                "'{name}' is not JSON: {}",
                apr_core::foreign(&error)
            ))),
        }
    }
    for (path, file) in &found.outside {
        let verdict =
            if leads_out(file) { FileVerdict::Dangerous } else { FileVerdict::Suspicious };
        let (path, file) = (Escaped::short(path), Escaped::short(file));
        remarks.push((verdict, format!("the object '/{path}' reads another file: {file}")));
    }
    if let Some(library) = found.unpickles {
        remarks.extend(not_examined(&format!(
            "{library} unpickles attributes and objects of this HDF5 file"
        )));
    }
    if let [first, ..] = found.warnings.as_slice() {
        remarks.extend(not_examined(first));
    }
    Ok(Some(remarks))
}
