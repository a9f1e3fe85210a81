//! What the relay asks of the table: each question is one call of the database.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use potok_core::trouble::Bug;
use potok_core::{Backlog, Fault, HeadersBuilder, Record, Timestamp};

use super::look;
use super::session::{Cells, OutboxSession, number, text};
use super::shape::Shape;
use super::statements::{Burial, Claim, Delay, Note, ReadLimits};

/// Rows that are let go in one call.
const FREE_MAX: usize = 500;

/// A row as it was read.
#[derive(Clone, Debug)]
pub(super) struct OutboxRow {
    pub id: Arc<str>,
    pub event_type: Option<String>,
    pub payload: Option<Bytes>,
    /// Larger than a record may be; it was not fetched.
    pub is_too_large: bool,
    pub added_at: Option<String>,
    pub time: Option<Timestamp>,
    pub attempts: u32,
    /// Further columns, in the order of [`Shape::header_columns`].
    pub headers: Vec<Option<Bytes>>,
}

/// A row that failed and waits.
#[derive(Clone, Debug)]
pub(super) struct FailedRow {
    pub id: String,
    /// Milliseconds until it is due; not positive when it is.
    pub due_ms: i64,
}

/// What became of a wish for the lease.
pub(super) enum LeaseAttempt {
    /// It is ours; the settings are others than those of whoever had it before.
    Mine {
        changed: bool,
    },
    Held(Holder),
}

/// Who has the lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holder {
    pub token: String,
    pub until: String,
    pub owner: String,
    pub pipeline: String,
    pub left_ms: i64,
}

/// What a note came to.
#[derive(Debug, Default)]
pub(super) struct NoteResult {
    /// The lease was ours.
    pub mine: bool,
    /// Ids that were changed.
    pub done: Vec<String>,
    /// Ids that still wait, because somebody has them locked.
    pub left: Vec<String>,
    /// The table has other columns than it had when it was looked at, so nothing was moved.
    pub is_changed: bool,
}

/// One table, by one session.
#[derive(Clone)]
pub(super) struct OutboxTable {
    pub shape: Arc<Shape>,
    pub session: Arc<dyn OutboxSession>,
}

impl OutboxTable {
    async fn note(&self, note: Note) -> Result<NoteResult, Fault> {
        let rows = self.session.transact(&note.before, &note.statements).await?;
        let mut noted = NoteResult::default();
        for row in &rows {
            let id = text(row, 1);
            match text(row, 0).as_deref() {
                Some("mine") => noted.mine = true,
                Some("done") => noted.done.push(id.unwrap_or_default()),
                Some("left") => noted.left.extend(id),
                Some("changed") => noted.is_changed = true,
                Some("count") => {
                    let count = usize::try_from(number(row, 1).unwrap_or(0)).unwrap_or(0);
                    noted.done.resize(count, String::new());
                }
                _ => {}
            }
        }
        Ok(noted)
    }

    pub async fn mark(
        &self,
        token: &str,
        ids: &[String],
        heads: &[String],
    ) -> Result<NoteResult, Fault> {
        let noted = self.note(self.shape.mark(token, ids)).await?;
        let mine = noted.mine && self.free(token, heads).await?;
        Ok(NoteResult { mine, ..noted })
    }

    /// Lets go of those of these heads that do not wait any more, and of what is behind them: their end
    /// is committed, so this may go in pieces, each of which is short. False where the lease is gone.
    pub async fn free(&self, token: &str, heads: &[String]) -> Result<bool, Fault> {
        for heads in heads.chunks(FREE_MAX) {
            let behind = || self.shape.free_behind(token, heads, FREE_MAX);
            if !self.until_fewer(behind).await?
                || !self.note(self.shape.free_heads(token, heads)).await?.mine
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Repeats a note of up to [`FREE_MAX`] entries until there are no more.
    async fn until_fewer(&self, some: impl Fn() -> Note + Send + Sync) -> Result<bool, Fault> {
        loop {
            let noted = self.note(some()).await?;
            if !noted.mine || noted.done.len() < FREE_MAX {
                return Ok(noted.mine);
            }
        }
    }

    /// What waits was named under other settings: heads are due, and those behind them are read again,
    /// because they may have other keys now. The settings are noted last.
    pub async fn settle(&self, token: &str, config: &str) -> Result<bool, Fault> {
        let behind = || self.shape.free_all_behind(token, FREE_MAX);
        Ok(self.until_fewer(behind).await?
            && self.note(self.shape.settle(token, config)).await?.mine)
    }

    /// Makes heads wait behind another one.
    pub async fn put_behind(&self, token: &str, head: &str, ids: &[String]) -> Result<bool, Fault> {
        Ok(self.note(self.shape.put_behind(token, head, ids)).await?.mine)
    }

    /// Those of these rows that wait, in their order.
    pub async fn in_order(&self, ids: &[String]) -> Result<Vec<String>, Fault> {
        let rows = self.session.query(self.shape.in_order(ids)).await?;
        Ok(rows.iter().filter_map(|row| text(row, 0)).collect())
    }

    /// Those of these heads that do not wait any more.
    pub async fn ended(&self, heads: &[String]) -> Result<Vec<String>, Fault> {
        let mut ended = Vec::new();
        for heads in heads.chunks(FREE_MAX) {
            let rows = self.session.query(self.shape.pending_of(heads)).await?;
            let waiting: HashSet<String> = rows.iter().filter_map(|row| text(row, 0)).collect();
            ended.extend(heads.iter().filter(|head| !waiting.contains(*head)).cloned());
        }
        Ok(ended)
    }

    /// True where an index leads to the rows that wait.
    pub async fn has_index(&self) -> Result<bool, Fault> {
        look::has_index(&*self.session, &self.shape).await
    }

    pub async fn put_off(&self, token: &str, delays: &[Delay<'_>]) -> Result<NoteResult, Fault> {
        self.note(self.shape.put_off(token, delays)).await
    }

    pub async fn enter_behind(
        &self,
        token: &str,
        head: &str,
        ids: &[String],
    ) -> Result<NoteResult, Fault> {
        self.note(self.shape.enter_behind(token, head, ids)).await
    }

    pub async fn bury(&self, token: &str, burial: &Burial<'_>) -> Result<NoteResult, Fault> {
        let note = self.shape.bury(token, burial);
        if self.shape.plant.is(Bug::BuriedApart) {
            for statement in self.shape.bury_apart(burial) {
                self.session.query(statement).await?;
            }
        }
        let mut noted = self.note(note).await?;
        if noted.is_changed {
            // With every column that there is now; or it says which ones dead letters lack.
            let now = look::with_columns_of_now(&*self.session, &self.shape).await?;
            noted = self.note(now.bury(token, burial)).await?;
            if noted.is_changed {
                return Err(Fault::retry("the columns of the table change"));
            }
        }
        let mine = noted.mine && self.free(token, &[burial.id.to_owned()]).await?;
        Ok(NoteResult { mine, ..noted })
    }

    /// Lets go of a head and those behind it, though its row seems to wait.
    pub async fn forget_head(&self, token: &str, head: &str) -> Result<NoteResult, Fault> {
        self.note(self.shape.forget_head(token, head)).await
    }

    /// Some old rows that retention may delete.
    pub async fn old_rows(&self, age: Duration, most: usize) -> Result<Vec<String>, Fault> {
        let rows = self.session.query(self.shape.old_rows(age, most)).await?;
        Ok(rows.iter().filter_map(|row| text(row, 0)).collect())
    }

    /// Deletes old rows; how many.
    pub async fn purge(&self, token: &str, ids: &[String], age: Duration) -> Result<usize, Fault> {
        Ok(self.note(self.shape.purge(token, ids, age)).await?.done.len())
    }

    pub async fn read(
        &self,
        token: &str,
        except: &[String],
        limits: ReadLimits,
    ) -> Result<Vec<OutboxRow>, Fault> {
        let rows = self.session.query(self.shape.read(token, except, limits)).await?;
        Ok(rows.into_iter().map(|cells| self.row(cells)).collect())
    }

    /// Those of these rows that wait, as many as fit.
    pub async fn rows_of(&self, ids: &[String], bytes: usize) -> Result<Vec<OutboxRow>, Fault> {
        let rows = self.session.query(self.shape.rows_of(ids, bytes)).await?;
        Ok(rows.into_iter().map(|cells| self.row(cells)).collect())
    }

    /// A row of [`Shape::row_columns`].
    pub fn row(&self, mut cells: Cells) -> OutboxRow {
        let payload = cells.get_mut(2).and_then(Option::take);
        let payload = payload.map(|bytes| match self.shape.is_hex() {
            true => from_hex(&bytes),
            false => bytes,
        });
        OutboxRow {
            id: text(&cells, 0).unwrap_or_default().into(),
            event_type: text(&cells, 1),
            payload,
            is_too_large: number(&cells, 3) == Some(1),
            added_at: text(&cells, 4),
            time: number(&cells, 5).map(Timestamp),
            attempts: number(&cells, 6).and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            headers: cells.split_off(cells.len().min(7)),
        }
    }

    pub async fn heads(&self) -> Result<Vec<FailedRow>, Fault> {
        let rows = self.session.query(self.shape.heads()).await?;
        let head = |row: &Cells| FailedRow {
            id: text(row, 0).unwrap_or_default(),
            due_ms: number(row, 2).unwrap_or(0),
        };
        Ok(rows.iter().map(head).collect())
    }

    pub async fn make_due(&self, heads: Option<&[String]>) -> Result<Vec<String>, Fault> {
        let rows = self.session.transact(&[], &self.shape.make_due(heads)).await?;
        Ok(rows.iter().filter_map(|row| text(row, 1)).collect())
    }

    pub async fn take(&self, claim: &Claim<'_>) -> Result<LeaseAttempt, Fault> {
        let rows = self.session.transact(&[], &self.shape.take(claim)).await?;
        let tagged = |tag: &str| rows.iter().find(|row| text(row, 0).as_deref() == Some(tag));
        let before = tagged("before").and_then(|row| text(row, 1)).unwrap_or_default();
        if tagged("mine").is_some() {
            return Ok(LeaseAttempt::Mine { changed: before != claim.config });
        }
        let held = tagged("held").map(|row| Holder {
            token: text(row, 1).unwrap_or_default(),
            until: text(row, 2).unwrap_or_default(),
            owner: text(row, 3).unwrap_or_default(),
            pipeline: text(row, 4).unwrap_or_default(),
            left_ms: number(row, 5).unwrap_or(0),
        });
        Ok(LeaseAttempt::Held(held.unwrap_or_default()))
    }

    /// True where the lease still was ours, and is for another while.
    pub async fn renew(&self, token: &str, lease: Duration) -> Result<bool, Fault> {
        let rows = self.session.transact(&[], &self.shape.renew(token, lease)).await?;
        Ok(rows.iter().any(|row| text(row, 0).as_deref() == Some("mine")))
    }

    pub async fn release(&self, token: &str) -> Result<(), Fault> {
        self.session.query(self.shape.release(token)).await.map(drop)
    }

    pub async fn backlog(&self) -> Result<Backlog, Fault> {
        let rows = self.session.query(self.shape.backlog()).await?;
        let Some(row) = rows.first() else { return Ok(Backlog::default()) };
        let records = number(row, 0).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        Ok(Backlog { records, oldest: number(row, 1).map(Timestamp), groups: None })
    }
}

/// A row as a record, with the id as its key.
pub(super) fn record(shape: &Shape, row: &OutboxRow, offset: u64) -> Record {
    let text = |text: &Option<String>| text.as_ref().map(|text| text.clone().into_bytes());
    let mut headers = HeadersBuilder::new()
        .add("id", Some(row.id.as_bytes()))
        .add("event_type", text(&row.event_type).as_deref())
        .add("added_at", text(&row.added_at).as_deref())
        // Whoever reads the topic drops repeats by it.
        .add("potok-id", Some(row.id.as_bytes()));
    for (name, value) in shape.header_columns().into_iter().zip(&row.headers) {
        if value.is_some() || name != shape.names.traceparent {
            let name = match name == shape.names.traceparent {
                true => "traceparent",
                false => name,
            };
            headers = headers.add(name, value.as_deref());
        }
    }
    Record {
        offset,
        time: row.time.unwrap_or(Timestamp(0)),
        key: Some(Bytes::copy_from_slice(row.id.as_bytes())),
        headers: headers.build(),
        value: row.payload.clone(),
    }
}

fn from_hex(digits: &[u8]) -> Bytes {
    let nibble = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
    let pairs = digits.chunks_exact(2);
    pairs.filter_map(|pair| Some(nibble(*pair.first()?) << 4 | nibble(*pair.get(1)?))).collect()
}
