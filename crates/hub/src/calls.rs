//! Methods that clients call: one at a time per connection, in order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::connection::{Connection, Ending};
use crate::contract::UserId;
use crate::node::Node;
use crate::protocol::Invocation;

const RESUME: &str = "resume";
/// Calls that a client may have waiting.
const WAITING_MAX: usize = 16;

/// Who calls.
#[derive(Clone, Debug)]
pub struct Caller {
    pub user: UserId,
    /// The connection's public id.
    pub connection: String,
}

/// Why a call failed, as far as its caller may know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The arguments are not what the method takes.
    Arguments,
    /// What the caller is told.
    Refused(String),
    /// Nothing the caller could do anything about.
    Failed,
}

/// A method of the hub. Called once per invocation, never twice at a time for one connection.
#[async_trait]
pub trait Method: Send + Sync {
    async fn call(&self, caller: Caller, arguments: Vec<Value>) -> Result<Value, CallError>;
}

/// Methods by their names in lower case: clients may write them as they like.
pub(crate) type Methods = HashMap<String, Arc<dyn Method>>;

/// The same in bytes, as they came, for every `received_bytes`: parsed, they are many times as large.
const WAITING_MESSAGES_MAX: usize = 2;

/// What a connection has called.
#[derive(Default)]
pub(crate) struct Calls {
    /// With their bytes.
    queue: VecDeque<(Invocation, usize)>,
    bytes: usize,
    running: bool,
}

/// Queues a call that came in a message of so many bytes, and starts a task for the connection's calls
/// where none runs.
pub(crate) fn accept(
    node: &Arc<Node>,
    connection: &Arc<Connection>,
    call: Invocation,
    bytes: usize,
) {
    let mut calls = connection.calls.lock().unwrap_or_else(PoisonError::into_inner);
    let most = WAITING_MESSAGES_MAX * node.limits().received_bytes;
    if calls.queue.len() >= WAITING_MAX || calls.bytes + bytes > most {
        drop(calls);
        return connection.end(Ending::Violation);
    }
    calls.queue.push_back((call, bytes));
    calls.bytes += bytes;
    if !std::mem::replace(&mut calls.running, true) {
        tokio::spawn(run(node.clone(), connection.clone()));
    }
}

async fn run(node: Arc<Node>, connection: Arc<Connection>) {
    loop {
        let call = {
            let mut calls = connection.calls.lock().unwrap_or_else(PoisonError::into_inner);
            match calls.queue.pop_front() {
                Some((call, bytes)) if connection.ending().is_none() => {
                    calls.bytes -= bytes;
                    call
                }
                _ => {
                    *calls = Calls::default();
                    return;
                }
            }
        };
        let (id, target) = (call.id.clone(), call.target.clone());
        // A task of its own, so that a method that panics is a call that failed.
        let done = tokio::spawn(answer(node.clone(), connection.clone(), call)).await;
        let answer = done.unwrap_or(Err(CallError::Failed));
        if let (Some(id), Some(protocol)) = (id, connection.protocol()) {
            let answer = answer.map_err(|error| told(&target, error));
            let mut encoded = protocol.completion(&id, &answer);
            if encoded.as_bytes().len() > node.limits().message_bytes {
                let instead = match target.eq_ignore_ascii_case(RESUME) {
                    true => Ok(gap(None)),
                    false => Err(told(&target, CallError::Failed)),
                };
                encoded = protocol.completion(&id, &instead);
            }
            connection.reply(encoded, node.now());
            // A client may call faster than it reads.
            if connection.queued_bytes() > node.limits().queued_bytes {
                connection.end(Ending::Slow);
            }
        }
    }
}

async fn answer(
    node: Arc<Node>,
    connection: Arc<Connection>,
    call: Invocation,
) -> Result<Value, CallError> {
    let shown: String = call.target.chars().filter(|c| !c.is_control()).take(64).collect();
    if call.streams {
        return Err(CallError::Refused("Streams are not supported by this hub.".to_owned()));
    }
    let arguments = call.arguments.ok_or(CallError::Arguments)?;
    let name = call.target.to_ascii_lowercase();
    if name == "refresh" {
        return refresh(&node, &connection, &arguments).await;
    }
    if name == RESUME {
        return resume(&node, &connection, &arguments).await;
    }
    let Some(method) = node.methods().get(&name) else {
        return Err(CallError::Refused(format!("Unknown hub method '{shown}'")));
    };
    let caller = Caller {
        user: connection.origin.user.clone(),
        connection: crate::negotiate::public_id(&connection.origin.id),
    };
    method.call(caller, arguments).await
}

/// `Refresh(token)`: a newer token of the same user keeps the connection. The result is its lifetime
/// in seconds.
async fn refresh(
    node: &Arc<Node>,
    connection: &Connection,
    arguments: &[Value],
) -> Result<Value, CallError> {
    let [Value::String(token)] = arguments else { return Err(CallError::Arguments) };
    let person = node
        .verify(token)
        .await
        .map_err(|refusal| CallError::Refused(format!("The token is refused: {refusal}")))?;
    if person.user != connection.origin.user {
        return Err(CallError::Refused("The token is another user's.".to_owned()));
    }
    Ok(node.extend(connection, &person).as_secs().into())
}

/// `Resume(last id)`: what the user may have missed since that message, or that nobody can say.
/// Acknowledges nothing.
async fn resume(
    node: &Node,
    connection: &Connection,
    arguments: &[Value],
) -> Result<Value, CallError> {
    let [Value::String(last)] = arguments else { return Err(CallError::Arguments) };
    if !connection.may_resume(node.now()) {
        return Err(CallError::Refused("Resume can be called once a second.".to_owned()));
    }
    let missed = node.missed_since(&connection.origin.user, last).await;
    Ok(gap(missed))
}

/// What a client that asks is told. What does not fit one answer cannot be told.
fn gap(missed: Option<Vec<Value>>) -> Value {
    json!({"recovered": missed.is_some(), "messages": missed.unwrap_or_default()})
}

/// What a client is told, in the words that stock clients know from the original.
fn told(target: &str, error: CallError) -> String {
    let target: String = target.chars().filter(|c| !c.is_control()).take(64).collect();
    match error {
        CallError::Arguments => {
            format!("Failed to invoke '{target}' due to an error on the server.")
        }
        CallError::Refused(why) => why,
        CallError::Failed => {
            format!("An unexpected error occurred invoking '{target}' on the server.")
        }
    }
}
