//! A language model and its part for images, which llama.cpp has in two files, as one model.

use apr_arch::{Families, FamilyModel};
use apr_core::json::{from_python, to_vec_pretty};
use apr_registry::{CheckpointReader, DType, Error, Result, keys};
use apr_source::Architecture;
use apr_view::{Base, Joined};
use serde_json::{Map, Value};

use super::import::PROCESSOR_FILE;
use super::{from_gguf, is_in_gguf_layout, restore_to};

/// The configuration's file.
const CONFIG: &str = "config.json";

/// Entry for the language model in the configuration of a model with several parts.
const TEXT: &str = "text_config";

/// Settings of preprocessors that bound the size of images, and the keys that state them.
const BOUNDS: [(&str, &str); 3] = [
    ("/max_pixels", "clip.vision.image_max_pixels"),
    ("/size/shortest_edge", "clip.vision.image_max_pixels"),
    ("/max_patches", "clip.vision.preproc_max_tiles"),
];

/// Entries about the whole model that the language model's configuration has alone.
const OF_WHOLE: [&str; 4] = ["tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"];

/// Joins a language model in GGUF's layout with its part for images (llama.cpp's `mmproj`), in the
/// layout of transformers.
///
/// Blocks of quantized tensors stay as [`from_gguf`] keeps them. Returns warnings with the model.
///
/// # Errors
/// E001 if the first is no language model in GGUF's layout, if the second is no part for images of
/// a known kind, if their vectors have different lengths, or if the language model has no token for
/// images; and the errors of [`from_gguf`].
pub fn with_images<'a>(
    text: &'a dyn CheckpointReader,
    images: &'a dyn CheckpointReader,
    families: &Families,
    architecture: &Architecture,
) -> Result<(Joined<'a>, Vec<String>)> {
    if !is_in_gguf_layout(text) {
        let message = "only a language model of a GGUF file has its part for images in another one";
        return Err(Error::format(message));
    }
    let in_images = |error: Error| match images.files().first() {
        Some(file) => error.in_file(&file.name),
        None => error,
    };
    let (text_model, mut warnings) = from_gguf(text, families, architecture, DType::F32)?;
    let image_model =
        restore_to(images, families, &Architecture::Auto, DType::F32).map_err(in_images)?;
    if !image_model.entries.contains_key("vision_config") {
        return Err(in_images(Error::format("not a known vision part")));
    }

    let mut config = image_model.entries;
    let width = |config: &Map<String, Value>| config.get("hidden_size").and_then(Value::as_u64);
    let widths =
        [config.get(TEXT).and_then(Value::as_object).and_then(width), width(&text_model.entries)];
    if let [Some(made), Some(taken)] = widths
        && made != taken
    {
        return Err(in_images(Error::format(format!(
            "it makes vectors of {made} numbers, and the language model takes {taken}"
        ))));
    }
    for entry in OF_WHOLE {
        config.extend(text_model.entries.get(entry).map(|it| (entry.to_owned(), it.clone())));
    }
    let mut text_config = text_model.entries;
    text_config.remove("architectures");
    add_sections(&mut text_config, text)?;
    config.insert(TEXT.to_owned(), text_config.into());

    let view = image_model.view;
    let processor = view.companions().iter().position(|file| file.name == PROCESSOR_FILE);
    let processor = processor.map(|file| view.read_companion(file)).transpose()?;
    let mut joined = Joined::new(Base::owning(text_model.view), vec![Base::owning(view)])?;
    describe(&mut joined, &config);
    let token = image_token(&joined, families)?;
    if let Some(token) = token {
        config.insert("image_token_id".to_owned(), id_of(text, &token)?.into());
        describe(&mut joined, &config);
    }
    let companions = joined.companions_mut();
    companions.put(CONFIG, to_vec_pretty(&config).unwrap_or_default());
    if let Some(processor) = &processor {
        companions.put(PROCESSOR_FILE, processor.clone());
    }
    let settings: Option<Value> = processor.as_deref().and_then(|text| from_python(text).ok());
    let has = |path: &str| settings.as_ref().is_some_and(|it| it.pointer(path).is_some());
    let stated = images.metadata().key_values()?;
    let states = |key: &str| stated.as_ref().is_some_and(|pairs| pairs.find(key).is_some());
    if BOUNDS.iter().any(|(setting, key)| has(setting) && !states(key)) {
        warnings.push(
            "the vision part does not state the number of pixels or tiles of an image: using the \
             values of the released models"
                .to_owned(),
        );
    }
    Ok((joined, warnings))
}

/// Adds the numbers of angles by which tokens of images are turned along time, height and width.
///
/// A language model alone needs none: the places of a text are three times the same.
fn add_sections(config: &mut Map<String, Value>, text: &dyn CheckpointReader) -> Result<()> {
    let Some(pairs) = text.metadata().key_values()? else { return Ok(()) };
    let architecture = pairs.text("general.architecture").unwrap_or_default();
    let Some(sections) = pairs.find(&format!("{architecture}.rope.dimension_sections")) else {
        return Ok(());
    };
    // llama.cpp has a fourth one, of nothing.
    let sections = crate::hyperparameters::config_value(&sections);
    let sections: Vec<Value> = sections.as_array().into_iter().flatten().take(3).cloned().collect();
    let rope = config.entry("rope_scaling").or_insert_with(|| Map::new().into());
    if let Some(rope) = rope.as_object_mut() {
        rope.entry("rope_type").or_insert_with(|| "default".into());
        rope.insert("mrope_section".to_owned(), sections.into());
    }
    Ok(())
}

/// Describes the joined model by a configuration.
fn describe(joined: &mut Joined<'_>, config: &Map<String, Value>) {
    let mut architecture = config.clone();
    let model_type = architecture.remove("model_type").unwrap_or_default();
    let metadata = joined.metadata_mut();
    metadata.set(keys::MODEL_TYPE, model_type);
    metadata.set(keys::ARCHITECTURE, architecture);
}

/// Returns the text of the token for images, by the table of the part for images.
fn image_token(joined: &Joined<'_>, families: &Families) -> Result<Option<String>> {
    let model = families.identify(joined.tensors(), joined.metadata());
    let part = model.as_ref().and_then(FamilyModel::vision);
    let part = part.ok_or_else(|| {
        Error::format("no known model has this language model and this part for images")
    })?;
    Ok(part.family().image_token().map(str::to_owned))
}

/// Returns the id of a token of the language model.
fn id_of(text: &dyn CheckpointReader, token: &str) -> Result<usize> {
    let pairs = text.metadata().key_values()?;
    let tokens = pairs.as_ref().and_then(|pairs| pairs.find("tokenizer.ggml.tokens"));
    let tokens = tokens.map(|pair| crate::hyperparameters::config_value(&pair));
    let known = tokens.as_ref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    known.iter().position(|known| known == token).ok_or_else(|| {
        Error::format(format!("the language model does not have the image token '{token}'"))
    })
}
