//! A scene as rows of a tree, for a terminal.

use super::Depth;
use crate::outline::{Item, ItemKind, Scene};

/// A row of the tree.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Branch<'a> {
    /// The lines that lead to it: `│  ├─ `.
    pub lines: String,
    /// Item that the row shows.
    pub item: &'a Item,
}

/// The rows of a scene, opened down to `depth`, in the order they run. Inputs and outputs of the
/// model are left out.
#[must_use]
pub fn tree<'a>(scene: &'a Scene, depth: &Depth) -> Vec<Branch<'a>> {
    let mut rows = Vec::new();
    grow(scene, depth, "", &mut rows);
    rows
}

fn grow<'a>(scene: &'a Scene, depth: &Depth, lines: &str, rows: &mut Vec<Branch<'a>>) {
    let shown = |item: &&Item| !matches!(item.kind, ItemKind::Input | ItemKind::Output);
    let mut items = scene.items.iter().filter(shown).peekable();
    while let Some(item) = items.next() {
        let is_last = items.peek().is_none();
        rows.push(Branch {
            lines: format!("{lines}{}", if is_last { "└─ " } else { "├─ " }),
            item,
        });
        if let Some((inner, depth)) = depth.opened(item) {
            grow(inner, &depth, &format!("{lines}{}", if is_last { "   " } else { "│  " }), rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outline::{OutlineOptions, outline};
    use crate::{ElementType, GraphBuilder, Meaning};

    #[test]
    fn tree_lines_lead_from_groups_to_their_contents() {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let x = main.input("x", ElementType::F32, [2.into()], Meaning::Unknown);
        let y = main.scope("mlp", |main| {
            let y = main.op("Relu", [x]).output("act");
            main.op("Neg", [y]).output("neg")
        });
        let z = main.op("Abs", [y]).output("abs");
        main.output("z", z, Meaning::Unknown);
        let scene = outline(&graph.finish(), OutlineOptions::default());
        let shown = |depth: &Depth| {
            let rows = tree(&scene, depth);
            rows.iter().map(|row| format!("{}{}", row.lines, row.item.name)).collect::<Vec<_>>()
        };
        assert_eq!(shown(&Depth::ALL), ["├─ mlp", "│  ├─ act", "│  └─ neg", "└─ abs"]);
        assert_eq!(shown(&Depth::Levels(0)), ["├─ mlp", "└─ abs"]);
    }
}
