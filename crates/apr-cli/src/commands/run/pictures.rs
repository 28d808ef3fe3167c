//! Pictures that a model looks at: labels, vectors, and which of several texts fits.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr::{Error, Escaped};
use apr_graph::{Body, Meaning, ValueId};
use apr_infer::{Session, Tensor, Value};
use apr_inputs::picture::{Picture, PixelSettings, decode};
use apr_io::io_error;
use apr_ops::run::{Runnable, largest, sigmoid, softmax};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::job::{Job, meaning};
use super::output::Output;
use super::texts::{Label, labels, render_labels};
use super::tokens::Tokens;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};

/// Extensions of picture files.
pub(super) const EXTENSIONS: [&str; 8] =
    ["png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"];

/// What the model made of all pictures.
#[derive(Debug, Serialize)]
struct PicturesReport {
    /// The model.
    file: String,
    /// One for each picture.
    results: Vec<Seen>,
}

#[derive(Debug, Serialize)]
struct Seen {
    /// The picture's file.
    picture: String,
    /// Of the file.
    width: usize,
    /// Of the file.
    height: usize,
    #[serde(flatten)]
    made: Made,
}

#[derive(Debug, Serialize)]
#[serde(tag = "task", rename_all = "snake_case")]
enum Made {
    /// Labels of the picture, the likeliest first.
    Classification { labels: Vec<Label> },
    /// The texts, the best first, with their probabilities and the model's own scores.
    Fit { texts: Vec<Fit> },
    /// One vector for the picture.
    Embedding { vector: Vec<f32> },
}

#[derive(Debug, Serialize)]
struct Fit {
    text: String,
    score: f64,
    logit: f32,
}

pub(super) fn run(
    job: &Job<'_>,
    paths: &[PathBuf],
    texts: &[String],
    part: &Runnable,
    session: &Session<'_>,
) -> Outcome {
    let output = Output::of(job.args, &job.context.printer)?;
    let looking = Looking::of(job, &part.graph.body, texts)?;
    let results =
        paths.iter().map(|path| looking.look(path, session)).collect::<Outcome<Vec<_>>>()?;
    if let Some(output) = output {
        output.write(&[("embeddings".to_owned(), vectors(&results)?)])?;
    }

    let report = PicturesReport { file: job.name.to_owned(), results };
    job.context.printer.report(&report, |out, report| {
        report.results.iter().try_for_each(|seen| {
            if paths.len() > 1 {
                writeln!(out, "{BOLD}{}{BOLD:#}", Escaped(&seen.picture))?;
            }
            render(out, &seen.made)
        })
    })
}

/// What goes into the model for each picture, and for the texts beside it.
pub(super) fn features(
    job: &Job<'_>,
    paths: &[PathBuf],
    texts: &[String],
    body: &Body,
) -> Outcome<Vec<Vec<(String, Value)>>> {
    let looking = Looking::of(job, body, texts)?;
    let inputs = |path: &PathBuf| {
        let (_, pixels) = looking.pixels(path)?;
        match &looking.texts[..] {
            [] => Ok(vec![(looking.input().to_owned(), pixels.into())]),
            [(_, ids)] => looking.inputs(&pixels, ids),
            _ => Err(Failure::Usage("--want is for one text at a time".to_owned())),
        }
    };
    paths.iter().map(inputs).collect()
}

fn vectors(results: &[Seen]) -> Outcome<Tensor> {
    let vector = |seen: &Seen| match &seen.made {
        Made::Embedding { vector } => Ok(vector.clone()),
        _ => Err(Failure::Usage(
            "--output writes vectors, and this model makes labels: use --json".to_owned(),
        )),
    };
    let rows = results.iter().map(vector).collect::<Outcome<Vec<_>>>()?;
    let width = rows.first().map_or(0, Vec::len);
    Ok(Tensor::new(vec![rows.len(), width], rows.concat())?)
}

struct Looking<'l> {
    job: &'l Job<'l>,
    body: &'l Body,
    /// Texts, and their tokens.
    texts: Vec<(String, Vec<i64>)>,
    settings: PixelSettings,
}

impl<'l> Looking<'l> {
    fn of(job: &'l Job<'l>, body: &'l Body, texts: &[String]) -> Outcome<Self> {
        let input = body
            .inputs
            .iter()
            .map(|id| body.value(*id))
            .find(|value| value.meaning == Meaning::Pixels);
        let input = input.ok_or_else(|| Failure::Usage("the model takes no picture".to_owned()))?;
        let sides: Vec<usize> =
            input.shape().unwrap_or_default().iter().rev().take(2).map_while(side).collect();
        let expected = match sides[..] {
            [width, height] => (height, width),
            _ => (224, 224),
        };
        let none = json!({});
        let config = job.facts.get("image_config").unwrap_or_else(|| {
            let (height, width) = expected;
            job.warn(&format!(
                "no preprocessor_config.json says how pictures go in: they are brought to {width} \
                 x {height}, and values to 0 to 1"
            ));
            &none
        });

        let settings = PixelSettings::from_json(config, expected)?;
        let takes_text = meaning(body, &body.inputs, Meaning::TokenIds).is_some();
        if takes_text && texts.is_empty() && !super::features::are_wanted(job.args) {
            return Err(Failure::Usage(
                "give texts that may fit the picture: --prompt \"a cat\" --prompt \"a dog\""
                    .to_owned(),
            ));
        }

        if !takes_text && !texts.is_empty() {
            return Err(Failure::Usage("the model takes pictures alone, without texts".to_owned()));
        }

        let mut looking = Self { job, body, texts: Vec::new(), settings };
        if takes_text && !texts.is_empty() {
            let tokens = Tokens::of(job.reader, job.context)?;
            for text in texts {
                let ids = looking.ids(&tokens, text)?;
                looking.texts.push((text.clone(), ids));
            }
        }

        Ok(looking)
    }

    /// The tokens of a text. A model that is told of no padding was trained with as many tokens as
    /// fit.
    fn ids(&self, tokens: &Tokens, text: &str) -> Outcome<Vec<i64>> {
        let most = self.job.facts.context().unwrap_or(usize::MAX);
        let (mut ids, left_out) = tokens.encode_at_most(text, most, self.job.context)?;
        if left_out > 0 && !self.job.args.truncate {
            return Err(Failure::Usage(format!(
                "the text '{}' is {} tokens long, and the model takes {most}; --truncate leaves \
                 out the end",
                Escaped::short(text),
                most.saturating_add(left_out)
            )));
        }
        if left_out > 0 {
            self.job.warn(&format!(
                "the model takes {most} tokens: the last {left_out} of '{text}' are left out"
            ));
        }

        // Nothing is padded to a length that nobody states, or that a file makes huge.
        if self.is_siglip() && most < 4096 {
            let text = self.job.facts.config("text_config");
            let padding = text.and_then(|text| text.get("pad_token_id")?.as_i64()).unwrap_or(1);
            ids.resize(most.max(ids.len()), padding);
        }
        Ok(ids)
    }

    /// SigLIP gives each text a probability of its own (Zhai et al. 2023).
    fn is_siglip(&self) -> bool {
        self.job
            .facts
            .config("model_type")
            .and_then(Json::as_str)
            .is_some_and(|kind| kind.contains("siglip"))
    }

    /// The picture of a file, and its pixels as the model gets them.
    fn pixels(&self, path: &Path) -> Outcome<(Picture, Tensor)> {
        let named = |error: Error| error.in_file(path.display());

        // The file and its pixels are in memory at the same time.
        let most = self.job.context.max_memory() / 2;
        let len = std::fs::metadata(path).map_err(|error| io_error(&error, path))?.len();
        if len > most {
            return Err(named(Error::memory(format!(
                "the file has {len} bytes: raise --max-memory"
            )))
            .into());
        }

        let bytes = std::fs::read(path).map_err(|error| io_error(&error, path))?;
        super::tokens::silence();
        let picture = decode(&bytes, most).map_err(named)?;
        let (values, height, width) = self.settings.apply(&picture).map_err(named)?;
        Ok((picture, Tensor::new(vec![1, 3, height, width], values)?))
    }

    fn look(&self, path: &Path, session: &Session<'_>) -> Outcome<Seen> {
        let (picture, pixels) = self.pixels(path)?;
        let made = match self.texts.is_empty() {
            true => self.alone(pixels, session)?,
            false => self.beside_texts(&pixels, session)?,
        };
        Ok(Seen {
            picture: path.display().to_string(),
            width: picture.width,
            height: picture.height,
            made,
        })
    }

    fn one(
        &self,
        session: &Session<'_>,
        inputs: Vec<(String, Value)>,
        wanted: &str,
    ) -> Outcome<Vec<f32>> {
        let outcome = self.job.run(session, inputs, &[wanted])?;
        let value =
            outcome.outputs.first().ok_or_else(|| Error::format("the model made nothing"))?;
        Ok(value.tensor()?.floats()?.into_owned())
    }

    fn name(&self, list: &[ValueId], what: Meaning) -> Option<&str> {
        meaning(self.body, list, what)
    }

    /// Name of the input that pixels go into.
    fn input(&self) -> &str {
        self.name(&self.body.inputs, Meaning::Pixels).unwrap_or_default()
    }

    fn alone(&self, pixels: Tensor, session: &Session<'_>) -> Outcome<Made> {
        let inputs = vec![(self.input().to_owned(), pixels.into())];
        let output = |what| self.name(&self.body.outputs, what);
        if let Some(logits) = output(Meaning::Logits) {
            return Ok(Made::Classification {
                labels: labels(self.job, &self.one(session, inputs, logits)?),
            });
        }
        let pooled = output(Meaning::Pooled).or_else(|| output(Meaning::HiddenStates));
        let pooled = pooled
            .ok_or_else(|| Error::version("what the model makes of a picture is not known"))?;
        Ok(Made::Embedding { vector: self.one(session, inputs, pooled)? })
    }

    /// A picture and a text as the inputs of the graph.
    fn inputs(&self, pixels: &Tensor, ids: &[i64]) -> Outcome<Vec<(String, Value)>> {
        let mut inputs = Vec::new();
        for id in &self.body.inputs {
            let value = self.body.value(*id);
            let row = |row: Vec<i64>| Tensor::new(vec![1, row.len()], row).map(Value::from);
            let value_of = match value.meaning {
                Meaning::TokenIds => row(ids.to_vec())?,
                Meaning::AttentionMask => row(vec![1; ids.len()])?,
                Meaning::Pixels => pixels.clone().into(),
                _ => continue,
            };
            inputs.push((value.name.clone(), value_of));
        }
        Ok(inputs)
    }

    fn beside_texts(&self, pixels: &Tensor, session: &Session<'_>) -> Outcome<Made> {
        let logits = self.name(&self.body.outputs, Meaning::Logits);
        let logits =
            logits.ok_or_else(|| Error::version("the model does not say how well texts fit"))?;
        let mut found = Vec::with_capacity(self.texts.len());
        for (_, ids) in &self.texts {
            let inputs = self.inputs(pixels, ids)?;
            found.extend(self.one(session, inputs, logits)?.first().copied());
        }

        let scores = if self.is_siglip() { sigmoid(&found) } else { softmax(&found) };
        let fit =
            |at: usize| Fit { text: self.texts[at].0.clone(), score: scores[at], logit: found[at] };
        Ok(Made::Fit { texts: largest(&scores, found.len()).into_iter().map(fit).collect() })
    }
}

fn side(dim: &apr_graph::Dim) -> Option<usize> {
    usize::try_from(dim.size()?).ok()
}

fn render(out: &mut dyn Write, made: &Made) -> io::Result<()> {
    match made {
        Made::Classification { labels } => render_labels(out, labels),
        Made::Fit { texts } => texts.iter().try_for_each(|fit| {
            writeln!(out, "{:>6.2} %  {}", 100.0 * fit.score, Escaped(&fit.text))
        }),
        Made::Embedding { vector } => {
            let shown: Vec<String> = vector.iter().take(8).map(ToString::to_string).collect();
            writeln!(out, "{DIM}{} numbers{DIM:#}\n  {}", vector.len(), shown.join(" "))
        }
    }
}
