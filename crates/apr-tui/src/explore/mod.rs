//! A model, looked at by keys (seed 001 §4.13).
//!
//! What a view shows is the report of a command, made by one of two threads in the background
//! (`background/`), as `background/reports.rs` says. `explorer.rs` has the state, `keys.rs` what
//! keys do to it, `views/` how it is drawn: drawing only looks at what is there.

mod answers;
mod background;
mod draw;
mod explorer;
mod export;
mod keys;
mod loaded;
mod view;
mod views;

use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread;

use apr_arch::Families;
use apr_io::Interrupt;
use apr_registry::{CheckpointReader, Result};
use apr_scan::ScanSummary;
use apr_source::{Architecture, Source};
use apr_trace::Payload;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

pub use self::background::meter::Watch;
use self::background::{Desk, work};
use self::explorer::Explorer;
use self::keys::Asks;
use self::loaded::Loaded;
use self::view::View;
use crate::palette::Palette;
use crate::screen::{Screen, ScreenOptions};
use crate::terminal::{End, show};
use crate::wording::Plain;

/// A model to look at.
#[derive(Clone)]
pub struct Subject<'m> {
    /// What the user calls it.
    pub name: &'m str,
    /// The model.
    pub reader: &'m dyn CheckpointReader,
    /// The families that are known.
    pub families: &'m Families,
    /// The family that it is taken for.
    pub architecture: Architecture,
}

impl<'m> Subject<'m> {
    fn source(&self) -> Source<'m> {
        Source::new(self.reader, self.families).named(self.name).taken_for(&self.architecture)
    }
}

/// Scans the files of a model, as the front end knows them. What is read of them goes through the
/// watch, which says how far it is and may stop it.
pub type Scan<'m> = dyn Fn(&Watch) -> Result<ScanSummary> + Sync + 'm;

/// What is looked at, and with what.
pub struct Job<'m> {
    /// The model.
    pub model: Subject<'m>,
    /// Another one to compare it with.
    pub other: Option<Subject<'m>>,
    /// Why the other one that was typed can't be compared with: said in the view for that.
    pub refused: Option<String>,
    /// What the model is given where it is traced; a prompt is typed where nothing is.
    pub payload: Option<Payload>,
    /// Scans the model's files; `None` where it has none.
    pub scan: Option<&'m Scan<'m>>,
    /// Threads that may work.
    pub threads: NonZeroUsize,
    /// Bytes that the work may take.
    pub max_memory: u64,
    /// Whether the files are still what they were.
    pub unchanged: &'m (dyn Fn() -> Result<()> + Sync),
}

/// Shows a model until a key or a signal ends it. The front end opens what it is to be compared
/// with, and shows both.
///
/// # Errors
/// What drawing on the terminal or reading keys ends with.
pub fn explore(
    job: &Job<'_>,
    options: &ScreenOptions<'_>,
    interrupt: &Interrupt,
) -> io::Result<End> {
    let desk = Desk::default();
    with_explorer(job, &desk, options, |explorer| {
        let end = show(explorer, interrupt)?;
        Ok(match explorer.wanted.take() {
            Some(location) if end == End::Quit => End::Compare(location),
            _ => end,
        })
    })
}

/// What the screen of a model shows after some keys, as rows of text: for whoever has no terminal.
/// It waits for what the keys ask for.
#[must_use]
pub fn picture(job: &Job<'_>, keys: &str, (columns, rows): (u16, u16)) -> String {
    let desk = Desk::default();
    let options =
        ScreenOptions { palette: Palette::new(false), takes_mouse: false, wording: &Plain };
    with_explorer(job, &desk, &options, |explorer| {
        explorer.settle();
        for key in keys.chars() {
            explorer.key(KeyEvent::from(KeyCode::Char(key)));
            explorer.settle();
        }
        explorer.picture((columns, rows))
    })
}

/// Calls `then` with a screen whose requests are answered.
fn with_explorer<R>(
    job: &Job<'_>,
    desk: &Desk,
    options: &ScreenOptions<'_>,
    then: impl FnOnce(&mut Explorer<'_>) -> R,
) -> R {
    let (sender, answers) = mpsc::channel();
    thread::scope(|scope| {
        for takes_passes in [false, true] {
            let sender = sender.clone();
            scope.spawn(move || work(desk, job, takes_passes, &sender));
        }
        // Closed when this is dropped, by a panic too, so that the threads end.
        let closing = Closing(desk);
        let done = then(&mut Explorer::new(job, desk, answers, *options));
        drop(closing);
        done
    })
}

struct Closing<'d>(&'d Desk);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests;
