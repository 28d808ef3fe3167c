//! What is estimated of a run, beside what the run takes.

use apr_infer::{Alone, LanguageModel, Memory, Unwatched};
use apr_run::{
    CacheType, MemoryEstimate, MemoryOptions, NoHost, RunOptions, RunResult, estimate_memory,
};
use apr_testkit::FolderInMemory;

use crate::batches::{families, made_up};
use crate::support::{folder, with_model, with_source};

const CACHE_TYPES: [CacheType; 3] = [CacheType::F32, CacheType::F16, CacheType::Q8_0];

fn estimate(folder: &FolderInMemory, kind: CacheType, tokens: usize) -> RunResult<MemoryEstimate> {
    let mut options = MemoryOptions::default();
    (options.context, options.cache_type) = (Some(tokens), Some(kind));
    with_source(folder, |source, facts| {
        estimate_memory(source, facts, &RunOptions::default(), &options)
    })
}

/// Returns the bytes of a cache for `tokens` tokens, as estimated and as allocated, or `None` if
/// both reject the cache type.
fn cache_bytes(folder: &FolderInMemory, kind: CacheType, tokens: usize) -> Option<(u64, u64)> {
    let estimated = estimate(folder, kind, tokens);
    with_model(folder, &NoHost, |runner| {
        let part = runner.prepare().expect("a part");
        let language = LanguageModel::new(part.session()).expect("it continues texts");
        let Ok(language) = language.with_cache_type(kind) else {
            estimated.expect_err("the estimate refuses it as well");
            return None;
        };
        let ids: Vec<i64> = (0..tokens).map(|at| (at % 50) as i64).collect();
        let mut memory = Memory::default();
        language.next(&mut memory, &ids, &Alone, &mut Unwatched).expect("logits");
        Some((estimated.expect("an estimate").cache_bytes, memory.bytes()))
    })
}

#[test]
fn the_cache_of_every_family_takes_what_is_estimated() {
    let (mut compared, mut refused) = (0, 0);
    for (name, family) in families() {
        let folder = made_up(&family);
        for kind in CACHE_TYPES {
            match cache_bytes(&folder, kind, 24) {
                Some((estimated, allocated)) => {
                    assert_eq!(estimated, allocated, "{name} with {}", kind.name());
                    compared += 1;
                }
                None => refused += 1,
            }
        }
    }
    assert!(compared > 60 && refused > 0, "{compared} compared, {refused} refused");
}

#[test]
fn a_long_prompt_leaves_some_room_and_no_more() {
    let folder = folder("tiny-llama", &[]);
    for kind in CACHE_TYPES {
        let (estimated, allocated) = cache_bytes(&folder, kind, 700).expect("a cache");
        let most = estimated + estimated / 8;
        assert!((estimated..=most).contains(&allocated), "{estimated} {allocated}");
    }
}

#[test]
fn long_prompts_take_activations_of_their_pieces() {
    let folder = folder("tiny-llama", &[]);
    let of = |tokens| estimate(&folder, CacheType::F32, tokens).expect("an estimate");
    let (short, long) = (of(256), of(4096));
    assert_eq!(short.parts[0].tokens_at_once, Some(256));
    assert!(long.parts[0].tokens_at_once <= Some(512), "{:?}", long.parts);
    assert_eq!(long.cache_bytes, 16 * short.cache_bytes);
    assert!(long.activation_bytes > short.activation_bytes);
    // All at once, the scores of four heads would take more.
    assert!(long.activation_bytes < 4096 * 4096 * 4 * 4, "{:?}", long.parts);
}
