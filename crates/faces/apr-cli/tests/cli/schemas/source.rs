//! The types of the workspace, read from its source text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use apr_testkit::locate;
use syn::{Item, ItemEnum, ItemStruct, ItemType, Type, UseTree};

/// Definition of a type.
pub(super) enum Definition {
    Struct(ItemStruct),
    Enum(ItemEnum),
    Alias(ItemType),
}

/// Location of a type: the crate, by the name in its paths, and the file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) krate: String,
    file: PathBuf,
}

/// A name of another module that a file uses.
struct Import {
    /// Name in this file; `*` represents all names.
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// All types, what the files import, and the kinds of documents.
#[derive(Default)]
pub(super) struct Sources {
    types: BTreeMap<String, Vec<(Place, Definition)>>,
    imports: BTreeMap<Place, Vec<Import>>,
    /// The type of each document, by its kind.
    pub(super) documents: Vec<(String, Place, Type)>,
}

impl Sources {
    pub(super) fn read() -> Self {
        let mut sources = Self::default();
        for folder in locate::crates() {
            let name = folder.file_name().expect("a name").to_string_lossy().replace('-', "_");
            sources.read_folder(&name, &folder.join("src"));
        }
        sources
    }

    fn read_folder(&mut self, krate: &str, folder: &Path) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        for path in paths {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                self.read_folder(krate, &path);
            } else if path.extension().is_some_and(|it| it == "rs") && name != "tests" {
                let text = fs::read_to_string(&path).expect("a source file");
                let file = syn::parse_file(&text)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let place = Place { krate: krate.to_owned(), file: path };
                self.add(&place, file.items);
            }
        }
    }

    fn add(&mut self, place: &Place, items: Vec<Item>) {
        for item in items {
            let (name, definition) = match item {
                Item::Struct(item) => (item.ident.to_string(), Definition::Struct(item)),
                Item::Enum(item) => (item.ident.to_string(), Definition::Enum(item)),
                Item::Type(item) => (item.ident.to_string(), Definition::Alias(item)),
                Item::Use(item) => {
                    let is_public = !matches!(item.vis, syn::Visibility::Inherited);
                    let imports = self.imports.entry(place.clone()).or_default();
                    add_imports(imports, &mut Vec::new(), &item.tree, is_public);
                    continue;
                }
                Item::Impl(item) => {
                    self.add_document(place, item);
                    continue;
                }
                Item::Mod(item) if item.ident != "tests" => {
                    self.add(place, item.content.map_or_else(Vec::new, |(_, items)| items));
                    continue;
                }
                _ => continue,
            };
            self.types.entry(name).or_default().push((place.clone(), definition));
        }
    }

    /// Notes the kind of `impl Document for TYPE`.
    fn add_document(&mut self, place: &Place, item: syn::ItemImpl) {
        let is_document =
            |path: &syn::Path| path.segments.last().is_some_and(|it| it.ident == "Document");
        if !item.trait_.as_ref().is_some_and(|(_, path, _)| is_document(path)) {
            return;
        }
        for constant in item.items {
            if let syn::ImplItem::Const(constant) = constant
                && constant.ident == "SCHEMA"
                && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(kind), .. }) = constant.expr
            {
                self.documents.push((kind.value(), place.clone(), (*item.self_ty).clone()));
            }
        }
    }

    /// Returns the original name in another library of a type that a file calls `name`.
    pub(super) fn original(&self, name: String, from: &Place) -> String {
        let imports = self.imports.get(from).into_iter().flatten();
        let import = imports.into_iter().find(|import| import.name == name);
        let libraries = ["std", "core", "alloc", "serde_json"];
        match import {
            Some(Import { path, .. }) if libraries.contains(&&*path[0]) => {
                path[path.len() - 1].clone()
            }
            _ => name,
        }
    }

    /// The definition that a path means in a file.
    pub(super) fn find(&self, path: &syn::Path, from: &Place) -> Option<(&Place, &Definition)> {
        let segments: Vec<_> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        match &segments[..] {
            [name] => self.find_name(name, from),
            _ => self.find_path(&segments, from, 0),
        }
    }

    fn find_name(&self, name: &str, from: &Place) -> Option<(&Place, &Definition)> {
        if let Some(found) = self.defined(name, |place| place == from) {
            return Some(found);
        }
        let imports = self.imports.get(from).into_iter().flatten();
        let import = imports.into_iter().find(|import| import.name == name);
        match import {
            Some(import) => self.find_path(&import.path, from, 0),
            None => self.defined(name, |place| place.krate == from.krate),
        }
    }

    /// The definition at the end of a path: in the crate that it begins with, or in one that this
    /// exports names of.
    fn find_path(
        &self,
        path: &[String],
        from: &Place,
        depth: usize,
    ) -> Option<(&Place, &Definition)> {
        /// More crates than names pass through.
        const DEEPEST: usize = 6;
        let (name, modules) = path.split_last()?;
        let first = path.first().map_or("", String::as_str);
        let krate = if first.starts_with("apr") { first } else { &from.krate };
        let is_in_module = |place: &&Place| {
            let module = modules.last().filter(|it| !["crate", "super", "self"].contains(&&***it));
            module.is_none_or(|module| {
                place.file.iter().any(|part| {
                    let part = part.to_string_lossy();
                    part.strip_suffix(".rs").unwrap_or(&part) == module
                })
            })
        };
        let here = |place: &Place| place.krate == krate && is_in_module(&place);
        if let Some(found) = self.defined(name, here) {
            return Some(found);
        }
        if let Some(found) = self.defined(name, |place| place.krate == krate) {
            return Some(found);
        }
        let exports = self.imports.iter().filter(|(place, _)| place.krate == krate);
        let exports =
            exports.flat_map(|(place, imports)| imports.iter().map(move |it| (place, it)));
        let named = exports.filter(|(_, it)| it.is_public && (it.name == *name || it.name == "*"));
        for (place, import) in named.filter(|_| depth < DEEPEST) {
            let mut path = import.path.clone();
            if import.name == "*" {
                path.pop();
                path.push(name.clone());
            }
            if path.first().is_some_and(|first| first.starts_with("apr") && first != krate)
                && let Some(found) = self.find_path(&path, place, depth + 1)
            {
                return Some(found);
            }
        }
        None
    }

    /// Returns the type with this name in one of the places, except for types of `_off` modules,
    /// which replace a disabled feature.
    fn defined(&self, name: &str, is_at: impl Fn(&Place) -> bool) -> Option<(&Place, &Definition)> {
        let named = self.types.get(name)?.iter().filter(|(place, _)| is_at(place));
        let is_twin = |place: &Place| {
            place
                .file
                .iter()
                .any(|part| part.to_string_lossy().trim_end_matches(".rs").ends_with("_off"))
        };
        let mut found: Vec<_> = named.filter(|(place, _)| !is_twin(place)).collect();
        // A name with several meanings in a crate is the one that a report can have.
        if found.len() > 1 {
            found.retain(|(_, definition)| super::reports::is_serialized(definition));
        }
        assert!(
            found.len() < 2,
            "{name}: {:?}",
            found.iter().map(|(at, _)| at).collect::<Vec<_>>()
        );
        found.first().map(|(place, definition)| (place, definition))
    }
}

fn add_imports(imports: &mut Vec<Import>, path: &mut Vec<String>, tree: &UseTree, is_public: bool) {
    let mut add = |path: &[String], last: String, name: String| {
        let path = if last == "self" { path.to_vec() } else { [path, &[last]].concat() };
        imports.push(Import { name, path, is_public });
    };
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            add_imports(imports, path, &inner.tree, is_public);
            path.pop();
        }
        UseTree::Name(name) => add(path, name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(name) => add(path, name.ident.to_string(), name.rename.to_string()),
        UseTree::Glob(_) => add(path, "*".to_owned(), "*".to_owned()),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| add_imports(imports, path, tree, is_public));
        }
    }
}
