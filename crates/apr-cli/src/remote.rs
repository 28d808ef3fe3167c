//! How models on hubs and servers are read.

use std::sync::Arc;

use apr_hub::{Hub, Settings, default_cache};
use apr_io::{Interrupt, Sources};

use crate::args::RemoteArgs;

/// What opens files, with a hub client that is made when the first remote model is opened.
pub(crate) fn sources(args: &RemoteArgs, interrupt: &Interrupt) -> Sources {
    let (offline, insecure, interrupt) = (args.offline, args.insecure, Arc::clone(&interrupt.0));
    Sources::default().with_hub(move || {
        let mut settings = Settings::from_env(default_cache()?)?;
        settings.offline |= offline;
        settings.insecure = insecure;
        settings.interrupt = Arc::clone(&interrupt);
        Ok(Hub::new(settings))
    })
}
