//! Saves the weights that `train.py` printed as the file that is embedded:
//! `pack weights.json languages.apr`.

use std::error::Error;
use std::fs;

use apr_format::aprn::{Compression, ModelCard, ModelType, SaveOptions, to_bytes};
use serde::Deserialize;
use single_binary::LanguageModel;

#[derive(Deserialize)]
struct Trained {
    #[serde(flatten)]
    model: LanguageModel,
    /// On the sentences of `data/heldout.txt`.
    accuracy: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(weights), Some(output)) = (arguments.next(), arguments.next()) else {
        return Err("usage: pack WEIGHTS.json OUTPUT.apr".into());
    };
    let trained: Trained = serde_json::from_str(&fs::read_to_string(weights)?)?;
    let card = ModelCard {
        name: "languages".into(),
        version: "1.0.0".into(),
        license: Some("MIT OR Apache-2.0".into()),
        domain: Some("NLP".into()),
        metrics: [("heldout_accuracy".into(), trained.accuracy.into())].into(),
        limitations: Some(
            "trained on 24 short sentences a language; an example, not a product".into(),
        ),
        // No time of day, so that the same weights give the same file.
        created_at: "2026-11-21T00:00:00Z".into(),
        ..ModelCard::default()
    };

    let mut options = SaveOptions::default()
        .with_compression(Compression::ZstdMax)
        .with_name("languages")
        .with_description("Tells English, German, French, Spanish, Italian and Dutch apart.")
        .with_model_card(card);
    options.metadata.created_at = "2026-11-21T00:00:00Z".into();
    fs::write(output, to_bytes(&trained.model, ModelType::LogisticRegression, &options)?)?;
    Ok(())
}
