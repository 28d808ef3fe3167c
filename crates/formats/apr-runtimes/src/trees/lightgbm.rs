//! Models of LightGBM, as text.

use apr_core::{ByteSource, DType, Error, Escaped, Format, Limits, Result, Table};
use serde_json::{Map, Value};

use crate::trees::columns::Columns;
use crate::trees::reader::{table, whole};

/// Format of a model of LightGBM.
pub static FORMAT: Format = Format {
    id: "lightgbm",
    name: "LightGBM",
    recognises: |head| head.starts_with(b"tree\nversion=") || head.starts_with(b"tree\r\nversion="),
    ..Format::READ_ONLY
};

/// Types of the lists that trees have.
const LISTS: [(&str, DType); 19] = [
    ("num_leaves", DType::I32),
    ("num_cat", DType::I32),
    ("split_feature", DType::I32),
    ("split_gain", DType::F32),
    ("threshold", DType::F64),
    ("decision_type", DType::U8),
    ("left_child", DType::I32),
    ("right_child", DType::I32),
    ("leaf_value", DType::F64),
    ("leaf_weight", DType::F64),
    ("leaf_count", DType::I64),
    ("internal_value", DType::F64),
    ("internal_weight", DType::F64),
    ("internal_count", DType::I64),
    ("cat_boundaries", DType::I32),
    ("cat_threshold", DType::I64),
    ("is_linear", DType::I32),
    ("shrinkage", DType::F64),
    ("leaf_const", DType::F64),
];

/// Opens a model.
///
/// # Errors
/// E001 for what is no model, E002 for a damaged one, E007 when reading fails, E008 over the limit.
pub fn open<S: ByteSource>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    read(&source, name, limits).map_err(|error| error.in_file(name))
}

fn read(source: &dyn ByteSource, name: &str, limits: &Limits) -> Result<Table> {
    let bytes = whole(source, limits)?;
    if !(FORMAT.recognises)(&bytes) {
        return Err(Error::format("not a model of LightGBM"));
    }
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| Error::corrupt("the model is not text in UTF-8"))?;
    let mut lines = Lines::new(text);
    let mut fields = Map::new();
    let mut columns = Columns::default();
    // The model's own lines, and then those of each tree.
    while let Some((line, at)) = lines.next() {
        if line.starts_with("Tree=") {
            tree(&mut lines, &mut columns, at)?;
        } else if line == "end of trees" {
            rest(&mut lines, &mut fields);
            let names = Value::from(fields);
            let fields = names.as_object().cloned().unwrap_or_default();
            return table(&FORMAT, (name, source.len()), columns, fields);
        } else if let Some((key, value)) = line.split_once('=') {
            if key != "tree_sizes" {
                fields.insert(key.to_owned(), value.into());
            }
        } else if line != "tree" && !line.is_empty() {
            // A setting without a value, such as `average_output`.
            fields.insert(line.to_owned(), true.into());
        }
    }
    Err(Error::corrupt("the model ends before its trees do").at(source.len()))
}

/// Lines, with their offsets.
struct Lines<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Lines<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    fn next(&mut self) -> Option<(&'t str, u64)> {
        let at = self.at;
        let rest = self.text.get(at..).filter(|rest| !rest.is_empty())?;
        let line = rest.split('\n').next().unwrap_or_default();
        self.at += line.len() + 1;
        Some((line.strip_suffix('\r').unwrap_or(line), at as u64))
    }
}

/// The lines of a tree, up to an empty one.
fn tree(lines: &mut Lines<'_>, columns: &mut Columns, at: u64) -> Result<()> {
    let mut leaves = None;
    while let Some((line, at)) = lines.next() {
        let Some((key, list)) = line.split_once('=') else {
            if line.is_empty() {
                break;
            }
            return Err(Error::corrupt("a line of a tree has no value").at(at));
        };
        let dtype = LISTS.iter().find(|(name, _)| *name == key).map_or(DType::F64, |one| one.1);
        let items = list.split_ascii_whitespace();
        let numbers: Option<Vec<f64>> = items.map(|item| item.parse().ok()).collect();
        let numbers = numbers.ok_or_else(|| {
            Error::corrupt(format!("the list '{}' has what is no number", Escaped::short(key)))
                .at(at)
        })?;
        if key == "num_leaves" {
            leaves = numbers.first().copied();
        }
        let name = match key {
            "num_leaves" => "trees/leaves".to_owned(),
            key => format!("trees/{key}"),
        };
        columns.extend(&name, dtype, &numbers).map_err(|error| error.at(at))?;
    }
    match leaves {
        Some(_) => Ok(()),
        None => Err(Error::corrupt("a tree does not state its number of leaves").at(at)),
    }
}

/// What follows the trees: importance of features, parameters, categories of pandas.
fn rest(lines: &mut Lines<'_>, fields: &mut Map<String, Value>) {
    let mut section = "";
    let mut entries = Map::new();
    while let Some((line, _)) = lines.next() {
        if let Some((key, value)) = line.split_once(':')
            && section.is_empty()
        {
            match value {
                "" => section = key,
                value => _ = fields.insert(key.to_owned(), value.into()),
            }
        } else if line.is_empty() || line.starts_with("end of") {
            if !section.is_empty() {
                fields.insert(section.to_owned(), std::mem::take(&mut entries).into());
            }
            section = "";
        } else if let Some((key, value)) = line.split_once('=') {
            entries.insert(key.to_owned(), value.into());
        } else if let Some((key, value)) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
            .and_then(|line| line.split_once(':'))
        {
            entries.insert(key.to_owned(), value.trim_ascii().into());
        }
    }
    if !section.is_empty() {
        fields.insert(section.to_owned(), entries.into());
    }
}
