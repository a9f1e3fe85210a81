//! The way in where tokens are asked for: a page that takes one, and a session that ends with it.
//!
//! The page says nothing of the process. What is typed is sent once and kept nowhere; the session is a
//! name that this process remembers.

use axum::extract::{Request, State};
use axum::http::header::{LOCATION, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, PreEscaped, html};

use super::actions::{fields, is_own};
use super::frame::{ASSETS, SHAPES};
use super::text::{self, clean};
use super::{Query, respond, token};
use crate::{Admin, ApiError};

/// Where somebody signs in who wanted to go there.
pub(crate) fn address(back: &str) -> String {
    text::address("/login", &[("back", if back == "/" { "" } else { back })])
}

pub(super) async fn page(State(admin): State<Admin>, uri: Uri) -> Response {
    if admin.access().is_none() {
        return (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response();
    }
    let query = axum::extract::Query::<Query>::try_from_uri(&uri).map(|query| query.0);
    let back = query.ok().and_then(|query| query.get("back").cloned()).unwrap_or_default();
    shown(StatusCode::OK, &back, None)
}

/// Takes a token, and begins a session for whom it speaks.
pub(super) async fn sign_in(State(admin): State<Admin>, request: Request) -> Response {
    let headers = request.headers().clone();
    let Some(access) = admin.access() else {
        return (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response();
    };
    let fields = match fields(&headers, request.into_body()).await {
        Ok(fields) => fields,
        Err(error) => return shown(error.status, "", Some(&error)),
    };
    let field = |name: &str| fields.get(name).map(|value| value.trim()).unwrap_or_default();
    let now = admin.engine().clock().now();
    let visitor = match access.admit(field("token"), now).await {
        Ok(visitor) => visitor,
        Err(error) => return shown(error.status, field("back"), Some(&error)),
    };
    let seconds = visitor.expires.map(|expires| expires.millis_since(now) / 1_000);
    tracing::info!(by = visitor.name, role = visitor.role.word(), "signed in");
    let session = access.begin(visitor, now);
    let back = Some(field("back")).filter(|back| is_own(back)).unwrap_or("/");
    let cookie = token::cookie(&session, seconds, is_secure(&headers));
    let Ok(cookie) = HeaderValue::from_str(&cookie) else {
        return shown(StatusCode::BAD_REQUEST, "", None);
    };
    (StatusCode::SEE_OTHER, [(LOCATION, back.to_owned())], [(SET_COOKIE, cookie)]).into_response()
}

/// Ends a session.
pub(super) fn sign_out(admin: &Admin, headers: &HeaderMap) -> Response {
    if let Some(access) = admin.access() {
        access.end(headers);
    }
    let gone = HeaderValue::from_str(&token::cookie("", Some(0), is_secure(headers))).ok();
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, "/login")]).into_response();
    if let Some(gone) = gone {
        response.headers_mut().insert(SET_COOKIE, gone);
    }
    response
}

/// Whether the browser came over TLS, whoever ends that.
fn is_secure(headers: &HeaderMap) -> bool {
    let origin = headers.get(ORIGIN).and_then(|origin| origin.to_str().ok());
    origin.is_some_and(|origin| origin.starts_with("https://"))
}

fn shown(status: StatusCode, back: &str, error: Option<&ApiError>) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Sign in · potok" }
                link rel="icon" href={ "/assets/logo.svg?v=" (ASSETS) } type="image/svg+xml";
                link rel="stylesheet" href={ "/assets/style.css?v=" (ASSETS) };
            }
            body {
                (PreEscaped(SHAPES))
                main class="login" id="main" {
                    p class="brand" { svg width="22" height="22" aria-hidden="true" { use href="#logo" {} } "potok" }
                    h1 { "Sign in" }
                    p class="muted" { "An access token of your identity provider says who you are. It is checked, not kept; you are signed out when it expires." }
                    @if let Some(error) = error {
                        div class="done bad" role="alert" {
                            span class="strong" { (clean(&error.body.what, 200)) }
                            @if let Some(cause) = &error.body.cause { ": " (clean(cause, 400)) }
                            @if let Some(hint) = &error.body.hint { br; span class="muted" { (clean(hint, 400)) } }
                        }
                    }
                    section class="panel" { div class="pad" {
                        form class="form col" method="post" action="/login" autocomplete="off" {
                            @if is_own(back) { input type="hidden" name="back" value=(back); }
                            label class="w" { "Access token " textarea class="mono" name="token" required autofocus spellcheck="false" autocapitalize="off" {} }
                            button class="btn pri" { "Sign in" }
                        }
                    } }
                    p class="hint" { "In a terminal: " code { "POTOK_TOKEN=… potok top --admin HOST:PORT" } }
                }
            }
        }
    };
    respond(status, page.into_string(), None)
}
