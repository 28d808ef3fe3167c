//! Object stores that speak S3: addresses that are signed for an hour, and lists of objects.
//!
//! A request is signed in its query (AWS Signature Version 4), so that ranges of an object are
//! asked for as those of any other file are.

use std::time::{SystemTime, UNIX_EPOCH};

use apr_core::{Error, IoCause, Result};
use sha2::{Digest, Sha256};

use crate::answer::Answer;
use crate::aws::{Asker, Profile};
use crate::client::{Ask, Client};
use crate::digest::hex;
use crate::headers::LONGEST_FILE;
use crate::hub::RemoteFile;
use crate::location::{S3Location, encode_path, encode_segment, percent_decoded, stays_inside};
use crate::settings::variable;

/// Seconds that an address is good for.
const GOOD_FOR: u32 = 3600;

/// The longest page of a list.
const LONGEST_PAGE: u64 = 16 << 20;

/// Maximum accepted number of objects in a list.
const MOST_OBJECTS: usize = 100_000;

/// Maximum number of consecutive pages of a list without an object. Stores send such pages if
/// objects were deleted.
const MOST_EMPTY_PAGES: usize = 100;

/// A store, and the identity that it is accessed with.
#[derive(Clone)]
pub(crate) struct Store {
    /// Scheme and host, without a slash at its end.
    endpoint: String,
    region: String,
    /// The bucket is a part of the path, and not of the host.
    path_style: bool,
    asker: Asker,
}

impl Store {
    /// The store that the environment and the profile of AWS's programs name.
    ///
    /// # Errors
    /// E001 for a profile that does not exist, and for one half of a key.
    pub(crate) fn from_env() -> Result<Self> {
        let profile = Profile::from_env()?;
        let region = variable("AWS_REGION")
            .or_else(|| variable("AWS_DEFAULT_REGION"))
            .or_else(|| profile.setting("region"));
        let endpoint = variable("AWS_ENDPOINT_URL_S3").or_else(|| variable("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.or_else(|| profile.setting("endpoint_url"));
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        Ok(Self {
            // Stores of others seldom have a host for each bucket.
            path_style: endpoint.is_some(),
            endpoint: endpoint.map_or_else(
                || format!("https://s3.{region}.amazonaws.com"),
                |endpoint| endpoint.trim_end_matches('/').to_owned(),
            ),
            asker: profile.asker()?,
            region,
        })
    }

    /// The address of an object, good for an hour.
    pub(crate) fn address(&self, bucket: &str, key: &str) -> String {
        self.signed(bucket, key, &[], SystemTime::now())
    }

    /// Returns scheme and host, and the path, of a bucket or an object.
    fn place(&self, bucket: &str, key: &str) -> (String, String) {
        let (scheme, host) = self.endpoint.split_once("://").unwrap_or(("https", &self.endpoint));
        // A name with dots is not covered by the store's certificate.
        if self.path_style || bucket.contains('.') {
            return (format!("{scheme}://{host}"), format!("/{bucket}/{}", encode_path(key)));
        }
        (format!("{scheme}://{bucket}.{host}"), format!("/{}", encode_path(key)))
    }

    fn signed(&self, bucket: &str, key: &str, query: &[(&str, &str)], now: SystemTime) -> String {
        let (base, path) = self.place(bucket, key);
        let mut pairs: Vec<(String, String)> =
            query.iter().map(|(key, value)| (encode_segment(key), encode_segment(value))).collect();
        let Asker::Key(credentials) = &self.asker else {
            return format!(
                "{base}{path}{}",
                joined(&mut pairs).map_or_else(String::new, |query| format!("?{query}"))
            );
        };

        let time = stamp(now);
        let scope = format!("{}/{}/s3/aws4_request", &time[..8], self.region);
        let mut add = |key: &str, value: &str| pairs.push((key.to_owned(), encode_segment(value)));
        add("X-Amz-Algorithm", "AWS4-HMAC-SHA256");
        add("X-Amz-Credential", &format!("{}/{scope}", credentials.key));
        add("X-Amz-Date", &time);
        add("X-Amz-Expires", &GOOD_FOR.to_string());
        add("X-Amz-SignedHeaders", "host");
        if let Some(session) = &credentials.session {
            add("X-Amz-Security-Token", session);
        }

        // AWS signs the query in the order of its names.
        let query = joined(&mut pairs).unwrap_or_default();
        let host = base.split_once("://").map_or("", |(_, host)| host);
        let request = format!("GET\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(request)));
        let signature = credentials.sign(&time[..8], &self.region, &text);
        format!("{base}{path}?{query}&X-Amz-Signature={signature}")
    }

    /// The objects below a prefix, by their keys.
    ///
    /// # Errors
    /// E007 where the store refuses, E001 for an answer that is not understood.
    pub(crate) fn list(&self, client: &Client, location: &S3Location) -> Result<Vec<RemoteFile>> {
        let mut files = Vec::new();
        let (mut next, mut empty_pages): (Option<String>, _) = (None, 0);
        loop {
            let mut query = vec![
                ("encoding-type", "url"),
                ("list-type", "2"),
                ("prefix", location.key.as_str()),
            ];
            query.extend(next.as_deref().map(|next| ("continuation-token", next)));
            let url = self.signed(&location.bucket, "", &query, SystemTime::now());
            let ask = Ask { url: &url, ..Ask::default() };
            let (page, _) =
                client.read(&ask, LONGEST_PAGE, |answer| self.explain(&answer, location))?;
            let page = String::from_utf8_lossy(&page).into_owned();
            if !page.contains("<ListBucketResult") {
                return Err(Error::format("invalid response to a list request"));
            }

            let before = files.len();
            files.extend(objects(&page));
            empty_pages = if files.len() == before { empty_pages + 1 } else { 0 };
            if empty_pages > MOST_EMPTY_PAGES {
                return Err(Error::format("the store sends page after page without an object"));
            }
            if files.len() > MOST_OBJECTS {
                return Err(Error::format(
                    "there are too many objects below this key; name a longer one",
                ));
            }

            let is_cut = elements(&page, "IsTruncated").next() == Some("true");
            next =
                elements(&page, "NextContinuationToken").next().map(unescaped).filter(|_| is_cut);
            if next.is_none() {
                return Ok(files);
            }
        }
    }

    /// Returns the error for a store's refusal.
    pub(crate) fn explain(&self, answer: &Answer, location: &S3Location) -> Error {
        let who = self.asker.to_string();
        let (bucket, key) = (&location.bucket, &location.key);
        match (answer.status, answer.header("x-amz-bucket-region")) {
            (300..=399, Some(region)) => {
                let message = format!(
                    "the bucket '{bucket}' is in {region}, not in {}; set AWS_REGION",
                    self.region
                );
                Error::io(IoCause::Other, message)
            }
            (404, _) if key.is_empty() => {
                Error::io(IoCause::NotFound, format!("no bucket '{bucket}'"))
            }
            (404, _) => Error::io(
                IoCause::NotFound,
                format!("no object '{key}' in the bucket '{bucket}', or no such bucket"),
            ),
            (400 | 401 | 403, _) => {
                Error::io(IoCause::Other, format!("access denied ({}); {who}", answer.status))
            }
            (status, _) => {
                Error::io(IoCause::Other, format!("the store responds with status {status}"))
            }
        }
    }
}

/// Formats a time as `20130524T000000Z`.
fn stamp(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let time = jiff::Timestamp::from_second(i64::try_from(seconds).unwrap_or_default())
        .unwrap_or_default();
    time.strftime("%Y%m%dT%H%M%SZ").to_string()
}

fn joined(pairs: &mut [(String, String)]) -> Option<String> {
    pairs.sort();
    let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
    (!pairs.is_empty()).then(|| pairs.join("&"))
}

/// Returns the text between the tags of a name, for each occurrence.
fn elements<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once(&start)?;
        let (inner, after) = after.split_once(&end)?;
        rest = after;
        Some(inner)
    })
}

/// The objects of a page of a list.
pub(crate) fn objects(page: &str) -> impl Iterator<Item = RemoteFile> {
    elements(page, "Contents").filter_map(object)
}

fn object(xml: &str) -> Option<RemoteFile> {
    // The list is asked for with the encoding of forms, whose space is a plus.
    let name = unescaped(elements(xml, "Key").next()?).replace('+', "%20");
    let name = percent_decoded(&name)?;
    let len = elements(xml, "Size").next()?.parse().ok().filter(|&len| len <= LONGEST_FILE)?;
    let etag = elements(xml, "ETag").next().map(unescaped);
    // What ends with a slash stands for a folder, and has no bytes.
    (stays_inside(&name) && !name.ends_with('/')).then_some(RemoteFile {
        name,
        len: Some(len),
        etag,
    })
}

fn unescaped(text: &str) -> String {
    let pairs = [
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&apos;", "'"),
        // Last, so that what it makes is not taken for another escape.
        ("&amp;", "&"),
    ];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::aws::Credentials;

    fn key() -> Credentials {
        Credentials {
            key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session: None,
            origin: "an example".into(),
        }
    }

    fn example() -> Store {
        Store {
            endpoint: "https://s3.amazonaws.com".into(),
            region: "us-east-1".into(),
            path_style: false,
            asker: Asker::Key(key()),
        }
    }

    #[test]
    fn a_key_is_derived_and_used_as_aws_documents_it() {
        // The example of a presigned request in "Authenticating Requests: Using Query Parameters",
        // whose address is good for a day: its string to sign, and its signature.
        let request = "GET\n/test.txt\n\
            X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-\
            east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-Signed\
            Headers=host\nhost:examplebucket.s3.amazonaws.com\n\nhost\nUNSIGNED-PAYLOAD";
        let digest = hex(&Sha256::digest(request));
        assert_eq!(digest, "3bfa292879f6447bbcda7001decf97f4a54dc650c8942174ae0a9121cf58ad04");
        let text = format!(
            "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n{digest}"
        );
        let signature = key().sign("20130524", "us-east-1", &text);
        assert_eq!(signature, "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
    }

    #[test]
    fn an_address_has_what_it_is_signed_with() {
        let at = UNIX_EPOCH + Duration::from_secs(1_369_353_600);
        let url = example().signed("examplebucket", "test.txt", &[], at);
        let start = "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA2\
            56&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-A\
            mz-Date=20130524T000000Z&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature=";
        assert!(url.starts_with(start), "{url}");
        let anonymous = Store { asker: Asker::Anyone(None), ..example() };
        assert_eq!(anonymous.signed("a.b", "c d", &[], at), "https://s3.amazonaws.com/a.b/c%20d");
    }

    #[test]
    fn objects_are_read_and_names_that_lead_out_are_rejected() {
        let xml = "<ListBucketResult><Contents><Key>a%20b/model.gguf</Key><ETag>&quot;x&quot;</ETag\
            ><Size>7</Size></Contents><Contents><Key>../x</Key><Size>1</Size></Contents><Contents><\
            Key>y</Key></Contents></ListBucketResult>";
        let found: Vec<RemoteFile> = objects(xml).collect();
        let expected =
            RemoteFile { name: "a b/model.gguf".into(), len: Some(7), etag: Some("\"x\"".into()) };
        assert_eq!(found, [expected]);
    }
}
