//! Draws the README's picture of a terminal: what the binary prints on the model of the repository.
//!
//! `cargo xtask picture` builds the binary and calls this with its path and the picture's.

use std::path::Path;
use std::process::Command;

use anstyle_svg::Term;

/// Commands that the session runs.
const SESSION: [&str; 4] = [
    "apr import tiny-llama -o tiny.apr",
    "apr diff tiny-llama tiny.apr",
    "apr validate damaged.apr",
    "apr quantize tiny.apr --type q4_k_m -o tiny.gguf",
];

/// Columns of the terminal.
const WIDTH: u16 = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, binary, picture] = &arguments[..] else {
        return Err("picture BINARY OUTPUT.svg".into());
    };
    let folder = tempfile::tempdir()?;
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/tiny-llama");
    copy(&model, &folder.path().join("tiny-llama"))?;

    let mut text = String::new();
    for line in SESSION {
        if line.contains("damaged") {
            damage(folder.path())?;
        }
        text += &format!("\u{1b}[32m$\u{1b}[0m \u{1b}[1m{line}\u{1b}[0m\n");
        let mut command = Command::new(binary);
        command.args(line.split(' ').skip(1)).args(["--color", "always"]);
        command.current_dir(folder.path()).env("COLUMNS", WIDTH.to_string());
        let output = command.output()?;
        // Warnings come before the report.
        text += &String::from_utf8(output.stderr)?;
        text += &String::from_utf8(output.stdout)?;
        text.push('\n');
    }
    let text: Vec<String> = text.trim_end().lines().map(wrapped).collect();
    std::fs::write(picture, Term::new().render_svg(&text.join("\n")))?;
    Ok(())
}

/// A copy of the imported model with one bit of its weights turned.
fn damage(folder: &Path) -> std::io::Result<()> {
    let mut bytes = std::fs::read(folder.join("tiny.apr"))?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(folder.join("damaged.apr"), bytes)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let is_program = entry.path().extension().is_some_and(|extension| extension == "py");
        if entry.file_type()?.is_file() && !is_program {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Wraps a line at the edge of the screen; escape sequences are not counted.
fn wrapped(line: &str) -> String {
    let (mut shown, mut escaped) = (0, false);
    let mut text = String::new();
    for character in line.chars() {
        let visible = !escaped && character != '\u{1b}';
        escaped = character == '\u{1b}' || escaped && character != 'm';
        if visible && shown == usize::from(WIDTH) {
            text.push('\n');
            shown = 0;
        }
        shown += usize::from(visible);
        text.push(character);
    }
    text
}
