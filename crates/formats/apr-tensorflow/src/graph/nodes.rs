//! `NodeDef` and `FunctionDef`.
//!
//! ```text
//! NodeDef       1: name  2: op  3: inputs  5: attributes
//! FunctionDef   1: signature (OpDef)  3: NodeDef  4: results, by their names
//! OpDef         1: name  2: arguments  3: results      ArgDef  1: name  3: dtype
//! ```

use apr_core::Result;
use apr_core::protobuf::{Message, Walker};

/// A node, its attributes not read yet.
#[derive(Debug)]
pub(super) struct NodeDef {
    pub(super) name: String,
    pub(super) op: String,
    /// `node`, `node:1`, `node:name:0` in a function, `^node` for one that only has to run before.
    pub(super) inputs: Vec<String>,
    pub(super) attributes: Vec<Message>,
}

impl NodeDef {
    /// Reads a node.
    ///
    /// # Errors
    /// E002 for a damaged one, E007 when reading fails, E008 over the limit.
    pub(super) fn read(walker: &mut Walker<'_>, mut message: Message) -> Result<Self> {
        walker.keep(size_of::<Self>() as u64)?;
        let (mut name, mut op) = (String::new(), String::new());
        let (mut inputs, mut attributes) = (Vec::new(), Vec::new());
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => name = field.text(walker)?,
                2 => op = field.text(walker)?,
                3 => {
                    walker.keep(size_of::<String>() as u64)?;
                    inputs.push(field.text(walker)?);
                }
                5 => {
                    walker.keep(size_of::<Message>() as u64)?;
                    attributes.push(field.message()?);
                }
                _ => {}
            }
        }
        Ok(Self { name, op, inputs, attributes })
    }
}

/// A function of the library.
#[derive(Debug)]
pub(super) struct FunctionDef {
    pub(super) name: String,
    /// Names of the arguments, and their types of elements.
    pub(super) arguments: Vec<(String, u64)>,
    pub(super) nodes: Vec<NodeDef>,
    /// Names of the results, in order.
    pub(super) results: Vec<String>,
    /// Returned values, by the names of the results.
    pub(super) returns: Vec<(String, String)>,
}

impl FunctionDef {
    /// Reads a function.
    ///
    /// # Errors
    /// E002 for a damaged one, E007 when reading fails, E008 over the limit.
    pub(super) fn read(walker: &mut Walker<'_>, mut message: Message) -> Result<Self> {
        let mut function = Self {
            name: String::new(),
            arguments: Vec::new(),
            nodes: Vec::new(),
            results: Vec::new(),
            returns: Vec::new(),
        };
        walker.keep(size_of::<Self>() as u64)?;
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => function.signature(walker, field.message()?)?,
                3 => function.nodes.push(NodeDef::read(walker, field.message()?)?),
                4 => {
                    let (mut key, mut value, mut pair) =
                        (String::new(), String::new(), field.message()?);
                    while let Some(field) = pair.next(walker)? {
                        match field.number {
                            1 => key = field.text(walker)?,
                            2 => value = field.text(walker)?,
                            _ => {}
                        }
                    }
                    walker.keep(size_of::<(String, String)>() as u64)?;
                    function.returns.push((key, value));
                }
                _ => {}
            }
        }
        Ok(function)
    }

    fn signature(&mut self, walker: &mut Walker<'_>, mut message: Message) -> Result<()> {
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => self.name = field.text(walker)?,
                2 => {
                    walker.keep(size_of::<(String, u64)>() as u64)?;
                    self.arguments.push(argument(walker, field.message()?)?);
                }
                3 => {
                    walker.keep(size_of::<String>() as u64)?;
                    self.results.push(argument(walker, field.message()?)?.0);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Name and type of an `ArgDef`.
fn argument(walker: &mut Walker<'_>, mut message: Message) -> Result<(String, u64)> {
    let (mut name, mut kind) = (String::new(), 0);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => name = field.text(walker)?,
            3 => kind = field.integer()?,
            _ => {}
        }
    }
    Ok((name, kind))
}
