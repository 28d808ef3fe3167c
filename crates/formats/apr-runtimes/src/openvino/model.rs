//! The XML file: layers, their ports and settings, the edges between them.

use apr_core::{DType, Error, Escaped, Result, UniqueNames};
use serde_json::{Map, Value};

use crate::openvino::element::Kind;
use crate::openvino::packed::group_of;
use crate::openvino::xml::{Event, Reader, Start};

/// The type of layers whose data are in the file of weights.
const CONST: &str = "Const";

/// Maximum number of bodies in each other.
const MAX_BODIES: usize = 16;

/// A model as its XML file describes it.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) version: u64,
    pub(crate) net: Net,
    /// What programs noted about the model: `rt_info`, and `meta_data` of older ones.
    pub(crate) notes: Map<String, Value>,
}

/// Layers and the edges between them.
#[derive(Debug, Default)]
pub(crate) struct Net {
    pub(crate) layers: Vec<Layer>,
    pub(crate) edges: Vec<Edge>,
}

#[derive(Debug, Default)]
pub(crate) struct Layer {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) kind: String,
    /// The operator set: `opset13`.
    pub(crate) opset: String,
    /// Settings of the operator.
    pub(crate) data: Vec<(String, String)>,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    /// Bodies by the names of their elements.
    pub(crate) bodies: Vec<(String, Net)>,
    /// The name of its tensor, if it is a constant.
    pub(crate) tensor: String,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) id: u64,
    /// `None` for a port without a type, which inputs of new files are.
    pub(crate) precision: Option<Kind>,
    /// Sizes; `None` for one that the caller chooses. `None` for an unknown number of them.
    pub(crate) dims: Option<Vec<Option<u64>>>,
    /// Names of the tensor.
    pub(crate) names: Vec<String>,
}

/// A layer and one of its ports, at each end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) from: (u64, u64),
    pub(crate) to: (u64, u64),
}

/// The data of a constant.
#[derive(Debug)]
pub(crate) struct Constant {
    pub(crate) kind: Kind,
    /// The name of its type.
    pub(crate) type_name: String,
    pub(crate) dims: Vec<u64>,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl Constant {
    /// The dtype of its tensor; `None` for texts, for types that are not known here, and for
    /// elements that lie in groups of bytes and do not fill the last one.
    pub(crate) fn dtype(&self) -> Option<DType> {
        if let Kind::Packed(packed) = self.kind
            && let (group, 3) = group_of(packed)
            && !self.count()?.is_multiple_of(group)
        {
            return None;
        }
        self.kind.dtype()
    }

    /// The number of elements, if a file can have them.
    pub(crate) fn count(&self) -> Option<u64> {
        self.dims.iter().try_fold(1_u64, |all, size| all.checked_mul(*size))
    }
}

/// Returns the version of a model by the first bytes of its file.
pub(crate) fn version_of(head: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(head);
    let start = text.trim_start_matches('\u{feff}').trim_ascii_start();
    let starts = ["<?xml", "<!DOCTYPE net", "<net "];
    starts.iter().any(|known| start.starts_with(known)).then_some(())?;
    let (_, net) = start.split_once("<net ")?;
    let (tag, _) = net.split_once('>')?;
    let (_, version) = tag.split_once("version=\"")?;
    version.split_once('"')?.0.parse().ok()
}

impl Model {
    /// # Errors
    /// E001 and E002 for a file that is malformed or no model, E003 for another version.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut xml = Reader::new(bytes)?;
        let root = match xml.next()? {
            Some(Event::Start(start)) if start.name == "net" => start,
            _ => return Err(Error::format("the XML is not an OpenVINO model")),
        };
        let mut model = Self {
            name: root.attribute("name").unwrap_or_default().to_owned(),
            version: number(&root, "version")?,
            ..Self::default()
        };
        if !(10..=11).contains(&model.version) {
            let message = format!(
                "OpenVINO IR of version {}: versions 10 and 11 are read; convert the original \
                 model again",
                model.version
            );
            return Err(Error::version(message));
        }
        while let Some(event) = xml.next()? {
            let Event::Start(start) = event else { continue };
            match start.name {
                "layers" => layers(&mut xml, &mut model.net, 0)?,
                "edges" => edges(&mut xml, &mut model.net)?,
                "rt_info" | "meta_data" => {
                    let notes = note(&mut xml, &start)?;
                    model.notes.insert(start.name.to_owned(), notes);
                }
                _ => xml.skip()?,
            }
        }
        let mut tensors = Vec::new();
        name_tensors(&mut model.net, "", &mut tensors);
        UniqueNames::tell_apart(tensors.into_iter());
        Ok(model)
    }
}

/// Gives each constant the name of its tensor, which may not be its own yet.
fn name_tensors<'n>(net: &'n mut Net, prefix: &str, names: &mut Vec<&'n mut String>) {
    for layer in &mut net.layers {
        for (body, inner) in &mut layer.bodies {
            name_tensors(inner, &format!("{prefix}{}/{body}/", layer.name), names);
        }
        if layer.kind == CONST {
            layer.tensor = format!("{prefix}{}", layer.name);
            names.push(&mut layer.tensor);
        }
    }
}

impl Net {
    /// Runs a function on each constant, those of bodies first.
    ///
    /// # Errors
    /// Those of the function.
    pub(crate) fn constants<'n>(
        &'n self,
        each: &mut dyn FnMut(&'n Layer) -> Result<()>,
    ) -> Result<()> {
        for layer in &self.layers {
            for (_, inner) in &layer.bodies {
                inner.constants(each)?;
            }
            if layer.kind == CONST {
                each(layer)?;
            }
        }
        Ok(())
    }
}

impl Layer {
    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        self.data.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_constant(&self) -> bool {
        self.kind == CONST
    }

    /// The data of a constant.
    ///
    /// # Errors
    /// E002 for settings that are missing or no numbers.
    pub(crate) fn constant(&self) -> Result<Constant> {
        let bad = |what: &str| {
            let name = Escaped::short(&self.name);
            Error::corrupt(format!("the constant '{name}' {what}"))
        };
        let setting =
            |name: &str| self.setting(name).ok_or_else(|| bad(&format!("has no setting '{name}'")));
        let int = |text: &str| text.trim_ascii().parse::<u64>().ok();
        let type_name = setting("element_type")?;
        let shape = setting("shape")?;
        let sizes = shape.split(',').filter(|size| !size.trim_ascii().is_empty());
        let dims: Option<Vec<u64>> = sizes.map(int).collect();
        let number = |name: &str| {
            int(setting(name)?)
                .ok_or_else(|| bad(&format!("has a setting '{name}' that is no number")))
        };
        Ok(Constant {
            kind: Kind::of(type_name),
            type_name: type_name.to_owned(),
            dims: dims.ok_or_else(|| bad("has a shape that is no list of sizes"))?,
            offset: number("offset")?,
            size: number("size")?,
        })
    }
}

/// Runs a function on each child of the element that started last, which reads it to its end.
fn children<'t>(
    xml: &mut Reader<'t>,
    each: &mut dyn FnMut(&mut Reader<'t>, &Start<'t>) -> Result<()>,
) -> Result<()> {
    loop {
        match xml.next()? {
            Some(Event::Start(start)) => each(xml, &start)?,
            Some(Event::Text(_)) => {}
            Some(Event::End) | None => return Ok(()),
        }
    }
}

/// The text of the element that started last.
fn text(xml: &mut Reader<'_>) -> Result<String> {
    let mut all = String::new();
    loop {
        match xml.next()? {
            Some(Event::Text(text)) => all.push_str(&text),
            Some(Event::Start(_)) => xml.skip()?,
            Some(Event::End) | None => return Ok(all),
        }
    }
}

fn layers(xml: &mut Reader<'_>, net: &mut Net, depth: usize) -> Result<()> {
    children(xml, &mut |xml, start| match start.name {
        "layer" => {
            net.layers.push(layer(xml, start, depth)?);
            Ok(())
        }
        _ => xml.skip(),
    })
}

fn edges(xml: &mut Reader<'_>, net: &mut Net) -> Result<()> {
    children(xml, &mut |xml, start| {
        if start.name == "edge" {
            let end = |layer: &str, port: &str| Ok((number(start, layer)?, number(start, port)?));
            net.edges.push(Edge {
                from: end("from-layer", "from-port")?,
                to: end("to-layer", "to-port")?,
            });
        }
        xml.skip()
    })
}

fn layer(xml: &mut Reader<'_>, start: &Start<'_>, depth: usize) -> Result<Layer> {
    let own = |name: &str| start.attribute(name).unwrap_or_default().to_owned();
    let mut layer = Layer {
        id: number(start, "id")?,
        name: own("name"),
        kind: own("type"),
        opset: own("version"),
        ..Layer::default()
    };
    children(xml, &mut |xml, start| match start.name {
        "data" => {
            let settings = start.attributes.iter();
            layer.data = settings
                .map(|(name, value)| ((*name).to_owned(), value.clone().into_owned()))
                .collect();
            xml.skip()
        }
        "input" => ports(xml, &mut layer.inputs),
        "output" => ports(xml, &mut layer.outputs),
        "body" | "then_body" | "else_body" => {
            if depth >= MAX_BODIES {
                let message = format!("more than {MAX_BODIES} bodies are in each other");
                return Err(Error::format(message));
            }
            let mut inner = Net::default();
            children(xml, &mut |xml, start| match start.name {
                "layers" => layers(xml, &mut inner, depth + 1),
                "edges" => edges(xml, &mut inner),
                _ => xml.skip(),
            })?;
            layer.bodies.push((start.name.to_owned(), inner));
            Ok(())
        }
        _ => xml.skip(),
    })?;
    Ok(layer)
}

fn ports(xml: &mut Reader<'_>, ports: &mut Vec<Port>) -> Result<()> {
    children(xml, &mut |xml, start| {
        if start.name != "port" {
            return xml.skip();
        }
        let mut sizes = Vec::new();
        let id = number(start, "id")?;
        children(xml, &mut |xml, start| {
            if start.name != "dim" {
                return xml.skip();
            }
            let size = text(xml)?;
            // -1, and what else is no number: the caller chooses it.
            sizes.push(size.trim_ascii().parse().ok());
            Ok(())
        })?;
        let names = start.attribute("names").map(names).unwrap_or_default();
        let precision = start.attribute("precision").map(Kind::of);
        // A port of an unknown number of dimensions is written without any, as a scalar is.
        ports.push(Port { id, precision, dims: Some(sizes), names });
        Ok(())
    })
}

/// Names of a tensor: a list, in which a comma of a name has a backslash before it.
fn names(list: &str) -> Vec<String> {
    let (mut names, mut name) = (Vec::new(), String::new());
    let mut characters = list.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if characters.peek() == Some(&',') => name.extend(characters.next()),
            ',' => names.push(std::mem::take(&mut name)),
            character => name.push(character),
        }
    }
    names.push(name);
    names.retain(|name| !name.is_empty());
    names
}

/// A note, with those in it: a text, or an object of its attributes and elements.
fn note(xml: &mut Reader<'_>, start: &Start<'_>) -> Result<Value> {
    let mut all = Map::new();
    for (name, value) in &start.attributes {
        all.insert((*name).to_owned(), value.as_ref().into());
    }
    let mut said = String::new();
    loop {
        match xml.next()? {
            Some(Event::Start(start)) => {
                let value = note(xml, &start)?;
                let mut key = start.name.to_owned();
                let mut count = 1_u64;
                while all.contains_key(&key) {
                    count += 1;
                    key = format!("{}#{count}", start.name);
                }
                all.insert(key, value);
            }
            Some(Event::Text(text)) => said.push_str(text.trim_ascii()),
            Some(Event::End) | None => break,
        }
    }
    if all.is_empty() {
        return Ok(said.into());
    }
    if !said.is_empty() {
        all.insert("text".to_owned(), said.into());
    }
    Ok(match (all.len(), all.get("value")) {
        (1, Some(Value::String(value))) => value.clone().into(),
        _ => all.into(),
    })
}

fn number(start: &Start<'_>, name: &str) -> Result<u64> {
    let text = start.attribute(name).unwrap_or_default();
    text.trim_ascii().parse().map_err(|_| {
        let element = Escaped::short(start.name);
        Error::corrupt(format!("an element '{element}' of the XML has no number '{name}'"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_tensor_may_have_commas() {
        assert_eq!(names("a,b"), ["a", "b"]);
        assert_eq!(names("a\\,b,c"), ["a,b", "c"]);
        assert_eq!(names(""), [""; 0]);
    }

    #[test]
    fn versions_are_found_in_the_first_element() {
        assert_eq!(
            version_of(b"<?xml version=\"1.0\"?>\n<net name=\"m\" version=\"11\">"),
            Some(11)
        );
        assert_eq!(version_of(b"<?xml version=\"1.0\"?>\n<html><net>"), None);
        assert_eq!(version_of(b"text <net version=\"11\">"), None);
        let old = Model::parse(b"<net name='m' version='7'><layers/></net>").expect_err("too old");
        assert!(old.message().contains("version 7"), "{old}");
    }

    #[test]
    fn notes_are_nested() {
        let xml = b"<net name='m' version='11'><layers/><edges/><rt_info><a value='1'/><b><c \
            value='x' version='0'/></b><a value='2'/></rt_info></net>";
        let model = Model::parse(xml).expect("a model");
        let expected = serde_json::json!({
            "rt_info": {"a": "1", "b": {"c": {"value": "x", "version": "0"}}, "a#2": "2"}
        });
        assert_eq!(Value::from(model.notes), expected);
    }
}
