//! A LoRA adapter as a checkpoint, in the form of peft.

use apr_core::{
    CheckpointReader, Companion, Container, Error, FileInfo, Format, Metadata, Result, Stored,
    StoredRange, TensorInfo,
};
use apr_view::Companions;
use serde_json::{Map, Value, json};

use crate::store::FactorStore;

/// Name of the configuration beside an adapter's weights.
const CONFIG: &str = "adapter_config.json";
/// Name of the card.
const CARD: &str = "README.md";

/// Source of the bytes of an adapter's tensor.
#[derive(Debug, Clone, Copy)]
pub enum AdapterBytes {
    /// Bytes in the store.
    Stored {
        /// Position of the first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Bytes of a tensor of the model that the adapter was made from.
    Copied(usize),
}

impl AdapterBytes {
    /// Appends bytes to a store.
    ///
    /// # Errors
    /// Those of [`FactorStore::append`].
    pub fn append(store: &dyn FactorStore, bytes: &[u8]) -> Result<Self> {
        Ok(Self::Stored { offset: store.append(bytes)?, len: bytes.len() as u64 })
    }
}

/// An adapter: its tensors, configuration and card.
pub struct Adapter<'m> {
    source: &'m dyn CheckpointReader,
    store: Box<dyn FactorStore>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    bytes: Vec<AdapterBytes>,
    companions: Companions,
}

/// A module that an adapter changes.
#[derive(Debug, Clone)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) rank: u64,
}

/// Contents of an adapter's configuration.
pub(crate) struct Config<'a> {
    /// Name of the base model.
    pub(crate) base: &'a str,
    pub(crate) modules: &'a [Module],
    /// Modules that the adapter has a whole copy of.
    pub(crate) saved: &'a [String],
    /// Names of the other linear layers of the model, which are not to be changed.
    pub(crate) others: &'a [String],
    /// The classes that the model is of.
    pub(crate) architectures: Vec<String>,
    /// `true` if the rows of weights are inputs.
    pub(crate) inputs_first: bool,
}

impl Config<'_> {
    /// Returns the configuration and the card as files beside the weights.
    pub(crate) fn companions(&self) -> Companions {
        let mut companions = Companions::default();
        companions.put(CONFIG, self.to_json());
        companions.put(CARD, self.card());
        companions
    }

    /// Returns the configuration as JSON, in the form that peft writes.
    fn to_json(&self) -> Vec<u8> {
        let most = self.modules.iter().map(|module| module.rank).max().unwrap_or(1);
        // The product is not scaled: alpha is the rank, of each module that has another one, too.
        let pattern: Map<String, Value> = self
            .modules
            .iter()
            .filter(|module| module.rank != most)
            .map(|module| (module.name.clone(), module.rank.into()))
            .collect();
        let is_causal = self
            .architectures
            .iter()
            .any(|class| class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel"));
        let config = json!({
            "alpha_pattern": pattern,
            "auto_mapping": null,
            "base_model_name_or_path": self.base,
            "bias": "none",
            "fan_in_fan_out": self.inputs_first,
            "inference_mode": true,
            "init_lora_weights": true,
            "lora_alpha": most,
            "lora_dropout": 0.0,
            "modules_to_save": (!self.saved.is_empty()).then_some(self.saved),
            "peft_type": "LORA",
            "r": most,
            "rank_pattern": pattern,
            "target_modules": self.targets(),
            "task_type": is_causal.then_some("CAUSAL_LM"),
            "use_dora": false,
            "use_rslora": false,
        });
        apr_core::json::to_vec_pretty(&config).unwrap_or_default()
    }

    /// Returns the target modules, by the last part of their names if this part matches no other
    /// modules.
    fn targets(&self) -> Vec<String> {
        let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
        let mut short: Vec<String> = self.modules.iter().map(|module| last(&module.name)).collect();
        short.sort_unstable();
        short.dedup();
        let is_ambiguous =
            self.others.iter().any(|other| short.binary_search(&last(other)).is_ok());
        match is_ambiguous {
            true => self.modules.iter().map(|module| module.name.clone()).collect(),
            false => short,
        }
    }

    fn card(&self) -> Vec<u8> {
        let base = self.base;
        // Of a string, JSON is YAML.
        let quoted = Value::from(base);
        format!(
            "---\nbase_model: {quoted}\nlibrary_name: peft\ntags:\n- lora\n---\n\nA LoRA adapter \
             for `{base}`, extracted from a tuned model by truncated singular value decompositions \
             of the differences between its weights and the base's.\n"
        )
        .into_bytes()
    }
}

impl<'m> Adapter<'m> {
    /// Creates an adapter of tensors whose bytes are in `store` or in `source`.
    ///
    /// `source` is the model that the adapter was made from: its format, files and warnings are the
    /// adapter's.
    #[must_use]
    pub fn new(
        source: &'m dyn CheckpointReader,
        store: Box<dyn FactorStore>,
        tensors: Vec<(TensorInfo, AdapterBytes)>,
        metadata: Metadata,
        companions: Companions,
    ) -> Self {
        let (tensors, bytes) = tensors.into_iter().unzip();
        Self { source, store, metadata, tensors, bytes, companions }
    }
}

impl CheckpointReader for Adapter<'_> {
    fn format(&self) -> &'static Format {
        self.source.format()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.bytes[tensor] {
            AdapterBytes::Copied(tensor) => self.source.stored(tensor),
            AdapterBytes::Stored { len, .. } => {
                Stored::derived(StoredRange { file: 0, offset: 0, len })
            }
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (start, len) = match self.bytes[tensor] {
            AdapterBytes::Copied(tensor) => return self.source.read_tensor(tensor, offset, buf),
            AdapterBytes::Stored { offset, len } => (offset, len),
        };
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > len) {
            let name = &self.tensors[tensor].name;
            return Err(Error::corrupt("the read ends past the tensor").for_tensor(name));
        }
        self.store.read_at(start + offset, buf)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        match self.bytes[tensor] {
            AdapterBytes::Copied(tensor) => self.source.tensor_slice(tensor),
            AdapterBytes::Stored { .. } => None,
        }
    }

    fn container(&self) -> Container<'_> {
        self.source.container().altered()
    }

    fn files(&self) -> &[FileInfo] {
        self.source.files()
    }

    fn companions(&self) -> &[Companion] {
        self.companions.list()
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        self.companions.read(self.source, companion)
    }

    fn left_out(&self) -> &[String] {
        &[]
    }

    fn warnings(&self) -> &[String] {
        self.source.warnings()
    }
}
