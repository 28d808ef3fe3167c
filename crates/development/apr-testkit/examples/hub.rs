//! Serves folders as repositories of a hub on this machine:
//! `cargo run -p apr-testkit --example hub -- ORG/REPO=FOLDER…`.
//!
//! It prints its address, for `HF_ENDPOINT`. Lines on standard input change it:
//!
//! - `delay MILLISECONDS` before each answer, `rate BYTES` a second over all connections;
//! - `cut EVERY`, `trickle MILLISECONDS` (between two bytes), `noranges` (whole files, whatever
//!   range is asked for), `names` (lists of files without lengths and digests);
//! - `branch ORG/REPO NAME` of the newest commit;
//! - `pieces BYTES` of the files that it takes;
//! - `heal` of all that but `names`, `branch` and `pieces`;
//! - `count` (requests, bytes, and those of the store, since it was asked last), `log` (the
//!   requests since then, each with the milliseconds since the first).

use std::io::BufRead;
use std::path::Path;
use std::time::Duration;

use apr_testkit::hub::{Fault, Request, TestHub};

fn main() {
    let hub = TestHub::start();
    for argument in std::env::args().skip(1) {
        let (repo, folder) = argument.split_once('=').expect("ORG/REPO=FOLDER");
        hub.put_folder(repo, Path::new(folder));
    }
    println!("{}", hub.url());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let number = || rest.parse().expect("a number");
        match word {
            "delay" => hub.delay(Duration::from_millis(number())),
            "rate" => hub.rate(number()),
            "cut" => hub.cut_every(number()),
            "noranges" => hub.fault("/", Fault::NoRanges, 0, u32::MAX),
            "names" => hub.list_names_alone(),
            "branch" => {
                let (repo, name) = rest.split_once(' ').expect("ORG/REPO NAME");
                hub.branch(repo, name);
            }
            "trickle" => {
                hub.fault("/", Fault::Trickle(1, Duration::from_millis(number())), 0, u32::MAX);
            }
            "pieces" => hub.take_pieces(number()),
            "heal" => hub.heal(),
            "count" => {
                let requests = hub.requests();
                let sent: u64 = requests.iter().map(|request| request.sent).sum();
                let stored: u64 = requests
                    .iter()
                    .filter(|request| request.at_store)
                    .map(|request| request.sent)
                    .sum();
                println!("{} {sent} {stored}", requests.len());
            }
            "log" => {
                let requests = hub.requests();
                let first = requests.iter().map(|request| request.at).min();
                for Request { method, target, range, status, at, .. } in &requests {
                    let since = first.map_or(Duration::ZERO, |first| at.duration_since(first));
                    let range = range.as_deref().unwrap_or_default();
                    println!(
                        "{:>9.1} {method} {status} {target} {range}",
                        since.as_secs_f64() * 1000.0
                    );
                }
                println!();
            }
            _ => panic!(
                "delay, rate, cut, noranges, names, branch, trickle, pieces, heal, count or log"
            ),
        }
    }
}
