//! The JSON Schemas of `docs/json`: made from the types of the reports, renewed by
//! `UPDATE_GOLDEN=1 cargo test -p apr-cli schemas`, and compared with every document that the
//! tests of the command print.
//!
//! They are made from the source text, so that no crate has a feature or a dependency for them.

mod check;
mod drift;
mod reports;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use apr_testkit::locate::workspace;
use serde_json::{Value, json};

/// The folder of the schemas, one file for each kind of document.
fn folder() -> PathBuf {
    workspace().join("docs/json")
}

/// The published schemas, by the kind of document: `inspect`, `trace.diff`.
fn published() -> &'static BTreeMap<String, Value> {
    static PUBLISHED: OnceLock<BTreeMap<String, Value>> = OnceLock::new();
    PUBLISHED.get_or_init(|| {
        let files = fs::read_dir(folder()).expect("docs/json");
        let paths = files.map(|file| file.expect("an entry").path());
        paths
            .map(|path| {
                let kind = path.file_stem().expect("a name").to_string_lossy().into_owned();
                let text = fs::read_to_string(&path).expect("a schema");
                (kind, serde_json::from_str(&text).expect("JSON"))
            })
            .collect()
    })
}

/// Compares a document of the command with the published schema of its kind.
#[track_caller]
pub(crate) fn assert_published(document: &Value) {
    // The schemas are renewed first, then compared.
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return;
    }
    let stated = document["schema"].as_str().unwrap_or_default();
    let kind = stated.strip_prefix("apr.").and_then(|kind| kind.split('/').next());
    let Some(schema) = kind.and_then(|kind| published().get(kind)) else {
        panic!("docs/json has no schema of {stated}")
    };
    if let Err(difference) = check::check(schema, document) {
        panic!("docs/json does not describe this {stated}: {difference}\n{document:#}");
    }
}

#[test]
fn published_schemas_match_the_types() {
    let made = reports::schemas(&source::Sources::read());
    let text = |schema: &Value| apr_core::json::to_string_pretty(schema).expect("JSON") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let _ = fs::remove_dir_all(folder());
        fs::create_dir_all(folder()).expect("the folder of documents is there");
        for (kind, schema) in &made {
            fs::write(folder().join(format!("{kind}.json")), text(schema)).expect("a file");
        }
        return;
    }
    assert!(made.len() > 50, "{} kinds", made.len());
    for (kind, schema) in &made {
        let golden = fs::read_to_string(folder().join(format!("{kind}.json"))).unwrap_or_default();
        let is_current = golden == text(schema);
        assert!(is_current, "docs/json/{kind}.json is not current; UPDATE_GOLDEN=1 renews it");
    }
    let unknown: Vec<_> = published().keys().filter(|kind| !made.contains_key(*kind)).collect();
    assert!(unknown.is_empty(), "no report has the schema {unknown:?}");
}

#[test]
fn a_document_that_differs_from_its_schema_is_found() {
    let schema = &published()["explain.code"];
    let page = json!({
        "schema": "apr.explain.code/1", "command": "explain", "code": "E001", "title": "t",
        "meaning": "m", "causes": ["c"], "steps": [],
    });
    assert_eq!(check::check(schema, &page), Ok(()));
    let differs = |key: &str, value: Value| {
        let mut page = page.clone();
        page[key] = value;
        check::check(schema, &page).expect_err("a difference")
    };
    assert!(differs("schema", json!("apr.explain.code/2")).starts_with("/schema: "));
    assert!(differs("title", json!(1)).starts_with("/title: "));
    assert!(differs("causes", json!(["c", null])).starts_with("/causes/1: "));
    assert_eq!(differs("other", json!(1)), "/other: not in the schema");
    let mut short = page.clone();
    short.as_object_mut().expect("an object").remove("steps");
    assert_eq!(check::check(schema, &short), Err(": no 'steps'".to_owned()));
}
