//! Values that are never printed.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Text that prints as `***` everywhere. What needs it says [`Secret::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes text that must not be printed.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself: for the call that needs it, never for a message.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str("***")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(Secret)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "password", "writeOnly": true })
    }
}

/// Where to connect: a URL that may hold a user, a password and parameters, and prints without
/// them.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionUrl(Secret);

impl ConnectionUrl {
    /// Takes a URL.
    pub fn new(url: impl Into<String>) -> Self {
        ConnectionUrl(Secret::new(url))
    }

    /// The URL itself: for the call that connects, never for a message.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Scheme, host and path; nothing that may be secret. Passwords may hold any character, also
    /// unescaped ones, so whatever is in doubt is left out.
    fn redacted(&self) -> String {
        let Some((scheme, rest)) = self.0.expose().split_once("://") else {
            return "***".into();
        };
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (user, place),
            None => ("", rest),
        };
        if user.contains(['?', '#']) {
            return format!("{scheme}://***");
        }
        let place = place.split(['?', '#']).next().unwrap_or_default();
        let hidden = if user.is_empty() { "" } else { "***@" };
        format!("{scheme}://{hidden}{place}")
    }
}

impl fmt::Debug for ConnectionUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl fmt::Display for ConnectionUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl Serialize for ConnectionUrl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.redacted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_prints_without_what_may_be_secret() {
        for (url, shown) in [
            ("postgres://db/shop", "postgres://db/shop"),
            ("postgres://app:canary@db:5432/shop?sslmode=on", "postgres://***@db:5432/shop"),
            ("postgres://db/shop?password=canary", "postgres://db/shop"),
            ("postgres://app:ca/na@ry@db/shop", "postgres://***@db/shop"),
            ("postgres://app:ca?na#ry@db/shop", "postgres://***"),
            ("kafka://h1:9092,h2:9092", "kafka://h1:9092,h2:9092"),
            ("canary", "***"),
        ] {
            let url = ConnectionUrl::new(url);
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), shown);
        }
    }
}
