//! One HTTP call.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use potok_core::Fault;
use rustls::{ClientConfig, RootCertStore};

use super::address::{Address, unusable};
use super::fault;

/// A longer answer is none.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Connections that are not used are closed, before most servers do it.
const IDLE: Duration = Duration::from_secs(20);

pub(super) struct Client {
    address: Address,
    timeout: Duration,
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Client {
    pub fn new(address: Address, timeout: Duration) -> Result<Self, Fault> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls(address.uri.scheme_str() == Some("https"))?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(https);
        Ok(Client { address, timeout, http })
    }

    /// Posts a body under a name; the body of the answer.
    pub async fn post(&self, body: Bytes, name: &str) -> Result<Bytes, Fault> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.address.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("potok/", env!("CARGO_PKG_VERSION")))
            .header("idempotency-key", name);
        if let Some(authorization) = &self.address.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let request =
            request.body(Full::new(body)).map_err(|_| unusable("no request can be made of it"))?;
        match tokio::time::timeout(self.timeout, self.exchange(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(fault::silent(self.timeout)),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Bytes, Fault> {
        let hide = |error: &dyn std::error::Error| self.address.hide(&fault::chain(error));
        let answered = self.http.request(request).await;
        let answer: Response<_> = answered.map_err(|error| match error.is_connect() {
            true => fault::away(hide(&error)),
            false => fault::broken(hide(&error)),
        })?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        match (body, status) {
            (Ok(body), StatusCode::OK) => Ok(body.to_bytes()),
            (Ok(body), _) => {
                let said = String::from_utf8_lossy(&body.to_bytes()).into_owned();
                Err(fault::refused(status, &self.address.hide(&said)))
            }
            (Err(_), status) if status != StatusCode::OK => Err(fault::refused(status, "")),
            (Err(error), _) if error.is::<http_body_util::LengthLimitError>() => {
                Err(fault::too_long(ANSWER_BYTES_MAX))
            }
            (Err(error), _) => Err(fault::broken(hide(&*error))),
        }
    }
}

/// Trusts what the machine trusts; where it says nothing, what browsers trust.
fn tls(is_used: bool) -> Result<ClientConfig, Fault> {
    let mut roots = RootCertStore::empty();
    if is_used {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|_| unusable("TLS cannot be set up"))?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}
