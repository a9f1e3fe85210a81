//! A schema check that reads the tape and says only yes.
//!
//! Most records are good, and a full validator wants a DOM of each. This one knows the keywords
//! that schemas of records are usually made of, and takes a value only where a full validator
//! surely would; whatever it is not sure of is left to that one, which also finds the words for
//! what is wrong. So being careful here costs time, never an answer.

use potok_expr::json::{Kind, Node};
use regex::Regex;
use serde_json::{Map, Value as Json};

/// Properties of one object that it keeps track of.
const PROPERTIES_MAX: usize = 64;
/// Keywords that say nothing about values.
const NOTES: [&str; 9] = [
    "$schema",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// A schema it knows every keyword of.
#[derive(Debug)]
pub struct FastValidator {
    kinds: Kinds,
    integers: (i64, i64),
    /// Set where integers have bounds, so that other numbers are not judged here.
    bounded: bool,
    chars: (usize, usize),
    pattern: Option<Pattern>,
    texts: Option<Vec<String>>,
    items: Option<Box<FastValidator>>,
    items_count: (usize, usize),
    properties: Vec<(String, FastValidator)>,
    /// One bit per property.
    required: u64,
    others_refused: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    null: bool,
    boolean: bool,
    integer: bool,
    number: bool,
    string: bool,
    array: bool,
    object: bool,
}

#[derive(Debug)]
enum Pattern {
    /// `^[…]+$` over ASCII, the usual shape of ids.
    AllOf(Box<[bool; 128]>),
    Regex(Regex),
}

impl FastValidator {
    /// `None` where the schema has a keyword it does not know, or one in a shape it does not know.
    pub fn of(schema: &Json) -> Option<FastValidator> {
        let Json::Object(schema) = schema else { return None };
        let mut quick = FastValidator {
            kinds: kinds(schema)?,
            integers: (i64::MIN, i64::MAX),
            bounded: false,
            chars: (0, usize::MAX),
            pattern: None,
            texts: None,
            items: None,
            items_count: (0, usize::MAX),
            properties: Vec::new(),
            required: 0,
            others_refused: false,
        };
        for (keyword, value) in schema {
            quick.learn(keyword, value)?;
        }
        quick.require(schema.get("required"))?;
        Some(quick)
    }

    fn learn(&mut self, keyword: &str, value: &Json) -> Option<()> {
        match keyword {
            "type" | "required" => {}
            "minimum" => (self.integers.0, self.bounded) = (value.as_i64()?, true),
            "maximum" => (self.integers.1, self.bounded) = (value.as_i64()?, true),
            "minLength" => self.chars.0 = count(value)?,
            "maxLength" => self.chars.1 = count(value)?,
            "pattern" => self.pattern = Some(Pattern::of(value.as_str()?)?),
            "enum" => {
                let text = |value: &Json| value.as_str().map(str::to_owned);
                self.texts = Some(value.as_array()?.iter().map(text).collect::<Option<_>>()?);
            }
            "items" => self.items = Some(Box::new(FastValidator::of(value)?)),
            "minItems" => self.items_count.0 = count(value)?,
            "maxItems" => self.items_count.1 = count(value)?,
            "properties" => {
                for (name, schema) in value.as_object()? {
                    self.properties.push((name.clone(), FastValidator::of(schema)?));
                }
                (self.properties.len() <= PROPERTIES_MAX).then_some(())?;
            }
            "additionalProperties" => self.others_refused = !value.as_bool()?,
            note => NOTES.contains(&note).then_some(())?,
        }
        Some(())
    }

    fn require(&mut self, required: Option<&Json>) -> Option<()> {
        for name in required.map_or(Some(&Vec::new()), Json::as_array)? {
            let at = self.properties.iter().position(|(known, _)| Some(&**known) == name.as_str());
            self.required |= 1 << at?;
        }
        Some(())
    }

    /// True when the value surely satisfies the schema.
    pub fn accepts(&self, node: Node<'_>) -> bool {
        let Kinds { null, boolean, integer, number, string, array, object } = self.kinds;
        let kind = node.kind();
        if self.texts.is_some() && kind != Kind::String {
            return false;
        }
        match kind {
            Kind::Null => null,
            Kind::Bool => boolean,
            Kind::Number if number && !self.bounded => true,
            Kind::Number if number || integer => {
                // Numbers written in another way may be integers too.
                let integer = node.source().parse::<i64>();
                integer.is_ok_and(|i| (self.integers.0..=self.integers.1).contains(&i))
            }
            Kind::Number => false,
            Kind::String => string && self.accepts_text(&node.text().unwrap_or_default()),
            Kind::Array => array && self.accepts_items(node),
            Kind::Object => object && self.accepts_fields(node),
        }
    }

    fn accepts_text(&self, text: &str) -> bool {
        let (min, max) = self.chars;
        // A character has one to four bytes: often enough to know without counting.
        let fits = (text.len() <= max && text.len() >= min.saturating_mul(4))
            || (min..=max).contains(&text.chars().count());
        fits && self.pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
            && self.texts.as_ref().is_none_or(|texts| texts.iter().any(|known| known == text))
    }

    fn accepts_items(&self, node: Node<'_>) -> bool {
        let mut count = 0;
        for item in node.items() {
            count += 1;
            if self.items.as_ref().is_some_and(|items| !items.accepts(item)) {
                return false;
            }
        }
        (self.items_count.0..=self.items_count.1).contains(&count)
    }

    fn accepts_fields(&self, node: Node<'_>) -> bool {
        let mut seen = 0_u64;
        let mut next = 0;
        for (name, value) in node.fields() {
            // Records mostly have their fields in the order of the schema.
            let is_next = self.properties.get(next).is_some_and(|(known, _)| *known == name);
            let at = match is_next {
                true => Some(next),
                false => self.properties.iter().position(|(known, _)| *known == name),
            };
            let Some(at) = at else {
                if self.others_refused {
                    return false;
                }
                continue;
            };
            next = at + 1;
            seen |= 1 << at;
            if !self.properties.get(at).is_some_and(|(_, schema)| schema.accepts(value)) {
                return false;
            }
        }
        seen & self.required == self.required
    }
}

fn kinds(schema: &Map<String, Json>) -> Option<Kinds> {
    let all = Json::from(["null", "boolean", "number", "string", "array", "object"].as_slice());
    let mut kinds = Kinds::default();
    let named = match schema.get("type").unwrap_or(&all) {
        Json::Array(names) => names.as_slice(),
        name => std::slice::from_ref(name),
    };
    for name in named {
        let kind = match name.as_str()? {
            "null" => &mut kinds.null,
            "boolean" => &mut kinds.boolean,
            "integer" => &mut kinds.integer,
            "number" => &mut kinds.number,
            "string" => &mut kinds.string,
            "array" => &mut kinds.array,
            "object" => &mut kinds.object,
            _ => return None,
        };
        *kind = true;
    }
    Some(kinds)
}

fn count(value: &Json) -> Option<usize> {
    value.as_u64().and_then(|count| usize::try_from(count).ok())
}

impl Pattern {
    /// `None` where the pattern might mean one thing in ECMAScript and another here.
    fn of(pattern: &str) -> Option<Pattern> {
        if let Some(all_of) = all_of(pattern) {
            return Some(Pattern::AllOf(all_of));
        }
        let mut chars = pattern.chars();
        let mut in_class = false;
        while let Some(char) = chars.next() {
            match char {
                '\\' if chars.next()?.is_ascii_punctuation() => {}
                '\\' => return None,
                // Which line ends a dot takes differs, as do classes within classes.
                '.' if !in_class => return None,
                '[' if in_class => return None,
                // Doubled, they join classes here.
                '&' | '~' | '-' if in_class && chars.as_str().starts_with(char) => return None,
                '[' => in_class = true,
                ']' => in_class = false,
                // `(?` begins what the two spell differently.
                '(' if !in_class && chars.as_str().starts_with('?') => return None,
                char if !char.is_ascii() || char.is_ascii_control() => return None,
                _ => {}
            }
        }
        Regex::new(pattern).ok().map(Pattern::Regex)
    }

    fn matches(&self, text: &str) -> bool {
        match self {
            Pattern::AllOf(set) => {
                let is_in = |byte: u8| set.get(usize::from(byte)).is_some_and(|is_in| *is_in);
                !text.is_empty() && text.bytes().all(is_in)
            }
            Pattern::Regex(regex) => regex.is_match(text),
        }
    }
}

/// The characters of `^[…]+$`, where they are letters, digits and ranges of them.
fn all_of(pattern: &str) -> Option<Box<[bool; 128]>> {
    let class = pattern.strip_prefix("^[")?.strip_suffix("]+$")?;
    let mut set = Box::new([false; 128]);
    let mut rest = class.as_bytes();
    while let [first, more @ ..] = rest {
        let (from, to) = match more {
            [b'-', last, more @ ..] => {
                rest = more;
                (*first, *last)
            }
            _ => {
                rest = more;
                (*first, *first)
            }
        };
        if !from.is_ascii_alphanumeric() || !to.is_ascii_alphanumeric() || from > to {
            return None;
        }
        set.get_mut(usize::from(from)..=usize::from(to))?.fill(true);
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use potok_expr::json::Parser;
    use serde_json::json;

    use super::*;

    struct Dice(u64);

    impl Dice {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (self.0 >> 33) % n
        }

        fn pick<T: Clone>(&mut self, of: &[T]) -> T {
            of[self.below(of.len() as u64) as usize].clone()
        }
    }

    fn schema(dice: &mut Dice, depth: u32) -> Json {
        let mut schema = Map::new();
        let mut set = |keyword: &str, value: Json| drop(schema.insert(keyword.to_owned(), value));
        let mut kinds = vec!["null", "boolean", "integer", "number", "string", "array", "object"];
        if depth == 0 {
            kinds.truncate(5);
        }
        match dice.below(4) {
            0 => {}
            1 => set("type", json!([dice.pick(kinds.get(1..).unwrap()), "null"])),
            _ => set("type", json!(dice.pick(&kinds))),
        }
        let bounds = [json!(-1), json!(0), json!(1), json!(3), json!(i64::MAX)];
        for keyword in ["minimum", "maximum"] {
            if dice.below(3) == 0 {
                set(keyword, dice.pick(&bounds));
            }
        }
        for keyword in ["minLength", "maxLength", "minItems", "maxItems"] {
            if dice.below(4) == 0 {
                set(keyword, json!(dice.below(4)));
            }
        }
        let patterns = [
            "^[a-c]+$",
            "^[a&~+-]+$",
            "^a",
            "b$",
            "^[^a]*$",
            r"^\+[1-9]{1,2}$",
            "^(ab|é)+$",
            "a.b",
        ];
        if dice.below(4) == 0 {
            set("pattern", json!(dice.pick(&patterns)));
        }
        if dice.below(6) == 0 {
            set("enum", json!(["a", "ab", "é"]));
        }
        if depth > 0 && dice.below(2) == 0 {
            set("items", self::schema(dice, depth - 1));
        }
        if depth > 0 {
            let of = |name: &str, dice: &mut Dice| (name.to_owned(), self::schema(dice, depth - 1));
            let properties: Map<_, _> = [of("a", dice), of("b", dice)].into_iter().collect();
            set("properties", properties.into());
            set("required", dice.pick(&[json!([]), json!(["a"]), json!(["b", "a"])]));
            set("additionalProperties", json!(dice.below(2) == 0));
        }
        schema.into()
    }

    fn value(dice: &mut Dice, depth: u32) -> String {
        let kinds = if depth == 0 { 6 } else { 10 };
        match dice.below(kinds) {
            0 => dice.pick(&["null", "true"]).to_owned(),
            1 | 2 => dice
                .pick(&["0", "1", "-1", "2.5", "1.0", "1e0", "9223372036854775808", "-0", "3"])
                .to_owned(),
            3..=5 => dice
                .pick(&[
                    r#""""#,
                    r#""a""#,
                    r#""ab""#,
                    r#""é""#,
                    r#""\u0061b""#,
                    r#""+12""#,
                    r#""abé""#,
                ])
                .to_owned(),
            6 | 7 => {
                let items: Vec<String> =
                    (0..dice.below(4)).map(|_| value(dice, depth - 1)).collect();
                format!("[{}]", items.join(","))
            }
            _ => {
                let names =
                    dice.pick(&[&["a"][..], &["b"], &["a", "b"], &["b", "a"], &["a", "c"], &[]]);
                let field = |name: &&str| format!("\"{name}\":{}", value(dice, depth - 1));
                format!("{{{}}}", names.iter().map(field).collect::<Vec<_>>().join(","))
            }
        }
    }

    #[test]
    fn takes_nothing_that_a_full_validator_refuses() {
        let mut dice = Dice(7);
        let (mut taken, mut valid) = (0, 0);
        for _ in 0..3_000 {
            let schema = schema(&mut dice, 2);
            let Some(quick) = FastValidator::of(&schema) else { continue };
            let full = jsonschema::options()
                .with_pattern_options(jsonschema::PatternOptions::regex())
                .build(&schema)
                .unwrap();
            for _ in 0..40 {
                let text = value(&mut dice, 2);
                let mut parser = Parser::new();
                let accepts = quick.accepts(parser.parse(text.as_bytes()).unwrap());
                let is_valid = full.is_valid(&serde_json::from_str(&text).unwrap());
                assert!(!accepts || is_valid, "{text} against {schema}");
                taken += u64::from(accepts);
                valid += u64::from(is_valid);
            }
        }
        assert!(taken > 1_000 && taken * 2 > valid, "{taken} of {valid} were taken");
    }

    #[test]
    fn unknown_keywords_and_shapes_are_left_to_the_full_validator() {
        for schema in [
            json!(true),
            json!({"$ref": "#/$defs/a"}),
            json!({"type": "string", "format": "date"}),
            json!({"properties": {"a": {"not": {}}}}),
            json!({"minimum": 0.5}),
            json!({"items": [{}]}),
            json!({"additionalProperties": {}}),
            json!({"required": ["unknown"]}),
            json!({"pattern": r"\d"}),
            json!({"pattern": "^.$"}),
            json!({"pattern": "(?=a)"}),
            json!({"pattern": "[a&&b]"}),
        ] {
            assert!(FastValidator::of(&schema).is_none(), "{schema}");
        }
    }

    #[test]
    fn an_order_is_taken_without_a_full_validator() {
        let schema = include_str!("../../../../pipelines/schemas/order.json");
        let quick = FastValidator::of(&serde_json::from_str(schema).unwrap()).unwrap();
        let order = json!({
            "order_uid": "b563feb7b2b84b6test", "track_number": "WBILMTESTTRACK", "entry": "WBIL",
            "delivery": {
                "name": "Тест Тестов", "phone": "+9720000000", "zip": "2639809",
                "city": "Kiryat Mozkin", "address": "Ploshad Mira 15", "region": "Kraiot",
                "email": "test@gmail.com",
            },
            "payment": {
                "transaction": "b563feb7b2b84b6test", "request_id": "", "currency": "USD",
                "provider": "wbpay", "amount": 1817, "payment_dt": 1_637_907_727, "bank": "alpha",
                "delivery_cost": 1500, "goods_total": 317, "custom_fee": 0,
            },
            "items": [{
                "chrt_id": 9_934_930, "track_number": "WBILMTESTTRACK", "price": 453,
                "rid": "ab4219087a764ae0btest", "name": "Mascaras", "sale": 30, "size": "0",
                "total_price": 317, "nm_id": 2_389_212, "brand": "Vivienne Sabo", "status": 202,
            }],
            "locale": "en", "internal_signature": "", "customer_id": "test",
            "delivery_service": "meest", "shardkey": "9", "sm_id": 99,
            "date_created": "2021-11-26T06:22:19Z", "oof_shard": "1",
        });
        let takes = |order: &Json| {
            quick.accepts(Parser::new().parse(order.to_string().as_bytes()).unwrap())
        };
        assert!(takes(&order));
        for (field, bad) in [("/payment/amount", json!(-1)), ("/delivery/email", json!("nobody"))] {
            let mut order = order.clone();
            *order.pointer_mut(field).unwrap() = bad;
            assert!(!takes(&order), "{field}");
        }
    }

    #[test]
    fn ids_are_matched_without_an_expression() {
        let pattern = Pattern::of("^[A-Za-z09]+$").unwrap();
        assert!(matches!(pattern, Pattern::AllOf(_)));
        for (text, holds) in
            [("aZ09", true), ("", false), ("1", false), ("é", false), ("a\n", false)]
        {
            assert_eq!(pattern.matches(text), holds, "{text:?}");
        }
        assert!(matches!(Pattern::of("^[a-z-]+$"), Some(Pattern::Regex(_))));
    }
}
