//! The screen: a view, and the frame around it.

use apr_core::human::bytes;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyEvent, MouseEvent};
use ratatui::layout::Rect;
use ratatui::widgets::Paragraph;

use super::background::request::Request;
use super::{Explorer, Loaded, View};
use crate::screen::{Flow, Frames, Screen, Tick, help};
use crate::text::{clean, paragraph};

impl Explorer<'_> {
    pub(crate) fn place(&self) -> String {
        let of = |at: usize, len: usize| match len {
            0 => "0/0".to_owned(),
            len => format!("{}/{}", at.min(len - 1) + 1, len),
        };
        match self.view {
            View::Tensors | View::Histogram | View::Values => of(self.cursor.at, self.order.len()),
            View::Stats => of(self.stats.cursor.at, self.stats.len()),
            View::Graph => self.graph_place.place(),
            View::Compare if self.job.other.is_none() => String::new(),
            View::Compare => of(self.compare.cursor.at, self.compare.len()),
            View::Checks => String::new(),
            View::Vocabulary => of(self.tokens.cursor.at, self.tokens.len()),
            View::Trace => self.trace.ready().map_or_else(String::new, |walk| walk.place()),
        }
    }

    /// Draws a text in place of a missing report: the error, or the progress.
    pub(crate) fn draw_waiting<T>(&self, frame: &mut Frame<'_>, area: Rect, loaded: &Loaded<T>) {
        let (text, style) = match loaded {
            Loaded::Nothing => ("not computed".to_owned(), self.palette.faint()),
            Loaded::Waiting => (self.progress(), self.palette.faint()),
            Loaded::Failed(error) => (clean(error), self.palette.bad()),
            Loaded::Ready(_) => return,
        };
        frame.render_widget(Paragraph::new(paragraph(&text, area.width, style)), area);
    }

    /// Returns the progress of the request for which the view waits.
    pub(crate) fn progress(&self) -> String {
        let is_pass = matches!(self.view, View::Checks | View::Trace)
            || self.view == View::Compare && self.diff.is_waiting();
        if is_pass {
            return self.progress_of_pass();
        }
        let (done, total) = self.desk.meter(false).bytes();
        match percent(done, total) {
            None => "reading...".to_owned(),
            Some(percent) => format!("{percent} %  {} of {}", bytes(done), bytes(total)),
        }
    }

    /// Returns the progress of the running pass.
    pub(crate) fn progress_of_pass(&self) -> String {
        let pass = self.desk.running_pass();
        let activity = pass.as_ref().map_or("waiting", Request::activity);
        let (done, total) = self.desk.meter(true).bytes();
        let far = match percent(done, total) {
            None => "...".to_owned(),
            // Inputs, not bytes.
            Some(_) if pass == Some(Request::Outputs) => format!(": {done} of {total} inputs"),
            Some(percent) => format!(": {percent} %  {} of {}", bytes(done), bytes(total)),
        };
        format!("{activity}{far}; Esc stops")
    }
}

/// Returns the percentage done, or `None` if the total is unknown.
fn percent(done: u64, total: u64) -> Option<u128> {
    let done = u128::from(done.min(total)) * 100;
    done.checked_div(u128::from(total))
}

impl Screen for Explorer<'_> {
    fn draw(&mut self, frame: &mut Frame<'_>) {
        let name = clean(self.job.model.name);
        let title = match &self.job.other {
            Some(other) if self.view == View::Compare => {
                format!("Comparing: {name} vs {}", clean(other.name))
            }
            _ => format!("Model: {name}"),
        };
        let about = title.find(": ").map_or("", |at| &title[..at + 2]).to_owned();
        self.size = (frame.area().width, frame.area().height);
        let place = self.place();
        let columns = usize::from(frame.area().width).saturating_sub(place.len() + 4);
        let (keys, above) = self.keys(columns);
        let frames =
            Frames { title: &title, about: &about, kind: self.view.title(), keys, above, place };
        self.zones.clear();
        let Some([area, keys, rule]) = frames.draw(frame, self.palette) else { return };
        self.zones.add_keys(keys, &frames.keys.keys);
        self.zones.add_keys(rule, &frames.above.keys);
        match self.view {
            View::Tensors => self.draw_tensors(frame, area),
            View::Stats => self.draw_stats(frame, area),
            View::Histogram => self.draw_histogram(frame, area),
            View::Values => self.draw_values(frame, area),
            View::Graph => self.draw_graph(frame, area),
            View::Compare => self.draw_compare(frame, area),
            View::Checks => self.draw_checks(frame, area),
            View::Vocabulary => self.draw_vocabulary(frame, area),
            View::Trace => self.draw_trace(frame, area),
        }
        if self.shows_help {
            help(frame, self.view.title(), &self.help_lines(), self.palette);
        }
    }

    fn key(&mut self, key: KeyEvent) -> Flow {
        self.press(key)
    }

    fn mouse(&mut self, mouse: MouseEvent) -> Flow {
        self.point(mouse)
    }

    fn takes_mouse(&self) -> bool {
        self.options.takes_mouse
    }

    fn tick(&mut self) -> Tick {
        let mut tick = if self.desk.is_busy() { Tick::Busy } else { Tick::Idle };
        while let Ok(answer) = self.answers.try_recv() {
            self.receive(answer);
            tick = Tick::News;
        }
        tick
    }
}
