//! The hub over HTTP: `/hubs/<name>` and `/hubs/<name>/negotiate`.
//!
//! What a stranger can make us do comes in this order: limits of the address, origin, form of the
//! token, its signature. Nothing is stored before the signature holds. No URL of these routes is ever
//! logged: browsers put tokens into them.

mod accept;
mod network;
mod origin;
mod peers;
mod request;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};

pub use self::accept::{listen, serve};
pub use self::network::Network;
use self::peers::{Peer, Peers};
use self::request::RequestQuery;
use crate::connection::{Connection, Origin};
use crate::contract::Transport;
use crate::counters::add;
use crate::live::Unattached;
use crate::negotiate::{self, Secret};
use crate::node::{Attachment, Node, wall_now};
use crate::random;
use crate::tokens::{Person, Refusal};
use crate::transport::{long_polling, server_sent_events, websocket};
use crate::trouble::{Planted, planted};

/// How much of a client's name is kept.
const AGENT_BYTES_MAX: usize = 48;
/// Bytes that are gathered before a socket is asked to take them.
const WRITE_BUFFER_BYTES: usize = 8 << 10;
/// Read at once; a larger buffer would be the largest part of an idle connection.
const READ_BUFFER_BYTES: usize = 1 << 10;

struct Door {
    node: Arc<Node>,
    peers: Arc<Peers>,
}

/// The routes of a hub.
fn router(node: Arc<Node>, peers: Arc<Peers>) -> Router {
    Router::new().fallback(handle).with_state(Arc::new(Door { node, peers }))
}

async fn handle(State(door): State<Arc<Door>>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    let asked = RequestQuery::new(&request);
    let settings = door.node.settings();
    let base = format!("/hubs/{}", settings.name);
    let path = request.uri.path();
    let negotiating = match path.strip_prefix(&base) {
        Some("") => false,
        Some("/negotiate") => true,
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let trusted = peers::is_trusted(&request, settings);
    if !origin::is_allowed(&request.headers, settings, trusted) {
        return (StatusCode::FORBIDDEN, "this origin may not connect").into_response();
    }
    let allowed = request.headers.get(header::ORIGIN).cloned();
    let mut response = match request.method {
        // Before anything is asked of it: a preflight carries no token.
        Method::OPTIONS => origin::preflight(),
        Method::POST if negotiating => answer(door.negotiate(&asked, &request).await),
        _ if negotiating => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        Method::GET => answer(door.attach(asked, request).await),
        Method::POST => answer(door.post(&asked, &request, body).await),
        Method::DELETE => answer(door.delete(&asked, &request).await),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    };
    if planted(&settings.limits, Planted::CorsOnlyOn200) && !response.status().is_success() {
        return response;
    }
    // On errors too: without these a browser hides them from the page.
    origin::allow(response.headers_mut(), allowed);
    response
}

/// A request that is not served, and why.
struct HttpRefusal(StatusCode, String);

fn no(status: StatusCode, why: impl Into<String>) -> HttpRefusal {
    HttpRefusal(status, why.into())
}

fn answer(served: Result<Response, HttpRefusal>) -> Response {
    served.unwrap_or_else(|HttpRefusal(status, why)| {
        let mut response = (status, why).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    })
}

impl Door {
    async fn negotiate(
        &self,
        asked: &RequestQuery,
        request: &Parts,
    ) -> Result<Response, HttpRefusal> {
        self.has_room()?;
        if !self.node.negotiation.has_key() {
            // What is signed with a key of this node's own is of no use elsewhere.
            let why = "the hub cannot reach its other nodes yet";
            return Err(no(StatusCode::SERVICE_UNAVAILABLE, why));
        }
        let person = self.verify(asked, request, false).await?;
        let refusal = negotiate::refusal(asked.query("negotiateVersion"), &asked.agent);
        let json = match refusal.filter(|_| !self.takes_everybody()) {
            Some(error) => serde_json::json!({ "error": error }),
            None => {
                let wanted = asked.query("useStatefulReconnect") == Some("true");
                let returns = wanted && self.node.lets_return();
                let (id, secret) = self.node.negotiation.issue(&person.user, returns);
                negotiate::answer(&id, &secret, self.node.is_sticky(), returns)
            }
        };
        Ok(axum::Json(json).into_response())
    }

    fn takes_everybody(&self) -> bool {
        planted(self.node.limits(), Planted::IdForEverybody)
    }

    fn has_room(&self) -> Result<(), HttpRefusal> {
        if self.node.is_draining() {
            add(&self.node.counters().stopping);
            return Err(no(StatusCode::SERVICE_UNAVAILABLE, "the hub is stopping"));
        }
        if self.node.is_full() {
            add(&self.node.counters().full);
            return Err(no(StatusCode::SERVICE_UNAVAILABLE, "the hub is full"));
        }
        Ok(())
    }

    /// A GET: the beginning of one of the transports, or another poll.
    async fn attach(&self, asked: RequestQuery, request: Parts) -> Result<Response, HttpRefusal> {
        let upgrade = request.headers.get(header::UPGRADE);
        let is_websocket =
            upgrade.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
        let accept = request.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
        let is_events = accept.is_some_and(|accept| accept.contains("text/event-stream"));
        let transport = match (is_websocket, is_events) {
            (true, _) => Transport::WebSockets,
            (false, true) => Transport::ServerSentEvents,
            (false, false) => Transport::LongPolling,
        };
        let person = self.verify(&asked, &request, transport != Transport::LongPolling).await?;
        if negotiate::is_too_old(&asked.agent) && !self.takes_everybody() {
            let why =
                format!("this hub needs @microsoft/signalr {} or newer", negotiate::CLIENT_MIN);
            return Err(no(StatusCode::BAD_REQUEST, why));
        }
        if transport == Transport::WebSockets {
            return self.attach_websocket(&asked, request, &person).await;
        }
        if !self.node.is_sticky() {
            let why =
                format!("{} transport not supported by this end point type", transport.name());
            return Err(no(StatusCode::NOT_FOUND, why));
        }
        let secret = self.secret(&asked, &person)?;
        let live = self.node.find(&secret.id).filter(|_| secret.ours);
        if let Some(connection) = live {
            return match (transport, connection.origin.transport) {
                (Transport::LongPolling, Transport::LongPolling) => {
                    self.node.extend(&connection, &person);
                    Ok(long_polling::poll(&self.node, &connection).await)
                }
                (wanted, has) if wanted == has => {
                    Err(no(StatusCode::CONFLICT, "the connection has a transport already"))
                }
                _ => Err(no(StatusCode::BAD_REQUEST, "Cannot change transports mid-connection")),
            };
        }
        if !secret.ours || !secret.fresh {
            return Err(no(StatusCode::NOT_FOUND, "No Connection with that ID"));
        }
        let attachment = self.begin((secret.id, false), &asked, &request, transport, &person)?;
        Ok(match transport {
            Transport::ServerSentEvents => {
                server_sent_events::response(self.node.clone(), attachment)
            }
            _ => long_polling::begin(attachment),
        })
    }

    async fn attach_websocket(
        &self,
        asked: &RequestQuery,
        mut request: Parts,
        person: &Person,
    ) -> Result<Response, HttpRefusal> {
        let (id, returns) = match asked.query("id") {
            Some(_) => {
                let secret = self.secret(asked, person)?;
                let live = self.node.find(&secret.id).filter(|_| secret.ours && secret.returns);
                if let Some(connection) = live.clone().filter(|live| live.waits_for_return()) {
                    return self.come_back(connection, request, person).await;
                }
                let stateful = planted(self.node.limits(), Planted::NegotiateKeepsState);
                let elsewhere = (stateful || secret.returns) && !secret.ours;
                // Who wants to come back to what is over must not be taken for somebody new.
                let over = live.is_some_and(|live| live.ending().is_some());
                if !secret.fresh || elsewhere || over || self.node.is_spent(&secret.id) {
                    return Err(no(StatusCode::NOT_FOUND, "No Connection with that ID"));
                }
                (secret.id, secret.returns)
            }
            // A client that skips negotiation has not met the limits yet.
            None => self.has_room().map(|()| (random::bytes(), false))?,
        };
        let upgrade = self.upgrade(&mut request).await?;
        let attachment =
            self.begin((id, returns), asked, &request, Transport::WebSockets, person)?;
        let node = self.node.clone();
        Ok(upgrade.on_upgrade(move |socket| websocket::run(node, attachment, socket)))
    }

    /// A client whose socket broke is back with another.
    async fn come_back(
        &self,
        connection: Arc<Connection>,
        mut request: Parts,
        person: &Person,
    ) -> Result<Response, HttpRefusal> {
        let upgrade = self.upgrade(&mut request).await?;
        self.node.extend(&connection, person);
        Ok(upgrade.on_upgrade(move |socket| async move {
            connection.slot.put(socket);
            connection.wake();
        }))
    }

    async fn upgrade(&self, request: &mut Parts) -> Result<WebSocketUpgrade, HttpRefusal> {
        let limits = &self.node.settings().limits;
        let upgrade = WebSocketUpgrade::from_request_parts(request, &()).await;
        let upgrade =
            upgrade.map_err(|rejected| no(StatusCode::BAD_REQUEST, rejected.to_string()))?;
        Ok(upgrade
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(WRITE_BUFFER_BYTES)
            .max_write_buffer_size(WRITE_BUFFER_BYTES + 2 * limits.queued_bytes)
            .max_message_size(limits.received_bytes)
            .max_frame_size(limits.received_bytes))
    }

    /// A new connection of the node.
    fn begin(
        &self,
        (id, returns): ([u8; 16], bool),
        asked: &RequestQuery,
        request: &Parts,
        transport: Transport,
        person: &Person,
    ) -> Result<Attachment, HttpRefusal> {
        let agent: String = asked.agent.chars().take(AGENT_BYTES_MAX).collect();
        let origin = Origin {
            id,
            user: person.user.clone(),
            address: peers::address(request, self.node.settings()),
            agent: agent.into(),
            transport,
            returns,
            opened: wall_now(),
        };
        let attachment = self.node.attach(origin, person);
        attachment.map_err(|unattached| match unattached {
            Unattached::Taken => no(StatusCode::CONFLICT, "the connection has a transport already"),
            Unattached::Full => {
                add(&self.node.counters().full);
                no(StatusCode::SERVICE_UNAVAILABLE, "the hub is full")
            }
        })
    }

    /// What a client says where its transport cannot.
    async fn post(
        &self,
        asked: &RequestQuery,
        request: &Parts,
        body: Body,
    ) -> Result<Response, HttpRefusal> {
        let person = self.verify(asked, request, false).await?;
        let connection = self.connection(asked, &person)?;
        let Some(http) = connection.http.as_deref() else {
            return Err(no(StatusCode::METHOD_NOT_ALLOWED, "a WebSocket takes messages itself"));
        };
        self.node.extend(&connection, &person);
        let limits = &self.node.settings().limits;
        let body = Limited::new(body, limits.received_bytes).collect();
        let body = tokio::time::timeout(limits.head_within, body).await;
        let body = body.map_err(|_| no(StatusCode::REQUEST_TIMEOUT, "the body took too long"))?;
        let body = body.map_err(|_| no(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"))?;
        let mut session = http.session.lock().await;
        if connection.ending().is_some() {
            // It went while the body came.
            return Err(no(StatusCode::NOT_FOUND, "No Connection with that ID"));
        }
        if let Err(ending) = session.feed(&self.node, &connection, &body.to_bytes()) {
            connection.end(ending);
        }
        Ok(StatusCode::OK.into_response())
    }

    async fn delete(&self, asked: &RequestQuery, request: &Parts) -> Result<Response, HttpRefusal> {
        let person = self.verify(asked, request, false).await?;
        let connection = self.connection(asked, &person)?;
        if connection.origin.transport != Transport::LongPolling {
            return Err(no(StatusCode::BAD_REQUEST, "only long polling is ended this way"));
        }
        connection.end(crate::connection::Ending::ByClient);
        Ok(StatusCode::ACCEPTED.into_response())
    }

    /// The live connection that a request is about, if it is its user's.
    fn connection(
        &self,
        asked: &RequestQuery,
        person: &Person,
    ) -> Result<Arc<Connection>, HttpRefusal> {
        let secret = self.secret(asked, person)?;
        let live = self.node.find(&secret.id).filter(|_| secret.ours);
        live.ok_or_else(|| no(StatusCode::NOT_FOUND, "No Connection with that ID"))
    }

    fn secret(&self, asked: &RequestQuery, person: &Person) -> Result<Secret, HttpRefusal> {
        let Some(id) = asked.query("id") else {
            return Err(no(StatusCode::BAD_REQUEST, "Connection ID required"));
        };
        let within = self.node.settings().limits.attach_within;
        let negotiation = &self.node.negotiation;
        negotiation.check(id, &person.user, within).ok_or_else(|| {
            // As the original has it: who has the secret, and speaks for somebody else, is told so.
            let named = negotiate::named(id).and_then(|named| self.node.find(&named));
            match named.and_then(|live| negotiation.check(id, &live.origin.user, within)) {
                Some(_) => no(StatusCode::FORBIDDEN, "the connection is another user's"),
                None => no(StatusCode::NOT_FOUND, "No Connection with that ID"),
            }
        })
    }

    /// Who asks.
    async fn verify(
        &self,
        asked: &RequestQuery,
        request: &Parts,
        in_query: bool,
    ) -> Result<Person, HttpRefusal> {
        let peer = request.extensions.get::<Peer>();
        let authority = self.node.authority();
        if authority.is_for_development() && !peers::is_of_this_machine(request, self.node.limits())
        {
            return Err(no(
                StatusCode::FORBIDDEN,
                "this hub has no issuer set, and then serves only clients on its own machine",
            ));
        }
        let token =
            asked.token(request, in_query).map_err(|why| no(StatusCode::BAD_REQUEST, why))?;
        let address = peers::address(request, self.node.settings());
        if !self.peers.may_try(address) {
            return Err(no(StatusCode::TOO_MANY_REQUESTS, "too many tokens were refused"));
        }
        match self.node.verify(token.unwrap_or_default()).await {
            Ok(person) => {
                if let Some(peer) = peer {
                    peer.is_known();
                }
                Ok(person)
            }
            Err(Refusal::NoKeys) => {
                let why = "the hub cannot check tokens yet";
                Err(no(StatusCode::SERVICE_UNAVAILABLE, why))
            }
            Err(refusal) => {
                self.peers.refused(address);
                Err(no(StatusCode::UNAUTHORIZED, format!("the token is refused: {refusal}")))
            }
        }
    }
}
