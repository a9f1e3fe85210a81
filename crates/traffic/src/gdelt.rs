//! News events and the articles that mention them, in batches, in the shape of GDELT 2.0: what an
//! adapter of its files sends to the topics [`EVENTS`] and [`MENTIONS`].
//!
//! A batch is a quarter of an hour; its id is that time in 14 digits and every record carries it.
//! Events and mentions of a batch come mixed. As in the real thing: event ids are unique; between
//! 1 and 3 % of the mentions of a batch have the event and the article of another one and differ in
//! the sentence ([`GdeltKind::Again`], from a hundred mentions on); between 50 and 77 % of the mentions
//! are of events of earlier batches; each event of the batch is mentioned where there are mentions
//! enough; empty fields are null, numbers are numbers; addresses have up to [`URL_MAX`] characters,
//! names are not all ASCII and one holds a quotation mark.
//!
//! Some records are spoiled in one of the ways of [`GdeltSpoiling`], and say so. No value holds a line break.
//! The events of a batch do not depend on how many mentions it has, so the two can be made apart.
//! Memory does not grow with the batch when records are taken one by one. No real site, person or
//! article is in here.

mod time;
mod words;

use std::collections::VecDeque;
use std::fmt::{Display, Write};

use self::time::{QUARTER, Time};
use self::words::{ACTIONS, ACTORS, Actor, HOSTS, LANGUAGES, Location, PLACES, SECTIONS, TITLE};
use crate::Random;
use crate::random::mix;

/// The topic of events.
pub const EVENTS: &str = "adapter-event";
/// The topic of mentions.
pub const MENTIONS: &str = "adapter-mention";
/// The header that says which batch a record is of.
pub const HEADER: &str = "batchId";
/// The first batch, unless told otherwise.
pub const FIRST_BATCH: &str = "20250323151500";
/// The longest address of an article.
pub const URL_MAX: usize = 255;

/// How many events and mentions can still be referred to.
const REMEMBERED: usize = 256;
/// Records of a batch that nobody gave a size.
const BATCH_DEFAULT: u64 = 2_000;
/// Of a thousand records so many are spoiled.
const SPOILED_DEFAULT: u32 = 20;

/// A batch, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// 14 digits.
    pub id: String,
    /// Its records in the order in which they are sent.
    pub records: Vec<SentRecord>,
}

/// One record as it would be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentRecord {
    /// [`EVENTS`] or [`MENTIONS`].
    pub topic: &'static str,
    /// The id of the event; nothing where that is what is spoiled.
    pub key: Option<String>,
    /// What the header [`HEADER`] says.
    pub batch_id: String,
    /// Its id among the records of its topic in the batch: `GlobalEventId`, or
    /// `GlobalEventId_MentionIdentifier`. Nothing where it cannot be read from the value.
    pub id: Option<String>,
    /// The line to send, without its line break.
    pub value: Vec<u8>,
    /// What must become of it.
    pub what: GdeltKind,
}

/// What a record is, and so how it must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GdeltKind {
    /// An event: the only one of its id, and good.
    Event,
    /// A mention, the first of its id in the batch, and good.
    Mention,
    /// A good mention under the id of an earlier one of the batch: the same article, another
    /// sentence.
    Again,
    /// Bad on purpose; no other record has its id.
    Spoiled(GdeltSpoiling),
}

/// A way to spoil a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GdeltSpoiling {
    /// JSON that stops in the middle.
    NotJson,
    /// No `GlobalEventId`, or null for it.
    NoId,
    /// A date that no calendar has, such as `20251399`. The rest is good.
    BadDate,
}

impl GdeltSpoiling {
    /// Every way there is.
    pub const ALL: [GdeltSpoiling; 3] =
        [GdeltSpoiling::NotJson, GdeltSpoiling::NoId, GdeltSpoiling::BadDate];

    /// True where the record can still be delivered, with one field unknown.
    pub fn is_delivered(self) -> bool {
        self == GdeltSpoiling::BadDate
    }
}

/// Batches without end that its seed decides.
#[derive(Clone, Debug)]
pub struct GdeltGenerator {
    seed: u64,
    spoiled: u32,
    start: Time,
    step: u64,
    batch_of: u64,
    begun: u64,
    /// The id before the first event's.
    base: u64,
    /// Events so far, and articles so far.
    events: u64,
    articles: u64,
    /// The first event of the latest batch, how many there are, and when.
    latest: (u64, u64, Time),
    /// Events of the batches before, with their times.
    earlier: VecDeque<(u64, Time)>,
    open: Option<Open>,
}

impl GdeltGenerator {
    /// A few in a hundred are spoiled.
    pub fn new(seed: u64) -> Self {
        let start = Time::of_id(FIRST_BATCH).unwrap_or_default();
        GdeltGenerator {
            seed,
            spoiled: SPOILED_DEFAULT,
            start,
            step: QUARTER,
            batch_of: BATCH_DEFAULT,
            begun: 0,
            base: base(seed, start),
            events: 0,
            articles: 0,
            latest: (0, 0, start),
            earlier: VecDeque::new(),
            open: None,
        }
    }

    /// Good records only.
    pub fn good_only(seed: u64) -> Self {
        GdeltGenerator { spoiled: 0, ..Self::new(seed) }
    }

    /// Begins with the batch of this id, and has other events than batches that begin elsewhere.
    /// Nothing unless it is a time in 14 digits, such as `20250323151500`.
    #[must_use]
    pub fn starting_at(self, batch_id: &str) -> Option<Self> {
        Time::of_id(batch_id).map(|start| self.starting(start))
    }

    /// Begins with the batch of this time.
    #[must_use]
    pub fn starting_at_seconds(self, since_1970: u64) -> Self {
        self.starting(Time(since_1970))
    }

    fn starting(self, start: Time) -> Self {
        GdeltGenerator { start, base: base(self.seed, start), ..self }
    }

    /// The next batch is so many seconds later, instead of a quarter of an hour.
    #[must_use]
    pub fn with_step(self, seconds: u64) -> Self {
        GdeltGenerator { step: seconds.max(1), ..self }
    }

    /// So many records make a batch of [`GdeltGenerator::next_record`], a quarter of them events.
    #[must_use]
    pub fn with_batch_of(self, records: u64) -> Self {
        GdeltGenerator { batch_of: records.max(1), ..self }
    }

    /// The next batch, whole. What is left of one begun by [`GdeltGenerator::next_record`] never comes.
    pub fn next_batch(&mut self, events: u64, mentions: u64) -> Batch {
        let mut open = self.begin(events, mentions);
        let mut records = Vec::new();
        while let Some(sent) = open.next(self) {
            records.push(sent);
        }
        Batch { id: open.id, records }
    }

    /// The next record of batches without end.
    pub fn next_record(&mut self) -> SentRecord {
        loop {
            let events = self.batch_of.div_ceil(4);
            let begun = self.open.take();
            let mut open = begun.unwrap_or_else(|| self.begin(events, self.batch_of - events));
            if let Some(sent) = open.next(self) {
                self.open = Some(open);
                return sent;
            }
        }
    }

    fn begin(&mut self, events: u64, mentions: u64) -> Open {
        self.open = None;
        let time = Time(self.start.0 + self.begun * self.step);
        self.begun += 1;
        let seed = mix(self.seed) ^ mix(time.0);
        let random = |stream: u64| Random::new(mix(seed ^ mix(stream)));
        let mut order = random(1);
        let again = match (mentions.div_ceil(100), mentions * 3 / 100) {
            (from, to) if from <= to => order.between(from, to),
            _ => 0,
        };
        let first = mentions - again;
        // Well within the bounds, since what comes again tilts it a little.
        let share = order.between(520, 740);
        let earlier = if events == 0 { first } else { first * share / 1_000 };
        let from = self.base + self.events + 1;
        self.events += events;
        let before = std::mem::replace(&mut self.latest, (from, events, time));
        self.remember(before);
        Open {
            id: time.id(),
            time,
            from,
            events,
            events_left: events,
            first_left: first,
            again_left: again,
            earlier_left: earlier,
            own: 0,
            order,
            of_events: random(2),
            of_mentions: random(3),
            article: None,
            sent: VecDeque::new(),
        }
    }

    /// From now on mentions can be of these events.
    fn remember(&mut self, (from, events, time): (u64, u64, Time)) {
        let behind = from + events;
        for id in behind - events.min(REMEMBERED as u64)..behind {
            if self.earlier.len() == REMEMBERED {
                self.earlier.pop_front();
            }
            self.earlier.push_back((id, time));
        }
    }

    /// An event of a batch before this one, and its time: one that came, or one from before all.
    fn earlier(&self, now: Time, random: &mut Random) -> (u64, Time) {
        let known = self.earlier.get(random.below(2 * REMEMBERED as u64) as usize);
        known.copied().unwrap_or_else(|| {
            let back = random.below(1_000_000);
            // The same event always has the same time.
            let ago = QUARTER * (1 + mix(back) % (366 * 96));
            (self.base - back, Time(self.start.0.min(now.0).saturating_sub(ago)))
        })
    }
}

/// Ten digits, as the ids of these years have.
fn base(seed: u64, start: Time) -> u64 {
    1_002_000_000 + mix(mix(seed) ^ start.0) % 1_000_000_000
}

/// A batch under way.
#[derive(Clone, Debug)]
struct Open {
    id: String,
    time: Time,
    /// The id of its first event.
    from: u64,
    events: u64,
    events_left: u64,
    /// Mentions still to come under ids of their own, and under known ones.
    first_left: u64,
    again_left: u64,
    /// Those among them whose events are not of this batch.
    earlier_left: u64,
    /// Mentions of this batch's events so far.
    own: u64,
    order: Random,
    of_events: Random,
    of_mentions: Random,
    article: Option<Article>,
    /// Mentions that can come again.
    sent: VecDeque<Mention>,
}

/// A page that mentions events, one after the other.
#[derive(Clone, Debug)]
struct Article {
    host: &'static str,
    url: String,
    length: u64,
    tone: String,
    language: Option<&'static str>,
    mentions_left: u64,
    /// The events it has mentioned.
    events: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Mention {
    event: u64,
    event_time: Time,
    article: Article,
    sentence: u64,
}

impl Open {
    fn next(&mut self, all: &mut GdeltGenerator) -> Option<SentRecord> {
        let mentions = self.first_left + self.again_left;
        if self.order.below(self.events_left + mentions) < self.events_left {
            return Some(self.event(all.spoiled));
        }
        if mentions == 0 {
            return None;
        }
        if self.of_mentions.below(mentions) < self.again_left {
            let which = self.of_mentions.below(self.sent.len() as u64) as usize;
            if let Some(mention) = self.sent.remove(which) {
                self.again_left -= 1;
                return Some(self.again(mention));
            }
        }
        // What should have come again and could not is a new one.
        if self.first_left > 0 {
            self.first_left -= 1
        } else {
            self.again_left -= 1
        }
        Some(self.mention(all))
    }

    fn event(&mut self, spoiled: u32) -> SentRecord {
        let id = self.from + self.events - self.events_left;
        self.events_left -= 1;
        let random = &mut self.of_events;
        let line = event(id, self.time, random);
        let how = how(spoiled, random);
        let (value, what) = spoil(line, how, GdeltKind::Event, &["Day", "DateAdded"], random);
        self.record(EVENTS, id, id.to_string(), value, what)
    }

    fn mention(&mut self, all: &mut GdeltGenerator) -> SentRecord {
        let random = &mut self.of_mentions;
        let earlier = random.below(self.first_left + 1) < self.earlier_left || self.events == 0;
        let (event, event_time) = if earlier {
            self.earlier_left = self.earlier_left.saturating_sub(1);
            all.earlier(self.time, random)
        } else {
            self.own += 1;
            // Each event once, then any.
            let nth =
                if self.own <= self.events { self.own - 1 } else { random.below(self.events) };
            (self.from + nth, self.time)
        };
        let fits =
            |article: &Article| article.mentions_left > 0 && !article.events.contains(&event);
        let mut article = self.article.take().filter(fits).unwrap_or_else(|| {
            all.articles += 1;
            article(all.articles, self.time, random)
        });
        article.mentions_left -= 1;
        article.events.push(event);
        self.article = Some(article.clone());
        let mention = Mention { event, event_time, article, sentence: random.between(1, 24) };
        let line = mention.line(self.time, random);
        let how = how(all.spoiled, random);
        let dates = ["MentionTimeDate", "EventTimeDate"];
        let (value, what) = spoil(line, how, GdeltKind::Mention, &dates, random);
        let id = mention.id();
        if how.is_none() {
            if self.sent.len() == REMEMBERED {
                self.sent.pop_front();
            }
            self.sent.push_back(mention);
        }
        self.record(MENTIONS, event, id, value, what)
    }

    fn again(&mut self, mut mention: Mention) -> SentRecord {
        let random = &mut self.of_mentions;
        mention.sentence += random.between(1, 9);
        let value = mention.line(self.time, random).into_bytes();
        let (event, id) = (mention.event, mention.id());
        self.sent.push_back(mention);
        self.record(MENTIONS, event, id, value, GdeltKind::Again)
    }

    fn record(
        &self,
        topic: &'static str,
        event: u64,
        id: String,
        value: Vec<u8>,
        what: GdeltKind,
    ) -> SentRecord {
        let key = (what != GdeltKind::Spoiled(GdeltSpoiling::NoId)).then(|| event.to_string());
        let readable =
            !matches!(what, GdeltKind::Spoiled(GdeltSpoiling::NoId | GdeltSpoiling::NotJson));
        SentRecord {
            topic,
            key,
            batch_id: self.id.clone(),
            id: readable.then_some(id),
            value,
            what,
        }
    }
}

fn article(nth: u64, time: Time, random: &mut Random) -> Article {
    let host = random.word(HOSTS);
    let (year, month, day) = time.date();
    let mut url =
        format!("https://www.{host}/{}/{year}/{month:02}/{day:02}", random.word(SECTIONS));
    let end = format!("-{nth}.html");
    // Some are as long as addresses get: what is not ASCII takes six characters a letter.
    let (words, min) = if random.per_mille(20) { (60, URL_MAX) } else { (random.between(3, 9), 0) };
    let mut between = '/';
    for _ in 0..words {
        let word = random.word(TITLE);
        if url.len() + 1 + word.len() + end.len() > URL_MAX {
            break;
        }
        url.push(between);
        url.push_str(word);
        between = '-';
    }
    while url.len() + end.len() < min {
        url.push('x');
    }
    url.push_str(&end);
    Article {
        host,
        url,
        length: random.between(400, 16_000),
        tone: tone(random),
        language: random.per_mille(400).then(|| random.word(LANGUAGES)),
        mentions_left: random.between(1, 7),
        events: Vec::new(),
    }
}

/// A hundred times the share by which good words outnumber bad ones: around zero, rather below.
fn tone(random: &mut Random) -> String {
    let words = random.between(60, 2_000);
    let swing: u64 = (0..4).map(|_| random.below(words / 20 + 1)).sum();
    let tone = 100.0 * (swing as f64 - (words / 20 * 2) as f64) / words as f64 - 1.0;
    // Fifteen digits at most, so that no reader has to round.
    format!("{tone:.13}")
}

impl Mention {
    fn id(&self) -> String {
        format!("{}_{}", self.event, self.article.url)
    }

    fn line(&self, now: Time, random: &mut Random) -> String {
        let Mention { event, event_time, article, sentence } = self;
        let mut line = Line::new(600);
        let at = random.below(article.length);
        let near = |random: &mut Random| at.saturating_sub(90) + random.below(180);
        let actor1 = (!random.per_mille(140)).then(|| near(random));
        let actor2 = (!random.per_mille(360)).then(|| near(random));
        let offset =
            |known: Option<u64>| known.map_or_else(|| "-1".to_owned(), |at| at.to_string());
        line.number("GlobalEventId", event);
        line.number("EventTimeDate", event_time.id());
        line.number("MentionTimeDate", now.id());
        line.number("MentionType", 1);
        line.text("MentionSourceName", Some(article.host));
        line.text("MentionIdentifier", Some(&article.url));
        line.number("SentenceId", sentence);
        line.number("Actor1CharOffset", offset(actor1));
        line.number("Actor2CharOffset", offset(actor2));
        line.number("ActionCharOffset", at);
        line.number("InRawText", random.below(2));
        line.number("Confidence", random.between(1, 10) * 10);
        line.number("MentionDocLen", article.length);
        line.number("MentionDocTone", &article.tone);
        line.text("MentionDocTranslationInfo", article.language);
        line.end()
    }
}

fn event(id: u64, now: Time, random: &mut Random) -> String {
    // News is mostly of today, sometimes of an anniversary.
    let ago = match random.below(1_000) {
        0..960 => 0,
        960..980 => 365,
        980..990 => 30,
        _ => 7,
    };
    let day = Time(now.0.saturating_sub(ago * time::DAY));
    let (year, month, date) = day.date();
    let action = &ACTIONS[random.below(ACTIONS.len() as u64) as usize];
    let actor1 = some(random, 910, ACTORS);
    let actor2 = some(random, 710, ACTORS);
    // Who acts is mostly where it happens.
    let place = some(random, 970, PLACES);
    let place1 =
        actor1.and_then(|_| if random.per_mille(600) { place } else { any(random, PLACES) });
    let place2 =
        actor2.and_then(|_| if random.per_mille(600) { place } else { any(random, PLACES) });
    let articles = [1, 1, 2, 2, 2, 4, 4, 6, 8, 10][random.below(10) as usize];

    let mut line = Line::new(2_000);
    line.number("GlobalEventId", id);
    line.number("Day", format_args!("{year:04}{month:02}{date:02}"));
    line.number("MonthYear", format_args!("{year:04}{month:02}"));
    line.number("Year", year);
    line.number("FractionDate", format_args!("{year}.{:04}", day.of_year() * 10_000 / 366));
    line.actor("Actor1", actor1);
    line.actor("Actor2", actor2);
    line.number("IsRootEvent", random.below(2));
    line.text("EventCode", Some(action.code));
    line.text("EventBaseCode", action.code.get(..3));
    line.text("EventRootCode", action.code.get(..2));
    line.number("QuadClass", action.class);
    line.number("GoldsteinScale", action.goldstein);
    line.number("NumMentions", articles);
    line.number("NumSources", if random.per_mille(970) { 1 } else { 2 });
    line.number("NumArticles", articles);
    line.number("AvgTone", tone(random));
    line.place("Actor1Geo", place1);
    line.place("Actor2Geo", place2);
    line.place("ActionGeo", place);
    line.number("DateAdded", now.id());
    line.text("SourceUrl", Some(&article(id, now, random).url));
    line.end()
}

fn any<T>(random: &mut Random, list: &'static [T]) -> Option<&'static T> {
    list.get(random.below(list.len() as u64) as usize)
}

fn some<T>(random: &mut Random, share: u32, list: &'static [T]) -> Option<&'static T> {
    let one = any(random, list);
    one.filter(|_| random.per_mille(share))
}

/// An object of JSON in the making. Writing to a string does not fail.
struct Line(String);

impl Line {
    fn new(capacity: usize) -> Self {
        let mut line = String::with_capacity(capacity);
        line.push('{');
        Line(line)
    }

    fn number(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.0, r#""{name}":{value},"#);
    }

    /// The text is as it stands between quotation marks in JSON.
    fn text(&mut self, name: &str, value: Option<&str>) {
        let _ = match value {
            Some(value) => write!(self.0, r#""{name}":"{value}","#),
            None => write!(self.0, r#""{name}":null,"#),
        };
    }

    fn actor(&mut self, who: &str, actor: Option<&Actor>) {
        let mut field = |name, value| self.text(&format!("{who}{name}"), value);
        field("Code", actor.map(|actor| actor.code));
        field("Name", actor.map(|actor| actor.name));
        field("CountryCode", actor.and_then(|actor| actor.country));
        for name in ["KnownGroupCode", "EthnicCode", "Religion1Code", "Religion2Code"] {
            field(name, None);
        }
        field("Type1Code", actor.and_then(|actor| actor.role));
        field("Type2Code", None);
        field("Type3Code", None);
    }

    fn place(&mut self, whose: &str, place: Option<&Location>) {
        self.number(&format!("{whose}Type"), place.map_or(0, |place| place.kind));
        let mut field = |name, value| self.text(&format!("{whose}{name}"), value);
        field("FullName", place.map(|place| place.name));
        field("CountryCode", place.and_then(|place| place.region.get(..2)));
        field("Adm1Code", place.map(|place| place.region));
        field("Adm2Code", place.and_then(|place| place.district));
        let mut number = |name, value: Option<&str>| {
            self.number(&format!("{whose}{name}"), value.unwrap_or("null"));
        };
        number("Lat", place.map(|place| place.lat));
        number("Long", place.map(|place| place.long));
        self.text(&format!("{whose}FeatureId"), place.map(|place| place.feature));
    }

    fn end(mut self) -> String {
        // The comma behind the last field.
        self.0.pop();
        self.0.push('}');
        self.0
    }
}

fn how(share: u32, random: &mut Random) -> Option<GdeltSpoiling> {
    let how =
        GdeltSpoiling::ALL.get(random.below(GdeltSpoiling::ALL.len() as u64) as usize).copied();
    how.filter(|_| random.per_mille(share))
}

fn spoil(
    line: String,
    how: Option<GdeltSpoiling>,
    good: GdeltKind,
    dates: &[&'static str],
    random: &mut Random,
) -> (Vec<u8>, GdeltKind) {
    let Some(how) = how else { return (line.into_bytes(), good) };
    let spoiled = match how {
        GdeltSpoiling::NotJson => {
            // Behind the id, so that it still shows what was sent.
            let mut end = random.between(40, line.len() as u64 - 1) as usize;
            while !line.is_char_boundary(end) {
                end -= 1;
            }
            line[..end].to_owned()
        }
        GdeltSpoiling::NoId if random.per_mille(500) => with_number(&line, "GlobalEventId", "null"),
        GdeltSpoiling::NoId => {
            let rest = line.split_once(',').map_or("}", |(_, rest)| rest);
            format!("{{{rest}")
        }
        GdeltSpoiling::BadDate => match random.word(dates) {
            "Day" => with_number(&line, "Day", "20251399"),
            field => with_number(&line, field, random.word(&["20250230151500", "20251399996100"])),
        },
    };
    (spoiled.into_bytes(), GdeltKind::Spoiled(how))
}

/// The line with another value for a number that is not its last field.
fn with_number(line: &str, field: &str, value: &str) -> String {
    let Some((before, rest)) = line.split_once(&format!(r#""{field}":"#)) else {
        return line.to_owned();
    };
    let end = rest.find(',').unwrap_or(rest.len());
    format!(r#"{before}"{field}":{value}{}"#, &rest[end..])
}

#[cfg(test)]
mod tests;
