//! What people do: POST, then 303 to where they were, with what came of it.
//!
//! Each form has a name of its own in its token. What was asked under a name is done once, however
//! often it is sent; a reload shows the result again and repeats nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use potok_core::{HeadersBuilder, Output};

use super::text::{address, count};
use super::{ActionResult, frame, respond};
use crate::access::{self, Actor, Visitor};
use crate::audit::{AuditEntry, Door};
use crate::letters::{Action, LetterRequest};
use crate::outbox::RowAction;
use crate::{Admin, ApiError, audit, groups, jobs, outbox, pipelines};

/// What was done and is remembered.
const DONE_MAX: usize = 1_000;
/// A form with a record in it.
const FORM_BYTES_MAX: usize = 4 << 20;
/// How long the log may take for a record.
const SEND_MAX: Duration = Duration::from_secs(10);
/// How long a replay that somebody waits for may take, in milliseconds.
const REPLAY_WAIT: u64 = 10_000;

pub(super) type Fields = BTreeMap<String, String>;

/// What was asked, by the name of its form; `None` while it is under way.
#[derive(Default)]
pub(super) struct Actions(Mutex<VecDeque<(String, Option<ActionResult>)>>);

impl Actions {
    /// False where it was asked before.
    fn begin(&self, form: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.iter().any(|(name, _)| name == form) {
            return false;
        }
        if known.len() >= DONE_MAX {
            known.pop_front();
        }
        known.push_back((form.to_owned(), None));
        true
    }

    fn end(&self, form: &str, done: ActionResult) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, result)) = known.iter_mut().find(|(name, _)| name == form) {
            *result = Some(done);
        }
    }

    /// What came of it; `None` where nothing is known of it.
    pub fn find(&self, form: &str) -> Option<ActionResult> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, done) = known.iter().find(|(name, _)| name == form)?;
        let under_way = || ActionResult { text: "It is under way.".to_owned(), error: None };
        Some(done.clone().unwrap_or_else(under_way))
    }
}

/// Something done: what to say, and where to go instead of back.
struct Outcome {
    text: String,
    to: Option<String>,
}

impl Outcome {
    fn said(text: String) -> Self {
        Outcome { text, to: None }
    }
}

pub(super) async fn act(
    State(admin): State<Admin>,
    Path(what): Path<String>,
    visitor: Visitor,
    headers: HeaderMap,
    request: Request,
) -> Response {
    let actor = Actor::of(&visitor, request.extensions(), Door::Dashboard);
    if let Err(error) = access::require(&visitor, access::action_role(&what)) {
        return refused(&admin, visitor, &headers, error).await;
    }
    let fields = match fields(&headers, request.into_body(), FORM_BYTES_MAX).await {
        Ok(fields) => fields,
        Err(error) => return refused(&admin, visitor, &headers, error).await,
    };
    let form =
        fields.get("token").and_then(|token| admin.inner.dashboard.keys.form_of(token, &headers));
    let Some(form) = form else {
        let what = "this form is not one of this process";
        let error = ApiError::new(StatusCode::FORBIDDEN, "P1502", what);
        let error = error.hint("go back, reload the page and try again");
        return refused(&admin, visitor, &headers, error).await;
    };
    let back = fields.get("back").filter(|back| is_own(back)).map_or("/", String::as_str);
    let mut to = back.to_owned();
    if admin.inner.dashboard.actions.begin(&form) {
        if what == "sign-out" {
            return super::login::sign_out(&admin, &headers);
        }
        let done = match perform(&admin, &actor, &what, &fields).await {
            Ok(outcome) => {
                to = outcome.to.unwrap_or(to);
                let text = match actor.loss.is_any() {
                    true => format!("{} But {}.", outcome.text, audit::LOST),
                    false => outcome.text,
                };
                ActionResult { text, error: None }
            }
            Err(error) => ActionResult { text: error.body.what.clone(), error: Some(error.body) },
        };
        admin.inner.dashboard.actions.end(&form, done);
    }
    let sign = if to.contains('?') { '&' } else { '?' };
    (StatusCode::SEE_OTHER, [(LOCATION, format!("{to}{sign}done={form}"))]).into_response()
}

/// Reads a form that a page of ours has sent.
pub(super) async fn fields(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<Fields, ApiError> {
    let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok());
    if site.is_some_and(|site| site != "same-origin") {
        let what = "a form of another page is refused";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "P1502", what));
    }
    let body = crate::request::whole(body, bytes_max).await?;
    let request = Request::builder()
        .method("POST")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Body::from(body))
        .map_err(|error| ApiError::usage("the form cannot be read").because(error))?;
    let form = <axum::Form<Fields> as axum::extract::FromRequest<()>>::from_request(request, &());
    let axum::Form(fields) = form
        .await
        .map_err(|error| ApiError::usage("the form cannot be read").because(error.body_text()))?;
    let plain = |(name, value): (String, String)| match name.strip_prefix("x-") {
        None => Ok((name, value)),
        Some(plain) => {
            let value = percent_encoding::percent_decode_str(&value).decode_utf8();
            let value =
                value.map_err(|error| ApiError::usage("the form is damaged").because(error));
            Ok((plain.to_owned(), value?.into_owned()))
        }
    };
    fields.into_iter().map(plain).collect()
}

/// A page that says why not.
pub(crate) async fn refused(
    admin: &Admin,
    visitor: Visitor,
    headers: &HeaderMap,
    error: ApiError,
) -> Response {
    let context = super::Context::of(admin, "/".to_owned(), None, visitor).await;
    let keys = &admin.inner.dashboard.keys;
    let (session, cookie) = keys.session(headers);
    let html = keys.fill(frame::frame(&context, super::error_page(&error)), &session);
    respond(error.status, html, cookie)
}

/// True for an address of our own pages.
pub(super) fn is_own(address: &str) -> bool {
    // Browsers leave out tabs and line breaks before they look where an address leads.
    address.starts_with('/')
        && !address.starts_with("//")
        && !address.contains('\\')
        && address.bytes().all(|byte| byte.is_ascii_graphic())
}

async fn perform(
    admin: &Admin,
    actor: &Actor,
    what: &str,
    fields: &Fields,
) -> Result<Outcome, ApiError> {
    let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let (pipeline, key) = (field("pipeline"), field("key"));
    match what {
        "pause" => {
            pipelines::set_paused(admin, actor, pipeline, true).await?;
            Ok(Outcome::said(format!("{pipeline} takes no more records until it is resumed.")))
        }
        "resume" => {
            pipelines::set_paused(admin, actor, pipeline, false).await?;
            Ok(Outcome::said(format!("{pipeline} goes on.")))
        }
        "probe" => match pipelines::ask_destinations(admin, actor, pipeline).await? {
            0 => Ok(Outcome::said(format!("Every destination of {pipeline} is open already."))),
            asked => {
                let asked = count(asked, "destination", "destinations");
                Ok(Outcome::said(format!("{asked} of {pipeline} are asked now.")))
            }
        },
        "close-group" => {
            let shown = Some(field("generation")).filter(|shown| !shown.is_empty());
            groups::close_group(admin, actor, pipeline, key, shown).await?;
            Ok(Outcome::said(format!("Group {key} of {pipeline} closes now.")))
        }
        "drop-group" => {
            confirmed(field("typed"), key, "the key of the group")?;
            let records =
                groups::drop_group(admin, actor, pipeline, key, Some(field("held"))).await?;
            let records = count(records, "record", "records");
            Ok(Outcome {
                text: format!("Group {key} is dropped: {records} become dead letters."),
                to: Some(address("/dead-letters", &[("pipeline", pipeline)])),
            })
        }
        "replay" | "drop" => letters(admin, actor, what, fields).await,
        "stop-job" => {
            jobs::stop_job(admin, actor, field("job")).await?;
            Ok(Outcome::said("It stops after what it has in hand; the rest stays open.".to_owned()))
        }
        "retry-rows" => {
            let pipeline = Some(pipeline).filter(|pipeline| !pipeline.is_empty());
            let done = outbox::act(admin, actor, RowAction::Retry, pipeline, None).await?;
            let rows = count(done.ids.len() as u64, "row", "rows");
            Ok(Outcome::said(format!("{rows} of {} are due now.", done.pipeline)))
        }
        "send" => send(admin, actor, field("topic"), key, field("value")).await,
        _ => Err(ApiError::usage(format!("nobody knows how to `{what}`"))),
    }
}

/// What cannot be undone is typed.
fn confirmed(typed: &str, expected: &str, what: &str) -> Result<(), ApiError> {
    match typed.trim() == expected.trim() {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            "P1504",
            format!("nothing was dropped: what was typed is not {what}"),
        )
        .hint(format!("type `{expected}` to confirm"))),
    }
}

/// Replays or drops dead letters: one by its id, or many as a job.
async fn letters(
    admin: &Admin,
    actor: &Actor,
    what: &str,
    fields: &Fields,
) -> Result<Outcome, ApiError> {
    let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
    let action = if what == "replay" { Action::Replay } else { Action::Drop };
    let wish = wish(fields);
    if action == Action::Drop {
        confirmed(field("typed"), field("expected"), "what was asked for")?;
    }
    let name = match field("name") {
        "" => format!("{what} of {}", wish.target()),
        name => name.to_owned(),
    };
    let rate = field("rate").parse().ok().filter(|rate| *rate > 0);
    let wait = if action == Action::Replay { REPLAY_WAIT } else { 0 };
    let wish = LetterRequest { rate, wait, ..wish };
    let job = jobs::start(admin, actor, name, wish, action).await?;
    Ok(Outcome { text: format!("{} has begun.", job.name), to: Some(format!("/jobs/{}", job.id)) })
}

/// The dead letters that a form is about.
pub(super) fn wish(fields: &Fields) -> LetterRequest {
    let mut filter = serde_json::Map::new();
    for name in ["pipeline", "reason", "cause", "since", "until"] {
        if let Some(value) = fields.get(name).filter(|value| !value.is_empty()) {
            filter.insert(name.to_owned(), value.clone().into());
        }
    }
    if let Some(id) = fields.get("id").filter(|id| !id.is_empty()) {
        filter.insert("ids".to_owned(), vec![id.clone()].into());
    }
    let confirmed = fields.get("confirmed").and_then(|count| count.parse().ok());
    LetterRequest { filter, dry_run: false, rate: None, wait: 0, job: None, confirmed }
}

/// The log has said nothing about a record.
fn unanswered() -> ApiError {
    let what = "the log does not answer: whether it has taken the record is not known";
    ApiError::from(potok_core::Fault::wait(what)).hint("trace its key when the log is back")
}

/// Sends a record that says that it is a test.
async fn send(
    admin: &Admin,
    actor: &Actor,
    topic: &str,
    key: &str,
    value: &str,
) -> Result<Outcome, ApiError> {
    if topic.is_empty() {
        return Err(ApiError::usage("say which topic"));
    }
    if let Some(purpose) = admin.engine().own_topic(topic).await {
        return Err(potok_core::not_by_hand(topic, &purpose).into());
    }
    if !admin.engine().reads().iter().any(|read| **read == *topic) {
        let known: Vec<String> = admin.engine().reads().iter().map(ToString::to_string).collect();
        return Err(ApiError::unknown_topic(topic, &known));
    }
    let output = Output {
        topic: topic.into(),
        partition: None,
        key: (!key.is_empty()).then(|| Bytes::copy_from_slice(key.as_bytes())),
        headers: HeadersBuilder::new().add("potok-test", Some(actor.by.as_bytes())).build(),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
    };
    let outputs = [output];
    let sent = tokio::time::timeout(SEND_MAX, admin.engine().log().append(&outputs)).await;
    let sent = sent.map_or_else(|_| Err(unanswered()), |sent| sent.map_err(ApiError::from));
    let entry = AuditEntry::new(actor, "send").target(topic).count(1);
    audit::note(admin, entry.result(&sent)).await;
    let positions = sent?;
    let place = positions.first().map(|at| format!("{}/{}/{}", at.topic, at.partition, at.offset));
    let place = place.unwrap_or_default();
    Ok(Outcome {
        text: format!("Sent as {place}. This is what became of it; reload to see more."),
        to: Some(address("/trace", &[("id", &place)])),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_pages_are_gone_back_to() {
        assert!(is_own("/groups?pipeline=a"));
        for other in [
            "//evil.example",
            "https://evil.example",
            "",
            "/\\evil",
            "/a\nb",
            "/ä",
            "/\t/evil.example",
            "/ /evil",
        ] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn a_form_is_done_once() {
        let actions = Actions::default();
        assert!(actions.begin("a"));
        assert!(!actions.begin("a"));
        assert!(actions.find("a").is_some_and(|done| done.text.contains("under way")));
        actions.end("a", ActionResult { text: "good".to_owned(), error: None });
        assert!(actions.find("a").is_some_and(|done| done.text == "good"));
        assert!(actions.find("b").is_none());
    }
}
