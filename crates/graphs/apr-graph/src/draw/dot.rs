//! What Graphviz reads.

use super::flowchart::{Language, write};
use super::plan::Class;
use super::svg::light;
use super::{Depth, quoted};
use crate::outline::Scene;

/// A scene, opened down to `depth`, in the language of Graphviz. Opened groups are clusters.
#[must_use]
pub fn dot(scene: &Scene, depth: &Depth) -> String {
    let body = write(&Dot, scene, depth);
    let font = "fontname=\"sans-serif\"";
    let graph =
        format!("  graph [{font}, fontsize=12, style=rounded, labeljust=l, color=\"#94a3b8\"];\n");
    let node =
        format!("  node [{font}, fontsize=11, shape=box, style=\"rounded,filled\", height=0.3];\n");
    let edge = "  edge [color=\"#64748b\", arrowsize=0.7];\n";
    format!("digraph model {{\n{graph}{node}{edge}{body}}}\n")
}

struct Dot;

impl Language for Dot {
    fn label(&self, lines: &[String]) -> String {
        lines.iter().map(|line| escaped(line)).collect::<Vec<_>>().join("\\n")
    }

    fn node(&self, id: &str, label: &str, class: Class) -> String {
        let (fill, border) = light(class);
        format!("{id} [label=\"{label}\", fillcolor=\"{fill}\", color=\"{border}\"];")
    }

    fn port(&self, id: &str, label: &str) -> String {
        format!("{id} [shape=plaintext, style=\"\", fontsize=9, height=0.2, label=\"{label}\"];")
    }

    fn open(&self, id: &str, label: &str) -> String {
        format!("subgraph cluster_{id} {{ label=\"{label}\";")
    }

    fn close(&self) -> &'static str {
        "}"
    }

    fn arrow(&self, from: &str, to: &str) -> String {
        format!("{from} -> {to};")
    }
}

fn escaped(text: &str) -> String {
    quoted(text, "\"\\<>&", |code| if code < 32 { " ".to_owned() } else { format!("&#{code};") })
}
