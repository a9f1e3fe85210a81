//! What the generator promises, checked on whole batches.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::*;

fn json(sent: &SentRecord) -> Value {
    serde_json::from_slice(&sent.value).unwrap()
}

fn of<'a>(batch: &'a Batch, topic: &'a str) -> impl Iterator<Item = &'a SentRecord> {
    batch.records.iter().filter(move |sent| sent.topic == topic)
}

/// Names in the order in which they stand in the line.
fn names(sent: &SentRecord) -> Vec<String> {
    let text = std::str::from_utf8(&sent.value).unwrap();
    let ends = text.match_indices("\":").map(|(end, _)| end);
    ends.map(|end| text[text[..end].rfind('"').unwrap() + 1..end].to_owned()).collect()
}

#[test]
fn a_seed_decides_the_batches() {
    let batches = |seed| {
        let mut generator = GdeltGenerator::new(seed);
        [generator.next_batch(100, 400), generator.next_batch(50, 200)]
    };
    assert_eq!(batches(5), batches(5));
    assert_ne!(batches(5), batches(6));
    let [first, second] = batches(5);
    assert_eq!((first.id.as_str(), second.id.as_str()), ("20250323151500", "20250323153000"));
    assert_eq!((of(&first, EVENTS).count(), of(&first, MENTIONS).count()), (100, 400));
    assert!(first.records.iter().all(|sent| sent.batch_id == first.id));
}

#[test]
fn batches_can_begin_anywhere_and_go_on_over_new_year() {
    let mut generator = GdeltGenerator::good_only(1).starting_at("20251231233000").unwrap();
    let ids = [(); 3].map(|()| generator.next_batch(1, 1).id);
    assert_eq!(ids, ["20251231233000", "20251231234500", "20260101000000"]);
    assert!(GdeltGenerator::new(1).starting_at("2025-12-31").is_none());
    let mut generator = GdeltGenerator::new(1).starting_at_seconds(1_742_742_900).with_step(20);
    let ids = [(); 2].map(|()| generator.next_batch(1, 1).id);
    assert_eq!(ids, ["20250323151500", "20250323151520"]);
    let events = |start| {
        let mut generator = GdeltGenerator::good_only(1).starting_at(start).unwrap();
        generator.next_batch(100, 0).records.into_iter().map(|sent| sent.id).collect::<HashSet<_>>()
    };
    assert!(events("20250101000000").is_disjoint(&events("20250101001500")));
}

#[test]
fn one_by_one_they_are_the_same_batches() {
    let mut generator = GdeltGenerator::new(8).with_batch_of(400);
    let one_by_one: Vec<SentRecord> = (0..800).map(|_| generator.next_record()).collect();
    let mut generator = GdeltGenerator::new(8);
    let mut whole = generator.next_batch(100, 300).records;
    whole.extend(generator.next_batch(100, 300).records);
    assert_eq!(one_by_one, whole);
    // What is begun does not come any more once a whole one is asked for.
    let mut generator = GdeltGenerator::new(8).with_batch_of(400);
    generator.next_record();
    assert_eq!(generator.next_batch(1, 1).id, "20250323153000");
    assert_eq!(generator.next_record().batch_id, "20250323154500");
    let mut lonely = GdeltGenerator::new(8).with_batch_of(1);
    assert_eq!((lonely.next_record().topic, lonely.next_record().topic), (EVENTS, EVENTS));
}

#[test]
fn events_do_not_depend_on_mentions() {
    let events = |mentions| {
        let batch = GdeltGenerator::new(3).next_batch(200, mentions);
        of(&batch, EVENTS).cloned().collect::<Vec<_>>()
    };
    assert_eq!(events(0), events(600));
    let few = GdeltGenerator::new(3).next_batch(10, 0).records;
    assert_eq!(few, events(600)[..10]);
}

#[test]
fn fields_are_all_there_in_order_with_their_types() {
    let batch = GdeltGenerator::good_only(2).next_batch(500, 1_500);
    let actor = |who: &str| {
        [
            "Code",
            "Name",
            "CountryCode",
            "KnownGroupCode",
            "EthnicCode",
            "Religion1Code",
            "Religion2Code",
            "Type1Code",
            "Type2Code",
            "Type3Code",
        ]
        .map(|field| format!("{who}{field}"))
    };
    let place = |whose: &str| {
        ["Type", "FullName", "CountryCode", "Adm1Code", "Adm2Code", "Lat", "Long", "FeatureId"]
            .map(|field| format!("{whose}Geo{field}"))
    };
    let mut of_event: Vec<String> =
        ["GlobalEventId", "Day", "MonthYear", "Year", "FractionDate"].map(String::from).into();
    of_event.extend(actor("Actor1"));
    of_event.extend(actor("Actor2"));
    of_event.extend(
        [
            "IsRootEvent",
            "EventCode",
            "EventBaseCode",
            "EventRootCode",
            "QuadClass",
            "GoldsteinScale",
            "NumMentions",
            "NumSources",
            "NumArticles",
            "AvgTone",
        ]
        .map(String::from),
    );
    of_event.extend(["Actor1", "Actor2", "Action"].iter().flat_map(|whose| place(whose)));
    of_event.extend(["DateAdded", "SourceUrl"].map(String::from));
    assert_eq!(of_event.len(), 61);
    let of_mention = [
        "GlobalEventId",
        "EventTimeDate",
        "MentionTimeDate",
        "MentionType",
        "MentionSourceName",
        "MentionIdentifier",
        "SentenceId",
        "Actor1CharOffset",
        "Actor2CharOffset",
        "ActionCharOffset",
        "InRawText",
        "Confidence",
        "MentionDocLen",
        "MentionDocTone",
        "MentionDocTranslationInfo",
    ];
    let number = |name: &str| {
        let ends = ["Offset", "GeoType", "Lat", "Long", "Len", "Tone", "Date", "Mentions"];
        ends.iter().any(|end| name.ends_with(end))
            || [
                "GlobalEventId",
                "Day",
                "MonthYear",
                "Year",
                "IsRootEvent",
                "QuadClass",
                "GoldsteinScale",
                "NumSources",
                "NumArticles",
                "DateAdded",
                "MentionType",
                "SentenceId",
                "InRawText",
                "Confidence",
            ]
            .contains(&name)
    };
    let mut nulls = HashSet::new();
    for sent in &batch.records {
        match sent.topic {
            EVENTS => assert_eq!(names(sent), of_event),
            _ => assert_eq!(names(sent), of_mention),
        }
        for (name, value) in json(sent).as_object().unwrap() {
            match value {
                Value::Null => _ = nulls.insert(name.clone()),
                Value::Number(_) => assert!(number(name), "{name} is a number"),
                Value::String(text) => assert!(!number(name) && !text.is_empty(), "{name}"),
                _ => panic!("{name}: {value}"),
            }
        }
    }
    for name in ["Actor1Name", "Actor2GeoLat", "ActionGeoLong", "MentionDocTranslationInfo"] {
        assert!(nulls.contains(name), "{name} is never null");
    }
    for name in ["GlobalEventId", "Day", "DateAdded", "AvgTone", "MentionDocTone", "SourceUrl"] {
        assert!(!nulls.contains(name), "{name} is null");
    }
}

#[test]
fn ids_and_keys_are_those_of_the_values() {
    let mut generator = GdeltGenerator::good_only(4);
    let mut seen = HashSet::new();
    for batch in [generator.next_batch(1_000, 4_000), generator.next_batch(1_000, 4_000)] {
        for sent in &batch.records {
            let value = json(sent);
            let event = value["GlobalEventId"].as_u64().unwrap().to_string();
            assert!(event.len() == 10 && sent.key.as_deref() == Some(event.as_str()));
            let time: u64 = batch.id.parse().unwrap();
            match sent.topic {
                EVENTS => {
                    assert_eq!(value["DateAdded"], time);
                    assert_eq!(sent.id.as_ref(), Some(&event));
                    assert!(seen.insert(event), "an event comes twice");
                }
                _ => {
                    assert_eq!(value["MentionTimeDate"], time);
                    let url = value["MentionIdentifier"].as_str().unwrap();
                    assert_eq!(sent.id, Some(format!("{event}_{url}")));
                    assert!(value["EventTimeDate"].as_u64().unwrap() <= time);
                }
            }
        }
    }
}

#[test]
fn a_few_mentions_come_again_in_another_sentence() {
    for seed in 0..20 {
        let batch = GdeltGenerator::good_only(seed).next_batch(400, 1_200);
        let mut sentences: HashMap<&str, HashSet<u64>> = HashMap::new();
        let mut again = 0;
        for sent in of(&batch, MENTIONS) {
            let known = sentences.entry(sent.id.as_deref().unwrap()).or_default();
            assert_eq!(sent.what == GdeltKind::Again, !known.is_empty());
            assert!(known.insert(json(sent)["SentenceId"].as_u64().unwrap()), "the same sentence");
            again += u32::from(sent.what == GdeltKind::Again);
        }
        assert!((12..=36).contains(&again), "{again} of 1200");
    }
    let small = GdeltGenerator::good_only(1).next_batch(10, 30);
    assert!(small.records.iter().all(|sent| sent.what != GdeltKind::Again));
}

#[test]
fn most_mentions_are_of_earlier_events_and_each_event_is_mentioned() {
    for seed in 0..20 {
        let mut generator = GdeltGenerator::good_only(seed);
        let before = generator.next_batch(300, 0);
        let before: HashSet<_> = of(&before, EVENTS).filter_map(|sent| sent.key.clone()).collect();
        let batch = generator.next_batch(300, 1_200);
        let own: HashSet<_> = of(&batch, EVENTS).filter_map(|sent| sent.key.clone()).collect();
        let mentioned = || of(&batch, MENTIONS).filter_map(|sent| sent.key.clone());
        let earlier = mentioned().filter(|event| !own.contains(event)).count();
        assert!((600..=924).contains(&earlier), "{earlier} of 1200");
        assert!(mentioned().any(|event| before.contains(&event)));
        let mentioned: HashSet<_> = mentioned().collect();
        assert!(own.is_subset(&mentioned));
    }
}

#[test]
fn texts_and_tones_are_like_the_real_ones() {
    let batch = GdeltGenerator::good_only(1).next_batch(2_000, 6_000);
    let mut longest = 0;
    for sent in &batch.records {
        let value = json(sent);
        for name in ["MentionIdentifier", "SourceUrl"] {
            let length = value[name].as_str().unwrap_or_default().len();
            assert!(length <= URL_MAX);
            longest = longest.max(length);
        }
        assert!(!sent.value.contains(&b'\n') && sent.value.len() < 2_600, "{}", sent.value.len());
    }
    assert_eq!(longest, URL_MAX);
    let names: HashSet<String> = of(&batch, EVENTS)
        .filter_map(|sent| json(sent)["Actor1Name"].as_str().map(str::to_owned))
        .collect();
    assert!(names.iter().any(|name| !name.is_ascii()));
    assert!(names.iter().any(|name| name.contains('"')));
    for (topic, field) in [(EVENTS, "AvgTone"), (MENTIONS, "MentionDocTone")] {
        let tones: Vec<f64> =
            of(&batch, topic).map(|sent| json(sent)[field].as_f64().unwrap()).collect();
        let mean = tones.iter().sum::<f64>() / tones.len() as f64;
        assert!(mean.abs() < 2.5, "{mean}");
        let share =
            |of: fn(f64) -> bool| tones.iter().filter(|t| of(**t)).count() * 100 / tones.len();
        let shares = [share(|t| t < -1.0), share(|t| t.abs() <= 1.0), share(|t| t > 1.0)];
        assert!(shares.iter().all(|share| *share >= 10), "{shares:?}");
        assert!(tones.iter().all(|tone| tone.abs() < 20.0));
    }
}

#[test]
fn spoiled_ones_are_what_they_say() {
    let mut kinds: HashMap<(&str, GdeltKind), usize> = HashMap::new();
    let batch = GdeltGenerator::new(7).next_batch(10_000, 30_000);
    let times = HashMap::from([
        (EVENTS, ["Day", "DateAdded"]),
        (MENTIONS, ["EventTimeDate", "MentionTimeDate"]),
    ]);
    for sent in &batch.records {
        *kinds.entry((sent.topic, sent.what)).or_default() += 1;
        let value = serde_json::from_slice::<Value>(&sent.value);
        let GdeltKind::Spoiled(how) = sent.what else {
            assert!(value.is_ok() && sent.id.is_some());
            continue;
        };
        assert_eq!(sent.id.is_some(), how.is_delivered());
        match (how, value) {
            (GdeltSpoiling::NotJson, value) => assert!(value.is_err() && sent.key.is_some()),
            (GdeltSpoiling::NoId, value) => {
                assert!(value.unwrap()["GlobalEventId"].is_null() && sent.key.is_none());
            }
            (GdeltSpoiling::BadDate, value) => {
                let value = value.unwrap();
                let bad = times[sent.topic].iter().filter(|field| {
                    let text = value[**field].to_string();
                    Time::of_id(&format!("{text:0<14}")).is_none()
                });
                assert_eq!(bad.count(), 1, "{value}");
            }
        }
    }
    assert_eq!(kinds.len(), 2 * GdeltSpoiling::ALL.len() + 3, "{kinds:?}");
    let spoiled: usize = kinds
        .iter()
        .filter(|((_, kind), _)| matches!(kind, GdeltKind::Spoiled(_)))
        .map(|(_, count)| count)
        .sum();
    assert!((600..1_000).contains(&spoiled), "{spoiled} of 40000");
    let good = GdeltGenerator::good_only(7).next_batch(1_000, 3_000);
    assert!(good.records.iter().all(|sent| !matches!(sent.what, GdeltKind::Spoiled(_))));
}
