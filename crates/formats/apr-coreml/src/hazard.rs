//! What of a model runs code of the program that loads it, or reads files that are not its own.

use apr_core::protobuf::{Field, Message, Walker};
use apr_core::{ByteSource, Limits, Result, relative_path};

use crate::blob::FOLDER;
use crate::layers::NESTED;
use crate::model::{Parts, pipeline};

/// The number of custom layers among the kinds of layers.
const CUSTOM_LAYER: u32 = 500;

/// The type of operations in programs that are a layer of the program that loads the model.
const CUSTOM_OPERATION: &str = "custom_layer";

/// Maximum nesting of pipelines and of blocks of programs.
const MAX_DEPTH: u32 = 64;

/// Maximum number of listed hazards.
const MOST: usize = 100;

/// Kind of a hazard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HazardKind {
    /// A layer that a class of the loading program computes.
    CustomLayer,
    /// A model that a class of the loading program computes.
    CustomModel,
    /// Another model, which is loaded by its name and a search path.
    LinkedModel,
    /// A file of weights that is not in the model's folder.
    OutsideFile,
}

/// Something of a model that is not computed by Core ML itself, or is not in its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hazard {
    /// Kind of the hazard.
    pub kind: HazardKind,
    /// The path of names to it: models of pipelines, then the layer or variable; empty for the
    /// model itself.
    pub path: String,
    /// The name of the class, model or file.
    pub name: String,
}

/// Lists custom layers and models, linked models, and files outside the model's folder: at most a
/// hundred.
///
/// ```
/// use apr_coreml::{HazardKind, hazards};
///
/// // A custom model (field 555), whose class is "Mine".
/// let model = b"\x08\x01\xda\x22\x06\x52\x04Mine".to_vec();
/// let found = hazards(&model, &apr_core::Limits::default())?;
/// assert_eq!((found[0].kind, found[0].name.as_str()), (HazardKind::CustomModel, "Mine"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 and E002 for what is no model, E007 when reading fails, E008 over the limit.
pub fn hazards(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<Hazard>> {
    let mut search = Search { walker: Walker::new(source, limits), found: Vec::new() };
    let message = search.walker.message();
    search.model(message, "", 0)?;
    Ok(search.found)
}

struct Search<'a> {
    walker: Walker<'a>,
    found: Vec<Hazard>,
}

impl Search<'_> {
    fn push(&mut self, kind: HazardKind, path: &str, name: String) {
        if self.found.len() < MOST {
            self.found.push(Hazard { kind, path: path.trim_end_matches('/').to_owned(), name });
        }
    }

    fn model(&mut self, message: Message, path: &str, depth: u32) -> Result<()> {
        let parts = Parts::read(&mut self.walker, message)?;
        let Some(own) = parts.own else { return Ok(()) };
        match own.number {
            200..=202 if depth < MAX_DEPTH => {
                for (name, model) in pipeline(&mut self.walker, &own)? {
                    self.model(model, &format!("{path}{name}/"), depth + 1)?;
                }
                Ok(())
            }
            303 | 403 | 500 => self.network(own.message()?, path, depth),
            502 => self.functions(own.message()?, path),
            555 => {
                let name = self.text_of(&own, &[10])?;
                self.push(HazardKind::CustomModel, path, name);
                Ok(())
            }
            556 => {
                let file = self.text_of(&own, &[1, 1, 1])?;
                let folder = self.text_of(&own, &[1, 2, 1])?;
                let name = if folder.is_empty() { file } else { format!("{folder}/{file}") };
                self.push(HazardKind::LinkedModel, path, name);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn network(&mut self, mut message: Message, path: &str, depth: u32) -> Result<()> {
        while let Some(field) = message.next(&mut self.walker)? {
            if field.number != 1 {
                continue;
            }
            let (mut layer, mut name, mut own) = (field.message()?, String::new(), None);
            while let Some(field) = layer.next(&mut self.walker)? {
                match field.number {
                    1 => name = field.text(&mut self.walker)?,
                    100.. => own = Some(field),
                    _ => {}
                }
            }
            let Some(own) = own else { continue };
            let path = format!("{path}{name}/");
            if own.number == CUSTOM_LAYER {
                let class = self.text_of(&own, &[10])?;
                self.push(HazardKind::CustomLayer, &path, class);
            }
            for (_, number, branch) in NESTED.iter().filter(|(of, ..)| *of == own.number) {
                let mut message = own.message()?;
                while let Some(field) = message.next(&mut self.walker)? {
                    if field.number == *number && depth < MAX_DEPTH {
                        self.network(field.message()?, &format!("{path}{branch}/"), depth + 1)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The functions of a program, each with blocks by the version of its operations.
    fn functions(&mut self, mut program: Message, path: &str) -> Result<()> {
        while let Some(field) = program.next(&mut self.walker)? {
            if field.number == 2 {
                let mut entry = field.message()?;
                while let Some(field) = entry.next(&mut self.walker)? {
                    if field.number == 2 {
                        let mut function = field.message()?;
                        while let Some(field) = function.next(&mut self.walker)? {
                            if field.number == 3 {
                                self.entry_block(&field, path)?;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn entry_block(&mut self, field: &Field, path: &str) -> Result<()> {
        let mut entry = field.message()?;
        while let Some(field) = entry.next(&mut self.walker)? {
            if field.number == 2 {
                self.block(field.message()?, path, 0)?;
            }
        }
        Ok(())
    }

    fn block(&mut self, mut block: Message, path: &str, depth: u32) -> Result<()> {
        while let Some(field) = block.next(&mut self.walker)? {
            if field.number == 3 {
                self.operation(field.message()?, path, depth)?;
            }
        }
        Ok(())
    }

    fn operation(&mut self, mut message: Message, path: &str, depth: u32) -> Result<()> {
        let (mut kind, mut name) = (String::new(), String::new());
        let (mut class, mut files) = (None, Vec::new());
        while let Some(field) = message.next(&mut self.walker)? {
            match field.number {
                1 => kind = field.text(&mut self.walker)?,
                3 => name = self.text_of(&field, &[1])?,
                4 if depth < MAX_DEPTH => self.block(field.message()?, path, depth + 1)?,
                2 | 5 => {
                    let key = self.text_of(&field, &[1])?;
                    // An attribute is a value, an input is bound to several.
                    let at: &[u32] = if field.number == 5 { &[2] } else { &[2, 1, 2] };
                    let file = self.text_of(&field, &[at, &[5, 1]].concat())?;
                    if is_outside(&file) {
                        files.push(file);
                    }
                    if key == "class_name" {
                        class = Some(self.text_of(&field, &[at, &[3, 1, 4, 1]].concat())?);
                    }
                }
                _ => {}
            }
        }
        let path = format!("{path}{name}");
        if kind == CUSTOM_OPERATION {
            self.push(HazardKind::CustomLayer, &path, class.unwrap_or_default());
        }
        for file in files {
            self.push(HazardKind::OutsideFile, &path, file);
        }
        Ok(())
    }

    /// Returns the text at the end of a path of fields, or an empty string if there is none.
    fn text_of(&mut self, field: &Field, path: &[u32]) -> Result<String> {
        let Some((number, rest)) = path.split_first() else {
            return field.text(&mut self.walker);
        };
        let (mut message, mut text) = (field.message()?, String::new());
        while let Some(inner) = message.next(&mut self.walker)? {
            if inner.number == *number && text.is_empty() {
                text = self.text_of(&inner, rest)?;
            }
        }
        Ok(text)
    }
}

/// Returns `true` if a weights file is outside the model's folder.
fn is_outside(name: &str) -> bool {
    let relative = name.strip_prefix(FOLDER).unwrap_or(name);
    !name.is_empty() && relative_path(relative).is_err()
}
