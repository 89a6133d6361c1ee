//! Histories in files: JSON lines, and the table of the reference engine.
//!
//! A file is only read; that of a stopped engine may have a write-ahead log beside it. Databases are told by their first
//! bytes.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    time::Duration,
};

use anyhow::Result;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, config::DbConfig, params};
use serde_json::{Map, Value};
use wopr_core::awp::{CHILD_MARK, MAX_ROWS};

use crate::exit::{Exit, Failure};

/// What a SQLite database begins with.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// The most bytes of a file with JSON lines, and of the payloads that are read of a database.
const MAX_BYTES: u64 = 64 << 20;
/// Executions that an error lists.
const MAX_LISTED: usize = 10;
/// How long another process may hold a database.
const PATIENCE: Duration = Duration::from_secs(5);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS history (execution_id TEXT NOT NULL, seq INTEGER NOT NULL, \
                     kind TEXT NOT NULL, name TEXT NOT NULL, payload_json TEXT NOT NULL, created_at TEXT NOT NULL, \
                     record_schema_version INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (execution_id, seq))";

/// The history of one execution.
#[derive(Debug)]
pub(super) struct History {
    pub(super) execution: String,
    /// As a host takes and gives them.
    pub(super) rows: Vec<Value>,
}

impl History {
    /// Reads the history of an execution, and those of its sub-workflows that the file has, and theirs. Without a name, it
    /// is the only one that is no child.
    pub(super) fn read(path: &Path, execution: Option<&str>) -> Result<Vec<Self>> {
        let place = Place(path);
        let mut file = File::open(path).map_err(|error| place.fails(Exit::of_reading(&error), &error))?;
        let mut begin = Vec::new();
        let beginning = (&mut file).take(MAGIC.len() as u64).read_to_end(&mut begin);
        beginning.map_err(|error| place.fails(Exit::Failed, &error))?;
        match begin == MAGIC {
            true => place.database(execution),
            false => place.lines(execution),
        }
    }

    /// The executions that this one has started.
    pub(super) fn children(&self) -> Vec<String> {
        self.rows.iter().filter_map(child_of).map(str::to_owned).collect()
    }

    /// A text of the first event with this name.
    pub(super) fn of_event(&self, name: &str, member: &str) -> Option<&str> {
        let row = self.rows.iter().find(|row| row["name"] == name)?;
        row["payload"][member].as_str()
    }
}

/// The child that a row starts.
fn child_of(row: &Value) -> Option<&str> {
    let starts = row["name"] == "StartSubworkflow";
    row["payload"]["childExecutionId"].as_str().filter(|_| starts)
}

/// The file of histories.
#[derive(Clone, Copy)]
struct Place<'p>(&'p Path);

impl Place<'_> {
    fn fails(self, exit: Exit, why: &dyn std::fmt::Display) -> Failure {
        Failure::new(exit, format!("cannot read {}: {why}", self.0.display()))
    }

    /// The execution to read of those that the file has.
    fn choose(self, execution: Option<&str>, found: &[String]) -> Result<String> {
        let name = self.0.display();
        if let Some(execution) = execution {
            return match found.iter().any(|found| found == execution) {
                true => Ok(execution.to_owned()),
                false => {
                    let text = format!("{name} has no execution '{execution}'");
                    Err(Failure::new(Exit::NotFound, text).into())
                }
            };
        }
        let roots: Vec<_> = found.iter().filter(|found| !found.contains(CHILD_MARK)).collect();
        match roots.as_slice() {
            [one] => Ok((*one).clone()),
            [] => Err(Failure::new(Exit::NotFound, format!("{name} has no execution")).into()),
            several => {
                let mut listed: Vec<_> = several.iter().take(MAX_LISTED).map(|one| one.as_str()).collect();
                if several.len() > MAX_LISTED {
                    listed.push("…");
                }
                let text = format!("{name} has several executions: {}", listed.join(", "));
                Err(Failure::new(Exit::Usage, text)
                    .hint("choose one with --execution")
                    .into())
            }
        }
    }

    /// Reads an execution and its children, `rows` of each.
    fn with_children(
        self,
        execution: String,
        mut rows: impl FnMut(&str) -> Result<Vec<Value>>,
    ) -> Result<Vec<History>> {
        let mut histories: Vec<History> = Vec::new();
        let mut wanted = vec![execution];
        let mut n_rows = 0;
        while let Some(execution) = wanted.pop() {
            // A forged file may name one twice. The host says what is missing.
            if histories.iter().any(|known| known.execution == execution) {
                continue;
            }
            let rows = rows(&execution)?;
            n_rows += rows.len();
            if n_rows > MAX_ROWS {
                let first = histories.first().map_or(&execution, |first| &first.execution);
                let text = format!(
                    "'{first}' has more than {MAX_ROWS} rows with its sub-workflows, the most of an import"
                );
                return Err(Failure::new(Exit::Failed, text).into());
            }
            if rows.is_empty() {
                continue;
            }
            let history = History { rows, execution };
            wanted.extend(history.children());
            histories.push(history);
        }
        Ok(histories)
    }

    fn lines(self, execution: Option<&str>) -> Result<Vec<History>> {
        let file = File::open(self.0).map_err(|error| self.fails(Exit::of_reading(&error), &error))?;
        let mut rows: HashMap<String, Vec<Value>> = HashMap::new();
        let mut found: Vec<String> = Vec::new();
        let mut n_bytes = 0;
        for (index, line) in BufReader::new(file.take(MAX_BYTES + 1)).lines().enumerate() {
            let line = line.map_err(|error| self.fails(Exit::Config, &error))?;
            n_bytes += line.len() as u64 + 1;
            if n_bytes > MAX_BYTES {
                return Err(self.fails(Exit::Failed, &"it has more than 64 MiB").into());
            }
            if line.trim().is_empty() {
                continue;
            }
            let row = serde_json::from_str(&line).ok();
            let row = row.and_then(|row| self.with_payload(row));
            let named = row.and_then(|row| Some((row.get("execution_id")?.as_str()?.to_owned(), row)));
            let Some((name, row)) = named else {
                let why = format!("line {} is not a row of a history", index + 1);
                return Err(self.fails(Exit::Config, &why).into());
            };
            let of = rows.entry(name).or_insert_with_key(|name| {
                found.push(name.clone());
                Vec::new()
            });
            of.push(Value::Object(row));
        }
        // The children of an execution without a name have no name that says so.
        let started = rows.values().flatten().filter_map(child_of);
        let started: HashSet<String> = started.map(str::to_owned).collect();
        if execution.is_none() {
            found.retain(|found| !started.contains(found));
        }
        let execution = self.choose(execution, &found)?;
        self.with_children(execution, |execution| {
            Ok(rows.remove(execution).unwrap_or_default())
        })
    }

    /// A row whose payload is an object, also if it was the text of one.
    fn with_payload(self, row: Value) -> Option<Map<String, Value>> {
        let Value::Object(mut row) = row else { return None };
        if let Some(text) = row.remove("payload_json") {
            let payload = serde_json::from_str(text.as_str()?).ok()?;
            row.insert("payload".to_owned(), payload);
        }
        Some(row)
    }

    fn database(self, execution: Option<&str>) -> Result<Vec<History>> {
        let failed = |error: rusqlite::Error| self.fails(Exit::Config, &error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let database = Connection::open_with_flags(self.0, flags).map_err(failed)?;
        database.busy_timeout(PATIENCE).map_err(failed)?;
        // The file may come from anybody.
        let untrusted = DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA;
        database.set_db_config(untrusted, false).map_err(failed)?;
        database
            .pragma_update(None, "cell_size_check", true)
            .map_err(failed)?;
        let table = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'history'";
        let table = database
            .query_row(table, [], |_| Ok(()))
            .optional()
            .map_err(failed)?;
        if table.is_none() {
            return Err(self.fails(Exit::Config, &"it has no table 'history'").into());
        }
        let found = match execution {
            Some(execution) => {
                let one = "SELECT execution_id FROM history WHERE execution_id = ?1 LIMIT 1";
                let one = database.query_row(one, [execution], |row| row.get(0));
                one.optional().map_err(failed)?.into_iter().collect()
            }
            None => {
                let all = format!(
                    "SELECT DISTINCT execution_id FROM history WHERE instr(execution_id, '{CHILD_MARK}') = 0 \
                     AND execution_id NOT IN (SELECT json_extract(payload_json, '$.childExecutionId') FROM history \
                     WHERE name = 'StartSubworkflow' AND json_valid(payload_json) \
                     AND json_extract(payload_json, '$.childExecutionId') IS NOT NULL) LIMIT {}",
                    MAX_LISTED + 1
                );
                let mut all = database.prepare(&all).map_err(failed)?;
                let all = all.query_map([], |row| row.get(0)).map_err(failed)?;
                all.collect::<Result<Vec<String>, _>>().map_err(failed)?
            }
        };
        let execution = self.choose(execution, &found)?;
        let mut n_bytes = 0;
        self.with_children(execution, |execution| {
            self.rows_of(&database, execution, &mut n_bytes)
        })
    }

    fn rows_of(self, database: &Connection, execution: &str, n_bytes: &mut u64) -> Result<Vec<Value>> {
        let failed = |error: rusqlite::Error| self.fails(Exit::Config, &error);
        let rows = "SELECT seq, kind, name, payload_json, created_at, record_schema_version FROM history \
                    WHERE execution_id = ?1 ORDER BY seq LIMIT ?2";
        let mut rows = database.prepare(rows).map_err(failed)?;
        let mut rows = rows
            .query(params![execution, MAX_ROWS as i64 + 1])
            .map_err(failed)?;
        let mut read = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let text: String = row.get(3).map_err(failed)?;
            *n_bytes += text.len() as u64;
            if *n_bytes > MAX_BYTES {
                return Err(self
                    .fails(Exit::Failed, &"the executions have more than 64 MiB")
                    .into());
            }
            let seq: i64 = row.get(0).map_err(failed)?;
            let payload: Value = serde_json::from_str(&text).map_err(|error| {
                let why = format!("the payload of row {seq} of '{execution}' is not JSON: {error}");
                self.fails(Exit::Config, &why)
            })?;
            let texts = [(1, "kind"), (2, "name"), (4, "created_at")];
            let mut members = Map::new();
            for (column, name) in texts {
                members.insert(
                    name.to_owned(),
                    row.get::<_, String>(column).map_err(failed)?.into(),
                );
            }
            let version: i64 = row.get(5).map_err(failed)?;
            members.insert("seq".to_owned(), seq.into());
            members.insert("record_schema_version".to_owned(), version.into());
            members.insert("payload".to_owned(), payload);
            read.push(Value::Object(members));
        }
        Ok(read)
    }
}

/// Histories as JSON lines.
pub(super) fn lines(histories: &[History]) -> String {
    let mut text = String::new();
    for history in histories {
        for row in &history.rows {
            let mut row = row.clone();
            row["execution_id"] = history.execution.clone().into();
            text.push_str(&row.to_string());
            text.push('\n');
        }
    }
    text
}

/// Adds histories to a database, all of them or none. It must not have one of the executions yet.
pub(super) fn add_to_database(path: &Path, histories: &[History]) -> Result<()> {
    let name = path.display();
    let failed = |error: rusqlite::Error| Failure::new(Exit::Failed, format!("cannot write {name}: {error}"));
    let mut database = Connection::open(path).map_err(failed)?;
    database.busy_timeout(PATIENCE).map_err(failed)?;
    database
        .pragma_update(None, "journal_mode", "WAL")
        .map_err(failed)?;
    let change = database.transaction().map_err(failed)?;
    change.execute(TABLE, []).map_err(failed)?;
    let insert = "INSERT INTO history (execution_id, seq, kind, name, payload_json, created_at, record_schema_version) \
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    for history in histories {
        let known = "SELECT 1 FROM history WHERE execution_id = ?1 LIMIT 1";
        let known = change.query_row(known, [&history.execution], |_| Ok(()));
        if known.optional().map_err(failed)?.is_some() {
            let text = format!("{name} already has the execution '{}'", history.execution);
            return Err(Failure::new(Exit::Failed, text).into());
        }
        let mut insert = change.prepare_cached(insert).map_err(failed)?;
        for row in &history.rows {
            let text = |name: &str| row[name].as_str().unwrap_or_default();
            let number = |name: &str| row[name].as_i64().unwrap_or_default();
            let columns = params![
                history.execution,
                number("seq"),
                text("kind"),
                text("name"),
                row["payload"].to_string(),
                text("created_at"),
                number("record_schema_version"),
            ];
            insert.execute(columns).map_err(failed)?;
        }
    }
    Ok(change.commit().map_err(failed)?)
}
