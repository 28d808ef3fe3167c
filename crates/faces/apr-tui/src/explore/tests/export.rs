//! What `e` writes, and that it replaces nothing by itself.

use std::fs;

use apr_graph::draw;
use serde_json::Value;

use super::{
    Explorer, KeyCode, KeyEvent, KeyModifiers, Screen, drawn, press, tiny_llama, with_screen,
};

/// Types a path in the place of the one that is offered.
fn export(screen: &mut Explorer<'_>, tabs: &str, path: &str) {
    press(screen, "e");
    press(screen, tabs);
    screen.key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
    press(screen, path);
    press(screen, "\n");
}

#[test]
fn every_view_writes_its_report_and_its_picture() {
    let model = tiny_llama();
    let folder = tempfile::tempdir().expect("a folder");
    with_screen(&[model.reader(), model.reader()], |screen| {
        screen.settle();
        press(screen, "xtj\nvsgbi");
        press(screen, "r12+34=\n");
        for (view, key) in [
            ("tensors", "t"),
            ("stats", "s"),
            ("histogram", "h"),
            ("values", "v"),
            ("graph", "g"),
            ("diff", "c"),
            ("validate", "x"),
            ("vocabulary", "b"),
            ("trace", "i"),
        ] {
            press(screen, key);
            let _ = drawn(screen, (100, 30));
            let json = folder.path().join(format!("{view}.json"));
            export(screen, "", json.to_str().expect("text"));
            let text = drawn(screen, (100, 30));
            assert!(text.contains("wrote "), "{view}: {text}");
            let report: Value =
                serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
            assert!(report.is_object(), "{view}: {report}");

            let svg = folder.path().join(format!("{view}.svg"));
            export(screen, "\t", svg.to_str().expect("text"));
            let image = fs::read_to_string(&svg).expect("a file");
            assert!(image.starts_with("<svg ") && image.ends_with("</svg>\n"), "{view}: {image}");
            assert!(!image.contains("quit"), "{view}: keys are no part of a picture");
        }
    });
}

#[test]
fn tab_goes_through_what_a_view_writes() {
    let model = tiny_llama();
    with_screen(&[model.reader(), model.reader()], |screen| {
        screen.settle();
        press(screen, "e");
        for file in ["diff.json", "scores.json", "quality.json", "compare.svg", "diff.json"] {
            let text = drawn(screen, (100, 30));
            assert!(text.contains(&format!("): {file}")), "no {file} in\n{text}");
            press(screen, "\t");
        }
    });
}

#[test]
fn the_image_of_the_graph_shows_the_open_group() {
    let model = tiny_llama();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("group.svg");
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        press(screen, "gjjjjjj\n");
        export(screen, "\t", path.to_str().expect("text"));
        let report = screen.graph.ready().expect("a graph");
        let layers = report.parts[0].structure.items[6].scene().expect("a group");
        let depth = draw::Depth::that_fits(layers, 160);
        let image = draw::svg(layers, &depth).expect("few boxes");
        assert_eq!(fs::read_to_string(&path).expect("a file"), image);
    });
}

#[test]
fn a_file_that_is_there_is_replaced_after_a_yes_alone() {
    let model = tiny_llama();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mine.json");
    fs::write(&path, "mine").expect("a file");
    let typed = path.to_str().expect("text");
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        for no in ["n", "\u{1b}", "\n", "x"] {
            export(screen, "", typed);
            let text = drawn(screen, (200, 24));
            assert!(text.contains("mine.json exists: y replaces it"), "{text}");
            press(screen, no);
            assert_eq!(fs::read(&path).expect("a file"), b"mine", "{no:?} is no yes");
        }
        export(screen, "", typed);
        press(screen, "y");
        assert!(drawn(screen, (200, 24)).contains("wrote "));
        assert!(fs::read(&path).expect("a file").starts_with(b"{"));

        let nowhere = path.join("within-a-file.json");
        export(screen, "", nowhere.to_str().expect("text"));
        assert!(!drawn(screen, (200, 24)).contains("wrote "), "a file is no folder");
        assert!(!nowhere.exists());
    });
}
