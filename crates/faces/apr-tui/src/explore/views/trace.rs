//! A run of the model, step by step: what `apr trace --interactive` shows.

use apr_graph::Meaning;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use ratatui::widgets::Paragraph;

use crate::explore::background::request::Request;
use crate::explore::{Asks, Explorer, Loaded};
use crate::screen::Key;
use crate::text::{clean, paragraph};

pub(crate) const HELP: [Key; 9] = [
    ("r", "type a prompt and run the model"),
    ("← →  k j", "previous, next step"),
    ("PgUp PgDn", "ten steps back, ahead"),
    ("Home End  G", "first, last step"),
    ("Enter", "the step in full"),
    ("[ ]  or a", "previous, next step with an anomaly"),
    ("/  n N", "find a step; next, previous one of that name"),
    ("u", "tensors that the step reads"),
    ("Esc", "back; stop the run"),
];

impl Explorer<'_> {
    /// Runs the payload from the front end, and requests the graph to check that the model can run.
    pub(crate) fn open_trace(&mut self) {
        if self.graph.is_nothing() {
            self.ask(Request::Graph);
        }
        if self.trace.is_nothing() && self.job.payload.is_some() {
            self.ask(Request::Trace(None));
        }
    }

    /// Runs the model with a prompt.
    pub(crate) fn trace_prompt(&mut self, text: &str) {
        self.ask(Request::Trace(Some(text.to_owned())));
    }

    fn ask_prompt(&mut self) {
        if !self.takes_text() {
            self.message = Some(without_text(self.job.model.name));
            return;
        }
        self.ask_line(Asks::Prompt, "prompt", "");
    }

    pub(crate) fn key_of_trace(&mut self, key: KeyEvent) {
        match (&mut self.trace, key.code) {
            (_, KeyCode::Char('r')) => self.ask_prompt(),
            (Loaded::Ready(_), KeyCode::Char('/')) => self.ask_line(Asks::Find, "find", ""),
            (Loaded::Ready(_), KeyCode::Char('u')) => self.list_of_step(),
            (Loaded::Ready(walk), code) => self.message = walk.key(code),
            (Loaded::Waiting, KeyCode::Esc) => self.cancel(),
            (Loaded::Nothing | Loaded::Failed(_), KeyCode::Enter) => self.ask_prompt(),
            _ => {}
        }
    }

    /// Lists the tensors that the step reads.
    fn list_of_step(&mut self) {
        let Some(names) = self.trace.ready().map(|walk| walk.weights()) else { return };
        let tensors = self.job.model.reader.tensors();
        let read = (0..tensors.len()).filter(|at| names.contains(&tensors[*at].name));
        let read: Vec<usize> = read.collect();
        self.list_chosen(read, "the step");
    }

    pub(crate) fn draw_trace(&mut self, frame: &mut Frame<'_>, area: Rect) {
        match &mut self.trace {
            Loaded::Ready(walk) => return walk.draw(frame, area, &mut self.zones),
            Loaded::Nothing => {}
            waiting => {
                let waiting = std::mem::take(waiting);
                self.draw_waiting(frame, area, &waiting);
                self.trace = waiting;
                return;
            }
        }
        let (text, style) = match &self.graph {
            Loaded::Failed(error) => {
                (format!("the model does not run: {}", clean(error)), self.palette.bad())
            }
            _ if !self.takes_text() => (without_text(self.job.model.name), self.palette.faint()),
            _ => {
                let text = "Press Enter to type a prompt. The model runs with it and shows the \
                            values of each step.";
                (text.to_owned(), self.palette.faint())
            }
        };
        frame.render_widget(Paragraph::new(paragraph(&text, area.width, style)), area);
    }

    /// Returns `true` if a prompt can be typed: the graph has a text input, or is not known yet.
    pub(crate) fn takes_text(&self) -> bool {
        let Loaded::Ready(graph) = &self.graph else { return true };
        let mut inputs = graph.parts.iter().flat_map(|part| &part.summary.inputs);
        inputs.any(|input| input.meaning == Meaning::TokenIds)
    }
}

/// Returns the message for a model that a prompt cannot run.
fn without_text(model: &str) -> String {
    let model = clean(model);
    format!("The model has no text input. Start with `apr tui {model} --input FILE` to run it.")
}
