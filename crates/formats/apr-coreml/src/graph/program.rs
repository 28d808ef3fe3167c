//! The operations of a program.
//!
//! ```text
//! Program     2: function (1: name, 2: Function)
//! Function    1: input (1: name  2: type)  2: opset  3: block for an opset (1: opset, 2: Block)
//! Block       1: input (1: name  2: type)  2: name of an output  3: Operation
//! Operation   1: kind  2: input (1: name, 2: Argument)  3: output (1: name  2: type)  4: Block
//!             5: attribute (1: name, 2: Value)
//! Argument    1: binding (1: name, or 2: Value)
//! Value       2: type  3: immediate (1: tensor (1: floats  2: integers  3: bools  4: texts
//!             5: long integers  6: doubles  7: bytes; each 1: values))
//! ```

use apr_core::protobuf::{Message, Walker};
use apr_core::{Error, Result};
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, ConstantData, Dim, ElementType, ValueId,
    ValueOrigin, ValueType, WeightRef,
};

use super::frames::Frames;
use super::types::value_type;
use super::{Tensors, type_of};

/// Blocks in each other, at most.
const MAX_DEPTH: usize = 16;

/// Memory charged for an operation in bytes, besides its texts.
const EACH: u64 = 512;

/// The bodies of a program's functions; the name of the only one, or of `main`, is empty.
///
/// # Errors
/// E001 for blocks that are too deep, E002 for a damaged program, E007 when reading fails, E008
/// over the limit.
pub(super) fn bodies(
    walker: &mut Walker<'_>,
    mut message: Message,
    prefix: &str,
    tensors: &Tensors<'_>,
) -> Result<Vec<(String, Body)>> {
    let mut functions = Vec::new();
    while let Some(field) = message.next(walker)? {
        if field.number == 2 {
            walker.keep(EACH)?;
            functions.push(entry(walker, field.message()?)?);
        }
    }
    let is_only = functions.len() == 1;
    let mut bodies = Vec::new();
    for (name, function) in functions {
        let Some(function) = function else { continue };
        let name = if is_only || name == "main" { String::new() } else { name };
        let own = if name.is_empty() { prefix.to_owned() } else { format!("{prefix}{name}/") };
        let mut program = Program { frames: Frames::default(), prefix: &own, tensors };
        let body = program.function(walker, function)?;
        bodies.push((name, body));
    }
    Ok(bodies)
}

/// The key of a map's entry, and its value.
fn entry(walker: &mut Walker<'_>, mut message: Message) -> Result<(String, Option<Message>)> {
    let (mut name, mut value) = (String::new(), None);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => name = field.text(walker)?,
            2 => value = Some(field.message()?),
            _ => {}
        }
    }
    Ok((name, value))
}

struct Program<'p> {
    frames: Frames,
    /// Prefix of the names of weights.
    prefix: &'p str,
    tensors: &'p Tensors<'p>,
}

impl Program<'_> {
    fn function(&mut self, walker: &mut Walker<'_>, mut message: Message) -> Result<Body> {
        let (mut opset, mut blocks, mut inputs) = (String::new(), Vec::new(), Vec::new());
        while let Some(field) = message.next(walker)? {
            walker.keep(size_of::<Message>() as u64)?;
            match field.number {
                1 => inputs.push(named_type(walker, field.message()?)?),
                2 => opset = field.text(walker)?,
                3 => blocks.push(entry(walker, field.message()?)?),
                _ => {}
            }
        }
        let own = blocks.iter().position(|(name, _)| *name == opset).unwrap_or(0);
        let Some((_, Some(block))) = blocks.get(own) else {
            return Err(Error::version("a function has no operations"));
        };
        self.block(walker, *block, inputs)
    }

    fn block(
        &mut self,
        walker: &mut Walker<'_>,
        message: Message,
        inputs: Vec<(String, ValueType)>,
    ) -> Result<Body> {
        if self.frames.depth() > MAX_DEPTH {
            return Err(Error::format(format!("more than {MAX_DEPTH} blocks are in each other")));
        }
        self.frames.open();
        let made = self.fill(walker, message, inputs);
        let body = self.frames.close();
        made.map(|()| body)
    }

    fn fill(
        &mut self,
        walker: &mut Walker<'_>,
        mut message: Message,
        inputs: Vec<(String, ValueType)>,
    ) -> Result<()> {
        for (name, kind) in inputs {
            self.frames.input(&name, kind);
        }
        let mut outputs = Vec::new();
        while let Some(field) = message.next(walker)? {
            walker.keep(EACH)?;
            match field.number {
                1 => {
                    let (name, kind) = named_type(walker, field.message()?)?;
                    self.frames.input(&name, kind);
                }
                2 => outputs.push(field.text(walker)?),
                3 => self.operation(walker, field.message()?)?,
                _ => {}
            }
        }
        outputs.iter().for_each(|name| self.frames.output(name));
        Ok(())
    }

    fn operation(&mut self, walker: &mut Walker<'_>, mut message: Message) -> Result<()> {
        let (mut kind, mut name) = (String::new(), None);
        let (mut arguments, mut outputs, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        let (mut attributes, mut value) = (Vec::new(), None);
        while let Some(field) = message.next(walker)? {
            walker.keep(size_of::<(String, Message)>() as u64)?;
            match field.number {
                1 => kind = field.text(walker)?,
                2 => arguments.push(entry(walker, field.message()?)?),
                3 => outputs.push(named_type(walker, field.message()?)?),
                4 => blocks.push(field.message()?),
                5 => {
                    let (own, found) = entry(walker, field.message()?)?;
                    let read = found.map(|found| constant(walker, found)).transpose()?.flatten();
                    match (own.as_str(), read) {
                        ("name", Some(read)) => name = text(&read),
                        ("val", read) => value = read,
                        (own, Some(read)) => attributes.extend(shown(own, read)),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        if (kind == "const" || kind.starts_with("constexpr_"))
            && let [(name, of)] = outputs.as_slice()
        {
            let tensor = format!("{}{name}", self.prefix);
            let made = match (self.tensors.get(tensor.as_str()), value) {
                (Some(info), _) => {
                    Some((type_of(info), ValueOrigin::Weight(WeightRef::whole(tensor))))
                }
                (None, value) => value.map(|value| (of.clone(), ValueOrigin::Constant(value))),
            };
            if let Some((of, origin)) = made {
                self.frames.add(name, of, origin);
                return Ok(());
            }
        }

        let (mut inputs, mut parameters) = (Vec::new(), Vec::new());
        for (parameter, argument) in arguments {
            let Some(argument) = argument else { continue };
            for input in self.bindings(walker, &parameter, argument, &mut attributes)? {
                inputs.push(Some(input));
                parameters.push(parameter.clone().into_bytes());
            }
        }
        if !parameters.is_empty() {
            let value = AttributeValue::Texts(parameters);
            attributes.push(Attribute { name: "parameters".into(), value });
        }
        for (number, block) in blocks.into_iter().enumerate() {
            let body = self.block(walker, block, Vec::new())?;
            let name = format!("block{number}");
            attributes.push(Attribute { name: name.as_str().into(), value: body.into() });
        }
        let made: Vec<_> = outputs
            .iter()
            .map(|(name, kind)| Some(self.frames.add(name, kind.clone(), ValueOrigin::Missing)))
            .collect();
        let name = name.or_else(|| outputs.first().map(|(name, _)| name.clone()));
        self.frames.node(&name.unwrap_or_default(), &kind, inputs, made, attributes);
        Ok(())
    }

    /// The values that a parameter is bound to; numbers that are given there are attributes.
    fn bindings(
        &mut self,
        walker: &mut Walker<'_>,
        parameter: &str,
        mut argument: Message,
        attributes: &mut Vec<Attribute>,
    ) -> Result<Vec<ValueId>> {
        let mut values = Vec::new();
        while let Some(field) = argument.next(walker)? {
            if field.number != 1 {
                continue;
            }
            walker.keep(EACH)?;
            let mut binding = field.message()?;
            while let Some(field) = binding.next(walker)? {
                match field.number {
                    1 => {
                        let name = field.text(walker)?;
                        values.push(self.frames.find(&name));
                    }
                    2 => {
                        let is_twice = attributes.iter().any(|own| &*own.name == parameter);
                        let shown = constant(walker, field.message()?)?
                            .and_then(|constant| shown(parameter, constant));
                        // What is not shown is there, and a lowering asks for it.
                        let shown = shown.unwrap_or_else(|| Attribute {
                            name: parameter.into(),
                            value: AttributeValue::Texts(Vec::new()),
                        });
                        attributes.extend(Some(shown).filter(|_| !is_twice));
                    }
                    _ => {}
                }
            }
        }
        Ok(values)
    }
}

/// Name and type of an input or output.
fn named_type(walker: &mut Walker<'_>, mut message: Message) -> Result<(String, ValueType)> {
    let (mut name, mut kind) = (String::new(), ValueType::Unknown);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => name = field.text(walker)?,
            2 => kind = value_type(walker, field.message()?)?,
            _ => {}
        }
    }
    Ok((name, kind))
}

/// A value that is given in the program itself; `None` for one in a file, and for lists.
fn constant(walker: &mut Walker<'_>, mut message: Message) -> Result<Option<Constant>> {
    let (mut kind, mut tensor) = (ValueType::Unknown, None);
    while let Some(field) = message.next(walker)? {
        match field.number {
            2 => kind = value_type(walker, field.message()?)?,
            3 => {
                let mut immediate = field.message()?;
                while let Some(field) = immediate.next(walker)? {
                    tensor = if field.number == 1 { Some(field.message()?) } else { tensor };
                }
            }
            _ => {}
        }
    }
    let Some(mut tensor) = tensor else { return Ok(None) };
    let ValueType::Tensor(of) = kind else { return Ok(None) };
    let (Some(element), Some(shape)) = (of.element, of.shape) else { return Ok(None) };
    let shape: Option<Vec<u64>> = shape.iter().map(Dim::size).collect();
    let Some(shape) = shape else { return Ok(None) };
    let mut data = ConstantData::Bytes(Vec::new());
    while let Some(field) = tensor.next(walker)? {
        data = values(walker, field.number, field.message()?, element)?;
    }
    // A list that has other elements than its type says is not shown.
    let count = shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size));
    let fits = match (&data, count) {
        (_, None) => false,
        (ConstantData::Texts(texts), Some(count)) => texts.len() as u64 == count,
        (ConstantData::Bytes(bytes), Some(count)) => {
            element.stored_len(count) == Some(bytes.len() as u64)
        }
    };
    Ok(fits.then(|| Constant { name: String::new(), element, shape, data }))
}

/// The values of a list, as elements of a type.
fn values(
    walker: &mut Walker<'_>,
    list: u32,
    mut message: Message,
    element: ElementType,
) -> Result<ConstantData> {
    let (mut bytes, mut texts) = (Vec::new(), Vec::new());
    while let Some(field) = message.next(walker)? {
        if field.number != 1 {
            continue;
        }
        match list {
            1 => {
                let mut floats = Vec::new();
                field.floats(walker, &mut floats)?;
                bytes.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
            }
            2 | 3 | 5 => {
                let mut numbers = Vec::new();
                field.integers(walker, &mut numbers)?;
                let width = usize::try_from(element.bits() / 8).unwrap_or(8).clamp(1, 8);
                bytes.extend(
                    numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(width)),
                );
            }
            4 => {
                walker.keep(size_of::<Vec<u8>>() as u64)?;
                texts.push(field.bytes(walker)?);
            }
            7 => bytes = field.bytes(walker)?,
            _ => {}
        }
    }
    Ok(if texts.is_empty() { ConstantData::Bytes(bytes) } else { ConstantData::Texts(texts) })
}

/// A constant that is one text.
fn text(constant: &Constant) -> Option<String> {
    match &constant.data {
        ConstantData::Texts(texts) => String::from_utf8(texts.first()?.clone()).ok(),
        ConstantData::Bytes(_) => None,
    }
}

/// A constant as an attribute.
fn shown(name: &str, constant: Constant) -> Option<Attribute> {
    let value = match (&constant.data, constant.element) {
        (ConstantData::Texts(texts), _) if constant.shape.is_empty() => {
            AttributeValue::Text(texts.first()?.clone())
        }
        (ConstantData::Texts(texts), _) => AttributeValue::Texts(texts.clone()),
        (_, ElementType::F32) if constant.shape.is_empty() => {
            AttributeValue::Float(*constant.as_floats()?.first()?)
        }
        (_, ElementType::I32 | ElementType::I64 | ElementType::Bool) => {
            let ints = constant.as_ints()?;
            match (constant.shape.is_empty(), ints.as_slice()) {
                (true, [int]) => AttributeValue::Int(*int),
                _ => AttributeValue::Ints(ints),
            }
        }
        _ => AttributeValue::Tensor(constant),
    };
    Some(Attribute { name: name.into(), value })
}
