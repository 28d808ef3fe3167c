//! Screens of models whose files are slow or huge: what is drawn does not wait for what is read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use apr_registry::{ByteSource, OpenOptions};
use ratatui::crossterm::event::KeyCode;

use super::{drawn, press, with_screen};
use crate::explore::Loaded;
use crate::screen::{self, Screen};

/// A file of one tensor whose values are zero. Reads of them wait until the gate is open.
struct Gated {
    header: Vec<u8>,
    len: u64,
    is_open: Arc<(Mutex<bool>, Condvar)>,
    /// Bytes that were read, the header included.
    read: Arc<AtomicU64>,
}

/// Opens the gate on drop, even if a test fails, so that the reading thread ends first.
struct Opens(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Opens {
    fn drop(&mut self) {
        let (is_open, opened) = &*self.0;
        *is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        opened.notify_all();
    }
}

impl Gated {
    fn new(elements: u64, is_open: bool) -> Self {
        let end = 4 * elements;
        let json = format!(
            r#"{{"weight":{{"dtype":"F32","shape":[{elements}],"data_offsets":[0,{end}]}}}}"#
        );
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.extend(json.into_bytes());
        let len = header.len() as u64 + end;
        let is_open = Arc::new((Mutex::new(is_open), Condvar::new()));
        Self { header, len, is_open, read: Arc::default() }
    }
}

impl ByteSource for Gated {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> apr_registry::Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        let header = self.header.len() as u64;
        if offset.saturating_add(buf.len() as u64) > header && offset >= header {
            let (is_open, opened) = &*self.is_open;
            let mut guard = is_open.lock().expect("no panic");
            while !*guard {
                guard = opened.wait(guard).expect("no panic");
            }
        }
        for (at, byte) in (offset..).zip(buf) {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            *byte = self.header.get(at).copied().unwrap_or_default();
        }
        Ok(())
    }
}

#[test]
fn thirty_frames_are_drawn_and_keys_are_heard_while_a_tensor_is_read() {
    let file = Gated::new(1 << 20, false);
    let is_open = Arc::clone(&file.is_open);
    let reader =
        apr_registry::open(file, "slow.safetensors", OpenOptions::default()).expect("a model");
    with_screen(&[&*reader], |explorer| {
        explorer.settle();
        let gate = Opens(is_open);
        explorer.key(KeyCode::Char('h').into());
        // Not one of them waits for the tensor, which is not read before they are drawn.
        for frame in 0..30 {
            explorer.tick();
            let _ = screen::drawn(explorer, (80, 24));
            assert!(matches!(explorer.histogram, Loaded::Waiting), "frame {frame}");
            explorer.key(KeyCode::Char('?').into());
            assert_eq!(explorer.shows_help, frame % 2 == 0);
        }
        drop(gate);
        explorer.settle();
        assert!(drawn(explorer, (80, 24)).contains("Mean: 0  Std: 0"));
    });
}

#[test]
fn the_first_screen_of_100_gb_reads_the_header_alone() {
    let file = Gated::new(25_000_000_000, true);
    let read = Arc::clone(&file.read);
    let len = file.len;
    let reader =
        apr_registry::open(file, "huge.safetensors", OpenOptions::default()).expect("a model");
    with_screen(&[&*reader], |explorer| {
        explorer.settle();
        let text = drawn(explorer, (80, 24));
        assert!(text.contains("[25000000000]") && text.contains("100.0 GB"), "{text}");
        // Neither does a look at some of its values read more than those.
        press(explorer, "v");
        let _ = drawn(explorer, (80, 24));
        let read = read.load(Ordering::Relaxed);
        assert!(read < 1 << 16, "{read} of {len} bytes were read");
    });
}
