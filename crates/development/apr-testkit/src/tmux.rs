//! Programs on a terminal that tests type at and look at.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// After this long a screen counts as not coming.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time that a screen with the expected text can keep changing.
const STILL: Duration = Duration::from_secs(1);
/// Interval between two reads of a screen.
const PAUSE: Duration = Duration::from_millis(20);

/// A terminal of a size, with a program on it.
pub struct Tmux {
    /// Command for tmux, without its arguments.
    call: Box<dyn Fn() -> Command>,
}

impl Tmux {
    /// Returns `true` if tmux is installed. Otherwise a line on stderr reports that it is missing.
    ///
    /// # Panics
    /// In CI, where no test can be skipped.
    #[must_use]
    pub fn is_there() -> bool {
        let is_there = Command::new("tmux").arg("-V").output().is_ok();
        let is_ci = std::env::var_os("CI").is_some();
        assert!(is_there || !is_ci, "tmux is absent, and in CI nothing may be skipped");
        if !is_there {
            eprintln!("skipped: tmux is absent; `cargo xtask test` sets up what it can");
        }
        is_there
    }

    /// Runs a shell script on a terminal of `(columns, rows)`. `prepare` sets the folder and the
    /// variables that it runs with; `socket` is a path for tmux alone,
    /// which gets an ending.
    ///
    /// # Panics
    /// Where tmux can't be started.
    #[must_use]
    pub fn start(
        socket: &Path,
        (columns, rows): (u16, u16),
        script: &str,
        prepare: impl Fn(Command) -> Command + 'static,
    ) -> Self {
        // The server before may still be ending.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed).to_string();
        let socket = socket.with_extension(number);
        let call = move || {
            let mut command = Command::new("tmux");
            command.arg("-u").arg("-S").arg(&socket).args(["-f", "/dev/null"]);
            let mut command = prepare(command);
            command.env_remove("TMUX").env("LC_ALL", "C.UTF-8");
            command
        };
        let tmux = Self { call: Box::new(call) };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        // The shell stays, so that what is on the screen at the end can be looked at.
        let script = format!("{script}\nexec sleep 600");
        tmux.run(&["new-session", "-d", "-x", &columns, "-y", &rows, "sh", "-c", &script]);
        tmux
    }

    fn run(&self, args: &[&str]) -> Output {
        let output = (self.call)().args(args).output().expect("tmux runs");
        assert!(output.status.success(), "tmux {args:?}: {output:?}");
        output
    }

    /// Types keys. Keys other than letters have tmux's names: `Enter`, `Right`, `C-c`.
    pub fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// Gives the terminal another size.
    pub fn resize(&self, (columns, rows): (u16, u16)) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.run(&["resize-window", "-x", &columns, "-y", &rows]);
    }

    /// A property of the terminal, by tmux's name for it: `#{mouse_any_flag}`.
    #[must_use]
    pub fn property(&self, format: &str) -> String {
        let output = self.run(&["display-message", "-p", format]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns the contents of the terminal, line by line.
    #[must_use]
    pub fn screen(&self) -> String {
        let output = self.run(&["capture-pane", "-p"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the contents of the terminal, with the escape sequences of colours and weights.
    #[must_use]
    pub fn styled_screen(&self) -> String {
        let output = self.run(&["capture-pane", "-p", "-e"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the screen shows all of these texts and does not change, and returns the screen.
    ///
    /// A screen that is being drawn contains parts of two images. A screen that keeps changing is
    /// returned after a second.
    ///
    /// # Panics
    /// If the texts never appear.
    #[track_caller]
    #[must_use]
    pub fn shows(&self, texts: &[&str]) -> String {
        let begun = Instant::now();
        let mut seen: Option<(Instant, String)> = None;
        loop {
            let screen = self.screen();
            if texts.iter().all(|text| screen.contains(text)) {
                let since = match seen {
                    Some((_, before)) if before == screen => return screen,
                    Some((since, _)) if since.elapsed() > STILL => return screen,
                    Some((since, _)) => since,
                    None => Instant::now(),
                };
                seen = Some((since, screen.clone()));
            } else {
                seen = None;
            }
            assert!(begun.elapsed() < PATIENCE, "{texts:?} is not on the screen:\n{screen}");
            sleep(PAUSE);
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // Nothing is left to stop where the test stopped it.
        let _ = (self.call)().arg("kill-server").output();
    }
}
