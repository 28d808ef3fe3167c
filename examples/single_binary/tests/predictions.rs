//! The embedded model on the sentences it was not trained on.

use apr_format::aprn::{ModelType, Signal, inspect, load_from_bytes};
use single_binary::{LanguageModel, embedded};

const FILE: &[u8] = include_bytes!("../languages.apr");
const HELD_OUT: &str = include_str!("../data/heldout.txt");

fn right(model: &LanguageModel, lines: &str) -> usize {
    let lines = lines.lines().filter_map(|line| line.split_once('\t'));
    lines.filter(|(language, text)| model.predict(text).language == *language).count()
}

#[test]
fn held_out_sentences_are_recognized_as_often_as_the_card_says() {
    let model = embedded().expect("the embedded model");
    let card = inspect(&FILE).expect("the embedded model").metadata.model_card.expect("a card");
    let total = HELD_OUT.lines().count();
    let share = right(&model, HELD_OUT) as f64 / total as f64;
    let stated = card.metrics["heldout_accuracy"].as_f64().expect("a number");
    assert!((share - stated).abs() < 1e-9, "{share} of {total}, the card says {stated}");
    assert!(share > 0.9, "{share}");
}

#[test]
fn what_is_no_text_gives_an_answer_and_no_panic() {
    let model = embedded().expect("the embedded model");
    for text in ["", " ", "123 !?", "日本語", "\0\u{10ffff}"] {
        let prediction = model.predict(text);
        assert!(model.languages.iter().any(|language| language == prediction.language), "{text:?}");
        assert!((0.0..=1.0).contains(&prediction.confidence), "{text:?}");
    }
}

#[test]
fn another_model_in_its_place_is_refused() {
    let andon =
        load_from_bytes::<LanguageModel>(FILE, ModelType::NgramLm).expect_err("another type");
    assert_eq!(andon.signal(), Signal::ModelTypeMismatch);
    let mut damaged = FILE.to_vec();
    damaged[1000] ^= 1;
    let andon = load_from_bytes::<LanguageModel>(&damaged, ModelType::LogisticRegression)
        .expect_err("damaged");
    assert_eq!(andon.signal(), Signal::ChecksumMismatch);
}
