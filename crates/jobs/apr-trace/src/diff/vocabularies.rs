//! Whether two models read a text alike.

use apr_run::{Remedy, RunError, RunResult, Runner, Tokenizer};

use crate::payload::Payload;
use crate::quiet::Quiet;

/// Refuses models that read a text as different tokens.
pub(super) fn check_vocabularies(runners: [&Runner<'_>; 2], payload: &Payload) -> RunResult<()> {
    let sizes = runners.map(|runner| runner.facts().vocabulary());
    if let Payload::Tokens(ids) = payload {
        let beyond = |size: usize| {
            ids.iter().find(|id| usize::try_from(**id).map_or(true, |id| id >= size)).copied()
        };
        if let Some((size, id)) = sizes[1].and_then(|size| Some((size, beyond(size)?))) {
            return Err(RunError::request(format!(
                "the models' vocabularies differ: token {id} is beyond the second one's {size}"
            )));
        }
        return Ok(());
    }
    let Payload::Text { prompt, .. } = payload else { return Ok(()) };
    let tokens = |runner: &Runner<'_>| -> RunResult<Option<Vec<i64>>> {
        let quiet = Quiet(runner.host());
        let tokenizer = Tokenizer::find(runner.reader(), &quiet)?;
        Ok(tokenizer.map(|tokenizer| tokenizer.encode(prompt, true)).transpose()?)
    };
    let (one, two) = (tokens(runners[0])?, tokens(runners[1])?);
    let (Some(one), Some(two)) = (one, two) else { return Ok(()) };
    if one == two {
        return Ok(());
    }
    let shown = |ids: &[i64]| {
        let shown: Vec<String> = ids.iter().take(8).map(ToString::to_string).collect();
        let more = if ids.len() > 8 { ", ..." } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    Err(RunError::with_remedy(
        format!(
            "the models' vocabularies differ: the text is {} to the first one, and {} to the \
             second",
            shown(&one),
            shown(&two)
        ),
        Remedy::TokenIds,
    ))
}
