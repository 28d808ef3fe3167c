//! Adapters of image models: their modules in the base.

use apr_core::{Escaped, Result, TensorInfo, counted};

use super::Planner;
use crate::adapter::Contents;
use crate::configuration::{Configuration, Writer};
use crate::form::{Form, Orientation};
use crate::image_names::ImageModules;

impl Planner {
    /// Returns the modules of an adapter of image models, and the weights that they change.
    pub(super) fn image_modules<'m>(
        &self,
        contents: &'m Contents,
        tensors: &[TensorInfo],
    ) -> Result<Option<ImageModules<'m>>> {
        let Configuration { writer, method, .. } = contents.configuration;
        if writer != Writer::Images {
            return Ok(None);
        }
        let names: Vec<&str> = self.slots.iter().map(|slot| slot.info.name.as_str()).collect();
        let way = Orientation { writer, inputs_first: false };
        let fits = |module: &str, slot: usize| {
            let parts = &contents.modules[module];
            Form::new(parts, tensors, &self.slots[slot].info, way, method).is_ok()
        };
        let modules = contents.modules.keys().map(String::as_str);
        ImageModules::find(&names, modules, fits).map(Some)
    }

    /// Warns of models of a pipeline that the adapter changes and the base is not.
    pub(super) fn warn_of_absent(&mut self, image: Option<&ImageModules<'_>>, adapter: &str) {
        for (prefix, count) in image.into_iter().flat_map(|image| &image.absent) {
            self.warnings.push(format!(
                "{}: left out, as the base lacks their model: {} of '{prefix}'",
                Escaped::short(adapter),
                counted(*count as u64, "module")
            ));
        }
    }
}
