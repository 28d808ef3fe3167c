//! The graph of a model, as boxes with arrows.

use std::sync::Arc;

use apr_graph::draw::parameters;
use apr_graph::outline::{End, Item, ItemKind, Scene};
use apr_ops::graph::{GraphReport, PartReport};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::list::Cursor;
use super::tensors::three;
use crate::chart::put;
use crate::explore::{Asks, Explorer, Loaded};
use crate::palette::Palette;
use crate::screen::Key;
use crate::text::{cell, clean, fit, listed, width};
use crate::zones::Target;

pub(crate) const HELP: [Key; 8] = [
    ("↑ ↓  k j", "previous, next box"),
    ("Enter", "open the group"),
    ("Esc  Backspace", "back to the outer group; no marks"),
    ("/", "find a box by name, in all groups"),
    ("[ ]", "previous, next part of the model"),
    ("PgUp PgDn  G", "a page up, down; the last box"),
    ("u", "tensors that the box uses"),
    ("n N", "next, previous box marked ◆"),
];

/// Rows of a box with the arrow below.
const BOX: usize = 4;
/// Columns of a box at most.
const WIDEST: usize = 100;
/// Groups within each other that a search looks into.
const DEEPEST: usize = 64;

/// Shown group, and its selected box.
#[derive(Debug, Default)]
pub(crate) struct GraphPlace {
    part: usize,
    /// Groups from the outermost to the one that is shown, with their places.
    open: Vec<Opened>,
    rows: usize,
    /// The tensor whose path is marked, and the boxes on it: the part, and positions of boxes from
    /// the outermost in.
    marked: String,
    marks: Vec<(usize, Vec<usize>)>,
}

#[derive(Debug)]
struct Opened {
    name: String,
    scene: Arc<Scene>,
    cursor: Cursor,
}

impl GraphPlace {
    /// Shows a part, with its first box selected.
    pub(crate) fn open(&mut self, report: &GraphReport) {
        let Some(part) = report.parts.get(self.part) else { return };
        self.open = vec![Opened {
            name: clean(&part.summary.name),
            scene: Arc::new(part.structure.clone()),
            cursor: Cursor::default(),
        }];
    }

    pub(crate) fn place(&self) -> String {
        match self.open.last() {
            Some(opened) => format!("{}/{}", opened.cursor.at + 1, opened.scene.items.len()),
            None => "0/0".to_owned(),
        }
    }

    fn enter(&mut self) {
        let Some(opened) = self.open.last() else { return };
        let Some(item) = opened.scene.items.get(opened.cursor.at) else { return };
        if let Some(scene) = item.scene().filter(|scene| !scene.items.is_empty()) {
            let (name, scene) = (clean(&item.name), Arc::clone(scene));
            self.open.push(Opened { name, scene, cursor: Cursor::default() });
        }
    }

    /// The group that is shown.
    pub(crate) fn scene(&self) -> Option<&Scene> {
        self.open.last().map(|opened| &*opened.scene)
    }

    /// The position of the selected box.
    pub(crate) fn selected(&mut self) -> Option<&mut usize> {
        self.open.last_mut().map(|opened| &mut opened.cursor.at)
    }

    /// The part, the boxes from the outermost to the selected one, and its name.
    pub(super) fn here(&self) -> Option<(usize, Vec<usize>, String)> {
        let opened = self.open.last()?;
        let item = opened.scene.items.get(opened.cursor.at)?;
        let path = self.open.iter().map(|opened| opened.cursor.at).collect();
        Some((self.part, path, clean(&item.name)))
    }

    /// Marks boxes, which must be in order, and selects the first one.
    pub(super) fn mark(
        &mut self,
        report: &GraphReport,
        tensor: String,
        marks: Vec<(usize, Vec<usize>)>,
    ) {
        (self.marked, self.marks) = (tensor, marks);
        if let Some((part, path)) = self.marks.first().cloned() {
            self.go(report, part, &path);
        }
    }

    /// Selects the next or the previous mark, wrapping around; returns `true` if there is one.
    pub(super) fn next_mark(&mut self, report: &GraphReport, is_forward: bool) -> bool {
        let Some((part, path, _)) = self.here() else { return false };
        let here = (part, path);
        let next = match is_forward {
            true => self.marks.iter().find(|mark| **mark > here).or(self.marks.first()),
            false => self.marks.iter().rfind(|mark| **mark < here).or(self.marks.last()),
        };
        let Some((part, path)) = next.cloned() else { return false };
        self.go(report, part, &path);
        true
    }

    /// Opens groups up to a box, and selects it.
    fn go(&mut self, report: &GraphReport, part: usize, path: &[usize]) {
        self.part = part;
        self.open(report);
        self.select(path);
    }

    fn select(&mut self, path: &[usize]) {
        self.open.truncate(1);
        for (depth, at) in path.iter().enumerate() {
            if let Some(opened) = self.open.last_mut() {
                opened.cursor.at = *at;
            }
            if depth + 1 < path.len() {
                self.enter();
            }
        }
    }

    /// Returns `true` if the marked tensor is used in a box of the shown group.
    fn is_marked(&self, at: usize) -> bool {
        let Some((_, around)) = self.open.split_last() else { return false };
        let around = || around.iter().map(|opened| opened.cursor.at);
        self.marks.iter().any(|(part, path)| {
            *part == self.part
                && path.iter().copied().take(self.open.len()).eq(around().chain([at]))
        })
    }

    fn leave(&mut self) {
        if self.open.len() > 1 {
            self.open.pop();
        } else {
            self.marks.clear();
        }
    }

    /// Selects the next box with this text in its name, in run order, wrapping around.
    fn find(&mut self, text: &str) -> bool {
        let text = text.to_lowercase();
        let Some(root) = self.open.first() else { return false };
        let here: Vec<usize> = self.open.iter().map(|opened| opened.cursor.at).collect();
        let mut found = Vec::new();
        collect(&root.scene, &text, &mut Vec::new(), &mut found);
        let next = found.iter().find(|path| **path > here).or_else(|| found.first());
        let Some(path) = next.cloned() else { return false };
        self.select(&path);
        true
    }
}

/// Paths of all boxes with a text in their names.
fn collect(scene: &Scene, text: &str, path: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
    /// Boxes that a search finds at most.
    const MOST: usize = 100_000;
    if path.len() >= DEEPEST {
        return;
    }
    for (at, item) in scene.items.iter().enumerate() {
        if found.len() >= MOST {
            return;
        }
        path.push(at);
        if item.name.to_lowercase().contains(text) {
            found.push(path.clone());
        }
        if let Some(inner) = item.scene() {
            collect(inner, text, path, found);
        }
        path.pop();
    }
}

impl Explorer<'_> {
    pub(crate) fn key_of_graph(&mut self, key: KeyEvent) {
        let rows = self.graph_place.rows / BOX;
        if let Some(opened) = self.graph_place.open.last_mut()
            && opened.cursor.key(key, opened.scene.items.len(), rows)
        {
            return;
        }
        match key.code {
            KeyCode::Enter => self.graph_place.enter(),
            KeyCode::Esc | KeyCode::Backspace => self.graph_place.leave(),
            KeyCode::Char('/') => self.ask_line(Asks::Find, "find", ""),
            KeyCode::Char('u') => self.ask_list_of_box(),
            KeyCode::Char(letter @ ('n' | 'N')) => self.next_mark(letter == 'n'),
            KeyCode::Char(letter @ ('[' | ']')) => self.other_part(letter == ']'),
            _ => {}
        }
    }

    fn other_part(&mut self, is_forward: bool) {
        let Loaded::Ready(report) = &self.graph else { return };
        let last = report.parts.len().saturating_sub(1);
        let place = &mut self.graph_place;
        place.part = match is_forward {
            true => (place.part + 1).min(last),
            false => place.part.saturating_sub(1),
        };
        place.open(report);
    }

    pub(crate) fn find_in_graph(&mut self, text: &str) {
        if !text.is_empty() && !self.graph_place.find(text) {
            self.message = Some(format!("no box has '{text}' in its name"));
        }
    }

    pub(crate) fn draw_graph(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let Loaded::Ready(report) = &self.graph else {
            return self.draw_waiting(frame, area, &self.graph);
        };
        let Some(part) = report.parts.get(self.graph_place.part) else {
            frame.render_widget(Line::from(" the model has no graph"), area);
            return;
        };
        let [head, body, foot] = three(area);
        let columns = usize::from(area.width);
        let trail: Vec<&str> =
            self.graph_place.open.iter().map(|opened| opened.name.as_str()).collect();
        let parts = match report.parts.len() {
            0 | 1 => String::new(),
            count => format!("  (part {} of {count}; ] next)", self.graph_place.part + 1),
        };
        let room = columns.saturating_sub(width(&parts) + 1);
        let text = format!(" {}{parts}", fit(&trail.join(" › "), room));
        frame.render_widget(Line::styled(text, self.palette.heading()), head);
        frame.render_widget(self.line_of_part(part, columns), foot);
        self.draw_boxes(frame, body);
    }

    /// Returns the errors of a part, or else the path of the marked tensor, or else the size of the
    /// part.
    fn line_of_part(&self, part: &PartReport, columns: usize) -> Line<'static> {
        let errors = part.findings.list.len();
        let place = &self.graph_place;
        let (text, style) = if let Some(first) = part.findings.list.first() {
            let more =
                if errors > 1 { format!(" (and {} more)", errors - 1) } else { String::new() };
            (format!(" ⚠ {}{more}", clean(&first.message)), self.palette.bad())
        } else if place.marks.is_empty() {
            let nodes = apr_core::grouped(part.summary.nodes);
            let parameters = parameters(part.summary.parameters);
            (format!(" {parameters} parameters, {nodes} nodes"), self.palette.faint())
        } else {
            let count = apr_core::counted(place.marks.len() as u64, "use");
            (format!(" ◆ {}: {count}; n next", place.marked), self.palette.key())
        };
        Line::styled(fit(&text, columns), style)
    }

    fn draw_boxes(&mut self, frame: &mut Frame<'_>, body: Rect) {
        let palette = self.palette;
        self.graph_place.rows = usize::from(body.height);
        let Some(opened) = self.graph_place.open.last_mut() else { return };
        let boxes = (usize::from(body.height) + 1) / BOX;
        let window = opened.cursor.window(opened.scene.items.len(), boxes);
        let (scene, selected) = (Arc::clone(&opened.scene), opened.cursor.at);
        for (number, at) in window.enumerate() {
            let y = body.y + u16::try_from(number * BOX).unwrap_or_default();
            let height =
                u16::try_from(BOX).unwrap_or_default().min(body.bottom().saturating_sub(y));
            let area = Rect { y, height, ..body };
            let look = BoxLook {
                is_here: at == selected,
                is_marked: self.graph_place.is_marked(at),
                palette,
            };
            draw_box(frame, area, &scene, at, look);
            self.zones.add(Rect { height: height.min(3), ..area }, Target::Item(at));
        }
    }
}

/// State that determines how a box is drawn.
#[derive(Clone, Copy)]
struct BoxLook {
    is_here: bool,
    /// `true` if the box uses the marked tensor.
    is_marked: bool,
    palette: Palette,
}

/// Draws a box, and an arrow to the next one if that reads its output.
fn draw_box(
    frame: &mut Frame<'_>,
    area: Rect,
    scene: &Scene,
    at: usize,
    BoxLook { is_here, is_marked, palette }: BoxLook,
) {
    let style = match (is_here, is_marked) {
        (true, _) => palette.here(),
        (false, true) => palette.key(),
        (false, false) => Style::new(),
    };
    let item = &scene.items[at];
    let buffer = frame.buffer_mut();
    let room = usize::from(area.width).saturating_sub(4).min(WIDEST);
    let times = if item.times > 1 { format!(" (×{})", item.times) } else { String::new() };
    let open = if item.scene().is_some_and(|scene| !scene.items.is_empty()) { " ▸" } else { "" };
    let mark = if is_marked { " ◆" } else { "" };
    let suffix = format!("{times}{open}{mark}");
    let name = fit(&clean(&item.name), room.saturating_sub(width(&suffix) + 5));
    let title = format!(" {name}{suffix} ");
    let inner = room.saturating_sub(2);
    let corners = if is_here {
        ["┏", "━", "┓", "┃", "┗", "┛"]
    } else {
        ["┌", "─", "┐", "│", "└", "┘"]
    };
    let rest = inner.saturating_sub(width(&title) + 1);
    let top =
        format!("{}{}{title}{}{}", corners[0], corners[1], corners[1].repeat(rest), corners[2]);
    put(buffer, area, (2, 0), &top, style);
    put(buffer, area, (2, 1), corners[3], style);
    put(
        buffer,
        area,
        (3, 1),
        &cell(&format!(" {}", about(scene, at, item, inner.saturating_sub(1))), inner),
        Style::new(),
    );
    put(buffer, area, (u16::try_from(inner + 3).unwrap_or(u16::MAX), 1), corners[3], style);
    let half = inner / 2;
    let flows = scene.edges.iter().any(|edge| {
        matches!((edge.from, edge.to), (End::Item(from, _), End::Item(to, _))
            if from == at && to == at + 1)
    });
    let joint = match (flows, is_here) {
        (true, true) => "┯",
        (true, false) => "┬",
        (false, _) => corners[1],
    };
    let bottom = format!(
        "{}{}{joint}{}{}",
        corners[4],
        corners[1].repeat(half),
        corners[1].repeat(inner.saturating_sub(half + 1)),
        corners[5]
    );
    put(buffer, area, (2, 2), &bottom, style);
    if flows {
        let column = u16::try_from(half + 3).unwrap_or(u16::MAX);
        put(buffer, area, (column, 3), "▼", palette.faint());
    }
}

/// Returns a description of a box in `columns` columns.
///
/// It contains the operation, the outputs, and the inputs that are not from the previous box.
fn about(scene: &Scene, at: usize, item: &Item, columns: usize) -> String {
    let what = match &item.kind {
        ItemKind::Input => "input".to_owned(),
        ItemKind::Output => "output".to_owned(),
        ItemKind::Node { op, .. } => clean(op),
        ItemKind::Group { function: Some(function), .. } => clean(function),
        _ => "group".to_owned(),
    };
    let mut text = what;
    if item.parameters > 0 {
        text.push_str(&format!("  {} params", parameters(item.parameters)));
    }
    let others: Vec<String> = scene
        .edges
        .iter()
        .filter_map(|edge| match (edge.from, edge.to) {
            (End::Item(from, _), End::Item(to, _)) if to == at && from + 1 != at => {
                scene.items.get(from).map(|item| clean(&item.name))
            }
            (End::Border(port), End::Item(to, _)) if to == at => {
                scene.inputs.get(port).map(|port| clean(&port.name))
            }
            _ => None,
        })
        .collect();
    let output = item.output.as_deref().map(|output| format!("  {}", clean(output)));
    let output = output.unwrap_or_default();
    if others.is_empty() {
        return fit(&format!("{text}{output}"), columns);
    }
    // Where both are long, the type and the names get a half each.
    let mark = "  ◀ ";
    let room = columns.saturating_sub(width(&text) + width(mark));
    let beside = room.saturating_sub(width(&output)).max(room / 2);
    let reads = listed(others, beside);
    format!("{text}{}{mark}{reads}", fit(&output, room.saturating_sub(width(&reads))))
}
