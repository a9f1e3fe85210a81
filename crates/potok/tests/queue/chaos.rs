//! Two copies on one Redis: they die at every crash point, freeze beyond their lease, and Redis
//! restarts.

use std::time::Duration;

use potok_core::trouble::QUEUE_CRASH_POINTS;
use potok_services::{Redis, RedisOptions};

use crate::posted::{LIST, assert_posted, file, home, message, nothing_is_left, push, start};
use crate::receiver::Receiver;
use crate::{short_or_soak, wait};

const CLOSE: &str = "close: { quiet: 300ms, max_age: 60s, max_count: 7 }";

fn server() -> Redis {
    let settings = vec![("appendfsync".to_owned(), "always".to_owned())];
    Redis::start_with(&RedisOptions { settings, ..RedisOptions::default() })
}

#[test]
fn every_message_is_in_one_batch_whoever_dies_and_freezes() {
    let (redis, receiver) = (server(), Receiver::saying(204));
    let homes = [home(&redis), home(&redis)];
    let steady = start(&homes[0], &receiver, CLOSE);
    let (chats, burst) = (short_or_soak(20, 5_000), short_or_soak(100, 12_000));
    let mut sent = 0;
    let mut send = || {
        let entries: Vec<_> = (sent..sent + burst).map(|n| message(n % chats, n)).collect();
        push(&redis, LIST, &entries);
        sent += burst;
        sent
    };
    let webhook = ("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str());
    for point in QUEUE_CRASH_POINTS {
        let crash = format!("{point}:2");
        let doomed =
            homes[1].start_file(&file(&homes[1], CLOSE), &[webhook, ("POTOK_CRASH_AT", &crash)]);
        send();
        // Where the other copy was faster, it did not come there; more comes.
        if let Ok(mut doomed) = doomed {
            for _ in 0..20 {
                if !doomed.is_alive() {
                    break;
                }
                send();
                std::thread::sleep(Duration::from_millis(50));
            }
            doomed.kill();
        }
    }
    // Frozen beyond its lease, with claims in its hands; the other goes on with them.
    let frozen = start(&homes[1], &receiver, CLOSE);
    let before = receiver.posts().len();
    send();
    wait::until("something is posted", || (receiver.posts().len() > before).then_some(()));
    frozen.signal("STOP");
    send();
    nothing_is_left(&redis);
    frozen.signal("CONT");
    send();
    // The server dies and comes back with its file.
    redis.kill();
    redis.restart();
    let sent = send();
    nothing_is_left(&redis);
    assert_posted(&receiver, chats, sent);
    drop((steady, frozen));
}

#[test]
fn a_webhook_that_fails_holds_its_chat_in_order() {
    let (redis, receiver) = (server(), Receiver::saying(503));
    let home = home(&redis);
    let running = start(&home, &receiver, CLOSE);
    let entries: Vec<_> = (0..60).map(|n| message(n % 3, n)).collect();
    push(&redis, LIST, &entries);
    wait::until("it is tried", || (!receiver.posts().is_empty()).then_some(()));
    // Killed while nothing gets through: another copy has all of it.
    running.kill();
    let _running = start(&home, &receiver, CLOSE);
    receiver.say(204);
    nothing_is_left(&redis);
    assert_posted(&receiver, 3, 60);
}

/// The old processor pushes joined entries into `queue:batch:` while we hold the lock of the chat.
#[test]
fn the_old_processor_may_go_on_pushing() {
    let (redis, receiver) = (server(), Receiver::saying(204));
    let home = home(&redis);
    let _running = start(&home, &receiver, "close: { quiet: 2s, max_age: 60s, max_count: 100 }");
    push(&redis, LIST, &[message(0, 0)]);
    wait::until("the chat is open", || {
        (redis.command(&["EXISTS", "lock:batch:telegram:tg:0"]) == "1").then_some(())
    });
    let joined = format!("{}|||SEPARATOR|||{}|||SEPARATOR|||null", message(0, 1), message(0, 2));
    push(&redis, "queue:batch:telegram:tg:0", &[joined]);
    nothing_is_left(&redis);
    assert_posted(&receiver, 1, 3);
    assert_eq!(receiver.taken().len(), 1, "all of them are one batch");
}
