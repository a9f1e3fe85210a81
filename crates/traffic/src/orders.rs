//! Online orders: a parcel, a payment and one to three items, as one line of compact JSON.
//!
//! Most are good. Some come again byte for byte, some come again under the same id with other
//! content, and some are spoiled in one of the ways of [`OrderSpoiling`]. Each order says which it is, so
//! that whoever sent it knows what must become of it: good ones are delivered once, repeats are
//! duplicates, other versions are conflicts, spoiled ones are dead letters.
//!
//! No order holds a line break, so a file of them is one order per line. Repeats and versions come
//! only from the last [`REMEMBERED`] good orders; memory does not grow with the stream.

use std::collections::VecDeque;
use std::fmt::Write;

use crate::Random;
use crate::random::mix;

/// How many good orders can still come again.
pub const REMEMBERED: usize = 256;

/// One order as it would be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its business id. For a spoiled one, the id it would have had: no other order has it.
    pub uid: String,
    /// The line to send, without its line break.
    pub bytes: Vec<u8>,
    /// What must become of it.
    pub kind: OrderKind,
}

/// What an order is, and so how it must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderKind {
    /// The first under its id, and good.
    Good,
    /// The same bytes as an earlier good one.
    Repeat,
    /// The id of an earlier good one with other content, good in itself.
    Version,
    /// Bad on purpose.
    Spoiled(OrderSpoiling),
}

/// A way to spoil an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OrderSpoiling {
    /// An e-mail address without an `@`.
    Email,
    /// A phone number that is not one.
    Phone,
    /// Letters in the postal code.
    Zip,
    /// An item with a negative price.
    NegativePrice,
    /// More than 100 % off.
    Sale,
    /// A currency nobody has.
    Currency,
    /// A delivery without a city.
    MissingField,
    /// A field that orders do not have.
    UnknownField,
    /// An empty list of items.
    NoItems,
    /// Text where a number belongs.
    WrongType,
    /// JSON that stops in the middle.
    BrokenJson,
    /// Bytes that are not even text.
    RandomBytes,
}

impl OrderSpoiling {
    /// Every way there is.
    pub const ALL: [OrderSpoiling; 12] = [
        OrderSpoiling::Email,
        OrderSpoiling::Phone,
        OrderSpoiling::Zip,
        OrderSpoiling::NegativePrice,
        OrderSpoiling::Sale,
        OrderSpoiling::Currency,
        OrderSpoiling::MissingField,
        OrderSpoiling::UnknownField,
        OrderSpoiling::NoItems,
        OrderSpoiling::WrongType,
        OrderSpoiling::BrokenJson,
        OrderSpoiling::RandomBytes,
    ];

    /// True when it is still JSON, only not a good order.
    pub fn is_json(self) -> bool {
        !matches!(self, OrderSpoiling::BrokenJson | OrderSpoiling::RandomBytes)
    }
}

/// How many of a thousand orders are not good; the rest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Byte-for-byte repeats.
    pub repeats: u32,
    /// Other content under a known id.
    pub versions: u32,
    /// Bad ones.
    pub spoiled: u32,
}

impl Default for Shares {
    fn default() -> Self {
        Shares { repeats: 30, versions: 10, spoiled: 60 }
    }
}

/// An endless stream of orders that its seed decides.
#[derive(Clone, Debug)]
pub struct OrderGenerator {
    seed: u64,
    made: u64,
    random: Random,
    shares: Shares,
    recent: VecDeque<(String, Vec<u8>)>,
}

impl OrderGenerator {
    /// A mixture as [`Shares::default`] has it.
    pub fn new(seed: u64) -> Self {
        OrderGenerator {
            seed,
            made: 0,
            random: Random::new(mix(seed)),
            shares: Shares::default(),
            recent: VecDeque::new(),
        }
    }

    /// Good orders only, each with its own id.
    pub fn good_only(seed: u64) -> Self {
        Self::new(seed).with_shares(Shares { repeats: 0, versions: 0, spoiled: 0 })
    }

    /// Another mixture.
    #[must_use]
    pub fn with_shares(mut self, shares: Shares) -> Self {
        self.shares = shares;
        self
    }

    /// Makes one more order: fresh, a repeat, a new version, or a spoiled one.
    pub fn next_order(&mut self) -> Order {
        let Shares { repeats, versions, spoiled } = self.shares;
        let draw = self.random.below(1_000) as u32;
        if draw < spoiled {
            let how = self.random.below(OrderSpoiling::ALL.len() as u64) as usize;
            return self.spoiled(
                OrderSpoiling::ALL.get(how).copied().unwrap_or(OrderSpoiling::RandomBytes),
            );
        }
        if draw < spoiled + repeats
            && let Some((uid, bytes)) = self.earlier()
        {
            return Order { uid, bytes, kind: OrderKind::Repeat };
        }
        if draw < spoiled + repeats + versions
            && let Some(version) = self.version()
        {
            return version;
        }
        self.good()
    }

    /// A good order under an id of its own.
    pub fn good(&mut self) -> Order {
        let uid = self.uid();
        let bytes = self.line(&uid).into_bytes();
        if self.shares.repeats + self.shares.versions > 0 {
            if self.recent.len() == REMEMBERED {
                self.recent.pop_front();
            }
            self.recent.push_back((uid.clone(), bytes.clone()));
        }
        Order { uid, bytes, kind: OrderKind::Good }
    }

    /// An order under an id of its own, spoiled in this way.
    pub fn spoiled(&mut self, how: OrderSpoiling) -> Order {
        let uid = self.uid();
        let line = self.line(&uid);
        let bytes = spoil(line, how, &mut self.random);
        Order { uid, bytes, kind: OrderKind::Spoiled(how) }
    }

    /// A good order under a given id: the next version of what was sent under it before.
    pub fn version_of(&mut self, uid: &str) -> Order {
        Order { uid: uid.to_owned(), bytes: self.line(uid).into_bytes(), kind: OrderKind::Version }
    }

    fn version(&mut self) -> Option<Order> {
        let (uid, bytes) = self.earlier()?;
        let version = self.version_of(&uid);
        // Equal by chance it would be a repeat.
        (version.bytes != bytes).then_some(version)
    }

    fn earlier(&mut self) -> Option<(String, Vec<u8>)> {
        let which = self.random.below(self.recent.len() as u64) as usize;
        self.recent.get(which).cloned()
    }

    /// Ids of one generator never meet: the counter goes through a one-to-one scattering.
    fn uid(&mut self) -> String {
        self.made += 1;
        format!("{:016x}", mix(mix(self.seed) ^ self.made))
    }

    fn line(&mut self, uid: &str) -> String {
        let random = &mut self.random;
        // Mostly one item, as in a shop.
        let items = [1, 1, 1, 1, 1, 1, 1, 2, 2, 3][random.below(10) as usize];
        let track = format!("PT{:09}", random.below(1_000_000_000));
        let (name, login) = PEOPLE[random.below(PEOPLE.len() as u64) as usize];
        let (city, region) = PLACES[random.below(PLACES.len() as u64) as usize];
        let mut line = String::with_capacity(1_280);
        let mut list = String::with_capacity(600);
        let goods: u64 = (0..items).map(|nth| item(&mut list, nth, &track, random)).sum();
        let delivery = random.between(0, 900);
        // Writing to a string does not fail.
        let _ = write!(
            line,
            concat!(
                r#"{{"order_uid":"{uid}","track_number":"{track}","entry":"{entry}","#,
                r#""delivery":{{"name":"{name}","phone":"+{phone}","zip":"{zip}","city":"{city}","#,
                r#""address":"{street} {house}","region":"{region}","email":"{login}@example.com"}},"#,
                r#""payment":{{"transaction":"{uid}","request_id":"","currency":"{currency}","#,
                r#""provider":"{provider}","amount":{amount},"payment_dt":{paid},"bank":"{bank}","#,
                r#""delivery_cost":{delivery},"goods_total":{goods},"custom_fee":0}},"#,
                r#""items":[{list}],"locale":"{locale}","internal_signature":"","#,
                r#""customer_id":"c{customer}","delivery_service":"{service}","shardkey":"{shard}","#,
                r#""sm_id":{sm},"date_created":"2026-{month:02}-{day:02}T{hour:02}:{minute:02}:00Z","#,
                r#""oof_shard":"{oof}"}}"#
            ),
            uid = uid,
            track = track,
            entry = random.word(&["WEB", "APP", "POS"]),
            name = name,
            phone = random.between(70_000_000_000, 79_999_999_999),
            zip = random.between(100_000, 999_999),
            city = city,
            street = random.word(STREETS),
            house = random.between(1, 120),
            region = region,
            login = login,
            currency = random.word(&["EUR", "USD", "RUB", "KZT", "GEL"]),
            provider = random.word(&["cardio", "kassa", "paygo"]),
            amount = goods + delivery,
            paid = random.between(1_767_225_600, 1_798_761_599),
            bank = random.word(&["north", "delta", "union"]),
            delivery = delivery,
            goods = goods,
            list = list,
            locale = random.word(&["en", "ru", "de", "pt-BR"]),
            customer = random.below(100_000),
            service = random.word(&["swift", "courier", "pigeon"]),
            shard = random.below(10),
            sm = random.between(1, 99),
            month = random.between(1, 12),
            day = random.between(1, 28),
            hour = random.below(24),
            minute = random.below(60),
            oof = random.below(4),
        );
        line
    }
}

/// Writes one item and says what it costs.
fn item(list: &mut String, nth: u64, track: &str, random: &mut Random) -> u64 {
    // Something free is a good item too; the first one costs something, so that totals do.
    let price = if nth > 0 && random.per_mille(50) { 0 } else { random.between(100, 9_000) };
    let sale = random.below(10) * 5;
    let total = price * (100 - sale) / 100;
    let comma = if nth > 0 { "," } else { "" };
    let _ = write!(
        list,
        concat!(
            r#"{comma}{{"chrt_id":{chrt},"track_number":"{track}","price":{price},"#,
            r#""rid":"r{rid:010x}","name":"{name}","sale":{sale},"size":"{size}","#,
            r#""total_price":{total},"nm_id":{nm},"brand":"{brand}","status":{status}}}"#
        ),
        comma = comma,
        chrt = random.between(100_000, 9_999_999),
        track = track,
        price = price,
        rid = random.below(1 << 40),
        name = random.word(GOODS),
        sale = sale,
        size = random.word(&["0", "S", "M", "L", "42"]),
        total = total,
        nm = random.between(100_000, 9_999_999),
        brand = random.word(BRANDS),
        status = random.word(&["100", "202", "250"]),
    );
    total
}

fn spoil(line: String, how: OrderSpoiling, random: &mut Random) -> Vec<u8> {
    let spoiled = match how {
        OrderSpoiling::Email => with_value(&line, "email", r#""nobody.example.com""#),
        OrderSpoiling::Phone => with_value(&line, "phone", r#""call me""#),
        OrderSpoiling::Zip => with_value(&line, "zip", r#""12a4""#),
        OrderSpoiling::NegativePrice => with_value(&line, "price", "-5"),
        OrderSpoiling::Sale => with_value(&line, "sale", "101"),
        OrderSpoiling::Currency => with_value(&line, "currency", r#""euro""#),
        OrderSpoiling::MissingField => with_value(&line, "city", "").replacen(r#""city":,"#, "", 1),
        OrderSpoiling::UnknownField => line.replacen('{', r#"{"coupon":"SPRING","#, 1),
        OrderSpoiling::NoItems => match (line.find(r#""items":["#), line.find("],")) {
            (Some(start), Some(end)) => {
                format!(r#"{}"items":[{}"#, &line[..start], &line[end..])
            }
            _ => line,
        },
        OrderSpoiling::WrongType => with_value(&line, "sm_id", r#""many""#),
        OrderSpoiling::BrokenJson => {
            // Anywhere behind the id, so that ids still show what was sent.
            let mut end = random.between(40, line.len() as u64 - 1) as usize;
            while !line.is_char_boundary(end) {
                end -= 1;
            }
            line[..end].to_owned()
        }
        OrderSpoiling::RandomBytes => return random_bytes(random),
    };
    spoiled.into_bytes()
}

/// The line with another value for the first field of that name. Values hold no `,` or `}`.
fn with_value(line: &str, field: &str, value: &str) -> String {
    let Some((before, rest)) = line.split_once(&format!(r#""{field}":"#)) else {
        return line.to_owned();
    };
    let end = rest.find([',', '}']).unwrap_or(rest.len());
    format!(r#"{before}"{field}":{value}{}"#, &rest[end..])
}

/// Bytes without a line break that no text starts with.
fn random_bytes(random: &mut Random) -> Vec<u8> {
    let len = random.between(1, 300);
    std::iter::once(0xFF)
        .chain((0..len).map(|_| match random.below(256) as u8 {
            b'\n' => 0,
            other => other,
        }))
        .collect()
}

const PEOPLE: &[(&str, &str)] = &[
    ("Vera Lind", "vera"),
    ("Oleg Sokol", "oleg.s"),
    ("Мария Ким", "maria"),
    ("Tom Ward", "tom"),
    ("Ana Souza", "ana.souza"),
    ("Нино Гела", "nino"),
    ("Jon Berg", "jon"),
    ("Zoë Falk", "zoe"),
];

const PLACES: &[(&str, &str)] = &[
    ("Riga", "Latvia"),
    ("Omsk", "Siberia"),
    ("Porto", "Norte"),
    ("Batumi", "Adjara"),
    ("Казань", "Volga"),
    ("Graz", "Styria"),
    ("Almaty", "Almaty"),
];

const STREETS: &[&str] = &["Mill Lane", "Oak Street", "Harbour", "Ring Road", "Садовая"];

const GOODS: &[&str] = &["Kettle", "Scarf", "Lamp", "Notebook", "Boots", "Чайник", "Umbrella"];

const BRANDS: &[&str] = &["Norda", "Polyana", "Kiwi & Co", "Tarn", "Velo"];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use std::collections::{HashMap, HashSet};

    use serde_json::Value;

    use super::*;

    fn take(mut generator: OrderGenerator, count: usize) -> Vec<Order> {
        (0..count).map(|_| generator.next_order()).collect()
    }

    #[test]
    fn a_seed_decides_the_stream() {
        assert_eq!(take(OrderGenerator::new(5), 2_000), take(OrderGenerator::new(5), 2_000));
        assert_ne!(take(OrderGenerator::new(5), 10), take(OrderGenerator::new(6), 10));
    }

    #[test]
    fn good_orders_are_json_of_their_own_id_and_of_ordinary_size() {
        let orders = take(OrderGenerator::good_only(1), 20_000);
        let mut seen = HashSet::new();
        for order in &orders {
            assert_eq!(order.kind, OrderKind::Good);
            assert!(seen.insert(order.uid.clone()), "{} comes twice", order.uid);
            let value: Value = serde_json::from_slice(&order.bytes).unwrap();
            assert_eq!(value["order_uid"], order.uid.as_str());
            assert_eq!(value["payment"]["transaction"], order.uid.as_str());
            let items = value["items"].as_array().unwrap();
            assert!((1..=3).contains(&items.len()));
            let goods: i64 = items.iter().map(|i| i["total_price"].as_i64().unwrap()).sum();
            assert!(goods > 0);
            assert_eq!(value["payment"]["goods_total"], goods);
            assert_eq!(serde_json::to_vec(&value).unwrap().len(), order.bytes.len(), "compact");
        }
        let mean = orders.iter().map(|o| o.bytes.len()).sum::<usize>() / orders.len();
        assert!((780..=880).contains(&mean), "mean size {mean}");
    }

    #[test]
    fn every_kind_occurs_and_is_what_it_says() {
        let mut first: HashMap<String, Vec<u8>> = HashMap::new();
        let mut kinds: HashMap<OrderKind, usize> = HashMap::new();
        for order in take(OrderGenerator::new(3), 20_000) {
            *kinds.entry(order.kind).or_default() += 1;
            assert!(!order.bytes.contains(&b'\n') && !order.bytes.is_empty());
            let earlier = first.get(&order.uid);
            match order.kind {
                OrderKind::Good => assert!(first.insert(order.uid, order.bytes).is_none()),
                OrderKind::Repeat => assert_eq!(earlier, Some(&order.bytes)),
                OrderKind::Version => {
                    assert!(earlier.is_some_and(|bytes| *bytes != order.bytes));
                    let value: Value = serde_json::from_slice(&order.bytes).unwrap();
                    assert_eq!(value["order_uid"], order.uid.as_str());
                }
                OrderKind::Spoiled(how) => {
                    assert!(earlier.is_none());
                    let value = serde_json::from_slice::<Value>(&order.bytes);
                    assert_eq!(value.is_ok(), how.is_json(), "{how:?}");
                }
            }
        }
        assert_eq!(kinds.len(), 3 + OrderSpoiling::ALL.len(), "{kinds:?}");
    }

    #[test]
    fn each_way_to_spoil_breaks_just_that() {
        let mut generator = OrderGenerator::new(9);
        let mut spoiled = |how| -> Value {
            serde_json::from_slice(&generator.spoiled(how).bytes).unwrap_or_default()
        };
        assert_eq!(spoiled(OrderSpoiling::Email)["delivery"]["email"], "nobody.example.com");
        assert_eq!(spoiled(OrderSpoiling::Phone)["delivery"]["phone"], "call me");
        assert_eq!(spoiled(OrderSpoiling::Zip)["delivery"]["zip"], "12a4");
        assert_eq!(spoiled(OrderSpoiling::NegativePrice)["items"][0]["price"], -5);
        assert_eq!(spoiled(OrderSpoiling::Sale)["items"][0]["sale"], 101);
        assert_eq!(spoiled(OrderSpoiling::Currency)["payment"]["currency"], "euro");
        let missing = spoiled(OrderSpoiling::MissingField);
        assert!(missing["delivery"].get("city").is_none() && missing["oof_shard"].is_string());
        assert_eq!(spoiled(OrderSpoiling::UnknownField)["coupon"], "SPRING");
        let none = spoiled(OrderSpoiling::NoItems);
        assert!(none["items"].as_array().is_some_and(Vec::is_empty) && none["locale"].is_string());
        assert_eq!(spoiled(OrderSpoiling::WrongType)["sm_id"], "many");
    }

    #[test]
    fn versions_of_one_id_differ() {
        let mut generator = OrderGenerator::good_only(2);
        let first = generator.good();
        let second = generator.version_of(&first.uid);
        assert_eq!(second.kind, OrderKind::Version);
        assert_ne!(first.bytes, second.bytes);
    }
}
