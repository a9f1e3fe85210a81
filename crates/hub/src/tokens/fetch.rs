//! Asks an issuer for a document: small, soon, and only at the address it was asked for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::header::{ACCEPT, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use serde::de::DeserializeOwned;

const DOCUMENT_BYTES_MAX: usize = 1 << 20;
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Trusts whom this machine trusts.
pub fn tls_config() -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

pub struct Fetcher {
    http: legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

impl Fetcher {
    pub fn new() -> Result<Self, String> {
        let tls = tls_config()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let https = https.enable_http1().wrap_connector(tcp);
        let mut http = legacy::Client::builder(TokioExecutor::new());
        Ok(Fetcher { http: http.pool_max_idle_per_host(0).build(https) })
    }

    /// The document at `url`, or why there is none. Redirects are not followed.
    pub async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        let uri: Uri = url.parse().map_err(|_| format!("`{url}` is no address"))?;
        if uri.scheme_str() != Some("https") && !is_loopback(&uri) {
            return Err(format!("`{url}` must be https, because it is not on this machine"));
        }
        let answer = tokio::time::timeout(ANSWER_MAX, self.exchange(uri)).await;
        let body = answer.map_err(|_| format!("`{url}` gave no answer within {ANSWER_MAX:?}"))?;
        let body = body.map_err(|error| format!("`{url}`: {error}"))?;
        serde_json::from_slice(&body).map_err(|error| format!("`{url}` answers with {error}"))
    }

    async fn exchange(&self, uri: Uri) -> Result<Bytes, String> {
        let request = Request::get(uri)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("potok/", env!("CARGO_PKG_VERSION")))
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        let answer = self.http.request(request).await.map_err(|error| chain(&error))?;
        if answer.status() != StatusCode::OK {
            return Err(format!("status {}", answer.status()));
        }
        let body = Limited::new(answer.into_body(), DOCUMENT_BYTES_MAX).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    }
}

fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        text = format!("{text}: {error}");
        below = error.source();
    }
    text
}
