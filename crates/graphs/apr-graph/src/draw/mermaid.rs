//! What Mermaid reads, which code hosts draw in Markdown.

use super::flowchart::{Language, write};
use super::plan::Class;
use super::svg::light;
use super::{Depth, quoted};
use crate::outline::Scene;

/// A scene, opened down to `depth`, as a Mermaid flowchart. Opened groups are subgraphs.
#[must_use]
pub fn mermaid(scene: &Scene, depth: &Depth) -> String {
    let mut text = format!("flowchart TD\n{}", write(&Mermaid, scene, depth));
    for class in Class::ALL {
        let (fill, border) = light(class);
        if text.contains(&format!(":::{}\n", name(class))) {
            // The text is dark on light boxes, whatever the theme.
            text.push_str(&format!(
                "  classDef {} fill:{fill},stroke:{border},color:#0f172a\n",
                name(class)
            ));
        }
    }
    text
}

/// Returns the reason why Mermaid refuses to draw a text, or `None` if it draws it.
///
/// Pages can raise the limits with Mermaid's settings `maxEdges` and `maxTextSize`.
#[must_use]
pub fn beyond_mermaid(text: &str) -> Option<String> {
    const EDGES: usize = 500;
    const CHARACTERS: usize = 50_000;
    let (edges, characters) = (text.matches(" --> ").count(), text.chars().count());
    (edges > EDGES || characters > CHARACTERS).then(|| {
        format!(
            "the graph has {edges} edges and {characters} characters; Mermaid's default limits \
             are {EDGES} and {CHARACTERS}"
        )
    })
}

/// `end` is a word of the language.
fn name(class: Class) -> &'static str {
    if class == Class::End { "port" } else { class.name() }
}

struct Mermaid;

impl Language for Mermaid {
    fn label(&self, lines: &[String]) -> String {
        lines.iter().map(|line| escaped(line)).collect::<Vec<_>>().join("<br/>")
    }

    fn node(&self, id: &str, label: &str, class: Class) -> String {
        format!("{id}[\"{label}\"]:::{}", name(class))
    }

    fn port(&self, id: &str, label: &str) -> String {
        format!("{id}([\"{label}\"])")
    }

    fn open(&self, id: &str, label: &str) -> String {
        format!("subgraph {id}[\"{label}\"]")
    }

    fn close(&self) -> &'static str {
        "end"
    }

    fn arrow(&self, from: &str, to: &str) -> String {
        format!("{from} --> {to}")
    }
}

fn escaped(text: &str) -> String {
    quoted(text, "\"\\<>&#", |code| if code < 32 { " ".to_owned() } else { format!("#{code};") })
}

#[cfg(test)]
mod tests {
    use super::super::dot;
    use super::*;
    use crate::outline::{OutlineOptions, outline};
    use crate::{ElementType, GraphBuilder, Meaning};

    #[test]
    fn edges_go_through_the_borders_of_opened_groups() {
        let mut graph = GraphBuilder::new(17);
        let main = graph.body();
        let x = main.input("x\"", ElementType::F32, [2.into()], Meaning::Unknown);
        let y = main.scope("mlp", |main| {
            let y = main.op("Relu", [x]).output("act");
            main.op("Neg", [y]).output("neg")
        });
        main.output("y", y, Meaning::Unknown);
        let scene = outline(&graph.finish(), OutlineOptions::default());
        let text = mermaid(&scene, &Depth::ALL);
        for line in [
            "n_0[\"x#34;\"]:::port",
            "subgraph n_1[\"mlp\"]",
            "n_0 --> n_1_in0",
            "n_1_out0 --> n_2",
            "n_1_in0 --> n_1_0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert_eq!(beyond_mermaid(&text), None);
        let many = text.replace("n_0 --> n_1_in0\n", &"n_0 --> n_1_in0\n".repeat(500));
        assert!(
            beyond_mermaid(&many).is_some_and(|why| why.contains("the graph has 50")),
            "{:?}",
            beyond_mermaid(&many)
        );
        let text = dot(&scene, &Depth::Levels(0));
        assert!(text.contains("n_1 -> n_2;") && text.contains("label=\"x&#34;\","), "{text}");
    }
}
