//! Writes the reference of the command, a page of Markdown for each command, into a folder, and
//! prints the list of pages as a list of mdBook. `cargo xtask site` calls this.

use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("reference FOLDER")?;
    fs::create_dir_all(&folder)?;
    for page in apr_cli::reference() {
        fs::write(Path::new(&folder).join(&page.file), &page.text)?;
        let depth = page.title.matches(' ').count();
        let title = if depth == 0 { "Commands" } else { &page.title };
        println!("{}- [{title}](reference/{})", "  ".repeat(depth), page.file);
    }
    Ok(())
}
