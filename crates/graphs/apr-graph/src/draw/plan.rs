//! What is drawn where: opened groups are laid out from the inside to the outside.

use serde::Serialize;

use super::layered::{BoxPort, Placed, Shape, lay_out};
use super::{Depth, SceneId, cost_text, parameters, scene_id};
use crate::Totals;
use crate::outline::{End, Item, ItemKind, Scene, WeightUse};

/// Space between the frame of a group and its contents.
const PADDING: f64 = 16.0;
/// Height of a group's title.
const TITLE: f64 = 30.0;
/// Height of a line of text.
const LINE: f64 = 15.0;
/// Height of the names at the border of a group.
const PORT: f64 = 14.0;
/// Longest text in characters; the middle of longer ones is left out.
const LONGEST: usize = 48;

/// Boxes and lines with their places, in pixels from the upper left corner. [`svg`](super::svg)
/// writes one down; a program that draws by itself asks for it by [`drawing`](super::drawing).
#[derive(Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Drawing {
    /// Width of the whole.
    pub width: f64,
    /// Height of the whole.
    pub height: f64,
    /// Boxes; a frame precedes its contents.
    pub boxes: Vec<DrawnBox>,
    /// Names at the borders of frames.
    pub labels: Vec<Label>,
    /// Edges by the points that they pass, from the box that they leave to the one that they enter.
    /// The first and the last point, and each pair in between, are straight up and down; from one
    /// of them to the next the edge bends.
    pub routes: Vec<Vec<(f64, f64)>>,
}

/// A box with its texts.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct DrawnBox {
    /// Position of the left side.
    pub left: f64,
    /// Position of the upper side.
    pub top: f64,
    /// Width of the box.
    pub width: f64,
    /// Height of the box.
    pub height: f64,
    /// `true` if the box is a frame around other boxes.
    pub is_frame: bool,
    /// Class of the box's contents.
    pub class: Class,
    /// First line of text.
    pub title: String,
    /// The lines below.
    pub lines: Vec<String>,
    /// Number of repetitions, one after the other.
    pub times: u64,
    /// Path of the first node or group that the box represents, from the main body on.
    ///
    /// The path leads through the calls of the enclosing functions and can be passed to
    /// [`NodeView::find`](crate::outline::NodeView::find).
    pub path: String,
    /// Path and weights in full.
    pub hint: String,
    /// Cost including repetitions, if the scene has costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Totals>,
    /// Scene that opens within the box, for [`Depth::Chosen`]; `None` if the box can't be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scene: Option<SceneId>,
}

/// A name at the border of a frame, around its middle.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Label {
    /// Horizontal middle of the text.
    pub x: f64,
    /// Base line of the text.
    pub y: f64,
    /// Text of the label.
    pub text: String,
}

/// Class of a box, which determines its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Class {
    /// Inputs and outputs.
    End,
    /// Several items under one name.
    Group,
    /// Matrix products, convolutions, attention, recurrent layers.
    Product,
    /// Normalizations.
    Norm,
    /// Activation functions.
    Activation,
    /// Rows that are looked up.
    Lookup,
    /// Operators that move elements without computing.
    Movement,
    /// Everything else.
    Arithmetic,
}

impl Class {
    pub(super) const ALL: [Self; 8] = [
        Self::End,
        Self::Group,
        Self::Product,
        Self::Norm,
        Self::Activation,
        Self::Lookup,
        Self::Movement,
        Self::Arithmetic,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Group => "group",
            Self::Product => "product",
            Self::Norm => "norm",
            Self::Activation => "activation",
            Self::Lookup => "lookup",
            Self::Movement => "movement",
            Self::Arithmetic => "arithmetic",
        }
    }

    /// Returns the class of another program's operator, judged by words in its name.
    fn of_foreign(name: &str) -> Self {
        const NAMES: [(Class, &[&str]); 5] = [
            (Class::Norm, &["norm"]),
            (
                Class::Activation,
                &["relu", "softmax", "sigmoid", "tanh", "logistic", "gelu", "swish", "activation"],
            ),
            (
                Class::Product,
                &["conv", "matmul", "dense", "connected", "linear", "innerproduct", "lstm", "gru"],
            ),
            (Class::Lookup, &["embedding", "gather", "lookup"]),
            (
                Class::Movement,
                &[
                    "reshape",
                    "transpose",
                    "concat",
                    "split",
                    "slice",
                    "squeeze",
                    "expand",
                    "flatten",
                    "shape",
                    "cast",
                    "identity",
                    "pad",
                    "pack",
                    "dropout",
                    "variable",
                    "quantize",
                ],
            ),
        ];
        let name = name.to_ascii_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
        let found = NAMES.iter().find(|(_, parts)| has(parts));
        found.map_or(Self::Arithmetic, |(class, _)| *class)
    }

    /// The class of an operator, by its name.
    fn of(op: &str) -> Self {
        if let Some((domain, name)) = op.split_once("::")
            && crate::foreign(domain).is_some()
        {
            return Self::of_foreign(name);
        }
        const PRODUCTS: [&str; 9] = [
            "MatMul",
            "Gemm",
            "Conv",
            "Einsum",
            "Attention",
            "LSTM",
            "GRU",
            "RNN",
            "GroupQueryAttention",
        ];
        const ACTIVATIONS: [&str; 14] = [
            "Relu",
            "Gelu",
            "FastGelu",
            "Sigmoid",
            "Tanh",
            "Softmax",
            "LogSoftmax",
            "Silu",
            "Swish",
            "Erf",
            "Elu",
            "LeakyRelu",
            "HardSwish",
            "Clip",
        ];
        const MOVEMENTS: [&str; 17] = [
            "Reshape",
            "Transpose",
            "Concat",
            "Split",
            "Slice",
            "Squeeze",
            "Unsqueeze",
            "Expand",
            "Flatten",
            "Shape",
            "Cast",
            "Identity",
            "Pad",
            "Tile",
            "Range",
            "ConstantOfShape",
            "DepthToSpace",
        ];

        let name = op.rsplit("::").next().unwrap_or(op);
        let starts = |prefix: &&str| name.starts_with(prefix);
        if name.ends_with("Normalization") || name == "LRN" {
            Self::Norm
        } else if MOVEMENTS.contains(&name) {
            Self::Movement
        } else if ACTIVATIONS.contains(&name) {
            Self::Activation
        } else if name.starts_with("Gather") || name == "Where" {
            Self::Lookup
        } else if PRODUCTS.iter().any(starts) {
            Self::Product
        } else {
            Self::Arithmetic
        }
    }
}

/// Box with a known size, and its contents.
struct Sized<'a> {
    item: &'a Item,
    shape: Shape,
    lines: Vec<String>,
    inside: Option<Inside<'a>>,
}

struct Inside<'a> {
    scene: &'a Scene,
    placed: Placed,
    boxes: Vec<Sized<'a>>,
}

/// Boxes that a scene is drawn with.
pub(super) fn count(scene: &Scene, depth: &Depth) -> usize {
    let inside = |item: &Item| depth.opened(item).map_or(0, |(scene, depth)| count(scene, &depth));
    scene.items.iter().fold(scene.items.len(), |sum, item| sum.saturating_add(inside(item)))
}

/// Draws a scene, opened down to `depth`.
pub(super) fn draw(scene: &Scene, depth: &Depth) -> Drawing {
    let inside = measure(scene, depth);
    let (width, height) = (inside.placed.width, inside.placed.height);
    let mut drawing = Drawing {
        width: width + 2.0 * PADDING,
        height: height + 2.0 * PADDING,
        ..Drawing::default()
    };
    put(&inside, (PADDING, PADDING), "", &mut drawing);
    drawing
}

fn measure<'a>(scene: &'a Scene, depth: &Depth) -> Inside<'a> {
    let boxes: Vec<Sized<'_>> = scene.items.iter().map(|item| size(item, depth)).collect();
    let port = |name: &str| Shape {
        width: text_width(&short(name), 10.0) + 6.0,
        height: PORT,
        ..Shape::default()
    };
    let shapes: Vec<Shape> = scene
        .inputs
        .iter()
        .map(|input| port(&input.name))
        .chain(boxes.iter().map(|sized| sized.shape.clone()))
        .chain(scene.outputs.iter().map(|output| port(&output.name)))
        .collect();
    let (inputs, items) = (scene.inputs.len(), scene.items.len());
    let place = |end: End, border: usize| -> BoxPort {
        match end {
            End::Item(item, port) => (inputs + item, port),
            End::Border(port) => (border + port, 0),
        }
    };

    let edges: Vec<(BoxPort, BoxPort)> = scene
        .edges
        .iter()
        .map(|edge| (place(edge.from, 0), place(edge.to, inputs + items)))
        .collect();
    let placed = lay_out(&shapes, &edges, inputs, scene.outputs.len());
    Inside { scene, placed, boxes }
}

fn size<'a>(item: &'a Item, depth: &Depth) -> Sized<'a> {
    let lines = lines(item);
    let widest = lines.iter().map(|line| text_width(line, 10.5)).fold(title_width(item), f64::max);
    let closed = |lines: Vec<String>| {
        let shape = Shape {
            width: widest + 24.0,
            height: 24.0 + LINE * f64::from(u32::try_from(lines.len()).unwrap_or(0)),
            ..Shape::default()
        };
        Sized { item, shape, lines, inside: None }
    };

    let Some((scene, depth)) = depth.opened(item) else { return closed(lines) };
    let inside = measure(scene, &depth);
    let header = frame_line(item);
    let width = (inside.placed.width + 2.0 * PADDING)
        .max(title_width(item) + text_width(&header, 10.5) + 40.0);
    let shift = (width - inside.placed.width) / 2.0;
    let middle = |position: usize| {
        shift + inside.placed.boxes[position].0 + port_width(&inside, position) / 2.0
    };
    let (inputs, items) = (scene.inputs.len(), scene.items.len());
    let shape = Shape {
        width,
        height: inside.placed.height + TITLE + 2.0 * PADDING - 8.0,
        inputs: (0..inputs).map(middle).collect(),
        outputs: (inputs + items..inputs + items + scene.outputs.len()).map(middle).collect(),
    };

    Sized { item, shape, lines: vec![header], inside: Some(inside) }
}

fn port_width(inside: &Inside<'_>, position: usize) -> f64 {
    let inputs = inside.scene.inputs.len();
    let port = if position < inputs {
        &inside.scene.inputs[position]
    } else {
        &inside.scene.outputs[position - inputs - inside.scene.items.len()]
    };
    text_width(&short(&port.name), 10.0) + 6.0
}

/// Puts boxes into a drawing; `prefix` is the path of the calls that they are in, with its slash.
fn put(inside: &Inside<'_>, (left, top): (f64, f64), prefix: &str, drawing: &mut Drawing) {
    let Inside { scene, placed, boxes } = inside;
    let inputs = scene.inputs.len();
    for (position, port) in scene.inputs.iter().enumerate() {
        label(inside, position, &port.name, left, top, drawing);
    }

    for (position, port) in (inputs + boxes.len()..).zip(&scene.outputs) {
        label(inside, position, &port.name, left, top, drawing);
    }

    for (sized, (x, y)) in boxes.iter().zip(&placed.boxes[inputs..]) {
        let (x, y) = (left + x, top + y);
        let path = format!("{prefix}{}", sized.item.path);
        drawing.boxes.push(DrawnBox {
            left: x,
            top: y,
            width: sized.shape.width,
            height: sized.shape.height,
            is_frame: sized.inside.is_some(),
            class: class(sized.item),
            title: title(sized.item),
            lines: sized.lines.clone(),
            times: sized.item.times,
            path: path.clone(),
            hint: hint(sized.item),
            cost: sized.item.cost,
            scene: sized.item.scene().filter(|scene| !scene.items.is_empty()).map(scene_id),
        });
        if let Some(inner) = &sized.inside {
            let shift = (sized.shape.width - inner.placed.width) / 2.0;
            let prefix = if is_call(sized.item) { &format!("{path}/") } else { prefix };
            put(inner, (x + shift, y + TITLE + PADDING - 8.0), prefix, drawing);
        }
    }

    let moved = |route: &Vec<(f64, f64)>| route.iter().map(|(x, y)| (left + x, top + y)).collect();
    drawing.routes.extend(placed.routes.iter().map(moved));
}

/// Returns `true` if the paths within a group do not start with the group's path.
///
/// This is the case for calls of functions, but not for the branches of a node.
fn is_call(item: &Item) -> bool {
    let ItemKind::Group { function: Some(_), scene } = &item.kind else { return false };
    let is_below = |inner: &Item| {
        inner.path.strip_prefix(&item.path).is_some_and(|rest| rest.starts_with('/'))
    };
    !scene.items.iter().any(is_below)
}

fn label(
    inside: &Inside<'_>,
    position: usize,
    name: &str,
    left: f64,
    top: f64,
    drawing: &mut Drawing,
) {
    let (x, y) = inside.placed.boxes[position];
    let text = short(name);
    drawing.labels.push(Label {
        x: left + x + port_width(inside, position) / 2.0,
        y: top + y + 10.5,
        text,
    });
}

pub(super) fn class(item: &Item) -> Class {
    match &item.kind {
        ItemKind::Input | ItemKind::Output => Class::End,
        ItemKind::Group { .. } => Class::Group,
        ItemKind::Node { op, .. } => Class::of(op),
    }
}

fn title(item: &Item) -> String {
    match &item.kind {
        ItemKind::Node { op, .. } => short(op),
        _ => short(&item.name),
    }
}

fn title_width(item: &Item) -> f64 {
    let badge =
        if item.times > 1 { text_width(&format!("× {}", item.times), 11.0) + 20.0 } else { 0.0 };
    text_width(&title(item), 13.0) + badge
}

/// Returns the text beside the title of an opened group.
fn frame_line(item: &Item) -> String {
    let mut parts = Vec::new();
    if let ItemKind::Group { function: Some(function), .. } = &item.kind {
        parts.push(short(function));
    }
    if item.parameters > 0 {
        parts.push(parameters(item.parameters));
    }
    parts.extend(item.cost.as_ref().map(cost_text));
    parts.join(" · ")
}

/// Returns the lines below the title of a box.
fn lines(item: &Item) -> Vec<String> {
    let mut lines = Vec::new();
    match &item.kind {
        ItemKind::Node { op, weights } => {
            if item.name != *op {
                lines.push(short(&item.name));
            }
            lines.extend(weights.iter().take(3).map(|weight| {
                let name = weight.tensor.rsplit('/').next().unwrap_or(&weight.tensor);
                short(&weight_line(weight, name))
            }));
            lines.extend(item.cost.as_ref().map(cost_text));
        }
        ItemKind::Group { .. } => {
            lines.extend(Some(frame_line(item)).filter(|line| !line.is_empty()));
        }
        ItemKind::Input | ItemKind::Output => {}
    }

    lines.extend(item.output.as_deref().map(short));
    lines
}

/// `W: conv1.weight f32[64, 3, 7, 7]`: which input of the operator, which tensor, its type.
fn weight_line(weight: &WeightUse, name: &str) -> String {
    let operand = weight.operand.iter().map(|operand| format!("{operand}: "));
    let kind = weight.kind.iter().map(|kind| format!(" {kind}"));
    operand.chain([name.to_owned()]).chain(kind).collect()
}

/// All that the box leaves out.
fn hint(item: &Item) -> String {
    let mut hint = item.path.clone();
    if let ItemKind::Node { weights, .. } = &item.kind {
        for weight in weights {
            hint.push('\n');
            hint.push_str(&weight_line(weight, &weight.tensor));
        }
    }
    hint
}

/// A text of at most [`LONGEST`] characters.
fn short(text: &str) -> String {
    let count = text.chars().count();
    if count <= LONGEST {
        return text.to_owned();
    }
    let half = LONGEST / 2 - 1;
    let begin: String = text.chars().take(half).collect();
    let end: String = text.chars().skip(count - half).collect();
    format!("{begin}…{end}")
}

/// About how wide a text is in a sans-serif font, in pixels. Capitals and wide characters count
/// more, thin ones less.
fn text_width(text: &str, size: f64) -> f64 {
    let width = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | '\'' | '|' | '[' | ']' | ' ' | '/' => 0.32,
        'm' | 'w' | 'M' | 'W' => 0.86,
        c if c.is_ascii_uppercase() => 0.68,
        c if c.is_ascii() => 0.57,
        _ => 0.9,
    };
    text.chars().map(width).sum::<f64>() * size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outline::{NodeView, OutlineOptions, outline};
    use crate::{BodyBuilder, ElementType, GraphBuilder, Meaning};

    #[test]
    fn long_texts_lose_their_middle() {
        let long = "a".repeat(30) + &"b".repeat(30);
        let text = short(&long);
        assert_eq!(text.chars().count(), 47);
        assert!(text.starts_with('a') && text.ends_with('b'));
    }

    #[test]
    fn weights_stand_beside_the_inputs_that_onnx_names() {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let x = main.input("x", ElementType::F32, [1.into(), 3.into()], Meaning::Unknown);
        let w = main.weight("w", ElementType::F32, [3, 3, 7]);
        let bias = main.weight("bias", ElementType::F32, [3]);
        let y = main.op("Conv", [x, w, bias]).output("y");
        main.output("y", y, Meaning::Unknown);
        let drawing = draw(&outline(&graph.finish(), OutlineOptions::default()), &Depth::ALL);
        let drawn = drawing.boxes.iter().find(|drawn| drawn.title == "Conv").expect("a box");
        // The operator's inputs are X, W and B in ONNX's documentation.
        assert_eq!(drawn.lines[1..3], ["W: w f32[3, 3, 7]", "B: bias f32[3]"]);
        assert_eq!(drawn.hint, "y\nW: w f32[3, 3, 7]\nB: bias f32[3]");
    }

    #[test]
    fn boxes_have_paths_through_the_calls_that_they_are_in() {
        let mut graph = GraphBuilder::new(17);
        let mut inner = BodyBuilder::default();
        let x = inner.parameter("x");
        let y = inner.scope("mlp", |inner| inner.op("Relu", [x]).output("act"));
        let z = inner.op("Neg", [y]).output("neg");
        inner.output("z", z, Meaning::Unknown);
        let layer = graph.function("local", "Layer", inner);
        let main = graph.body();
        let x = main.input("x", ElementType::F32, [2.into()], Meaning::Unknown);
        let y = main.scope("layers", |main| main.call(&layer, [x]).output("0"));
        main.output("y", y, Meaning::Unknown);
        let graph = graph.finish();
        let scene = outline(&graph, OutlineOptions::default());
        let drawing = draw(&scene, &Depth::ALL);
        let paths: Vec<_> = drawing.boxes.iter().map(|drawn| drawn.path.as_str()).collect();
        assert_eq!(paths, ["x", "layers", "layers/0", "layers/0/mlp", "layers/0/neg", "y"]);
        for path in ["layers/0/neg", "layers/0/mlp/act"] {
            assert_eq!(NodeView::find(&graph, path).len(), 1, "{path}");
        }
    }

    #[test]
    fn operators_have_classes() {
        assert_eq!(Class::of("com.microsoft::MatMulNBits"), Class::Product);
        assert_eq!(Class::of("LayerNormalization"), Class::Norm);
        assert_eq!(Class::of("Anything"), Class::Arithmetic);
        assert_eq!(Class::of("tflite::DEPTHWISE_CONV_2D"), Class::Product);
        assert_eq!(Class::of("keras::BatchNormalization"), Class::Norm);
        assert_eq!(Class::of("tensorflow::Mul"), Class::Arithmetic);
    }
}
