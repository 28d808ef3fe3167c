//! Which key AWS's programs would ask a store with: variables of the environment, or a profile in
//! `~/.aws`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use apr_core::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::digest::hex;
use crate::ini;
use crate::settings::{expand, variable};

/// Profiles that an error lists.
const SHOWN: usize = 10;

/// Settings that obtain the key from another program or service.
const ELSEWHERE: [&str; 5] =
    ["sso_session", "sso_start_url", "role_arn", "credential_process", "web_identity_token_file"];

/// An access key.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) key: String,
    pub(crate) secret: String,
    pub(crate) session: Option<String>,
    /// The variables or the profile that they were taken from.
    pub(crate) origin: String,
}

/// Identity that a store is accessed with.
#[derive(Clone)]
pub(crate) enum Asker {
    /// The holder of a key.
    Key(Credentials),
    /// Anonymous access. Has the reason if there is a profile without a key.
    Anyone(Option<String>),
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(credentials) => write!(f, "used the key of {}", credentials.origin),
            Self::Anyone(Some(why)) => f.write_str(why),
            Self::Anyone(None) => {
                f.write_str("no key used: AWS_ACCESS_KEY_ID is not set, and no profile has a key")
            }
        }
    }
}

/// The profile of AWS's programs that is meant.
pub(crate) struct Profile {
    name: String,
    secrets: BTreeMap<String, String>,
    config: BTreeMap<String, String>,
}

impl Profile {
    /// The profile that `AWS_PROFILE` names, or the default one, which need not exist.
    ///
    /// # Errors
    /// E001 for a name that no profile has.
    pub(crate) fn from_env() -> Result<Self> {
        let variable_of = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]
            .into_iter()
            .find(|name| variable(name).is_some());
        let named = variable_of.and_then(variable);
        let name = named.clone().unwrap_or_else(|| "default".to_owned());
        let path = |name: &str, usual: &str| -> PathBuf {
            variable(name).map_or_else(|| expand(usual), expand)
        };
        let secrets_path = path("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials");
        let config_path = path("AWS_CONFIG_FILE", "~/.aws/config");
        let (mut secrets, mut config) = (ini::sections(&secrets_path), ini::sections(&config_path));

        // In AWS's configuration, all profiles but the default one have `profile` before their
        // names.
        let section = if name == "default" { name.clone() } else { format!("profile {name}") };
        let (own_secrets, own_config) = (secrets.remove(&name), config.remove(&section));
        if let (Some(variable), None, None) = (variable_of, &own_secrets, &own_config)
            && named.is_some()
        {
            let others = secrets.keys().map(String::as_str);
            let configured = config.keys().filter_map(|section| {
                if section == "default" {
                    Some("default")
                } else {
                    section.strip_prefix("profile ")
                }
            });
            let mut others: Vec<&str> = others.chain(configured).collect();
            others.sort_unstable();
            others.dedup();
            let listed = match others[..] {
                [] => "no profiles found".to_owned(),
                _ => format!("profiles: {}", others[..others.len().min(SHOWN)].join(", ")),
            };
            let message = format!(
                "{variable} is '{name}', a profile that is not in {} or {}; {listed}",
                secrets_path.display(),
                config_path.display(),
            );
            return Err(Error::format(message));
        }

        let (secrets, config) = (own_secrets.unwrap_or_default(), own_config.unwrap_or_default());
        Ok(Self { name, secrets, config })
    }

    /// Returns the value of a setting in the profile.
    pub(crate) fn setting(&self, key: &str) -> Option<String> {
        self.secrets.get(key).or_else(|| self.config.get(key)).cloned()
    }

    /// Returns the key to use, from the environment or the profile.
    ///
    /// # Errors
    /// E001 for one half of a key.
    pub(crate) fn asker(&self) -> Result<Asker> {
        let half =
            |have: &str, lack: &str| Error::format(format!("{have} is set, but {lack} is not"));
        let names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY");
        match (variable(names.0), variable(names.1)) {
            (Some(key), Some(secret)) => {
                let session = variable("AWS_SESSION_TOKEN");
                return Ok(Asker::Key(Credentials {
                    key,
                    secret,
                    session,
                    origin: names.0.to_owned(),
                }));
            }
            (Some(_), None) => return Err(half(names.0, names.1)),
            (None, Some(_)) => return Err(half(names.1, names.0)),
            (None, None) => {}
        }

        let origin = format!("the profile '{}'", self.name);
        match (self.setting("aws_access_key_id"), self.setting("aws_secret_access_key")) {
            (Some(key), Some(secret)) => {
                let session = self.setting("aws_session_token");
                Ok(Asker::Key(Credentials { key, secret, session, origin }))
            }
            (Some(_), None) => {
                Err(half(&format!("aws_access_key_id of {origin}"), "aws_secret_access_key"))
            }
            (None, Some(_)) => {
                Err(half(&format!("aws_secret_access_key of {origin}"), "aws_access_key_id"))
            }
            (None, None) => Ok(Asker::Anyone(self.keyless())),
        }
    }

    /// Returns the reason why a profile has no key, if it names another way to get one.
    fn keyless(&self) -> Option<String> {
        let setting = ELSEWHERE.into_iter().find(|key| self.setting(key).is_some())?;
        let name = &self.name;
        Some(format!(
            "no key used: {setting} of the profile '{name}' is not supported; set the variables \
             that `aws configure export-credentials` prints for it in the format env"
        ))
    }
}

impl Credentials {
    /// The signature of a text, by Signature Version 4.
    pub(crate) fn sign(&self, day: &str, region: &str, text: &str) -> String {
        let start = format!("AWS4{}", self.secret).into_bytes();
        let key = [day, region, "s3", "aws4_request"]
            .iter()
            .fold(start, |key, part| keyed(&key, part.as_bytes()));
        hex(&keyed(&key, text.as_bytes()))
    }
}

fn keyed(key: &[u8], message: &[u8]) -> Vec<u8> {
    // A key of any length is one.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}
