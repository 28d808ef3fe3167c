//! Boxes in layers: what flows goes from top to bottom.
//!
//! The method is that of Sugiyama, Tagawa and Toda (1981): each box gets a layer below all that it
//! reads; edges that pass a layer get a bend in it; the order within layers is chosen for few
//! crossings (`order.rs`), then places that keep the order and make edges straight (`place.rs`). A
//! group is laid out by itself and is one box in the group around it.

use super::vertex::{Link, Vertex};
use super::{order, place};

/// Space between boxes of a layer.
const GAP: f64 = 22.0;
/// Space between bends, and between a bend and a box.
const BEND_GAP: f64 = 14.0;
/// Space between layers.
const LAYER_GAP: f64 = 34.0;

/// Bends that a drawing may have for each of its boxes, and a few more. A node that reads what a
/// thousand layers made would have a million of them.
const BENDS_OF_A_BOX: usize = 64;
const FREE_BENDS: usize = 1000;

/// A box to be placed.
#[derive(Debug, Clone, Default)]
pub(super) struct Shape {
    pub(super) width: f64,
    pub(super) height: f64,
    /// Positions at the top where edges end, measured from the left side; empty for the middle.
    pub(super) inputs: Vec<f64>,
    /// Positions at the bottom where edges begin.
    pub(super) outputs: Vec<f64>,
}

impl Shape {
    fn at(ports: &[f64], port: usize, width: f64) -> f64 {
        ports.get(port).copied().unwrap_or(width / 2.0)
    }
}

/// A box and a port of it.
pub(super) type BoxPort = (usize, usize);

/// Positions of all boxes and edges, measured from the upper left corner of the drawing.
#[derive(Debug, Clone, Default)]
pub(super) struct Placed {
    /// Left and upper sides of the boxes.
    pub(super) boxes: Vec<(f64, f64)>,
    /// For each edge the points it passes: out of a box, down through the bends, into a box. Pairs
    /// of points are straight, from one pair to the next the edge turns.
    pub(super) routes: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Places boxes whose edges are given. `first` boxes at the beginning are in the uppermost layer,
/// `last` at the end in the lowest. An edge from a later box to an earlier one goes upwards.
pub(super) fn lay_out(
    shapes: &[Shape],
    edges: &[(BoxPort, BoxPort)],
    first: usize,
    last: usize,
) -> Placed {
    if shapes.is_empty() {
        return Placed::default();
    }

    let layers = layers(shapes.len(), edges, first, last);
    let mut vertices: Vec<Vertex> = shapes
        .iter()
        .zip(&layers)
        .map(|(shape, layer)| Vertex {
            layer: *layer,
            width: shape.width,
            is_bend: false,
            above: Vec::new(),
            below: Vec::new(),
        })
        .collect();
    let chains = bend(shapes, edges, &mut vertices);
    let rows = order::rows(&vertices);
    let lefts =
        place::lefts(
            &vertices,
            &rows,
            |left, right| if left.is_bend || right.is_bend { BEND_GAP } else { GAP },
        );
    assemble(shapes, edges, &vertices, &chains, &lefts)
}

/// Returns a layer for each box: below the boxes that it reads.
///
/// A box that reads nothing is placed just above the boxes that read it.
fn layers(count: usize, edges: &[(BoxPort, BoxPort)], first: usize, last: usize) -> Vec<usize> {
    let mut below = vec![Vec::new(); count];
    let mut reads = vec![false; count];
    for ((from, _), (to, _)) in edges {
        // An edge upwards counts as one downwards, or there would be circles.
        let (upper, lower) = (*from.min(to), *from.max(to));
        if upper != lower {
            below[upper].push(lower);
            reads[lower] = true;
        }
    }

    let mut layers = vec![usize::from(first > 0); count];
    layers[..first].fill(0);

    // Edges go to later boxes alone here, so one pass in order is enough.
    for upper in 0..count {
        for &lower in &below[upper] {
            layers[lower] = layers[lower].max(layers[upper] + 1);
        }
    }

    for upper in (first..count).rev().filter(|upper| !reads[*upper]) {
        if let Some(nearest) = below[upper].iter().map(|lower| layers[*lower]).min() {
            layers[upper] = nearest.saturating_sub(1);
        }
    }

    let lowest = layers.iter().copied().max().unwrap_or(0);

    // Outputs get a layer of their own where another box is in the lowest.
    let ends_alone = layers[..count - last].contains(&lowest);
    layers[count - last..].fill(lowest + usize::from(last > 0 && ends_alone));
    layers
}

/// Adds a bend for each layer that an edge crosses and returns the vertices of each edge.
///
/// The vertices include the ends of the edge. Edges that start at the same port share their bends
/// for as long as they run down together. Edges beyond the limit of bends are straight and do not
/// influence the order.
fn bend(
    shapes: &[Shape],
    edges: &[(BoxPort, BoxPort)],
    vertices: &mut Vec<Vertex>,
) -> Vec<Vec<usize>> {
    let mut shared = std::collections::HashMap::new();
    let mut linked = std::collections::HashSet::new();
    let mut chains = Vec::with_capacity(edges.len());
    let mut left = BENDS_OF_A_BOX * shapes.len() + FREE_BENDS;
    for &(from, to) in edges {
        let goes_up = from.0 > to.0;
        let (upper, lower) = if goes_up { (to, from) } else { (from, to) };
        let between = vertices[lower.0].layer.saturating_sub(vertices[upper.0].layer + 1);
        let Some(rest) = left.checked_sub(between) else {
            chains.push(vec![from.0, to.0]);
            continue;
        };
        left = rest;
        let mut chain = vec![upper.0];
        for layer in vertices[upper.0].layer + 1..vertices[lower.0].layer {
            let key = (upper, goes_up.then_some(lower), layer);
            let vertex = *shared.entry(key).or_insert_with(|| {
                vertices.push(Vertex {
                    layer,
                    width: 0.0,
                    is_bend: true,
                    above: Vec::new(),
                    below: Vec::new(),
                });
                vertices.len() - 1
            });
            chain.push(vertex);
        }

        chain.push(lower.0);
        for (step, pair) in chain.windows(2).enumerate() {
            let leaves = if step == 0 { touch(shapes, upper, !goes_up) } else { 0.0 };
            let enters = if step + 2 == chain.len() { touch(shapes, lower, goes_up) } else { 0.0 };
            // Edges that share a bend pull on it once.
            if linked.insert((pair[0], pair[1], leaves.to_bits(), enters.to_bits())) {
                vertices[pair[0]].below.push(Link { other: pair[1], here: leaves, there: enters });
                vertices[pair[1]].above.push(Link { other: pair[0], here: enters, there: leaves });
            }
        }

        if goes_up {
            chain.reverse();
        }

        chains.push(chain);
    }

    chains
}

/// Returns the position at which an edge touches a box, measured from the left side.
fn touch(shapes: &[Shape], (item, port): BoxPort, is_output: bool) -> f64 {
    let shape = &shapes[item];
    Shape::at(if is_output { &shape.outputs } else { &shape.inputs }, port, shape.width)
}

fn assemble(
    shapes: &[Shape],
    edges: &[(BoxPort, BoxPort)],
    vertices: &[Vertex],
    chains: &[Vec<usize>],
    lefts: &[f64],
) -> Placed {
    let layers = vertices.iter().map(|vertex| vertex.layer).max().map_or(0, |layer| layer + 1);
    let mut heights = vec![0.0_f64; layers];
    for (shape, vertex) in shapes.iter().zip(vertices) {
        heights[vertex.layer] = heights[vertex.layer].max(shape.height);
    }

    let mut tops = Vec::with_capacity(layers);
    let mut y = 0.0;
    for height in &heights {
        tops.push(y);
        y += height + LAYER_GAP;
    }

    let top = |vertex: usize| {
        let layer = vertices[vertex].layer;
        let height = shapes.get(vertex).map_or(heights[layer], |shape| shape.height);
        tops[layer] + (heights[layer] - height) / 2.0
    };
    let boxes: Vec<(f64, f64)> =
        (0..shapes.len()).map(|vertex| (lefts[vertex], top(vertex))).collect();
    let routes = edges
        .iter()
        .zip(chains)
        .map(|((from, to), chain)| {
            let mut points = vec![(
                lefts[from.0] + touch(shapes, *from, true),
                boxes[from.0].1 + shapes[from.0].height,
            )];
            for &bend in &chain[1..chain.len() - 1] {
                let layer = vertices[bend].layer;
                let (upper, lower) = (tops[layer], tops[layer] + heights[layer]);
                let (begin, end) = if from.0 > to.0 { (lower, upper) } else { (upper, lower) };
                points.extend([(lefts[bend], begin), (lefts[bend], end)]);
            }
            points.push((lefts[to.0] + touch(shapes, *to, false), boxes[to.0].1));
            points
        })
        .collect();
    let width = (0..vertices.len())
        .map(|vertex| lefts[vertex] + vertices[vertex].width)
        .fold(0.0, f64::max);
    Placed { boxes, routes, width, height: y - LAYER_GAP }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxes(count: usize) -> Vec<Shape> {
        vec![Shape { width: 100.0, height: 40.0, ..Shape::default() }; count]
    }

    fn edge(from: usize, to: usize) -> (BoxPort, BoxPort) {
        ((from, 0), (to, 0))
    }

    #[test]
    fn a_chain_is_a_column_and_a_shortcut_passes_beside_it() {
        let placed = lay_out(&boxes(3), &[edge(0, 1), edge(1, 2), edge(0, 2)], 0, 0);
        assert!(placed.boxes.windows(2).all(|pair| pair[0].1 < pair[1].1));
        let bend = placed.routes[2][1].0;
        let (left, _) = placed.boxes[1];
        assert!(
            bend <= left - BEND_GAP + 1e-6 || bend >= left + 100.0 + BEND_GAP - 1e-6,
            "{placed:?}"
        );
    }

    #[test]
    fn boxes_of_a_layer_do_not_overlap() {
        let edges: Vec<_> =
            (1..9).map(|to| edge(0, to)).chain((1..9).map(|from| edge(from, 9))).collect();
        let placed = lay_out(&boxes(10), &edges, 0, 0);
        let mut lefts: Vec<f64> = placed.boxes[1..9].iter().map(|(left, _)| *left).collect();
        lefts.sort_by(f64::total_cmp);
        assert!(lefts.windows(2).all(|pair| pair[1] - pair[0] >= 100.0 + GAP - 1e-6), "{lefts:?}");
        assert!(lefts[0] >= -1e-6 && placed.width >= lefts[7] + 100.0 - 1e-6);
    }

    #[test]
    fn borders_are_the_first_and_the_last_layer() {
        let placed = lay_out(&boxes(4), &[edge(0, 1), edge(1, 3), edge(2, 3)], 1, 1);
        assert!(placed.boxes[0].1 < placed.boxes[1].1 && placed.boxes[2].1 < placed.boxes[3].1);
    }

    #[test]
    fn edges_that_pass_too_many_layers_are_straight() {
        const COUNT: usize = 2000;
        let chain = (1..COUNT).map(|to| edge(to - 1, to));
        let edges: Vec<_> = chain.chain((0..COUNT - 1).map(|from| edge(from, COUNT - 1))).collect();
        let placed = lay_out(&boxes(COUNT), &edges, 0, 0);
        let points: usize = placed.routes.iter().map(Vec::len).sum();
        assert!(points < 2 * (BENDS_OF_A_BOX * COUNT + FREE_BENDS + 2 * edges.len()), "{points}");
        assert_eq!(placed.routes[2 * COUNT - 4].len(), 2);
    }

    #[test]
    fn an_edge_back_goes_up() {
        let placed = lay_out(&boxes(2), &[edge(0, 1), edge(1, 0)], 0, 0);
        assert!(placed.routes[1][0].1 > placed.routes[1][1].1);
    }
}
