//! Files from other projects.

use std::fs;
use std::path::Path;

use apr_core::CheckpointReader;
use apr_safetensors::WriteOptions;

use crate::{official, open, ours, rewrite};

#[test]
fn files_of_other_projects_match_the_reference_and_round_trip_unchanged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/data/safetensors");
    let Ok(files) = fs::read_dir(&folder) else {
        assert!(
            std::env::var_os("CI").is_none(),
            "the collection of files is absent: {}",
            folder.display()
        );
        eprintln!("skipped: the collection of files is absent: {}", folder.display());
        return;
    };
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder entry").path();
        let bytes = fs::read(&path).expect("a readable file");
        let reader = open(bytes.clone()).expect("a valid file");
        assert_eq!(reader.format(), &apr_safetensors::FORMAT);
        assert_eq!(Some(ours(&reader)), official(&bytes).ok(), "{}", path.display());
        assert!(reader.warnings().is_empty(), "{:?}", reader.warnings());
        assert!(rewrite(&reader, &WriteOptions::default()) == bytes, "{} changed", path.display());
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}
