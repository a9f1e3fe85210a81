//! The environment, and `${NAME}` in files.
//!
//! `${NAME}` is replaced by the variable, `${NAME:-default}` by the default where the variable is
//! not set or empty, `$${` stands for a literal `${`. Only values are replaced, never keys, and
//! what was put in is not read again. Deliberately no commands, no nesting, no arithmetic.

use std::collections::BTreeMap;
use std::ops::Range;

/// A snapshot of environment variables.
#[derive(Clone, Default)]
pub struct Env(BTreeMap<String, String>);

/// Values may be secret, so only the number of variables is printed.
impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Env({} variables)", self.0.len())
    }
}

impl Env {
    /// The environment of this process. Variables that are not UTF-8 are left out.
    pub fn process() -> Self {
        let text = |os: std::ffi::OsString| os.into_string().ok();
        Env(std::env::vars_os().filter_map(|(k, v)| Some((text(k)?, text(v)?))).collect())
    }

    /// An environment of exactly these variables.
    pub fn of<K: Into<String>, V: Into<String>>(vars: impl IntoIterator<Item = (K, V)>) -> Self {
        Env(vars.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }

    /// A variable that is set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Every variable that is set and not empty.
    pub(crate) fn all_given(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(|(_, value)| !value.is_empty())
    }

    /// A variable that is set and not empty: what overrides a setting.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }
}

/// A stretch of text that was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replacement {
    /// What stands there now.
    pub now: Range<usize>,
    /// What stood there before.
    pub before: Range<usize>,
}

/// A `${…}` that cannot be replaced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnsetVariable {
    pub at: Range<usize>,
    pub what: String,
    pub hint: String,
}

/// Replaces every `${…}` of `text`. `room` is how many bytes may still be put into the file: a
/// long variable named many times must not fill the memory.
pub(crate) fn substitute(
    text: &str,
    env: &Env,
    room: &mut usize,
) -> Result<(String, Vec<Replacement>), Vec<UnsetVariable>> {
    let (mut out, mut replaced, mut unset) = (String::new(), Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('$')) {
        let dollar = at + found;
        out.push_str(text.get(at..dollar).unwrap_or_default());
        let rest = text.get(dollar..).unwrap_or_default();
        let (put, len) = if rest.starts_with("$${") {
            ("${".to_owned(), 3)
        } else if rest.starts_with("${") {
            match variable(rest, env) {
                Ok((put, len)) if put.len() > *room => {
                    let what = "the environment puts too much text into this file".to_owned();
                    let hint = "name long values where they are used, once".to_owned();
                    unset.push(UnsetVariable { at: dollar..dollar + len, what, hint });
                    (String::new(), len)
                }
                Ok(put) => put,
                Err((len, what, hint)) => {
                    unset.push(UnsetVariable { at: dollar..dollar + len, what, hint });
                    (String::new(), len)
                }
            }
        } else {
            out.push('$');
            at = dollar + 1;
            continue;
        };
        let from = out.len();
        *room = room.saturating_sub(put.len());
        out.push_str(&put);
        replaced.push(Replacement { now: from..out.len(), before: dollar..dollar + len });
        at = dollar + len;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    if unset.is_empty() { Ok((out, replaced)) } else { Err(unset) }
}

/// The value of the `${…}` at the start of `rest`, and how long that `${…}` is.
fn variable(rest: &str, env: &Env) -> Result<(String, usize), (usize, String, String)> {
    let Some(end) = rest.find('}') else {
        return Err((
            2,
            "`${` without a closing `}`".into(),
            "write `$${` where `${` itself is meant".into(),
        ));
    };
    let inner = rest.get(2..end).unwrap_or_default();
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    if !is_name(name) {
        return Err((
            end + 1,
            format!("`{name}` is not the name of an environment variable"),
            "letters, digits and `_`; write `$${` where `${` itself is meant".into(),
        ));
    }
    let value = match default {
        Some(default) => env.given(name).unwrap_or(default),
        None => env.get(name).ok_or_else(|| {
            (
                end + 1,
                format!("the environment variable `{name}` is not set"),
                format!("set it, or give a default: `${{{name}:-…}}`"),
            )
        })?,
    };
    Ok((value.to_owned(), end + 1))
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn env() -> Env {
        Env::of([("A", "1"), ("EMPTY", ""), ("DOLLAR", "${A}")])
    }

    #[test]
    fn variables_defaults_and_escapes() {
        for (text, expected) in [
            ("${A}", "1"),
            ("x${A}y${A}z", "x1y1z"),
            ("${B:-2}", "2"),
            ("${EMPTY:-2}", "2"),
            ("${EMPTY}", ""),
            ("${B:-}", ""),
            ("${B:-a:-b}", "a:-b"),
            ("$${A}", "${A}"),
            ("$$${A}", "$${A}"),
            ("costs 5$, $A", "costs 5$, $A"),
            ("${DOLLAR}", "${A}"),
            ("ä${A}ö", "ä1ö"),
        ] {
            assert_eq!(substitute(text, &env(), &mut 100).unwrap().0, expected, "{text}");
        }
    }

    #[test]
    fn every_unset_variable_is_named_with_its_place() {
        let unset = substitute("a ${X} ${Y} ${", &env(), &mut 100).unwrap_err();
        let places: Vec<_> = unset.iter().map(|u| u.at.clone()).collect();
        assert_eq!(places, [2..6, 7..11, 12..14]);
        assert!(
            substitute("${1A}", &env(), &mut 100).unwrap_err()[0].what.contains("not the name")
        );
    }

    #[test]
    fn what_is_put_in_is_bounded() {
        let unset = substitute("${A}${A}${A}", &env(), &mut 2).unwrap_err();
        assert_eq!(unset[0].at, 8..12);
    }

    #[test]
    fn debug_prints_no_value() {
        assert_eq!(format!("{:?}", env()), "Env(3 variables)");
    }
}
