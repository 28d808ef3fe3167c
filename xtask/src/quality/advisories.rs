//! Security advisories about dependencies.

use crate::lint::CARGO_DENY;
use crate::process::{program, run as run_program};
use crate::quality::report;
use crate::steps::{Steps, Stop};

pub(crate) fn run(steps: &mut Steps) {
    steps.run("security advisories", || {
        let cargo_deny = CARGO_DENY.installed_or_install()?;
        let fetched =
            run_program(program(&cargo_deny).args(["--log-level", "error", "fetch", "db"]));
        if fetched.is_err() {
            let what = "Not checked: the database of advisories could not be reached.";
            report::write("advisories", what)?;
            return Err(Stop::skipped(
                "the database of advisories can't be reached",
                "run it where GitHub can be",
            ));
        }
        run_program(program(&cargo_deny).args([
            "--log-level",
            "error",
            "check",
            "--disable-fetch",
            "advisories",
        ]))?;
        report::write(
            "advisories",
            "None about any dependency of what ships, and none of them is yanked.",
        )
    });
}
