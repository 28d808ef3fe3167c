//! Generated text as it grows.

use apr_inputs::text::TextStream;
use apr_registry::Result;

/// Receives a text, piece by piece.
pub(crate) type TextSink<'s> = dyn FnMut(&str) -> Result<()> + 's;

/// The text as it grows, handed on as far as it is whole characters.
pub(crate) struct GrowingText<'a> {
    /// `None` where tokens are written as their ids.
    stream: Option<TextStream<'a>>,
    /// Texts before which it ends.
    stops: Vec<String>,
    sink: Option<&'a mut TextSink<'a>>,
    text: String,
    shown: usize,
}

impl<'a> GrowingText<'a> {
    /// One that is empty; `stream` is `None` where tokens are written as their ids.
    pub(crate) fn new(
        stream: Option<TextStream<'a>>,
        stops: Vec<String>,
        sink: Option<&'a mut TextSink<'a>>,
    ) -> Self {
        Self { stream, stops, sink, text: String::new(), shown: 0 }
    }

    /// Adds a token; true where the text has come to a stop text.
    pub(crate) fn add(&mut self, token: i64) -> Result<bool> {
        let stop = match &mut self.stream {
            Some(stream) => {
                self.text.push_str(&stream.push(token)?);
                self.stops.iter().filter_map(|stop| self.text.find(stop.as_str())).min()
            }
            None => {
                let space = if self.text.is_empty() { "" } else { " " };
                self.text.push_str(&format!("{space}{token}"));
                self.stops.iter().any(|stop| *stop == token.to_string()).then_some(self.text.len())
            }
        };

        if let Some(at) = stop {
            self.text.truncate(at);
        }

        self.show(false)?;
        Ok(stop.is_some())
    }

    /// Hands on the rest, and returns the text.
    pub(crate) fn finish(mut self) -> Result<String> {
        if let Some(stream) = self.stream.take() {
            let rest = stream.finish()?;
            let is_cut = self.stops.iter().any(|stop| rest.contains(stop.as_str()));
            self.text.push_str(if is_cut { "" } else { &rest });
        }
        self.show(true)?;
        Ok(self.text)
    }

    /// Hands on what is new; what may be the beginning of a stop text, only at the end.
    fn show(&mut self, all: bool) -> Result<()> {
        let held = if all {
            0
        } else {
            self.stops.iter().map(|stop| stop.len().saturating_sub(1)).max().unwrap_or(0)
        };
        let mut end = self.text.len().saturating_sub(held).max(self.shown.min(self.text.len()));
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }

        let start = self.shown.min(end);
        self.shown = end;
        match &mut self.sink {
            Some(sink) => sink(&self.text[start..end]),
            None => Ok(()),
        }
    }
}
