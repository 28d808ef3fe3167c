//! The progress of a pass, reported to JavaScript.

use std::cell::Cell;

use apr_core::{Phase, Progress};
use wasm_bindgen::prelude::wasm_bindgen;

#[wasm_bindgen(typescript_custom_section)]
const ON_PROGRESS: &str = r#"
/** Receives progress updates from a pass: its phase, bytes done, and bytes in all. */
export type OnProgress = (phase: string, done: number, total: number) => void;
"#;

#[wasm_bindgen]
extern "C" {
    /// The listener.
    #[wasm_bindgen(typescript_type = "OnProgress | undefined")]
    pub type OnProgress;
}

/// Progress that is reported to a listener at most a hundred times per phase.
pub(crate) struct Told {
    listener: Option<js_sys::Function>,
    phase: Cell<Option<Phase>>,
    total: Cell<u64>,
    done: Cell<u64>,
    told: Cell<u64>,
}

impl Told {
    pub(crate) fn new(listener: OnProgress) -> Self {
        use wasm_bindgen::JsCast;
        let listener: wasm_bindgen::JsValue = listener.into();
        Self {
            listener: listener.dyn_into().ok(),
            phase: Cell::new(None),
            total: Cell::new(0),
            done: Cell::new(0),
            told: Cell::new(0),
        }
    }

    fn tell(&self) {
        let (Some(listener), Some(phase)) = (&self.listener, self.phase.get()) else { return };
        #[allow(clippy::cast_precision_loss, reason = "a bar shows no 53 bits")]
        let [done, total] = [&self.done, &self.total].map(|count| count.get() as f64);
        // A listener that throws does not stop the pass.
        let _ = listener.call3(
            &wasm_bindgen::JsValue::NULL,
            &phase.to_string().into(),
            &done.into(),
            &total.into(),
        );
    }
}

impl Progress for Told {
    fn begin(&self, phase: Phase, total: u64) {
        self.phase.set(Some(phase));
        self.total.set(total);
        self.done.set(0);
        self.told.set(0);
        self.tell();
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.get().saturating_add(bytes);
        self.done.set(done);
        let is_step = (done - self.told.get()).saturating_mul(100) >= self.total.get();
        if is_step || done == self.total.get() {
            self.told.set(done);
            self.tell();
        }
    }
}
