//! What a request asks, apart from its method: its query and its token.

use axum::http::header;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

pub struct RequestQuery {
    query: Vec<(String, String)>,
    /// As the client calls itself. Browsers let a page set only the header of SignalR's own.
    pub agent: String,
}

impl RequestQuery {
    pub fn new(request: &Parts) -> Self {
        let pairs = request.uri.query().unwrap_or_default().split('&');
        let query = pairs.filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let value = percent_decode_str(value).decode_utf8().ok()?.into_owned();
            Some((name.to_ascii_lowercase(), value))
        });
        let text = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
        let agent = text("x-signalr-user-agent").or_else(|| text("user-agent"));
        RequestQuery { query: query.collect(), agent: agent.unwrap_or_default().to_owned() }
    }

    /// The value of a name, whatever its case.
    pub fn query(&self, name: &str) -> Option<&str> {
        let mut found = self.query.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.as_str())
    }

    /// The token, from the header or, where a browser cannot set one, from the query.
    pub fn token<'a>(
        &'a self,
        request: &'a Parts,
        in_query: bool,
    ) -> Result<Option<&'a str>, &'static str> {
        let header = request.headers.get(header::AUTHORIZATION);
        let header = header.and_then(|value| value.to_str().ok());
        let header = header.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let query = self.query("access_token");
        match (header, query) {
            (Some(header), Some(query)) if header != query => Err("two different tokens"),
            (Some(header), _) => Ok(Some(header)),
            (None, Some(query)) if in_query => Ok(Some(query)),
            (None, Some(_)) => Err("here the token belongs into the header"),
            (None, None) => Ok(None),
        }
    }
}
