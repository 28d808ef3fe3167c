//! What a family says about its model.

use serde::Serialize;

use super::FamilyModel;

/// Description of a model by its family, for `apr explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Description {
    /// Title of the family.
    pub title: String,
    /// `true` if the family was guessed from the names of the tensors alone.
    pub guessed: bool,
    /// Size of the model, if the family has names for sizes.
    pub size: Option<String>,
    /// Purpose of the model.
    pub purpose: Option<String>,
    /// Structure of the model.
    pub architecture: Option<String>,
    /// Inputs, in words: `text`, `log-mel spectrogram`.
    pub input: Option<String>,
    /// Outputs, in words.
    pub output: Option<String>,
}

impl FamilyModel<'_> {
    /// Returns the description of the model.
    #[must_use]
    pub fn description(&self) -> Description {
        let file = &self.family.file;
        let fill = |text: &Option<String>| {
            let text = text.as_ref()?;
            let filled = self.dimensions.sizes().fold(text.clone(), |text, (name, value)| {
                text.replace(&format!("{{{name}}}"), &value.to_string())
            });
            // A sentence about a number nobody knows says nothing.
            (!filled.contains('{')).then_some(filled)
        };

        let size = self
            .family
            .sizes
            .iter()
            .find(|(_, when)| self.dimensions.truth(when, &[]) == Some(true));
        Description {
            title: file.title.clone(),
            guessed: self.is_guessed,
            size: size.map(|(name, _)| name.clone()),
            purpose: fill(&file.purpose),
            architecture: fill(&file.architecture),
            input: fill(&file.input),
            output: fill(&file.output),
        }
    }
}
