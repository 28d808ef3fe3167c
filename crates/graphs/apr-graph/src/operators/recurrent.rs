//! Networks that read a sequence step by step.

use super::call::{Call, Rule};
use crate::Dim;

pub(super) const RULES: &[(&str, Rule)] =
    &[("GRU", recurrent), ("LSTM", recurrent), ("RNN", recurrent)];

fn recurrent(call: &mut Call<'_>) -> Result<(), String> {
    call.expect_rank(0, 3)?;
    let directions =
        Dim::fixed(if call.text("direction") == Some("bidirectional") { 2 } else { 1 });
    let hidden = match call.int("hidden_size") {
        Some(size) => Dim::integer(size),
        None => call.shape(2).and_then(<[Dim]>::last).cloned().unwrap_or(Dim::Unknown),
    };
    let first =
        |position: usize| call.shape(0).map_or(Dim::Unknown, |shape| shape[position].clone());

    // `layout` 1 puts the batch first.
    let (steps, batch) =
        if call.is_set("layout") { (first(1), first(0)) } else { (first(0), first(1)) };
    let (all, last) = if call.is_set("layout") {
        (
            vec![batch.clone(), steps, directions.clone(), hidden.clone()],
            vec![batch, directions, hidden],
        )
    } else {
        (
            vec![steps, directions.clone(), batch.clone(), hidden.clone()],
            vec![directions, batch, hidden],
        )
    };

    call.set_shape(0, all);
    call.set_shape(1, last.clone());
    call.set_shape(2, last);
    Ok(())
}
