//! Without the feature `infer`, what runs models is refused: commands, and options of others.

/// Commands that this build rejects; each still accepts its own arguments.
pub(super) mod refused {
    use crate::context::Context;
    use crate::engine::absent;
    use crate::failure::Outcome;

    pub(in crate::commands) fn run<A>(_args: &A, _context: &Context) -> Outcome {
        absent()
    }
}

/// `apr run`, and `apr tokenize`, which uses the tokenizers of runs.
pub(super) mod run {
    pub(in crate::commands) use super::refused::run;

    pub(in crate::commands) mod tokenize {
        pub(in crate::commands) use super::run;
    }
}

/// `apr canary`, and `--canary` of the commands that write models.
pub(super) mod canary {
    use std::io::{self, Write};
    use std::path::Path;

    use crate::args::CanaryAction;
    use crate::context::Context;
    use crate::engine::{CanaryReport, absent};
    use crate::failure::Outcome;
    use crate::model::Model;

    pub(in crate::commands) fn run(_action: &CanaryAction, _context: &Context) -> Outcome {
        absent()
    }

    /// Canary file; never created in this build.
    pub(in crate::commands) enum CanaryFile {}

    impl CanaryFile {
        pub(in crate::commands) fn read(_path: &Path, _context: &Context) -> Outcome<Self> {
            absent()
        }

        pub(in crate::commands) fn check_written(
            &self,
            _model: Model,
            _context: &Context,
        ) -> Outcome<CanaryReport> {
            match *self {}
        }
    }

    pub(in crate::commands) fn failures(report: &CanaryReport) -> Vec<String> {
        match *report {}
    }

    pub(in crate::commands) fn render_line(
        _out: &mut dyn Write,
        report: &CanaryReport,
    ) -> io::Result<()> {
        match *report {}
    }
}

/// `apr inspect --memory`.
pub(super) mod estimate {
    use std::io::{self, Write};

    use crate::args::InspectArgs;
    use crate::context::Context;
    use crate::engine::{MemoryEstimate, absent};
    use crate::failure::Outcome;
    use crate::model::Model;

    pub(in crate::commands) fn of(
        _model: &Model,
        _args: &InspectArgs,
        _context: &Context,
    ) -> Outcome<MemoryEstimate> {
        absent()
    }

    pub(in crate::commands) fn render(
        _out: &mut dyn Write,
        estimate: &MemoryEstimate,
    ) -> io::Result<()> {
        match *estimate {}
    }
}

/// `apr imatrix`, and `--calibration`.
pub(super) mod imatrix {
    use std::path::Path;

    use apr_ops::products::{Calibration, Ranges};
    use apr_quantize::Imatrix;

    use crate::args::ImatrixArgs;
    use crate::context::Context;
    use crate::engine::absent;
    use crate::failure::Outcome;
    use crate::model::Model;

    pub(in crate::commands) fn run(_args: &ImatrixArgs, _context: &Context) -> Outcome {
        absent()
    }

    pub(in crate::commands) fn calibrated(
        _data: &Path,
        _model: &Path,
        _context: &Context,
    ) -> Outcome<(Imatrix, Vec<String>)> {
        absent()
    }

    pub(in crate::commands) fn influence(
        _data: &Path,
        _model: &Path,
        _context: &Context,
    ) -> Outcome<Vec<f64>> {
        absent()
    }

    pub(in crate::commands) fn changed_ranges(
        _data: (&Path, Calibration),
        _model: (Model, &Path),
        _context: &Context,
    ) -> Outcome<(Ranges, Model, Option<String>)> {
        absent()
    }

    pub(in crate::commands) fn ranges(
        _data: (&Path, Calibration),
        _model: &Path,
        _context: &Context,
    ) -> Outcome<Ranges> {
        absent()
    }
}

/// `apr quantize --search`.
pub(super) mod search {
    use std::io::{self, Write};
    use std::path::Path;

    use apr_ops::job::Job;
    use apr_quantize::{Quantization, Scheme};
    use apr_registry::PlanOptions;

    use crate::args::SearchArgs;
    use crate::context::Context;
    use crate::engine::{SearchReport, absent};
    use crate::failure::Outcome;
    use crate::model::Model;

    pub(in crate::commands) fn check_layout(
        _layout: &PlanOptions,
        _scheme: Option<Scheme>,
    ) -> Outcome {
        absent()
    }

    pub(in crate::commands) fn found(
        _args: &SearchArgs,
        _data: &Path,
        _model: &Model,
        _job: &Job,
        _output: Option<&Path>,
        _context: &Context,
    ) -> Outcome<(Quantization, SearchReport)> {
        absent()
    }

    pub(in crate::commands) fn render(
        _out: &mut dyn Write,
        report: &SearchReport,
    ) -> io::Result<()> {
        match *report {}
    }
}

/// `apr explain --importance`.
pub(super) mod importance {
    use std::path::Path;

    use crate::context::Context;
    use crate::engine::absent;
    use crate::failure::Outcome;

    pub(in crate::commands) fn run(_model: &Path, _data: &Path, _context: &Context) -> Outcome {
        absent()
    }
}

/// `apr distill`, and `--distill` of `apr convert`.
pub(super) mod distill {
    use std::io::{self, Write};

    use crate::args::ConvertArgs;
    use crate::commands::convert::Changed;
    use crate::context::Context;
    use crate::engine::{DistillReport, absent};
    use crate::failure::Outcome;
    use crate::model::Model;

    pub(in crate::commands) fn distilled(
        args: &ConvertArgs,
        model: Model,
        _changed: &mut Changed,
        _context: &Context,
    ) -> Outcome<(Model, Option<DistillReport>)> {
        match args.distill.is_asked() || args.distill.data.is_some() {
            true => absent(),
            false => Ok((model, None)),
        }
    }

    pub(in crate::commands) fn clean_up(_args: &ConvertArgs, _context: &Context) {}

    pub(in crate::commands) fn render(
        _out: &mut dyn Write,
        report: &DistillReport,
    ) -> io::Result<()> {
        match *report {}
    }
}

/// `--prune-method fisher`.
pub(super) mod gradients {
    use std::path::Path;

    use apr_prune::Gradients;

    use crate::context::Context;
    use crate::engine::absent;
    use crate::failure::Outcome;

    pub(in crate::commands) fn of_texts(
        _paths: (&Path, &Path),
        _context: &Context,
    ) -> Outcome<(Gradients, Vec<String>)> {
        absent()
    }
}
