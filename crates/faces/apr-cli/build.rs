//! Packs the page's files into the program, with the feature `page`: the folder of `APR_PAGE`, or
//! `target/web` of a clone in which `cargo xtask web` has run. The modules for the web can't be
//! built here, so that without either there are no files, and `apr page` says so.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "page")]
    page::pack();
}

#[cfg(feature = "page")]
mod page {
    use std::fmt::Write;
    use std::path::{Path, PathBuf};
    use std::{env, fs};

    use miniz_oxide::deflate::compress_to_vec_zlib;

    /// Compression level of zlib: 9 gives the smallest files.
    const LEVEL: u8 = 9;

    /// Writes the files, and the list of them that the program includes.
    pub(crate) fn pack() {
        println!("cargo::rerun-if-env-changed=APR_PAGE");
        let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
        let mut list = String::from("pub(super) static FILES: &[(&str, bool, &[u8])] = &[\n");
        match site() {
            Some(site) => {
                println!("cargo::rerun-if-changed={}", site.display());
                let mut files = Vec::new();
                collect(&site, "", &mut files);
                files.sort();
                for (number, name) in files.iter().enumerate() {
                    let bytes = fs::read(site.join(name)).expect("the page's file");
                    // Parts of the example are read, which has no encoding then.
                    let is_packed = !name.starts_with("example/");
                    let bytes = if is_packed { compress_to_vec_zlib(&bytes, LEVEL) } else { bytes };
                    let path = folder.join(format!("page-{number}"));
                    fs::write(&path, bytes).expect("the output folder");
                    writeln!(list, "({name:?}, {is_packed}, include_bytes!({path:?})),")
                        .expect("a text");
                }
            }
            None => println!(
                "cargo::warning=no files of the page: run `cargo xtask web`, or set APR_PAGE to \
                 their folder; this build has no page"
            ),
        }
        list.push_str("];\n");
        fs::write(folder.join("page.rs"), list).expect("the output folder");
    }

    /// The folder of the page's files.
    fn site() -> Option<PathBuf> {
        if let Some(folder) = env::var_os("APR_PAGE").filter(|folder| !folder.is_empty()) {
            let folder = PathBuf::from(folder);
            assert!(
                folder.join("page/main.js").is_file(),
                "APR_PAGE has no files of the page: {} is missing",
                folder.join("page/main.js").display()
            );
            return Some(folder);
        }
        let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
        let clone = manifest.join("../../../target/web");
        clone.join("page/main.js").is_file().then_some(clone)
    }

    /// Collects the names of the files below a folder that a browser requests.
    fn collect(folder: &Path, prefix: &str, into: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("the page's folder") {
            let entry = entry.expect("the page's folder");
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                collect(&entry.path(), &format!("{name}/"), into);
            } else if !name.ends_with(".d.ts") {
                into.push(name);
            }
        }
    }
}
