//! Screens beside the files that say how they look, and the pictures of the documentation.
//! `UPDATE_GOLDEN=1` writes the files.

use std::fs;
use std::path::Path;

/// Compares a screen of `(columns, rows)` with its file.
#[track_caller]
pub(crate) fn assert_snapshot(name: &str, (columns, rows): (u16, u16), screen: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/snapshots");
    let path = folder.join(format!("{name}-{columns}x{rows}.txt"));
    // The backend shows each row between quotation marks.
    let rows = screen.lines().map(|row| row.trim_start_matches('"').trim_end_matches('"'));
    let rows: Vec<&str> = rows.map(str::trim_end).collect();
    let text = rows.join("\n") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(&path, text).expect("a file");
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{} differs; UPDATE_GOLDEN=1 writes it anew", path.display());
}

/// Columns and rows of the screens that the documentation shows.
pub(crate) const PICTURE: (u16, u16) = (90, 28);

/// Compares an image with the one in the documentation.
#[track_caller]
pub(crate) fn assert_picture(name: &str, image: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, image).expect("a file");
        return;
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == image, "docs/{name} differs; UPDATE_GOLDEN=1 writes it anew");
}
