//! The graph of a model: its parts, a drawing of each, the nodes that read a tensor.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use apr_graph::draw::{Depth, Drawing, SceneId, TooManyBoxes, drawing, svg};
use apr_graph::outline::{NodeView, OutlineOptions, Scene, outline};
use apr_graph::uses;
use apr_ops::graph::{GraphOrigin, GraphPart, PartSummary, summaries};
use serde::Serialize;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::error::{Thrown, json};
use crate::model::Model;

/// Number of boxes in the first drawing of a graph, which fit on a screen.
const FIRST: usize = 160;
/// Maximum number of boxes in a drawing.
const MOST: usize = 200_000;
/// Uses of a tensor that are listed: one that is used more often is a buffer that everything reads.
const MOST_USES: usize = 100;

/// Outlines of the parts, created on their first use.
#[derive(Default)]
pub(crate) struct Scenes(RefCell<BTreeMap<SceneKey, Arc<Scene>>>);

/// Key of an outline: the part, `true` if repeated layers are folded, and `true` if items have
/// costs.
type SceneKey = (usize, bool, bool);

/// Summary of a model's computation.
#[derive(Serialize)]
struct Parts {
    origin: GraphOrigin,
    parts: Vec<PartSummary>,
    unused_tensors: Vec<String>,
}

/// A drawing, and the groups that are open in it.
#[derive(Serialize)]
struct Opened {
    #[serde(flatten)]
    drawing: Drawing,
    open: Vec<SceneId>,
}

/// A node that reads a tensor.
#[derive(Serialize)]
struct NodeUse {
    part: usize,
    node: String,
}

#[wasm_bindgen]
impl Model {
    /// The graphs of the model, their operators and costs: the report of `apr graph` without the
    /// structure.
    ///
    /// # Errors
    /// E003 where its file has no graph and its family is not known; E001 where the configuration
    /// lacks what the graph needs.
    pub fn graph(&self) -> std::result::Result<String, JsValue> {
        let graphs = self.graphs().map_err(Thrown::from)?;
        json(&Parts {
            origin: graphs.origin.clone(),
            parts: summaries(graphs),
            unused_tensors: graphs.unused.clone(),
        })
    }

    /// Boxes and edges of a part with these groups open; those that fit a screen where `open` is
    /// not given. `fold` makes one box of layers that repeat; `costs` adds what each box
    /// costs. Groups are those of a drawing with the same two choices.
    ///
    /// # Errors
    /// Those of [`graph`](Self::graph), and a request for more boxes than can be drawn.
    pub fn drawing(
        &self,
        part: usize,
        fold: bool,
        costs: bool,
        open: Option<Vec<usize>>,
    ) -> std::result::Result<String, JsValue> {
        let scene = self.scene((part, fold, costs))?;
        let chosen = match open {
            Some(open) => Arc::new(open.into_iter().collect::<HashSet<_>>()),
            None => match Depth::that_fits(&scene, FIRST) {
                Depth::Chosen(chosen) => chosen,
                _ => Arc::default(),
            },
        };
        let drawing =
            drawing(&scene, &Depth::Chosen(Arc::clone(&chosen)), MOST).map_err(too_many)?;
        let mut open: Vec<_> = chosen.iter().copied().collect();
        open.sort_unstable();
        json(&Opened { drawing, open })
    }

    /// The same as an SVG document, as `apr graph --format svg` writes it.
    ///
    /// # Errors
    /// Those of [`drawing`](Self::drawing).
    pub fn svg(
        &self,
        part: usize,
        fold: bool,
        costs: bool,
        open: Vec<usize>,
    ) -> std::result::Result<String, JsValue> {
        let scene = self.scene((part, fold, costs))?;
        let depth = Depth::Chosen(Arc::new(open.into_iter().collect()));
        Ok(svg(&scene, &depth).map_err(too_many)?)
    }

    /// Nodes by a path or by the name of a value, with all that they read, make and are set to.
    ///
    /// # Errors
    /// Those of [`graph`](Self::graph).
    pub fn node(&self, part: usize, path: &str) -> std::result::Result<String, JsValue> {
        json(&NodeView::find(&self.part(part)?.graph, path))
    }

    /// Paths of nodes that contain a text, at most `most`.
    ///
    /// # Errors
    /// Those of [`graph`](Self::graph).
    pub fn search_nodes(
        &self,
        part: usize,
        text: &str,
        most: usize,
    ) -> std::result::Result<String, JsValue> {
        /// Paths that are looked through.
        const LOOKED_THROUGH: usize = 1_000_000;
        let wanted = text.to_lowercase();
        let paths = NodeView::paths(&self.part(part)?.graph, LOOKED_THROUGH);
        let found = paths.into_iter().filter(|path| path.to_lowercase().contains(&wanted));
        json(&found.take(most).collect::<Vec<_>>())
    }

    /// The nodes that read a tensor, part by part.
    ///
    /// # Errors
    /// Those of [`graph`](Self::graph).
    pub fn uses(&self, name: &str) -> std::result::Result<String, JsValue> {
        let tensor = self.position(name)?;
        let graphs = self.graphs().map_err(Thrown::from)?;
        let source = self.source();
        let is_own = graphs.origin == GraphOrigin::File;
        let family = source.family().map_err(Thrown::from)?.filter(|_| !is_own);
        let name = family.and_then(|family| family.canonical(tensor)).unwrap_or(name);
        let mut found = Vec::new();
        for (part, graph) in graphs.parts.iter().enumerate() {
            let nodes = uses(&graph.graph, name, MOST_USES).into_iter().map(|used| used.node);
            found.extend(nodes.map(|node| NodeUse { part, node }));
        }
        json(&found)
    }
}

impl Model {
    fn part(&self, part: usize) -> std::result::Result<&GraphPart, JsValue> {
        let graphs = self.graphs().map_err(Thrown::from)?;
        let missing = || Thrown::request(format!("the model has no part {part}"));
        Ok(graphs.parts.get(part).ok_or_else(missing)?)
    }

    fn scene(&self, key: SceneKey) -> std::result::Result<Arc<Scene>, JsValue> {
        let known = self.scenes.0.borrow().get(&key).cloned();
        if let Some(scene) = known {
            return Ok(scene);
        }
        let (part, fold, costs) = key;
        let part = self.part(part)?;
        let mut scene = outline(&part.graph, OutlineOptions { fold });
        if costs {
            scene = scene.with_costs(&part.cost(&BTreeMap::new()));
        }
        let scene = Arc::new(scene);
        self.scenes.0.borrow_mut().insert(key, Arc::clone(&scene));
        Ok(scene)
    }
}

fn too_many(error: TooManyBoxes) -> Thrown {
    Thrown::request(error.to_string())
}
