//! Security advisories about dependencies.

use crate::lint::{advisories_are_reachable, compare_with_advisories};
use crate::quality::report;
use crate::steps::{Steps, Stop};

pub(crate) fn run(steps: &mut Steps) {
    steps.run("security advisories", || {
        if !advisories_are_reachable() {
            let what = "Not checked: the database of advisories could not be reached.";
            report::write("advisories", what)?;
            return Err(Stop::skipped(
                "the database of advisories can't be reached",
                "run it where GitHub can be",
            ));
        }
        compare_with_advisories()?;
        report::write(
            "advisories",
            "None about any dependency of what ships, and none of them is yanked.",
        )
    });
}
