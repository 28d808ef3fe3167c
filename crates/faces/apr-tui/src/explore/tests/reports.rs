//! What screens show is what the library reports.

use std::num::NonZeroUsize;
use std::sync::Arc;

use apr::report::{DiffOptions, TensorsOptions, ValidateOptions};
use apr_arch::Families;
use apr_io::{Interrupt, Threads};
use apr_ops::graph::ReportOptions;
use apr_testkit::locate::fixture;
use serde::Serialize;
use serde_json::Value;

use super::{fine, subject};
use crate::explore::Job;
use crate::explore::background::meter::{Meter, Watch};
use crate::explore::background::reports::{Bench, Report, answer};
use crate::explore::background::request::Request;

fn json(report: impl Serialize) -> Value {
    serde_json::to_value(report).expect("reports are JSON")
}

/// Returns the reports that a screen gets for a request.
fn answers(bench: &Bench<'_>, request: &Request) -> Vec<Value> {
    let interrupt = Interrupt::default();
    let threads = Threads::new(NonZeroUsize::MIN, 1 << 28, interrupt.clone()).expect("threads");
    let watch = Watch::new(interrupt, Arc::new(Meter::default()));
    match answer(request, bench, &threads, &watch).unwrap_or_else(|_| panic!("{request:?}")) {
        Report::List(report) => vec![json(report)],
        Report::Inspect(report) => vec![json(report)],
        Report::Graph(report) => vec![json(report)],
        Report::Checks(checks) => vec![json(checks.validation), json(checks.lint)],
        Report::Compare(report) => vec![json(report)],
        _ => panic!("{request:?}"),
    }
}

#[test]
fn screens_show_the_reports_of_the_library() {
    let other = apr::Model::open(fixture("tiny-llama")).expect("a model");
    let families = Families::builtin();
    for name in ["tiny-llama", "run/tiny-whisper", "keras/images.keras", "tflite/lowered.tflite"] {
        let path = fixture(name);
        let model = apr::Model::open(&path).expect("a model");
        let path = path.display().to_string();
        let second = fixture("tiny-llama").display().to_string();
        let job = Job {
            model: subject(&path, model.reader(), &families),
            other: Some(subject(&second, other.reader(), &families)),
            refused: None,
            payload: None,
            scan: None,
            threads: NonZeroUsize::MIN,
            max_memory: 1 << 28,
            unchanged: &fine,
        };
        let bench = Bench::of(&job);
        let expect = |request: &Request, reports: &[Value]| {
            assert_eq!(answers(&bench, request), reports, "{request:?} of {name}");
        };
        let validation = model.validate(ValidateOptions::default()).expect("a report");
        expect(&Request::Checks, &[json(validation), json(model.lint().expect("a report"))]);
        expect(&Request::Inspect, &[json(model.inspect().expect("a report"))]);
        let list = model.tensor_table(&TensorsOptions::default()).expect("a report");
        expect(&Request::List, &[json(list)]);
        let graph = model.session().graph(&ReportOptions::default()).expect("a report");
        expect(&Request::Graph, &[json(graph)]);
        let diff = model.diff(&other, &DiffOptions::default()).expect("a report");
        expect(&Request::Compare, &[json(diff)]);
    }
}
