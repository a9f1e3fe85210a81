//! One HTTP call.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use potok_core::Fault;
use rustls::{ClientConfig, RootCertStore};

use super::address::{WebhookAddress, unusable};
use super::fault;

/// Connections that are not used are closed, before most servers do it.
const IDLE: Duration = Duration::from_secs(20);

pub(super) struct WebhookClient {
    address: WebhookAddress,
    timeout: Duration,
    answer_bytes_max: usize,
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl WebhookClient {
    /// Calls that address, so long at most, and reads so much of an answer.
    pub fn new(
        address: WebhookAddress,
        timeout: Duration,
        answer_bytes_max: usize,
    ) -> Result<Self, Fault> {
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
        Ok(WebhookClient { address, timeout, answer_bytes_max, http })
    }

    /// Posts a body of JSON with these headers besides the usual ones. Whatever is answered is an
    /// answer; a fault says that there is none.
    pub async fn post(&self, body: Bytes, headers: &[(String, String)]) -> Result<Reply, Fault> {
        let mut request = self.request(Method::POST).header(ACCEPT, "application/json");
        if !headers.iter().any(|(name, _)| CONTENT_TYPE == name.to_ascii_lowercase().as_str()) {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        self.call(request.body(Full::new(body))).await
    }

    /// Asks whether somebody is there, and posts nothing; the status of the answer.
    pub async fn ask(&self) -> Result<StatusCode, Fault> {
        let request = self.request(Method::HEAD).body(Full::new(Bytes::new()));
        self.call(request).await.map(|reply| reply.status)
    }

    fn request(&self, method: Method) -> Builder {
        let request = Request::builder()
            .method(method)
            .uri(self.address.uri.clone())
            .header(USER_AGENT, concat!("potok/", env!("CARGO_PKG_VERSION")));
        match &self.address.authorization {
            Some(authorization) => request.header(AUTHORIZATION, authorization.clone()),
            None => request,
        }
    }

    async fn call(
        &self,
        request: Result<Request<Full<Bytes>>, hyper::http::Error>,
    ) -> Result<Reply, Fault> {
        let request = request.map_err(|_| unusable("no request can be made of it"))?;
        match tokio::time::timeout(self.timeout, self.exchange(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(fault::silent(self.timeout)),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Reply, Fault> {
        let hide = |error: &dyn std::error::Error| self.address.hide(&fault::chain(error));
        let answered = self.http.request(request).await;
        let answer: Response<_> = answered.map_err(|error| match error.is_connect() {
            true => fault::away(hide(&error)),
            false => fault::broken(hide(&error)),
        })?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), self.answer_bytes_max).collect().await;
        let body = match body {
            Ok(body) => ReplyBody::Whole(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => ReplyBody::TooLong,
            Err(error) => ReplyBody::Broken(hide(&*error)),
        };
        Ok(Reply { status, body })
    }

    /// What somebody answered, without the address.
    pub fn shown(&self, said: &[u8]) -> String {
        self.address.hide(&String::from_utf8_lossy(said))
    }
}

/// An answer.
pub(super) struct Reply {
    pub status: StatusCode,
    pub body: ReplyBody,
}

/// The body of an answer.
pub(super) enum ReplyBody {
    Whole(Bytes),
    /// Longer than is read.
    TooLong,
    /// The connection ended before the body did, for that cause.
    Broken(String),
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
