use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use apr_core::{Error, IoCause, Result, Sink};

use crate::{Interrupt, io_error};

/// Maximum time for which a blocked reader delays a check of the interrupt flag.
const PATIENCE: Duration = Duration::from_millis(50);

/// Standard output, a pipe or a device: bytes are written in order and can't be changed later.
///
/// Opening a pipe waits for its reader, and so does writing to a full one; a signal does not end
/// that wait. So another thread does both, and ends with the process, while this one checks the
/// interrupt flag.
#[derive(Debug)]
pub struct StreamSink {
    pieces: Sender<Vec<u8>>,
    /// Returns each piece when it is written, after an empty one for the opening.
    written: Receiver<io::Result<Vec<u8>>>,
    /// Number of pieces, including the opening, that were not returned yet.
    waiting: usize,
    /// Bytes that are too few for a piece.
    begun: Vec<u8>,
    interrupt: Interrupt,
    name: PathBuf,
    position: u64,
}

impl StreamSink {
    /// Pieces that are handed over before the first of them is written.
    const AHEAD: usize = 2;

    /// Bytes that are handed over at least; handing over takes as long as copying some kilobytes.
    const LEAST_LEN: usize = 1 << 16;

    /// Writes to standard output.
    #[must_use]
    pub fn stdout(interrupt: &Interrupt) -> Self {
        Self::start("standard output".into(), interrupt, apr_platform::standard_output)
    }

    /// Returns `true` if a path exists and is not a regular file or folder, so that it can only be
    /// streamed to.
    #[must_use]
    pub fn is_for(path: &Path) -> bool {
        apr_platform::is_stream(path)
    }

    /// Opens a pipe or a device, once it has a reader.
    ///
    /// # Errors
    /// E007, also when the interrupt flag is set.
    pub fn open(path: &Path, interrupt: &Interrupt) -> Result<Self> {
        let open = {
            let path = path.to_path_buf();
            move || OpenOptions::new().write(true).open(path)
        };
        let mut sink = Self::start(path.into(), interrupt, open);
        sink.wait_for(0)?;
        Ok(sink)
    }

    fn start(
        name: PathBuf,
        interrupt: &Interrupt,
        open: impl FnOnce() -> io::Result<File> + Send + 'static,
    ) -> Self {
        let (pieces, to_write) = mpsc::channel();
        let (done, written) = mpsc::channel();
        thread::spawn(move || write_pieces(open, &to_write, &done));
        Self {
            pieces,
            written,
            waiting: 1,
            begun: Vec::new(),
            interrupt: interrupt.clone(),
            name,
            position: 0,
        }
    }

    /// Waits until everything is handed to the operating system.
    ///
    /// # Errors
    /// E007, also when the interrupt flag is set.
    pub fn flush(&mut self) -> Result<()> {
        self.hand_over()?;
        self.wait_for(0).map(drop)
    }

    fn hand_over(&mut self) -> Result<()> {
        let mut next = self.wait_for(Self::AHEAD - 1)?;
        next.clear();
        // Where the thread has ended, the next wait says why.
        let _ = self.pieces.send(std::mem::replace(&mut self.begun, next));
        self.waiting += 1;
        Ok(())
    }

    /// Returns the error for bytes that were not written. A reader that closes the pipe early has
    /// an incomplete model, so that is a failure, unlike for a report.
    fn failed(&self, error: &io::Error) -> Error {
        if error.kind() != io::ErrorKind::BrokenPipe {
            return io_error(error, &self.name);
        }
        let message = "the reader closed the pipe before the end of the model: it is incomplete";
        Error::io(IoCause::Other, message).in_file(self.name.display())
    }

    /// Waits until at most `waiting` pieces are unwritten. Returns the buffer of a written piece,
    /// if there is one.
    fn wait_for(&mut self, waiting: usize) -> Result<Vec<u8>> {
        let mut buffer = Vec::new();
        while self.waiting > waiting {
            self.interrupt.check()?;
            match self.written.recv_timeout(PATIENCE) {
                Ok(Ok(piece)) => {
                    buffer = piece;
                    self.waiting -= 1;
                }
                Ok(Err(error)) => return Err(self.failed(&error)),
                Err(RecvTimeoutError::Timeout) => {}
                // An error ended the thread, and was reported before.
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(
                        Error::io(IoCause::Other, "writing has ended").in_file(self.name.display())
                    );
                }
            }
        }

        Ok(buffer)
    }
}

fn write_pieces(
    open: impl FnOnce() -> io::Result<File>,
    to_write: &Receiver<Vec<u8>>,
    done: &Sender<io::Result<Vec<u8>>>,
) {
    let mut out = match open() {
        Ok(out) => out,
        // Nobody listens any more where this fails.
        Err(error) => return drop(done.send(Err(error))),
    };
    if done.send(Ok(Vec::new())).is_err() {
        return;
    }

    for piece in to_write {
        let written = out.write_all(&piece).map(|()| piece);
        let failed = written.is_err();
        if done.send(written).is_err() || failed {
            return;
        }
    }
}

impl Sink for StreamSink {
    fn next_file(&mut self, name: &str) -> Result<()> {
        let message = format!("'{name}' is a second file, and a stream holds one");
        Err(Error::io(IoCause::Other, message).in_file(self.name.display()))
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.begun.extend_from_slice(bytes);
        self.position += bytes.len() as u64;
        if self.begun.len() < Self::LEAST_LEN { Ok(()) } else { self.hand_over() }
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn can_patch(&self) -> bool {
        false
    }

    fn patch(&mut self, offset: u64, _bytes: &[u8]) -> Result<()> {
        Err(Error::io(IoCause::Other, "a stream can't seek back")
            .in_file(self.name.display())
            .at(offset))
    }
}
