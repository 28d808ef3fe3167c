//! SVG, light or dark as the reader's system is.

use std::fmt::{self, Write as _};

use super::plan::{Class, Drawing, DrawnBox};
use super::{Depth, drawing, quoted};
use crate::outline::Scene;

/// Maximum number of boxes in an image. More are not readable, and browsers become too slow to pan.
const MOST_BOXES: usize = 20_000;

/// A picture would have more boxes than one can look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooManyBoxes {
    /// Number of boxes that the image would have.
    pub boxes: usize,
    /// Maximum number of boxes.
    pub most: usize,
}

impl fmt::Display for TooManyBoxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the image would have {} boxes, more than {}", self.boxes, self.most)
    }
}

impl std::error::Error for TooManyBoxes {}

/// A colour for the light and one for the dark.
type Shades = (&'static str, &'static str);

/// Fill and border of each class of boxes.
const fn colours(class: Class) -> (Shades, Shades) {
    match class {
        Class::End => (("#f1f5f9", "#1e293b"), ("#64748b", "#94a3b8")),
        Class::Group => (("#ffffff", "#172033"), ("#94a3b8", "#475569")),
        Class::Product => (("#dbeafe", "#1e3a5f"), ("#3b82f6", "#60a5fa")),
        Class::Norm => (("#dcfce7", "#14432a"), ("#22c55e", "#4ade80")),
        Class::Activation => (("#fef3c7", "#4a3510"), ("#f59e0b", "#fbbf24")),
        Class::Lookup => (("#ede9fe", "#372a5e"), ("#8b5cf6", "#a78bfa")),
        Class::Movement => (("#f8fafc", "#1a2333"), ("#cbd5e1", "#3f4d63")),
        Class::Arithmetic => (("#ffe4e6", "#4c1d2b"), ("#f43f5e", "#fb7185")),
    }
}

/// Fill and border of a class in the light, for languages that know one colour.
pub(super) const fn light(class: Class) -> (&'static str, &'static str) {
    let ((fill, _), (border, _)) = colours(class);
    (fill, border)
}

/// Draws a scene, opened down to `depth`, as an SVG document.
///
/// # Errors
/// When there would be more boxes than one can look at.
///
/// ```
/// use apr_graph::draw::{Depth, svg};
/// use apr_graph::outline::{OutlineOptions, outline};
/// use apr_graph::{ElementType, GraphBuilder, Meaning};
///
/// let mut graph = GraphBuilder::new(17);
/// let x = graph.body().input("x", ElementType::F32, [2.into()], Meaning::Unknown);
/// let y = graph.body().op("Relu", [x]).output("act");
/// graph.body().output("y", y, Meaning::Unknown);
///
/// let picture = svg(&outline(&graph.finish(), OutlineOptions::default()), &Depth::ALL)?;
/// assert!(picture.starts_with("<svg"));
/// # Ok::<(), apr_graph::draw::TooManyBoxes>(())
/// ```
pub fn svg(scene: &Scene, depth: &Depth) -> Result<String, TooManyBoxes> {
    let drawing = drawing(scene, depth, MOST_BOXES)?;
    let mut svg = String::new();
    // Writing to a `String` does not fail.
    let _ = write(&mut svg, &drawing);
    Ok(svg)
}

fn write(svg: &mut String, drawing: &Drawing) -> fmt::Result {
    let (width, height) = (drawing.width.ceil(), drawing.height.ceil());
    write!(svg, r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" "#)?;
    writeln!(svg, r#"viewBox="0 0 {width} {height}">"#)?;
    style(svg)?;
    write!(svg, r#"<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" "#)?;
    write!(svg, r#"markerHeight="7" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/>"#)?;
    writeln!(svg, "</marker></defs>")?;
    writeln!(svg, r#"<rect class="ground" width="{width}" height="{height}"/>"#)?;

    // Frames lie below edges, edges below boxes.
    for frame in drawing.boxes.iter().filter(|drawn| drawn.is_frame) {
        write_box(svg, frame)?;
    }

    for route in &drawing.routes {
        write_route(svg, route)?;
    }

    for drawn in drawing.boxes.iter().filter(|drawn| !drawn.is_frame) {
        write_box(svg, drawn)?;
    }

    for label in &drawing.labels {
        let text = escaped(&label.text);
        writeln!(svg, r#"<text class="port" x="{:.1}" y="{:.1}">{text}</text>"#, label.x, label.y)?;
    }

    svg.push_str("</svg>\n");
    Ok(())
}

/// The colours as rules: first the light ones, then the dark ones for readers who prefer them.
fn style(svg: &mut String) -> fmt::Result {
    svg.push_str(
        "<style>\ntext{font-family:system-ui,-apple-system,'Segoe \
        UI',Helvetica,Arial,sans-serif}\n",
    );
    svg.push_str(
        ".title{font-size:13px;font-weight:600;text-anchor:middle}.line{font-size:10.5px;t\
        ext-anchor:middle}",
    );
    svg.push_str(
        ".port{font-size:10px;text-anchor:middle}.frame .title,.frame .line{text-anchor:start}",
    );
    svg.push_str(".badge{font-size:11px;font-weight:600;text-anchor:middle}rect{stroke-width:1.2}");
    svg.push_str(".edge{fill:none;stroke-width:1.3}\n");
    rules(svg, |shades| shades.0)?;
    svg.push_str("@media (prefers-color-scheme:dark){\n");
    rules(svg, |shades| shades.1)?;
    svg.push_str("}\n</style>\n");
    Ok(())
}

fn rules(svg: &mut String, shade: impl Fn(Shades) -> &'static str) -> fmt::Result {
    for (rule, property, shades) in [
        (".ground", "fill", ("#ffffff", "#0f172a")),
        (".title", "fill", ("#0f172a", "#f1f5f9")),
        (".line,.port", "fill", ("#475569", "#a3b1c6")),
        (".edge", "stroke", ("#94a3b8", "#64748b")),
        (".tip", "fill", ("#94a3b8", "#64748b")),
        (".pill", "fill", ("#0f172a", "#e2e8f0")),
        (".badge", "fill", ("#ffffff", "#0f172a")),
    ] {
        write!(svg, "{rule}{{{property}:{}}}", shade(shades))?;
    }

    for class in Class::ALL {
        let (fill, stroke) = colours(class);
        write!(svg, ".{} .box{{fill:{};stroke:{}}}", class.name(), shade(fill), shade(stroke))?;
    }

    svg.push('\n');
    Ok(())
}

fn write_box(svg: &mut String, drawn: &DrawnBox) -> fmt::Result {
    let DrawnBox { left, top, width, height, .. } = *drawn;
    let frame = if drawn.is_frame { " frame" } else { "" };
    write!(
        svg,
        r#"<g class="{}{frame}"><title>{}</title>"#,
        drawn.class.name(),
        escaped(&drawn.hint)
    )?;
    let radius = if drawn.is_frame { 10 } else { 6 };
    write!(svg, r#"<rect class="box" x="{left:.1}" y="{top:.1}" "#)?;
    write!(svg, r#"width="{width:.1}" height="{height:.1}" rx="{radius}"/>"#)?;
    let badge = if drawn.times > 1 { write_badge(svg, drawn)? } else { 0.0 };
    let title = escaped(&drawn.title);
    if drawn.is_frame {
        write!(
            svg,
            r#"<text class="title" x="{:.1}" y="{:.1}">{title}</text>"#,
            left + 14.0,
            top + 20.0
        )?;
        let line = escaped(&drawn.lines.join(" "));
        write!(
            svg,
            r#"<text class="line" x="{:.1}" y="{:.1}" style="text-anchor:end">{line}</text>"#,
            left + width - 14.0 - badge,
            top + 20.0
        )?;
    } else {
        let middle = left + (width - badge) / 2.0;
        write!(svg, r#"<text class="title" x="{middle:.1}" y="{:.1}">{title}</text>"#, top + 17.0)?;
        for (position, line) in (0_u32..).zip(&drawn.lines) {
            let y = top + 17.0 + 15.0 * f64::from(position + 1);
            write!(
                svg,
                r#"<text class="line" x="{:.1}" y="{y:.1}">{}</text>"#,
                left + width / 2.0,
                escaped(line)
            )?;
        }
    }

    svg.push_str("</g>\n");
    Ok(())
}

/// Writes the number of repetitions into the upper right corner of the box and returns the badge's
/// width.
fn write_badge(svg: &mut String, drawn: &DrawnBox) -> Result<f64, fmt::Error> {
    let text = format!("× {}", drawn.times);
    let digits = f64::from(u32::try_from(text.chars().count()).unwrap_or(0));
    let width = 10.0 + 6.2 * digits;
    let (left, top) = (drawn.left + drawn.width - width - 6.0, drawn.top + 5.0);
    write!(svg, r#"<rect class="pill" x="{left:.1}" y="{top:.1}" width="{width:.1}" "#)?;
    write!(svg, r#"height="17" rx="8.5"/>"#)?;
    let (middle, base) = (left + width / 2.0, top + 12.5);
    write!(svg, r#"<text class="badge" x="{middle:.1}" y="{base:.1}">{text}</text>"#)?;
    Ok(width + 6.0)
}

/// A line that leaves and enters boxes straight down, and bends between layers.
fn write_route(svg: &mut String, route: &[(f64, f64)]) -> fmt::Result {
    write!(
        svg,
        r#"<path class="edge" marker-end="url(#tip)" d="M{:.1} {:.1}"#,
        route[0].0, route[0].1
    )?;
    let (mut x, mut y) = route[0];
    for pair in route[1..].chunks(2) {
        let (to_x, to_y) = pair[0];
        // A curve that hardly bends is a line.
        if (to_x - x).abs() < 0.5 {
            write!(svg, "L{to_x:.1} {to_y:.1}")?;
        } else {
            let middle = f64::midpoint(y, to_y);
            write!(svg, "C{x:.1} {middle:.1} {to_x:.1} {middle:.1} {to_x:.1} {to_y:.1}")?;
        }
        (x, y) = pair[pair.len() - 1];
        if pair.len() > 1 {
            write!(svg, "L{x:.1} {y:.1}")?;
        }
    }

    svg.push_str("\"/>\n");
    Ok(())
}

fn escaped(text: &str) -> String {
    quoted(text, "<>&\"'", |code| if code < 32 { " ".to_owned() } else { format!("&#{code};") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outline::{OutlineOptions, outline};
    use crate::{ElementType, GraphBuilder, Meaning};

    #[test]
    fn names_from_files_make_no_tags() {
        let mut graph = GraphBuilder::new(17);
        let x = graph.body().input("<script>", ElementType::F32, [2.into()], Meaning::Unknown);
        let y = graph.body().op("Relu", [x]).output("a\"b&c");
        graph.body().output("y", y, Meaning::Unknown);
        let picture =
            svg(&outline(&graph.finish(), OutlineOptions::default()), &Depth::ALL).unwrap();
        assert!(!picture.contains("<script>"), "{picture}");
        assert!(
            picture.contains("&#60;script&#62;") && picture.contains("a&#34;b&#38;c"),
            "{picture}"
        );
    }

    #[test]
    fn an_image_with_too_many_boxes_is_not_drawn() {
        let mut graph = GraphBuilder::new(17);
        let mut x = graph.body().input("x", ElementType::F32, [2.into()], Meaning::Unknown);
        for _ in 0..MOST_BOXES {
            x = graph.body().op("Relu", [x]).output("act");
        }
        graph.body().output("y", x, Meaning::Unknown);
        let scene = outline(&graph.finish(), OutlineOptions::default());
        assert_eq!(svg(&scene, &Depth::ALL).unwrap_err().boxes, MOST_BOXES + 2);
    }
}
