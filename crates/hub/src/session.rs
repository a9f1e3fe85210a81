//! What a client says, from bytes to what it means, whatever the transport.

use std::sync::Arc;

use crate::calls;
use crate::connection::{Connection, Ending};
use crate::delivery::Settlements;
use crate::frame::number_of;
use crate::node::Node;
use crate::protocol::handshake::{self, Agreement};
use crate::protocol::inbound::Inbound;
use crate::protocol::{ClientMessage, Encoded, Framing, Protocol, ProtocolError};
use crate::resend::{Arrival, Numbering};
use crate::trouble::{Planted, planted};

/// Seconds after which a client that has said nothing counts as one that has read our answer.
const OPENS_AFTER: u32 = 2;

/// The state of reading one connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    inbound: Inbound,
    protocol: Option<Protocol>,
    /// Messages it may still send at once, in parts of a second's worth; refilled by time.
    allowance: u32,
    refilled: u32,
    /// Where its client may come back.
    numbering: Option<Numbering>,
    /// When its user is to know it at the latest, where that has to wait.
    opens_at: Option<u32>,
}

impl Session {
    /// Reads what arrived. An ending means that the connection cannot go on.
    pub fn feed(
        &mut self,
        node: &Arc<Node>,
        connection: &Arc<Connection>,
        bytes: &[u8],
    ) -> Result<(), Ending> {
        let mut arrived = self.inbound.join(bytes);
        let mut settlements = Settlements::default();
        loop {
            let (framing, limit) = match self.protocol {
                None => (Framing::Separated, handshake::BYTES_MAX),
                Some(protocol) => (protocol.framing(), node.limits().received_bytes),
            };
            let message = match arrived.next(framing, limit) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(broken) => {
                    let ending = violation(broken);
                    return Err(match self.protocol {
                        Some(_) => ending,
                        None => connection.refuse(handshake::UNREADABLE, node.now()),
                    });
                }
            };
            match self.protocol {
                None => self.shake_hands(node, connection, message)?,
                Some(protocol) => {
                    let bytes = message.len();
                    let message = protocol.parse(message).map_err(violation)?;
                    connection.hear(node.now());
                    self.open(node, connection);
                    if self.is_news(connection, &message)? {
                        self.take(node, connection, (message, bytes), &mut settlements)?;
                    }
                }
            }
        }
        self.inbound.keep(arrived);
        Ok(())
    }

    fn shake_hands(
        &mut self,
        node: &Arc<Node>,
        connection: &Arc<Connection>,
        message: &[u8],
    ) -> Result<(), Ending> {
        let binary = connection.origin.transport != crate::Transport::ServerSentEvents;
        match handshake::parse(message, binary) {
            Ok(Agreement { protocol, numbered }) => {
                self.protocol = Some(protocol);
                let answer = handshake::answer(None);
                let answer = match protocol {
                    Protocol::Json => Encoded::Text(answer.into()),
                    Protocol::MessagePack => Encoded::Binary(answer.into_bytes().into()),
                };
                connection.speak(protocol, answer, node.now());
                if numbered && connection.origin.returns {
                    // The stock client counts messages from when it has read the answer. What comes
                    // right behind it would not be counted, so we wait for its first word.
                    connection.number_messages();
                    self.numbering = Some(Numbering::default());
                    self.opens_at = Some(node.now() + OPENS_AFTER);
                } else {
                    node.open(connection);
                }
                Ok(())
            }
            Err(error) => Err(connection.refuse(&error, node.now())),
        }
    }

    /// Its user may know the connection, if they do not yet.
    fn open(&mut self, node: &Arc<Node>, connection: &Arc<Connection>) {
        if self.opens_at.take().is_some() {
            connection.note_open();
            node.open(connection);
        }
    }

    /// The same where its client has said nothing for long enough.
    pub fn open_in_time(&mut self, node: &Arc<Node>, connection: &Arc<Connection>) {
        if self.opens_at.is_some_and(|at| at <= node.now()) {
            self.open(node, connection);
        }
    }

    /// The client came back on another socket. It sends whole messages again.
    pub fn restart(&mut self) {
        self.inbound = Inbound::default();
        if let Some(numbering) = &mut self.numbering {
            numbering.restart();
        }
    }

    /// Whether a message was not read before.
    fn is_news(
        &mut self,
        connection: &Connection,
        message: &ClientMessage,
    ) -> Result<bool, Ending> {
        let Some(numbering) = &mut self.numbering else { return Ok(true) };
        Ok(match numbering.take(message).map_err(violation)? {
            Arrival::Known => false,
            Arrival::New(number) => {
                number.into_iter().for_each(|number| connection.receive(number));
                true
            }
        })
    }

    fn take(
        &mut self,
        node: &Arc<Node>,
        connection: &Arc<Connection>,
        (message, bytes): (ClientMessage, usize),
        settlements: &mut Settlements,
    ) -> Result<(), Ending> {
        match message {
            ClientMessage::Completion { id, completed } => {
                let (limits, now) = (node.limits(), node.now());
                let number = number_of(&id);
                let mut holder = connection.clone();
                if planted(limits, Planted::MatchById)
                    && let Some(other) = number.and_then(|number| node.anybody_owing(number))
                {
                    holder = other;
                }
                if holder.complete(number, completed, limits, now, settlements) {
                    // We asked for it.
                    return Ok(());
                }
            }
            ClientMessage::Invocation(call) => calls::accept(node, connection, call, bytes),
            ClientMessage::StreamInvocation { id, target } => {
                let shown: String = target.chars().filter(|c| !c.is_control()).take(64).collect();
                let error =
                    format!("The method '{shown}' cannot be streamed: this hub has no streams.");
                if let Some(protocol) = self.protocol {
                    connection.reply(protocol.completion(&id, &Err(error)), node.now());
                }
            }
            ClientMessage::Close => return Err(Ending::ByClient),
            ClientMessage::Ack(number) => connection.confirm(number, node.limits(), node.now()),
            ClientMessage::Ping
            | ClientMessage::StreamPart
            | ClientMessage::Sequence(_)
            | ClientMessage::Unknown => {}
        }
        self.spend(node)
    }

    /// A bucket that fills with time. Full at the first message.
    fn spend(&mut self, node: &Node) -> Result<(), Ending> {
        let (limits, now) = (node.limits(), node.now().max(1));
        if self.refilled == 0 {
            self.allowance = limits.received_burst;
        } else {
            let passed = now.saturating_sub(self.refilled);
            let more = passed.saturating_mul(limits.received_per_second);
            self.allowance = self.allowance.saturating_add(more).min(limits.received_burst);
        }
        self.refilled = now;
        self.allowance = self.allowance.checked_sub(1).ok_or(Ending::Violation)?;
        Ok(())
    }
}

fn violation(broken: ProtocolError) -> Ending {
    tracing::debug!(reason = broken.0, "a client broke the protocol");
    Ending::Violation
}
