//! What an outline is made of.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::{TensorType, Totals};

/// What is in a group, or in the whole graph: items, and what flows between them.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Scene {
    /// In the order they run.
    pub items: Vec<Item>,
    /// What flows between them and the border of the group.
    pub edges: Vec<Edge>,
    /// What comes into the group from outside, in the order of first use.
    pub inputs: Vec<Port>,
    /// What leaves the group.
    pub outputs: Vec<Port>,
    /// Of the whole graph: whether groups are shown as empty that are not. Functions that call one
    /// another make a picture far larger than the graph; then only the upper levels are shown.
    #[serde(skip_serializing_if = "is_false")]
    pub is_partial: bool,
}

/// A place on the border of a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Port {
    /// Name of the value.
    pub name: String,
    /// Its type, such as `f32[batch, 320]`, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A node, a group of them, or an input or output of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Item {
    /// Its name within the group: `attention`, `layers.0-79`.
    pub name: String,
    /// Path of the first node or group that it stands for.
    pub path: String,
    /// How often it comes, one after the other.
    pub times: u64,
    /// What it is.
    #[serde(flatten)]
    pub kind: ItemKind,
    /// Type of its first output, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Elements of the weights in it, those of repetitions included.
    pub parameters: u64,
    /// What it costs, repetitions included, where [`Scene::with_costs`] has told and it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Totals>,
    /// Positions of its nodes in the body that it is of, those of repetitions included.
    #[serde(skip)]
    pub(super) nodes: Vec<usize>,
}

/// What an item is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ItemKind {
    /// What the caller gives.
    Input,
    /// What the caller gets.
    Output,
    /// An operator.
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
        /// What is in it; shared, since every layer of a model may be the same function.
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
    /// Its type as the node sees it, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Something that flows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Edge {
    /// Where it comes from.
    pub from: End,
    /// Where it goes.
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
    /// What is in it, where it is a group.
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

/// `f32[batch, 320]`, where something is known.
pub(super) fn shown(kind: Option<&TensorType>) -> Option<String> {
    kind.filter(|kind| kind.element.is_some() || kind.shape.is_some()).map(ToString::to_string)
}
