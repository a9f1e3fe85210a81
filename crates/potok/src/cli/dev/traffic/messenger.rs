//! Traffic of `outbox`: plays the application. Each change is one transaction with a row of its own and
//! one in the outbox; potok makes the outbox table, the other one is made here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use potok_traffic::messenger::MessengerGenerator;
use rusqlite::{Connection, Error, Transaction, TransactionBehavior};

use super::{Traffic, TrafficSite};

/// potok may be writing, too.
const BUSY_MAX: Duration = Duration::from_secs(5);
const MESSAGES: &str = "CREATE TABLE IF NOT EXISTS messages \
     (id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL, text TEXT NOT NULL)";

/// Where the application keeps its tables, without settings.
fn database(data_dir: &Path) -> PathBuf {
    data_dir.join("db").join("messenger.sqlite")
}

pub(super) fn traffic(site: &TrafficSite<'_>) -> Traffic {
    let path = database(site.data_dir);
    let mut messages = MessengerGenerator::new(site.now);
    let mut open: Option<Connection> = None;
    Traffic::Portions(Box::new(move |portion| {
        let Some(mut connection) = open.take().map_or_else(|| connect(&path), |c| Ok(Some(c)))?
        else {
            return Ok(false);
        };
        for _ in 0..portion {
            let message = messages.next_message();
            let change =
                Transaction::new(&mut connection, TransactionBehavior::Immediate).map_err(text)?;
            let row = (&message.id, &message.conversation, &message.text);
            let sql = "INSERT INTO messages (id, conversation_id, text) VALUES (?1, ?2, ?3)";
            change.execute(sql, row).map_err(text)?;
            let row = (&message.id, message.event_type, &message.payload);
            let sql = "INSERT INTO outbox (id, event_type, payload) VALUES (?1, ?2, ?3)";
            change.execute(sql, row).map_err(text)?;
            match message.is_rolled_back {
                true => change.rollback(),
                false => change.commit(),
            }
            .map_err(text)?;
        }
        open = Some(connection);
        Ok(true)
    }))
}

/// The database, once the outbox is there.
fn connect(path: &Path) -> Result<Option<Connection>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let connection = Connection::open(path).map_err(text)?;
    connection.busy_timeout(BUSY_MAX).map_err(text)?;
    connection.pragma_update(None, "synchronous", "NORMAL").map_err(text)?;
    let made = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'outbox'";
    let tables: u32 = connection.query_row(made, [], |row| row.get(0)).map_err(text)?;
    if tables == 0 {
        return Ok(None);
    }
    connection.execute_batch(MESSAGES).map_err(text)?;
    Ok(Some(connection))
}

fn text(error: Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    #[test]
    fn both_rows_of_a_change_are_there_or_neither() {
        let folder = tempfile::tempdir().unwrap();
        let site = TrafficSite { now: 7, rate: 1, data_dir: folder.path() };
        let Traffic::Portions(mut write) = traffic(&site) else { panic!("it writes itself") };
        assert_eq!(write(1), Ok(false), "there is no outbox yet");
        std::fs::create_dir(folder.path().join("db")).unwrap();
        let connection = Connection::open(database(folder.path())).unwrap();
        let table = "CREATE TABLE outbox (id TEXT UNIQUE, event_type TEXT, payload TEXT)";
        connection.execute_batch(table).unwrap();
        assert_eq!(write(1_000), Ok(true));
        let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
        let both = count("SELECT count(*) FROM outbox JOIN messages USING (id)");
        assert_eq!(both, count("SELECT count(*) FROM outbox"));
        assert_eq!(both, count("SELECT count(*) FROM messages"));
        assert!((900..1_000).contains(&both), "some are rolled back: {both}");
    }
}
