//! Metadata: what is written is read back, and what published readers require is there.

use apr_format::aprn::{
    Compression, Flags, License, LicenseTier, ModelCard, ModelType, SaveOptions, inspect, to_bytes,
};
use serde_json::json;

use super::support::{as_published, fitted, open, resealed};

fn card() -> ModelCard {
    ModelCard {
        name: "lines".into(),
        version: "1.2.0".into(),
        author: Some("A. Author".into()),
        license: Some("MIT".into()),
        domain: Some("Tabular".into()),
        intended_users: vec!["teachers".into()],
        out_of_scope: vec!["medicine".into()],
        metrics: [("r2".into(), json!(0.75))].into(),
        hyperparameters: [("epochs".into(), json!(3))].into(),
        limitations: Some("straight lines only".into()),
        created_at: "2026-01-02T03:04:05Z".into(),
        ..ModelCard::default()
    }
}

fn license() -> License {
    License {
        uuid: "550e8400-e29b-41d4-a716-446655440000".into(),
        hash: "00ff".into(),
        seats: Some(3),
        tier: LicenseTier::Team,
        ..License::default()
    }
}

fn save(options: &SaveOptions) -> Vec<u8> {
    to_bytes(&fitted(), ModelType::LinearRegression, options).expect("a file")
}

#[test]
fn card_licence_and_score_come_back() {
    let options = as_published(Compression::None)
        .with_model_card(card())
        .with_license(license())
        .with_quality_score(93);
    let info = inspect(&save(&options)).expect("our own file");
    assert_eq!(info.metadata.license, Some(license()));
    assert_eq!(info.header.quality_score, 93);
    assert!(
        info.header.flags.contains(Flags::MODEL_CARD)
            && info.header.flags.contains(Flags::LICENSED)
    );
    let read = info.metadata.model_card.expect("a card");
    // Published readers refuse a card without these.
    assert_eq!(read.extra["model_id"], "lines");
    assert_eq!(read.extra["framework_version"], "0.20.0");
    assert_eq!(ModelCard { extra: Default::default(), ..read }, card());
    assert!(info.warnings.is_empty(), "{:?}", info.warnings);
}

#[test]
fn the_card_is_in_the_metadata_of_the_checkpoint() {
    let reader = open(save(
        &as_published(Compression::Zstd).with_model_card(card()).with_description("a line"),
    ));
    let metadata = apr_core::CheckpointReader::metadata(&reader);
    assert_eq!(metadata.text("author"), Some("A. Author"));
    assert_eq!(metadata.text("description"), Some("a line"));
    assert_eq!(
        metadata.object("aprn").expect("it is there")["metadata"]["model_card"]["domain"],
        "Tabular"
    );
}

#[test]
fn a_score_of_zero_or_above_a_hundred_is_refused() {
    for score in [0, 101, 255] {
        assert!(
            to_bytes(
                &fitted(),
                ModelType::Custom,
                &SaveOptions::default().with_quality_score(score)
            )
            .is_err()
        );
    }
}

#[test]
fn flags_that_disagree_with_the_metadata_are_warned_about_and_read() {
    let options = as_published(Compression::None).with_model_card(card()).with_license(license());
    let mut without = save(&options);
    without[21] = 0;
    let warnings = inspect(&resealed(without)).expect("readable anyway").warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let mut announced = save(&as_published(Compression::None));
    announced[21] = 0b0100_1000;
    let warnings = inspect(&resealed(announced)).expect("readable anyway").warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn unknown_types_bits_and_odd_scores_are_warned_about_and_read() {
    let file = save(&as_published(Compression::None));
    for (at, value, word) in
        [(6, 0x99, "model type"), (21, 0x80, "reserved"), (31, 1, "reserved"), (22, 101, "score")]
    {
        let mut changed = file.clone();
        changed[at] = value;
        let warnings = inspect(&resealed(changed)).expect("readable anyway").warnings;
        assert!(warnings.iter().any(|warning| warning.contains(word)), "{word}: {warnings:?}");
    }
}
