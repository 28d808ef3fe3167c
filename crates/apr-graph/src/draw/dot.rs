//! What Graphviz reads.

use super::flowchart::{Language, write};
use super::{Depth, quoted};
use crate::outline::Scene;

/// A scene, opened down to `depth`, in the language of Graphviz. Opened groups are clusters.
#[must_use]
pub fn dot(scene: &Scene, depth: &Depth) -> String {
    let body = write(&Dot, scene, depth);
    format!("digraph model {{\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n{body}}}\n")
}

struct Dot;

impl Language for Dot {
    fn label(&self, lines: &[String]) -> String {
        lines.iter().map(|line| escaped(line)).collect::<Vec<_>>().join("\\n")
    }

    fn node(&self, id: &str, label: &str) -> String {
        format!("{id} [label=\"{label}\"];")
    }

    fn port(&self, id: &str, label: &str) -> String {
        format!("{id} [shape=plaintext, label=\"{label}\"];")
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
