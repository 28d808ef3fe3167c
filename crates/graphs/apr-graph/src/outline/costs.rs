//! What the items of a scene cost.

use std::collections::HashMap;
use std::sync::Arc;

use super::scene::{Item, ItemKind, Scene};
use crate::{Cost, NodeCost, Totals};

impl Scene {
    /// The scene of a graph with the costs of its items; `cost` is that graph's.
    ///
    /// What is in the branches of an `If` and the body of a loop gets none: what runs there depends
    /// on the inputs. The node itself has that of the costlier branch.
    ///
    /// ```
    /// use apr_graph::outline::{OutlineOptions, outline};
    /// use apr_graph::{Dim, ElementType, GraphBuilder, Meaning, cost, infer};
    ///
    /// let mut graph = GraphBuilder::new(17);
    /// let main = graph.body();
    /// let x = main.input("x", ElementType::F32, [Dim::symbol("n"), 320.into()], Meaning::Unknown);
    /// let w = main.weight("w", ElementType::F32, [320, 64]);
    /// let y = main.op("MatMul", [x, w]).output("y");
    /// main.output("y", y, Meaning::Unknown);
    ///
    /// let mut graph = graph.finish();
    /// let inference = infer(&mut graph);
    /// let cost = cost(&graph, &inference, &|_| Some(128));
    /// let scene = outline(&graph, OutlineOptions::default()).with_costs(&cost);
    /// assert_eq!(scene.items[1].cost.map(|cost| cost.flops), Some(2 * 128 * 320 * 64));
    /// ```
    #[must_use]
    pub fn with_costs(&self, cost: &Cost) -> Self {
        Costing { cost, scenes: HashMap::new() }.scene(self, Some(&cost.nodes))
    }
}

struct Costing<'c> {
    cost: &'c Cost,
    /// Scenes of functions by address and called signature.
    ///
    /// A function has one scene for inputs of all shapes, but different costs for each.
    scenes: HashMap<(usize, Option<usize>), Arc<Scene>>,
}

impl<'c> Costing<'c> {
    /// Returns a scene with costs. `nodes` are the costs of the nodes of the scene's body, if
    /// known.
    fn scene(&mut self, scene: &Scene, nodes: Option<&'c [NodeCost]>) -> Scene {
        let items = scene.items.iter().map(|item| self.item(item, nodes)).collect();
        Scene { items, ..scene.clone() }
    }

    fn item(&mut self, item: &Item, nodes: Option<&'c [NodeCost]>) -> Item {
        let own: Option<Vec<&NodeCost>> =
            nodes.and_then(|nodes| item.nodes.iter().map(|node| nodes.get(*node)).collect());
        let own = own.filter(|own| !own.is_empty());
        let cost = own.as_ref().map(|own| {
            let mut totals = Totals::default();
            own.iter().for_each(|node| totals.add(&node.totals, 1));
            totals
        });
        let kind = match &item.kind {
            ItemKind::Group { function: Some(function), scene } => {
                let callee = own.and_then(|own| own[0].callee);
                let key = (Arc::as_ptr(scene).addr(), callee);
                let known = self.scenes.get(&key).cloned();
                let scene = known.unwrap_or_else(|| {
                    let inner = callee.and_then(|callee| self.cost.functions.get(callee));
                    let made = Arc::new(self.scene(scene, inner.map(|inner| &*inner.nodes)));
                    self.scenes.insert(key, Arc::clone(&made));
                    made
                });
                ItemKind::Group { function: Some(function.clone()), scene }
            }
            ItemKind::Group { function: None, scene } => {
                ItemKind::Group { function: None, scene: Arc::new(self.scene(scene, nodes)) }
            }
            kind => kind.clone(),
        };
        Item { kind, cost, ..item.clone() }
    }
}

#[cfg(test)]
mod tests {
    use crate::outline::{OutlineOptions, outline};
    use crate::{BodyBuilder, ElementType, GraphBuilder, Meaning, Op, cost, infer};

    #[test]
    fn a_function_costs_what_each_call_of_it_does() {
        let mut graph = GraphBuilder::new(17);
        let mut inner = BodyBuilder::default();
        let x = inner.parameter("x");
        let doubled = inner.op("Add", [x, x]).output("doubled");
        inner.output("y", doubled, Meaning::Unknown);
        let twice: Op = graph.function("local", "Twice", inner);
        let main = graph.body();
        let small = main.input("small", ElementType::F32, [2.into()], Meaning::Unknown);
        let large = main.input("large", ElementType::F32, [7.into()], Meaning::Unknown);
        for (name, value) in [("a", small), ("b", large)] {
            let y = main.scope(name, |main| main.call(&twice, [value]).output("y"));
            main.output(name, y, Meaning::Unknown);
        }

        let mut graph = graph.finish();
        let inference = infer(&mut graph);
        let cost = cost(&graph, &inference, &|_| None);
        let scene = outline(&graph, OutlineOptions::default()).with_costs(&cost);
        let calls: Vec<_> =
            scene.items.iter().filter_map(|item| Some((item, item.scene()?))).collect();
        let flops = |item: &crate::outline::Item| item.cost.map(|cost| cost.flops);
        let found: Vec<_> =
            calls.iter().map(|(item, scene)| (flops(item), flops(&scene.items[0]))).collect();
        assert_eq!(found, [(Some(2), Some(2)), (Some(7), Some(7))]);
        assert_eq!(scene.items[0].cost, None, "an input costs nothing that is known");
    }
}
