//! Where a webhook is, without a word of it in any message.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use percent_encoding::percent_decode_str;
use potok_core::Fault;

/// An address that was understood.
pub(super) struct WebhookAddress {
    /// Without credentials.
    pub uri: Uri,
    /// The credentials, as they are sent.
    pub authorization: Option<HeaderValue>,
    /// What must not be in a message.
    hidden: Vec<String>,
}

impl WebhookAddress {
    pub fn parse(url: &str) -> Result<Self, Fault> {
        let uri: Uri = url.trim().parse().map_err(|_| unusable("it is not a URL"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(unusable("it has no `http://` or `https://`"));
        };
        if !["http", "https"].contains(&scheme) {
            return Err(unusable("it is neither `http://` nor `https://`"));
        }
        let (credentials, host) = match authority.as_str().rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, authority.as_str()),
        };
        let authorization = credentials.map(|credentials| {
            let plain: Vec<u8> = percent_decode_str(credentials).collect();
            let mut header = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(plain)))?;
            header.set_sensitive(true);
            Ok::<_, hyper::header::InvalidHeaderValue>(header)
        });
        let authorization =
            authorization.transpose().map_err(|_| unusable("its credentials cannot be sent"))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut hidden = vec![url.trim().to_owned(), host.to_owned()];
        hidden.extend(uri.host().map(str::to_owned));
        hidden.extend(credentials.map(str::to_owned));
        hidden.extend((path.len() > 1).then(|| path.to_owned()));
        hidden.extend(uri.query().map(str::to_owned));
        let uri = Uri::builder().scheme(scheme).authority(host).path_and_query(path).build();
        let uri = uri.map_err(|_| unusable("it is not a URL"))?;
        Ok(WebhookAddress { uri, authorization, hidden })
    }

    /// A text of somebody else's, without the address.
    pub fn hide(&self, text: &str) -> String {
        let parts = self.hidden.iter().filter(|part| !part.is_empty());
        parts.fold(text.to_owned(), |text, part| text.replace(part, "***"))
    }
}

/// The set-up is wrong.
pub(super) fn unusable(cause: &str) -> Fault {
    Fault::fix("the address of the webhook cannot be used")
        .because(cause)
        .code("P1005")
        .hint("give an address such as `https://host/path`, then `potok resume`")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn credentials_become_a_header_and_nothing_is_shown() {
        let address =
            WebhookAddress::parse("https://me:s%40fe@hook.example:8443/a/tok?k=v").unwrap();
        assert_eq!(address.uri.to_string(), "https://hook.example:8443/a/tok?k=v");
        let header = address.authorization.as_ref().unwrap();
        assert_eq!(header, &format!("Basic {}", STANDARD.encode("me:s@fe")));
        let shown = address.hide("hook.example:8443 refused me:s%40fe at /a/tok?k=v (k=v)");
        assert_eq!(shown, "*** refused *** at *** (***)");
        assert_eq!(WebhookAddress::parse("http://h").unwrap().hide("no /"), "no /");
    }

    #[test]
    fn what_is_no_address_is_refused_without_showing_it() {
        for url in ["", "canary", "canary:80", "ftp://canary/x", "/canary", "http://canary host"] {
            let fault = WebhookAddress::parse(url).map(|_| ()).unwrap_err();
            assert_eq!(fault.code, "P1005", "{url}");
            assert!(!fault.to_string().contains("canary"), "{fault}");
        }
    }
}
