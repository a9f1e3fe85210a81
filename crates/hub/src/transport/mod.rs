//! How bytes travel. WebSockets have a task each; the other two live in requests.

pub mod http_side;
pub mod long_polling;
pub mod server_sent_events;
pub mod websocket;
