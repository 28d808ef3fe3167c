//! JSON Schemas of the documents, from the types that serde serializes.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Field, Fields, GenericArgument, Lit, PathArguments, Token, Type};

use super::source::{Definition, Place, Sources};

/// Schemas of types with a hand-written `Serialize`, and of the functions of `serialize_with`.
const BY_HAND: [(&str, &str); 12] = [
    // Arguments of a tool call.
    ("Data", "object"),
    ("DType", "string"),
    ("ElementType", "string"),
    ("Format", "string"),
    ("Method", "string"),
    ("Dim", "integer or string"),
    ("Metadata", "object"),
    ("brief", "object"),
    ("as_name", "string or null"),
    ("as_text", "string or null"),
    ("as_messages", "strings"),
    // The type of the field.
    ("shared", ""),
];

/// Returns the schema of each kind of document.
pub(super) fn schemas(sources: &Sources) -> BTreeMap<String, Value> {
    let mut kinds: BTreeMap<&str, Vec<(&Place, &Type)>> = BTreeMap::new();
    for (kind, place, document) in &sources.documents {
        kinds.entry(kind).or_default().push((place, document));
    }
    kinds
        .into_iter()
        .map(|(kind, types)| (kind.to_owned(), schema(sources, kind, &types)))
        .collect()
}

fn schema(sources: &Sources, kind: &str, types: &[(&Place, &Type)]) -> Value {
    let mut maker = Maker { sources, defined: BTreeMap::new(), definitions: Map::new() };
    let mut forms = Vec::new();
    for (place, document) in types {
        forms.extend(maker.objects(document, &Scope::of(place)));
    }
    for form in &mut forms {
        let stated = format!("apr.{kind}/1");
        form.put("schema", json!({ "const": stated, "description": "Kind and version" }), true);
        form.put(
            "command",
            json!({ "type": "string", "description": "Words of the command" }),
            true,
        );
        let warnings = json!({
            "type": "array", "items": { "type": "string" }, "description": "Warnings, if any",
        });
        if !form.properties.contains_key("warnings") {
            form.put("warnings", warnings, false);
        }
        if !form.properties.contains_key("made_folders") {
            let folders = json!({
                "type": "array", "items": { "type": "string" },
                "description": "Folders that were made for outputs, if any",
            });
            form.put("made_folders", folders, false);
        }
        // Runs and traces write files beside their reports.
        let writes = kind == "run" || kind.starts_with("run.") || kind.starts_with("trace");
        for (key, description) in
            [("output", "The written file or folder"), ("other_output", "The second of two")]
        {
            if writes && !form.properties.contains_key(key) {
                form.put(key, json!({ "type": "string", "description": description }), false);
            }
        }
        if !form.properties.contains_key("unverified") {
            let unverified = "What `--no-verify` left unchecked";
            form.put("unverified", json!({ "const": "tensors", "description": unverified }), false);
        }
    }

    let mut schema = Map::new();
    schema.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    schema.insert("title".into(), format!("apr.{kind}/1").into());
    let body = either(forms.into_iter().map(Object::into_schema).collect());
    schema.extend(body.as_object().expect("an object").clone());
    if !maker.definitions.is_empty() {
        schema.insert("$defs".into(), maker.definitions.into());
    }
    schema.into()
}

/// Returns `true` if serde writes the type into reports.
pub(super) fn is_serialized(definition: &Definition) -> bool {
    let attributes = match definition {
        Definition::Struct(item) => &item.attrs,
        Definition::Enum(item) => &item.attrs,
        Definition::Alias(_) => return true,
    };
    attributes.iter().filter(|it| it.path().is_ident("derive")).any(|derive| {
        let derived = derive.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated);
        derived.is_ok_and(|paths| {
            paths.iter().any(|path| path.segments.last().is_some_and(|it| it.ident == "Serialize"))
        })
    })
}

/// Module of a type, and the arguments for its parameters.
#[derive(Clone)]
struct Scope<'s> {
    place: &'s Place,
    parameters: BTreeMap<String, Value>,
    /// Type arguments, for parameters whose keys are those of the report.
    types: BTreeMap<String, (Type, Box<Scope<'s>>)>,
}

impl<'s> Scope<'s> {
    fn of(place: &'s Place) -> Self {
        Self { place, parameters: BTreeMap::new(), types: BTreeMap::new() }
    }
}

/// An object: its keys, and whether it may have others.
#[derive(Default, Clone)]
struct Object {
    properties: Map<String, Value>,
    required: Vec<String>,
    others: Option<Value>,
    description: Option<String>,
}

impl Object {
    fn put(&mut self, name: &str, schema: Value, is_required: bool) {
        self.properties.insert(name.to_owned(), schema);
        if is_required {
            self.required.push(name.to_owned());
        }
    }

    /// The keys of both.
    fn joined(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        let twice = other.properties.keys().find(|key| joined.properties.contains_key(*key));
        assert_eq!(twice, None, "one document has the key twice");
        joined.properties.extend(other.properties.clone());
        joined.required.extend(other.required.clone());
        joined.others = joined.others.or_else(|| other.others.clone());
        joined
    }

    fn into_schema(self) -> Value {
        let Self { properties, mut required, others, description } = self;
        let mut schema = Map::new();
        schema.insert("type".into(), "object".into());
        if let Some(description) = description {
            schema.insert("description".into(), description.into());
        }
        if !properties.is_empty() {
            schema.insert("properties".into(), properties.into());
        }
        if !required.is_empty() {
            required.sort();
            schema.insert("required".into(), required.into());
        }
        if let Some(others) = others {
            schema.insert("additionalProperties".into(), others);
        }
        schema.into()
    }
}

/// The serde attributes of a type, a variant or a field.
#[derive(Default)]
struct Serde {
    words: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Serde {
    fn of(attributes: &[Attribute]) -> Self {
        let mut serde = Self::default();
        for attribute in attributes.iter().filter(|it| it.path().is_ident("serde")) {
            let parsed = attribute.parse_nested_meta(|meta| {
                let name = meta.path.get_ident().expect("a word").to_string();
                match meta.value().and_then(syn::parse::ParseBuffer::parse::<Lit>) {
                    Ok(Lit::Str(value)) => _ = serde.values.insert(name, value.value()),
                    _ => serde.words.push(name),
                }
                Ok(())
            });
            parsed.expect("attributes of serde");
        }
        serde
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|it| it == word)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns the JSON name of a field or a variant, from its own attributes and those of the
    /// type.
    fn name(&self, name: &str, of_type: &Self, is_variant: bool) -> String {
        if let Some(renamed) = self.value("rename") {
            return renamed.to_owned();
        }
        match of_type.value("rename_all") {
            None => name.to_owned(),
            Some("lowercase") => name.to_lowercase(),
            Some("UPPERCASE") => name.to_uppercase(),
            Some(case @ ("snake_case" | "kebab-case")) => {
                let between = if case == "snake_case" { '_' } else { '-' };
                let mut renamed = String::new();
                for letter in name.chars() {
                    if is_variant && letter.is_uppercase() && !renamed.is_empty() {
                        renamed.push(between);
                    }
                    renamed.extend(letter.to_lowercase());
                }
                renamed.replace('_', &between.to_string())
            }
            Some(other) => panic!("rename_all = {other}"),
        }
    }
}

struct Maker<'s> {
    sources: &'s Sources,
    /// The names of the definitions, by their place and their name with parameters.
    defined: BTreeMap<(Place, String), String>,
    definitions: Map<String, Value>,
}

impl<'s> Maker<'s> {
    /// The schema of the values of a type.
    fn value(&mut self, kind: &Type, scope: &Scope<'s>) -> Value {
        match kind {
            Type::Reference(inner) => self.value(&inner.elem, scope),
            Type::Paren(inner) => self.value(&inner.elem, scope),
            Type::Slice(inner) => {
                json!({ "type": "array", "items": self.value(&inner.elem, scope) })
            }
            Type::Array(inner) => {
                json!({ "type": "array", "items": self.value(&inner.elem, scope) })
            }
            Type::Tuple(tuple) if tuple.elems.is_empty() => json!({ "type": "null" }),
            Type::Tuple(tuple) => {
                let items: Vec<_> = tuple.elems.iter().map(|it| self.value(it, scope)).collect();
                json!({ "type": "array", "prefixItems": items })
            }
            Type::Path(path) => self.path(&path.path, scope),
            _ => panic!("{}: a kind of type that no report has", scope.place.krate),
        }
    }

    fn path(&mut self, path: &syn::Path, scope: &Scope<'s>) -> Value {
        let last = path.segments.last().expect("a name");
        let name = self.sources.original(last.ident.to_string(), scope.place);
        let arguments = arguments(&last.arguments);
        let mut argument = |at: usize| self.value(arguments[at], scope);
        match (name.as_str(), arguments.len()) {
            ("bool", 0) => json!({ "type": "boolean" }),
            ("String" | "str" | "char" | "PathBuf" | "Path" | "OsString", 0) => {
                json!({ "type": "string" })
            }
            (
                "u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i8" | "i16" | "i32" | "i64"
                | "isize" | "NonZeroUsize" | "NonZeroU32" | "NonZeroU64",
                0,
            ) => json!({ "type": "integer" }),
            // Not a finite number: null.
            ("f32" | "f64", 0) => json!({ "type": ["number", "null"] }),
            ("Value", 0) => Value::Bool(true),
            ("Box" | "Arc" | "Rc" | "Cow", 1) => argument(0),
            ("Option", 1) => or_null(argument(0)),
            ("Vec" | "BTreeSet" | "VecDeque", 1) => {
                json!({ "type": "array", "items": argument(0) })
            }
            ("BTreeMap" | "HashMap" | "Map", 2) => {
                json!({ "type": "object", "additionalProperties": argument(1) })
            }
            (parameter, 0) if scope.parameters.contains_key(parameter) => {
                scope.parameters[parameter].clone()
            }
            _ => self.named(path, scope),
        }
    }

    /// A type of the workspace, as a reference to its definition.
    fn named(&mut self, path: &syn::Path, scope: &Scope<'s>) -> Value {
        let last = path.segments.last().expect("a name");
        let name = last.ident.to_string();
        let Some((place, definition)) = self.sources.find(path, scope.place) else {
            return by_hand(&name)
                .unwrap_or_else(|| panic!("{name} in {:?} is not known", scope.place));
        };
        if !is_serialized(definition) {
            return by_hand(&name)
                .unwrap_or_else(|| panic!("{name} in {place:?} is not serialized"));
        }
        let inner = self.scope_within(place, definition, path, scope);
        if let Definition::Alias(alias) = definition {
            return self.value(&alias.ty, &inner);
        }

        let parameters =
            inner.parameters.values().map(|it| it["$ref"].as_str().unwrap_or_default());
        let parameters: Vec<_> = parameters.map(|it| it.trim_start_matches("#/$defs/")).collect();
        let full = [&[name.as_str()], &parameters[..]].concat().join("-");
        let key = (place.clone(), full.clone());
        if let Some(known) = self.defined.get(&key) {
            return reference(known);
        }
        let is_taken = self.definitions.contains_key(&full);
        let full = if is_taken { format!("{}.{full}", place.krate) } else { full };
        self.defined.insert(key, full.clone());
        // It may contain itself.
        self.definitions.insert(full.clone(), Value::Null);
        let schema = match definition {
            Definition::Struct(item) => self.structure(item, &inner),
            Definition::Enum(item) => self.enumeration(item, &inner),
            Definition::Alias(_) => unreachable!("handled above"),
        };
        self.definitions.insert(full.clone(), schema);
        reference(&full)
    }

    fn scope_within(
        &mut self,
        place: &'s Place,
        definition: &Definition,
        path: &syn::Path,
        scope: &Scope<'s>,
    ) -> Scope<'s> {
        let generics = match definition {
            Definition::Struct(item) => &item.generics,
            Definition::Enum(item) => &item.generics,
            Definition::Alias(item) => &item.generics,
        };
        let mut inner = Scope::of(place);
        let given = arguments(&path.segments.last().expect("a name").arguments);
        for (parameter, argument) in generics.type_params().zip(given) {
            let name = parameter.ident.to_string();
            inner.parameters.insert(name.clone(), self.value(argument, scope));
            inner.types.insert(name, (argument.clone(), Box::new(scope.clone())));
        }
        inner
    }

    fn structure(&mut self, item: &syn::ItemStruct, scope: &Scope<'s>) -> Value {
        let serde = Serde::of(&item.attrs);
        if let Some(into) = serde.value("into") {
            return self.value(&syn::parse_str(into).expect("a type"), scope);
        }
        let schema = match &item.fields {
            Fields::Unnamed(fields) => self.unnamed(fields, scope),
            Fields::Named(fields) if serde.has("transparent") => {
                let only = fields.named.first().expect("a field");
                self.value(&only.ty, scope)
            }
            Fields::Named(_) | Fields::Unit => {
                let objects = self.structure_objects(item, scope);
                either(objects.into_iter().map(Object::into_schema).collect())
            }
        };
        described(schema, description(&item.attrs))
    }

    /// The objects of a structure with named fields, whose tag is its name.
    fn structure_objects(&mut self, item: &syn::ItemStruct, scope: &Scope<'s>) -> Vec<Object> {
        let serde = Serde::of(&item.attrs);
        let mut objects = self.fields(&item.fields, &serde, scope);
        if let Some(tag) = serde.value("tag") {
            let name = item.ident.to_string();
            let name = serde.value("rename").unwrap_or(&name);
            objects.iter_mut().for_each(|object| object.put(tag, tag_of(name), true));
        }
        objects
    }

    fn enumeration(&mut self, item: &syn::ItemEnum, scope: &Scope<'s>) -> Value {
        let serde = Serde::of(&item.attrs);
        if let Some(into) = serde.value("into") {
            return self.value(&syn::parse_str(into).expect("a type"), scope);
        }
        let is_plain = serde.values.keys().all(|name| name != "tag") && !serde.has("untagged");
        let (mut words, mut forms) = (Vec::new(), Vec::new());
        for variant in &item.variants {
            let own = Serde::of(&variant.attrs);
            let name = own.name(&variant.ident.to_string(), &serde, true);
            if own.has("skip") || own.has("skip_serializing") {
                continue;
            }
            if is_plain && matches!(variant.fields, Fields::Unit) {
                words.push(name);
            } else if is_plain {
                let mut object = Object::default();
                let about = description(&variant.attrs);
                object.put(&name, described(self.content(variant, scope), about.clone()), true);
                forms.push(described(object.into_schema(), about));
            } else {
                let schema = self.tagged(variant, &name, &serde, scope);
                forms.push(described(schema, description(&variant.attrs)));
            }
        }
        if !words.is_empty() {
            forms.insert(0, json!({ "type": "string", "enum": words }));
        }
        described(either(forms), description(&item.attrs))
    }

    /// Returns the schema of an enum's variant that is tagged or identified by its keys.
    fn tagged(
        &mut self,
        variant: &syn::Variant,
        name: &str,
        serde: &Serde,
        scope: &Scope<'s>,
    ) -> Value {
        if serde.has("untagged") {
            return self.content(variant, scope);
        }
        let tag = serde.value("tag").expect("a tag");
        if let Some(content) = serde.value("content") {
            let mut object = Object::default();
            object.put(tag, tag_of(name), true);
            if !matches!(variant.fields, Fields::Unit) {
                object.put(content, self.content(variant, scope), true);
            }
            return object.into_schema();
        }
        let objects = self.variant_objects(variant, scope).into_iter().map(|mut object| {
            object.put(tag, tag_of(name), true);
            object.into_schema()
        });
        either(objects.collect())
    }

    fn variant_objects(&mut self, variant: &syn::Variant, scope: &Scope<'s>) -> Vec<Object> {
        match &variant.fields {
            Fields::Unnamed(fields) => self.objects(&fields.unnamed[0].ty, scope),
            fields => self.fields(fields, &Serde::of(&variant.attrs), scope),
        }
    }

    /// A structure or variant without names for its fields.
    fn unnamed(&mut self, fields: &syn::FieldsUnnamed, scope: &Scope<'s>) -> Value {
        if let (1, Some(only)) = (fields.unnamed.len(), fields.unnamed.first()) {
            return self.value(&only.ty, scope);
        }
        let items: Vec<_> = fields.unnamed.iter().map(|it| self.value(&it.ty, scope)).collect();
        json!({ "type": "array", "prefixItems": items })
    }

    /// Returns the schema of a variant's content.
    fn content(&mut self, variant: &syn::Variant, scope: &Scope<'s>) -> Value {
        match &variant.fields {
            Fields::Unit => json!({ "type": "null" }),
            Fields::Unnamed(fields) => self.unnamed(fields, scope),
            fields => {
                let objects = self.fields(fields, &Serde::of(&variant.attrs), scope);
                either(objects.into_iter().map(Object::into_schema).collect())
            }
        }
    }

    /// The objects that named fields are written as: more than one if a field is flattened whose
    /// type has several forms.
    fn fields(&mut self, fields: &Fields, of_type: &Serde, scope: &Scope<'s>) -> Vec<Object> {
        let mut forms = vec![Object::default()];
        for field in fields {
            let serde = Serde::of(&field.attrs);
            if serde.has("skip") || serde.has("skip_serializing") {
                continue;
            }
            let within: Vec<Object> = if serde.has("flatten") {
                self.objects(&field.ty, scope)
            } else {
                let name = field.ident.as_ref().expect("a named field").to_string();
                let name = serde.name(name.trim_start_matches("r#"), of_type, false);
                let schema = self.field(field, &serde, scope);
                let schema = match schema.get("description") {
                    None => described(schema, shared(&name)),
                    Some(_) => schema,
                };
                let mut object = Object::default();
                object.put(&name, schema, serde.value("skip_serializing_if").is_none());
                vec![object]
            };
            forms = forms
                .iter()
                .flat_map(|form| within.iter().map(|other| form.joined(other)))
                .collect();
        }
        forms
    }

    fn field(&mut self, field: &Field, serde: &Serde, scope: &Scope<'s>) -> Value {
        let by = serde
            .value("serialize_with")
            .map(|function| by_hand(function).unwrap_or_else(|| panic!("{function} is not known")));
        let schema = match by {
            Some(Value::Null) | None => self.value(&field.ty, scope),
            Some(schema) => schema,
        };
        described(schema, description(&field.attrs))
    }

    /// The forms of a type that is an object, to be merged into another one.
    fn objects(&mut self, kind: &Type, scope: &Scope<'s>) -> Vec<Object> {
        let path = match kind {
            Type::Reference(inner) => return self.objects(&inner.elem, scope),
            Type::Path(path) => &path.path,
            _ => panic!("a flattened type without keys"),
        };
        let last = path.segments.last().expect("a name");
        let name = self.sources.original(last.ident.to_string(), scope.place);
        let arguments = arguments(&last.arguments);
        if let Some((argument, outer)) = scope.types.get(&name) {
            return self.objects(&argument.clone(), &outer.clone());
        }
        match (name.as_str(), &arguments[..]) {
            ("Box" | "Arc" | "Cow", [inner]) => return self.objects(inner, scope),
            ("Option", [inner]) => {
                let mut objects = self.objects(inner, scope);
                objects.insert(0, Object::default());
                return objects;
            }
            ("Map" | "BTreeMap", [_, value]) => {
                let others = Some(self.value(value, scope));
                return vec![Object { others, ..Object::default() }];
            }
            ("Value", []) => {
                return vec![Object { others: Some(true.into()), ..Object::default() }];
            }
            _ => {}
        }
        let Some((place, definition)) = self.sources.find(path, scope.place) else {
            panic!("{name} in {:?} is not known", scope.place)
        };
        let inner = self.scope_within(place, definition, path, scope);
        match definition {
            Definition::Alias(alias) => self.objects(&alias.ty, &inner),
            Definition::Struct(item) if matches!(item.fields, Fields::Unnamed(_)) => {
                let Fields::Unnamed(fields) = &item.fields else { unreachable!("matched") };
                self.objects(&fields.unnamed[0].ty, &inner)
            }
            Definition::Struct(item) => self.structure_objects(item, &inner),
            Definition::Enum(item) => {
                let serde = Serde::of(&item.attrs);
                let mut forms = Vec::new();
                for variant in &item.variants {
                    let name =
                        Serde::of(&variant.attrs).name(&variant.ident.to_string(), &serde, true);
                    if let (Some(tag), Some(content)) = (serde.value("tag"), serde.value("content"))
                    {
                        let mut object = Object::default();
                        object.put(tag, tag_of(&name), true);
                        object.put(content, self.content(variant, &inner), true);
                        forms.push(object);
                    } else if serde.has("untagged") {
                        forms.extend(self.variant_objects(variant, &inner));
                    } else if let Some(tag) = serde.value("tag") {
                        for mut object in self.variant_objects(variant, &inner) {
                            object.put(tag, tag_of(&name), true);
                            forms.push(object);
                        }
                    } else {
                        let mut object = Object::default();
                        let about = description(&variant.attrs);
                        object.put(&name, described(self.content(variant, &inner), about), true);
                        forms.push(object);
                    }
                }
                forms
            }
        }
    }
}

fn by_hand(name: &str) -> Option<Value> {
    let (_, kind) = BY_HAND.iter().find(|(known, _)| *known == name)?;
    Some(match *kind {
        "" => Value::Null,
        "strings" => json!({ "type": "array", "items": { "type": "string" } }),
        "object" => json!({ "type": "object", "additionalProperties": true }),
        kinds => match kinds.split(" or ").collect::<Vec<_>>()[..] {
            [only] => json!({ "type": only }),
            ref several => json!({ "type": several }),
        },
    })
}

/// Descriptions of keys that mean the same in every report, for fields without their own.
const SHARED: [(&str, &str); 12] = [
    ("bytes", "Size in bytes"),
    ("bytes_out", "Size of all files written"),
    ("elements", "Number of elements"),
    ("error", "Reason of the failure"),
    ("file", "File of the model"),
    ("name", "Name"),
    ("other_path", "Path or location of the second model, as given"),
    ("output", "File or folder that was written"),
    ("path", "Path or location of the model, as given"),
    ("tensor", "Name of the tensor"),
    ("tensor_count", "Number of tensors"),
    ("text", "Path of the text, as given"),
];

fn shared(name: &str) -> Option<String> {
    let (_, text) = SHARED.iter().find(|(known, _)| *known == name)?;
    Some((*text).to_owned())
}

/// Returns the schema of the key that tells forms of an object apart.
fn tag_of(name: &str) -> Value {
    json!({ "const": name, "description": "Kind of the object" })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn arguments(arguments: &PathArguments) -> Vec<&Type> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return Vec::new() };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(kind) => Some(kind),
        _ => None,
    });
    types.collect()
}

fn or_null(schema: Value) -> Value {
    match schema.get("type").and_then(Value::as_str) {
        Some(kind) if schema.get("enum").is_none() => {
            let mut schema = schema.clone();
            schema["type"] = json!([kind, "null"]);
            schema
        }
        _ if schema == Value::Bool(true) || schema["type"].is_array() => schema,
        _ => json!({ "anyOf": [schema, { "type": "null" }] }),
    }
}

fn either(mut forms: Vec<Value>) -> Value {
    match forms.len() {
        1 => forms.remove(0),
        _ => json!({ "anyOf": forms }),
    }
}

/// Returns a schema with a description, if the schema can have one.
fn described(schema: Value, description: Option<String>) -> Value {
    let Some(description) = description else { return schema };
    match schema {
        Value::Object(mut object) => {
            object.insert("description".into(), description.into());
            object.into()
        }
        Value::Bool(_) => json!({ "description": description }),
        other => other,
    }
}

/// The first paragraph of a documentation comment, without its markup.
fn description(attributes: &[Attribute]) -> Option<String> {
    let mut text = String::new();
    for attribute in attributes.iter().filter(|it| it.path().is_ident("doc")) {
        let syn::Meta::NameValue(meta) = &attribute.meta else { continue };
        let Expr::Lit(syn::ExprLit { lit: Lit::Str(line), .. }) = &meta.value else { continue };
        let line = line.value();
        if line.trim().is_empty() {
            break;
        }
        text += &line;
    }
    let text = text.trim().trim_end_matches('.').replace("[`", "`").replace("`]", "`");
    (!text.is_empty()).then_some(text)
}
