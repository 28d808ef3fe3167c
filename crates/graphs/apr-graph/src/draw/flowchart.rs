//! What languages of flowcharts have in common: boxes, groups, arrows.

use std::fmt::Write as _;

use super::plan::{Class, class};
use super::{Depth, cost_text, parameters};
use crate::outline::{End, Item, ItemKind, Scene};

/// Syntax of a flowchart language. Ids are words; labels are made by [`Language::label`].
pub(super) trait Language {
    /// A text within quotes, its lines in order.
    fn label(&self, lines: &[String]) -> String;
    /// Writes a box and its class.
    fn node(&self, id: &str, label: &str, class: Class) -> String;
    /// A name on the border of a group.
    fn port(&self, id: &str, label: &str) -> String;
    /// The begin of a group.
    fn open(&self, id: &str, label: &str) -> String;
    /// Returns the end of a group.
    fn close(&self) -> &'static str;
    /// Writes an arrow from one box to another.
    fn arrow(&self, from: &str, to: &str) -> String;
}

/// Writes a scene, opened down to `depth`.
pub(super) fn write(language: &dyn Language, scene: &Scene, depth: &Depth) -> String {
    let mut text = String::new();
    Writer { language, text: &mut text }.scene(scene, depth, "n", 1);
    text
}

struct Writer<'a> {
    language: &'a dyn Language,
    text: &'a mut String,
}

impl Writer<'_> {
    fn line(&mut self, level: usize, line: &str) {
        // Writing to a `String` does not fail.
        let _ = writeln!(self.text, "{}{line}", "  ".repeat(level));
    }

    fn scene(&mut self, scene: &Scene, depth: &Depth, id: &str, level: usize) {
        for (position, item) in scene.items.iter().enumerate() {
            let id = format!("{id}_{position}");
            let label = self.language.label(&label(item));
            let Some((inner, depth)) = depth.opened(item) else {
                self.line(level, &self.language.node(&id, &label, class(item)));
                continue;
            };
            self.line(level, &self.language.open(&id, &label));
            let inputs = inner.inputs.iter().enumerate().map(|port| ("in", port));
            let outputs = inner.outputs.iter().enumerate().map(|port| ("out", port));
            for (side, (position, port)) in inputs.chain(outputs) {
                let label = self.language.label(std::slice::from_ref(&port.name));
                self.line(
                    level + 1,
                    &self.language.port(&format!("{id}_{side}{position}"), &label),
                );
            }

            self.scene(inner, &depth, &id, level + 1);
            self.line(level, self.language.close());
        }

        let name = |end: End, side: &str, inner_side: &str| match end {
            End::Border(port) => format!("{id}_{side}{port}"),
            End::Item(item, port) if depth.opened(&scene.items[item]).is_some() => {
                format!("{id}_{item}_{inner_side}{port}")
            }
            End::Item(item, _) => format!("{id}_{item}"),
        };

        for edge in &scene.edges {
            let arrow =
                self.language.arrow(&name(edge.from, "in", "out"), &name(edge.to, "out", "in"));
            self.line(level, &arrow);
        }
    }
}

/// Returns the lines of a label: operator, name with repetitions, number of parameters, and cost.
fn label(item: &Item) -> Vec<String> {
    let mut name = item.name.clone();
    if item.times > 1 {
        let _ = write!(name, " × {}", item.times);
    }
    let op = match &item.kind {
        ItemKind::Node { op, .. } if *op != item.name => Some(op.clone()),
        _ => None,
    };
    let size = (item.parameters > 0).then(|| parameters(item.parameters));
    let cost = item.cost.as_ref().map(cost_text);
    op.into_iter().chain([name]).chain(size).chain(cost).collect()
}
