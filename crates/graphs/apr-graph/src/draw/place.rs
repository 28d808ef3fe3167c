//! Places from left to right that keep the order of layers and make edges straight.

use super::vertex::{Link, Vertex};

/// Number of sweeps over the layers, down and up.
const SWEEPS: usize = 24;

/// Weight of an edge between two bends, relative to other edges: long edges should be straight.
const STRAIGHT: f64 = 6.0;

/// Left sides of the vertices, the smallest at 0.
pub(super) fn lefts(
    vertices: &[Vertex],
    rows: &[Vec<usize>],
    gap: impl Fn(&Vertex, &Vertex) -> f64,
) -> Vec<f64> {
    let gap = &gap;

    // Where the left side of each vertex is at least, with its row pushed to the left.
    let mut packed = vec![0.0; vertices.len()];
    for row in rows {
        for pair in row.windows(2) {
            let (left, right) = (&vertices[pair[0]], &vertices[pair[1]]);
            packed[pair[1]] = packed[pair[0]] + left.width + gap(left, right);
        }
    }

    let mut lefts = packed.clone();
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        for step in 1..rows.len() {
            let row = &rows[if down { step } else { rows.len() - 1 - step }];
            settle(vertices, row, &packed, &mut lefts, down);
        }
    }

    let smallest = lefts.iter().copied().fold(f64::INFINITY, f64::min);
    lefts.iter().map(|left| left - smallest).collect()
}

/// Moves a row towards the preferred positions of its vertices, by least squares, keeping order and
/// gaps.
///
/// With the minimum positions subtracted, the constraint is that numbers do not decrease. This is
/// isotonic regression, which is solved exactly by pooling neighbours that violate the constraint.
fn settle(vertices: &[Vertex], row: &[usize], packed: &[f64], lefts: &mut [f64], down: bool) {
    // Pools of neighbours: weight, weighted sum of wanted places, how many.
    let mut pools: Vec<(f64, f64, usize)> = Vec::with_capacity(row.len());
    for &vertex in row {
        let links = if down { &vertices[vertex].above } else { &vertices[vertex].below };
        let (weight, wanted) = wish(vertices, vertex, links, lefts);
        let mut pool = (weight, weight * (wanted - packed[vertex]), 1);
        while let Some(before) = pools.pop_if(|before| before.1 / before.0 > pool.1 / pool.0) {
            pool = (before.0 + pool.0, before.1 + pool.1, before.2 + pool.2);
        }
        pools.push(pool);
    }

    let mut vertices = row.iter();
    for (weight, sum, count) in pools {
        for vertex in vertices.by_ref().take(count) {
            lefts[*vertex] = sum / weight + packed[*vertex];
        }
    }
}

/// Returns the preferred left side of a vertex and the weight of this preference.
fn wish(vertices: &[Vertex], vertex: usize, links: &[Link], lefts: &[f64]) -> (f64, f64) {
    let (mut weight, mut sum) = (0.0, 0.0);
    for link in links {
        let straight = vertices[vertex].is_bend && vertices[link.other].is_bend;
        let pull = if straight { STRAIGHT } else { 1.0 };
        weight += pull;
        sum += pull * (lefts[link.other] + link.there - link.here);
    }

    // What is tied to nothing keeps its place, and gives way: its weight is small, but not 0.
    if weight == 0.0 { (0.1, lefts[vertex]) } else { (weight, sum / weight) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_centred_between_the_boxes_that_it_is_connected_to() {
        let link = |other| Link { other, here: 5.0, there: 5.0 };
        let vertex = |layer, above: Vec<Link>, below: Vec<Link>| Vertex {
            layer,
            width: 10.0,
            is_bend: false,
            above,
            below,
        };
        let vertices = [
            vertex(0, vec![], vec![link(2)]),
            vertex(0, vec![], vec![link(2)]),
            vertex(1, vec![link(0), link(1)], vec![]),
        ];
        let lefts = lefts(&vertices, &[vec![0, 1], vec![2]], |_, _| 20.0);
        assert!((lefts[1] - lefts[0] - 30.0).abs() < 1e-6, "{lefts:?}");
        assert!((lefts[2] - f64::midpoint(lefts[0], lefts[1])).abs() < 1e-6, "{lefts:?}");
    }
}
