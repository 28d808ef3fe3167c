//! All datasets of an HDF5 file, by their paths.

use std::collections::HashMap;

use apr_core::{Code, Error, Escaped, Result};

use crate::hdf5::{
    Attribute, Dataset, Datatype, File, Followed, Object, Target, attributes, kind, links,
};

/// A dataset, or why it can't be read.
pub(crate) struct Found {
    pub(crate) path: String,
    pub(crate) dataset: std::result::Result<Dataset, Error>,
    /// Element type in the dataset's own attribute, if HDF5 has no such type.
    pub(crate) dtype: Option<String>,
}

/// Content of a file.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) found: Vec<Found>,
    /// Texts of the groups at the top and of `model_weights`: configuration, versions.
    pub(crate) texts: HashMap<String, String>,
    /// Keras' name of the object that a group `vars` belongs to, by the path of the group.
    pub(crate) named: HashMap<String, String>,
    /// `true` if a group lists the layers of a model, as in versions before 3.
    pub(crate) lists_layers: bool,
    /// Links that are not followed.
    pub(crate) skipped: Skipped,
    /// The library that wrote the file, if it keeps pickles in attributes or values: PyTables,
    /// hickle.
    pub(crate) unpickles: Option<&'static str>,
    /// Links into other files: a path, and the file.
    pub(crate) outside: Vec<(String, String)>,
    pub(crate) warnings: Vec<String>,
}

/// Links that do not lead to a new object.
#[derive(Default)]
pub(crate) struct Skipped {
    /// The first of them, and why.
    pub(crate) listed: Vec<String>,
    pub(crate) count: usize,
}

/// Names that are listed one by one.
const MAX_LISTED: usize = 100;

/// Attributes of the top that describe the model.
const DESCRIPTIONS: [&str; 4] = ["backend", "keras_version", "model_config", "training_config"];

impl Contents {
    /// Walks all groups.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over the budget.
    pub(crate) fn of(file: &File<'_>) -> Result<Self> {
        let mut contents = Self::default();
        let mut known = Followed::default();
        let mut names: HashMap<u64, String> = HashMap::new();
        known.follow(file.root)?;
        let mut rest = vec![(file.root, String::new())];
        while let Some((address, path)) = rest.pop() {
            let located = |error: Error| error.for_tensor(Escaped::short(&path));
            let object = Object::read(file, address).map_err(located)?;
            if object.is_dataset() {
                contents.add_dataset(file, &object, path)?;
                continue;
            }
            let found = match attributes(file, &object) {
                Ok(found) => found,
                Err(error) => {
                    contents.warn(&path, error)?;
                    Vec::new()
                }
            };
            for attribute in found {
                if let Err(error) = contents.add_attribute(file, &path, &attribute) {
                    contents.warn(&path, error)?;
                }
            }

            let first = rest.len();
            for link in links(file, &object).map_err(located)? {
                let inner = match path.as_str() {
                    "" => link.name,
                    outer => format!("{outer}/{}", link.name),
                };
                file.spend(inner.len() as u64)?;
                match link.target {
                    Target::Hard(address) if known.is_new(address) => {
                        names.insert(address, inner.clone());
                        rest.push((address, inner));
                    }
                    Target::Hard(address) => {
                        let other = names.get(&address).map_or("", String::as_str);
                        contents.skip(&inner, &format!("another name of '/{other}'"));
                    }
                    Target::Soft(other) => contents.skip(&inner, &format!("a link to '{other}'")),
                    Target::External { file, object } => {
                        contents
                            .skip(&inner, &format!("a link to '{object}' of the file '{file}'"));
                        contents.outside.push((inner, file));
                    }
                }
            }
            rest[first..].reverse();
        }
        Ok(contents)
    }

    fn add_dataset(&mut self, file: &File<'_>, object: &Object, path: String) -> Result<()> {
        let located = |error: Error| error.for_tensor(Escaped::short(&path));
        let dataset = Dataset::read(file, object).map_err(located)?;
        if object.find(kind::EXTERNAL).is_some() {
            self.outside.push((path.clone(), "the files that it lists".to_owned()));
        }
        if let Err(error) = &dataset
            && error.message().contains("virtual dataset")
        {
            self.outside.push((path.clone(), "the files that it is made of".to_owned()));
        }
        let is_opaque = dataset.as_ref().is_ok_and(|set| set.datatype == Datatype::Opaque(2));
        let mut dtype = None;
        if is_opaque {
            let mut all = attributes(file, object).map_err(located)?.into_iter();
            if let Some(attribute) = all.find(|attribute| attribute.name == "dtype") {
                dtype = text(file, &attribute).map_err(located)?;
            }
        }
        self.found.push(Found { path, dataset, dtype });
        Ok(())
    }

    fn add_attribute(&mut self, file: &File<'_>, path: &str, attribute: &Attribute) -> Result<()> {
        let name = attribute.name.as_str();
        // Long lists are cut into parts, each with a number.
        let is_list = name.trim_end_matches(|c: char| c.is_ascii_digit()) == "layer_names";
        self.lists_layers |= is_list && ["", "model_weights"].contains(&path);
        self.unpickles = match name {
            "PYTABLES_FORMAT_VERSION" => Some("PyTables"),
            "HICKLE_VERSION" | "HICKLE_PYTHON_VERSION" => Some("hickle"),
            _ => self.unpickles,
        };
        if DESCRIPTIONS.contains(&name) && ["", "model_weights"].contains(&path) {
            if let Some(value) = text(file, attribute)? {
                self.texts.entry(name.to_owned()).or_insert(value);
            }
        } else if name == "name"
            && path.rsplit('/').next() == Some("vars")
            && let Some(value) = text(file, attribute)?
        {
            file.spend((path.len() + value.len()) as u64)?;
            self.named.insert(path.to_owned(), value);
        }
        Ok(())
    }

    fn skip(&mut self, path: &str, why: &str) {
        self.skipped.count += 1;
        if self.skipped.listed.len() < MAX_LISTED {
            let what = format!("{} ({})", Escaped::short(path), Escaped::short(why));
            self.skipped.listed.push(what);
        }
    }

    /// Leaves attributes out that can't be read.
    ///
    /// # Errors
    /// Returns the error if it is about a checksum: the attributes are not those that were written.
    fn warn(&mut self, path: &str, error: Error) -> Result<()> {
        if error.code() == Code::Checksum {
            return Err(error.for_tensor(Escaped::short(path)));
        }
        self.warnings.push(format!("attributes of '/{}': {error}", Escaped::short(path)));
        Ok(())
    }
}

/// Returns the only text of an attribute, or `None` if it is not a single text.
fn text(file: &File<'_>, attribute: &Attribute) -> Result<Option<String>> {
    let mut texts = attribute.texts(file)?.unwrap_or_default();
    Ok(match texts.len() {
        1 => Some(String::from_utf8_lossy(&texts.swap_remove(0)).into_owned()),
        _ => None,
    })
}
