//! Values that are written as text and mean more than text: durations, sizes, names, addresses.
//!
//! Each type reads itself in one place, [`TextValue::read`]; the check of a file, the deserializer
//! and the environment all use that, so they cannot disagree.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::connector::{ConnectionKind, Misfit};
use crate::problem::code;

/// Why a text is not what it should be. Never holds the text of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextError {
    pub code: &'static str,
    /// The bytes of the text that are meant.
    pub at: Range<usize>,
    pub what: String,
    pub hint: Option<String>,
}

impl TextError {
    pub fn new(
        code: &'static str,
        at: Range<usize>,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        TextError { code, at, what: what.into(), hint: Some(hint.into()) }
    }
}

/// A type that is written as text.
pub(crate) trait TextValue: Sized {
    /// Its name as a `format` in the JSON Schema, by which the check finds it again.
    const FORMAT: &'static str;
    /// For editors; the check itself uses [`TextValue::read`].
    const PATTERN: Option<&'static str> = None;
    /// Never shown, whatever happens.
    const SECRET: bool = false;

    /// Reads it; every problem at once.
    fn read(text: &str) -> Result<Self, Vec<TextError>>;
}

/// Checks a text against the type with that `format`. Unknown formats take everything.
pub(crate) fn check_format(format: &str, text: &str) -> Vec<TextError> {
    fn check<T: TextValue>(text: &str) -> Vec<TextError> {
        T::read(text).err().unwrap_or_default()
    }
    type Check = (&'static str, fn(&str) -> Vec<TextError>);
    use crate::{auth, connections as c, expression as e};
    const CHECKS: &[Check] = &[
        (Period::FORMAT, check::<Period>),
        (Size::FORMAT, check::<Size>),
        (PipelineName::FORMAT, check::<PipelineName>),
        (TopicName::FORMAT, check::<TopicName>),
        (SqlName::FORMAT, check::<SqlName>),
        (ConnectionName::FORMAT, check::<ConnectionName>),
        (ShardedName::FORMAT, check::<ShardedName>),
        (CounterName::FORMAT, check::<CounterName>),
        (Address::FORMAT, check::<Address>),
        (HttpPath::FORMAT, check::<HttpPath>),
        (EachPath::FORMAT, check::<EachPath>),
        (e::Expression::FORMAT, check::<e::Expression>),
        (e::Rows::FORMAT, check::<e::Rows>),
        (e::CountPath::FORMAT, check::<e::CountPath>),
        (e::FieldPath::FORMAT, check::<e::FieldPath>),
        (e::Predicate::FORMAT, check::<e::Predicate>),
        (c::LogText::FORMAT, check::<c::LogText>),
        (c::StoreText::FORMAT, check::<c::StoreText>),
        (c::QueueText::FORMAT, check::<c::QueueText>),
        (auth::WebAddress::FORMAT, check::<auth::WebAddress>),
        (auth::PageOrigin::FORMAT, check::<auth::PageOrigin>),
        (auth::Proxies::FORMAT, check::<auth::Proxies>),
    ];
    CHECKS.iter().find(|(name, _)| *name == format).map_or_else(Vec::new, |(_, check)| check(text))
}

/// Checks the text of a named connection.
pub(crate) fn check_connection(kind: &ConnectionKind, text: &str) -> Vec<TextError> {
    let misfit = (kind.check)(text).err();
    let wrong =
        |misfit: Misfit| TextError::new(code::ADDRESS, 0..text.len(), misfit.what, misfit.hint);
    misfit.map(wrong).into_iter().collect()
}

/// The schema of a [`TextValue`] type.
pub(crate) fn written_schema<T: TextValue>() -> Schema {
    let mut schema = json_schema!({ "type": "string", "format": T::FORMAT });
    if let Some(pattern) = T::PATTERN {
        // A value from the environment is not known to an editor.
        schema.insert("pattern".into(), format!("{pattern}|\\$\\{{").into());
    }
    if T::SECRET {
        schema.insert("writeOnly".into(), true.into());
    }
    schema
}

/// Reads a [`TextValue`] type for serde.
pub(crate) fn read_written<'de, T: TextValue, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    let text = Cow::<str>::deserialize(from)?;
    T::read(&text).map_err(|wrong| {
        let words: Vec<_> = wrong.into_iter().map(|wrong| wrong.what).collect();
        serde::de::Error::custom(words.join("; "))
    })
}

/// Derives what every [`TextValue`] type has: reading by serde and its schema.
macro_rules! written {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::values::read_written(from)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $crate::values::written_schema::<$type>()
            }
        }
    };
}
pub(crate) use written;

/// Units of a text like `1h30m`: number, unit and the bytes of both.
fn parts(text: &str) -> Option<Vec<(u64, &str, Range<usize>)>> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let rest = text.get(at..)?;
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let tail = rest.get(digits..)?;
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let number = rest.get(..digits)?.parse().ok()?;
        parts.push((number, tail.get(..unit)?, at..at + digits + unit));
        at += digits + unit;
    }
    (!parts.is_empty()).then_some(parts)
}

/// True for digits, perhaps with a fraction.
fn is_number(text: &str) -> bool {
    let whole = text.split('.').all(|part| part.bytes().all(|b| b.is_ascii_digit()));
    whole && text.starts_with(|c: char| c.is_ascii_digit()) && text.matches('.').count() < 2
}

/// What a number without a unit was probably meant to be.
pub(crate) fn duration_hint(number: &str) -> String {
    match number.split_once('.') {
        None => format!("write `{number}s`, or another unit: `ms`, `s`, `m`, `h`, `d`"),
        Some(_) => match number.parse::<f64>().map(|seconds| (seconds * 1_000.0).round()) {
            Ok(millis) => format!("write `{millis}ms`: a whole number and a unit"),
            Err(_) => "a whole number and a unit, e.g. `1500ms`".to_owned(),
        },
    }
}

/// The same for a size.
pub(crate) fn size_hint(number: &str) -> String {
    let whole = number.split('.').next().unwrap_or(number);
    format!("write `{whole}MiB`, or another unit: `B`, `KiB`, `MiB`, `GiB`, `KB`, `MB`, `GB`")
}

/// A length of time, longer than zero, written `50ms`, `30s`, `5m`, `1h30m`, `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

const PERIOD_UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// Ten years: longer is a slip of the keyboard.
const PERIOD_MS_MAX: u64 = 3650 * 86_400_000;

impl TextValue for Period {
    const FORMAT: &'static str = "potok-duration";
    const PATTERN: Option<&'static str> = Some("^([0-9]+(d|h|m|s|ms))+$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let wrong = |at: Range<usize>, what: String| {
            let hint = "a number and `ms`, `s`, `m`, `h` or `d`, e.g. `50ms`, `30s`, `1h30m`";
            Err(vec![TextError::new(code::DURATION, at, what, hint)])
        };
        if is_number(text) {
            let what = format!("`{text}` is not a duration: the unit is missing");
            return Err(vec![TextError::new(
                code::DURATION,
                0..text.len(),
                what,
                duration_hint(text),
            )]);
        }
        let Some(parts) = parts(text) else {
            return wrong(0..text.len(), format!("`{text}` is not a duration"));
        };
        let (mut total, mut smallest) = (0u64, u64::MAX);
        for (number, unit, at) in parts {
            let Some((_, ms)) = PERIOD_UNITS.iter().find(|(name, _)| *name == unit) else {
                return wrong(at, format!("`{unit}` is not a unit of time"));
            };
            if *ms >= smallest {
                return wrong(at, format!("`{text}` is not a duration: larger units come first"));
            }
            smallest = *ms;
            total = total.saturating_add(number.saturating_mul(*ms));
        }
        match total {
            0 => wrong(0..text.len(), "a duration must be longer than zero".into()),
            ms if ms > PERIOD_MS_MAX => wrong(0..text.len(), "longer than ten years".into()),
            ms => Ok(Period(Duration::from_millis(ms))),
        }
    }
}

impl Period {
    /// So many milliseconds.
    pub const fn ms(ms: u64) -> Self {
        Period(Duration::from_millis(ms))
    }

    /// So many seconds.
    pub const fn secs(secs: u64) -> Self {
        Period(Duration::from_secs(secs))
    }
}

impl Deref for Period {
    type Target = Duration;

    fn deref(&self) -> &Duration {
        &self.0
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ms = self.0.as_millis() as u64;
        for (unit, size) in PERIOD_UNITS {
            if ms >= size {
                write!(f, "{}{unit}", ms / size)?;
                ms %= size;
            }
        }
        Ok(())
    }
}

/// A number of bytes, more than zero, written `512B`, `64KB`, `16MiB`, `10GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("B", 1),
];

impl TextValue for Size {
    const FORMAT: &'static str = "potok-size";
    const PATTERN: Option<&'static str> = Some("^[0-9]+([KMGT]i?)?B$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let wrong = |what: String| {
            let hint = "a number and `B`, `KB`, `MB`, `GB` (thousands) or `KiB`, `MiB`, `GiB` \
                        (1024s), e.g. `16MiB`";
            Err(vec![TextError::new(code::SIZE, 0..text.len(), what, hint)])
        };
        if is_number(text) {
            let what = format!("`{text}` is not a size: the unit is missing");
            return Err(vec![TextError::new(code::SIZE, 0..text.len(), what, size_hint(text))]);
        }
        let Some([(number, unit, _)]) = parts(text).as_deref().map(<[_]>::to_vec).and_then(one)
        else {
            return wrong(format!("`{text}` is not a size"));
        };
        let Some((_, bytes)) = SIZE_UNITS.iter().find(|(name, _)| *name == unit) else {
            return wrong(format!("`{unit}` is not a unit of size"));
        };
        match number.checked_mul(*bytes) {
            Some(0) => wrong("a size must be larger than zero".into()),
            // Files and memory are counted in 63 bits.
            Some(total) if total <= i64::MAX as u64 => Ok(Size(total)),
            _ => wrong(format!("`{text}` is too large")),
        }
    }
}

fn one<T>(parts: Vec<T>) -> Option<[T; 1]> {
    parts.try_into().ok()
}

impl Size {
    /// So many MiB.
    pub const fn mib(mib: u64) -> Self {
        Size(mib << 20)
    }

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = SIZE_UNITS.iter().find(|(_, size)| self.0.is_multiple_of(*size));
        let (unit, size) = whole.copied().unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / size)
    }
}

macro_rules! printed {
    ($type:ty) => {
        written!($type);

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    };
}
printed!(Period);
printed!(Size);

/// A name: text that passed [`TextValue::read`].
macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            /// Checks a name that does not come from a file.
            pub fn parse(text: &str) -> Result<Self, String> {
                Self::read(text).map_err(|wrong| {
                    wrong.into_iter().map(|wrong| wrong.what).collect::<Vec<_>>().join("; ")
                })
            }

            /// The name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $type {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        printed!($type);
    };
}

/// Reads a name of at most `max` bytes made of characters that are `good`.
fn read_name(
    kind: &str,
    text: &str,
    max: usize,
    good: fn(char) -> bool,
    hint: &str,
) -> Result<String, Vec<TextError>> {
    let wrong =
        |at: Range<usize>, what: String| Err(vec![TextError::new(code::NAME, at, what, hint)]);
    if text.is_empty() {
        return wrong(0..0, format!("the {kind} is empty"));
    }
    if let Some((at, c)) = text.char_indices().find(|(_, c)| !good(*c)) {
        let what = format!("{} in the {kind}", show_char(c));
        return wrong(at..at + c.len_utf8(), what);
    }
    if text.len() > max {
        return wrong(0..text.len(), format!("the {kind} is longer than {max} bytes"));
    }
    Ok(text.to_owned())
}

fn show_char(c: char) -> String {
    match c {
        ' ' => "a space".into(),
        c if c.is_control() || c.is_whitespace() => format!("the character U+{:04X}", u32::from(c)),
        c => format!("`{c}`"),
    }
}

name! {
    /// The name of a pipeline: small letters, digits and `-`, at most 64.
    PipelineName
}

impl TextValue for PipelineName {
    const FORMAT: &'static str = "potok-pipeline-name";
    const PATTERN: Option<&'static str> = Some("^[a-z0-9][a-z0-9-]{0,63}$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "small letters, digits and `-`, at most 64, e.g. `orders`";
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let name = read_name("name of the pipeline", text, 64, good, hint)?;
        let refuse = |what: &str| Err(vec![TextError::new(code::NAME, 0..text.len(), what, hint)]);
        match name.as_str() {
            name if name.starts_with('-') => refuse("the name of the pipeline begins with `-`"),
            name if potok_core::is_own_pipeline(name) => {
                refuse(&format!("the name `{name}` is kept for potok itself"))
            }
            _ => Ok(PipelineName(name)),
        }
    }
}

name! {
    /// The name of a topic, a list or a consumer group: 1 to 249 bytes, no white space, no
    /// control characters, no `/`.
    TopicName
}

impl TextValue for TopicName {
    const FORMAT: &'static str = "potok-topic";
    const PATTERN: Option<&'static str> = Some("^[^\\s/]{1,249}$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "1 to 249 bytes without white space, control characters and `/`";
        let good = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
        let name = read_name("name", text, 249, good, hint)?;
        match name.as_str() {
            "." | ".." => Err(vec![TextError::new(code::NAME, 0..text.len(), "not a name", hint)]),
            _ => Ok(TopicName(name)),
        }
    }
}

name! {
    /// The name of a table or column: letters, digits and `_`, at most 63, no digit first. Such a
    /// name needs no quoting in any database.
    SqlName
}

impl TextValue for SqlName {
    const FORMAT: &'static str = "potok-sql-name";
    const PATTERN: Option<&'static str> = Some("^[A-Za-z_][A-Za-z0-9_]{0,62}$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "letters, digits and `_`, at most 63, no digit first, e.g. `order_items`";
        let good = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = read_name("name", text, 63, good, hint)?;
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            let what = "the name begins with a digit";
            return Err(vec![TextError::new(code::NAME, 0..1, what, hint)]);
        }
        Ok(SqlName(name))
    }
}

name! {
    /// The name of a connection in `potok.yaml`: letters, digits, `-` and `_`, at most 64.
    ConnectionName
}

impl TextValue for ConnectionName {
    const FORMAT: &'static str = "potok-connection-name";
    const PATTERN: Option<&'static str> = Some("^[A-Za-z0-9_-]{1,64}$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "the name of a connection in `potok.yaml`: letters, digits, `-`, `_`, at most \
                    64; where it is, is said there";
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        read_name("name of the connection", text, 64, good, hint).map(ConnectionName)
    }
}

name! {
    /// The name of a connection, or of one for each shard: `shop-{shard}`.
    ShardedName
}

impl TextValue for ShardedName {
    const FORMAT: &'static str = "potok-sharded-name";
    const PATTERN: Option<&'static str> =
        Some("^[A-Za-z0-9_-]{0,64}([{]shard[}])?[A-Za-z0-9_-]{0,64}$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        // The largest shard there can be.
        ConnectionName::read(&text.replacen(SHARD, "1023", 1))?;
        Ok(ShardedName(text.to_owned()))
    }
}

/// Stands for the number of a shard.
const SHARD: &str = "{shard}";

impl ShardedName {
    /// True where each shard has one of its own.
    pub fn is_sharded(&self) -> bool {
        self.contains(SHARD)
    }

    /// The name for a shard.
    pub fn of(&self, shard: Option<u32>) -> String {
        match shard {
            Some(shard) => self.replacen(SHARD, &shard.to_string(), 1),
            None => self.to_string(),
        }
    }
}

name! {
    /// The name of a counter in a metric: small letters, digits and `_`, at most 64.
    CounterName
}

impl TextValue for CounterName {
    const FORMAT: &'static str = "potok-counter-name";
    const PATTERN: Option<&'static str> = Some("^[a-z0-9_]{1,64}$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "small letters, digits and `_`, at most 64, e.g. `bad_values`";
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        read_name("name of the counter", text, 64, good, hint).map(CounterName)
    }
}

name! {
    /// An address to listen on: `host:port`. Port 0 picks a free one.
    Address
}

impl TextValue for Address {
    const FORMAT: &'static str = "potok-address";
    const PATTERN: Option<&'static str> = Some("^.+:[0-9]{1,5}$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let port = text.rsplit_once(':').and_then(|(host, port)| {
            let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
            let bad = host.is_empty()
                || bare_v6
                || host.contains(|c: char| c.is_whitespace() || c == '/');
            (!bad && port.bytes().all(|b| b.is_ascii_digit())).then(|| port.parse::<u16>().ok())?
        });
        match port {
            Some(_) => Ok(Address(text.to_owned())),
            None => Err(vec![TextError::new(
                code::ADDRESS,
                0..text.len(),
                format!("`{text}` is not an address"),
                "`host:port`, e.g. `127.0.0.1:7600`",
            )]),
        }
    }
}

impl Address {
    /// An address that only this machine can reach.
    pub(crate) fn loopback(port: u16) -> Self {
        Address(format!("127.0.0.1:{port}"))
    }

    /// The host, without the brackets of IPv6.
    pub fn host(&self) -> &str {
        let host = self.0.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// 0 where the system picks a free one.
    pub fn port(&self) -> u16 {
        self.0.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0)
    }

    /// True when only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        match self.host().parse::<std::net::IpAddr>() {
            Ok(ip) => ip.is_loopback(),
            Err(_) => self.host().eq_ignore_ascii_case("localhost"),
        }
    }
}

name! {
    /// The path under which an HTTP source listens, e.g. `/events`.
    HttpPath
}

impl TextValue for HttpPath {
    const FORMAT: &'static str = "potok-http-path";
    const PATTERN: Option<&'static str> = Some("^/[^\\s?#]*$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint = "begins with `/`, e.g. `/events`; no `?`, `#` or white space";
        let good = |c: char| !c.is_whitespace() && !c.is_control() && c != '?' && c != '#';
        let path = read_name("HTTP path", text, 1024, good, hint)?;
        if !path.starts_with('/') {
            let what = "an HTTP path begins with `/`";
            return Err(vec![TextError::new(code::NAME, 0..text.len(), what, hint)]);
        }
        Ok(HttpPath(path))
    }
}

/// The way to arrays whose elements are meant one by one, e.g. `.entry[].messages[]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EachPath(Vec<(String, bool)>);

impl EachPath {
    /// The fields on the way, each with whether its elements are meant.
    pub fn steps(&self) -> &[(String, bool)] {
        &self.0
    }
}

written!(EachPath);

impl TextValue for EachPath {
    const FORMAT: &'static str = "potok-each-path";
    const PATTERN: Option<&'static str> = Some("^(\\.[A-Za-z0-9_-]+(\\[\\])?)+$");

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let hint =
            "name the fields on the way, with `[]` behind arrays, e.g. `.entry[].messages[]`";
        let wrong = |what: &str| vec![TextError::new(code::NAME, 0..text.len(), what, hint)];
        let steps = text.strip_prefix('.').ok_or_else(|| wrong("a path begins with `.`"))?;
        let steps = steps.split('.').map(|step| match step.strip_suffix("[]") {
            Some(name) => (name.to_owned(), true),
            None => (step.to_owned(), false),
        });
        let steps: Vec<_> = steps.collect();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if steps.iter().any(|(name, _)| name.is_empty() || !name.chars().all(is_name)) {
            return Err(wrong("a step of the path is no name of a field"));
        }
        if !steps.iter().any(|(_, is_array)| *is_array) {
            return Err(wrong("the path names no array"));
        }
        Ok(EachPath(steps))
    }
}

#[cfg(test)]
mod tests;
