//! Graphs as pictures and texts: a tree for the terminal, SVG, and what Graphviz and Mermaid read.
//!
//! All of them show a [`Scene`], opened down to some depth.

mod dot;
mod flowchart;
mod layered;
mod mermaid;
mod order;
mod place;
mod plan;
mod svg;
mod tree;
mod vertex;

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use crate::Totals;
use crate::outline::{Item, Scene};

pub use dot::dot;
pub use mermaid::{beyond_mermaid, mermaid};
pub use plan::{Class, Drawing, DrawnBox, Label};
pub use svg::{TooManyBoxes, svg};
pub use tree::{Branch, tree};

/// Selection of the groups of a scene that are shown opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Depth {
    /// Groups down to this depth; 0 shows the groups of the scene itself closed.
    Levels(usize),
    /// These, wherever they are shown: what [`Depth::that_fits`] has chosen, or whoever looks at a
    /// [`drawing`] by the scenes of its boxes.
    Chosen(Arc<HashSet<SceneId>>),
}

/// Identifier of a scene, valid for as long as the outline exists.
pub type SceneId = usize;

impl Depth {
    /// Depth at which all groups are open.
    pub const ALL: Self = Self::Levels(usize::MAX);

    /// Opens the groups with most weights, one after the other, as long as there are at most `most`
    /// items. Groups with little of what is beside them stay closed: they compute no more than
    /// their name says. Where nothing has weights, every group is opened that has room.
    #[must_use]
    pub fn that_fits(scene: &Scene, most: usize) -> Self {
        /// Divisor of the minimum share: a group needs at least 1/50 of the weights in its scene to
        /// be opened.
        const SHARE: u64 = 50;

        let mut chosen = HashSet::new();
        let mut waiting = BinaryHeap::new();
        let wait = |waiting: &mut BinaryHeap<_>, scene: &Scene| {
            let sum =
                scene.items.iter().fold(0_u64, |sum, item| sum.saturating_add(item.parameters));
            let counts = |item: &&Item| item.parameters.saturating_mul(SHARE) >= sum;
            let groups =
                scene.items.iter().filter(counts).filter_map(|item| Some((item, item.scene()?)));
            waiting.extend(
                groups.map(|(item, scene)| {
                    ByWeight(item.parameters / item.times.max(1), scene.clone())
                }),
            );
        };

        wait(&mut waiting, scene);
        while let Some(ByWeight(_, group)) = waiting.pop() {
            if !chosen.insert(scene_id(&group)) {
                continue;
            }
            // It may be shown at several places, and what is open within it too.
            if fits(scene, &chosen, most) {
                wait(&mut waiting, &group);
            } else {
                chosen.remove(&scene_id(&group));
            }
        }

        Self::Chosen(Arc::new(chosen))
    }

    /// Returns the scene in an item if it is opened, with the selection of groups to open within
    /// it.
    pub(crate) fn opened<'a>(&self, item: &'a Item) -> Option<(&'a Scene, Self)> {
        // An empty frame would show nothing.
        let scene = item.scene().filter(|scene| !scene.items.is_empty())?;
        match self {
            Self::Levels(levels) => Some((scene, Self::Levels(levels.checked_sub(1)?))),
            Self::Chosen(chosen) => {
                chosen.contains(&scene_id(scene)).then(|| (scene.as_ref(), self.clone()))
            }
        }
    }
}

/// Lays a scene out, opened down to `depth`, for a program that draws it by itself.
///
/// # Errors
/// When there would be more than `most` boxes.
///
/// ```
/// use apr_graph::draw::{Depth, drawing};
/// use apr_graph::outline::{OutlineOptions, outline};
/// use apr_graph::{ElementType, GraphBuilder, Meaning};
///
/// let mut graph = GraphBuilder::new(17);
/// let x = graph.body().input("x", ElementType::F32, [2.into()], Meaning::Unknown);
/// let y = graph.body().op("Relu", [x]).output("act");
/// graph.body().output("y", y, Meaning::Unknown);
///
/// let scene = outline(&graph.finish(), OutlineOptions::default());
/// let drawing = drawing(&scene, &Depth::ALL, 1000)?;
/// assert_eq!(drawing.boxes.len(), 3);
/// # Ok::<(), apr_graph::draw::TooManyBoxes>(())
/// ```
pub fn drawing(scene: &Scene, depth: &Depth, most: usize) -> Result<Drawing, TooManyBoxes> {
    let boxes = plan::count(scene, depth);
    if boxes > most {
        return Err(TooManyBoxes { boxes, most });
    }
    Ok(plan::draw(scene, depth))
}

/// A scene is the one at its place in memory, which it keeps as long as the outline is there.
fn scene_id(scene: &Arc<Scene>) -> SceneId {
    Arc::as_ptr(scene).addr()
}

/// Returns `true` if the scene has at most `most` items with these groups opened.
fn fits(scene: &Scene, open: &HashSet<SceneId>, most: usize) -> bool {
    let mut count = 0_usize;
    let mut waiting = vec![scene];
    while let Some(scene) = waiting.pop() {
        count = count.saturating_add(scene.items.len());
        if count > most {
            return false;
        }
        let groups = scene.items.iter().filter_map(Item::scene);
        waiting.extend(groups.filter(|group| open.contains(&scene_id(group))).map(Arc::as_ref));
    }
    true
}

/// Group, ordered by the number of weights in one repetition.
struct ByWeight(u64, Arc<Scene>);

impl PartialEq for ByWeight {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for ByWeight {}

impl PartialOrd for ByWeight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByWeight {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

/// A number of parameters in three digits: `22.7 M`.
#[must_use]
pub fn parameters(count: u64) -> String {
    three_digits(count, ["k", "M", "B", "T"]).trim_end().to_owned()
}

/// Formats operations and bytes with three digits: `1.07 GFLOP, 4.20 MB`.
///
/// Without operations, only the bytes are shown. Unknown sizes are marked.
#[must_use]
pub fn cost_text(cost: &Totals) -> String {
    const OPERATIONS: [&str; 4] = ["k", "M", "G", "T"];
    const BYTES: [&str; 4] = ["K", "M", "G", "T"];

    let bytes =
        cost.weight_bytes.saturating_add(cost.read_bytes).saturating_add(cost.written_bytes);
    let mut parts = Vec::new();
    if cost.flops > 0 {
        parts.push(format!("{}FLOP", three_digits(cost.flops, OPERATIONS)));
    }
    parts.push(format!("{}B", three_digits(bytes, BYTES)));
    if cost.unknown > 0 {
        parts.push("more unknown".to_owned());
    }
    parts.join(", ")
}

/// Formats a number with three digits, rounded, and the unit of a power of 1,000 after a space:
/// `22.7 M`, `320 `.
fn three_digits(count: u64, units: [&str; 4]) -> String {
    const SIZES: [u64; 4] = [1_000, 1_000_000, 1_000_000_000, 1_000_000_000_000];
    let in_unit = |(size, unit): (u64, &str)| {
        let (count, size) = (u128::from(count), u128::from(size));
        // Two decimals below 10, one below 100: three digits in all.
        let rounded = |decimals: u128| (count * decimals + size / 2) / size;
        match (rounded(100), rounded(10)) {
            (hundredths @ 0..1000, _) => {
                format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
            }
            (_, tenths @ 0..1000) => format!("{}.{} {unit}", tenths / 10, tenths % 10),
            _ => format!("{} {unit}", rounded(1)),
        }
    };
    // A number that rounds to 1,000 of a unit is 1 of the next.
    let reaches = |(size, _): &(u64, &str)| u128::from(count) * 2000 >= u128::from(*size) * 1999;
    let reached = SIZES.into_iter().zip(units).rev().find(reaches);
    reached.map_or_else(|| format!("{count} "), in_unit)
}

/// A text within the quotes of XML, DOT or Mermaid. Characters that would end the quotes, start a
/// tag or an entity, or steer a terminal are written as numbers.
pub(crate) fn quoted(text: &str, special: &str, write: impl Fn(u32) -> String) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if special.contains(c) || apr_core::is_hidden(c) {
            let _ = write!(quoted, "{}", write(u32::from(c)));
        } else {
            quoted.push(c);
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_three_digits() {
        for (count, text) in [
            (7, "7"),
            (999, "999"),
            (1_003, "1.00 k"),
            (9_994, "9.99 k"),
            (9_995, "10.0 k"),
            (33_152, "33.2 k"),
            (49_152, "49.2 k"),
            (99_949, "99.9 k"),
            (99_950, "100 k"),
            (361_856, "362 k"),
            (999_499, "999 k"),
            (999_500, "1.00 M"),
            (22_713_216, "22.7 M"),
            (6_738_415_616, "6.74 B"),
        ] {
            assert_eq!(parameters(count), text);
        }
        assert_eq!(parameters(u64::MAX), "18446744 T");
    }
}
