//! Images: labels, embeddings, and how well texts fit.

use apr_core::Escaped;
use apr_graph::{Body, Dim, Meaning};
use apr_infer::{Tensor, Value};
use apr_inputs::picture::{Picture, PixelSettings, Tiled, decode};
use apr_registry::Error;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::error::{Remedy, RunError, RunResult};
use crate::runner::{Prepared, Runner, meaning};
use crate::scores::{largest, sigmoid, softmax};
use crate::text_encoder::Label;
use crate::tokens::Tokenizer;

/// Result of a model for an image.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ImageResult {
    /// The file's name.
    pub picture: String,
    /// Pixels, of the file.
    pub width: usize,
    /// Pixels, of the file.
    pub height: usize,
    /// Result of the task.
    #[serde(flatten)]
    pub made: ImageTask,
}

/// Result of a model for an image, by the model's head.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "task", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImageTask {
    /// Labels of the image, the likeliest first.
    Classification {
        /// At most [`RunOptions::top`](crate::RunOptions::top).
        labels: Vec<Label>,
    },
    /// Scores of the candidate texts, the best first.
    Fit {
        /// Scores of all candidate texts.
        texts: Vec<TextScore>,
    },
    /// One vector for the image.
    Embedding {
        /// Vector of the image.
        vector: Vec<f32>,
    },
}

/// Score of how well a text fits an image.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TextScore {
    /// Candidate text.
    pub text: String,
    /// Probability of the text.
    pub score: f64,
    /// The model's own score.
    pub logit: f32,
}

/// Reads images, alone or beside candidate texts.
pub struct ImageEncoder<'e> {
    part: Prepared<'e>,
    settings: PixelSettings,
    /// Candidate texts, and their tokens.
    texts: Vec<(String, Vec<i64>)>,
}

impl<'e> ImageEncoder<'e> {
    /// A reader of images for a part that takes pixels, with the texts that its images are compared
    /// with.
    ///
    /// # Errors
    /// [`RunError::Request`] where the part takes no pixels, takes texts and gets none
    /// ([`Remedy::CandidateTexts`]), or takes none and gets some; E003 where it has no tokenizer.
    pub fn of_part(part: Prepared<'e>, texts: &[String]) -> RunResult<Self> {
        let wants_texts = part.takes(Meaning::TokenIds) && part.takes(Meaning::Pixels);
        if wants_texts && texts.is_empty() {
            return Err(RunError::with_remedy(
                "the model compares images with texts",
                Remedy::CandidateTexts,
            ));
        }
        let ImageFeatures { settings, texts, .. } =
            ImageFeatures::of(&part.runner, part.body(), texts)?;
        Ok(Self { part, settings, texts })
    }

    /// Reads an image file; `name` is for reports.
    ///
    /// # Errors
    /// What decoding ends with (E001, E002, E003, E008), E003 where nothing is known of the model's
    /// outputs; those of [`Session::run`](apr_infer::Session::run).
    pub fn read(&self, name: &str, bytes: &[u8]) -> RunResult<ImageResult> {
        let (picture, pixels) = self.part.runner.pixels(&self.settings, name, bytes)?;
        let made = match self.texts.is_empty() {
            true => self.alone(pixels)?,
            false => self.beside_texts(&pixels)?,
        };
        Ok(ImageResult {
            picture: name.to_owned(),
            width: picture.width,
            height: picture.height,
            made,
        })
    }

    fn one(&self, inputs: Vec<(String, Value)>, wanted: &str) -> RunResult<Vec<f32>> {
        Ok(self.part.one(inputs, wanted)?.floats()?.into_owned())
    }

    fn alone(&self, pixels: Tensor) -> RunResult<ImageTask> {
        let input = self.part.input(Meaning::Pixels).unwrap_or_default();
        let inputs = vec![(input.to_owned(), pixels.into())];
        if let Some(logits) = self.part.output(Meaning::Logits) {
            let made = self.part.one(inputs, logits)?;
            if made.rank() != 2 {
                let message = "the model scores parts of an image, which no report has";
                return Err(Error::version(message).into());
            }
            let labels = self.part.runner.labels(&made.floats()?);
            return Ok(ImageTask::Classification { labels });
        }
        let pooled = self.part.output(Meaning::Pooled);
        let pooled = pooled
            .or_else(|| self.part.output(Meaning::HiddenStates))
            .ok_or_else(|| Error::version("unknown meaning of the model's outputs"))?;
        Ok(ImageTask::Embedding { vector: self.one(inputs, pooled)? })
    }

    fn beside_texts(&self, pixels: &Tensor) -> RunResult<ImageTask> {
        let logits = self
            .part
            .output(Meaning::Logits)
            .ok_or_else(|| Error::version("the model has no output logits_per_image"))?;
        let mut found = Vec::with_capacity(self.texts.len());
        for (_, ids) in &self.texts {
            let inputs = pair_inputs(self.part.body(), pixels, ids)?;
            found.extend(self.one(inputs, logits)?.first().copied());
        }

        let is_siglip = self.part.runner.is_siglip();
        let scores = if is_siglip { sigmoid(&found) } else { softmax(&found) };
        let score = |at: usize| TextScore {
            text: self.texts[at].0.clone(),
            score: scores[at],
            logit: found[at],
        };
        Ok(ImageTask::Fit { texts: largest(&scores, found.len()).into_iter().map(score).collect() })
    }
}

/// The pictures that a model reads for an image, `[1, 3, height, width]` each.
pub(crate) struct TiledPixels {
    pub(crate) pixels: Vec<Tensor>,
    /// Rows of tiles; 0 without any.
    pub(crate) rows: usize,
    /// Tiles of a row.
    pub(crate) columns: usize,
    /// Height and width of the image.
    pub(crate) size: [usize; 2],
}

/// Conversion of an image, and of the texts beside it, to the inputs of a graph.
pub struct ImageFeatures<'f> {
    runner: Runner<'f>,
    body: &'f Body,
    settings: PixelSettings,
    texts: Vec<(String, Vec<i64>)>,
}

impl<'f> ImageFeatures<'f> {
    /// The features of images for a graph, each with the texts beside it.
    ///
    /// # Errors
    /// [`RunError::Request`] where the graph takes no pixels, or texts are given and it takes none;
    /// E003 where the model has no tokenizer for them.
    pub fn of(runner: &Runner<'f>, body: &'f Body, texts: &[String]) -> RunResult<Self> {
        let input = body
            .inputs
            .iter()
            .map(|id| body.value(*id))
            .find(|value| value.meaning == Meaning::Pixels);
        let input = input.ok_or_else(|| RunError::request("the model has no image input"))?;
        let sides: Vec<usize> =
            input.shape().unwrap_or_default().iter().rev().take(2).map_while(side).collect();
        let expected = match sides[..] {
            [width, height] => (height, width),
            _ => (224, 224),
        };
        let none = json!({});
        let config = runner.facts.get("image_config").unwrap_or_else(|| {
            let (height, width) = expected;
            runner.warn(&format!(
                "no preprocessor_config.json: images are resized to {width} x {height}, and values \
                 scaled to 0 to 1"
            ));
            &none
        });

        let settings = PixelSettings::from_json(config, expected)?;
        let cell = runner.image_text.and_then(|text| usize::try_from(text.cell?).ok());
        let settings = match cell {
            Some(cell) => settings.with_step(cell),
            None => settings,
        };
        let takes_text = meaning(body, &body.inputs, Meaning::TokenIds).is_some();
        if !takes_text && !texts.is_empty() {
            return Err(RunError::request("the model takes images only"));
        }

        let mut features = Self { runner: *runner, body, settings, texts: Vec::new() };
        if !texts.is_empty() {
            let tokenizer = Tokenizer::of(runner.reader, runner.host)?;
            for text in texts {
                let ids = runner.candidate_ids(&tokenizer, text)?;
                features.texts.push((text.clone(), ids));
            }
        }

        Ok(features)
    }

    /// The pixels of each picture that the model reads for an image file, and the rows and columns
    /// of tiles among them.
    ///
    /// # Errors
    /// What decoding ends with.
    pub(crate) fn tiled(&self, name: &str, bytes: &[u8]) -> RunResult<TiledPixels> {
        let named = |error: Error| error.in_file(name);
        let picture = self.runner.picture(name, bytes)?;
        let size = [picture.height, picture.width];
        let Tiled { pictures, rows, columns, .. } = self.settings.tiled(picture).map_err(named)?;
        let pixels = |picture: &Picture| {
            let (values, height, width) = self.settings.apply(picture).map_err(named)?;
            Tensor::new(vec![1, 3, height, width], values)
        };
        let pixels = pictures.iter().map(pixels).collect::<Result<_, Error>>()?;
        Ok(TiledPixels { pixels, rows, columns, size })
    }

    /// Name of the input that takes pixels.
    pub(crate) fn input(&self) -> &'f str {
        meaning(self.body, &self.body.inputs, Meaning::Pixels).unwrap_or_default()
    }

    /// The inputs for an image file, and for the one text beside it.
    ///
    /// # Errors
    /// What decoding ends with; [`RunError::Request`] for several texts.
    pub fn inputs(&self, name: &str, bytes: &[u8]) -> RunResult<Vec<(String, Value)>> {
        let (_, pixels) = self.runner.pixels(&self.settings, name, bytes)?;
        match &self.texts[..] {
            [] => Ok(vec![(self.input().to_owned(), pixels.into())]),
            [(_, ids)] => pair_inputs(self.body, &pixels, ids),
            _ => Err(RunError::request("features take one text at a time")),
        }
    }
}

impl Runner<'_> {
    /// The tokens of a text beside an image.
    fn candidate_ids(&self, tokenizer: &Tokenizer<'_>, text: &str) -> RunResult<Vec<i64>> {
        let most = self.facts.context().unwrap_or(usize::MAX);
        let (mut ids, left_out) = tokenizer.encode_at_most(text, most)?;
        if left_out > 0 && !self.options.truncate {
            let count = most.saturating_add(left_out);
            return Err(RunError::with_remedy(
                format!(
                    "the text '{}' is {count} tokens long, beyond the model's {most}",
                    Escaped::short(text),
                ),
                Remedy::Truncate,
            ));
        }
        if left_out > 0 {
            self.warn(&format!("truncated to {most} tokens: the last {left_out} of '{text}'"));
        }

        // SigLIP knows no padding mask: it was trained with as many tokens as fit. Nothing is
        // padded to a length that nobody states, or that a file makes huge.
        if self.is_siglip() && most < 4096 {
            let text = self.facts.config("text_config");
            let padding = text.and_then(|text| text.get("pad_token_id")?.as_i64()).unwrap_or(1);
            ids.resize(most.max(ids.len()), padding);
        }
        Ok(ids)
    }

    /// SigLIP gives each text a probability of its own (Zhai et al. 2023).
    pub(crate) fn is_siglip(&self) -> bool {
        self.facts
            .config("model_type")
            .and_then(Json::as_str)
            .is_some_and(|kind| kind.contains("siglip"))
    }

    /// An image, and its pixels as the model takes them: f32 of `[1, 3, height, width]`.
    fn pixels(
        &self,
        settings: &PixelSettings,
        name: &str,
        bytes: &[u8],
    ) -> RunResult<(Picture, Tensor)> {
        let named = |error: Error| error.in_file(name);
        if settings.tiles.is_some() {
            let message = "images that are split into tiles need a text prompt";
            return Err(named(Error::version(message)).into());
        }
        let picture = self.picture(name, bytes)?;
        let (values, height, width) = settings.apply(&picture).map_err(named)?;
        Ok((picture, Tensor::new(vec![1, 3, height, width], values)?))
    }

    /// An image file as a picture.
    fn picture(&self, name: &str, bytes: &[u8]) -> RunResult<Picture> {
        let named = |error: Error| error.in_file(name);

        // The file and its pixels are in memory at the same time.
        let most = self.options.max_memory / 2;
        if bytes.len() as u64 > most {
            let message = format!("the file has {} bytes, beyond the memory limit", bytes.len());
            return Err(named(Error::memory(message)).into());
        }
        Ok(decode(bytes, most).map_err(named)?)
    }
}

/// An image and a text as the inputs of a graph.
fn pair_inputs(body: &Body, pixels: &Tensor, ids: &[i64]) -> RunResult<Vec<(String, Value)>> {
    let mut inputs = Vec::new();
    for id in &body.inputs {
        let value = body.value(*id);
        let row = |row: Vec<i64>| Tensor::new(vec![1, row.len()], row).map(Value::from);
        let given = match value.meaning {
            Meaning::TokenIds => row(ids.to_vec())?,
            Meaning::AttentionMask => row(vec![1; ids.len()])?,
            Meaning::Pixels => pixels.clone().into(),
            _ => continue,
        };
        inputs.push((value.name.clone(), given));
    }
    Ok(inputs)
}

fn side(dim: &Dim) -> Option<usize> {
    usize::try_from(dim.size()?).ok()
}
