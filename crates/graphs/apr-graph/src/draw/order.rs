//! The order of boxes and bends within layers, for few crossings.

use super::vertex::{Link, Vertex};

/// Number of sweeps over the layers, down and up.
const SWEEPS: usize = 12;

/// Vertices by layers, in order from left to right.
///
/// Each sweep sorts a layer by the mean place of what its vertices touch in the layer before (the
/// barycenter heuristic of Sugiyama, Tagawa and Toda); the best of all sweeps is kept.
pub(super) fn rows(vertices: &[Vertex]) -> Vec<Vec<usize>> {
    let count = vertices.iter().map(|vertex| vertex.layer).max().map_or(0, |layer| layer + 1);
    let mut rows = vec![Vec::new(); count];
    for (position, vertex) in vertices.iter().enumerate() {
        rows[vertex.layer].push(position);
    }

    let mut places = vec![0.0; vertices.len()];
    rows.iter().for_each(|row| note(row, &mut places));
    let mut best = (crossings(vertices, &rows, &places), rows.clone());
    for sweep in 0..SWEEPS {
        if best.0 == 0 {
            break;
        }
        let down = sweep % 2 == 0;
        for step in 1..count {
            let layer = if down { step } else { count - 1 - step };
            sort(vertices, &mut rows[layer], &mut places, down);
        }
        let crossed = crossings(vertices, &rows, &places);
        if crossed < best.0 {
            best = (crossed, rows.clone());
        }
    }

    best.1
}

fn note(row: &[usize], places: &mut [f64]) {
    for (place, vertex) in (0_u32..).zip(row) {
        places[*vertex] = f64::from(place);
    }
}

fn sort(vertices: &[Vertex], row: &mut [usize], places: &mut [f64], down: bool) {
    let wanted: Vec<f64> = row
        .iter()
        .map(|vertex| {
            let links = if down { &vertices[*vertex].above } else { &vertices[*vertex].below };
            // What touches nothing stays where it is.
            mean(links, places, vertices).unwrap_or(places[*vertex])
        })
        .collect();
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let sorted: Vec<usize> = order.into_iter().map(|position| row[position]).collect();
    row.copy_from_slice(&sorted);
    note(row, places);
}

/// Mean place of the other ends; a port further right counts a little more.
fn mean(links: &[Link], places: &[f64], vertices: &[Vertex]) -> Option<f64> {
    let sum: f64 =
        links.iter().map(|link| at(places[link.other], link.there, &vertices[link.other])).sum();
    (!links.is_empty()).then(|| sum / f64::from(u32::try_from(links.len()).unwrap_or(u32::MAX)))
}

/// A place in a row, with the port as a part of a step.
fn at(place: f64, port: f64, vertex: &Vertex) -> f64 {
    place + if vertex.width > 0.0 { port / vertex.width - 0.5 } else { 0.0 }
}

/// Returns the number of edge crossings between neighbouring layers.
fn crossings(vertices: &[Vertex], rows: &[Vec<usize>], places: &[f64]) -> u64 {
    let mut sum = 0;
    for row in rows {
        let mut edges: Vec<(f64, f64)> = Vec::new();
        for &vertex in row {
            let links = vertices[vertex].below.iter();
            edges.extend(links.map(|link| {
                let here = at(places[vertex], link.here, &vertices[vertex]);
                (here, at(places[link.other], link.there, &vertices[link.other]))
            }));
        }
        // Sorted by where they begin, edges cross as often as their ends are out of order.
        edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut ends: Vec<f64> = edges.into_iter().map(|edge| edge.1).collect();
        sum += inversions(&mut ends);
    }

    sum
}

/// Pairs of which the first is larger; sorts on the way, by merging.
fn inversions(values: &mut [f64]) -> u64 {
    if values.len() < 2 {
        return 0;
    }

    let middle = values.len() / 2;
    let mut count = {
        let (left, right) = values.split_at_mut(middle);
        inversions(left) + inversions(right)
    };
    let (left, right) = values.split_at(middle);
    let mut merged = Vec::with_capacity(values.len());
    let (mut i, mut j) = (0, 0);
    while i < left.len() && j < right.len() {
        if left[i] <= right[j] {
            merged.push(left[i]);
            i += 1;
        } else {
            merged.push(right[j]);
            count += (left.len() - i) as u64;
            j += 1;
        }
    }

    merged.extend_from_slice(&left[i..]);
    merged.extend_from_slice(&right[j..]);
    values.copy_from_slice(&merged);
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inversions_are_pairs_in_the_wrong_order() {
        assert_eq!(inversions(&mut [3.0, 1.0, 2.0]), 2);
        assert_eq!(inversions(&mut [1.0, 1.0, 2.0]), 0);
    }

    #[test]
    fn a_crossing_that_need_not_be_is_undone() {
        let vertex = |layer, above: &[usize], below: &[usize]| {
            let links = |others: &[usize]| {
                others.iter().map(|other| Link { other: *other, here: 5.0, there: 5.0 }).collect()
            };
            Vertex { layer, width: 10.0, is_bend: false, above: links(above), below: links(below) }
        };
        let vertices = [
            vertex(0, &[], &[3]),
            vertex(0, &[], &[2]),
            vertex(1, &[1], &[]),
            vertex(1, &[0], &[]),
        ];
        assert_eq!(rows(&vertices), [vec![0, 1], vec![3, 2]]);
    }
}
