//! The layers of a network.
//!
//! How inputs become what the layers read is written as nodes, too: `arrayInputShapeMapping` for an
//! array that has five dimensions inside, `imageInputShapeMapping` for an image, and `scaler` or
//! `meanImage` for what is computed of its colors.
//!
//! ```text
//! NeuralNetwork        1: layers  2: preprocessing  5: mapping of arrays  6: mapping of images
//!   of a classifier    100, 101: classes  200: the blob with their scores
//! NeuralNetworkLayer   1: name  2: inputs  3: outputs  5: types of outputs (1: rank  2: sizes)
//!                      NUMBER OF ITS KIND: what it has of its own
//! ```

use std::collections::BTreeMap;

use apr_core::protobuf::{Field, Message, Value, Walker};
use apr_core::{Error, Result};
use apr_graph::{
    Attribute, AttributeValue, Body, Dim, ElementType, ValueOrigin, ValueType, WeightRef,
};

use super::frames::Frames;
use super::types::{Ends, shaped};
use super::{Tensors, type_of};
use crate::layers::{NAMES, NESTED, name_of};

/// Fields of each kind of layer: `NUMBER name:number:kind`; an enumeration's kind is its members.
const FIELDS: &str = include_str!("fields.txt");

/// First field number that identifies the kind of a layer. Lower fields are common to all layers.
const FIRST_KIND: u32 = 100;

/// Memory charged for a layer in bytes, besides its texts.
const EACH: u64 = 512;

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
    is_classifier: bool,
    prefix: &str,
    tensors: &Tensors<'_>,
) -> Result<Body> {
    let mut network = Network { frames: Frames::default(), tensors, last: String::new() };
    network.frames.open();
    for input in &ends.inputs {
        network.frames.input(&input.name, input.kind.clone());
    }
    network.inputs(walker, message, ends)?;
    network.layers(walker, message, prefix)?;
    if is_classifier {
        network.scores(walker, message)?;
    }
    for output in ends.outputs.iter().filter(|output| !output.name.is_empty()) {
        // A classifier's outputs are the class and a dictionary of scores, which no layer makes.
        if network.frames.knows(&output.name) {
            network.frames.output_of(&output.name, &output.kind);
        }
    }
    Ok(network.frames.close())
}

struct Network<'t> {
    frames: Frames,
    tensors: &'t Tensors<'t>,
    /// Name of the first output of the last layer.
    last: String,
}

impl Network<'_> {
    /// Adds the preprocessing of the inputs before the layers.
    fn inputs(&mut self, walker: &mut Walker<'_>, mut message: Message, ends: &Ends) -> Result<()> {
        /// The mapping to five dimensions, of arrays and of images.
        const RANK_5: u64 = 0;

        let (mut arrays, mut images) = (RANK_5, RANK_5);
        let mut steps: BTreeMap<String, Vec<(&str, Vec<Attribute>)>> = BTreeMap::new();
        while let Some(field) = message.next(walker)? {
            match field.number {
                2 => {
                    walker.keep(EACH)?;
                    let (name, op, attributes) = preprocessing(walker, field.message()?)?;
                    steps.entry(name).or_default().push((op, attributes));
                }
                5 => arrays = field.integer()?,
                6 => images = field.integer()?,
                _ => {}
            }
        }
        for input in &ends.inputs {
            let name = &input.name;
            let attribute =
                |name: &str, value: AttributeValue| Attribute { name: name.into(), value };
            let (op, rank) = match (input.color_space, arrays, images) {
                (Some(_), _, RANK_5) => ("imageInputShapeMapping", 5),
                (Some(_), ..) => ("imageInputShapeMapping", 4),
                (None, RANK_5, _) => ("arrayInputShapeMapping", 5),
                (None, ..) => continue,
            };
            self.step(name, op, vec![attribute("rank", AttributeValue::Int(rank))]);
            for (op, mut attributes) in steps.remove(name).unwrap_or_default() {
                let space = input.color_space.and_then(|space| i64::try_from(space).ok());
                attributes.extend(space.map(|space| attribute("colorSpace", space.into())));
                self.step(name, op, attributes);
            }
        }
        Ok(())
    }

    /// Makes the scores of a classifier an output: a number for each class.
    fn scores(&mut self, walker: &mut Walker<'_>, mut message: Message) -> Result<()> {
        let (mut blob, mut classes) = (String::new(), 0);
        while let Some(field) = message.next(walker)? {
            match field.number {
                100 | 101 => {
                    let mut list = field.message()?;
                    while let Some(label) = list.next(walker)? {
                        if field.number == 101 {
                            let mut numbers = Vec::new();
                            label.integers(walker, &mut numbers)?;
                            classes += numbers.len() as u64;
                        } else {
                            classes += 1;
                        }
                    }
                }
                200 => blob = field.text(walker)?,
                _ => {}
            }
        }
        // Where the model does not name it, it is what comes last.
        let blob = if blob.is_empty() { self.last.clone() } else { blob };
        if self.frames.knows(&blob) {
            // A model that lists no classes does not say how many scores there are.
            let kind = match classes {
                0 => ValueType::Unknown,
                count => ValueType::tensor(ElementType::F32, [Dim::fixed(count)]),
            };
            self.frames.output_of(&blob, &kind);
        }
        Ok(())
    }

    /// A node that makes of a value what has its name from then on.
    fn step(&mut self, name: &str, op: &str, attributes: Vec<Attribute>) {
        let input = self.frames.find(name);
        let output = self.frames.add(name, ValueType::Unknown, ValueOrigin::Missing);
        self.frames.node(name, op, vec![Some(input)], vec![Some(output)], attributes);
    }

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
        if let Some(first) = outputs.first() {
            self.last.clone_from(first);
        }
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
            let own =
                tensors.range(within.as_str()..).take_while(|(name, _)| name.starts_with(&within));
            for (tensor, info) in own {
                walker.keep(EACH)?;
                let origin = ValueOrigin::Weight(WeightRef::whole(*tensor));
                read.push(Some(self.frames.add(tensor, type_of(info), origin)));
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

/// A step of the preprocessing: the input that it is for, its operator and its settings.
///
/// ```text
/// NeuralNetworkPreprocessing   1: input  10: scaler (10: scale  20, 21, 22: added to blue, green
///                              and red  30: added to gray)  11: mean image
/// ```
fn preprocessing(
    walker: &mut Walker<'_>,
    mut message: Message,
) -> Result<(String, &'static str, Vec<Attribute>)> {
    const SCALER: &str = "channelScale:10:float blueBias:20:float greenBias:21:float \
                          redBias:22:float grayBias:30:float";

    let (mut name, mut op, mut attributes) = (String::new(), "preprocessing", Vec::new());
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => name = field.text(walker)?,
            10 => (op, attributes) = ("scaler", fields(walker, &field, SCALER)?),
            11 => op = "meanImage",
            _ => {}
        }
    }
    Ok((name, op, attributes))
}

/// Returns the fields of a layer that are neither weights nor networks.
fn attributes(walker: &mut Walker<'_>, own: &Field) -> Result<Vec<Attribute>> {
    fields(walker, own, name_of(FIELDS, own.number).unwrap_or_default())
}

/// The fields of a message that are known: `NAME:PATH:KIND`, of which the path has the numbers of
/// the messages that a field is in.
fn fields(walker: &mut Walker<'_>, own: &Field, known: &'static str) -> Result<Vec<Attribute>> {
    let mut attributes: Vec<Attribute> = Vec::new();
    let mut messages = vec![(String::new(), own.message()?)];
    while let Some((path, mut message)) = messages.pop() {
        while let Some(field) = message.next(walker)? {
            let place = format!("{path}{}", field.number);
            let found = known.split(' ').find_map(|text| {
                let mut parts = text.split(':');
                let (name, own, kind) = (parts.next()?, parts.next()?, parts.next()?);
                (own == place).then_some((name, kind))
            });
            let Some((name, kind)) = found else { continue };
            if kind == "message" {
                walker.keep(size_of::<(String, Message)>() as u64)?;
                messages.push((format!("{place}."), field.message()?));
            }
            let Some(value) = value(walker, &field, kind)? else { continue };
            // A list that is not packed comes item by item.
            match attributes.iter_mut().find(|other| &*other.name == name) {
                Some(other) => join(&mut other.value, value),
                None => {
                    walker.keep(size_of::<Attribute>() as u64)?;
                    attributes.push(Attribute { name: name.into(), value });
                }
            }
        }
    }
    Ok(attributes)
}

/// Reads the value of a field of a kind.
fn value(walker: &mut Walker<'_>, field: &Field, kind: &str) -> Result<Option<AttributeValue>> {
    Ok(Some(match (kind, field.value) {
        ("text", _) => AttributeValue::Text(field.bytes(walker)?),
        ("activation", _) => {
            walker.keep(EACH)?;
            AttributeValue::Texts(vec![activation(walker, field.message()?)?.into_bytes()])
        }
        ("message", _) => AttributeValue::Int(1),
        // Sizes at a start and an end, which are left away where they are 0.
        ("edges", _) => {
            let (mut edges, mut message) = ([0, 0], field.message()?);
            while let Some(field) = message.next(walker)? {
                match field.number {
                    1 => edges[0] = field.signed()?,
                    2 => edges[1] = field.signed()?,
                    _ => {}
                }
            }
            walker.keep(size_of::<[i64; 2]>() as u64)?;
            AttributeValue::Ints(edges.to_vec())
        }
        ("float", Value::Fixed32(bits)) => AttributeValue::Float(f32::from_bits(bits)),
        ("float", _) => {
            let mut floats = Vec::new();
            field.floats(walker, &mut floats)?;
            AttributeValue::Floats(floats)
        }
        ("double", _) => return Ok(None),
        (kind, _) => {
            let mut numbers = Vec::new();
            field.integers(walker, &mut numbers)?;
            match (numbers.as_slice(), field.value) {
                ([number], Value::Varint(_)) => member(kind, *number),
                _ => AttributeValue::Ints(numbers),
            }
        }
    }))
}

/// Reads an activation of a recurrent layer: its name and its two settings. Missing settings are 0.
fn activation(walker: &mut Walker<'_>, mut message: Message) -> Result<String> {
    /// The numbers of activations, as of the fields of the layer of activations.
    const ACTIVATION: u32 = 130;

    let (mut name, mut settings) = ("?", [0.0_f32; 2]);
    let known = name_of(FIELDS, ACTIVATION).unwrap_or_default();
    while let Some(field) = message.next(walker)? {
        let place = field.number.to_string();
        let found = known.split(' ').find_map(|text| {
            let (name, rest) = text.split_once(':')?;
            (rest.split_once(':')?.0 == place).then_some(name)
        });
        let Some(found) = found else { continue };
        (name, settings) = (found, [0.0; 2]);
        let mut own = field.message()?;
        while let Some(field) = own.next(walker)? {
            if let (1 | 2, Value::Fixed32(bits)) = (field.number, field.value) {
                settings[usize::from(field.number == 2)] = f32::from_bits(bits);
            }
        }
    }
    Ok(format!("{name} {} {}", settings[0], settings[1]))
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
        (AttributeValue::Texts(list), AttributeValue::Texts(more)) => list.extend(more),
        (_, more) => *list = more,
    }
}
