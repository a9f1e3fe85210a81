//! The dead letters of the table: rows of another table, with every column of the outbox and why.
//!
//! Replaying puts them back with their old places in the order, those of one call in one transaction,
//! so that rows of a key come back together.

use std::sync::Arc;

use async_trait::async_trait;
use potok_core::{Fault, FeedLetter, FeedLetters, LetterCount, Reason, Timestamp};
use potok_expr::json::Parser;

use super::Outbox;
use super::keys::{RowKeys, position};
use super::look::with_columns_of_now;
use super::report::COUNT_MAX;
use super::session::{Cells, number, text};
use super::shape::{Order, ROWID, Shape};
use super::table::{OutboxTable, record};
use crate::sql::Dialect;

impl Shape {
    /// When it was set aside; a row that somebody wrote by hand may not say.
    fn dead_ms(&self) -> String {
        format!("COALESCE({}, 0)", self.epoch_ms("d", "dead_at"))
    }

    fn dead_rows(&self, only: &str, most: usize) -> String {
        format!(
            "SELECT d.reason, d.error, {ms}, {} FROM {} d{only} ORDER BY {ms}, {} LIMIT {most}",
            self.row_columns("d"),
            self.table(&self.names.dead),
            self.id_text("d"),
            ms = self.dead_ms(),
        )
    }

    fn dead_after(&self, (time, last): (Timestamp, &str)) -> String {
        let (ms, id) = (self.dead_ms(), self.id_text("d"));
        let (time, last) = (time.0, self.literal(last));
        format!(" WHERE ({ms} > {time} OR ({ms} = {time} AND {id} > {last}))")
    }

    fn dead_count(&self) -> String {
        format!(
            "SELECT count(*), max({}) FROM (SELECT dead_at FROM {} LIMIT {}) d",
            self.epoch_ms("d", "dead_at"),
            self.table(&self.names.dead),
            COUNT_MAX + 1
        )
    }

    fn dead_of(&self, ids: &[String]) -> String {
        format!(" WHERE d.{} IN ({})", self.quote(&self.names.id), self.ids(ids))
    }

    fn dead_ids(&self, ids: &[String]) -> String {
        let dead = self.table(&self.names.dead);
        format!("SELECT {} FROM {dead} d{}", self.id_text("d"), self.dead_of(ids))
    }

    /// Puts dead letters back where they were, all in one transaction.
    fn replay(&self, ids: &[String]) -> Vec<String> {
        let names = &self.names;
        let (outbox, dead) = (self.outbox(), self.table(&names.dead));
        let value = |column: &str| match column {
            _ if column == names.processed => self.no().to_owned(),
            _ if column == names.processed_at => "NULL".to_owned(),
            _ if column == names.retry_count => "0".to_owned(),
            _ => format!("d.{}", self.quote(column)),
        };
        let mut into: Vec<String> = self.written().map(|name| self.quote(name)).collect();
        let mut from: Vec<String> = self.written().map(value).collect();
        if self.order == Order::Rowid {
            into.push("rowid".to_owned());
            from.push(format!(
                "CASE WHEN EXISTS (SELECT 1 FROM {outbox} o WHERE o.rowid = d.{ROWID}) THEN NULL \
                 ELSE d.{ROWID} END"
            ));
        }
        let system =
            if self.dialect == Dialect::Postgres { " OVERRIDING SYSTEM VALUE" } else { "" };
        vec![
            self.dead_ids(ids),
            format!(
                "INSERT INTO {outbox} ({}){system} SELECT {} FROM {dead} d{}",
                into.join(", "),
                from.join(", "),
                self.dead_of(ids)
            ),
            self.drop_dead(ids),
        ]
    }

    fn drop_dead(&self, ids: &[String]) -> String {
        let dead = self.table(&self.names.dead);
        format!("DELETE FROM {dead} WHERE {} IN ({})", self.quote(&self.names.id), self.ids(ids))
    }

    /// Which of these rows are not processed.
    pub(super) fn pending_of(&self, ids: &[String]) -> String {
        format!(
            "SELECT {} FROM {} o WHERE o.{} IN ({}) AND {}",
            self.id_text("o"),
            self.outbox(),
            self.quote(&self.names.id),
            self.ids(ids),
            self.pending("o")
        )
    }
}

fn first_cells(rows: &[Cells]) -> Vec<String> {
    rows.iter().filter_map(|row| text(row, 0)).collect()
}

/// A word that somebody wrote by hand means that the row was refused.
fn reason(word: &str) -> Reason {
    Reason::ALL.into_iter().find(|reason| reason.word() == word).unwrap_or(Reason::Refused)
}

impl Outbox {
    fn letter(&self, table: &OutboxTable, mut cells: Cells) -> FeedLetter {
        let own = cells.split_off(cells.len().min(3));
        let row = table.row(own);
        let handed_out = record(&table.shape, &row, 0);
        let mut keys = RowKeys { template: self.settings.key.clone(), parser: Parser::new() };
        let topic: Arc<str> = self.settings.topic.clone();
        let key = keys.of(&row, &handed_out, &topic);
        FeedLetter {
            record: potok_core::Record { key: Some(key), ..handed_out },
            origin: position(&topic, &row.id),
            reason: reason(&text(&cells, 0).unwrap_or_default()),
            error: text(&cells, 1).unwrap_or_default(),
            attempts: row.attempts,
            time: Timestamp(number(&cells, 2).unwrap_or(0)),
            id: row.id.to_string(),
        }
    }

    async fn letters_where(&self, only: &str, most: usize) -> Result<Vec<FeedLetter>, Fault> {
        let table = self.table().await?;
        let rows = table.session.query(table.shape.dead_rows(only, most)).await?;
        Ok(rows.into_iter().map(|cells| self.letter(&table, cells)).collect())
    }

    /// Its dead letters: these, or all.
    pub async fn dead_rows(&self, ids: Option<&[String]>) -> Result<Vec<FeedLetter>, Fault> {
        let only = match ids {
            Some(ids) => self.table().await?.shape.dead_of(ids),
            None => String::new(),
        };
        self.letters_where(&only, COUNT_MAX).await
    }

    /// Puts dead letters back into the table, in their order; which ones.
    pub async fn replay(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        // A column that was added since keeps its values.
        let shape = with_columns_of_now(&*session, &shape).await?;
        Ok(first_cells(&session.transact(&[], &shape.replay(ids)).await?))
    }

    /// Removes dead letters; which of them were there.
    pub async fn drop_dead(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        let statements = [shape.dead_ids(ids), shape.drop_dead(ids)];
        Ok(first_cells(&session.transact(&[], &statements).await?))
    }
}

#[async_trait]
impl FeedLetters for Outbox {
    fn place(&self) -> &str {
        &self.names.dead
    }

    async fn count(&self) -> Result<LetterCount, Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        let rows = session.query(shape.dead_count()).await?;
        let cell = |at| rows.first().and_then(|row| number(row, at));
        let letters = cell(0).and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
        Ok(LetterCount { letters, newest: cell(1).map(Timestamp) })
    }

    async fn list(
        &self,
        after: Option<(Timestamp, &str)>,
        most: usize,
    ) -> Result<Vec<FeedLetter>, Fault> {
        let shape = self.table().await?.shape;
        let only = after.map(|after| shape.dead_after(after)).unwrap_or_default();
        self.letters_where(&only, most).await
    }

    async fn find(&self, ids: &[String]) -> Result<Vec<FeedLetter>, Fault> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.dead_rows(Some(ids)).await
    }

    async fn replay(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        Outbox::replay(self, ids).await
    }

    async fn discard(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        self.drop_dead(ids).await
    }

    async fn under_way(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        let OutboxTable { shape, session } = self.table().await?;
        let mut all = Vec::new();
        for ids in ids.chunks(500) {
            all.extend(first_cells(&session.query(shape.pending_of(ids)).await?));
        }
        Ok(all)
    }
}
