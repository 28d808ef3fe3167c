//! Preprocessing of audio and images, in the report of `apr inspect`.

use std::io::{self, Write};

use apr_core::number;
use apr_ops::physics::is_filterbank;
use apr_ops::tensors::{TensorRow, TensorsOptions, list};
use apr_registry::{CheckpointReader, Escaped};
use apr_source::companions::learn_from;
use apr_view::{View, named};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{BRIEF_VALUE, render_object};
use crate::context::Context;
use crate::failure::Outcome;
use crate::human;
use crate::printer::BOLD;

/// Preprocessing of audio or images for the model.
#[derive(Serialize)]
pub(super) struct Filters {
    /// Statistics of the mel filterbank, a matrix of mels and frequencies.
    filterbank: Option<TensorRow>,
    /// `audio_config` and `image_config` of the metadata.
    preprocessing: Map<String, Value>,
}

pub(super) fn filters(
    reader: &dyn CheckpointReader,
    context: &Context,
) -> Outcome<Option<Filters>> {
    let learnt = learn_from(reader)?;
    let metadata = |key: &str| {
        reader
            .metadata()
            .get(key)
            .or_else(|| learnt.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v))
    };

    let keys = ["audio_config", "image_config"].into_iter();
    let preprocessing: Map<String, Value> =
        keys.filter_map(|key| Some((key.to_owned(), metadata(key)?.clone()))).collect();
    let mut view = View::new(reader);
    if !reader.tensors().iter().any(|info| is_filterbank(&info.name)) {
        learnt.tensors.into_iter().for_each(|tensor| view.add(tensor.info, tensor.bytes));
    }

    let name = view.tensors().iter().map(|info| &info.name).find(|name| is_filterbank(name));
    let filter = name.map(|name| named(name));
    let mut rows = Vec::new();
    if filter.is_some() {
        let options = TensorsOptions { filter, stats: true, ..TensorsOptions::default() };
        rows = list(&view, "", &options, &context.pipeline()?, &())?.tensors;
    }

    let filterbank = rows.into_iter().next();
    Ok((filterbank.is_some() || !preprocessing.is_empty())
        .then_some(Filters { filterbank, preprocessing }))
}

pub(super) fn render_filters(out: &mut dyn Write, filters: &Filters) -> io::Result<()> {
    if let Some(filterbank) = &filters.filterbank {
        let size = match filterbank.shape.dims() {
            [mels, frequencies] => format!("{mels} mels of {frequencies} frequencies"),
            _ => format!("shape {}", filterbank.shape),
        };
        writeln!(out, "\n{BOLD}Mel filterbank{BOLD:#} ({size}, {})", Escaped(&filterbank.name))?;
        if let Some((min, max)) =
            filterbank.stats.as_ref().and_then(|stats| stats.min.zip(stats.max))
        {
            let zeros = filterbank.stats.as_ref().map_or(0, |stats| stats.zeros);
            let (min, max) = (number(min), number(max));
            writeln!(
                out,
                "  values from {min} to {max}, {} of {} are zero",
                human::count(zeros),
                human::count(filterbank.elements)
            )?;
        }
    }

    for (key, config) in &filters.preprocessing {
        let title = if key == "audio_config" { "Sound" } else { "Images" };
        writeln!(out, "\n{BOLD}{title}{BOLD:#}")?;
        render_object(out, config, usize::MAX, BRIEF_VALUE)?;
    }

    Ok(())
}
