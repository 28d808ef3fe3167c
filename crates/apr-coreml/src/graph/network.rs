//! The layers of a network.
//!
//! ```text
//! NeuralNetworkLayer   1: name  2: inputs  3: outputs  5: types of outputs (1: rank  2: sizes)
//!                      NUMBER OF ITS KIND: what it has of its own
//! ```

use std::collections::BTreeSet;

use apr_core::protobuf::{Field, Message, Value, Walker};
use apr_core::{Error, Result};
use apr_graph::{Attribute, AttributeValue, Body, ElementType, ValueOrigin, ValueType, WeightRef};

use super::frames::Frames;
use super::types::{Ends, shaped};
use crate::layers::{NAMES, NESTED, name_of};

/// Fields of each kind of layer: `NUMBER name:number:kind`; an enumeration's kind is its members.
const FIELDS: &str = include_str!("fields.txt");

/// Fields of a layer below this one are those that all have.
const FIRST_KIND: u32 = 100;

/// Networks in each other, at most.
const MAX_DEPTH: usize = 16;

/// The body of a network.
///
/// # Errors
/// E001 for networks that are too deep, E002 for a damaged one, E007 when reading fails, E008 over
/// the limit.
pub(super) fn body(
    walker: &mut Walker<'_>,
    message: Message,
    ends: &Ends,
    prefix: &str,
    tensors: &BTreeSet<&str>,
) -> Result<Body> {
    let mut network = Network { frames: Frames::default(), tensors };
    network.frames.open();
    for (name, kind) in &ends.inputs {
        network.frames.input(name, kind.clone());
    }
    network.layers(walker, message, prefix)?;
    for name in ends.outputs.iter().filter(|name| !name.is_empty()) {
        // A classifier's outputs are classes and scores, which no layer makes.
        if network.frames.knows(name) {
            network.frames.output(name);
        }
    }
    Ok(network.frames.close())
}

struct Network<'t> {
    frames: Frames,
    tensors: &'t BTreeSet<&'t str>,
}

impl Network<'_> {
    fn layers(
        &mut self,
        walker: &mut Walker<'_>,
        mut message: Message,
        prefix: &str,
    ) -> Result<()> {
        if self.frames.depth() > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} networks are in each other");
            return Err(Error::format(message));
        }
        while let Some(field) = message.next(walker)? {
            if field.number == 1 {
                self.layer(walker, field.message()?, prefix)?;
            }
        }
        Ok(())
    }

    fn layer(&mut self, walker: &mut Walker<'_>, mut message: Message, prefix: &str) -> Result<()> {
        /// What a layer costs of the limit, besides its texts.
        const EACH: u64 = 512;

        walker.keep(EACH)?;
        let (mut name, mut own) = (String::new(), None);
        let (mut inputs, mut outputs, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => name = field.text(walker)?,
                2 => inputs.push(field.text(walker)?),
                3 => outputs.push(field.text(walker)?),
                5 => kinds.push(output_type(walker, field.message()?)?),
                FIRST_KIND.. => own = Some(field),
                _ => continue,
            }
            walker.keep(size_of::<String>() as u64)?;
        }
        let Some(own) = own else { return Ok(()) };
        let op = name_of(NAMES, own.number)
            .map_or_else(|| format!("layer {}", own.number), str::to_owned);
        let within = format!("{prefix}{name}/");
        walker.keep(within.len() as u64)?;
        let mut attributes = attributes(walker, &own)?;
        let mut is_nested = false;
        for (_, number, branch) in NESTED.iter().filter(|(kind, ..)| *kind == own.number) {
            is_nested = true;
            let mut message = own.message()?;
            while let Some(field) = message.next(walker)? {
                if field.number == *number {
                    self.frames.open();
                    let made = self.layers(walker, field.message()?, &format!("{within}{branch}/"));
                    let body = self.frames.close();
                    made?;
                    attributes.push(Attribute { name: (*branch).into(), value: body.into() });
                }
            }
        }
        let mut read: Vec<_> = inputs.iter().map(|name| Some(self.frames.find(name))).collect();
        if !is_nested {
            let tensors = self.tensors;
            let own = tensors.range(within.as_str()..).take_while(|name| name.starts_with(&within));
            for tensor in own {
                walker.keep(EACH)?;
                let origin = ValueOrigin::Weight(WeightRef::whole(*tensor));
                read.push(Some(self.frames.add(tensor, ValueType::Unknown, origin)));
            }
        }
        let mut kinds = kinds.into_iter();
        let made = outputs.iter().map(|name| {
            let kind = kinds.next().unwrap_or_default();
            Some(self.frames.add(name, kind, ValueOrigin::Missing))
        });
        let made: Vec<_> = made.collect();
        self.frames.node(&name, &op, read, made, attributes);
        Ok(())
    }
}

/// The type of an output: floats, of a rank and sizes.
fn output_type(walker: &mut Walker<'_>, mut message: Message) -> Result<ValueType> {
    let mut sizes = Vec::new();
    while let Some(field) = message.next(walker)? {
        if field.number == 2 {
            field.integers(walker, &mut sizes)?;
        }
    }
    Ok(shaped(Some(ElementType::F32), (!sizes.is_empty()).then_some(sizes)))
}

/// The fields of a layer that are no weights and no networks.
fn attributes(walker: &mut Walker<'_>, own: &Field) -> Result<Vec<Attribute>> {
    let known = name_of(FIELDS, own.number).unwrap_or_default();
    let mut attributes: Vec<Attribute> = Vec::new();
    let mut message = own.message()?;
    while let Some(field) = message.next(walker)? {
        let found = known.split(' ').find_map(|text| {
            let mut parts = text.split(':');
            let (name, number, kind) = (parts.next()?, parts.next()?, parts.next()?);
            (number.parse() == Ok(field.number)).then_some((name, kind))
        });
        let Some((name, kind)) = found else { continue };
        let value = match (kind, field.value) {
            ("text", _) => AttributeValue::Text(field.bytes(walker)?),
            ("message", _) => AttributeValue::Int(1),
            ("float", Value::Fixed32(bits)) => AttributeValue::Float(f32::from_bits(bits)),
            ("float", _) => {
                let mut floats = Vec::new();
                field.floats(walker, &mut floats)?;
                AttributeValue::Floats(floats)
            }
            ("double", _) => continue,
            (kind, _) => {
                let mut numbers = Vec::new();
                field.integers(walker, &mut numbers)?;
                match (numbers.as_slice(), field.value) {
                    ([number], Value::Varint(_)) => member(kind, *number),
                    _ => AttributeValue::Ints(numbers),
                }
            }
        };
        // A list that is not packed comes item by item.
        match attributes.iter_mut().find(|other| &*other.name == name) {
            Some(other) => join(&mut other.value, value),
            None => {
                walker.keep(size_of::<Attribute>() as u64)?;
                attributes.push(Attribute { name: name.into(), value });
            }
        }
    }
    Ok(attributes)
}

/// A number, or the member of an enumeration that it is.
fn member(kind: &str, number: i64) -> AttributeValue {
    let members = kind.split(',').filter_map(|member| member.split_once('='));
    let mut found = members.filter(|(own, _)| own.parse() == Ok(number)).map(|(_, name)| name);
    found.next().map_or(AttributeValue::Int(number), AttributeValue::from)
}

fn join(list: &mut AttributeValue, more: AttributeValue) {
    match (&mut *list, more) {
        (AttributeValue::Ints(list), AttributeValue::Ints(more)) => list.extend(more),
        (AttributeValue::Ints(list), AttributeValue::Int(more)) => list.push(more),
        (AttributeValue::Int(first), AttributeValue::Int(more)) => {
            *list = AttributeValue::Ints(vec![*first, more]);
        }
        (AttributeValue::Float(first), AttributeValue::Float(more)) => {
            *list = AttributeValue::Floats(vec![*first, more]);
        }
        (AttributeValue::Floats(list), AttributeValue::Float(more)) => list.push(more),
        (_, more) => *list = more,
    }
}
