//! One open database file: how it is opened, what is in it, and whether it is still the one that
//! has its name.
//!
//! WAL with `synchronous=FULL`: a commit is on disk before it is answered, readers never wait for
//! the writer. A file that was deleted or replaced would still take commits, into an inode nobody
//! will ever read; so file and WAL are compared with what their names mean now before a commit
//! counts.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, Error, OpenFlags, TransactionBehavior, params};

use crate::sql::{Bounds, ColumnKind, Dialect, FoundColumn, FoundTable, Tables};

/// How long the writer waits for another program's transaction before it reports.
const BUSY_MAX: Duration = Duration::from_secs(1);
/// How long a probe waits: it must not stand in anybody's way.
const PROBE_BUSY_MAX: Duration = Duration::from_millis(250);
/// Less room than this on the disk counts as full.
const FREE_BYTES_MIN: u64 = 1 << 20;

/// Which file a name means, as the system sees it.
type Identity = Option<(u64, u64)>;

pub(super) struct DatabaseFile {
    pub connection: Connection,
    path: PathBuf,
    main: Identity,
    wal: Identity,
}

impl DatabaseFile {
    /// Opens the file; with `create`, makes it and its folder where they are missing.
    pub fn open(path: &Path, create: bool) -> Result<DatabaseFile, Error> {
        if create && let Some(folder) = path.parent() {
            // Where this fails, opening fails too, with an error that is sorted already.
            let _ = create_folders(folder);
            create_private(path);
        }
        let connection = connect(path, create, BUSY_MAX)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // Negative: KiB. The index of ids is read and written at random places.
        connection.pragma_update(None, "cache_size", -32_768)?;
        // A checkpoint per few transactions, not per one; and a WAL that shrinks again.
        connection.pragma_update(None, "wal_autocheckpoint", 8_192)?;
        connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
        connection.set_prepared_statement_cache_capacity(64);
        // A first read makes SQLite open the WAL, whose identity is noted below.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        let (main, wal) = (identity(path), identity(&wal_of(path)));
        Ok(DatabaseFile { connection, path: path.to_owned(), main, wal })
    }

    /// False when the names of file or WAL mean other files than those that are open.
    pub fn is_in_place(&self) -> bool {
        identity(&self.path) == self.main && identity(&wal_of(&self.path)) == self.wal
    }

    /// Gives the file up. What was committed goes into the file it was committed to, and out of a
    /// WAL that may lie beside another file by now: SQLite would take it for that file's own.
    pub fn abandon(self) {
        // Best effort, without waiting for anybody: where it fails, the commits stay in the WAL.
        let _ = self.connection.busy_timeout(Duration::ZERO);
        let _ = self.connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
    }

    /// Creates the tables that are missing, all or none.
    pub fn create(&mut self, tables: &Tables) -> Result<(), Error> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for statement in tables.ddl(Dialect::Sqlite) {
            transaction.execute_batch(&statement)?;
        }
        transaction.commit()
    }

    /// What the database has of these tables.
    pub fn find(&self, tables: &Tables) -> Result<Vec<Option<FoundTable>>, Error> {
        find(&self.connection, tables)
    }
}

fn find(connection: &Connection, tables: &Tables) -> Result<Vec<Option<FoundTable>>, Error> {
    tables.names().map(|name| find_table(connection, name)).collect()
}

fn find_table(connection: &Connection, name: &str) -> Result<Option<FoundTable>, Error> {
    let mut statement = connection.prepare(
        "SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_xinfo(?1) \
             WHERE hidden = 0 ORDER BY cid",
    )?;
    let mut columns = Vec::new();
    let mut key: Vec<(String, bool)> = Vec::new();
    let mut rows = statement.query(params![name])?;
    while let Some(row) = rows.next()? {
        let (name, declared): (String, String) = (row.get(0)?, row.get(1)?);
        let is_key = row.get::<_, i64>(4)? > 0;
        if is_key {
            key.push((name.clone(), declared.eq_ignore_ascii_case("INTEGER")));
        }
        columns.push(FoundColumn {
            kind: kind_of(&declared),
            not_null: row.get(2)?,
            default: row.get(3)?,
            bounds: Bounds { sql_type: declared, ..Bounds::default() },
            name,
        });
    }
    if columns.is_empty() {
        return Ok(None);
    }
    let mut unique = find_unique(connection, name)?;
    // A lone INTEGER PRIMARY KEY is the row's own number: unique, without an index, and
    // filled by SQLite where it is null.
    if let [(only, true)] = key.as_slice() {
        unique.push(vec![only.clone()]);
        for column in columns.iter_mut().filter(|column| column.name == *only) {
            column.not_null = false;
        }
    }
    Ok(Some(FoundTable { columns, unique, ..FoundTable::default() }))
}

/// The unique indexes that cover every row and compare bytes.
fn find_unique(connection: &Connection, table: &str) -> Result<Vec<Vec<String>>, Error> {
    let mut statement = connection
        .prepare("SELECT name FROM pragma_index_list(?1) WHERE \"unique\" = 1 AND partial = 0")?;
    let names: Vec<String> =
        statement.query_map(params![table], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut columns = connection
        .prepare("SELECT name, coll FROM pragma_index_xinfo(?1) WHERE key = 1 ORDER BY seqno")?;
    let mut unique = Vec::new();
    for name in names {
        // The name is null where the index is on an expression.
        let keys: Vec<(Option<String>, String)> = columns
            .query_map(params![name], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        let bytewise = keys.iter().all(|(_, collation)| collation == "BINARY");
        let set: Option<Vec<String>> = keys.into_iter().map(|(name, _)| name).collect();
        unique.extend(set.filter(|_| bytewise));
    }
    Ok(unique)
}

/// A session with a file, for others than the sink: durable as its own.
pub(crate) fn open_file(path: &Path, create: bool) -> Result<Connection, Error> {
    DatabaseFile::open(path, create).map(|database| database.connection)
}

/// What a file that is there has of these tables. Writes nothing.
pub(super) fn look(path: &Path, tables: &Tables) -> Result<Vec<Option<FoundTable>>, Error> {
    find(&connect(path, false, PROBE_BUSY_MAX)?, tables)
}

/// Asks the file, on a connection of its own, whether it could be written now. Writes nothing.
pub(super) fn probe(path: &Path) -> Result<(), Error> {
    let connection = connect(path, false, PROBE_BUSY_MAX)?;
    // Takes the write lock and lets it go: a read-only file or a foreign lock shows here.
    connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK")?;
    if free_bytes(path).is_some_and(|free| free < FREE_BYTES_MIN) {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
        return Err(Error::SqliteFailure(code, Some("the disk is full".to_owned())));
    }
    Ok(())
}

fn connect(path: &Path, create: bool, busy_max: Duration) -> Result<Connection, Error> {
    // Not as a URI: a path is a path, whatever characters it has. One thread uses it at a time.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(busy_max)?;
    Ok(connection)
}

/// Creates missing folders so that they survive a power cut: each new name is synced into the
/// folder above it. SQLite does the same for its own files.
fn create_folders(folder: &Path) -> io::Result<()> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
    if let Some(above) = above {
        create_folders(above)?;
    }
    match private_folder().create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    File::open(above.unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes the file where there is none, so that nobody else may read it; SQLite gives what it makes
/// beside it the same mode. Where this fails, opening fails too.
fn create_private(path: &Path) {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    drop(options.open(path));
}

fn private_folder() -> fs::DirBuilder {
    #[allow(unused_mut, reason = "not every system has modes")]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

fn wal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

#[cfg(unix)]
fn identity(path: &Path) -> Identity {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Identity {
    // Open files cannot be deleted or replaced here; that they are there is enough.
    path.exists().then_some((0, 0))
}

/// Room left for this user on the disk of `path`; `None` where the system does not say.
#[cfg(unix)]
fn free_bytes(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    #[allow(unsafe_code, reason = "the standard library does not tell the free room of a disk")]
    // SAFETY: `path` is a C string and `answer` is room for one `statvfs`, read only on success.
    let answer = unsafe {
        if libc::statvfs(path.as_ptr(), answer.as_mut_ptr()) != 0 {
            return None;
        }
        answer.assume_init()
    };
    #[allow(clippy::unnecessary_cast, reason = "the fields have other widths on other systems")]
    Some((answer.f_bavail as u64).saturating_mul(answer.f_frsize as u64))
}

#[cfg(not(unix))]
fn free_bytes(_path: &Path) -> Option<u64> {
    None
}

/// What a column takes, by SQLite's rules of affinity.
fn kind_of(declared: &str) -> ColumnKind {
    let declared = declared.to_ascii_uppercase();
    let has = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
    if has(&["INT"]) {
        ColumnKind::Integer
    } else if has(&["CHAR", "CLOB", "TEXT"]) {
        ColumnKind::Text
    } else if has(&["REAL", "FLOA", "DOUB"]) {
        ColumnKind::Real
    } else {
        ColumnKind::Any
    }
}
