//! Images beside a prompt, for models that read both.

use apr_arch::FamilyModel;

use super::completion;
use super::given::{Given, read_media};
use super::job::Job;
use crate::failure::{Failure, Outcome};

/// Refuses images where nothing asks about them, and for models that take none beside texts.
pub(super) fn check(given: &Given, family: Option<&FamilyModel<'_>>) -> Outcome {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    if family.and_then(FamilyModel::image_text).is_none() {
        return usage(
            "the model takes no images beside texts, or its part for images is not supported",
        );
    }
    match given.texts.len() {
        0 if !given.has_text() => usage("--image needs a text: pass --prompt or --messages"),
        0 | 1 => Ok(()),
        _ => usage("--image goes with one prompt, and several are given"),
    }
}

/// Generates text behind a prompt that shows the images.
pub(super) fn run(job: &Job<'_>, texts: &[String]) -> Outcome {
    let read = |path: &std::path::PathBuf| -> Outcome<(String, Vec<u8>)> {
        Ok((path.display().to_string(), read_media(path, job.context)?))
    };
    let images = job.args.image.iter().map(read).collect::<Outcome<Vec<_>>>()?;
    completion::run_images(job, texts, &images)
}
