//! What an outline is made of.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::{TensorType, Totals};

/// Contents of a group or of the whole graph: items and the edges between them.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Scene {
    /// Items, in the order they run.
    pub items: Vec<Item>,
    /// Edges between the items and the border of the group.
    pub edges: Vec<Edge>,
    /// Inputs of the group, in the order of first use.
    pub inputs: Vec<Port>,
    /// Outputs of the group.
    pub outputs: Vec<Port>,
    /// `true` if groups of the whole graph are shown as empty although they are not.
    ///
    /// Functions that call one another can make an image far larger than the graph; then only the
    /// upper levels are shown.
    #[serde(skip_serializing_if = "is_false")]
    pub is_partial: bool,
}

/// A place on the border of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Port {
    /// Name of the value.
    pub name: String,
    /// Type, such as `f32[batch, 320]`, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A node, a group of them, or an input or output of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Item {
    /// Name within the group: `attention`, `layers.0-79`.
    pub name: String,
    /// Path of the first node or group that the item represents.
    pub path: String,
    /// Number of repetitions, one after the other.
    pub times: u64,
    /// Kind of the item, such as an operator or a group.
    #[serde(flatten)]
    pub kind: ItemKind,
    /// Type of the main output, if known: the first output of a node or call, the last output of
    /// another group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Number of elements of the item's weights, including repetitions.
    pub parameters: u64,
    /// Cost including repetitions, if [`Scene::with_costs`] added costs and it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Totals>,
    /// Positions of the item's nodes in their body, including repetitions.
    #[serde(skip)]
    pub(super) nodes: Vec<usize>,
}

/// Kind of an item.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ItemKind {
    /// Input that the caller passes.
    Input,
    /// Output that the caller receives.
    Output,
    /// Operator of the graph.
    Node {
        /// `MatMul`, or `com.microsoft::MatMulNBits`.
        op: String,
        /// The weights that it reads.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        weights: Vec<WeightUse>,
    },
    /// Several items under one name.
    Group {
        /// The function that it is a call of.
        #[serde(skip_serializing_if = "Option::is_none")]
        function: Option<String>,
        /// Contents of the group; shared, since every layer of a model may be the same function.
        #[serde(serialize_with = "shared")]
        scene: Arc<Scene>,
    },
}

/// A weight that a node reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightUse {
    /// Name of the input that it is given as, such as `W` of a convolution; `None` for operators
    /// that are not known, and for what a branch reads from the body around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operand: Option<String>,
    /// Name of the tensor, or of the parameter of a function.
    pub tensor: String,
    /// Type as the node reads it, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Something that flows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Edge {
    /// Source of the edge.
    pub from: End,
    /// Target of the edge.
    pub to: End,
}

/// One end of an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum End {
    /// An item, and which of the ports of its group.
    Item(usize, usize),
    /// The border of the group: which of its inputs, or of its outputs.
    Border(usize),
}

impl Item {
    /// Returns the contents of a group, or `None` for other items.
    #[must_use]
    pub fn scene(&self) -> Option<&Arc<Scene>> {
        match &self.kind {
            ItemKind::Group { scene, .. } => Some(scene),
            _ => None,
        }
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn shared<S: Serializer>(scene: &Arc<Scene>, serializer: S) -> Result<S::Ok, S::Error> {
    scene.as_ref().serialize(serializer)
}

/// Formats a type as `f32[batch, 320]`, or returns `None` if the type is not known.
pub(super) fn shown(kind: Option<&TensorType>) -> Option<String> {
    kind.filter(|kind| kind.element.is_some() || kind.shape.is_some()).map(ToString::to_string)
}
