//! Draws the pictures of screens in the documentation: what tmux shows of the binary, on the model
//! of the repository.
//!
//! `cargo xtask picture` builds the binary and calls this with its path and the folder of the
//! pictures.

use std::path::Path;

use anstyle_svg::Term;
use apr_testkit::tmux::Tmux;

/// Columns and rows of the terminal.
const SIZE: (u16, u16) = (90, 28);

/// A picture, the command on it, keys, and what shows that it is there.
const PICTURES: [(&str, &str, &[&str], &[&str]); 2] = [
    (
        "tui.svg",
        "tui tiny-llama",
        &["x", "s"],
        &["checks pass", "14/14 as expected", "output head"],
    ),
    (
        "trace.svg",
        "trace tiny-llama --prompt 12+34= --interactive",
        &["PageDown", "Right", "Right", "Right"],
        &["Current Layer: layers.1/attention "],
    ),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, binary, folder] = &arguments[..] else {
        return Err("screens BINARY FOLDER".into());
    };
    if !Tmux::is_there() {
        return Ok(());
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let sockets = tempfile::tempdir()?;
    for (name, command, keys, shown) in PICTURES {
        let fixtures = fixtures.clone();
        let script = format!("\"{binary}\" {command}");
        let tmux = Tmux::start(&sockets.path().join("tmux"), SIZE, &script, move |mut command| {
            command.current_dir(&fixtures).env_remove("NO_COLOR");
            command
        });
        let _ = tmux.shows(&["[q]uit"]);
        tmux.keys(keys);
        let _ = tmux.shows(shown);
        let picture = Term::new().render_svg(tmux.styled_screen().trim_end());
        std::fs::write(Path::new(folder).join(name), picture)?;
    }
    Ok(())
}
