//! The statements about what waits: heads, which are rows that failed, and those behind them.

use super::shape::Shape;
use super::statements::Note;
use crate::sql::Dialect;

impl Shape {
    /// Every head: id, attempt, milliseconds until it is due.
    pub(super) fn heads(&self) -> String {
        format!(
            "SELECT id, attempt, {} FROM {} WHERE source = {} AND behind IS NULL",
            self.ms_until("until"),
            self.waiting(),
            self.source_literal()
        )
    }

    /// Names rows that must wait for a head.
    pub(super) fn enter_behind(&self, token: &str, head: &str, ids: &[String]) -> Note {
        let id = self.quote(&self.names.id);
        let insert = format!(
            "INSERT INTO {} (source, id, behind) SELECT {}, {}, {} FROM {} o \
             WHERE o.{id} IN ({}) AND {}",
            self.waiting(),
            self.source_literal(),
            self.id_text("o"),
            self.literal(head),
            self.outbox(),
            self.ids(ids),
            self.mine(token)
        );
        let insert = match self.dialect {
            Dialect::Mysql => format!("{insert} ON DUPLICATE KEY UPDATE behind = behind"),
            _ => format!("{insert} ON CONFLICT (source, id) DO NOTHING"),
        };
        self.note(token, vec![insert])
    }

    /// Makes heads wait behind another one.
    pub(super) fn put_behind(&self, token: &str, head: &str, ids: &[String]) -> Note {
        let texts: Vec<String> = ids.iter().map(|id| self.literal(id)).collect();
        let update = format!(
            "UPDATE {} SET behind = {} WHERE source = {} AND id IN ({}) AND {}",
            self.waiting(),
            self.literal(head),
            self.source_literal(),
            texts.join(","),
            self.mine(token)
        );
        self.note(token, vec![update])
    }

    /// Those of these rows that wait, in the order of the table.
    pub(super) fn in_order(&self, ids: &[String]) -> String {
        format!("{} ORDER BY {}", self.pending_of(ids), self.order_by("o").join(", "))
    }

    /// Entries whose `column` names one of these heads, where its row does not wait any more.
    fn of_ended(&self, column: &str, heads: &[String]) -> String {
        let (id, outbox) = (self.quote(&self.names.id), self.outbox());
        let texts: Vec<String> = heads.iter().map(|id| self.literal(id)).collect();
        format!(
            "source = {} AND {column} IN ({}) AND {column} NOT IN \
             (SELECT {} FROM {outbox} o WHERE o.{id} IN ({}) AND {})",
            self.source_literal(),
            texts.join(","),
            self.id_text("o"),
            self.ids(heads),
            self.pending("o")
        )
    }

    /// Lets go of heads that do not wait any more, once nothing is behind them.
    pub(super) fn free_heads(&self, token: &str, heads: &[String]) -> Note {
        let ended = self.of_ended("id", heads);
        let free = format!("DELETE FROM {} WHERE {ended} AND {}", self.waiting(), self.mine(token));
        self.note(token, vec![free])
    }

    /// Lets go of some of those behind heads that do not wait any more: all of them at once would take
    /// long, and keep others from the table. Says how many they were.
    pub(super) fn free_behind(&self, token: &str, heads: &[String], most: usize) -> Note {
        self.note(token, self.free_some(token, &self.of_ended("behind", heads), most))
    }

    /// Lets go of some of those behind any head: they are read again, and their keys found anew.
    pub(super) fn free_all_behind(&self, token: &str, most: usize) -> Note {
        let all = format!("source = {} AND behind IS NOT NULL", self.source_literal());
        self.note(token, self.free_some(token, &all, most))
    }

    fn free_some(&self, token: &str, which: &str, most: usize) -> Vec<String> {
        let (waiting, source, mine) = (self.waiting(), self.source_literal(), self.mine(token));
        match self.dialect {
            Dialect::Mysql => vec![
                format!("DELETE FROM {waiting} WHERE {which} AND {mine} LIMIT {most}"),
                "SELECT 'count', ROW_COUNT()".to_owned(),
            ],
            Dialect::Sqlite | Dialect::Postgres => vec![format!(
                "DELETE FROM {waiting} WHERE source = {source} AND id IN (SELECT id FROM {waiting} \
                 WHERE {which} LIMIT {most}) AND {mine} RETURNING 'done', id"
            )],
        }
    }

    /// Drops a head, and with it those behind.
    pub(super) fn forget_head(&self, token: &str, head: &str) -> Note {
        let (waiting, source) = (self.waiting(), self.source_literal());
        let (head, mine) = (self.literal(head), self.mine(token));
        let forget =
            format!("DELETE FROM {waiting} WHERE source = {source} AND id = {head} AND {mine}");
        self.note(token, vec![forget])
    }

    /// Makes heads due: these, or all.
    pub(super) fn make_due(&self, heads: Option<&[String]>) -> Vec<String> {
        let only = heads.map_or(String::new(), |heads| {
            let texts: Vec<String> = heads.iter().map(|id| self.literal(id)).collect();
            format!(" AND id IN ({})", texts.join(","))
        });
        let (waiting, source) = (self.waiting(), self.source_literal());
        let there = format!("FROM {waiting} WHERE source = {source} AND behind IS NULL{only}");
        vec![
            format!("SELECT 'done', id {there}"),
            format!(
                "UPDATE {waiting} SET until = {} WHERE source = {source} AND behind IS NULL{only}",
                self.now()
            ),
        ]
    }

    /// Notes under which settings what waits was named: all heads are due under them.
    pub(super) fn settle(&self, token: &str, config: &str) -> Note {
        let (waiting, source, mine) = (self.waiting(), self.source_literal(), self.mine(token));
        let due = format!(
            "UPDATE {waiting} SET until = {} WHERE source = {source} AND behind IS NULL AND {mine}",
            self.now()
        );
        let config = format!(
            "UPDATE {} SET config = {} WHERE name = {} AND token = {}",
            self.leases(),
            self.literal(config),
            self.lease_literal(),
            self.literal(token)
        );
        self.note(token, vec![due, config])
    }
}
