//! Views that run the model, and that scan its files.

use apr::run::RunOptions;
use apr::trace::{Payload, TraceOptions};
use apr_registry::{ByteSource, Error, Limits, OpenOptions};
use apr_scan::{ScanSummary, scan_file};
use apr_testkit::onnx::cyclic;
use apr_trace::Trace;
use ratatui::buffer::Cell;

use super::{drawn, press, tiny_llama, with_job, with_screen};
use crate::explore::{Loaded, View, Watch};

const SIZE: (u16, u16) = (80, 24);

fn prompt() -> Payload {
    Payload::Text { prompt: "12+34=".into(), chat: None, context: None }
}

/// Mean and deviation of each step, which differ between no two runs on one machine.
fn numbers(trace: &Trace) -> Vec<(String, Option<f64>, Option<f64>)> {
    let steps = trace.passes.iter().flat_map(|pass| &pass.steps);
    let of = |step: &apr_trace::StepTrace| {
        let stats = step.value.as_ref()?.statistics.as_ref().map(|found| &found.stats)?;
        Some((step.path.clone(), stats.mean, stats.std))
    };
    steps.filter_map(of).collect()
}

#[test]
fn a_prompt_can_be_typed_and_each_step_matches_the_trace() {
    let model = tiny_llama();
    let mut options = TraceOptions::new(RunOptions::reading());
    (options.payload, options.weights) = (true, true);
    let expected = model.trace(&prompt(), &options, |_, _| {}).expect("a trace");
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        press(screen, "i");
        assert!(drawn(screen, SIZE).contains("Press Enter to type a prompt"));
        press(screen, "\n12+34=\n");
        assert_eq!(screen.view, View::Trace, "letters of the prompt are no keys");
        let trace = screen.trace.ready().expect("a trace").trace();
        assert_eq!(numbers(trace), numbers(&expected));
        press(screen, ">>>");
        let text = drawn(screen, SIZE);
        assert!(text.contains("Current Layer: embeddings") && text.contains(" 4/21 "), "{text}");
        press(screen, "/layers.1/attention\n");
        let text = drawn(screen, SIZE);
        assert!(text.contains("Current Layer: layers.1/attention_norm"), "{text}");
        press(screen, "nu");
        let text = drawn(screen, SIZE);
        assert!(text.contains("4 of 21 tensors") && text.contains("of the step"), "{text}");
    });
}

#[test]
fn a_payload_from_the_front_end_runs_immediately() {
    let model = tiny_llama();
    with_job(&[model.reader()], Some(prompt()), None, |screen| {
        screen.settle();
        press(screen, "i");
        assert!(drawn(screen, SIZE).contains("[256, 49, 50, 43, 51, 52, 61]"));
        press(screen, "r1+1=\n");
        assert!(drawn(screen, SIZE).contains("[256, 49, 43, 49, 61]"));
    });
}

#[test]
fn a_model_that_cannot_run_reports_the_reason() {
    let reader = super::of_names(["weight".to_owned()].into_iter());
    with_screen(&[&*reader], |screen| {
        screen.settle();
        press(screen, "i");
        let text = drawn(screen, SIZE);
        assert!(
            text.contains("the model does not run") && text.contains("unknown family"),
            "{text}"
        );
        press(screen, "\nhello\n");
        assert!(drawn(screen, SIZE).contains("unknown family"));
    });
    let reader =
        apr_registry::open(cyclic(), "cyclic.onnx", OpenOptions::default()).expect("a model");
    with_screen(&[&*reader], |screen| {
        screen.settle();
        press(screen, "i");
        screen.settle();
        press(screen, "\n");
        assert!(matches!(screen.trace, Loaded::Nothing));
        assert!(drawn(screen, SIZE).contains("no text input"));
    });
}

#[test]
fn outputs_and_scores_match_the_reports() {
    let (model, other) = (tiny_llama(), tiny_llama());
    with_screen(&[model.reader(), other.reader()], |screen| {
        screen.settle();
        let text = drawn(screen, SIZE);
        assert!(text.contains("v1: ████████████████ 5/5 VALID"), "{text}");
        assert!(text.contains("o runs both models"), "{text}");
        press(screen, "o");
        let text = drawn(screen, SIZE);
        assert!(text.contains("✓ PASS mean L2=0 max=0 cosine=1.0000  same top: 100.0%"), "{text}");
    });
}

/// File that signals when it is read, and blocks the read until the work is stopped.
struct Endless;

impl ByteSource for Endless {
    fn len(&self) -> u64 {
        1 << 40
    }

    fn read_at(&self, _: u64, buf: &mut [u8]) -> apr_registry::Result<()> {
        buf.fill(b'x');
        Ok(())
    }
}

#[test]
fn a_scan_reports_its_progress_and_can_be_stopped() {
    let model = tiny_llama();
    let endless = |watch: &Watch| {
        watch.begin(1 << 40);
        let file = watch.over(Box::new(Endless));
        let mut piece = [0; 1 << 16];
        loop {
            file.read_at(0, &mut piece)?;
        }
    };
    with_job(&[model.reader()], None, Some(&endless), |screen| {
        while screen.list.ready().is_none() {
            crate::screen::Screen::tick(screen);
        }
        screen.open(View::Checks);
        while screen.desk.meter(true).bytes().0 == 0 {
            crate::screen::Screen::tick(screen);
        }
        let buffer = crate::screen::drawn(screen, SIZE);
        let text: String = buffer.content().iter().map(Cell::symbol).collect();
        assert!(text.contains("scanning: 0 %"), "{text}");
        // The validation waits behind the scan, and is given up with it.
        press(screen, "\u{1b}");
        assert!(screen.scan.is_nothing() && screen.checks.is_nothing());
        assert!(drawn(screen, SIZE).contains("r scans the model's files"));
    });
}

#[test]
fn findings_of_a_scan_are_listed() {
    let model = tiny_llama();
    let scan = |watch: &Watch| {
        // What `pickle.dumps(print)` writes.
        let pickle: &[u8] = b"cbuiltins\nprint\n.";
        let limits = Limits::default();
        let bad = scan_file(watch.over(Box::new(pickle)), "bad\u{1b}.pkl", &limits)?;
        let good = scan_file(watch.over(Box::new(&b"{}"[..])), "config.json", &limits)?;
        Ok(ScanSummary::of(vec![good, bad]))
    };
    with_job(&[model.reader()], None, Some(&scan), |screen| {
        screen.settle();
        press(screen, "x");
        let text = drawn(screen, (100, 40));
        for part in ["Scan  ", r"bad\u{1b}.pkl", "builtins.print", "✓ clean", "config.json"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    });
    let failing = |_: &Watch| -> apr_registry::Result<ScanSummary> {
        Err(Error::corrupt("this file can't be scanned"))
    };
    with_job(&[model.reader()], None, Some(&failing), |screen| {
        screen.settle();
        press(screen, "x");
        let text = drawn(screen, SIZE);
        assert!(text.contains("✗ ") && text.contains("can't be scanned"), "{text}");
        assert!(text.contains("VALID"), "the validation goes on: {text}");
    });
}
