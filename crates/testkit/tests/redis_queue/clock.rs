//! The server's clock jumps, for everything that the server does: leases, locks, quiet times.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use potok_connectors::redis::QueueOptions;
use potok_testkit::services::{Redis, RedisOptions};

use crate::rig::{Copy, LIST, Other, by_chat, message, options, until};

const HOUR: i64 = 3_600;

/// A server whose clock is moved by what a file says.
struct Shifted {
    redis: Redis,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Shifted {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis_queue/clock.c");
        let (library, file) = (folder.path().join("clock.so"), folder.path().join("shift"));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let built = Command::new(compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status();
        assert!(built.unwrap().success(), "a C compiler is needed");
        fs::write(&file, "0").unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let variables = vec![
            ("LD_PRELOAD".to_owned(), text(&library)),
            ("CLOCK_SHIFT".to_owned(), text(&file)),
        ];
        let redis = Redis::start_with(&RedisOptions { variables, ..RedisOptions::default() });
        Shifted { redis, file, _folder: folder }
    }

    fn shift(&self, other: &mut Other, seconds: i64) {
        let before: (i64, i64) = other.ask(&["TIME"]);
        let known: i64 = fs::read_to_string(&self.file).unwrap().parse().unwrap();
        let next = self.file.with_extension("next");
        fs::write(&next, (known + seconds).to_string()).unwrap();
        fs::rename(&next, &self.file).unwrap();
        let after: (i64, i64) = other.ask(&["TIME"]);
        assert!((after.0 - before.0 - seconds).abs() < 60, "its clock was moved");
    }
}

/// Everything that waits leaves, and what comes afterwards too, whichever way the clock jumps.
#[test]
pub fn a_clock_that_jumps_holds_up_nothing() {
    let server = Shifted::start();
    let mut other = Other::new(&server.redis);
    // A time of the last message that lies ahead is taken for now, and the age ends that.
    let (quiet, max_age) = (Duration::from_secs(1), Duration::from_secs(5));
    let copy = Copy::start(&server.redis.url(), QueueOptions { quiet, max_age, ..options() }, true);
    let mut sent = 0;
    for hours in [-4, 2, 2] {
        let chats = format!("potok:list:{LIST}:chats");
        other.push((sent..sent + 300).map(|n| message(&n.to_string(), n)));
        until("they wait", || (other.ask::<i64>(&["HLEN", &chats]) > 0).then_some(()));
        server.shift(&mut other, hours * HOUR);
        sent += 300;
        let groups = copy.messages(usize::try_from(sent).unwrap());
        assert_eq!(by_chat(&groups).len() as u64, sent);
        until("nothing is left", || other.left().is_empty().then_some(()));
    }
}

/// All leases are over at once: this process has its claim again, and goes on with it instead of
/// beginning it a second time.
#[test]
fn a_lease_that_a_jump_has_ended_goes_on_in_its_process() {
    let server = Shifted::start();
    let mut other = Other::new(&server.redis);
    let copy = Copy::start(&server.redis.url(), options(), false);
    other.push([message("a", 1)]);
    let claimed = copy.messages(1).remove(0);
    let claims = format!("potok:list:{LIST}:claims");
    let token = |other: &mut Other| {
        let claim: String = other.ask(&["HGET", &claims, "t:a"]);
        claim.split(' ').next().unwrap().to_owned()
    };
    let before = token(&mut other);
    server.shift(&mut other, 2 * HOUR);
    let due = format!("potok:list:{LIST}:due");
    until("it has another token", || {
        // A renewal may come before the next look.
        let _: i64 = other.ask(&["ZADD", &due, "XX", "1", "t:a"]);
        (token(&mut other) != before).then_some(())
    });
    assert_eq!((copy.groups().len(), copy.lost()), (1, vec![]));
    assert!(claimed.batch.lease().unwrap().is_held());
    copy.commit(&claimed).unwrap();
    until("nothing is left", || other.left().is_empty().then_some(()));
}
