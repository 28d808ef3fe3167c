//! Images in prompts: their vectors, and the tokens that these take the place of.
//!
//! A prompt has a placeholder for each image, or its chat template writes one. In the place of each
//! stands what the model's processor writes: the image's token, once for each vector of the image.

use apr_arch::ImageText;
use apr_blocks::{IMAGE_ENCODER, IMAGE_FEATURES};
use apr_infer::{Tensor, TokenRows};
use apr_inputs::chat::Message;
use apr_registry::{Error, Escaped};

use super::chat::chat_template;
use super::tiles::Tiled;
use super::{GenerateOptions, Generator, Prompt};
use crate::error::{RunError, RunResult};
use crate::features::ImageFeatures;
use crate::images::TiledPixels;
use crate::runner::{Prepared, Runner};

/// The part that generates text, next to the vision part.
const MODEL: &str = "model";

const TEXT_ONLY: &str = "images need a text prompt, not token ids";

/// The images of a prompt.
pub(super) struct PromptImages<'i> {
    text: ImageText<'i>,
    shown: Vec<Shown>,
    rows: TokenRows,
}

/// An image of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shown {
    /// Vectors of each of its pictures.
    vectors: usize,
    /// Rows of tiles before the picture as a whole; 0 without any.
    rows: usize,
    /// Tiles of a row.
    columns: usize,
    /// Rows and columns of vectors, if the table of the part for images tells them.
    grid: Option<[usize; 2]>,
    /// Number of all vectors, if those of tiles are put together.
    joined: Option<usize>,
}

impl Shown {
    /// Returns the number of vectors of the image.
    fn count(&self) -> usize {
        self.joined.unwrap_or(self.vectors * (self.rows * self.columns + 1))
    }

    /// Returns the text of the image in the prompt, in which `token` represents one vector.
    ///
    /// Tiles that have no text of their own are all together in the text of the image. Otherwise, a
    /// row of tiles ends with a line feed, and another line feed follows the last row.
    fn text(&self, text: ImageText<'_>, token: &str) -> String {
        let vectors = match (text.row_break, self.grid) {
            (Some(row_break), Some([rows, columns])) => {
                vec![token.repeat(columns); rows].join(row_break)
            }
            _ => token.repeat(self.vectors),
        };
        let Some(tile) = text.tile else {
            let vectors = match self.joined {
                Some(count) => token.repeat(count),
                None => vectors.repeat(self.rows * self.columns + 1),
            };
            return text.prompt.replace("{images}", &vectors);
        };
        let mut whole = String::new();
        for row in 1..=self.rows {
            let tile = tile.replace("{row}", &row.to_string());
            for column in 1..=self.columns {
                whole +=
                    &tile.replace("{column}", &column.to_string()).replace("{images}", &vectors);
            }
            whole.push('\n');
        }
        if self.rows > 0 {
            whole.push('\n');
        }
        whole + &text.prompt.replace("{images}", &vectors)
    }
}

impl<'i> PromptImages<'i> {
    /// Computes the vectors of image files: names for errors, and bytes.
    fn of(runner: &Runner<'i>, files: &[(String, Vec<u8>)]) -> RunResult<Self> {
        let text = runner.image_text.ok_or_else(takes_no_images)?;
        let encoder = named(runner, IMAGE_ENCODER)?;
        let features = ImageFeatures::of(runner, encoder.body(), &[])?;
        let (mut shown, mut values, mut width) = (Vec::new(), Vec::new(), 0);
        let mut grids = Vec::new();
        for (name, bytes) in files {
            let TiledPixels { pixels, rows, columns, size: sides } = features.tiled(name, bytes)?;
            let (mut vectors, mut grid) = (0, None);
            let start = values.len();
            for pixels in pixels {
                let shape = pixels.shape().to_vec();
                let inputs = vec![(features.input().to_owned(), pixels.into())];
                let made = encoder.one(inputs, IMAGE_FEATURES)?;
                let &[1, count, size] = made.shape() else {
                    return Err(Error::format("the vision part returned no embeddings").into());
                };
                if let Some(cell) = text.cell {
                    let of =
                        grid_of(&shape, cell).filter(|[rows, columns]| rows * columns == count);
                    grid = Some(of.ok_or_else(|| {
                        let what = format!("{count} vectors are not a grid of {shape:?} pixels");
                        Error::format(what).in_file(name)
                    })?);
                    grids.extend(grid);
                }
                (vectors, width) = (count, size);
                values.extend_from_slice(&made.floats()?);
            }
            let joined = match text.joins_rows {
                true => {
                    let made = values.split_off(start);
                    let tiles = Tiled { vectors, width, rows, columns };
                    values.extend(tiles.joined(&made, sides)?);
                    Some((values.len() - start) / width.max(1))
                }
                false => None,
            };
            shown.push(Shown { vectors, rows, columns, grid, joined });
        }
        let token = i64::try_from(text.token)
            .map_err(|_| Error::format(format!("the image token {} is too large", text.token)))?;
        let count = shown.iter().map(Shown::count).sum();
        let rows = Tensor::new(vec![count, width], values)?;
        let grids = text.has_places.then_some(grids);
        let rows = TokenRows {
            input: IMAGE_FEATURES.to_owned(),
            token,
            rows,
            grids,
            is_one_run: text.sees_prompt,
        };
        Ok(Self { text, shown, rows })
    }

    /// Returns the rows that replace the vectors of the image tokens.
    pub(super) fn rows(&self) -> TokenRows {
        self.rows.clone()
    }

    /// Replaces each placeholder in `text` with the text that the processor writes for its image.
    ///
    /// `token` is the text of the image token.
    fn expanded(&self, text: &str, token: &str) -> RunResult<String> {
        let placeholder = self.placeholder(token);
        let mut pieces = text.split(placeholder.as_str());
        let mut whole = pieces.next().unwrap_or_default().to_owned();
        let rest: Vec<&str> = pieces.collect();
        if rest.len() != self.shown.len() {
            return Err(RunError::request(format!(
                "the prompt has {} of '{}', and {} given: there must be one for each image",
                rest.len(),
                Escaped::short(&placeholder),
                match self.shown.len() {
                    1 => "1 image is".to_owned(),
                    count => format!("{count} images are"),
                }
            )));
        }
        let last = rest.len().saturating_sub(1);
        for (at, (piece, shown)) in rest.into_iter().zip(&self.shown).enumerate() {
            let behind = self.text.behind.filter(|_| at == last).unwrap_or_default();
            whole.extend([shown.text(self.text, token).as_str(), behind, piece]);
        }
        Ok(whole + self.text.end)
    }

    fn placeholder(&self, token: &str) -> String {
        self.text.placeholder.replace("{image}", token)
    }
}

/// Returns the rows and columns of the squares of `cell` pixels in `[1, 3, height, width]`.
fn grid_of(shape: &[usize], cell: u64) -> Option<[usize; 2]> {
    let cell = usize::try_from(cell).ok()?;
    let &[_, _, height, width] = shape else { return None };
    Some([height.checked_div(cell)?, width.checked_div(cell)?])
}

impl<'g> Generator<'g> {
    /// A generator for prompts that show these images, in this order: names for errors, and the
    /// bytes of image files. [`RunOptions::images`](crate::RunOptions::images) has to be set.
    ///
    /// # Errors
    /// [`RunError::Request`] if the model does not read images, or for a beam search;
    /// what decoding ends with, and those of [`Session::run`](apr_infer::Session::run).
    pub fn with_images(
        runner: &Runner<'g>,
        options: GenerateOptions,
        images: &[(String, Vec<u8>)],
    ) -> RunResult<Self> {
        let images = PromptImages::of(runner, images)?;
        let mut generator = Self::of_part(named(runner, MODEL)?, options)?;
        if generator.settings.beams().is_some() {
            return Err(RunError::request("beam search does not support images"));
        }
        generator.images = Some(images);
        Ok(generator)
    }

    /// Rejects prompts with images.
    ///
    /// Keys and values are kept by token, and all images have the same tokens.
    ///
    /// # Errors
    /// [`RunError::Request`] if prompts show images.
    pub(crate) fn check_no_images(&self) -> RunResult<()> {
        match self.images {
            Some(_) => {
                let message = "conversations and prompt caches do not support images";
                Err(RunError::request(message))
            }
            None => Ok(()),
        }
    }

    /// Returns the text of a chat as its template writes it, and the prompt's tokens.
    ///
    /// The tokens include the tokens of the images.
    pub(super) fn encoded_with_images(
        &self,
        prompt: Prompt<'_>,
        images: &PromptImages<'_>,
    ) -> RunResult<(Option<String>, Vec<i64>)> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(RunError::request(TEXT_ONLY));
        };
        let token = tokenizer.decode(&[images.rows.token], true)?;
        if token.is_empty() {
            let message =
                format!("the tokenizer does not have the image token {}", images.rows.token);
            return Err(Error::format(message).into());
        }
        let placeholder = images.placeholder(&token);
        let alone = images.text.alone.replace("{image}", &token).repeat(images.shown.len());
        // The text of the images has what begins a text.
        let begins = images.text.behind.is_some();
        let alone = if begins { alone } else { format!("{alone}\n") };
        let (chat, text) =
            self.prompt_with_images(prompt, &placeholder, &alone, images.shown.len())?;
        let ids = tokenizer.encode(&images.expanded(&text, &token)?, !chat && !begins)?;
        let wanted: usize = images.shown.iter().map(Shown::count).sum();
        let found = ids.iter().filter(|id| **id == images.rows.token).count();
        if found != wanted {
            let token = Escaped::short(&token);
            return Err(Error::format(format!(
                "the tokenizer returned {found} tokens for {wanted} placeholders '{token}'"
            ))
            .into());
        }
        Ok((chat.then_some(text), ids))
    }

    /// The prompt with a placeholder for each image, and whether a chat template wrote it. `alone`
    /// are those of all images, for a prompt that has none.
    fn prompt_with_images(
        &self,
        prompt: Prompt<'_>,
        placeholder: &str,
        alone: &str,
        count: usize,
    ) -> RunResult<(bool, String)> {
        match prompt {
            Prompt::Text(text) if text.contains(placeholder) => Ok((false, text.to_owned())),
            Prompt::Text(text) if chat_template(&self.runner, false).is_err() => {
                self.runner.warn(&format!(
                    "the prompt does not contain '{}', and the model has no chat template: the \
                     placeholder is put first",
                    Escaped::short(placeholder)
                ));
                Ok((false, format!("{alone}{text}")))
            }
            Prompt::Text(message) => self.chat_with_images(None, message, placeholder, count),
            Prompt::Chat { system, message } => {
                self.chat_with_images(system, message, placeholder, count)
            }
            Prompt::Messages(messages) => Ok((true, self.chat(messages)?)),
            Prompt::Tokens(_) => Err(RunError::request(TEXT_ONLY)),
        }
    }

    fn chat_with_images(
        &self,
        system: Option<&str>,
        message: &str,
        placeholder: &str,
        count: usize,
    ) -> RunResult<(bool, String)> {
        let count = if message.contains(placeholder) { 0 } else { count };
        let system = system.map(|system| Message::with_images("system", 0, system));
        let user = Message::with_images("user", count, message);
        let messages: Vec<Message> = system.into_iter().chain([user]).collect();
        Ok((true, self.chat(&messages)?))
    }
}

/// A part of the model, ready to run.
fn named<'r>(runner: &Runner<'r>, name: &str) -> RunResult<Prepared<'r>> {
    let part = runner.parts().iter().find(|part| part.name == name);
    runner.prepared(part.ok_or_else(takes_no_images)?)
}

fn takes_no_images() -> RunError {
    RunError::request("the model does not read images")
}
