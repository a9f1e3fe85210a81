//! A copy that is frozen while it waits for the list: whoever waits changes nothing there.

use potok_services::Redis;

use crate::posted::{LIST, file, home, ids, message, push};
use crate::receiver::Receiver;
use crate::wait;

/// Each time one copy is frozen while both wait, two messages come, and it wakes up. True where they came
/// out in the order in which they came.
fn keeps_order(plant: Option<&str>) -> bool {
    let (redis, receiver) = (Redis::start(), Receiver::saying(204));
    let homes = [home(&redis), home(&redis)];
    let mut environment = vec![("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str())];
    environment.extend(plant.map(|bug| ("POTOK_PLANT", bug)));
    let start = |of: usize| {
        let file = file(&homes[of], "close: { quiet: 200ms, max_age: 60s, max_count: 100 }");
        homes[of].start_file(&file, &environment).unwrap()
    };
    let (frozen, _other) = (start(0), start(1));
    let taken = || -> Vec<u64> {
        let posts = receiver.posts();
        posts.iter().flat_map(|(_, body, _)| ids(&serde_json::from_str(body).unwrap())).collect()
    };
    for round in 0..15 {
        frozen.signal("STOP");
        push(&redis, LIST, &[message(0, 2 * round)]);
        push(&redis, LIST, &[message(0, 2 * round + 1)]);
        wait::until("the last is posted", || taken().contains(&(2 * round + 1)).then_some(()));
        frozen.signal("CONT");
        wait::until("both are posted", || taken().contains(&(2 * round)).then_some(()));
        if !taken().is_sorted() {
            return false;
        }
    }
    true
}

#[test]
fn a_copy_frozen_in_its_wait_puts_nothing_out_of_order() {
    assert!(keeps_order(None));
    assert!(!keeps_order(Some("MoverUnfenced")), "the naive version");
}
