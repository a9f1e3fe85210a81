//! `/live` and `/ready`.
//!
//! Live depends on nothing but this process answering. Ready means that records are taken: a log
//! that cannot write (a full disk) is not ready; a destination that is away closes its gate, and
//! records wait in the log, which is what it is for.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::Admin;

#[derive(Serialize)]
struct Ready {
    ready: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Pipelines whose set-up an operator must mend; the process is ready all the same.
    needs_fix: Vec<NeedsFix>,
}

#[derive(Serialize)]
struct NeedsFix {
    pipeline: String,
    why: Option<String>,
}

pub(crate) async fn live() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "live": true }))
}

pub(crate) async fn ready(State(admin): State<Admin>) -> Response {
    let why = admin.engine().log().trouble();
    let needs_fix = admin
        .engine()
        .status()
        .await
        .into_iter()
        .filter(|status| status.state == potok_flow::State::NeedsFix)
        .map(|status| NeedsFix { pipeline: status.pipeline, why: status.why })
        .collect();
    let code = if why.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Ready { ready: why.is_none(), why, needs_fix })).into_response()
}
