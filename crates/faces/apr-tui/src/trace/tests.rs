//! The screen at three sizes. Numbers that differ between machines are replaced.

use apr::run::RunOptions;
use apr::trace::{Payload, TraceOptions};
use apr_testkit::locate::fixture;
use apr_trace::Trace;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{
    KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};

use super::{TraceScreen, TraceView};
use crate::palette::Palette;
use crate::screen::{Flow, Screen, ScreenOptions};
use crate::snapshot::{PICTURE, assert_picture, assert_snapshot};
use crate::svg::svg;
use crate::wording::Plain;

const SIZES: [(u16, u16); 3] = [(60, 20), (80, 24), (140, 45)];

fn trace() -> Trace {
    let model = apr::Model::open(fixture("tiny-llama")).expect("the fixture");
    let mut options = TraceOptions::new(RunOptions::reading());
    (options.payload, options.weights) = (true, true);
    let payload = Payload::Text { prompt: "12+34=".into(), chat: None, context: None };
    let mut trace = model.trace(&payload, &options, |_, _| {}).expect("a trace");
    trace.path = "fixtures/tiny-llama".to_owned();
    steady(&mut trace);
    trace
}

/// Replaces times, and results of rounding that differ between processors, with constant numbers.
fn steady(trace: &mut Trace) {
    for pass in &mut trace.passes {
        for (at, operator) in pass.operators.iter_mut().enumerate() {
            operator.seconds = Some(1e-4 * at as f64);
        }
        let inputs = pass.inputs.iter_mut().map(|input| &mut input.value);
        for (at, step) in (1_u8..).zip(&mut pass.steps) {
            step.seconds = Some(1.8e-3 * f64::from(at));
            (step.peak_bytes, step.made_bytes) = (1_000_000, 250_000);
            if let Some(stats) = step.weights.as_mut().and_then(|it| it.weight_statistics.as_mut())
            {
                (stats.mean, stats.std) = (Some(0.002), Some(0.04));
            }
        }
        let values = pass.steps.iter_mut().filter_map(|step| step.value.as_mut()).chain(inputs);
        for value in values {
            let Some(found) = &mut value.statistics else { continue };
            found.distribution = vec![1, 2, 4, 8, 16, 30, 60, 90, 80, 50, 20, 10, 6, 3, 2, 1];
            let stats = &mut found.stats;
            (stats.mean, stats.std) = (Some(0.08), Some(0.29));
            (stats.min, stats.max, stats.l2) = (Some(-1.2), Some(2.1), 10.5);
            value.first = vec![0.12, 0.34, -0.21, 0.08, 0.45, -0.11, 0.02, 1.5];
        }
    }
    for prediction in trace.predictions.iter_mut().flat_map(|found| &mut found.top) {
        prediction.probability = 0.2;
    }
}

fn options(has_colors: bool) -> ScreenOptions<'static> {
    ScreenOptions { palette: Palette::new(has_colors), takes_mouse: true, wording: &Plain }
}

fn screen() -> TraceScreen<'static> {
    TraceScreen::new(TraceView { trace: trace(), diff: None }, options(false))
}

fn press(screen: &mut TraceScreen<'_>, keys: &[KeyCode]) -> Flow {
    let mut flow = Flow::Stay;
    for key in keys {
        flow = screen.key(KeyEvent::new(*key, KeyModifiers::NONE));
    }
    flow
}

fn drawn(screen: &mut TraceScreen<'_>, (columns, rows): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a backend");
    terminal.draw(|frame| screen.draw(frame)).expect("a frame");
    terminal.backend().to_string()
}

#[test]
fn the_screen_matches_the_specification_at_three_sizes() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Char('/')]);
    press(&mut screen, &"layers.1/attention".chars().map(KeyCode::Char).collect::<Vec<_>>());
    press(&mut screen, &[KeyCode::Enter, KeyCode::Right]);
    for size in SIZES {
        assert_snapshot("trace", size, &drawn(&mut screen, size));
    }
    press(&mut screen, &[KeyCode::Enter]);
    for size in SIZES {
        assert_snapshot("trace-inspect", size, &drawn(&mut screen, size));
    }
}

#[test]
fn the_picture_of_the_documentation_is_what_the_screen_shows() {
    let mut screen = TraceScreen::new(TraceView { trace: trace(), diff: None }, options(true));
    press(&mut screen, &[KeyCode::PageDown, KeyCode::Right, KeyCode::Right, KeyCode::Right]);
    let buffer = crate::screen::drawn(&mut screen, PICTURE);
    assert_picture("trace.svg", &svg(&buffer, "A trace, step by step"));
}

#[test]
fn a_click_goes_to_a_step_and_the_wheel_to_the_next() {
    let mut screen = screen();
    let text = drawn(&mut screen, (140, 45));
    let row = text.lines().position(|line| line.contains("   4 embeddings")).expect("a row");
    let mouse = |kind| MouseEvent {
        kind,
        column: 10,
        row: u16::try_from(row).expect("few"),
        modifiers: KeyModifiers::NONE,
    };
    screen.mouse(mouse(MouseEventKind::Down(MouseButton::Left)));
    assert!(drawn(&mut screen, (140, 45)).contains(" 4/21 "));
    screen.mouse(mouse(MouseEventKind::ScrollDown));
    assert!(drawn(&mut screen, (140, 45)).contains(" 5/21 "));
    press(&mut screen, &[KeyCode::Char('M')]);
    assert!(!screen.takes_mouse());
}

#[test]
fn inputs_and_predictions_have_places_of_their_own() {
    let mut screen = screen();
    let first = drawn(&mut screen, (60, 20));
    for text in ["Current: input_ids", "[1, 7] i64", "[256, 49, 50, 43, 51, 52, 61]", " 1/21"] {
        assert!(first.contains(text), "no {text} in\n{first}");
    }
    press(&mut screen, &[KeyCode::End]);
    let last = drawn(&mut screen, (60, 20));
    for text in ["Top predictions:", "1. \"4\"", "21/21", "YOU ARE HERE"] {
        assert!(last.contains(text), "no {text} in\n{last}");
    }
}

#[test]
fn every_key_of_the_help_does_something_and_q_quits() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Char('d')]);
    assert!(drawn(&mut screen, (80, 24)).contains("--diff --interactive"));
    press(&mut screen, &[KeyCode::Char('?')]);
    assert!(drawn(&mut screen, (80, 24)).contains("ten steps back, ahead"));
    // The key that closes the help does nothing else.
    assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Flow::Stay);
    press(&mut screen, &[KeyCode::Char('a')]);
    assert!(drawn(&mut screen, (80, 24)).contains("every step is finite"));
    press(&mut screen, &[KeyCode::PageDown, KeyCode::PageDown, KeyCode::PageDown]);
    assert!(drawn(&mut screen, (80, 24)).contains("21/21"));
    press(&mut screen, &[KeyCode::Char('g'), KeyCode::Char('l'), KeyCode::Char('j')]);
    assert!(drawn(&mut screen, (80, 24)).contains(" 3/21"));
    assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Flow::Quit);
}

#[test]
fn a_step_with_nan_is_marked_and_found() {
    let mut trace = trace();
    let step = &mut trace.passes[0].steps[4];
    step.not_finite_at = Some("layers.0/attention/scores".to_owned());
    if let Some(found) = step.value.as_mut().and_then(|value| value.statistics.as_mut()) {
        (found.stats.nan, found.stats.min, found.stats.max) = (9, None, None);
    }
    let mut screen = TraceScreen::new(TraceView { trace, diff: None }, options(true));
    press(&mut screen, &[KeyCode::Char('a')]);
    let text = drawn(&mut screen, (80, 24));
    for part in ["Current Layer: layers.0/attention", "✗", "9 NaN, 0 infinite", "no finite values"]
    {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}

#[test]
fn any_size_and_any_name_can_be_drawn() {
    let mut trace = trace();
    for step in &mut trace.passes[0].steps {
        step.path = format!("{}\u{1b}[31m/模型\u{301}{}", step.path, "x".repeat(10_000));
    }
    let view = TraceView { trace, diff: None };
    let mut screen = TraceScreen::new(view, options(true));
    for keys in [&[][..], &[KeyCode::Right; 5], &[KeyCode::Enter], &[KeyCode::Char('?')]] {
        press(&mut screen, keys);
        for columns in (1..150).step_by(7) {
            for rows in (1..50).step_by(3) {
                let text = drawn(&mut screen, (columns, rows));
                assert!(!text.contains('\u{1b}'));
            }
        }
    }
}

/// Paths are unique within a part: the encoder and the decoder have layers of the same names.
#[test]
fn a_step_lists_the_operators_of_its_own_part() {
    let model = apr::Model::open(fixture("run/tiny-t5")).expect("the fixture");
    let mut options = TraceOptions::new(RunOptions::reading());
    options.payload = true;
    let payload = Payload::Tokens(vec![3, 4, 1]);
    let trace = model.trace(&payload, &options, |_, _| {}).expect("a trace");
    assert_eq!(trace.passes.len(), 2);
    for stop in super::stops::stops(&trace) {
        let Some(step) = stop.step(&trace) else { continue };
        let lines = super::details::lines(&trace, &stop, 100, Palette::new(false));
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        let heading = lines.iter().position(|line| line == " Operators").expect("a heading");
        assert_eq!(lines.len() - heading - 1, step.operators, "{}: {lines:#?}", stop.name);
    }
}

/// The expected flows are those of a LLaMA.
///
/// The residual sum reads the block and the block's input, the attention of each layer reads
/// positions and masks, and inputs read nothing.
#[test]
fn arrows_are_where_one_step_reads_what_another_made() {
    let screen = screen();
    let at = |name: &str| {
        let found = screen.walk.stops.iter().position(|stop| stop.name == name);
        found.unwrap_or_else(|| panic!("no stop {name}"))
    };
    let flow = &screen.walk.flow;
    let flows = |from: &str, to: &str| flow.is_between(at(from), at(to));
    assert!(flows("input_ids", "embeddings") && flows("input_ids", "mask"));
    assert!(flows("position_ids", "rotary"));
    assert!(flows("layers.0/attention", "layers.0/attention_sum"));
    assert!(flows("embeddings", "layers.0/attention_sum"));
    assert!(flows("rotary", "layers.1/attention") && flows("mask", "layers.1/attention"));
    assert!(flows("head", "logits"));
    for (from, to) in [("input_ids", "attention_mask"), ("embeddings", "mask"), ("mask", "rotary")]
    {
        assert!(!flows(from, to), "{from} to {to}");
    }
}

#[test]
fn independent_steps_are_not_connected_by_an_arrow() {
    let mut screen = screen();
    let text = drawn(&mut screen, (140, 45));
    let row = text.lines().find(|line| line.contains("[input_ids]")).expect("a row");
    assert!(row.contains("[input_ids]     [attention_mask]     [position_ids]"), "{row}");
    // The token ids go to the embeddings and to the mask, past the other inputs.
    let above = text.lines().nth(2).expect("a row");
    assert_eq!(above.matches('╭').count() + above.matches('▼').count(), 3, "{above}");
    // What it reads is named, whether it is on the screen or not.
    press(&mut screen, &[KeyCode::Char('/')]);
    press(&mut screen, &"layers.1/attention_sum".chars().map(KeyCode::Char).collect::<Vec<_>>());
    press(&mut screen, &[KeyCode::Enter]);
    let text = drawn(&mut screen, (80, 24));
    assert!(text.contains("reads: layers.0/mlp_sum, +1"), "{text}");
}
