//! Debian packages that a step needs.

use std::process::Command;
use std::sync::OnceLock;

use crate::process::{find_program, output, program, run, say};
use crate::steps::{Outcome, Stop};

/// Installs packages, as root or through sudo without a password.
///
/// If neither is possible, skips with the advice.
pub(crate) fn install_packages(packages: &[&str], advice: &str) -> Outcome {
    static LISTS_UPDATED: OnceLock<()> = OnceLock::new();

    let names = packages.join(" ");
    let Some(elevation) = elevation() else {
        return Err(Stop::skipped(
            format!("without apt-get and root it can't install {names}"),
            advice,
        ));
    };

    LISTS_UPDATED.get_or_init(|| {
        if run(apt_get(elevation).args(["update", "-qq"])).is_err() {
            say("    going on with the package lists that are there");
        }
    });
    let install = ["install", "-y", "-qq", "--no-install-recommends"];
    run(apt_get(elevation).args(install).args(packages))
        .map_err(|_| Stop::skipped(format!("apt-get can't install {names}"), advice))
}

/// Returns the prefix for a command that requires root.
fn elevation() -> Option<&'static [&'static str]> {
    find_program(|name| name == "apt-get")?;
    if output(program("id").arg("-u")).is_some_and(|id| id == "0") {
        return Some(&[]);
    }
    output(program("sudo").args(["-n", "true"])).map(|_| ["sudo", "-n"].as_slice())
}

fn apt_get(elevation: &[&str]) -> Command {
    let mut words =
        elevation.iter().copied().chain(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    let mut command = program(words.next().unwrap_or("env"));
    command.args(words);
    command
}
