//! The weights that steps read, and what their values are like.

use std::collections::HashMap;

use apr_core::{CheckpointReader, DType, Shape};
use apr_registry::{Error, IoCause, Result};
use apr_run::{Host, RunResult};
use apr_tensor::stats::{Moments, Stats};
use apr_view::chunks::{chunks, take};
use apr_view::values::{self, Buffers};
use serde::Serialize;

use crate::file_names::FileNames;
use crate::level::Level;
use crate::trace::{StepTrace, places};
use crate::tracer::Tracer;

/// The weights of a step.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct StepWeights {
    /// Elements of all of them.
    pub parameters: u64,
    /// Statistics of all weights together, if their values were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_statistics: Option<Stats>,
    /// Each of them, in the order in which they are read first.
    pub weights: Vec<WeightTrace>,
}

/// A weight that a step reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WeightTrace {
    /// Name in the file.
    pub tensor: String,
    /// Dtype of the tensor.
    pub dtype: DType,
    /// Dimensions of the whole tensor, outermost first.
    pub shape: Shape,
    /// Statistics, if the values were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statistics: Option<Stats>,
}

/// The weights of a model, each measured once.
pub(crate) struct Weights<'w> {
    reader: &'w dyn CheckpointReader,
    names: &'w FileNames<'w>,
    measures: bool,
    positions: HashMap<&'w str, usize>,
    measured: HashMap<usize, Moments>,
}

impl<'w> Weights<'w> {
    pub(crate) fn of(
        reader: &'w dyn CheckpointReader,
        names: &'w FileNames<'w>,
        measures: bool,
    ) -> Self {
        let tensors = reader.tensors().iter().enumerate();
        let positions = tensors.map(|(position, info)| (info.name.as_str(), position)).collect();
        Self { reader, names, measures, positions, measured: HashMap::new() }
    }

    /// Adds to each step the weights that its operators read.
    pub(crate) fn add(
        &mut self,
        steps: &mut [StepTrace],
        tracer: &Tracer<'_, '_>,
        level: Level,
    ) -> RunResult<()> {
        let list = tracer.sites().list();
        let place = places(steps);
        let mut read: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
        for operator in &tracer.operators {
            let site = &list[operator.site];
            let Some(at) = place.get(level.step_of(&site.path)) else { continue };
            for weight in &site.weights {
                let Some(&position) = self.positions.get(weight.tensor.as_str()) else { continue };
                if !read[*at].contains(&position) {
                    read[*at].push(position);
                }
            }
        }
        for (step, positions) in steps.iter_mut().zip(read) {
            step.weights = Some(self.of_step(&positions, tracer.host())?);
        }
        Ok(())
    }

    fn of_step(&mut self, positions: &[usize], host: &dyn Host) -> Result<StepWeights> {
        let mut found = StepWeights::default();
        let mut all = Moments::default();
        for &position in positions {
            let info = &self.reader.tensors()[position];
            let mut statistics = None;
            if self.measures {
                let moments = self.moments(position, host)?;
                all.merge(&moments);
                statistics = Some(moments.finish());
            }
            found.parameters += info.shape.elements().unwrap_or_default();
            found.weights.push(WeightTrace {
                tensor: self.names.name(&info.name),
                dtype: info.dtype,
                shape: info.shape.clone(),
                statistics,
            });
        }
        found.weight_statistics = (self.measures && !positions.is_empty()).then(|| all.finish());
        Ok(found)
    }

    fn moments(&mut self, position: usize, host: &dyn Host) -> Result<Moments> {
        if let Some(known) = self.measured.get(&position) {
            return Ok(known.clone());
        }
        let info = &self.reader.tensors()[position];
        let (mut bytes, mut buffers) = (Vec::new(), Buffers::default());
        let mut all = Moments::default();
        for chunk in chunks(info, info.byte_len()?) {
            if host.is_cancelled() {
                return Err(Error::io(IoCause::Interrupted, "interrupted"));
            }
            let bytes = take(&mut bytes, chunk.len);
            self.reader.read_tensor(position, chunk.offset, bytes)?;
            all.merge(&values::moments(self.reader, position, chunk, bytes, &mut buffers)?);
        }
        self.measured.insert(position, all.clone());
        Ok(all)
    }
}
