//! Where the program was built without the feature `chat`.

use apr_core::{Error, Result};

pub use crate::messages::{Chat, ChatFile, Data, Message, Rendered, Template, TemplateOptions};

/// Returns an error, because this build can't run templates.
///
/// # Errors
/// E003 always.
pub fn render(_: &Template, _: &Chat<'_>) -> Result<Rendered> {
    Err(Error::version("chat templates need the feature `chat`, which this build lacks"))
}
