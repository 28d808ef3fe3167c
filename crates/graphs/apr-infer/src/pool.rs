//! Memory of values that are gone, for values to come.
//!
//! Large pieces of memory come from the operating system page by page, each set to zero: that takes
//! as long as what most operators do with them. So each thread keeps some of those that were let
//! go.

use std::any::Any;
use std::cell::RefCell;

/// Elements below which memory is cheap.
const SMALLEST: usize = 1 << 14;
/// Maximum number of bytes that a thread keeps.
const MOST: usize = 56 << 20;

#[derive(Default)]
struct Pool {
    pieces: Vec<Vec<f32>>,
    bytes: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = RefCell::default();
}

/// Returns an empty vector with a capacity of `len` elements.
pub(crate) fn with_capacity<T: 'static>(len: usize) -> Vec<T> {
    let mut found = Vec::new();
    // Only memory of `f32` is kept.
    if len >= SMALLEST
        && let Some(floats) = (&mut found as &mut dyn Any).downcast_mut::<Vec<f32>>()
        && let Some(mut piece) = take(len)
    {
        piece.clear();
        *floats = piece;
    }
    found.reserve_exact(len);
    found
}

/// Returns `len` zeros.
pub(crate) fn zeros(len: usize) -> Vec<f32> {
    match take(len) {
        Some(mut piece) => {
            piece.clear();
            piece.resize(len, 0.0);
            piece
        }
        None => vec![0.0; len],
    }
}

/// Returns `len` numbers of any value. The caller must overwrite all of them.
pub(crate) fn any(len: usize) -> Vec<f32> {
    match take(len) {
        Some(mut piece) => {
            piece.resize(len, 0.0);
            piece
        }
        None => vec![0.0; len],
    }
}

/// Takes a piece that is large enough, but not much larger. It still has its old contents.
fn take(len: usize) -> Option<Vec<f32>> {
    if len < SMALLEST {
        return None;
    }
    let of = |pool: &RefCell<Pool>| {
        let mut pool = pool.try_borrow_mut().ok()?;
        let at =
            pool.pieces.iter().position(|piece| (len..=2 * len).contains(&piece.capacity()))?;
        let piece = pool.pieces.swap_remove(at);
        pool.bytes -= size_of::<f32>() * piece.capacity();
        Some(piece)
    };
    POOL.try_with(of).ok().flatten()
}

/// Keeps the memory of elements that are no longer needed.
pub(crate) fn give(piece: Vec<f32>) {
    if piece.capacity() < SMALLEST {
        return;
    }

    // Without a pool, at the end of a thread, the memory goes back at once.
    let _ = POOL.try_with(|pool| {
        let Ok(mut pool) = pool.try_borrow_mut() else { return };
        let bytes = size_of::<f32>() * piece.capacity();
        while pool.bytes + bytes > MOST && !pool.pieces.is_empty() {
            pool.bytes -= size_of::<f32>() * pool.pieces.remove(0).capacity();
        }
        if bytes <= MOST {
            pool.bytes += bytes;
            pool.pieces.push(piece);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_empty() {
        let mut piece = vec![1.0_f32; 2 * SMALLEST];
        let at = piece.as_ptr();
        piece[0] = 7.0;
        give(piece);
        assert!(with_capacity::<f64>(2 * SMALLEST).is_empty());
        let again = zeros(2 * SMALLEST - 1);
        assert_eq!(again.as_ptr(), at);
        assert!(again.iter().all(|value| *value == 0.0));
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        (0..5).for_each(|_| give(Vec::with_capacity(MOST / 8)));
        POOL.with(|pool| assert!(pool.borrow().bytes <= MOST));
    }
}
