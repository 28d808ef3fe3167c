//! The terminal: taken, and given back as it was.

#[cfg_attr(windows, path = "terminal/keys_windows.rs")]
mod keys;

use std::io::{self, IsTerminal, Stdout, stdout};
use std::sync::Once;
use std::time::{Duration, Instant};

use apr_io::Interrupt;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{
    self, DisableMouseCapture, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers,
};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::Print;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use crate::screen::{Flow, Screen, Tick};
use keys::{Keys, Watch, Woken};

/// Interval between frames while something is computed: 30 per second.
///
/// Drawing and waking up take up to 3 ms. A screen also waits this long for a key before it checks
/// for a signal.
const TICK: Duration = Duration::from_millis(30);

/// Interval between frames when results arrive, so that the first list appears immediately.
const SOON: Duration = Duration::from_millis(8);

/// Interval at which a screen checks for results while something is computed.
const SLICE: Duration = Duration::from_millis(2);

/// Escape sequence that enables clicks and the wheel, at any column.
///
/// crossterm's own command also enables mouse movements, each of which would be sent over the
/// network.
const CLICKS: &str = "\u{1b}[?1000h\u{1b}[?1006h";

/// Reason for which a screen ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The user pressed the quit key.
    Quit,
    /// A request to compare the model with another one, at the typed location.
    Compare(String),
    /// Ctrl-C or a signal.
    Interrupted,
}

/// Returns `true` if there is a terminal to draw on.
#[must_use]
pub fn is_terminal() -> bool {
    stdout().is_terminal()
}

/// The terminal while a screen has it.
struct Taken {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    has_mouse: bool,
}

impl Taken {
    fn new() -> io::Result<Self> {
        restore_before_panics();
        take()?;
        // From here on `Drop` gives it back.
        match Terminal::new(CrosstermBackend::new(stdout())) {
            Ok(terminal) => Ok(Self { terminal, has_mouse: false }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// Stops the process as Ctrl-Z does, and takes over the terminal again when it continues.
    fn suspend(&mut self) -> io::Result<()> {
        restore();
        keys::stop_process()?;
        take()?;
        self.has_mouse = false;
        self.terminal.clear()
    }

    /// Captures or releases the mouse.
    fn take_mouse(&mut self, takes_it: bool) -> io::Result<()> {
        if takes_it == self.has_mouse {
            return Ok(());
        }
        self.has_mouse = takes_it;
        match takes_it {
            true => execute!(stdout(), Print(CLICKS)),
            false => execute!(stdout(), DisableMouseCapture),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        restore();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen).inspect_err(|_| restore())
}

/// Restores the terminal. Errors are ignored, because they mean that the terminal no longer exists.
fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), DisableMouseCapture, LeaveAlternateScreen, Show);
}

/// A panic's message is for the terminal as it was.
fn restore_before_panics() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}

/// Shows a screen until it ends.
pub(crate) fn show(screen: &mut dyn Screen, interrupt: &Interrupt) -> io::Result<End> {
    let keys = Keys::of_terminal()?;
    let _watch = Watch::over(&keys)?;
    let mut terminal = Taken::new()?;
    // News follow on a picture soon, and on each other as often as progress.
    let mut patience = SOON;
    loop {
        let drawn = Instant::now();
        terminal.take_mouse(screen.takes_mouse())?;
        terminal.terminal.draw(|frame| screen.draw(frame))?;
        let mut next = Next::Wait(screen.tick());
        while let Next::Wait(tick) = next {
            let due = match tick {
                Tick::Idle => Duration::MAX,
                Tick::Busy => TICK,
                Tick::News => patience,
            };
            if interrupt.check().is_err() {
                return Ok(End::Interrupted);
            }
            if drawn.elapsed() >= due {
                patience = if tick == Tick::News { TICK } else { SOON };
                break;
            }
            next = wait(screen, &keys, &mut terminal, tick)?;
        }
        if let Next::End(end) = next {
            return Ok(end);
        }
    }
}

/// Next action for a drawn screen.
enum Next {
    /// No action yet.
    Wait(Tick),
    Draw,
    End(End),
}

/// Waits briefly, and passes the keys on; keys that arrive together are drawn in one frame.
fn wait(
    screen: &mut dyn Screen,
    keys: &Keys,
    terminal: &mut Taken,
    tick: Tick,
) -> io::Result<Next> {
    let time = if tick == Tick::Idle { TICK } else { SLICE };
    if keys.wait(time)? == Woken::HungUp {
        return Ok(Next::End(End::Interrupted));
    }
    let mut has_keys = false;
    while !keys.are_gone()? && event::poll(Duration::ZERO)? {
        has_keys = true;
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Release => {}
            Event::Key(key) if is_control(key, 'c') => return Ok(Next::End(End::Interrupted)),
            Event::Key(key) if is_control(key, 'z') => terminal.suspend()?,
            Event::Key(key) if screen.key(key) == Flow::Quit => return Ok(Next::End(End::Quit)),
            Event::Mouse(mouse) if screen.mouse(mouse) == Flow::Quit => {
                return Ok(Next::End(End::Quit));
            }
            _ => {}
        }
    }
    Ok(match screen.tick() {
        _ if has_keys => Next::Draw,
        // What arrived before is not shown yet.
        _ if tick == Tick::News => Next::Wait(Tick::News),
        tick => Next::Wait(tick),
    })
}

fn is_control(key: KeyEvent, letter: char) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char(letter)
}

#[cfg(test)]
mod tests {
    use apr_testkit::tmux::Tmux;
    use ratatui::Frame;
    use ratatui::crossterm::event::MouseEvent;

    use super::*;

    struct Panics;

    impl Screen for Panics {
        fn draw(&mut self, _: &mut Frame<'_>) {
            panic!("this screen panics");
        }

        fn key(&mut self, _: KeyEvent) -> Flow {
            Flow::Stay
        }

        fn mouse(&mut self, _: MouseEvent) -> Flow {
            Flow::Stay
        }

        fn takes_mouse(&self) -> bool {
            true
        }
    }

    #[test]
    #[ignore = "the test below runs it on a terminal of its own"]
    fn a_screen_that_panics() {
        let _ = show(&mut Panics, &Interrupt::default());
    }

    #[test]
    fn a_panic_is_read_on_the_terminal_as_it_was() {
        if !Tmux::is_there() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let program = std::env::current_exe().expect("this test");
        let script = r#"stty -a > before
            "$TEST" --ignored --exact terminal::tests::a_screen_that_panics --nocapture
            stty -a > after
            echo "all is over""#;
        let tmux =
            Tmux::start(&folder.path().join("tmux"), (80, 24), script, move |mut command| {
                command.current_dir(&path).env("TEST", &program);
                command
            });
        let _ = tmux.shows(&["this screen panics", "all is over"]);
        let state = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a file");
        assert_eq!(state("before"), state("after"));
    }
}
