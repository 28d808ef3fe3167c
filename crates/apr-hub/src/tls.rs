//! How encrypted connections are made: rustls, a provider without C, the system's roots or bundled
//! ones.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

/// The configuration; without a provider for this processor, `https` is an error of the connection.
pub(crate) fn config() -> TlsConfig {
    let builder = TlsConfig::builder().provider(TlsProvider::Rustls).root_certs(roots());
    match provider() {
        Some(provider) => builder.unversioned_rustls_crypto_provider(Arc::new(provider)).build(),
        None => builder.build(),
    }
}

/// The roots that the system trusts, or `SSL_CERT_FILE` names; Mozilla's where there are none.
fn roots() -> RootCerts {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        return RootCerts::WebPki;
    }
    let certificates = found
        .certs
        .iter()
        .map(|certificate| Certificate::from_der(certificate.as_ref()).to_owned());
    RootCerts::from(certificates.collect::<Vec<_>>())
}

/// Why `https` can't be spoken here, if so.
pub(crate) fn lacking() -> Option<&'static str> {
    provider().is_none().then_some(
        "this processor lacks what encrypted connections need (on x86-64: AES, PCLMUL, AVX2, BMI2 \
         and ADX); download the file with another program",
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

/// Whether the provider would run; it panics where it can't.
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
