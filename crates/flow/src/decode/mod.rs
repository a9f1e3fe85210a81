//! decode: from bytes to events, one file per format. Bad bytes become dead letters, never errors.

mod json;
mod quick;
mod raw;

pub use json::JsonDecoder;
pub use raw::RawDecoder;
