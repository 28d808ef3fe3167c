//! What is known of the network while models are opened.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use apr_core::Result;
use apr_hub::{Hub, ResolvedLocation};

/// Makes a hub client when the first model is opened over the network.
pub(crate) type Make = dyn Fn() -> Result<Hub> + Send + Sync;

/// State of everything opened over the network. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Remote {
    pub(crate) make: Option<Arc<Make>>,
    pub(crate) hub: Arc<OnceLock<Hub>>,
    pub(crate) places: Arc<Mutex<Vec<ResolvedLocation>>>,
    /// Companions are going to be read.
    pub(crate) companions: Arc<AtomicBool>,
    /// Set if everything that is opened is going to be read.
    pub(crate) whole: Arc<AtomicBool>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remote")
    }
}
