//! `/live` and `/ready`.
//!
//! Live depends on nothing but this process answering. Readiness means that records are taken: a log
//! that cannot write (a full disk) is not ready; a destination or a store that is away makes records
//! wait in the log, which is what it is for. What pipelines wait for is listed all the same.

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::Admin;
use crate::access::{Role, Visitor};
use crate::letters::cause_of;
use crate::pipelines::without_values;

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// Pipelines whose set-up an operator must mend; the process is ready all the same.
    blocked: Vec<BlockedPipeline>,
    /// What pipelines wait for; each goes on by itself, except where it says who must act.
    waiting: Vec<WaitingPipeline>,
}

#[derive(Serialize)]
struct WaitingPipeline {
    pipeline: String,
    #[serde(flatten)]
    wait: potok_flow::Wait,
}

#[derive(Serialize)]
struct BlockedPipeline {
    pipeline: String,
    why: Option<String>,
}

pub(crate) async fn live() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "live": true }))
}

pub(crate) async fn ready(
    State(admin): State<Admin>,
    visitor: Option<Extension<Visitor>>,
) -> Response {
    let why = admin.engine().log().trouble();
    let code = if why.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if visitor.is_none() {
        // Whoever did not say who they are learns yes or no.
        return (code, Json(serde_json::json!({ "ready": why.is_none() }))).into_response();
    }
    let may_see = visitor.is_some_and(|Extension(visitor)| visitor.may(Role::Operator));
    let why = why.map(|why| if may_see { why } else { cause_of(&why) });
    let (mut blocked, mut waiting) = (Vec::new(), Vec::new());
    for mut status in admin.engine().status().await {
        if !may_see {
            without_values(&mut status);
        }
        let pipeline = status.pipeline;
        let waits = status.waits.into_iter();
        waiting.extend(waits.map(|wait| WaitingPipeline { pipeline: pipeline.clone(), wait }));
        if status.state == potok_flow::State::Blocked {
            blocked.push(BlockedPipeline { pipeline, why: status.why });
        }
    }
    (code, Json(Readiness { ready: why.is_none(), why, blocked, waiting })).into_response()
}
