//! What the person who runs a hub asks it: metrics, who is connected, disconnect somebody. For a
//! loopback listener: nobody is asked who they are, so pages in a browser on this machine are kept
//! out by their `Origin` and by the host they asked for.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::connection::Ending;
use crate::contract::{ConnectionAsk, Hub, Transport, UserId};
use crate::copies::routing::Copies;
use crate::copies::views::seconds;
use crate::counters::Announcing;
use crate::node::{Node, wall_now};

/// Connections in one answer.
const LISTED_MAX: usize = 10_000;

/// `GET /metrics`, `GET /connections`, `POST /disconnect`, `GET /ready`.
pub fn admin(node: Arc<Node>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/connections", get(connections))
        .route("/disconnect", post(disconnect))
        .route("/ready", get(ready))
        .layer(middleware::from_fn(only_here))
        .with_state(node)
}

async fn only_here(request: Request, next: Next) -> Response {
    match is_of_this_machine(request.headers()) {
        true => next.run(request).await,
        false => (StatusCode::FORBIDDEN, "not for pages, nor under another name").into_response(),
    }
}

fn is_of_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let here = name == "localhost"
        || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    here && !headers.contains_key(header::ORIGIN)
}

#[derive(Deserialize)]
struct ConnectionQuery {
    user: Option<String>,
    limit: Option<usize>,
}

async fn connections(
    State(node): State<Arc<Node>>,
    Query(asked): Query<ConnectionQuery>,
) -> Json<Value> {
    let ask = ConnectionAsk {
        user: asked.user.as_deref().map(UserId::new),
        limit: asked.limit.unwrap_or(ConnectionAsk::default().limit).min(LISTED_MAX),
    };
    let list = node.connections(&ask).await;
    let connections: Vec<_> = list
        .connections
        .iter()
        .map(|view| {
            json!({
                "user": view.user.as_str(), "connection": view.id, "node": view.node,
                "since_timestamp_seconds": seconds(view.since), "address": view.address.to_string(),
                "agent": view.agent, "transport": view.transport.name(), "protocol": view.protocol,
                "queued_bytes": view.queued_bytes, "mute": view.mute,
            })
        })
        .collect();
    Json(json!({"total": list.total, "connections": connections, "silent_nodes": list.silent}))
}

#[derive(Deserialize)]
struct Disconnect {
    user: String,
    #[serde(default)]
    may_return: bool,
}

async fn disconnect(
    State(node): State<Arc<Node>>,
    Query(asked): Query<Disconnect>,
) -> Result<Json<Value>, (StatusCode, String)> {
    let before = (!asked.may_return).then(wall_now);
    let closed = node.disconnect(&UserId::new(&asked.user), before).await;
    let closed = closed.map_err(|away| (StatusCode::SERVICE_UNAVAILABLE, away.to_string()))?;
    Ok(Json(json!({"user": asked.user, "closed": closed})))
}

async fn ready(State(node): State<Arc<Node>>) -> Response {
    match node.not_ready() {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(node): State<Arc<Node>>) -> Response {
    let text = node.metrics();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

impl Node {
    /// Why no client should be sent here.
    pub fn not_ready(&self) -> Option<String> {
        if self.is_draining() {
            return Some("the hub is stopping".to_owned());
        }
        let listens = |copies: &Copies| *copies.listening.borrow() && self.negotiation.has_key();
        if self.copies().is_some_and(|copies| !listens(copies)) {
            return Some("the Redis of the hub's nodes cannot be reached".to_owned());
        }
        self.authority().not_ready()
    }

    /// For Prometheus. No user, address or id is a label.
    pub fn metrics(&self) -> String {
        let (stats, hub) = (self.stats(), &self.settings().name);
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
            let _ = writeln!(out, "# HELP potok_hub_{name} {help}\n# TYPE potok_hub_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(out, "potok_hub_{name}{{hub=\"{hub}\"{labels}}} {value}");
            }
        };
        let one = |value: u64| [(String::new(), value)];
        let by = |label: &str, value: &str, count: u64| (format!(",{label}=\"{value}\""), count);
        let ways = self.connections_by_way();
        let ways: Vec<_> = ways
            .iter()
            .map(|((transport, protocol), count)| {
                let (label, transport) = ("transport", transport.name());
                (format!(",{label}=\"{transport}\",protocol=\"{protocol}\""), *count)
            })
            .collect();
        family("connections", "gauge", "Connections now.", &ways);
        family(
            "users",
            "gauge",
            "People with a connection to this node now.",
            &one(stats.users as u64),
        );
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let connects = [
            by("result", "accepted", stats.connected),
            by("result", "full", of(&self.counters().full)),
            by("result", "stopping", of(&self.counters().stopping)),
        ];
        let help = "Connections there have been, and clients that were turned away.";
        family("connects_total", "counter", help, &connects);
        let closes: Vec<_> = Ending::ALL
            .iter()
            .zip(self.counters().closes())
            .map(|(ending, count)| by("reason", ending.name(), count))
            .collect();
        family("closes_total", "counter", "Connections that ended.", &closes);
        family("sent_messages_total", "counter", "Messages to send.", &one(stats.sent));
        let answers = [
            by("kind", "acknowledged", stats.acknowledged),
            by("kind", "nobody", stats.nobody),
            by("kind", "no_answer", stats.no_answer),
            by("kind", "unavailable", stats.unavailable),
        ];
        family("answers_total", "counter", "How messages ended.", &answers);
        let completions = [
            by("kind", "result", of(&self.counters().result)),
            by("kind", "void", of(&self.counters().void)),
            by("kind", "no_result", stats.no_result),
            by("kind", "multiple", of(&self.counters().multiple)),
            by("kind", "threw", stats.threw),
            by("kind", "late", stats.late),
            by("kind", "unknown", stats.unknown),
        ];
        family("completions_total", "counter", "What clients said of messages.", &completions);
        let mute = self.users().list(None).iter().filter(|one| one.is_mute()).count();
        let help = "Connections that are sent to, and not waited for.";
        family("mute_connections", "gauge", help, &one(mute as u64));
        let help = "Clients dropped because they did not read.";
        family("slow_clients_total", "counter", help, &one(stats.slow));
        let help = "Bytes on their way out, and of what waits for a user or for another node.";
        family("queue_bytes", "gauge", help, &one(stats.queued_bytes as u64));
        let lingered = [
            by("outcome", "found", of(&self.counters().lingered_found)),
            by("outcome", "nobody", of(&self.counters().lingered_nobody)),
            by("outcome", "unavailable", of(&self.counters().lingered_unavailable)),
        ];
        let help = "Messages that waited for somebody who had just left.";
        family("linger_total", "counter", help, &lingered);
        let help = "Connections that ended as soon as they were asked for their first answer.";
        family("closed_on_id_total", "counter", help, &one(of(&self.counters().closed_on_id)));
        let refusals = self.counters().refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let refusals: Vec<_> =
            refusals.iter().map(|(reason, count)| by("reason", reason, *count)).collect();
        family("token_refusals_total", "counter", "Tokens refused.", &refusals);
        let failed = self.authority().failed_fetches();
        let fetches = [
            by("result", "ok", stats.key_fetches.saturating_sub(failed)),
            by("result", "failed", failed),
        ];
        family("jwks_fetches_total", "counter", "Fetches of the issuer's keys.", &fetches);
        if let Some(copies) = self.copies() {
            let nodes = copies.others().len() as u64 + 1;
            family("nodes", "gauge", "Nodes with a lease, as this one sees it.", &one(nodes));
            let announced: Vec<_> = Announcing::ALL
                .iter()
                .zip(&self.counters().announced)
                .map(|(why, count)| by("why", why.name(), of(count)))
                .collect();
            let help = "How often all users were announced to the other nodes.";
            family("announces_total", "counter", help, &announced);
            let help = "How often the line to the other nodes broke.";
            family("bus_lost_total", "counter", help, &one(of(&self.counters().lines_lost)));
        }
        out
    }

    fn connections_by_way(&self) -> Vec<((Transport, &'static str), u64)> {
        let mut ways: Vec<_> = Transport::ALL
            .into_iter()
            .flat_map(|transport| [((transport, "json"), 0), ((transport, "messagepack"), 0)])
            .collect();
        for connection in self.users().list(None) {
            let protocol = connection.protocol().map_or("", |protocol| protocol.name());
            let way = (connection.origin.transport, protocol);
            if let Some((_, count)) = ways.iter_mut().find(|(other, _)| *other == way) {
                *count += 1;
            }
        }
        ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_other_names_are_kept_out() {
        let with = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            is_of_this_machine(&headers)
        };
        assert!(
            with("127.0.0.1:7603", None) && with("[::1]:7603", None) && with("localhost", None)
        );
        assert!(!with("127.0.0.1:7603", Some("http://127.0.0.1:7603")));
        assert!(!with("evil.example.com:7603", None));
    }
}
