//! The first message of a connection, always in JSON, and the answer to it.

use serde::Deserialize;

use super::Protocol;

/// Longer ones are refused.
pub const BYTES_MAX: usize = 4 << 10;
/// Adds stateful reconnects, which a client only uses where negotiation offered them.
const VERSION_MAX: u64 = 2;

/// What clients are told, in the words of the original: where it did not come in time, and where it
/// is none.
pub const TOO_LATE: &str = "Handshake was canceled.";
pub const UNREADABLE: &str = "An unexpected error occurred during connection handshake.";

/// What a client and the hub agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    pub protocol: Protocol,
    /// Whether the client counts messages, and may come back to its connection.
    pub numbered: bool,
}

#[derive(Deserialize)]
struct Request {
    protocol: String,
    version: u64,
}

/// What a client asks for, or what it is told.
pub fn parse(message: &[u8], binary: bool) -> Result<Agreement, String> {
    let request: Request = serde_json::from_slice(message).map_err(|_| UNREADABLE.to_owned())?;
    let protocol = match request.protocol.as_str() {
        "json" => Protocol::Json,
        "messagepack" if binary => Protocol::MessagePack,
        "messagepack" => {
            return Err("Cannot use the 'messagepack' protocol on the current transport. The \
                        transport does not support 'Binary' transfer format."
                .to_owned());
        }
        other => {
            let shown: String = other.chars().filter(|c| !c.is_control()).take(32).collect();
            return Err(format!("The protocol '{shown}' is not supported."));
        }
    };
    if request.version == 0 || request.version > VERSION_MAX {
        let (name, version) = (protocol.name(), request.version);
        let why =
            format!("The server does not support version {version} of the '{name}' protocol.");
        return Err(why);
    }
    Ok(Agreement { protocol, numbered: request.version == VERSION_MAX })
}

/// What a client is told, with the separator.
pub fn answer(refusal: Option<&str>) -> String {
    match refusal {
        None => "{}\u{1e}".to_owned(),
        Some(error) => format!("{}\u{1e}", serde_json::json!({ "error": error })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_and_versions_are_chosen() {
        let ask = |text: &str| parse(text.as_bytes(), true);
        let agreed = |protocol, numbered| Ok(Agreement { protocol, numbered });
        assert_eq!(ask(r#"{"protocol":"json","version":1}"#), agreed(Protocol::Json, false));
        let both = ask(r#"{"protocol":"messagepack","version":2}"#);
        assert_eq!(both, agreed(Protocol::MessagePack, true));
        // In the words of the original.
        for (asked, told) in [
            (
                r#"{"protocol":"json","version":3}"#,
                "The server does not support version 3 of the 'json' protocol.",
            ),
            (r#"{"protocol":"protobuf","version":1}"#, "The protocol 'protobuf' is not supported."),
            ("{}", UNREADABLE),
            ("nonsense", UNREADABLE),
        ] {
            assert_eq!(ask(asked), Err(told.to_owned()), "{asked}");
        }
        let text_only = parse(br#"{"protocol":"messagepack","version":1}"#, false).unwrap_err();
        assert!(text_only.contains("'Binary' transfer format"), "{text_only}");
        assert_eq!(answer(Some("a\u{1e}")).bytes().filter(|b| *b == 0x1e).count(), 1);
    }
}
