//! Which pages may connect. WebSockets know no such rule of their own, so it is checked for every
//! request.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::settings::HubSettings;

/// A request without an origin is not from a page; it still needs a token. What a proxy says of the
/// address that the page asked counts where the proxy is `trusted`.
pub fn is_allowed(headers: &HeaderMap, settings: &HubSettings, trusted: bool) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let Ok(origin) = origin.to_str() else { return false };
    if settings.origins.iter().any(|allowed| allowed == origin) {
        return true;
    }
    // A page that this very address served.
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let forwarded = |name| text(HeaderName::from_static(name)).filter(|_| trusted);
    let scheme = forwarded("x-forwarded-proto").unwrap_or("http");
    let host = forwarded("x-forwarded-host").or_else(|| text(header::HOST));
    origin.split_once("://") == host.map(|host| (scheme, host))
}

pub fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, x-requested-with, x-signalr-user-agent",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Lets a page read the answer, and keeps its address out of others' logs.
pub fn allow(headers: &mut HeaderMap, origin: Option<HeaderValue>) {
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::CACHE_CONTROL, "no-store");
    set(header::VARY, "Origin");
    if let Some(origin) = origin {
        set(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_origins_and_our_own_may_connect() {
        let settings = HubSettings {
            origins: vec!["https://app.example".to_owned()],
            ..HubSettings::default()
        };
        let asked = |origin: Option<&str>, trusted| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("hub.example:8080"));
            headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
            headers.insert("x-forwarded-host", HeaderValue::from_static("hub.example"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            is_allowed(&headers, &settings, trusted)
        };
        for good in [None, Some("https://app.example"), Some("http://hub.example:8080")] {
            assert!(asked(good, false), "{good:?}");
        }
        assert!(asked(Some("https://hub.example"), true), "as the proxy says");
        for bad in [
            "null",
            "",
            "https://app.example.evil",
            "https://APP.example",
            "http://app.example",
            "https://hub.example:8080",
            "http://hub.example",
        ] {
            assert!(!asked(Some(bad), false) && !asked(Some(bad), true), "{bad}");
        }
        assert!(!asked(Some("https://hub.example"), false), "no proxy says so");
    }
}
