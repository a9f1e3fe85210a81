//! Records that wait for somebody to decide about them.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use potok_flow::UndecidedRecord;
use serde::Deserialize;

use crate::access::Actor;
use crate::audit::{self, AuditEntry};
use crate::pipelines::running;
use crate::request;
use crate::{Admin, ApiError};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionRequest {
    /// Only these; without any, all that wait.
    #[serde(default)]
    positions: Vec<String>,
    #[serde(default)]
    dry_run: bool,
}

/// Sets records aside that wait for a decision; answers with them.
pub(crate) async fn set_aside(
    State(admin): State<Admin>,
    actor: Actor,
    Path(pipeline): Path<String>,
    body: Body,
) -> Result<Json<Vec<UndecidedRecord>>, ApiError> {
    let wish: DecisionRequest = request::json(body).await?;
    running(&admin, &pipeline).await?;
    let waiting = admin.engine().undecided(&pipeline)?;
    let is_waiting = |wanted: &&String| waiting.iter().any(|record| is_at(record, wanted));
    if let Some(missing) = wish.positions.iter().find(|wanted| !is_waiting(wanted)) {
        let what = format!("no record at `{missing}` waits for a decision in `{pipeline}`");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "P0529", what)
            .hint("`potok status` shows what waits; it may have gone on by itself meanwhile"));
    }
    let wanted = |record: &UndecidedRecord| {
        wish.positions.is_empty() || wish.positions.iter().any(|wanted| is_at(record, wanted))
    };
    let records = match wish.dry_run {
        true => waiting.into_iter().filter(wanted).collect(),
        false => {
            let records = admin.engine().set_aside(&pipeline, wanted)?;
            let positions: Vec<&str> = records.iter().map(|one| one.position.as_str()).collect();
            let entry = AuditEntry::new(&actor, "set_aside").pipeline(&pipeline);
            let entry = entry.target(positions.join(" ")).count(records.len() as u64);
            audit::note(&admin, entry).await;
            records
        }
    };
    Ok(Json(records))
}

/// True for its whole position, and for that without the incarnation of the log.
fn is_at(record: &UndecidedRecord, wanted: &str) -> bool {
    let place = record.position.rsplit_once('@').map(|(place, _)| place);
    record.position == wanted || place == Some(wanted)
}
