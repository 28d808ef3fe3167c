//! A run of the model, step by step: what `apr trace --interactive` shows.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};

use crate::explore::background::request::Request;
use crate::explore::{Asks, Explorer, Loaded};
use crate::screen::Key;
use crate::text::clean;

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
        let line = match &self.graph {
            Loaded::Failed(error) => {
                let text = format!(" the model does not run: {}", clean(error));
                Line::styled(text, self.palette.bad())
            }
            _ => Line::styled(
                " Enter types a prompt: the model runs with it, and each step is shown with its \
                 values",
                self.palette.faint(),
            ),
        };
        frame.render_widget(Paragraph::new(line).wrap(Wrap { trim: false }), area);
    }
}
