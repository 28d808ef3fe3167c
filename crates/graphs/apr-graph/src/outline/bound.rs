//! Scenes that are not far larger than their graph.
//!
//! A function has one scene, however often it is called, but whoever shows or writes it does so at
//! each place. Sixty functions of which each calls the one before it twice are a file of 5 kB, and
//! 2^60 places.

use std::collections::HashSet;
use std::sync::Arc;

use super::scene::{Item, ItemKind, Scene};

/// Items, edges and ports with all groups open that any graph may have beyond its own.
const FREE: usize = 50_000;

/// The scene, with groups closed from the first level on with which it would be too large.
pub(super) fn bounded(scene: Scene) -> Scene {
    let most = FREE.saturating_add(distinct_size(&scene));
    match levels_within(&scene, most) {
        None => scene,
        Some(levels) => Scene { is_partial: true, ..opened(&scene, levels) },
    }
}

/// Returns the number of items, edges and ports of a scene, with its groups closed.
fn size(scene: &Scene) -> usize {
    scene.items.len() + scene.edges.len() + scene.inputs.len() + scene.outputs.len()
}

/// The size of the scenes in it, each counted once.
fn distinct_size(scene: &Scene) -> usize {
    let (mut seen, mut count) = (HashSet::new(), 0_usize);
    let mut waiting = vec![scene];
    while let Some(scene) = waiting.pop() {
        count += size(scene);
        for inner in scene.items.iter().filter_map(Item::scene) {
            if seen.insert(Arc::as_ptr(inner)) {
                waiting.push(inner);
            }
        }
    }
    count
}

/// Returns the number of levels of groups that fit a size, or `None` if all fit.
fn levels_within(scene: &Scene, most: usize) -> Option<usize> {
    let (mut count, mut levels) = (0_usize, 0);
    let mut level = vec![scene];
    while !level.is_empty() {
        count += level.iter().map(|scene| size(scene)).sum::<usize>();
        if count > most {
            // The scene itself is always shown.
            return Some(usize::saturating_sub(levels, 1));
        }
        let items = level.iter().flat_map(|scene| &scene.items);
        level = items.filter_map(Item::scene).map(Arc::as_ref).collect();
        levels += 1;
    }
    None
}

/// Returns the scene with `levels` levels of groups; the groups below are empty.
fn opened(scene: &Scene, levels: usize) -> Scene {
    let item = |item: &Item| {
        let mut item = item.clone();
        if let ItemKind::Group { scene, .. } = &mut item.kind {
            *scene = Arc::new(match levels.checked_sub(1) {
                Some(levels) => opened(scene, levels),
                None => Scene::default(),
            });
        }
        item
    };
    Scene {
        items: scene.items.iter().map(item).collect(),
        edges: scene.edges.clone(),
        inputs: scene.inputs.clone(),
        outputs: scene.outputs.clone(),
        is_partial: false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OutlineOptions, outline};
    use super::*;
    use crate::draw::{Depth, dot, tree};
    use crate::{BodyBuilder, ElementType, Graph, GraphBuilder, Meaning, Op, ValueId};

    /// Returns functions of `inputs` inputs, each of which calls the previous one twice.
    ///
    /// The first call passes the inputs unchanged, the second passes them after `change`.
    fn nested(
        depth: usize,
        inputs: usize,
        change: impl Fn(&mut BodyBuilder, usize, &mut [ValueId]),
    ) -> Graph {
        let mut graph = GraphBuilder::new(17);
        let mut previous = Op::new("", "Sum");
        let names: Vec<String> = (0..inputs).map(|number| format!("x{number}")).collect();
        for number in 0..depth {
            let mut inner = BodyBuilder::default();
            let mut given: Vec<ValueId> = names.iter().map(|name| inner.parameter(name)).collect();
            let once = inner.call(&previous, given.clone()).output("once");
            change(&mut inner, number, &mut given);
            let twice = inner.call(&previous, given).output("twice");
            let sum = inner.op("Add", [once, twice]).output("sum");
            inner.output("y", sum, Meaning::Unknown);
            previous = graph.function("local", &format!("f{number}"), inner);
        }

        let body = graph.body();
        let given: Vec<ValueId> = names
            .iter()
            .map(|name| body.input(name, ElementType::F32, [], Meaning::Unknown))
            .collect();
        let y = body.call(&previous, given).output("called");
        body.output("y", y, Meaning::Unknown);
        graph.finish()
    }

    fn total(scene: &Scene) -> usize {
        let inner = scene.items.iter().filter_map(Item::scene).map(|scene| total(scene));
        size(scene) + inner.sum::<usize>()
    }

    #[test]
    fn functions_that_call_one_another_are_shown_down_to_some_level() {
        let scene = outline(&nested(45, 1, |_, _, _| ()), OutlineOptions::default());
        assert!(scene.is_partial);
        assert!(total(&scene) <= FREE + distinct_size(&scene));
        assert!(total(&scene) > FREE / 4, "and not to fewer levels than there is room for");

        let shallow = outline(&nested(6, 1, |_, _, _| ()), OutlineOptions::default());
        assert!(!shallow.is_partial);
        // The call in the body, and three rows of each call but those of `Sum`, which are single.
        assert_eq!(tree(&shallow, &Depth::ALL).len(), 1 + 3 * 63);
    }

    #[test]
    fn the_number_of_expanded_function_calls_is_limited() {
        let fixed = |inner: &mut BodyBuilder, number: usize, given: &mut [ValueId]| {
            given[number] = inner.float(1.0);
        };
        let scene = outline(&nested(40, 40, fixed), OutlineOptions::default());
        assert!(scene.is_partial);
        assert!(total(&scene) < 4 * FREE, "{}", total(&scene));
    }

    #[test]
    fn a_legible_picture_counts_what_is_shown_at_several_places() {
        let scene = outline(&nested(20, 1, |_, _, _| ()), OutlineOptions::default());
        for most in [10, 60, 160] {
            let depth = Depth::that_fits(&scene, most);
            let rows = tree(&scene, &depth).len();
            assert!(rows <= most && rows > 3, "{rows} of {most}");
            assert!(dot(&scene, &depth).lines().count() < 10 * most);
        }
    }
}
