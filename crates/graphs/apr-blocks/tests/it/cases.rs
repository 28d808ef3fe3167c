//! Models to make graphs of: configurations and shapes, as another library wrote them
//! (`fixtures/families`).

use apr_arch::Families;
use apr_blocks::{GraphOptions, Graphs, graphs};
use apr_core::{DType, Metadata, Result, TensorInfo};
use apr_testkit::locate::fixture;
use serde_json::{Map, Value as Json};

/// A checkpoint without its values.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) config: Map<String, Json>,
    pub(crate) tensors: Vec<TensorInfo>,
}

impl Case {
    pub(crate) fn named(name: &str) -> Self {
        let path = fixture("families").join(name).with_extension("json");
        let json: Json =
            serde_json::from_slice(&std::fs::read(path).expect("it is there")).expect("it is JSON");
        let config = json["config"].as_object().expect("a configuration").clone();
        let tensors = json["tensors"].as_object().expect("tensors").iter().map(|(name, dims)| {
            let dims = dims
                .as_array()
                .expect("a shape")
                .iter()
                .filter_map(Json::as_u64)
                .collect::<Vec<_>>();
            TensorInfo { name: name.clone(), dtype: DType::F32, shape: dims.into() }
        });
        Self { name: name.to_owned(), config, tensors: tensors.collect() }
    }

    pub(crate) fn all() -> Vec<Self> {
        Self::all_in("families")
    }

    /// Returns the cases of a folder of the fixtures: `families` or a folder in it.
    pub(crate) fn all_in(folder: &str) -> Vec<Self> {
        let files = std::fs::read_dir(fixture(folder)).expect("the fixtures are there");
        let paths = files.map(|entry| entry.expect("an entry").path());
        let mut names: Vec<String> = paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        names.sort();
        let within = folder.strip_prefix("families/").map(|within| format!("{within}/"));
        let within = within.unwrap_or_default();
        names.iter().map(|name| Self::named(&format!("{within}{name}"))).collect()
    }

    /// Adds an entry to the configuration, or replaces it.
    pub(crate) fn with(mut self, key: &str, value: Json) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    pub(crate) fn metadata(&self) -> Metadata {
        let mut config = self.config.clone();
        let model_type = config.remove("model_type").expect("a model type");
        let mut metadata = Metadata::new();
        metadata.set("model_type", model_type);
        metadata.set("architecture", config);
        metadata
    }

    pub(crate) fn graphs(&self, options: &GraphOptions) -> Result<Graphs> {
        self.graphs_by(&Families::builtin(), options)
    }

    /// Builds the graphs of the case, or returns `None` if no family matches the checkpoint.
    pub(crate) fn try_graphs(&self, options: &GraphOptions) -> Option<Result<Graphs>> {
        let (families, metadata) = (Families::builtin(), self.metadata());
        let model = families.identify(&self.tensors, &metadata)?;
        Some(graphs(&model, &self.tensors, options))
    }

    pub(crate) fn graphs_by(&self, families: &Families, options: &GraphOptions) -> Result<Graphs> {
        let metadata = self.metadata();
        let model = families.identify(&self.tensors, &metadata).expect("of a known family");
        graphs(&model, &self.tensors, options)
    }
}
