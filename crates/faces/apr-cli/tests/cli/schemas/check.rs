//! Compares a document with a schema. It knows the keywords that the schemas use, and is stricter
//! than a validator: a key that the schema does not list is an error, because it has to be
//! published.

use serde_json::Value;

/// Returns the first difference, as the path of a value and a reason.
pub(super) fn check(schema: &Value, document: &Value) -> Result<(), String> {
    Check { root: schema }.value(schema, document, "")
}

struct Check<'s> {
    root: &'s Value,
}

impl Check<'_> {
    fn value(&self, schema: &Value, value: &Value, path: &str) -> Result<(), String> {
        let Some(schema) = schema.as_object() else { return Ok(()) };
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            let pointer = target.strip_prefix('#').expect("a place in the schema");
            return self.value(self.root.pointer(pointer).expect(target), value, path);
        }
        if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
            return self.any(choices, value, path);
        }

        for (keyword, rule) in schema {
            match keyword.as_str() {
                "const" if value != rule => return Err(format!("{path}: {value}, not {rule}")),
                "enum" if !rule.as_array().expect("an array").contains(value) => {
                    return Err(format!("{path}: {value} is not one of {rule}"));
                }
                "type" if !has_type(value, rule) => {
                    return Err(format!("{path}: {value} is not of type {rule}"));
                }
                "$schema"
                | "$defs"
                | "title"
                | "description"
                | "const"
                | "enum"
                | "type"
                | "properties"
                | "required"
                | "items"
                | "prefixItems"
                | "additionalProperties" => {}
                other => panic!("{other}: a keyword that is not checked"),
            }
        }
        match value {
            Value::Object(_) => self.object(schema, value, path),
            Value::Array(items) => items.iter().enumerate().try_for_each(|(at, item)| {
                let prefix = schema.get("prefixItems").and_then(|items| items.get(at));
                let rule = prefix.or_else(|| schema.get("items")).unwrap_or(&Value::Bool(true));
                self.value(rule, item, &format!("{path}/{at}"))
            }),
            _ => Ok(()),
        }
    }

    /// The difference to the choice that fits best: the one whose difference is deepest.
    fn any(&self, choices: &[Value], value: &Value, path: &str) -> Result<(), String> {
        let differences = choices.iter().map(|choice| self.value(choice, value, path));
        let mut deepest = None;
        for difference in differences {
            let Err(difference) = difference else { return Ok(()) };
            let depth = |text: &str| text.split(": ").next().map_or(0, str::len);
            let is_deeper =
                deepest.as_deref().is_none_or(|other| depth(&difference) > depth(other));
            if is_deeper {
                deepest = Some(difference);
            }
        }
        Err(deepest.unwrap_or_else(|| format!("{path}: no choice")))
    }

    fn object(
        &self,
        schema: &serde_json::Map<String, Value>,
        value: &Value,
        path: &str,
    ) -> Result<(), String> {
        let Some(object) = value.as_object() else { return Ok(()) };
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        for name in required.filter_map(Value::as_str) {
            if !object.contains_key(name) {
                return Err(format!("{path}: no '{name}'"));
            }
        }

        let known = schema.get("properties").and_then(Value::as_object);
        for (name, value) in object {
            let path = format!("{path}/{name}");
            let rule = known.and_then(|known| known.get(name));
            match rule.or_else(|| schema.get("additionalProperties")) {
                Some(rule) => self.value(rule, value, &path)?,
                None if known.is_none() => {}
                None => return Err(format!("{path}: not in the schema")),
            }
        }
        Ok(())
    }
}

fn has_type(value: &Value, rule: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}: a type that is not checked"),
    };
    match rule {
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        name => is(name.as_str().expect("the name of a type")),
    }
}
