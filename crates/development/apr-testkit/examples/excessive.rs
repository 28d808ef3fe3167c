//! Writes the files of `apr_testkit::excessive` into a folder: `excessive FOLDER BYTES`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use apr_testkit::excessive;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("usage: excessive FOLDER BYTES")?);
    let size = arguments.next().ok_or("usage: excessive FOLDER BYTES")?.parse()?;
    for construct in excessive::all() {
        let name: String = construct
            .name
            .chars()
            .map(|char| if char.is_ascii_alphanumeric() { char } else { '-' })
            .collect();
        let folder = folder.join(name);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(construct.file), construct.of_size(size))?;
        for (name, bytes) in construct.beside() {
            fs::write(folder.join(name), bytes)?;
        }
    }

    Ok(())
}
