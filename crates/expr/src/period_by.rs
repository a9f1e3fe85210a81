//! A period that a record says itself, or that hangs on a value of it.

use std::collections::HashMap;
use std::time::Duration;

use crate::{Scope, Template};

/// Finds the period of a record. What the record says wins over what its value is mapped to; a
/// record that says neither has none.
#[derive(Clone, Debug, Default)]
pub struct PeriodBy {
    /// The value that is looked up in `map`.
    pub by: Option<Template>,
    /// The period for each value.
    pub map: HashMap<Vec<u8>, Duration>,
    /// Where the record says it, as a number of milliseconds.
    pub millis: Option<Template>,
}

impl PeriodBy {
    /// True where some part reads the record's value, so that it must be JSON.
    pub fn needs_value(&self) -> bool {
        self.by.iter().chain(&self.millis).any(Template::needs_value)
    }

    /// The period of a record. A number that is none, is not above zero, or is beyond all use is as
    /// good as nothing.
    pub fn find(&self, scope: &Scope<'_>) -> Option<Duration> {
        let mut text = Vec::new();
        let said = self.millis.as_ref().filter(|millis| millis.eval(scope, &mut text));
        let said = said.and_then(|_| std::str::from_utf8(&text).ok()?.trim().parse::<f64>().ok());
        // A day is long for a conversation, and a whole number of milliseconds fits everywhere.
        let said = said.filter(|millis| *millis >= 1.0 && *millis <= 86_400_000.0);
        if let Some(millis) = said {
            return Some(Duration::from_millis(millis as u64));
        }
        let mut value = Vec::new();
        let by = self.by.as_ref()?;
        by.eval(scope, &mut value).then(|| self.map.get(&value).copied()).flatten()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_core::Headers;

    use super::*;
    use crate::json::Parser;

    #[test]
    fn what_the_record_says_wins_over_its_channel() {
        let quiet = PeriodBy {
            by: Some(Template::parse(".channel").unwrap()),
            map: HashMap::from([(b"avito".to_vec(), Duration::from_secs(20))]),
            millis: Some(Template::parse(".debounce_ms").unwrap()),
        };
        let mut parser = Parser::new();
        let mut find = |value: &str| {
            let headers = Headers::none();
            let value = parser.parse(value.as_bytes()).ok();
            let scope =
                Scope { value, key: None, headers: &headers, topic: "t", id: None, receiver: None };
            quiet.find(&scope).map(|period| period.as_millis())
        };
        assert_eq!(find(r#"{"channel":"avito","debounce_ms":5000}"#), Some(5_000));
        assert_eq!(find(r#"{"channel":"x","debounce_ms":"700"}"#), Some(700));
        assert_eq!(find(r#"{"channel":"avito"}"#), Some(20_000));
        for nothing in ["0", "-1", "1e99", "\"soon\"", "null", "[]"] {
            let value = format!(r#"{{"channel":"avito","debounce_ms":{nothing}}}"#);
            assert_eq!(find(&value), Some(20_000), "{nothing}");
        }
        assert_eq!(find(r#"{"channel":"telegram"}"#), None);
        assert!(quiet.needs_value());
    }
}
