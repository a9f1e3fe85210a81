//! What `docs/guides/outbox.md` says of its commands is so, on real PostgreSQL and MariaDB.

use potok_services::{Mariadb, Postgres};

use crate::walk::{DONE, Guide, Walk};

/// The services of the test run already, on ports of their own.
const INSTEAD: [(&str, &str); 1] = [("cargo xtask services up", DONE)];
const READ: &str = "potok read send-message-notification-topic-v1";

#[test]
fn every_command_of_the_guide_to_the_outbox_runs() {
    let (postgres, mariadb) = (Postgres::start(), Mariadb::start());
    let guide = Guide::read("outbox.md")
        .with("127.0.0.1:5432", &format!("127.0.0.1:{}", postgres.port()))
        .with("127.0.0.1:3306", &format!("127.0.0.1:{}", mariadb.port()))
        .with("-P 3306", &format!("-P {}", mariadb.port()));
    let mut walk = Walk::through(&guide, 5..=6, &INSTEAD);
    for (folder, insert) in [("on-postgres", "psql"), ("on-mariadb", "mariadb")] {
        if folder == "on-postgres" {
            let grants = walk.to("potok outbox ddl pipelines/outbox.yaml --grants");
            assert!(grants.contains("GRANT SELECT"), "{grants}");
        }
        walk.to("potok run");
        walk.to(insert);
        walk.until(&format!("{READ} --data-dir {folder} 2>&1 || true"), "c1");
        let status = walk.to("potok outbox status");
        assert!(status.contains("relayed by outbox on"), "{status}");
        assert!(walk.to(READ).contains("conversation_id"));
        if folder == "on-postgres" {
            write_beside_a_change(&guide, &postgres, &walk);
        }
        assert!(walk.take().interrupt().success(), "Ctrl-C is a stop in good order");
    }
    walk.finish();
}

/// The SQL of the writing side, as it stands.
fn write_beside_a_change(guide: &Guide, postgres: &Postgres, walk: &Walk) {
    let table = "CREATE TABLE messages (id int PRIMARY KEY, conversation_id text, text text)";
    postgres.query(&postgres.url(), table);
    postgres.query(&postgres.url(), &guide.shown("sql"));
    walk.until(&format!("{READ} --data-dir on-postgres"), "message_sent");
}
