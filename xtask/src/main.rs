//! Development tasks, run as `cargo xtask TASK`.

mod bench;
mod builds;
mod dist;
mod features;
mod fuzz;
mod interop;
mod lint;
mod package;
mod picture;
mod process;
mod quality;
mod reference;
mod release;
mod site;
mod steps;
mod surface;
mod system;
mod test;
mod tools;
mod web;
mod wheels;

use std::process::ExitCode;

use steps::Steps;

const HELP: &str = "\
Usage: cargo xtask TASK

  test   set up what the tests compare with, then run every test: workspace, Node, fixtures
  interop  let live peers judge what apr writes: llama.cpp, torch, candle; many minutes at first;
         or the parts that are named; --help lists them with the seconds that each last took
  lint   formatting, clippy, the limits of layers 0-2, dependencies, documentation
  ci     lint, then test
  builds  crates with few features, without std, for a bare processor and for the web; what is
         shipped there, its size and its test under Node
  dist   static binaries for Linux into target/packages, in archives with manual pages, completions,
         licences, a bill of materials and sums; x86_64 or aarch64 alone where named; --test
         runs the tests of the command line with each binary, --twice builds again and compares;
         aarch64-apple links one for macOS, which is neither run nor packed
  wheels  the packages for Python into target/packages, for any Linux since 2014; x86_64 or aarch64
         alone where named
  package  the crates as they are published: manifests, readmes, the minimum version of Rust, and
         `cargo package`, which builds each from its archive in the order of publication
  release  all that people download, from a TAG that is checked out, in target/packages: notes of
         the changelog, `package`, `dist --twice`, the package for npm, `wheels`, sums; without a
         TAG as a rehearsal
  web    the page into target/web, and the package for npm into target/npm; --serve serves it on
         this machine, --test tries it in Chromium
  site   the documentation as a site into target/site: the pages of docs, a reference of the
         commands, a search
  features  counts the crates of each feature of the library, for the table in its documentation;
         --times builds each, too
  surface  the library's public items beside public-api.txt of the crate apr; with a REVISION,
         what has become incompatible since
  bench  figures against cp and Python's safetensors; --gb 1 4, --runs 5
  bench scanners  what apr scan and four other scanners say about the same files, and about files of
         this system; --benign NAME=FOLDER adds others
  bench screens  what apr tui adds to the binary; its first screen of 100 GB, pictures a second
  bench excessive  every command over files that ask for more work than their size justifies
  picture  draws the picture of a session in docs with the binary of today
  fuzz   every fuzz target for 60 seconds, or the seconds given; takes a nightly toolchain
  quality  coverage, mutants, complexity, words, advisories, or those given, into docs/quality.md;
           --sample 60
  deny   dependencies including security advisories, which takes the network

A task goes on after a failed step and sums up at the end. What can't be had is skipped and says so;
with CI set in the environment, a skip is a failure.

CARGO_TARGET_DIR moves what is built; APR_REFERENCE moves the Python environment and the model
(target/reference).
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut steps = Steps::new();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["test"] => test::run(&mut steps),
        ["interop", "help" | "--help" | "-h"] => {
            print!("{}", interop::usage());
            return ExitCode::SUCCESS;
        }
        ["interop", ref parts @ ..] => {
            if let Err(usage) = interop::run(&mut steps, parts) {
                eprintln!("{usage}");
                return ExitCode::from(2);
            }
        }
        ["lint"] => lint::run(&mut steps),
        ["ci"] => {
            lint::run(&mut steps);
            test::run(&mut steps);
        }
        ["builds"] => builds::run(&mut steps),
        ["dist", ref arguments @ ..] => {
            if let Err(usage) = dist::run(&mut steps, arguments) {
                eprintln!("{usage}");
                return ExitCode::from(2);
            }
        }
        ["wheels", ref names @ ..] => {
            if let Err(usage) = wheels::run(&mut steps, names) {
                eprintln!("{usage}");
                return ExitCode::from(2);
            }
        }
        ["package"] => package::run(&mut steps),
        ["release"] => release::run(&mut steps, None),
        ["release", tag] => release::run(&mut steps, Some(tag)),
        ["web"] => web::run(&mut steps, web::Wish::Build),
        ["web", "--serve"] => web::run(&mut steps, web::Wish::Serve),
        ["web", "--test"] => web::run(&mut steps, web::Wish::Test),
        ["site"] => site::run(&mut steps),
        ["features"] => features::run(&mut steps, false),
        ["features", "--times"] => features::run(&mut steps, true),
        ["surface"] => surface::run(&mut steps, None),
        ["surface", revision] => surface::run(&mut steps, Some(revision)),
        ["bench", "scanners", ref arguments @ ..] => bench::scanners(&mut steps, arguments),
        ["bench", "screens", ref arguments @ ..] => bench::screens(&mut steps, arguments),
        ["bench", "excessive", ref arguments @ ..] => bench::excessive(&mut steps, arguments),
        ["bench", ref arguments @ ..] => bench::run(&mut steps, arguments),
        ["picture"] => picture::run(&mut steps),
        ["fuzz"] => fuzz::run(&mut steps, "60"),
        ["fuzz", seconds] => fuzz::run(&mut steps, seconds),
        ["quality", ref measures @ ..] => {
            if let Err(usage) = quality::run(&mut steps, measures) {
                eprintln!("{usage}");
                return ExitCode::from(2);
            }
        }
        ["deny"] => lint::all_of_dependencies(&mut steps),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    }

    steps.finish()
}
