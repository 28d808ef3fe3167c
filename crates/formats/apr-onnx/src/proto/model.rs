//! The model.

use apr_core::protobuf::{Field, Span, Walker};
use apr_core::{ByteSource, Limits, Result};

use super::entries::{OperatorSet, Property};
use super::function::Function;
use super::graph::Graph;
use super::walk::{each, push};

/// A model: `ModelProto`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Model {
    /// Version of ONNX's file format.
    pub ir_version: Option<i64>,
    /// The operator sets that nodes refer to.
    pub opsets: Vec<OperatorSet>,
    /// The program that wrote the model.
    pub producer_name: String,
    /// Version of the program that wrote the model.
    pub producer_version: String,
    /// Reverse domain name of the model's author.
    pub domain: String,
    /// Version of the model.
    pub model_version: Option<i64>,
    /// Description for people, not read.
    pub doc: Option<Span>,
    /// Computation graph of the model.
    pub graph: Option<Graph>,
    /// Free pairs of keys and values.
    pub properties: Vec<Property>,
    /// Functions that nodes may call like operators.
    pub functions: Vec<Function>,
    /// Training information, not read.
    pub training: Vec<Span>,
    /// On which devices parts of it run, not read.
    pub devices: Vec<Span>,
}

impl Model {
    /// Reads a model, without the data of its tensors.
    ///
    /// # Errors
    /// E001 for what is no such message, E002 where it is cut off, E007 when reading fails, E008
    /// over the limits.
    pub fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Self> {
        let mut walker = Walker::new(source, limits);
        let message = walker.message();
        let mut model = Self::default();
        each(&mut walker, message, |walker, field| model.field(walker, field))?;
        Ok(model)
    }

    fn field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            1 => self.ir_version = Some(field.signed()?),
            2 => self.producer_name = field.text(walker)?,
            3 => self.producer_version = field.text(walker)?,
            4 => self.domain = field.text(walker)?,
            5 => self.model_version = Some(field.signed()?),
            6 => self.doc = Some(field.range()?),
            7 => self.graph.get_or_insert_default().merge(walker, field.message()?)?,
            _ => return self.list_field(walker, field),
        }
        Ok(())
    }

    fn list_field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            8 => {
                push(walker, &mut self.opsets, |walker| OperatorSet::read(walker, field.message()?))
            }
            14 => push(walker, &mut self.properties, |walker| {
                Property::read(walker, field.message()?)
            }),
            20 => push(walker, &mut self.training, |_| field.range()),
            25 => {
                push(walker, &mut self.functions, |walker| Function::read(walker, field.message()?))
            }
            26 => push(walker, &mut self.devices, |_| field.range()),
            _ => Ok(()),
        }
    }
}
