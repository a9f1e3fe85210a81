//! One shape for every error: `{"error": {"code", "what", "cause", "hint"}}`.

use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use potok_core::{Fault, Move, Reason};
use serde::Serialize;

/// An error on its way to a client.
#[derive(Clone, Debug)]
pub struct ApiError {
    /// The HTTP status: whose fault it is.
    pub status: StatusCode,
    /// What the client reads.
    pub body: ErrorBody,
}

/// What the client reads.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorBody {
    /// Code of its page, shown by `potok explain`; empty where there is none.
    pub code: &'static str,
    /// What happened.
    pub what: String,
    /// What lies below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, what: impl Into<String>) -> Self {
        ApiError { status, body: ErrorBody { code, what: what.into(), cause: None, hint: None } }
    }

    /// The request itself is wrong.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "P0501", what)
    }

    pub(crate) fn unknown_pipeline(pipeline: &str, known: &[String]) -> Self {
        let error = Self::new(
            StatusCode::NOT_FOUND,
            "P0502",
            format!("there is no pipeline `{pipeline}` here"),
        );
        match known {
            [] => error.hint("no pipeline has run in this data folder yet"),
            known => error.hint(format!("known pipelines: {}", known.join(", "))),
        }
    }

    pub(crate) fn unknown_topic(topic: &str, known: &[String]) -> Self {
        let error =
            Self::new(StatusCode::NOT_FOUND, "P0503", format!("there is no topic `{topic}`"));
        match known {
            [] => error.hint("nothing was sent yet; a topic is there from its first record on"),
            known => error.hint(format!("known topics: {}", known.join(", "))),
        }
    }

    pub(crate) fn because(mut self, cause: impl std::fmt::Display) -> Self {
        self.body.cause = Some(cause.to_string());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.body.hint = Some(hint.into());
        self
    }

    /// The error as one line of a stream whose status has already been sent.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(&ErrorAnswer { error: &self.body }).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

#[derive(Serialize)]
struct ErrorAnswer<'a> {
    error: &'a ErrorBody,
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        let status = match (fault.next, fault.reason) {
            (Move::Wait | Move::Retry, _) => StatusCode::SERVICE_UNAVAILABLE,
            (Move::SetAside, Reason::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            (Move::SetAside, _) => StatusCode::BAD_REQUEST,
            (Move::Fix, _) => StatusCode::CONFLICT,
        };
        let Fault { code, what, cause, hint, .. } = fault;
        ApiError { status, body: ErrorBody { code, what, cause, hint } }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(serde_json::json!({ "error": self.body }))).into_response()
    }
}

pub(crate) async fn not_found(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "P0501", format!("there is nothing at {}", uri.path()))
}

pub(crate) async fn not_allowed(method: Method, uri: Uri) -> ApiError {
    let what = format!("{} does not answer to {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "P0501", what)
}
