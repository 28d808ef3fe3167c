//! Quantizers by name.

use std::collections::BTreeMap;
use std::fmt;

use super::{Q4_0Quantizer, Q4_1Quantizer, Q8_0Quantizer, Q8TensorQuantizer, Quantizer};

/// Quantizers by name; at first the built-in ones.
pub struct QuantizerRegistry {
    quantizers: BTreeMap<String, Box<dyn Quantizer>>,
}

impl QuantizerRegistry {
    /// Adds a quantizer under its name, and returns the one that had it before.
    pub fn register(&mut self, quantizer: Box<dyn Quantizer>) -> Option<Box<dyn Quantizer>> {
        self.quantizers.insert(quantizer.name().to_owned(), quantizer)
    }

    /// The quantizer of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&dyn Quantizer> {
        self.quantizers.get(name).map(AsRef::as_ref)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.quantizers.keys().map(String::as_str)
    }
}

impl Default for QuantizerRegistry {
    fn default() -> Self {
        let mut registry = Self { quantizers: BTreeMap::new() };
        registry.register(Box::new(Q8_0Quantizer));
        registry.register(Box::new(Q4_0Quantizer));
        registry.register(Box::new(Q4_1Quantizer));
        registry.register(Box::new(Q8TensorQuantizer));
        registry
    }
}

impl fmt::Debug for QuantizerRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.quantizers.keys()).finish()
    }
}
