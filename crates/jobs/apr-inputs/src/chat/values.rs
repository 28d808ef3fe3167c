//! Values of a chat, as templates see them.

use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Value};
use minijinja::{Error, State};

use super::methods;
use crate::messages::Data;

/// Methods of Python's dictionaries.
const METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

/// A value for a template.
pub(super) fn of(data: &Data) -> Value {
    match data {
        Data::Null => Value::from(()),
        Data::Bool(value) => Value::from(*value),
        Data::Integer(number) => match i64::try_from(*number) {
            Ok(number) => Value::from(number),
            Err(_) => Value::from(*number),
        },
        Data::Float(number) => Value::from(*number),
        Data::Text(text) => Value::from(text.as_str()),
        Data::List(items) => Value::from(items.iter().map(of).collect::<Vec<_>>()),
        Data::Object(fields) => {
            let map =
                Value::from_pairs(fields.iter().map(|(key, value)| (key.as_str(), of(value))));
            map.as_object().cloned().map_or(map, |map| Value::from_object(Fields(map)))
        }
    }
}

/// Bytes that a value has, about.
pub(super) fn bytes(data: &Data) -> usize {
    match data {
        Data::Text(text) => text.len(),
        Data::List(items) => items.iter().map(bytes).sum::<usize>() + 64,
        Data::Object(fields) => {
            fields.iter().map(|(key, value)| key.len() + bytes(value)).sum::<usize>() + 64
        }
        Data::Null | Data::Bool(_) | Data::Integer(_) | Data::Float(_) => 24,
    }
}

/// A dictionary. An attribute of it is a method before it is a value, as in Python: a template that
/// reads `schema.items` gets the method even if the schema has a key of this name.
#[derive(Debug)]
struct Fields(DynObject);

impl Object for Fields {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match METHODS.iter().find(|name| **name == key) {
            Some(name) => Some(Value::from_object(Method(Arc::clone(self), name))),
            None => self.0.get_value_by_str(key),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }
}

/// A method that is not called yet.
#[derive(Debug)]
struct Method(Arc<Fields>, &'static str);

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        arguments: &[Value],
    ) -> Result<Value, Error> {
        methods::method(state, &Value::from_dyn_object(Arc::clone(&self.0)), self.1, arguments)
    }
}
