//! Images with a prompt, for models that read both.

use apr_arch::FamilyModel;

use super::completion;
use super::given::{Given, read_media};
use super::job::Job;
use crate::failure::{Failure, Outcome};

/// Rejects images without a single prompt, or for a model that does not read images.
pub(super) fn check(given: &Given, family: Option<&FamilyModel<'_>>) -> Outcome {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    if family.and_then(FamilyModel::image_text).is_none() {
        return usage("the model does not read images, or its vision tower is not supported");
    }
    match given.texts.len() {
        0 if !given.has_text() => usage("--image needs a prompt: pass --prompt or --messages"),
        0 | 1 => Ok(()),
        _ => usage("--image needs a single prompt"),
    }
}

/// Generates text from a prompt and its images.
pub(super) fn run(job: &Job<'_>, texts: &[String]) -> Outcome {
    let read = |path: &std::path::PathBuf| -> Outcome<(String, Vec<u8>)> {
        Ok((path.display().to_string(), read_media(path, job.context)?))
    };
    let images = job.args.image.iter().map(read).collect::<Outcome<Vec<_>>>()?;
    completion::run_images(job, texts, &images)
}
