//! Adapters of image models: their modules in the base, and their scales.

use apr_core::{CheckpointReader, Error, Escaped, Result, TensorInfo, counted};

use super::Planner;
use crate::adapter::{Contents, Part, Parts};
use crate::configuration::{Configuration, Writer};
use crate::form::{Form, Orientation};
use crate::image_names::ImageModules;
use crate::matrix::Matrix;

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

/// Returns the scale of a module's matrices.
pub(super) fn scale(
    contents: &Contents,
    reader: &dyn CheckpointReader,
    (module, parts): (&str, &Parts),
    form: &Form,
) -> Result<f64> {
    let configuration = &contents.configuration;
    if configuration.writer != Writer::Images {
        return configuration.scale(module, form.rank);
    }
    let alpha = parts.get(&Part::Alpha).map(|&alpha| number(reader, alpha)).transpose()?;
    // A Kronecker product of whole matrices has no rank, and no scale.
    let of_kronecker = || {
        let inner = parts.get(&Part::Kron2B).or_else(|| parts.get(&Part::Kron1B))?;
        reader.tensors()[*inner].shape.dims().first().copied()
    };
    Ok(configuration.scale_of_image(module, alpha, form.rank.or_else(of_kronecker)))
}

fn number(reader: &dyn CheckpointReader, tensor: usize) -> Result<f64> {
    let info = &reader.tensors()[tensor];
    if info.shape.elements() != Some(1) {
        return Err(Error::format("expected one number").for_tensor(&info.name));
    }
    Ok(Matrix::read(reader, tensor)?.values.first().copied().map_or(0.0, f64::from))
}
