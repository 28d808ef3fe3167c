//! Pictures of a terminal, in the README and in the documentation.

use crate::process::{cargo, run as run_program, target_dir, workspace};
use crate::steps::{Steps, Stop};

pub(crate) fn run(steps: &mut Steps) {
    steps.run("pictures of a terminal: docs/session.svg, tui.svg, trace.svg", || {
        run_program(&mut cargo("build", ["--package", "apr-cli"]))?;
        let (binary, docs) = (target_dir().join("debug/apr"), workspace().join("docs"));
        let session = docs.join("session.svg");
        for (example, target) in [("picture", &session), ("screens", &docs)] {
            let [Some(binary), Some(target)] = [binary.to_str(), target.to_str()] else {
                return Err(Stop::failed("the paths are no text"));
            };
            run_program(&mut cargo(
                "run",
                ["--package", "apr-cli", "--example", example, "--", binary, target],
            ))?;
        }
        Ok(())
    });
}
