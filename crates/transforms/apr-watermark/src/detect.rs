//! Finding a mark.

use apr_core::{CheckpointReader, Error, Phase, Pipeline, Progress, Result};
use serde::Serialize;

use super::carrier::{Carrier, Carriers, SMALLEST, Values, bytes_of, tasks};
use super::chips::{Chips, GROUP};
use super::correlation::{Correlation, Reading, SymbolScore};
use super::frame::Frame;
use super::key::MarkKey;

/// The largest bound on a chance hit that counts as a find.
pub const MAX_CHANCE: f64 = 1e-9;

/// The report of `apr watermark detect`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DetectReport {
    /// `true` if the mark was detected: the requested one, or any mark of this key.
    pub detected: bool,
    /// Decoded id, if a mark was found and the id's check is valid.
    pub id: Option<String>,
    /// Id that was requested.
    pub asked: Option<String>,
    /// Correlation with the mark, in standard deviations of a chance one.
    pub z: f64,
    /// Logarithm to base 10 of an upper bound on the probability that another key leads to as much.
    pub log10_chance: f64,
    /// Shift of the weights along the mark, in parts of the standard deviation.
    pub strength: f64,
    /// Tensors that were looked at.
    pub tensor_count: usize,
    /// Number of elements of these tensors.
    #[serde(rename = "weight_count")]
    pub weights: u64,
    /// The symbols of the frame that was read, whether of the mark or of noise.
    pub symbols: Vec<SymbolScore>,
}

#[derive(Default)]
struct CorrelationPart {
    values: Values,
    correlation: Correlation,
}

/// Correlates the weights with the key's chips and decodes the id.
///
/// With `id`, it also correlates the weights with this id. This detects the id even if too little
/// of it is left to decode.
///
/// # Errors
/// E001 for an id that a mark can't hold and for a model without weights that can carry a mark.
/// Also the errors of the reader.
pub fn detect<P: Pipeline>(
    reader: &dyn CheckpointReader,
    carriers: &Carriers,
    key: &MarkKey,
    id: Option<&str>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<DetectReport> {
    let asked = id.map(|id| Frame::new(key, id)).transpose()?;
    if carriers.weights() == 0 {
        return Err(Error::format(format!(
            "no mark can be detected: the model has no matrix of {SMALLEST} or more floats that \
             differ"
        )));
    }
    let apart: Vec<&Carrier> = carriers.apart().collect();
    let tasks = tasks(apart.iter().copied());
    let mut total = Correlation::default();
    let lens = tasks
        .iter()
        .map(|(carrier, elements)| bytes_of(&reader.tensors()[apart[*carrier].tensor], elements));
    progress.begin(Phase::Watermarking, lens.sum());
    pipeline.run(
        tasks.len(),
        |at, slot: &mut CorrelationPart| {
            let (carrier, elements) = &tasks[at];
            let carrier = apart[*carrier];
            slot.values.read(reader, carrier.tensor, elements.clone())?;
            carrier.normalize(&mut slot.values.values);
            slot.correlation.clear();
            let mut chips = Chips::new(key, &carrier.name);
            slot.correlation.add(&mut chips, elements.start / GROUP as u64, &slot.values.values);
            Ok(())
        },
        |at, slot| {
            let (carrier, elements) = &tasks[at];
            // Tasks come in order, so the sum is the same for any number of threads.
            total.merge(&slot.correlation);
            progress.advance(bytes_of(&reader.tensors()[apart[*carrier].tensor], elements));
            Ok(())
        },
    )?;
    Ok(report(&total, key, id.zip(asked.as_ref()), apart.len()))
}

fn report(
    total: &Correlation,
    key: &MarkKey,
    asked: Option<(&str, &Frame)>,
    tensors: usize,
) -> DetectReport {
    let Reading { symbols, z, ln_chance, id } = total.read(key);
    let id = id.filter(|_| ln_chance <= MAX_CHANCE.ln());
    let asked_id = asked.map(|(id, _)| id);
    let (z, ln_chance) = match asked {
        Some((_, frame)) => {
            let z = total.score(frame);
            // Hoeffding's bound for one frame; a negative correlation is no find.
            (z, -z.max(0.0).powi(2) / 2.0)
        }
        None => (z, ln_chance),
    };

    DetectReport {
        // Where another id is read, it is that one.
        detected: ln_chance <= MAX_CHANCE.ln()
            && (asked.is_none() || id.is_none() || id.as_deref() == asked_id),
        id,
        asked: asked_id.map(str::to_owned),
        z,
        log10_chance: ln_chance / std::f64::consts::LN_10,
        strength: if total.weights() > 0 { z / (total.weights() as f64).sqrt() } else { 0.0 },
        tensor_count: tensors,
        weights: total.weights(),
        symbols,
    }
}
