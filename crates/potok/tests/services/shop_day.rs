//! A day of files through two copies on Kafka into MariaDB shards: killed at every boundary between
//! stages, a shard frozen, replies to COMMIT lost, 1205 and 1213 forced. At every moment the table says
//! nothing that is not so; in the end each event is once on its shard, and the whole day again changes
//! nothing.
//!
//! `POTOK_SOAK` has 60 files of 5,000 events.

use std::collections::BTreeSet;
use std::time::Duration;

use potok_core::trouble::{FILE_CRASH_POINTS, GROUP_CRASH_POINTS};
use potok_services::{Kafka, Mariadb, Mode, Proxy};
use potok_traffic::Random;
use potok_traffic::shop::{ShopEvent, ShopGenerator};
use serde_json::Value;

use crate::gathering;
use crate::process::{Home, Running};
use crate::shop_events::{
    IN_PROGRESS, LIST_IN_PROGRESS, LIST_STUCK, SHORT_SLICES, STUCK, TOTALS,
    assert_only_legal_moves, audit, file, listed, make_trouble, sorted, take, trouble_is_over,
};
use crate::{short_or_soak, wait};

/// What a copy says whose partitions others have.
const LOST: &str = "the group gave our partitions to others";

/// Shards with even numbers and the tracking table are on one server, the others behind a proxy on
/// another.
struct Day {
    even: Mariadb,
    odd: Mariadb,
    proxy: Proxy,
    shards: Vec<String>,
    tracking: String,
    homes: [Home; 2],
    /// For commands.
    outside: Home,
    /// Its brokers hold the log until the end.
    _kafka: Kafka,
    sent: Vec<ShopEvent>,
}

impl Day {
    fn start(of: usize) -> Day {
        let kafka = Kafka::start();
        let (even, odd) = (Mariadb::start(), Mariadb::start());
        let proxy = Proxy::start(([127, 0, 0, 1], odd.port()).into());
        let shards = (0..of).map(|shard| [&even, &odd][shard % 2].fresh_database()).collect();
        let tracking = even.fresh_database();
        let homes = [(); 2].map(|()| gathering::home(&kafka, None));
        let outside = gathering::home(&kafka, None);
        Day { even, odd, proxy, shards, tracking, homes, outside, _kafka: kafka, sent: Vec::new() }
    }

    fn of(&self) -> i64 {
        self.shards.len() as i64
    }

    /// Starts a copy; how it ended where it is to die and has while it started.
    fn copy(&self, number: usize, more: &[(&str, &str)]) -> Result<Running, String> {
        let shards = self.of().to_string();
        let mut settings = vec![("POTOK_DB_TRACKING".to_owned(), self.tracking.clone())];
        for (shard, url) in self.shards.iter().enumerate() {
            let port = |port: u16| format!(":{port}/");
            let url = url.replace(&port(self.odd.port()), &port(self.proxy.port()));
            settings.push((format!("POTOK_DB_SHOP_{shard}"), url));
        }
        let mut all: Vec<(&str, &str)> =
            settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        all.extend([SHORT_SLICES, ("SHARDS", shards.as_str())]);
        all.extend(more);
        self.homes[number].start_file(&file(), &all)
    }

    fn copies(&self) -> [Running; 2] {
        [0, 1].map(|number| self.copy(number, &[]).unwrap())
    }

    /// By a process of its own, so that it does not matter who is alive.
    fn send(&mut self, events: Vec<ShopEvent>) {
        let lines: Vec<u8> =
            events.iter().flat_map(|event| event.bytes.iter().copied().chain([b'\n'])).collect();
        gathering::by_hand(&self.outside)(&["send", "shop-events-in"], &lines).good();
        self.sent.extend(events);
    }

    fn server(&self, shard: usize) -> &Mariadb {
        [&self.even, &self.odd][shard % 2]
    }

    fn tracking(&self, sql: &str) -> Vec<Vec<String>> {
        self.even.query(&self.tracking, sql)
    }

    /// Rows on a shard; none where nothing was sent there yet, not even its table.
    fn count(&self, shard: usize) -> u64 {
        let ask = |sql: &str| self.server(shard).query(&self.shards[shard], sql);
        match ask("SHOW TABLES LIKE 'events'").is_empty() {
            true => 0,
            false => ask("SELECT COUNT(*) FROM events")[0][0].parse().unwrap(),
        }
    }

    /// The ids on a shard; each is there once, being the key.
    fn ids(&self, shard: usize) -> BTreeSet<String> {
        let of = self.of();
        let sql = format!(
            "SELECT event_id FROM events WHERE shard = {shard} AND MOD(MOD(shop_id, {of}) + {of}, \
             {of}) = {shard}"
        );
        let found = self.server(shard).query(&self.shards[shard], &sql);
        found.into_iter().flatten().collect()
    }

    fn wanted(&self, shard: usize) -> BTreeSet<String> {
        let is_it = |event: &&ShopEvent| {
            event.shop.is_some_and(|shop| shop.rem_euclid(self.of()) == shard as i64)
        };
        self.sent.iter().filter(is_it).map(|event| event.id.clone()).collect()
    }

    fn shards(&self) -> std::ops::Range<usize> {
        0..self.shards.len()
    }

    /// What the table calls done is there, whoever dies meanwhile.
    fn assert_done_is_there(&self, shards: impl Iterator<Item = usize>) {
        for shard in shards {
            let sql = format!(
                "SELECT CAST(COALESCE(SUM(p.`rows`), 0) AS CHAR) FROM potok_tracking p JOIN \
                 pipeline_tracking t USING (filename, shard) WHERE p.shard = {shard} AND \
                 t.mysql_sender_status = 'done'"
            );
            let done: u64 = self.tracking(&sql)[0][0].parse().unwrap();
            let there = self.count(shard);
            assert!(there >= done, "shard {shard}: {done} rows are done, {there} are there");
        }
    }

    /// The command line says what the queries of the description say; at a moment when nothing
    /// moved in between.
    fn assert_cli_agrees(&self, running: &Running) {
        wait::until("nothing moves for a moment", || {
            let look = || (sorted(self.tracking(IN_PROGRESS)), self.tracking(TOTALS));
            let before = look();
            let listed = listed(running, &LIST_IN_PROGRESS, "shard");
            let (_, body) = running.get("/api/v1/files?limit=1").unwrap();
            let said: Value = serde_json::from_str(&body).unwrap();
            let keys = ["shard", "total", "completed", "processing", "failed"];
            let shards = said["pipelines"][0]["shards"].as_array()?.iter();
            let shards: Vec<Vec<String>> = shards
                .map(|shard| keys.iter().map(|key| shard[*key].to_string()).collect())
                .collect();
            if look() != before {
                return None;
            }
            assert_eq!((listed, shards), before);
            Some(())
        });
    }

    /// The first file of a frozen shard has been with the sender for long: the query of the description
    /// and the command line find it, and nothing else.
    fn assert_stuck_agrees(&self, running: &Running) {
        let of_frozen = "MOD(shard, 2) = 1 AND mysql_sender_status = 'started'";
        wait::until("a file is with the sender of a frozen shard", || {
            let found = format!("SELECT 1 FROM pipeline_tracking WHERE {of_frozen}");
            (!self.tracking(&found).is_empty()).then_some(())
        });
        wait::until("nothing moves for a moment", || {
            self.tracking(&format!(
                "UPDATE pipeline_tracking SET updated_at = NOW() - INTERVAL 6 MINUTE WHERE {of_frozen}"
            ));
            let before = sorted(self.tracking(STUCK));
            let stuck = listed(running, &LIST_STUCK, "minutes");
            if before.is_empty() || sorted(self.tracking(STUCK)) != before {
                return None;
            }
            assert_eq!(stuck, before);
            assert!(before.iter().all(|row| row[4] == "started"), "{before:?}");
            Some(())
        });
    }

    /// Everything is where it belongs and every file is done.
    fn settled(&self) {
        for shard in self.shards() {
            let wanted = self.wanted(shard);
            wait::until_seen("each event is on its shard", || {
                let there = self.ids(shard);
                let missing = wanted.difference(&there).count();
                if there == wanted {
                    Ok(())
                } else {
                    Err(format!("shard {shard}: {missing} missing"))
                }
            });
            assert_eq!(self.count(shard), wanted.len() as u64, "an event of another shard");
        }
        wait::until_seen("every file is done", || {
            let open = self.tracking(IN_PROGRESS);
            if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
        });
        for shard in self.shards() {
            let sums = format!(
                "SELECT CAST(SUM(`rows`) AS CHAR), SUM(records <> `rows` + duplicates + filtered + \
                 dead) FROM potok_tracking WHERE shard = {shard}"
            );
            let wanted = self.wanted(shard).len().to_string();
            assert_eq!(self.tracking(&sums), [[wanted, "0".to_owned()]], "shard {shard}");
        }
        assert_only_legal_moves(&self.even, &self.tracking);
        let failed = "SELECT COUNT(*) FROM moves WHERE is_now = 'failed'";
        assert_eq!(self.tracking(failed), [["0"]], "nobody had to mend anything");
    }

    /// Both copies are started to die at that point, and whoever comes there does.
    fn die_at(&self, point: &str) {
        let started = [0, 1].map(|number| self.copy(number, &[("POTOK_CRASH_AT", point)]));
        let mut alive: Vec<Running> = started.into_iter().flatten().collect();
        if alive.len() == 2 {
            wait::until(point, || alive.iter_mut().any(|copy| !copy.is_alive()).then_some(()));
        }
        alive.into_iter().for_each(Running::kill);
    }
}

fn day(of: usize, seed: u64) {
    let mut day = Day::start(of);
    let (mut random, mut generator) = (Random::new(seed), ShopGenerator::good_only(seed));
    let all: Vec<&str> = GROUP_CRASH_POINTS.iter().chain(FILE_CRASH_POINTS).copied().collect();
    // What dies at the sweep needs a shard without events, and that is another test.
    let all: Vec<&str> = all.into_iter().filter(|point| *point != "file.swept").collect();
    // Two of them each, of which the first are those behind the rows.
    let some =
        if of == 2 { ["file.delivered", "file.done"] } else { ["seal.after", "file.written"] };
    let points = if short_or_soak(0, 1) == 1 { all } else { some.to_vec() };
    let files = short_or_soak(8, 60);
    let events = short_or_soak(300, 5_000) as usize;
    let mut copies = day.copies();
    wait::until("the tables are there", || {
        (day.tracking("SHOW TABLES LIKE '%_tracking'").len() == 2).then_some(())
    });
    audit(&day.even, &day.tracking, "1 = 1");
    day.send(take(&mut generator, events));
    day.settled();
    make_trouble(&day.even, &day.shards[0], "events", "INSERT");
    make_trouble(&day.even, &day.tracking, "pipeline_tracking", "UPDATE");
    for number in 0..files {
        match number % 4 {
            // At a boundary between two stages.
            0 => {
                let point = points[(number / 4) as usize % points.len()];
                copies.into_iter().for_each(Running::kill);
                day.send(take(&mut generator, events));
                day.die_at(point);
                day.assert_done_is_there(day.shards());
                copies = day.copies();
            }
            // Whatever one of them does.
            1 => {
                day.send(take(&mut generator, events));
                wait::random_moment(&mut random, Duration::from_millis(2_000));
                let [first, second] = copies;
                first.kill();
                day.assert_done_is_there(day.shards());
                copies = [day.copy(0, &[]).unwrap(), second];
            }
            // Shards of one server are frozen: the others go on.
            2 => {
                // What a dead copy had called done, and not ended, is sent again before what comes now.
                wait::until("everything has ended in the log", || {
                    let has_ended = |copy: &Running| copy.status()["lag"] == 0;
                    copies.iter().all(has_ended).then_some(())
                });
                day.odd.freeze();
                day.send(take(&mut generator, events));
                for shard in day.shards().step_by(2) {
                    let wanted = day.wanted(shard);
                    wait::until("the other shards go on", || {
                        (day.ids(shard) == wanted).then_some(())
                    });
                }
                day.assert_done_is_there(day.shards().step_by(2));
                day.assert_stuck_agrees(&copies[0]);
                day.odd.thaw();
            }
            // The answers to COMMIT are lost.
            _ => {
                day.proxy.set(Mode::DropReplies);
                day.send(take(&mut generator, events));
                wait::random_moment(&mut random, Duration::from_millis(1_500));
                day.proxy.set(Mode::Cut);
                day.proxy.set(Mode::Pass);
            }
        }
        day.assert_cli_agrees(&copies[(number % 2) as usize]);
    }
    day.settled();
    for url in [&day.shards[0], &day.tracking] {
        assert!(trouble_is_over(&day.even, url), "the forced errors were met");
    }
    let rows = day.tracking("SELECT CAST(SUM(`rows`) AS CHAR) FROM potok_tracking");
    // The whole day once more.
    let sent = std::mem::take(&mut day.sent);
    for again in sent.chunks(events) {
        day.send(again.to_vec());
    }
    wait::until_seen("all of it is recognised", || {
        let sum = day.tracking("SELECT CAST(SUM(duplicates) AS CHAR) FROM potok_tracking");
        let wanted = [[day.sent.len().to_string()]];
        if sum == wanted { Ok(()) } else { Err(format!("{sum:?} of {wanted:?}")) }
    });
    day.settled();
    assert_eq!(day.tracking("SELECT CAST(SUM(`rows`) AS CHAR) FROM potok_tracking"), rows);
    drop(copies);
}

#[test]
fn a_day_of_files_over_two_shards() {
    day(2, 65);
}

#[test]
fn a_day_of_files_over_four_shards() {
    day(4, 66);
}

/// A copy stands still in the middle of a file for longer than its session; the other one finishes it. What
/// the first does when it wakes up changes nothing.
#[test]
fn a_copy_that_wakes_up_changes_nothing() {
    let mut day = Day::start(2);
    let mut generator = ShopGenerator::good_only(70);
    let copies = day.copies();
    wait::until("the tables are there", || {
        (day.tracking("SHOW TABLES LIKE '%_tracking'").len() == 2).then_some(())
    });
    audit(&day.even, &day.tracking, "1 = 1");
    day.send(take(&mut generator, 200));
    day.settled();
    // What it has sent is on the shard, and it does not know.
    day.proxy.set(Mode::DropReplies);
    day.send(take(&mut generator, 200));
    let with_sender = "SELECT p.owner FROM potok_tracking p JOIN pipeline_tracking t USING (filename, shard) \
                       WHERE shard = 1 AND p.seal IS NOT NULL AND t.mysql_sender_status = 'started'";
    let zombie = wait::until("a file is with the sender of shard 1", || {
        let owner = day.tracking(with_sender).first()?.first()?.clone();
        let process = owner.rsplit(':').next()?.to_owned();
        copies.iter().find(|copy| copy.pid().to_string() == process)
    });
    zombie.signal("STOP");
    day.proxy.set(Mode::Cut);
    day.proxy.set(Mode::Pass);
    day.settled();
    let rows = "SELECT t.*, p.owner, p.records, p.`rows`, p.duplicates, p.filtered, p.dead, p.hash, p.attempts, \
                p.finished_at, p.error FROM potok_tracking p JOIN pipeline_tracking t USING (filename, shard) \
                ORDER BY filename, shard";
    let finished = day.tracking(rows);
    zombie.signal("CONT");
    wait::until("it hears that others have its partitions", || {
        zombie.journal().contains(LOST).then_some(())
    });
    // It has its part again, of what comes now.
    day.send(take(&mut generator, 200));
    day.settled();
    let now = day.tracking(rows);
    assert_eq!(now[..finished.len()], finished, "what was done is as it was");
    assert!(now.len() > finished.len());
    drop(copies);
}

/// The number of shards and the length of slices change while groups are open, sealed and waiting.
/// The naive version sends what was sealed where its value leads now, or leaves rows that nobody ends.
#[test]
fn shards_and_slices_change_on_kafka() {
    let mut day = Day::start(4);
    let mut generator = ShopGenerator::good_only(69);
    let start = |day: &Day, shards: &str, slice: &str| {
        let mut settings = vec![("POTOK_DB_TRACKING".to_owned(), day.tracking.clone())];
        let urls = day.shards.iter().enumerate();
        settings.extend(urls.map(|(shard, url)| (format!("POTOK_DB_SHOP_{shard}"), url.clone())));
        settings.extend([("SHARDS".to_owned(), shards.to_owned())]);
        settings.extend([("SLICE".to_owned(), slice.to_owned())]);
        let settings: Vec<(&str, &str)> =
            settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        day.homes[0].start_file_unready(&file(), &settings)
    };
    let tracked = |day: &Day| -> u64 {
        let sealed = "SELECT COUNT(*) FROM potok_tracking WHERE seal IS NOT NULL";
        day.tracking(sealed)[0][0].parse().unwrap()
    };
    let count = short_or_soak(200, 5_000) as usize;
    let mut sealed = 0;
    let running = start(&day, "2", "3s");
    wait::until("the tables are there", || {
        (day.tracking("SHOW TABLES LIKE '%_tracking'").len() == 2).then_some(())
    });
    audit(&day.even, &day.tracking, "1 = 1");
    day.odd.freeze();
    let mut copy = running;
    for (shards, slice) in [("4", "2s"), ("2", "1s"), ("4", "3s"), ("2", "1s")] {
        day.send(take(&mut generator, count));
        wait::until("more is sealed", || {
            let now = tracked(&day);
            (now > sealed).then(|| sealed = now)
        });
        // These are in open groups.
        day.send(take(&mut generator, count));
        copy.kill();
        copy = start(&day, shards, slice);
    }
    day.odd.thaw();
    wait::until_seen("every event is somewhere", || {
        let there: u64 = day.shards().map(|shard| day.count(shard)).sum();
        if there == day.sent.len() as u64 { Ok(()) } else { Err(there) }
    });
    let mut all = BTreeSet::new();
    for shard in day.shards().filter(|shard| day.count(*shard) > 0) {
        let rows =
            day.server(shard).query(&day.shards[shard], "SELECT event_id, shop_id FROM events");
        for row in rows {
            let shop: i64 = row[1].parse().unwrap();
            let belongs = [2, 4].iter().any(|of| shop.rem_euclid(*of) == shard as i64);
            assert!(belongs, "shop {shop} on shard {shard}");
            assert!(all.insert(row[0].clone()), "{} is on two shards", row[0]);
        }
    }
    wait::until_seen("every file is done", || {
        let open = day.tracking(IN_PROGRESS);
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?}")) }
    });
    assert_only_legal_moves(&day.even, &day.tracking);
    drop(copy);
}
