//! Rules that hold across the schemas, so that one name means one thing in all reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use apr_testkit::locate::workspace;
use serde_json::Value;

use super::published;

/// Reports that are not about one model or one plan.
const WITHOUT_PATH: [&str; 10] = [
    "cache",
    "cache.verify",
    "completions",
    "explain.code",
    "explain.known-tensor",
    "keygen",
    "man",
    "page",
    "scan",
    "version",
];

/// Visits every property of a schema with its name.
fn visit<'s>(schema: &'s Value, then: &mut dyn FnMut(&'s str, &'s Value)) {
    // An absent key, or a schema that accepts everything.
    if !schema.is_object() {
        return;
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        then(name, property);
        visit(property, then);
    }
    for key in ["items", "additionalProperties"] {
        visit(&schema[key], then);
    }
    for key in ["anyOf", "prefixItems"] {
        schema[key].as_array().into_iter().flatten().for_each(|schema| visit(schema, then));
    }
    let definitions = schema["$defs"].as_object().into_iter().flatten();
    definitions.for_each(|(_, schema)| visit(schema, then));
}

/// Adds the JSON types of a property, without `null`.
fn types_of<'s>(root: &'s Value, schema: &'s Value, types: &mut BTreeSet<&'s str>) {
    if let Some(target) = schema["$ref"].as_str() {
        let target = root.pointer(target.trim_start_matches('#')).expect(target);
        return types_of(root, target, types);
    }
    for choice in schema["anyOf"].as_array().into_iter().flatten() {
        types_of(root, choice, types);
    }
    let stated = &schema["type"];
    let stated = stated.as_array().map_or_else(|| vec![stated], |several| several.iter().collect());
    for name in stated.into_iter().filter_map(Value::as_str) {
        match name {
            "integer" => _ = types.insert("number"),
            "null" => {}
            name => _ = types.insert(name),
        }
    }
}

#[test]
fn no_name_is_a_number_in_one_report_and_a_list_in_another() {
    let mut known: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for (kind, schema) in published() {
        visit(schema, &mut |name, property| {
            let mut types = BTreeSet::new();
            types_of(schema, property, &mut types);
            let places = known.entry(name).or_default();
            types.into_iter().for_each(|of| _ = places.entry(of).or_insert(kind));
        });
    }
    let mut both = Vec::new();
    for (name, places) in &known {
        let (number, list) = (places.get("number"), places.get("array"));
        if let (Some(number), Some(list)) = (number, list) {
            both.push(format!("{name}: a number in {number}, a list in {list}"));
        }
    }
    assert!(both.is_empty(), "{both:#?}");
}

#[test]
fn reports_on_one_model_have_its_path() {
    for (kind, schema) in published().iter().filter(|(kind, _)| !WITHOUT_PATH.contains(&&***kind)) {
        let forms = schema["anyOf"].as_array();
        let forms = forms.map_or_else(|| vec![schema], |forms| forms.iter().collect());
        for form in forms {
            assert!(form["properties"]["path"].is_object(), "{kind} has no path: {form}");
        }
    }
}

#[test]
fn the_version_of_a_report_is_in_its_schema_alone() {
    for (kind, schema) in published() {
        visit(schema, &mut |name, property| {
            let mut types = BTreeSet::new();
            types_of(schema, property, &mut types);
            assert!(name != "version" || !types.contains("number"), "{kind} has a second version");
        });
    }
}

#[test]
fn every_key_has_a_description_and_is_explained() {
    let page = fs::read_to_string(workspace().join("docs/json.md")).expect("docs/json.md");
    let text: String = page.split("```").step_by(2).collect();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let spans = text.split('`').skip(1).step_by(2);
    let words: BTreeSet<&str> = spans.flat_map(|span| span.split(|c| !is_word(c))).collect();
    let (mut bare, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for (kind, schema) in published() {
        visit(schema, &mut |name, property| {
            if property.is_object() && property["description"].as_str().is_none_or(str::is_empty) {
                bare.insert(format!("{kind}: {name}"));
            }
            if !words.contains(name) {
                unknown.insert(format!("{kind}: {name}"));
            }
        });
    }
    assert!(bare.is_empty(), "keys without a description: {bare:#?}");
    assert!(unknown.is_empty(), "docs/json.md does not name {unknown:#?}");
}
