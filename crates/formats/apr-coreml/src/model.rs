//! A model, and those that it is made of.
//!
//! ```text
//! Model      1: version  2: description  NUMBER OF ITS TYPE: what it has of its own
//! Pipeline   1: Model  2: name        classifiers and regressors have one as field 1
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use apr_core::protobuf::{Element, Field, Message, Runs};
use apr_core::{DType, Error, Escaped, Result, counted};
use serde_json::{Map, Value, json};

use crate::description::Description;
use crate::layers::name_of;
use crate::network::{Network, list};
use crate::program::{Context, Program};
use crate::tensor::{Encoding, Tensor};
use crate::value::of_runs;

/// Names of types, by their numbers: the `Type` of `Model`.
const TYPES: &str = include_str!("types.txt");

/// Maximum nesting of pipelines.
const MAX_PIPELINES: u32 = 8;

/// A weight that was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) tensor: Arc<Tensor>,
    /// Storage form of the weight, unless it is stored plainly.
    pub(crate) made_by: Option<String>,
}

/// Content of a model.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) weights: Vec<Found>,
    pub(crate) fields: Map<String, Value>,
    pub(crate) settings: Vec<String>,
    pub(crate) refused: Vec<Error>,
    pub(crate) left_out: Vec<String>,
    /// Networks and programs, which are graphs.
    pub(crate) graphs: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// Parts of a model, from the fields of its message.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) version: u64,
    pub(crate) description: Option<Message>,
    pub(crate) own: Option<Field>,
}

impl Parts {
    pub(crate) fn read(
        walker: &mut apr_core::protobuf::Walker<'_>,
        mut message: Message,
    ) -> Result<Self> {
        let mut parts = Self::default();
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => parts.version = field.integer()?,
                2 => parts.description = Some(field.message()?),
                200.. => parts.own = Some(field),
                _ => {}
            }
        }
        Ok(parts)
    }

    /// Returns the name of the model type.
    pub(crate) fn type_name(&self) -> String {
        let number = self.own.map_or(0, |field| field.number);
        name_of(TYPES, number).map_or_else(|| format!("type {number}"), str::to_owned)
    }
}

/// Calls for each model of a pipeline, with its name.
pub(crate) fn pipeline(
    walker: &mut apr_core::protobuf::Walker<'_>,
    own: &Field,
) -> Result<Vec<(String, Message)>> {
    let mut message = own.message()?;
    if own.number != PIPELINE {
        let mut inner = None;
        while let Some(field) = message.next(walker)? {
            if field.number == 1 {
                inner = Some(field.message()?);
            }
        }
        let Some(found) = inner else { return Ok(Vec::new()) };
        message = found;
    }
    let (mut models, mut names) = (Vec::new(), Vec::new());
    while let Some(field) = message.next(walker)? {
        walker.keep(size_of::<(String, Message)>() as u64)?;
        match field.number {
            1 => models.push(field.message()?),
            2 => names.push(field.text(walker)?),
            _ => {}
        }
    }
    let mut names = names.into_iter();
    let name = |number| format!("model{number}");
    let models = models.into_iter().enumerate();
    Ok(models
        .map(|(number, model)| (names.next().unwrap_or_else(|| name(number)), model))
        .collect())
}

/// A pipeline without a result of its own.
pub(crate) const PIPELINE: u32 = 202;

impl Contents {
    /// Reads a model; the names of its weights begin with `prefix`.
    ///
    /// # Errors
    /// E001 for what is none and for pipelines that are too deep, E002 for a damaged one, E003 for
    /// a program of an older schema, E007 when reading fails, E008 over the limit.
    pub(crate) fn add(
        &mut self,
        context: &mut Context<'_, '_, '_, '_>,
        message: Message,
        prefix: &str,
        depth: u32,
    ) -> Result<Map<String, Value>> {
        if depth > MAX_PIPELINES {
            let message = format!("more than {MAX_PIPELINES} pipelines are in each other");
            return Err(Error::format(message));
        }
        let parts = Parts::read(context.walker, message)?;
        let mut fields = Map::new();
        let kind = parts.type_name();
        fields.insert("type".into(), kind.clone().into());
        fields.insert("specification".into(), parts.version.into());
        let description = parts.description;
        let description =
            description.map(|message| Description::read(context.walker, message)).transpose()?;
        let Description { fields: described, default_function } = description.unwrap_or_default();
        fields.extend(described);
        let Some(own) = parts.own else {
            self.left_out.push("the model, which has no type".to_owned());
            return Ok(fields);
        };

        if let 400..=403 = own.number {
            let labels = labels(context, &own)?;
            if !labels.is_empty() {
                fields.insert("labels".into(), labels.into());
            }
        }
        match own.number {
            200..=202 => {
                let mut models = Vec::new();
                for (name, model) in pipeline(context.walker, &own)? {
                    context.walker.keep((prefix.len() + name.len()) as u64)?;
                    let inner = format!("{prefix}{name}/");
                    let mut fields = self.add(context, model, &inner, depth + 1)?;
                    fields.insert("name".into(), name.into());
                    models.push(fields);
                }
                fields.insert("models".into(), models.into());
            }
            303 | 403 | 500 => {
                let mut network = Network::default();
                network.add(context.walker, own.message()?, prefix, context.limits)?;
                self.weights.append(&mut network.weights);
                self.warnings.append(&mut network.warnings);
                self.refused.append(&mut network.refused);
                self.count(&mut fields, &network.layers, prefix, "network", "layer");
            }
            502 => {
                let mut program = Program::read(context, own.message()?, &default_function)?;
                program.prefix(prefix);
                self.weights.append(&mut program.weights);
                self.settings.append(&mut program.settings);
                self.refused.append(&mut program.refused);
                if !program.labels.is_empty() {
                    fields.insert("labels".into(), std::mem::take(&mut program.labels).into());
                }
                self.count(&mut fields, &program.operations, prefix, "program", "operation");
            }
            300 | 400 => self.add_linear(context, &own, prefix)?,
            302 | 402 => {
                let nodes = tree_nodes(context, &own)?;
                fields.insert("nodes".into(), nodes.into());
                let nodes = counted(nodes, "node");
                self.left_out.push(of(prefix, &format!("the trees of {nodes} ({kind})")));
            }
            _ => self.left_out.push(of(prefix, &format!("the model of type {kind}"))),
        }
        Ok(fields)
    }

    fn count(
        &mut self,
        fields: &mut Map<String, Value>,
        operators: &BTreeMap<String, u64>,
        prefix: &str,
        what: &str,
        one: &str,
    ) {
        let total: u64 = operators.values().sum();
        if total > 0 {
            self.graphs.push(of(prefix, &format!("the {what} of {}", counted(total, one))));
            fields.insert("operators".into(), json!(operators));
        }
    }

    /// The weights of a generalized linear model: a list for each class, and the offsets.
    fn add_linear(
        &mut self,
        context: &mut Context<'_, '_, '_, '_>,
        own: &Field,
        prefix: &str,
    ) -> Result<()> {
        let walker = &mut *context.walker;
        let (mut message, mut offsets, mut lists) = (own.message()?, Runs::default(), Vec::new());
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => {
                    let mut runs = Runs::default();
                    let mut list = field.message()?;
                    while let Some(field) = list.next(walker)? {
                        if field.number == 1 {
                            runs.add(walker, &field, Element::Fixed64)?;
                        }
                    }
                    walker.keep(size_of::<Found>() as u64)?;
                    lists.push((format!("{prefix}weights.{}", lists.len()), runs));
                }
                2 => offsets.add(walker, &field, Element::Fixed64)?,
                _ => {}
            }
        }
        lists.push((format!("{prefix}offset"), offsets));
        for (name, runs) in lists.into_iter().filter(|(_, runs)| !runs.runs().is_empty()) {
            let bytes = of_runs(walker, &runs, Element::Fixed64, own.range()?)?;
            let tensor = Arc::new(list(bytes, Encoding::Whole(DType::F64))?);
            self.weights.push(Found { name, tensor, made_by: None });
        }
        Ok(())
    }
}

impl Program {
    /// Puts the name of a pipeline's model in front of all names.
    fn prefix(&mut self, prefix: &str) {
        if prefix.is_empty() {
            return;
        }
        let names = self.weights.iter_mut().map(|found| &mut found.name);
        names.chain(&mut self.settings).for_each(|name| name.insert_str(0, prefix));
        for error in &mut self.refused {
            let name = format!("{prefix}{}", error.tensor().unwrap_or_default());
            *error = Error::version(error.message()).for_tensor(name);
        }
    }
}

/// Adds the model of a pipeline to the description of an omitted part.
fn of(prefix: &str, what: &str) -> String {
    match prefix.strip_suffix('/') {
        None => what.to_owned(),
        Some(model) => format!("{what} of '{}'", Escaped::short(model)),
    }
}

/// Returns the class labels of a classifier: texts or integers.
fn labels(context: &mut Context<'_, '_, '_, '_>, own: &Field) -> Result<Vec<Value>> {
    let walker = &mut *context.walker;
    let (mut message, mut labels) = (own.message()?, Vec::new());
    while let Some(field) = message.next(walker)? {
        if !matches!(field.number, 100 | 101) {
            continue;
        }
        let mut list = field.message()?;
        while let Some(label) = list.next(walker)? {
            walker.keep(size_of::<Value>() as u64)?;
            match (field.number, label.number) {
                (100, 1) => labels.push(label.text(walker)?.into()),
                (101, 1) => {
                    let mut numbers = Vec::new();
                    label.integers(walker, &mut numbers)?;
                    labels.extend(numbers.into_iter().map(Value::from));
                }
                _ => {}
            }
        }
    }
    Ok(labels)
}

/// Returns the total number of nodes of the trees.
fn tree_nodes(context: &mut Context<'_, '_, '_, '_>, own: &Field) -> Result<u64> {
    let (mut message, mut nodes) = (own.message()?, 0);
    while let Some(field) = message.next(context.walker)? {
        if field.number == 1 {
            let mut trees = field.message()?;
            while let Some(field) = trees.next(context.walker)? {
                nodes += u64::from(field.number == 1);
            }
        }
    }
    Ok(nodes)
}
