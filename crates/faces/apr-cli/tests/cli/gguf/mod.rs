//! GGUF in and out. Points 61, 78, 81, 85 and 95 of `docs/qa.md`.

mod architecture;
mod commands;
mod export;
mod four_bits;
mod integers;
mod mmproj;
mod parsed;
mod round_trip;

use std::fs;

use apr_testkit::locate;

use crate::support::Sandbox;

/// A sandbox with the trained fixture in the folder `llama`, without what trained it.
fn trained() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        let bytes =
            fs::read(locate::fixture("tiny-llama").join(name)).expect("the fixture is there");
        sandbox.write(&format!("llama/{name}"), bytes);
    }
    sandbox
}
