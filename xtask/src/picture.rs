//! The picture of a terminal session, in the README. Those of screens are drawn by the tests of
//! `apr-tui`.

use crate::process::{cargo, run as run_program, target_dir, workspace};
use crate::steps::{Steps, Stop};

pub(crate) fn run(steps: &mut Steps) {
    steps.run("picture of a terminal: docs/session.svg", || {
        run_program(&mut cargo("build", ["--package", "apr-cli"]))?;
        let (binary, picture) =
            (target_dir().join("debug/apr"), workspace().join("docs/session.svg"));
        let [Some(binary), Some(picture)] = [binary.to_str(), picture.to_str()] else {
            return Err(Stop::failed("the paths are no text"));
        };
        run_program(&mut cargo(
            "run",
            ["--package", "apr-cli", "--example", "picture", "--", binary, picture],
        ))
    });
}
