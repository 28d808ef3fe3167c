//! What a reader leaves out of a checkpoint: data of the file that are no tensors, and files beside
//! the weights that are not read.

use apr_core::{Unlisted, grouped};
use apr_registry::{CheckpointReader, Limits, Result, onnx};
use serde::Serialize;

/// Parts that [`LeftOut::lines`] names.
const SHOWN: usize = 12;

/// Data that is not a tensor of a checkpoint, for `apr tensors`, `inspect` and `validate`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct LeftOut {
    /// Data in the file that is not a tensor of the checkpoint.
    #[serde(rename = "unlisted", skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<UnlistedData>,
    /// Parts of the file, and files beside the weights, that a conversion does not carry along.
    #[serde(rename = "left_out", skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
}

/// Data of a file that are not in the list: numbers and texts that its graph reads by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnlistedData {
    /// Description of the data, in the plural.
    pub what: String,
    /// Number of items.
    pub count: usize,
    /// Names of the items in the file.
    pub names: Vec<String>,
}

impl LeftOut {
    /// Returns the data left out by a reader, or by the reader of the checkpoint's original file.
    ///
    /// # Errors
    /// E002 for a damaged graph stored with the checkpoint, E007 and E008 when it can't be read.
    pub(crate) fn of(reader: &dyn CheckpointReader) -> Result<Self> {
        let own = reader.container().unlisted().to_vec();
        let found = if own.is_empty() {
            onnx::skeleton::unlisted(reader, &Limits::default())?
        } else {
            own
        };
        let data = |Unlisted { what, names }| UnlistedData { what, count: names.len(), names };
        Ok(Self { data: found.into_iter().map(data).collect(), ..Self::without_graph(reader) })
    }

    /// Returns the data left out, for reports that do not depend on the graph.
    ///
    /// If the graph can't be read, the rest is still reported.
    pub(crate) fn known(reader: &dyn CheckpointReader) -> Self {
        Self::of(reader).unwrap_or_else(|_| Self::without_graph(reader))
    }

    /// Returns `true` if there is only tensor data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.parts.is_empty()
    }

    /// Returns a line for each kind of data, and one for the parts. It names the first parts, and
    /// says that `rest` has all of them where there are more.
    #[must_use]
    pub fn lines(&self, rest: &str) -> Vec<String> {
        let data = self.data.iter().map(|UnlistedData { what, count, .. }| {
            format!("not listed: {what} ({})", grouped(*count as u64))
        });
        let named: Vec<&str> = self.parts.iter().take(SHOWN).map(String::as_str).collect();
        let more = match self.parts.len() - named.len() {
            0 => String::new(),
            more => format!(", and {} more; {rest}", grouped(more as u64)),
        };
        let parts = (!named.is_empty()).then(|| format!("not read: {}{more}", named.join(", ")));
        data.chain(parts).collect()
    }

    fn without_graph(reader: &dyn CheckpointReader) -> Self {
        Self { data: Vec::new(), parts: reader.left_out().to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_data_has_a_line_and_at_most_twelve_parts_are_listed() {
        let left_out = LeftOut {
            data: vec![UnlistedData { what: "texts".to_owned(), count: 1234, names: Vec::new() }],
            parts: (1..=15).map(|number| format!("p{number}")).collect(),
        };
        assert_eq!(
            left_out.lines("e writes all"),
            [
                "not listed: texts (1,234)",
                "not read: p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, and 3 more; e writes \
                 all",
            ]
        );
        assert_eq!(LeftOut::default().lines("e writes all"), Vec::<String>::new());
    }
}
