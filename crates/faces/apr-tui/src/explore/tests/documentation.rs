//! The pictures of the documentation: what screens show of the model of the repository.

use super::{drawn, press, tiny_llama, with_screen};
use crate::Palette;
use crate::snapshot::{PICTURE, assert_picture};
use crate::svg::svg;

#[test]
fn the_pictures_of_the_documentation_are_what_the_screens_show() {
    let model = tiny_llama();
    with_screen(&[model.reader()], |screen| {
        screen.palette = Palette::new(true);
        screen.settle();
        press(screen, "xs");
        let _ = drawn(screen, PICTURE);
        assert_picture("tui.svg", &svg(&screen.settled(PICTURE), "Statistics of a model"));
        press(screen, "t/layers.1.self_attn.q\nu\u{1b}");
        let image = svg(&screen.settled(PICTURE), "The path of a tensor through the graph");
        assert_picture("tui-graph.svg", &image);
    });
}
