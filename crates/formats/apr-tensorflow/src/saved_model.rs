//! What a SavedModel says beside its variables: signatures, assets, the graph.
//!
//! ```text
//! SavedModel     2: MetaGraphDef
//! MetaGraphDef   1: MetaInfoDef (4: tag  5: version)  2: GraphDef
//!                5: signatures, by their names  6: assets (2: file)
//! SignatureDef   1: inputs  2: outputs  3: method       TensorInfo  1: name 2: dtype 3: shape
//! ```

use apr_core::protobuf::{Message, Walker};
use apr_core::{Error, Limits, Result};
use serde_json::{Map, Value, json};

use crate::constants::Graph;
use crate::dtype;

/// The first graph of a SavedModel, and the file's metadata about it.
#[derive(Debug, Default)]
pub(crate) struct SavedModel {
    pub(crate) graph: Graph,
    pub(crate) fields: Map<String, Value>,
    /// Files in the folder `assets`.
    pub(crate) assets: Vec<String>,
    /// Tags of further graphs.
    pub(crate) others: Vec<String>,
}

impl SavedModel {
    /// Reads a `SavedModel`.
    ///
    /// # Errors
    /// E001 for what is none, E002 for a damaged one, E007 when reading fails, E008 over the limit.
    pub(crate) fn read(walker: &mut Walker<'_>, limits: &Limits) -> Result<Self> {
        let mut model = Self::default();
        let mut message = walker.message();
        let mut is_first = true;
        while let Some(field) = message.next(walker)? {
            if field.number != 2 {
                continue;
            }
            if is_first {
                model.read_graph(walker, field.message()?, limits)?;
                is_first = false;
            } else {
                let mut graph = field.message()?;
                while let Some(field) = graph.next(walker)? {
                    if field.number == 1 {
                        let (tags, _) = info(walker, field.message()?)?;
                        model.others.push(tags.join(", "));
                    }
                }
            }
        }
        Ok(model)
    }

    /// Returns the first graph of a `SavedModel`, and the file's metadata about it.
    ///
    /// # Errors
    /// E001 if the file is not a SavedModel, E002 for a damaged one, E007 when reading fails, E008
    /// over the limit.
    pub(crate) fn graph_message(walker: &mut Walker<'_>) -> Result<(Message, Map<String, Value>)> {
        let mut model = Self::default();
        let mut message = walker.message();
        while let Some(field) = message.next(walker)? {
            if field.number != 2 {
                continue;
            }
            let mut graph = None;
            model.read_fields(walker, field.message()?, &mut |_, message| {
                graph = Some(message);
                Ok(())
            })?;
            if let Some(graph) = graph {
                return Ok((graph, model.fields));
            }
        }
        Err(Error::format("the file has no graph"))
    }

    fn read_graph(
        &mut self,
        walker: &mut Walker<'_>,
        message: Message,
        limits: &Limits,
    ) -> Result<()> {
        let mut graph = Graph::default();
        self.read_fields(walker, message, &mut |walker, message| {
            graph = Graph::read(walker, message, limits)?;
            Ok(())
        })?;
        self.graph = graph;
        Ok(())
    }

    fn read_fields(
        &mut self,
        walker: &mut Walker<'_>,
        mut message: Message,
        graph: &mut dyn FnMut(&mut Walker<'_>, Message) -> Result<()>,
    ) -> Result<()> {
        let mut signatures = Map::new();
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => {
                    let (tags, version) = info(walker, field.message()?)?;
                    self.fields.insert("tags".into(), tags.into());
                    self.fields.extend(version.map(|version| ("version".into(), version.into())));
                }
                2 => graph(walker, field.message()?)?,
                5 => {
                    let (name, signature) = pair(walker, field.message()?)?;
                    if let Some(signature) = signature {
                        signatures.insert(name, read_signature(walker, signature)?);
                    }
                }
                6 => {
                    let mut asset = field.message()?;
                    while let Some(field) = asset.next(walker)? {
                        if field.number == 2 {
                            self.assets.push(field.text(walker)?);
                        }
                    }
                }
                _ => {}
            }
        }
        if !signatures.is_empty() {
            self.fields.insert("signatures".into(), signatures.into());
        }
        if !self.assets.is_empty() {
            self.fields.insert("assets".into(), self.assets.clone().into());
        }
        Ok(())
    }
}

/// Tags, and the version of TensorFlow.
fn info(walker: &mut Walker<'_>, mut message: Message) -> Result<(Vec<String>, Option<String>)> {
    let (mut tags, mut version) = (Vec::new(), None);
    while let Some(field) = message.next(walker)? {
        match field.number {
            4 => tags.push(field.text(walker)?),
            5 => version = Some(field.text(walker)?),
            _ => {}
        }
    }
    Ok((tags, version))
}

/// Key and value of a map's entry.
fn pair(walker: &mut Walker<'_>, mut message: Message) -> Result<(String, Option<Message>)> {
    let (mut key, mut value) = (String::new(), None);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => key = field.text(walker)?,
            2 => value = Some(field.message()?),
            _ => {}
        }
    }
    Ok((key, value))
}

fn read_signature(walker: &mut Walker<'_>, mut message: Message) -> Result<Value> {
    let (mut inputs, mut outputs) = (Map::new(), Map::new());
    while let Some(field) = message.next(walker)? {
        let side = match field.number {
            1 => &mut inputs,
            2 => &mut outputs,
            _ => continue,
        };
        let (name, tensor) = pair(walker, field.message()?)?;
        if let Some(tensor) = tensor {
            side.insert(name, read_tensor_info(walker, tensor)?);
        }
    }
    Ok(json!({ "inputs": inputs, "outputs": outputs }))
}

/// Name, dtype and shape of an input or output; sizes that are not known are -1.
fn read_tensor_info(walker: &mut Walker<'_>, mut message: Message) -> Result<Value> {
    let mut info = Map::new();
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => drop(info.insert("name".into(), field.text(walker)?.into())),
            2 => drop(info.insert("dtype".into(), dtype::name(field.integer()?).into())),
            3 => {
                let (mut shape, mut dims) = (Vec::new(), field.message()?);
                while let Some(field) = dims.next(walker)? {
                    if field.number == 2 {
                        let (mut size, mut dim) = (0, field.message()?);
                        while let Some(field) = dim.next(walker)? {
                            size = if field.number == 1 { field.signed()? } else { size };
                        }
                        walker.keep(8)?;
                        shape.push(size);
                    }
                }
                info.insert("shape".into(), shape.into());
            }
            _ => {}
        }
    }
    Ok(info.into())
}
