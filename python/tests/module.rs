//! The tests of the package, which are Python, over the module that was built with this one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use apr_testkit::locate;

/// The compiled module, which lies where this program does.
fn compiled() -> PathBuf {
    let program = env::current_exe().expect("this program has a path");
    let name = format!("{}_apr{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    program.with_file_name(name)
}

/// Copies the Python files of the package.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("the package") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            fs::copy(&path, target).expect("a file is copied");
        }
    }
}

#[test]
fn the_package_does_what_its_tests_and_its_documentation_say() {
    let Some(python) = locate::reference_python() else { return };
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a folder");
    copy(&package.join("apr"), &folder.path().join("apr"));
    fs::copy(compiled(), folder.path().join("apr/_apr.abi3.so")).expect("the module was built");
    let done = Command::new(python)
        .args(["-B", "-m", "unittest", "discover"])
        .current_dir(package.join("tests"))
        .env("PYTHONPATH", folder.path())
        .output()
        .expect("Python runs");
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && !told.contains("Ran 0 tests"), "{told}");
    eprintln!("{told}");
}
