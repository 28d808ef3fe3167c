//! Models of XGBoost.

use apr_core::{ByteSource, DType, Error, Format, Limits, Result, Table};
use serde_json::{Map, Value};

use crate::trees::columns::Columns;
use crate::trees::document::Item;
use crate::trees::reader::{table, whole};
use crate::trees::ubjson;

/// Format of a model of XGBoost, as JSON or UBJSON.
pub static FORMAT: Format = Format {
    id: "xgboost",
    name: "XGBoost",
    recognises: |head| is_json(head) || is_ubjson(head),
    extensions: &["ubj"],
    ..Format::READ_ONLY
};

/// Types of the lists that trees have.
const LISTS: [(&str, DType); 15] = [
    ("base_weights", DType::F32),
    ("categories", DType::I32),
    ("categories_nodes", DType::I32),
    ("categories_segments", DType::I64),
    ("categories_sizes", DType::I64),
    ("default_left", DType::U8),
    ("left_children", DType::I32),
    ("loss_changes", DType::F32),
    ("parents", DType::I32),
    ("right_children", DType::I32),
    ("split_conditions", DType::F32),
    ("split_indices", DType::I32),
    ("split_type", DType::U8),
    ("sum_hessian", DType::F32),
    ("leaf_weights", DType::F32),
];

/// Keys of lists that are tensors.
const TENSORS: [&str; 4] = ["trees", "tree_info", "weights", "weight_drop"];

fn is_json(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    let inner = text.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    let starts = |key: &[u8]| inner.is_some_and(|inner| inner.starts_with(key));
    let has_learner = || head.windows(9).any(|word| word == b"\"learner\"");
    starts(b"\"learner\"") || starts(b"\"version\"") && has_learner()
}

fn is_ubjson(head: &[u8]) -> bool {
    let key = |name: &[u8]| {
        head.get(2..32).is_some_and(|head| head.windows(name.len()).any(|word| word == name))
    };
    head.first() == Some(&b'{') && !is_json(head) && key(b"learner")
}

/// Returns `true` if a JSON file is a model of XGBoost.
///
/// ```
/// assert!(apr_runtimes::trees::xgboost::is_model(br#"{"learner": {"attributes": {}}}"#));
/// assert!(!apr_runtimes::trees::xgboost::is_model(br#"{"weight_map": {}}"#));
/// ```
#[must_use]
pub fn is_model(json: &[u8]) -> bool {
    is_json(json)
}

/// Opens a model.
///
/// # Errors
/// E001 for what is no model, E002 for a damaged one, E007 when reading fails, E008 over the limit.
pub fn open<S: ByteSource>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    read(&source, name, limits).map_err(|error| error.in_file(name))
}

fn read(source: &dyn ByteSource, name: &str, limits: &Limits) -> Result<Table> {
    let bytes = whole(source, limits)?;
    let document = match is_ubjson(&bytes) {
        true => ubjson::read(&bytes)?,
        false => Item::of_json(&bytes)?,
    };
    let booster = document.under(&["learner", "gradient_booster"]);
    let booster = booster.ok_or_else(|| Error::format("not a model of XGBoost"))?;
    let mut columns = Columns::default();
    let trees = booster.at("gbtree").unwrap_or(booster).at("model");
    if let Some(model) = trees {
        add_trees(model, &mut columns)?;
    }
    if let Some(weights) = booster.under(&["model", "weights"]).and_then(Item::numbers) {
        columns.extend("weights", DType::F32, weights)?;
    }
    if let Some(weights) = booster.at("weight_drop").and_then(Item::numbers) {
        columns.extend("weight_drop", DType::F32, weights)?;
    }
    let fields = document.described(&|key| TENSORS.contains(&key));
    let fields: Map<String, Value> = match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    table(&FORMAT, (name, source.len()), columns, fields)
}

fn add_trees(model: &Item, columns: &mut Columns) -> Result<()> {
    let Some(trees) = model.at("trees").and_then(Item::list) else { return Ok(()) };
    for tree in trees {
        let Item::Object(entries) = tree else {
            return Err(Error::corrupt("a tree of the model is no object"));
        };
        let count = tree.at("left_children").and_then(Item::numbers).map_or(0, <[f64]>::len);
        columns.extend("trees/nodes", DType::I32, &[count as f64])?;
        for (key, item) in entries {
            let known = LISTS.iter().find(|(name, _)| name == key);
            let numbers = item.numbers();
            match (known, numbers) {
                (Some((_, dtype)), Some(numbers)) => {
                    columns.extend(&format!("trees/{key}"), *dtype, numbers)?;
                }
                (None, Some(numbers)) => {
                    columns.extend(&format!("trees/{key}"), DType::F64, numbers)?;
                }
                _ => {}
            }
        }
        // A tree that has several targets at a leaf has its number of weights here.
        let size = tree.under(&["tree_param", "size_leaf_vector"]).and_then(Item::text);
        let size = size.and_then(|size| size.parse().ok()).unwrap_or(1.0);
        columns.extend("trees/leaf_sizes", DType::I32, &[size])?;
    }
    if let Some(groups) = model.at("tree_info").and_then(Item::numbers) {
        columns.extend("trees/groups", DType::I32, groups)?;
    }
    Ok(())
}
