//! What is tried again, after how long, and how often.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apr_core::{Error, IoCause, Result};
use ureq::http::{HeaderMap, Uri};

use crate::headers::text;
use crate::location::shown_url;
use crate::settings::Settings;

/// Failures in a row before a request is given up.
const MOST: u32 = 5;

/// Like [`MOST`], if the server can't be reached: that seldom passes in a moment.
const MOST_UNREACHABLE: u32 = 2;

/// Number of windows in which a server is too slow before a request is given up. Received bytes do
/// not reset the count.
const MOST_SLOW: u32 = 2;

/// The first wait; each is twice the one before.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// Longest wait between two tries, unless the server requests a wait.
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// Longest wait that a server may request.
const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// Maximum time between two checks of the interrupt flag.
const GLANCE: Duration = Duration::from_millis(50);

/// Reason why a request has no usable response.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// A permanent error; another try would not help.
    Final(Error),
    /// An error that may be temporary.
    Passing(Error),
    /// The server sends bytes, but too slowly.
    Slow(Error),
    /// The server can't be reached.
    Unreachable(Error),
    /// The server states when to try again.
    Later(Error, Duration),
}

impl Trouble {
    /// Converts a status that may be temporary.
    pub(crate) fn of_status(status: u16, headers: &HeaderMap, uri: &Uri) -> Self {
        let what = match status {
            429 => "too many requests (429)".to_owned(),
            408 | 425 => format!("the server is temporarily unavailable ({status})"),
            _ => format!("server error ({status})"),
        };
        let asked = text(headers, "retry-after")
            .and_then(|text| parse_retry_after(text, SystemTime::now()));
        let trouble =
            |what: String| Error::io(IoCause::Network, what).in_file(shown_url(&uri.to_string()));
        match asked {
            Some(wait) if wait > LONGEST_ASKED => {
                Self::Final(trouble(format!("{what}; retry in {} s", wait.as_secs())))
            }
            Some(wait) => Self::Later(trouble(what), wait),
            None => Self::Passing(trouble(what)),
        }
    }

    /// Changes the error and keeps the kind.
    pub(crate) fn map(self, change: impl FnOnce(Error) -> Error) -> Self {
        match self {
            Self::Final(error) => Self::Final(change(error)),
            Self::Passing(error) => Self::Passing(change(error)),
            Self::Slow(error) => Self::Slow(change(error)),
            Self::Unreachable(error) => Self::Unreachable(change(error)),
            Self::Later(error, wait) => Self::Later(change(error), wait),
        }
    }

    /// Makes every trouble final after which the server may have done what it was asked.
    pub(crate) fn without_repetition(self) -> Self {
        match self {
            Self::Passing(error) | Self::Slow(error) => Self::Final(error),
            other => other,
        }
    }

    fn error(self) -> Error {
        match self {
            Self::Final(error)
            | Self::Passing(error)
            | Self::Slow(error)
            | Self::Unreachable(error)
            | Self::Later(error, _) => error,
        }
    }
}

/// Returns the wait that a header `Retry-After` states, in seconds or as a date.
fn parse_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp().as_second();
    let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(Duration::from_secs(u64::try_from(date).ok()?.saturating_sub(now)))
}

/// Counts failures in a row, and waits between tries.
pub(crate) struct Patience<'a> {
    failures: u32,
    slow: u32,
    /// Time of the first failure in the row.
    first: Option<Instant>,
    /// Number of bytes received since then.
    came: u64,
    interrupt: &'a AtomicBool,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(interrupt: &'a AtomicBool) -> Self {
        Self { failures: 0, slow: 0, first: None, came: 0, interrupt }
    }

    /// Records received bytes, and resets the failures once the bytes since the first failure reach
    /// the minimum rate.
    ///
    /// Otherwise a server that sends a few bytes and falls silent, again and again, would never be
    /// given up.
    pub(crate) fn renew(&mut self, bytes: usize) {
        let Some(first) = self.first else { return };
        self.came += bytes as u64;
        if self.came as f64 >= Settings::LEAST_RATE as f64 * first.elapsed().as_secs_f64() {
            (self.failures, self.first, self.came) = (0, None, 0);
        }
    }

    /// Waits until it makes sense to try again.
    ///
    /// # Errors
    /// E007 where it makes none, and when the user interrupts.
    pub(crate) fn wait(&mut self, trouble: Trouble) -> Result<()> {
        self.failures += 1;
        self.first.get_or_insert_with(Instant::now);
        self.slow += u32::from(matches!(trouble, Trouble::Slow(_)));
        let wait = match &trouble {
            Trouble::Slow(_) if self.slow < MOST_SLOW => self.backoff(),
            Trouble::Passing(_) if self.failures < MOST => self.backoff(),
            Trouble::Unreachable(_) if self.failures < MOST_UNREACHABLE => self.backoff(),
            Trouble::Later(_, wait) if self.failures < MOST => *wait,
            Trouble::Final(_) => return Err(trouble.error()),
            Trouble::Slow(_) => return Err(given_up(self.slow, trouble.error())),
            _ => return Err(given_up(self.failures, trouble.error())),
        };
        sleep(wait, self.interrupt)
    }

    /// Returns the wait before the next try. It doubles each time and varies, so that clients do
    /// not all return at the same moment.
    fn backoff(&self) -> Duration {
        let wait = FIRST_WAIT.saturating_mul(1 << (self.failures - 1).min(16)).min(LONGEST_WAIT);
        let nanos =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
        wait.mul_f64(0.75 + f64::from(nanos % 1000) / 2000.0)
    }
}

fn given_up(tries: u32, error: Error) -> Error {
    if tries < 2 {
        return error;
    }
    let named = Error::io(
        error.cause().unwrap_or(IoCause::Other),
        format!("{} (tried {tries} times)", error.message()),
    );
    match error.file() {
        Some(file) => named.in_file(file),
        None => named,
    }
}

/// Sleeps, unless the user interrupts.
pub(crate) fn sleep(wait: Duration, interrupt: &AtomicBool) -> Result<()> {
    let end = Instant::now() + wait;
    loop {
        check_interrupt(interrupt)?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(GLANCE));
    }
}

/// # Errors
/// E007 when the user interrupts.
pub(crate) fn check_interrupt(interrupt: &AtomicBool) -> Result<()> {
    if interrupt.load(Ordering::Relaxed) {
        Err(Error::io(IoCause::Interrupted, "interrupted"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(parse_retry_after("3", now), Some(Duration::from_secs(3)));
        assert_eq!(
            parse_retry_after("Sun, 06 Nov 1994 08:49:47 GMT", now),
            Some(Duration::from_secs(10))
        );
        assert_eq!(parse_retry_after("Sun, 06 Nov 1994 08:49:27 GMT", now), Some(Duration::ZERO));
        assert_eq!(parse_retry_after("soon", now), None);
    }

    #[test]
    fn an_interrupt_ends_a_wait() {
        let error =
            sleep(Duration::from_secs(600), &AtomicBool::new(true)).expect_err("interrupted");
        assert_eq!(error.cause(), Some(IoCause::Interrupted));
    }
}
