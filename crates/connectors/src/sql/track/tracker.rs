//! The tracker itself: which statements make one step.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use potok_core::trouble::crash_point;
use potok_core::{
    Fault, FileCounts, FileFacts, FilesAsk, Move, NewFile, ShardTotals, StageLoad, StageState,
    StageTotals, TrackStep, TrackedFile, TrackedStage, Tracker,
};

use super::foreign::{self, ForeignMoves};
use super::statements::Statements;
use super::together::StepQueue;
use super::{Dialect, SqlValue, TextRow, TrackConfig, TrackDatabase, TrackSession, TrackTables};

/// How long one step may take: a database that is frozen must not hold a lane.
const STEP_MAX: Duration = Duration::from_secs(15);
/// Rows that are removed in one transaction.
const EXPIRED_MAX: u32 = 1_000;
/// Rows without records that are ended in one transaction.
const SWEPT_MAX: usize = 100;
/// Names that a slice may have; more are a mistake somewhere.
const NAMES_MAX: u32 = 100_000;

/// A tracker on one database.
pub(crate) struct SqlTracker<D> {
    database: D,
    config: TrackConfig,
    tables: TrackTables,
    statements: Statements,
    stages: Vec<Arc<str>>,
    foreign: ForeignMoves,
    /// Steps that wait for each other.
    pub(super) queue: StepQueue,
    /// Known when the tables were prepared.
    log: tokio::sync::OnceCell<String>,
    /// Whether the number of shards was compared with that of before.
    has_compared: AtomicBool,
}

type BoxedSession = Box<dyn TrackSession>;

/// The outcome of asking for a name.
enum NameAnswer {
    /// It belongs to this seal now.
    Ours,
    /// Another seal of ours has it, or the shard has ended there.
    Taken,
    /// Another program has rows of that name.
    Foreign,
}

impl<D: TrackDatabase> SqlTracker<D> {
    pub fn new(database: D, config: TrackConfig) -> Self {
        let tables = TrackTables::new(&config);
        let statements = Statements::new(database.dialect(), tables.clone());
        let stages = config.stages.iter().map(|(stage, _)| stage.clone()).collect();
        let log = tokio::sync::OnceCell::new();
        let foreign = ForeignMoves::default();
        let queue = StepQueue::default();
        let has_compared = AtomicBool::default();
        SqlTracker {
            database,
            config,
            tables,
            statements,
            stages,
            foreign,
            queue,
            log,
            has_compared,
        }
    }

    async fn bounded<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        match tokio::time::timeout(STEP_MAX, work).await {
            Ok(Err(fault)) if fault.next == Move::SetAside => {
                // No record is at fault where the table refuses a move.
                let what = format!("{}: the table refused a move", self.config.label);
                Err(Fault::fix(what)
                    .because(fault)
                    .code("P1405")
                    .hint("compare it with `potok ddl`"))
            }
            Ok(done) => done,
            Err(_) => {
                let what = format!("{}: the database gave no answer in time", self.config.label);
                Err(Fault::wait(what).hint("it is asked again").code("P1404"))
            }
        }
    }

    /// Whose rows are ours besides the pipeline's.
    async fn log(&self) -> Result<&str, Fault> {
        let identity = self.config.log.clone();
        let read = || async move {
            let read = tokio::task::spawn_blocking(move || identity.read()).await;
            read.unwrap_or_else(|error| Err(Fault::wait("a call was cut off").because(error)))
        };
        self.log.get_or_try_init(read).await.map(String::as_str)
    }

    /// Takes the name where it is free for this seal.
    async fn take_name(&self, name: &str, file: &NewFile) -> Result<NameAnswer, Fault> {
        let TrackConfig { pipeline, owner, .. } = &self.config;
        let log = self.log().await?;
        let mut session = self.database.begin().await?;
        let owners = session.ask(&self.statements.owners(), &[name.into()]).await?;
        let is_ours = |row: &TextRow| {
            let is = |at: usize, wanted: &str| {
                row.get(at).and_then(Option::as_ref).is_some_and(|found| found == wanted)
            };
            is(0, pipeline) && is(1, log)
        };
        if !owners.iter().all(is_ours) {
            session.commit().await?;
            return Ok(NameAnswer::Foreign);
        }
        let mut shards: Vec<u32> = (0..file.shards).collect();
        if file.shard >= file.shards {
            shards.push(file.shard);
        }
        let mut values: Vec<SqlValue> = Vec::new();
        for shard in &shards {
            values.extend([name.into(), (*shard).into(), pipeline.as_str().into(), log.into()]);
            values.extend([file.shards.into(), owner.as_str().into()]);
        }
        session.run(&self.statements.insert_beside(shards.len()), &values).await?;
        let rows = shards.iter().flat_map(|shard| [name.into(), (*shard).into()]);
        let rows: Vec<SqlValue> = rows.collect();
        session.run(&self.statements.insert(shards.len()), &rows).await?;
        let claim: [SqlValue; 5] = [
            file.seal.as_str().into(),
            name.into(),
            file.shard.into(),
            pipeline.as_str().into(),
            log.into(),
        ];
        match session.run(&self.statements.claim(), &claim).await {
            Ok(1) => {}
            Ok(_) => {
                session.roll_back().await?;
                return Ok(NameAnswer::Taken);
            }
            Err(fault) if fault.next != Move::Wait => {
                // The seal may have got a name meanwhile, which is the key of another row.
                session.roll_back().await?;
                return match self.known_name(file).await? {
                    Some(_) => Ok(NameAnswer::Taken),
                    None => Err(fault),
                };
            }
            Err(fault) => return Err(fault),
        }
        session.commit().await?;
        Ok(NameAnswer::Ours)
    }

    /// The name that a seal has, if it has one.
    async fn known_name(&self, file: &NewFile) -> Result<Option<Arc<str>>, Fault> {
        let seal = [file.seal.as_str().into()];
        let found = self.ask(&self.statements.name_of_seal(), &seal).await?;
        Ok(text(found.first(), 0).map(Into::into))
    }

    /// The numbers of the slice's names that this shard cannot have, as far as one look tells.
    async fn taken_numbers(&self, file: &NewFile) -> Result<HashSet<u32>, Fault> {
        let NewFile { slice, shard, .. } = file;
        let [pipeline, log] =
            [self.config.pipeline.as_str(), self.log().await?].map(SqlValue::from);
        // `/` is what follows `.`.
        let [first, end] = [slice.clone(), format!("{slice}/")].map(SqlValue::Text);
        let values = [
            first.clone(),
            end.clone(),
            pipeline.clone(),
            log.clone(),
            first,
            end,
            (*shard).into(),
            pipeline,
            log,
        ];
        let names = self.ask(&self.statements.taken_names(), &values).await?;
        let number = |row: &TextRow| file_number(slice, row.first()?.as_deref()?);
        Ok(names.iter().filter_map(number).collect())
    }

    async fn find_name(&self, file: &NewFile) -> Result<Arc<str>, Fault> {
        if let Some(name) = self.known_name(file).await? {
            return Ok(name);
        }
        // Tried one by one, the names of a slice in thousands of parts would take longer than a step may.
        let taken = self.taken_numbers(file).await?;
        // Another call for this seal may have taken one of them meanwhile.
        if let Some(name) = self.known_name(file).await? {
            return Ok(name);
        }
        for number in (0..NAMES_MAX).filter(|number| !taken.contains(number)) {
            let name = file_name(&file.slice, number);
            match self.take_name(&name, file).await? {
                NameAnswer::Ours => return Ok(name.into()),
                NameAnswer::Foreign => {}
                // By another group; or by this one, for an earlier owner, or in an earlier attempt
                // whose answer was lost. It must not have two.
                NameAnswer::Taken => {
                    if let Some(name) = self.known_name(file).await? {
                        return Ok(name);
                    }
                }
            }
        }
        let what = format!("{}: the slice {} has no free name", self.config.label, file.slice);
        Err(Fault::fix(what).code("P1405").hint("remove old rows of that name"))
    }

    /// Says once that the number of shards is another one now: nothing that is on a shard moves, so whoever
    /// sets it by mistake should hear of it.
    async fn compare_shards(&self, file: &NewFile) -> Result<(), Fault> {
        if self.has_compared.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let ours = [self.config.pipeline.as_str().into(), self.log().await?.into()];
        let newest = self.ask(&self.statements.newest_shards(), &ours).await?;
        let before = text(newest.first(), 1).and_then(|shards| shards.parse::<u32>().ok());
        if let Some(before) = before.filter(|before| *before != file.shards) {
            let pipeline = &self.config.pipeline;
            let until = text(newest.first(), 0).unwrap_or_default();
            tracing::warn!(
                pipeline,
                before,
                now = file.shards,
                until,
                "the number of shards has changed: rows stay in the databases that they are in"
            );
        }
        Ok(())
    }

    /// Lifts one stage by legal moves; nothing where it is there or beyond.
    async fn lift(
        &self,
        session: &mut BoxedSession,
        (file, shard): (&str, u32),
        stage: usize,
        to: StageState,
    ) -> Result<(), Fault> {
        let moves: &[(&str, &str)] = match to {
            StageState::New => &[("failed", "new")],
            StageState::Started => &[("failed", "new"), ("new", "started")],
            StageState::Done => &[("failed", "new"), ("new", "started"), ("started", "done")],
            StageState::Failed => &[("new", "started"), ("started", "failed")],
        };
        for (from, to) in moves {
            let sql = self.statements.move_stage(stage, from, to);
            let key = [file.into(), shard.into()];
            let moved = session.run(&sql, &key).await?;
            if moved > 0 && matches!(*to, "started" | "done") {
                session.run(&self.statements.note_time(stage, to), &key).await?;
            }
        }
        Ok(())
    }

    /// Makes steps, all of them or none.
    pub(super) async fn steps(&self, steps: &[TrackStep]) -> Result<(), Fault> {
        let mut session = self.database.begin().await?;
        for step in steps {
            self.step(&mut session, step).await?;
        }
        session.commit().await?;
        for step in steps.iter().filter(|step| step.facts.counts.is_some()) {
            self.foreign.forget(&step.file, step.of.shard);
        }
        Ok(())
    }

    async fn step(&self, session: &mut BoxedSession, step: &TrackStep) -> Result<(), Fault> {
        let TrackConfig { pipeline, owner, .. } = &self.config;
        let log = self.log().await?;
        let (file, shard) = (&*step.file, step.of.shard);
        let key = [SqlValue::from(file), SqlValue::from(shard)];
        let there = session.ask(&self.statements.presence(), &key).await?;
        let there = there.first();
        if text(there, 0).is_some() {
            // It has ended: whatever somebody made of it since is theirs.
            return Ok(());
        }
        let found = there.filter(|row| text(Some(row), 1).is_some());
        let found = found.map(|row| foreign::from(row, 2));
        self.foreign.look((file, shard), &self.tables.stages, found);
        if there.is_none() {
            let [file, shard] = key.clone();
            let values = [
                file,
                shard,
                pipeline.as_str().into(),
                log.into(),
                step.of.shards.into(),
                owner.as_str().into(),
            ];
            session.run(&self.statements.insert_beside(1), &values).await?;
        }
        if text(there, 1).is_none() {
            session.run(&self.statements.insert(1), &key).await?;
        }
        for before in 0..step.stage {
            if !self.is_done(found, before) {
                self.lift(session, (file, shard), before, StageState::Done).await?;
            }
        }
        self.lift(session, (file, shard), step.stage, step.state).await?;
        let FileFacts { records, hash, counts, error, attempt } = &step.facts;
        let error = error.as_deref().or_else(|| foreign::standing_error(found, step.stage));
        let [key_file, key_shard] = key.clone();
        let values = [
            step.of.seal.as_str().into(),
            owner.as_str().into(),
            (*records).into(),
            hash.as_deref().into(),
            error.into(),
            u32::from(*attempt).into(),
            key_file.clone(),
            key_shard.clone(),
        ];
        session.run(&self.statements.note_facts(), &values).await?;
        if let Some(FileCounts { rows, duplicates, filtered, dead }) = counts {
            let values = [
                (*rows).into(),
                (*duplicates).into(),
                (*filtered).into(),
                (*dead).into(),
                key_file,
                key_shard,
            ];
            session.run(&self.statements.finish(), &values).await?;
        }
        Ok(())
    }

    /// True where nothing is to be lifted, and nobody can have changed that since it was read: SQLite has
    /// one writer at a time.
    fn is_done(&self, found: Option<&[Option<String>]>, stage: usize) -> bool {
        let state = found.and_then(|cells| cells.get(1 + stage * 3));
        self.database.dialect() == Dialect::Sqlite
            && state.is_some_and(|state| state.as_deref() == Some("done"))
    }

    /// Ends rows that no group has taken, each in all its stages.
    async fn end_empty(&self, rows: &[(Arc<str>, u32)]) -> Result<(), Fault> {
        let TrackConfig { pipeline, owner, .. } = &self.config;
        let log = self.log().await?;
        let mut session = self.database.begin().await?;
        for (file, shard) in rows {
            let (file, shard) = (&**file, *shard);
            let key = [SqlValue::from(file), SqlValue::from(shard)];
            let [key_file, key_shard] = key.clone();
            let values =
                [owner.as_str().into(), key_file, key_shard, pipeline.as_str().into(), log.into()];
            if session.run(&self.statements.sweep(), &values).await? != 1 {
                continue;
            }
            session.run(&self.statements.insert(1), &key).await?;
            for stage in 0..self.stages.len() {
                self.lift(&mut session, (file, shard), stage, StageState::Done).await?;
            }
        }
        crash_point("file.swept");
        session.commit().await
    }

    async fn put_back(&self, file: &str, shard: Option<u32>) -> Result<u64, Fault> {
        let (pipeline, log) = (self.config.pipeline.as_str(), self.log().await?);
        let mut session = self.database.begin().await?;
        let ours = [file.into(), pipeline.into(), log.into()];
        let mut moved = 0;
        for row in session.ask(&self.statements.unfinished(), &ours).await? {
            let of = text(Some(&row), 0).and_then(|shard| shard.parse::<u32>().ok());
            let Some(of) = of.filter(|of| shard.is_none_or(|shard| shard == *of)) else { continue };
            for stage in 0..self.stages.len() {
                let sql = self.statements.move_stage(stage, "failed", "new");
                moved += session.run(&sql, &[file.into(), of.into()]).await?;
            }
        }
        session.commit().await?;
        Ok(moved)
    }

    async fn remove_old(&self, keep: Duration) -> Result<u64, Fault> {
        let ours = [self.config.pipeline.as_str().into(), self.log().await?.into()];
        let mut session = self.database.begin().await?;
        let sql = self.statements.expired(keep.as_secs(), EXPIRED_MAX);
        let rows = session.ask(&sql, &ours).await?;
        for row in &rows {
            let shard = text(Some(row), 1).and_then(|shard| shard.parse::<u32>().ok());
            let Some((file, shard)) = text(Some(row), 0).zip(shard) else { continue };
            for remove in self.statements.remove() {
                session.run(&remove, &[file.as_str().into(), shard.into()]).await?;
            }
        }
        session.commit().await?;
        Ok(rows.len() as u64)
    }

    async fn ask(&self, sql: &str, values: &[SqlValue]) -> Result<Vec<TextRow>, Fault> {
        let mut session = self.database.begin().await?;
        let rows = session.ask(sql, values).await?;
        session.commit().await?;
        Ok(rows)
    }

    fn read(&self, row: &TextRow) -> TrackedFile {
        let at = |at: usize| text(Some(row), at);
        let number = |index: usize| at(index).and_then(|text| text.parse::<u64>().ok());
        let signed = |index: usize| at(index).and_then(|text| text.parse().ok()).unwrap_or(0);
        let counts = number(9).map(|rows| FileCounts {
            rows,
            duplicates: number(10).unwrap_or(0),
            filtered: number(11).unwrap_or(0),
            dead: number(12).unwrap_or(0),
        });
        let stages = self.stages.iter().enumerate().map(|(index, stage)| TrackedStage {
            stage: stage.clone(),
            state: at(16 + index * 3).unwrap_or_default(),
            started_at: at(17 + index * 3),
            done_at: at(18 + index * 3),
        });
        TrackedFile {
            filename: at(0).unwrap_or_default(),
            shard: signed(1),
            updated_at: at(2).unwrap_or_default(),
            minutes: signed(3),
            pipeline: at(4),
            seal: at(5),
            owner: at(6),
            finished_at: at(7),
            records: number(8),
            counts,
            attempts: number(13).unwrap_or(0),
            error: at(14),
            hash: at(15),
            stages: stages.collect(),
        }
    }
}

/// The further names of a slice have numbers.
fn file_name(slice: &str, number: u32) -> String {
    if number == 0 { slice.to_owned() } else { format!("{slice}.{number}") }
}

/// The number in a name of that slice.
fn file_number(slice: &str, name: &str) -> Option<u32> {
    let number = match name.strip_prefix(slice)? {
        "" => 0,
        more => more.strip_prefix('.')?.parse().ok()?,
    };
    (file_name(slice, number) == name).then_some(number)
}

fn text(row: Option<&TextRow>, at: usize) -> Option<String> {
    row?.get(at)?.clone()
}

#[async_trait]
impl<D: TrackDatabase> Tracker for SqlTracker<D> {
    fn stages(&self) -> &[Arc<str>] {
        &self.stages
    }

    async fn prepare(&self) -> Result<(), Fault> {
        let dialect = self.database.dialect();
        let prepare = async {
            let mut found = self.database.find(&self.tables).await?;
            if self.config.create_tables && self.tables.lacks(&found, dialect) {
                self.database.create(&self.tables).await?;
                found = self.database.find(&self.tables).await?;
            }
            self.tables.check(&found, dialect)
        };
        self.bounded(prepare).await
    }

    async fn check(&self) -> Result<(), Fault> {
        let dialect = self.database.dialect();
        let found = self.bounded(self.database.find(&self.tables)).await?;
        let is_made = self.config.create_tables && self.tables.lacks(&found, dialect);
        if is_made { Ok(()) } else { self.tables.check(&found, dialect) }
    }

    async fn name(&self, file: &NewFile) -> Result<Arc<str>, Fault> {
        if let Err(fault) = self.bounded(self.compare_shards(file)).await {
            tracing::debug!(why = %fault, "the number of shards was not compared");
        }
        self.bounded(self.find_name(file)).await
    }

    async fn advance(&self, step: &TrackStep) -> Result<(), Fault> {
        match self.database.dialect() {
            Dialect::Sqlite => self.bounded(self.step_together(step)).await,
            _ => self.bounded(self.steps(std::slice::from_ref(step))).await,
        }
    }

    async fn unclaimed(&self) -> Result<Vec<(Arc<str>, u32)>, Fault> {
        let ours = [self.config.pipeline.as_str().into(), self.log().await?.into()];
        let sql = self.statements.unclaimed();
        let rows = self.bounded(self.ask(&sql, &ours)).await?;
        let read =
            |row: &TextRow| Some((text(Some(row), 0)?.into(), text(Some(row), 1)?.parse().ok()?));
        Ok(rows.iter().filter_map(read).collect())
    }

    async fn sweep(&self, rows: &[(Arc<str>, u32)]) -> Result<(), Fault> {
        for some in rows.chunks(SWEPT_MAX) {
            self.bounded(self.end_empty(some)).await?;
        }
        Ok(())
    }

    async fn list(&self, ask: &FilesAsk) -> Result<Vec<TrackedFile>, Fault> {
        let statements = &self.statements;
        let (sql, values): (String, Vec<SqlValue>) = match ask {
            FilesAsk::Newest { names, before, is_unfinished } => {
                let condition = statements.newest(*names, before.is_some(), *is_unfinished);
                let values: Vec<SqlValue> =
                    before.iter().map(|before| before.as_str().into()).collect();
                (statements.list(&condition), values)
            }
            FilesAsk::Named(name) => {
                (statements.list("t.filename = ?"), vec![name.as_str().into()])
            }
            FilesAsk::Stuck(limit) => (statements.list_stuck(&self.config, *limit), Vec::new()),
            FilesAsk::Queue { stage, limit, offset } => {
                (statements.queue(*stage, *limit, *offset), Vec::new())
            }
        };
        let rows = self.bounded(self.ask(&sql, &values)).await?;
        Ok(rows.iter().map(|row| self.read(row)).collect())
    }

    async fn totals(&self) -> Result<Vec<ShardTotals>, Fault> {
        let sql = self.statements.totals();
        let rows = self.bounded(self.ask(&sql, &[])).await?;
        let read = |row: &TextRow| {
            let number = |at: usize| text(Some(row), at)?.parse().ok();
            Some(ShardTotals {
                shard: text(Some(row), 0)?.parse().ok()?,
                total: number(1)?,
                completed: number(2)?,
                processing: number(3)?,
                failed: number(4)?,
            })
        };
        Ok(rows.iter().filter_map(read).collect())
    }

    async fn stage_totals(&self) -> Result<Vec<StageTotals>, Fault> {
        let mut totals = Vec::new();
        for (at, stage) in self.stages.iter().enumerate() {
            let rows = self.bounded(self.ask(&self.statements.stage_totals(at), &[])).await?;
            totals.extend(rows.iter().filter_map(|row| {
                let number = |at: usize| text(Some(row), at)?.parse().ok();
                Some(StageTotals {
                    stage: stage.clone(),
                    shard: text(Some(row), 0)?.parse().ok()?,
                    new: number(1)?,
                    started: number(2)?,
                    done: number(3)?,
                    failed: number(4)?,
                })
            }));
        }
        Ok(totals)
    }

    async fn retry(&self, file: &str, shard: Option<u32>) -> Result<u64, Fault> {
        self.bounded(self.put_back(file, shard)).await
    }

    async fn expire(&self) -> Result<u64, Fault> {
        match self.config.keep {
            Some(keep) => self.bounded(self.remove_old(keep)).await,
            None => Ok(0),
        }
    }

    fn foreign_moves(&self) -> u64 {
        self.foreign.total()
    }

    async fn load(&self) -> Result<Vec<StageLoad>, Fault> {
        let mut loads = Vec::new();
        for (at, stage) in self.stages.iter().enumerate() {
            let rows = self.bounded(self.ask(&self.statements.load(at), &[])).await?;
            loads.extend(rows.iter().filter_map(|row| {
                let text = |at: usize| text(Some(row), at);
                Some(StageLoad {
                    stage: stage.clone(),
                    shard: text(0)?.parse().ok()?,
                    state: text(1)?,
                    files: text(2)?.parse().ok()?,
                    // Whoever sets the clock back makes it less than nothing.
                    seconds: text(3)?.parse::<i64>().ok()?.try_into().unwrap_or(0),
                })
            }));
        }
        Ok(loads)
    }
}
