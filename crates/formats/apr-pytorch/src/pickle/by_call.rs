//! Names that are judged by how a pickle calls them.
//!
//! They are known, because pickles of models have them: dill makes types by their names, and
//! trainers pickle their settings. But `_load_type('FunctionType')` is the constructor of any
//! function, and `Booster(None, None, path)` opens a file. A pickle that hands such a name on as a
//! value could call it in a way that can't be seen here.

use std::collections::HashMap;

use super::opcode as op;
use super::uses::Verdict;
use super::value::{Global, Heap, Id};

/// Modules whose classes open files, or connect to other processes, when they are called. A pickle
/// of an instance gives it its state without a call.
const ACTIVE: [&str; 8] = [
    "accelerate.state",
    "accelerate.utils.dataclasses",
    "lightgbm.basic",
    "transformers.trainer_utils",
    "transformers.training_args",
    "transformers.training_args_seq2seq",
    "trl.trainer",
    "xgboost.core",
];

/// Classes of these modules that are called with a value: enumerations and tuples.
const OF_VALUES: [&str; 24] = [
    "BestRun",
    "ComputeEnvironment",
    "CustomDtype",
    "DDPCommunicationHookType",
    "DistributedType",
    "DynamoBackend",
    "EvalLoopOutput",
    "EvalPrediction",
    "EvaluationStrategy",
    "FP8BackendType",
    "FSDPOption",
    "HPSearchBackend",
    "HubStrategy",
    "IntervalStrategy",
    "LoggerType",
    "OptimizerNames",
    "ParallelMode",
    "PrecisionType",
    "PredictionOutput",
    "RNGType",
    "SageMakerDistributedType",
    "SaveStrategy",
    "SchedulerType",
    "TrainOutput",
];

/// Types of Python by the names that dill has for them, whose instances only hold values.
const TYPES: [&str; 25] = [
    "DictItemsType",
    "DictKeysType",
    "DictValuesType",
    "EllipsisType",
    "MappingProxyType",
    "NoneType",
    "NotImplementedType",
    "OdictItemsType",
    "OdictKeysType",
    "OdictValuesType",
    "bool",
    "bytearray",
    "bytes",
    "complex",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "set",
    "object",
    "range",
    "slice",
    "str",
    "tuple",
];

/// Returns `true` for a name that is judged by its call.
pub(super) fn is_judged(module: &str, name: &str) -> bool {
    is_of_dill(module, name) || is_active(module, name)
}

fn is_of_dill(module: &str, name: &str) -> bool {
    ["dill._dill", "dill.dill"].contains(&module) && name == "_load_type"
}

fn is_active(module: &str, name: &str) -> bool {
    let is_within = |outer: &str| {
        module.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    ACTIVE.iter().any(|outer| is_within(outer)) && !OF_VALUES.contains(&name)
}

/// Returns the verdict on a call of a name with these arguments, given the verdict on the name.
pub(super) fn verdict(
    heap: &Heap,
    (module, name): (&str, &str),
    args: &[Id],
    opcode: u8,
    of_name: Verdict,
) -> Verdict {
    if is_of_dill(module, name) {
        let kind = args.first().and_then(|kind| heap.text(*kind)).unwrap_or_default();
        return if TYPES.contains(&kind) { of_name } else { Verdict::Dangerous };
    }
    let calls = match opcode {
        op::NEWOBJ | op::NEWOBJ_EX => false,
        op::OBJ | op::INST => !args.is_empty(),
        _ => true,
    };
    match is_active(module, name) && calls {
        true => of_name.max(Verdict::Unknown),
        false => of_name,
    }
}

/// The names that are judged by their calls and may have been used in another way.
#[derive(Debug, Default)]
pub(super) struct Loose {
    /// How often each name was put on the stack without being called.
    counts: HashMap<Id, i64>,
}

impl Loose {
    /// Notes an imported name.
    pub(super) fn add(&mut self, name: Id) {
        self.counts.insert(name, 0);
    }

    /// Notes a value that is put on the stack.
    pub(super) fn push(&mut self, value: Id) {
        if !self.counts.is_empty()
            && let Some(count) = self.counts.get_mut(&value)
        {
            *count += 1;
        }
    }

    /// Notes a call of a value, or of the function that makes an instance of it.
    pub(super) fn call(&mut self, value: Id) {
        if let Some(count) = self.counts.get_mut(&value) {
            *count -= 1;
        }
    }

    /// Returns the names that were handed on as values, with a verdict on each.
    pub(super) fn handed_on<'h>(&self, heap: &'h Heap) -> Vec<(&'h Global, Verdict)> {
        let mut ids: Vec<_> = self.counts.iter().filter(|(_, count)| **count > 0).collect();
        ids.sort_unstable();
        let globals = ids.into_iter().filter_map(|(id, _)| heap.global(*id));
        let verdict = |global: &Global| match is_of_dill(&global.module, &global.name) {
            true => Verdict::Dangerous,
            false => Verdict::Unknown,
        };
        globals.map(|global| (global, verdict(global))).collect()
    }
}

#[cfg(test)]
mod tests {
    use apr_core::Limits;

    use super::*;
    use crate::pickle::survey::PickleSurvey;

    fn worst(pickle: &[u8]) -> Verdict {
        let pickle = [b"\x80\x04", pickle, b"."].concat();
        let end = pickle.len() as u64;
        let survey = PickleSurvey::read(&pickle, (0, end), false, &Limits::default());
        assert!(survey.is_whole(), "{survey:?}");
        survey.findings.iter().map(|finding| finding.verdict).max().expect("a name")
    }

    #[test]
    fn names_are_judged_by_how_they_are_called() {
        use Verdict::{Allowed, Dangerous, Unknown};
        for (pickle, expected) in [
            (&b"cdill._dill\n_load_type\n\x8c\x08NoneType\x85R"[..], Allowed),
            (b"cdill._dill\n_load_type\n\x8c\x0cFunctionType\x85R", Dangerous),
            (b"cdill._dill\n_load_type\nN\x85R", Dangerous),
            // From the memo, and once more.
            (b"cdill._dill\n_load_type\n\x94\x8c\x03int\x85Rh\0\x8c\x03str\x85R\x86", Allowed),
            (b"cdill._dill\n_load_type\n\x94\x8c\x03int\x85Rh\0\x86", Dangerous),
            (b"cfunctools\npartial\ncdill._dill\n_load_type\n\x8c\x03int\x86R", Dangerous),
            (b"ctransformers.training_args\nTrainingArguments\n)\x81}b", Allowed),
            (b"ctransformers.training_args\nTrainingArguments\n\x8c\x01x\x85R", Unknown),
            (b"(ctransformers.training_args\nTrainingArguments\n\x8c\x01xo", Unknown),
            (b"ctransformers.training_args\nOptimizerNames\n\x8c\x01x\x85R", Allowed),
            (
                b"ccopyreg\n_reconstructor\ncxgboost.core\nBooster\ncbuiltins\nobject\nN\x87R",
                Allowed,
            ),
            (b"cxgboost.core\nBooster\nNN\x8c\x02/x\x87R", Unknown),
            (b"cfunctools\npartial\ncxgboost.core\nBooster\n\x85R", Unknown),
        ] {
            assert_eq!(worst(pickle), expected, "{}", pickle.escape_ascii());
        }
    }
}
