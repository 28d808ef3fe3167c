//! Spectra of signals.

use super::call::{Call, Rule, axis};
use crate::Dim;

pub(super) const RULES: &[(&str, Rule)] = &[("DFT", dft), ("STFT", stft)];

/// Half of a spectrum is enough for real numbers.
fn half(size: &Dim) -> Dim {
    size.quotient(&Dim::fixed(2)).plus(&Dim::fixed(1))
}

fn dft(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let mut sizes = shape.to_vec();
    let given = dft_axis(call);
    let (onesided, inverse) = (call.is_set("onesided"), call.is_set("inverse"));
    match given {
        Some(given) => {
            let along = axis(given, sizes.len())?;
            sizes[along] = spectrum(call, &sizes[along], onesided, inverse);
        }
        // Along whichever dimension, a whole spectrum is as long as the signal.
        None if !onesided && !call.has(1) => {}
        None => sizes.fill(Dim::Unknown),
    }

    if let Some(parts) = sizes.last_mut() {
        // Half a spectrum comes from a real signal, and goes back to one.
        *parts = Dim::fixed(if onesided && inverse { 1 } else { 2 });
    }

    call.set_shape(0, sizes);
    Ok(())
}

/// Returns the axis, an attribute before version 20 and an input since; `None` if it is not known.
fn dft_axis(call: &Call<'_>) -> Option<i64> {
    if call.operator.setting("axis").is_some() {
        return call.int("axis");
    }
    // Since version 20 the default is the last dimension before the complex parts.
    if call.has(2) { call.scalar(2)?.as_integer() } else { Some(-2) }
}

/// The size along the axis.
fn spectrum(call: &Call<'_>, signal: &Dim, onesided: bool, inverse: bool) -> Dim {
    let given = call.has(1).then(|| call.scalar(1).unwrap_or(Dim::Unknown));
    match (onesided, inverse) {
        (true, false) => half(given.as_ref().unwrap_or(signal)),
        (true, true) => given.unwrap_or_else(|| signal.minus(&Dim::fixed(1)).times(&Dim::fixed(2))),
        (false, _) => given.unwrap_or_else(|| signal.clone()),
    }
}

fn stft(call: &mut Call<'_>) -> Result<(), String> {
    let Some(signal) = call.shape(0) else { return Ok(()) };
    let [batch, samples, ..] = signal else {
        return Err("the signal has too few dimensions".to_owned());
    };
    let window = match call.shape(2) {
        Some([size]) => Some(size.clone()),
        _ => None,
    };
    let frame = if call.has(3) { call.scalar(3) } else { window };
    let (Some(frame), Some(step)) = (frame, call.scalar(1)) else {
        call.set_shape(0, vec![batch.clone(), Dim::Unknown, Dim::Unknown, Dim::fixed(2)]);
        return Ok(());
    };
    let frames = samples.minus(&frame).quotient(&step).plus(&Dim::fixed(1));
    let bins = if call.is_set("onesided") { half(&frame) } else { frame };
    call.set_shape(0, vec![batch.clone(), frames, bins, Dim::fixed(2)]);
    Ok(())
}
