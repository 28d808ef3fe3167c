//! Integers of shapes, which are numbers of the source as long as the graph only counts with them.

use apr_core::Result;
use apr_graph::{ElementType, Node};

use crate::emit::{Emitter, Form, constant_node};

/// Maximum number of integers that are tracked one by one.
const MOST: usize = 64;

type Ints = (Vec<String>, bool);

/// Writes a node of integers. Returns `false` if the node must be written for tensors.
pub(crate) fn emit(emitter: &mut Emitter<'_>, node: &Node) -> Result<bool> {
    let form = match &*node.op.name {
        "Constant" => Some(constant_node(emitter, node)?),
        "Shape" => Some(shape(emitter, node)?),
        "Size" => None,
        "Add" | "Sub" | "Mul" | "Div" => counted(emitter, node)?,
        "Concat" => concat(emitter, node)?,
        "Gather" => gather(emitter, node)?,
        "Slice" => slice(emitter, node)?,
        "Unsqueeze" | "Squeeze" | "Identity" | "Cast" | "Reshape" => same(emitter, node)?,
        _ => None,
    };

    let is_done = form.is_some();
    if let Some(form) = form {
        emitter.set_form(node, form);
    }

    Ok(is_done)
}

/// Integers that are known one by one, without a detour over a tensor.
fn known(emitter: &mut Emitter<'_>, node: &Node, position: usize) -> Result<Option<Ints>> {
    let Some(value) = node.input(position) else { return Ok(None) };
    if !matches!(emitter.element(value), Some(ElementType::I64) | None) {
        return Ok(None);
    }
    Ok(emitter.ints(value)?.filter(|(items, _)| {
        items.len() <= MOST && items.iter().all(|item| !item.contains("select"))
    }))
}

fn shape(emitter: &mut Emitter<'_>, node: &Node) -> Result<Form> {
    let x = emitter.input(node, 0)?;
    let rank = emitter.rank(x)?;
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { (at + signed).max(0) } else { at.min(signed) };
    let (start, end) =
        (place(node.int("start").unwrap_or(0)), place(node.int("end").unwrap_or(signed)));
    let tensor = emitter.tensor(x)?;
    Ok(Form::Ints(
        (start..end).map(|axis| format!("torch.size({tensor}, {axis})")).collect(),
        false,
    ))
}

fn counted(emitter: &mut Emitter<'_>, node: &Node) -> Result<Option<Form>> {
    let (Some((a, a_scalar)), Some((b, b_scalar))) =
        (known(emitter, node, 0)?, known(emitter, node, 1)?)
    else {
        return Ok(None);
    };
    let sign = match &*node.op.name {
        "Add" => "+",
        "Sub" => "-",
        "Mul" => "*",
        _ => "//",
    };

    let len = a.len().max(b.len());
    if [&a, &b].iter().any(|side| side.len() != len && side.len() != 1) {
        return Ok(None);
    }

    let at =
        |side: &[String], position: usize| side[if side.len() == 1 { 0 } else { position }].clone();
    let items =
        (0..len).map(|position| format!("({} {sign} {})", at(&a, position), at(&b, position)));
    let items = items.map(|item| emitter.short(item)).collect();
    Ok(Some(Form::Ints(items, a_scalar && b_scalar)))
}

fn concat(emitter: &mut Emitter<'_>, node: &Node) -> Result<Option<Form>> {
    let mut all = Vec::new();
    for position in 0..node.inputs.len() {
        match known(emitter, node, position)? {
            Some((items, false)) => all.extend(items),
            _ => return Ok(None),
        }
    }
    Ok((all.len() <= MOST).then_some(Form::Ints(all, false)))
}

fn gather(emitter: &mut Emitter<'_>, node: &Node) -> Result<Option<Form>> {
    let Some((items, false)) = known(emitter, node, 0)? else { return Ok(None) };
    let Some((places, is_scalar)) = known(emitter, node, 1)? else { return Ok(None) };
    let len = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let place = |place: &String| {
        let place: i64 = place.parse().ok()?;
        items.get(usize::try_from(if place < 0 { place + len } else { place }).ok()?).cloned()
    };
    let found: Option<Vec<String>> = places.iter().map(place).collect();
    Ok(found.map(|found| Form::Ints(found, is_scalar)))
}

fn slice(emitter: &mut Emitter<'_>, node: &Node) -> Result<Option<Form>> {
    let Some((items, false)) = known(emitter, node, 0)? else { return Ok(None) };
    let mut bounds = Vec::new();
    for position in [1, 2] {
        let Some((numbers, _)) = known(emitter, node, position)? else { return Ok(None) };
        let [number] = numbers.as_slice() else { return Ok(None) };
        let Ok(number) = number.parse::<i64>() else { return Ok(None) };
        let len = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let place = if number < 0 { number.saturating_add(len) } else { number }.clamp(0, len);
        bounds.push(usize::try_from(place).unwrap_or_default());
    }

    if node.input(4).is_some() {
        return Ok(None);
    }

    let part = items.get(bounds[0]..bounds[1].max(bounds[0])).unwrap_or_default();
    Ok(Some(Form::Ints(part.to_vec(), false)))
}

/// Nodes that change no number; only whether one has a dimension.
fn same(emitter: &mut Emitter<'_>, node: &Node) -> Result<Option<Form>> {
    let i64_code = i64::from(ElementType::I64.onnx_code());
    if &*node.op.name == "Cast" && node.int("to") != Some(i64_code) {
        return Ok(None);
    }

    let Some((items, is_scalar)) = known(emitter, node, 0)? else { return Ok(None) };
    Ok(match (&*node.op.name, items.len()) {
        ("Identity" | "Cast", _) => Some(Form::Ints(items, is_scalar)),
        ("Unsqueeze", 1) if is_scalar => Some(Form::Ints(items, false)),
        ("Squeeze", 1) => Some(Form::Ints(items, true)),
        ("Reshape", _) => {
            let shape = emitter.input(node, 1)?;
            reshaped(items, &emitter.numbers(shape)?)
        }
        _ => None,
    })
}

fn reshaped(items: Vec<String>, shape: &[i64]) -> Option<Form> {
    match (shape, items.len()) {
        ([], 1) => Some(Form::Ints(items, true)),
        ([-1], _) | ([1], 1) => Some(Form::Ints(items, false)),
        _ => None,
    }
}
