//! How encrypted connections are made: rustls, a provider without C, and the roots that a variable
//! names, the system trusts, or Mozilla publishes.

use std::path::PathBuf;
use std::sync::Arc;

use apr_core::{Error, IoCause, Result};
use rustls::crypto::CryptoProvider;
use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use crate::settings::variable;

/// Variables of Python's `requests`, curl and AWS's programs that name certificates to trust, as a
/// file or a folder. They count if `SSL_CERT_FILE` and `SSL_CERT_DIR` are not set.
const BUNDLES: [&str; 3] = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"];

/// The configuration; without a provider for this processor, `https` is an error of the connection.
///
/// # Errors
/// E007 where a variable names certificates and there are none.
pub(crate) fn config() -> Result<TlsConfig> {
    let builder = TlsConfig::builder().provider(TlsProvider::Rustls).root_certs(roots()?);
    Ok(match provider() {
        Some(provider) => builder.unversioned_rustls_crypto_provider(Arc::new(provider)).build(),
        None => builder.build(),
    })
}

/// Returns the root certificates that a variable names or the system trusts, or Mozilla's if the
/// system has none.
fn roots() -> Result<RootCerts> {
    let named = |name: &str| variable(name).map(|path| format!("{name}={path}"));
    let standard: Vec<String> =
        ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(named).collect();
    let other = || BUNDLES.iter().find_map(|name| Some((*name, variable(name)?)));

    let (found, origin) = if !standard.is_empty() {
        (load_native_certs(), Some(standard.join(" and ")))
    } else if let Some((name, path)) = other() {
        let path = PathBuf::from(path);
        let (file, folder) =
            if path.is_dir() { (None, Some(&*path)) } else { (Some(&*path), None) };
        let origin = format!("{name}={}", path.display());
        (load_certs_from_paths(file, folder), Some(origin))
    } else {
        (load_native_certs(), None)
    };

    if found.certs.is_empty() {
        // Whoever names certificates wants no others to be trusted in their place.
        return origin
            .map_or(Ok(RootCerts::WebPki), |origin| Err(no_certificates(&origin, &found)));
    }

    let certificates = found
        .certs
        .iter()
        .map(|certificate| Certificate::from_der(certificate.as_ref()).to_owned());
    Ok(RootCerts::from(certificates.collect::<Vec<_>>()))
}

fn no_certificates(origin: &str, found: &CertificateResult) -> Error {
    let why = found.errors.first().map_or_else(String::new, |error| format!(" ({error})"));
    let message =
        format!("{origin} does not contain certificates in PEM format{why}: correct or unset it");
    Error::io(IoCause::Other, message)
}

/// Returns the reason why `https` is not available, or `None` if it is.
pub(crate) fn lacking() -> Option<&'static str> {
    provider().is_none().then_some(
        "TLS needs processor features that are missing (on x86-64: AES, PCLMUL, AVX2, BMI2 and \
         ADX); download the file with another program",
    )
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn provider() -> Option<CryptoProvider> {
    is_able().then(rustls_graviola::default_provider)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn provider() -> Option<CryptoProvider> {
    None
}

/// Returns `true` if the provider can run on this processor; otherwise it would panic.
#[cfg(target_arch = "x86_64")]
fn is_able() -> bool {
    macro_rules! has {
        ($($feature:tt),*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
    }
    has!("aes", "pclmulqdq", "ssse3", "avx", "avx2", "bmi1", "bmi2", "adx")
}

#[cfg(target_arch = "aarch64")]
fn is_able() -> bool {
    macro_rules! has {
        ($($feature:tt),*) => { $(std::arch::is_aarch64_feature_detected!($feature))&&* };
    }
    has!("neon", "aes", "pmull", "sha2")
}
