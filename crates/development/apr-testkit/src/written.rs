//! ONNX files that the program writes while it is tested, kept for `onnx.checker`.
//!
//! `cargo xtask test` names a folder in `APR_WRITTEN_ONNX`, and has all that is in it checked at
//! the end (`xtask/interop/onnx_written.py`). Without it nothing is kept.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The variable that names the folder.
const FOLDER: &str = "APR_WRITTEN_ONNX";

/// Bytes of a file that are worth a copy; the checker does not look at values.
const MOST: u64 = 64 << 20;

/// Length and modification time of a file.
type State = (u64, Option<SystemTime>);

/// State of a folder before a command.
#[derive(Debug)]
pub struct Watch {
    root: PathBuf,
    kept: PathBuf,
    before: BTreeMap<PathBuf, State>,
}

impl Watch {
    /// Records the state of a folder, or returns `None` if no files are to be kept.
    #[must_use]
    pub fn of(root: &Path) -> Option<Self> {
        let kept = PathBuf::from(std::env::var_os(FOLDER)?);
        Some(Self { root: root.to_owned(), kept, before: models(root) })
    }

    /// Keeps the models that are new or others than before, and none of them twice. One whose bytes
    /// were there before came back unchanged, and may be as invalid as it was.
    ///
    /// # Panics
    /// When a file can't be copied.
    pub fn keep(self) {
        let after = models(&self.root);
        let is_new = |(path, state): &(&PathBuf, &State)| self.before.get(*path) != Some(*state);
        for (path, (len, _)) in after.iter().filter(is_new).filter(|(_, (len, _))| *len <= MOST) {
            let bytes = fs::read(path).expect("a file that was just there");
            let same = |(other, state): (&PathBuf, &State)| {
                state.0 == *len && other != path && fs::read(other).is_ok_and(|it| it == bytes)
            };
            if !self.before.iter().any(same) {
                self.keep_one(path, &bytes);
            }
        }
    }

    fn keep_one(&self, path: &Path, bytes: &[u8]) {
        let folder = self.kept.join(blake3::hash(bytes).to_hex().as_str());
        if folder.exists() {
            return;
        }

        fs::create_dir_all(&folder).expect("a folder");
        let test = std::thread::current().name().unwrap_or("test").replace("::", ".");
        fs::write(folder.join(test).with_added_extension("onnx"), bytes).expect("a file");
        // The checker asks whether files of tensors are there and how long they are.
        let beside = path.parent().and_then(|parent| fs::read_dir(parent).ok());
        for file in beside.into_iter().flatten().flatten() {
            let (name, about) = (file.file_name(), file.metadata().ok());
            let is_model = Path::new(&name).extension().is_some_and(|it| it == "onnx");
            if let Some(about) = about.filter(|about| about.is_file() && !is_model) {
                let empty = File::create(folder.join(name)).expect("a file");
                empty.set_len(about.len()).expect("a file without blocks");
            }
        }
    }
}

/// ONNX files in a folder and below it.
fn models(folder: &Path) -> BTreeMap<PathBuf, State> {
    let mut found = BTreeMap::new();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for (path, about) in entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?))) {
        if about.is_dir() {
            found.extend(models(&path));
        } else if path.extension().is_some_and(|extension| extension == "onnx") {
            found.insert(path, state(&about));
        }
    }
    found
}

fn state(about: &Metadata) -> State {
    (about.len(), about.modified().ok())
}
