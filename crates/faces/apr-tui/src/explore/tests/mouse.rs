//! Clicks and the wheel.

use ratatui::crossterm::event::{KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

use super::{Explorer, Flow, Screen, drawn, press, tiny_llama, with_screen};

const SIZE: (u16, u16) = (80, 24);

fn mouse(screen: &mut Explorer<'_>, kind: MouseEventKind, (column, row): (u16, u16)) -> Flow {
    let event = MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE };
    let flow = screen.mouse(event);
    screen.settle();
    flow
}

fn click(screen: &mut Explorer<'_>, place: (u16, u16)) -> Flow {
    mouse(screen, MouseEventKind::Down(MouseButton::Left), place)
}

/// Returns the position of a text on the screen.
fn place_of(text: &str, wanted: &str) -> (u16, u16) {
    for (row, line) in (0_u16..).zip(text.lines()) {
        if let Some(at) = line.find(wanted) {
            let column = line[..at].chars().count();
            return (u16::try_from(column).expect("a column"), row);
        }
    }
    panic!("no {wanted} in\n{text}")
}

#[test]
fn a_click_selects_a_row_and_a_second_one_opens_it() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        let text = drawn(screen, SIZE);
        let place = place_of(&text, "model.layers.0.mlp.up_proj");
        click(screen, place);
        assert!(drawn(screen, SIZE).contains(" 6/21 "));
        click(screen, place);
        let text = drawn(screen, SIZE);
        assert!(text.contains("Tensor: model.layers.0.mlp.up_proj.weight"), "{text}");
        // Nothing lies there.
        assert_eq!(click(screen, (1, 1)), Flow::Stay);
        assert_eq!(click(screen, (500, 500)), Flow::Stay);
    });
}

#[test]
fn a_click_on_a_key_presses_it() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        let text = drawn(screen, SIZE);
        click(screen, place_of(&text, "tats"));
        let text = drawn(screen, SIZE);
        assert!(text.contains("[Stats View]"), "{text}");
        click(screen, place_of(&text, "[?] help"));
        assert!(drawn(screen, SIZE).contains("select, again to open"));
        // A click anywhere closes the help, and does nothing else.
        click(screen, place_of(&text, "uit"));
        let text = drawn(screen, SIZE);
        assert!(!text.contains("select, again to open"), "{text}");
        assert_eq!(click(screen, place_of(&text, "uit")), Flow::Quit);
    });
}

#[test]
fn boxes_are_selected_and_opened() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        press(screen, "gjjjjjjj");
        let text = drawn(screen, SIZE);
        let place = place_of(&text, "layers.0-1");
        click(screen, place);
        let text = drawn(screen, SIZE);
        assert!(text.contains("━ layers.0-1 (×2) ▸"), "{text}");
        click(screen, place_of(&text, "layers.0-1 (×2)"));
        let text = drawn(screen, SIZE);
        assert!(text.contains("model › layers.0-1"), "{text}");
    });
}

#[test]
fn the_wheel_scrolls() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.settle();
        let _ = drawn(screen, SIZE);
        mouse(screen, MouseEventKind::ScrollDown, (10, 10));
        assert!(drawn(screen, SIZE).contains(" 4/21 "));
        mouse(screen, MouseEventKind::ScrollUp, (10, 10));
        assert!(drawn(screen, SIZE).contains(" 1/21 "));
        mouse(screen, MouseEventKind::Moved, (10, 10));
        assert!(drawn(screen, SIZE).contains(" 1/21 "));
    });
}

#[test]
fn the_mouse_is_the_terminals_where_that_is_wanted() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        assert!(screen.takes_mouse());
        press(screen, "M");
        assert!(!screen.takes_mouse());
        press(screen, "?");
        assert!(drawn(screen, SIZE).contains("mouse off, to select text; on"));
        press(screen, " M");
        assert!(screen.takes_mouse());
    });
}
