//! Views at three sizes, of models small, odd and long; what keys, the mouse and slow files do.

mod documentation;
mod export;
mod mouse;
mod path;
mod reports;
mod runs;
mod slow;

use std::fmt::Write;
use std::num::NonZeroUsize;

use apr_arch::Families;
use apr_registry::{CheckpointReader, Error, OpenOptions};
use apr_source::Architecture;
use apr_testkit::locate::fixture;
use apr_trace::Payload;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::background::Desk;
use super::explorer::Explorer;
use super::{Job, Scan, Subject, with_explorer};
use crate::palette::Palette;
use crate::screen::{Flow, Screen, ScreenOptions};
use crate::snapshot::assert_snapshot;
use crate::wording::Plain;

const SIZES: [(u16, u16); 3] = [(60, 20), (80, 24), (140, 45)];

fn fine() -> apr_registry::Result<()> {
    Ok(())
}

fn options() -> ScreenOptions<'static> {
    ScreenOptions { palette: Palette::new(false), takes_mouse: true, wording: &Plain }
}

fn subject<'m>(
    name: &'m str,
    reader: &'m dyn CheckpointReader,
    families: &'m Families,
) -> Subject<'m> {
    Subject { name, reader, families, architecture: Architecture::Auto }
}

/// Calls `then` with a screen of a model, and of a second one if given.
fn with_screen(readers: &[&dyn CheckpointReader], then: impl FnOnce(&mut Explorer<'_>)) {
    with_job(readers, None, None, then);
}

/// Same as `with_screen`, with the front end's payload and scan.
fn with_job(
    readers: &[&dyn CheckpointReader],
    payload: Option<Payload>,
    scan: Option<&Scan<'_>>,
    then: impl FnOnce(&mut Explorer<'_>),
) {
    let families = Families::builtin();
    let job = Job {
        model: subject("tiny", readers[0], &families),
        other: readers.get(1).map(|reader| subject("other", *reader, &families)),
        refused: None,
        payload,
        scan,
        threads: NonZeroUsize::MIN,
        max_memory: 1 << 28,
        unchanged: &fine,
    };
    let desk = Desk::default();
    with_explorer(&job, &desk, &options(), then);
}

fn tiny_llama() -> apr::Model {
    apr::Model::open(fixture("tiny-llama")).expect("the fixture")
}

/// A safetensors file of one-byte tensors with these names.
fn of_names(names: impl Iterator<Item = String>) -> Box<dyn CheckpointReader> {
    let mut header = String::from("{");
    let mut len = 0_usize;
    for name in names {
        let name = serde_json::Value::from(name);
        let comma = if len > 0 { "," } else { "" };
        let end = len + 1;
        write!(
            header,
            r#"{comma}{name}:{{"dtype":"U8","shape":[1],"data_offsets":[{len},{end}]}}"#
        )
        .expect("text");
        len = end;
    }
    header.push('}');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.resize(bytes.len() + len, 7);
    let mut options = OpenOptions::default();
    options.limits.max_metadata = 1 << 28;
    apr_registry::open(bytes, "long.safetensors", &options).expect("a model")
}

fn press(screen: &mut Explorer<'_>, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '>' => KeyCode::Right,
            '<' => KeyCode::Left,
            '\t' => KeyCode::Tab,
            key => KeyCode::Char(key),
        };
        screen.key(KeyEvent::new(code, KeyModifiers::NONE));
        screen.settle();
    }
}

fn drawn(screen: &mut Explorer<'_>, size: (u16, u16)) -> String {
    screen.picture(size)
}

#[test]
fn every_view_is_drawn_at_three_sizes() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        for (keys, name) in [
            ("t", "tensors"),
            ("x", "checks"),
            ("s", "stats"),
            ("tj\n", "histogram"),
            ("v", "values"),
            ("gjjjjjj", "graph"),
            ("\n", "graph-group"),
            ("c", "compare-one"),
            ("b", "vocabulary"),
            ("i", "trace-view"),
        ] {
            press(screen, keys);
            for size in SIZES {
                assert_snapshot(name, size, &drawn(screen, size));
            }
        }
    });
}

#[test]
fn unread_data_is_reported_in_the_tensor_list_the_summary_and_the_checks() {
    for (name, line, sum) in [
        ("torch/lightning.ckpt", "not read: optimizer_states (6 tensors)", None),
        ("onnx/kinds.onnx", "not listed: tensors of text (2)", Some("; 4 more: t lists them")),
        ("keras/small.keras", "not read: the optimizer's state (16 variables)", None),
    ] {
        let model = apr::Model::open(fixture(name)).expect("a model");
        with_screen(&[model.reader()], |screen| {
            screen.settle();
            for (view, line) in [("t", line), ("s", sum.unwrap_or(line)), ("x", line)] {
                press(screen, view);
                // Checks scroll where there is little room.
                let sizes = if view == "x" { &SIZES[2..] } else { &SIZES[..] };
                for size in sizes {
                    let text = drawn(screen, *size);
                    assert!(text.contains(line), "{name}, {view}:\n{text}");
                }
            }
        });
    }
}

#[test]
fn two_models_are_shown_beside_each_other() {
    let (model, other) = (tiny_llama(), tiny_llama());
    with_screen(&[model.reader(), other.reader()], |screen| {
        screen.settle();
        for size in SIZES {
            assert_snapshot("compare", size, &drawn(screen, size));
        }
        let text = drawn(screen, (80, 24));
        for part in ["Comparing: tiny vs other", "Similarity: 100%", "v1: ", "v2: ", "mean="] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    });
}

#[test]
fn only_the_visible_tensors_of_two_hundred_thousand_are_drawn() {
    let reader = of_names((0..200_000).map(|at| format!("layers.{at}.weight")));
    with_screen(&[&*reader], |screen| {
        screen.settle();
        press(screen, "G");
        for above in 0..20 {
            let text = drawn(screen, (80, 24));
            assert!(text.contains(&format!("{}/200000", 200_000 - above)), "{text}");
            let rows = screen.zones.items();
            assert!(rows < 24, "{rows} rows are drawn");
            press(screen, "k");
        }
        press(screen, "/199999\n");
        let text = drawn(screen, (80, 24));
        assert!(text.contains("layers.199999.weight") && text.contains("1/1"), "{text}");
    });
}

#[test]
fn names_cannot_control_the_terminal_and_any_size_can_be_drawn() {
    let names = [
        "a\u{1b}[31mred".to_owned(),
        "模型.权重".repeat(40),
        "e\u{301}".repeat(100),
        "x".repeat(10_000),
        "\u{202e}txet".to_owned(),
    ];
    let reader = of_names(names.into_iter());
    with_screen(&[&*reader, &*reader], |screen| {
        screen.settle();
        for view in "tshvgcxbi?".chars() {
            press(screen, &view.to_string());
            for columns in (1..150).step_by(13) {
                for rows in (1..50).step_by(5) {
                    let text = drawn(screen, (columns, rows));
                    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
                }
            }
        }
    });
}

#[test]
fn a_failure_is_reported_in_its_view() {
    fn changed() -> apr_registry::Result<()> {
        Err(Error::corrupt("the file was changed by another program"))
    }
    let model = tiny_llama();
    let families = Families::builtin();
    let job = Job {
        model: subject("tiny", model.reader(), &families),
        other: None,
        refused: None,
        payload: None,
        scan: None,
        threads: NonZeroUsize::MIN,
        max_memory: 1 << 28,
        unchanged: &changed,
    };
    let desk = Desk::default();
    with_explorer(&job, &desk, &options(), |screen| {
        screen.settle();
        for view in "tsgxb".chars() {
            press(screen, &view.to_string());
            let text = drawn(screen, (80, 24));
            assert!(text.contains("changed by another program"), "{view}: {text}");
        }
    });
}

#[test]
fn keys_lead_from_view_to_view_and_filters_find() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        press(screen, "/q_proj\n");
        let text = drawn(screen, (80, 24));
        assert!(text.contains("2 of 21 tensors") && text.contains("'q_proj'"), "{text}");
        press(screen, "j\n");
        let text = drawn(screen, (80, 24));
        assert!(text.contains("Tensor: model.layers.1.self_attn.q_proj.weight"), "{text}");
        assert!(text.contains("nothing unusual (linear weight)"), "{text}");
        press(screen, "<");
        assert!(drawn(screen, (80, 24)).contains("layers.0.self_attn.q_proj"));
        press(screen, "\u{1b}\u{1b}oo");
        let text = drawn(screen, (80, 24));
        assert!(text.contains("21 tensors, 723.7 KB, by size"), "{text}");
        press(screen, "g/softmax\n");
        press(screen, "\u{1b}/probs\n");
        let text = drawn(screen, (80, 24));
        assert!(
            text.contains("model › layers.0-1 › attention") && text.contains("━ probs"),
            "{text}"
        );
        press(screen, "b/<pad>\n");
        assert!(drawn(screen, (80, 24)).contains("258  <pad>"));
        press(screen, "5?");
        assert!(drawn(screen, (80, 24)).contains("open the group"));
        press(screen, "q");
        let quit = screen.key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE));
        assert_eq!(quit, Flow::Quit);
    });
}

#[test]
fn compare_with_one_model_asks_for_the_second_model() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        press(screen, "c");
        assert!(drawn(screen, (80, 24)).contains("Only one model is open. Press Enter"));
        press(screen, "\n");
        assert!(drawn(screen, (80, 24)).contains("compare with:"));
        press(screen, "q4.ggu");
        // A letter of the line is no key of the screen, and an empty line opens nothing.
        assert_eq!(screen.wanted, None);
        let enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        press(screen, "f");
        assert_eq!(screen.key(enter), Flow::Quit);
        assert_eq!(screen.wanted.take().as_deref(), Some("q4.gguf"));
        press(screen, "\n");
        assert_eq!(screen.key(enter), Flow::Stay);
    });
    let families = Families::builtin();
    let job = Job {
        model: subject("tiny", model.reader(), &families),
        other: None,
        refused: Some("E007: absent: no such file".to_owned()),
        payload: None,
        scan: None,
        threads: NonZeroUsize::MIN,
        max_memory: 1 << 28,
        unchanged: &fine,
    };
    let desk = Desk::default();
    with_explorer(&job, &desk, &options(), |screen| {
        screen.settle();
        let text = drawn(screen, (80, 24));
        assert!(text.contains("[Compare View]") && text.contains("E007: absent"), "{text}");
    });
}

#[test]
fn every_view_is_listed_at_the_bottom_on_eighty_columns() {
    let names =
        ["tensors", "stats", "hist", "values", "graph", "compare", "check", "vocab", "trace"];
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        for (at, key) in "tshvgcxbi".chars().enumerate() {
            press(screen, &key.to_string());
            let text = drawn(screen, (80, 24));
            let rows: Vec<&str> = text.lines().collect();
            let foot = rows[21..23].join(" ").replace(['[', ']'], "");
            for (_, name) in names.iter().enumerate().filter(|(number, _)| *number != at) {
                assert!(foot.contains(name), "no {name} in\n{text}");
            }
            let low = drawn(screen, (80, 20)).replace(['[', ']'], "");
            for (_, name) in names.iter().enumerate().filter(|(number, _)| *number != at) {
                assert!(low.contains(name), "no {name} in\n{low}");
            }
            for size in [(60, 24), (60, 20), (50, 12)] {
                let small = drawn(screen, size);
                assert!(small.contains("[t s h v g c x b i] views"), "{small}");
            }
        }
    });
}

#[test]
fn a_model_without_text_asks_for_no_prompt() {
    let model = apr::Model::open(fixture("onnx/scarce.onnx")).expect("the fixture");
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        press(screen, "i");
        screen.settle();
        let text = drawn(screen, (80, 24));
        assert!(text.contains("no text input") && text.contains("--input FILE"), "{text}");
        assert!(!text.contains("[Enter] prompt"), "{text}");
        press(screen, "\n");
        assert!(drawn(screen, (120, 24)).contains("no text input"));
    });
}
