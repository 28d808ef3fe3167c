//! What a server answers: headers, a body that is read as it comes, and whether it comes fast
//! enough.

use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::time::{Duration, Instant};

use apr_core::{Error, IoCause};
use ureq::Body;
use ureq::http::HeaderMap;

use crate::client::Client;
use crate::headers::{parse_content_range, text};
use crate::location::shown_url;
use crate::retry::{Trouble, check_interrupt};
use crate::settings::Settings;

/// A server's response, after redirects.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Headers of the response before the first redirect to another server: the hub's facts about a
    /// file that is stored elsewhere.
    pub(crate) first: HeaderMap,
    pub(crate) body: Body,
    /// The address that answered.
    pub(crate) url: String,
    pub(crate) pace: Pace,
}

impl Answer {
    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        text(&self.headers, name)
    }

    /// The range of a partial answer, and the length of the whole.
    pub(crate) fn content_range(&self) -> Option<(Range<u64>, u64)> {
        parse_content_range(self.header("content-range")?)
    }

    /// Returns the state of the file, for comparison with a later one.
    ///
    /// The state is its tag or, if the tag is weak and so does not identify the bytes, the time of
    /// its last change.
    pub(crate) fn etag(&self) -> Option<&str> {
        let strong = self.header("etag").filter(|etag| !etag.starts_with("W/"));
        strong.or_else(|| self.header("last-modified"))
    }

    /// Reads some bytes of the body; none are its end.
    ///
    /// # Errors
    /// E007 where the connection is cut, or the server is silent or too slow, and when the user
    /// interrupts.
    pub(crate) fn read(&mut self, client: &Client, buf: &mut [u8]) -> Result<usize, Trouble> {
        loop {
            check_interrupt(&client.settings.interrupt).map_err(Trouble::Final)?;
            let start = Instant::now();
            match self.body.as_reader().read(buf) {
                Ok(read) => {
                    client.received(read);
                    self.pace.check(client, start.elapsed(), &self.url)?;
                    return Ok(read);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Passing(client.cut_by(&error, &self.url))),
            }
        }
    }

    /// Reads up to the end of the body, which is near. The connection is reused only after the end
    /// was read.
    pub(crate) fn end(&mut self) {
        let _ = self.body.as_reader().read(&mut [0]);
    }
}

/// Measures whether a response arrives fast enough.
///
/// Only the time spent reading a response counts. The bytes are the bytes of all connections, which
/// may share a slow line.
pub(crate) struct Pace {
    waited: Duration,
    /// Number of bytes received before the window began.
    since: u64,
}

impl Pace {
    pub(crate) fn new(client: &Client) -> Self {
        Self { waited: Duration::ZERO, since: client.moved().1 }
    }

    fn check(&mut self, client: &Client, waited: Duration, url: &str) -> Result<(), Trouble> {
        self.waited += waited;
        if self.waited < client.settings.timeout {
            return Ok(());
        }

        let came = client.moved().1;
        let (bytes, window) = (came - self.since, self.waited);
        (self.since, self.waited) = (came, Duration::ZERO);
        if bytes as f64 >= Settings::LEAST_RATE as f64 * window.as_secs_f64() {
            return Ok(());
        }
        let message = format!(
            "the server is too slow: {bytes} bytes in {} s, minimum {} bytes/s; raise \
             `timeout` SECONDS",
            window.as_secs(),
            Settings::LEAST_RATE,
        );
        Err(Trouble::Slow(Error::io(IoCause::Network, message).in_file(shown_url(url))))
    }
}

/// Returns the error for a connection that ended early.
pub(crate) fn cut(url: &str) -> Error {
    Error::io(IoCause::Network, "the connection was cut before the answer was complete")
        .in_file(shown_url(url))
}
