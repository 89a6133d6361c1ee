//! `wopr backup`: copies a SQLite database, even while a host serves it.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;
use wopr_server::{Config, config::StoreUrl};
use wopr_store::sqlite::{self, BackupError, Contents, Form};

use crate::{
    args::Format,
    exit::{Exit, Failure},
    host::{self, HostArgs},
    output,
    signals::Signals,
};

/// Copy a SQLite database, even while a host serves it.
///
/// The copy is a consistent snapshot, taken after the command starts. All its pages are checked before the
/// file gets its name, so a file of that name is a sound backup; existing files are never overwritten. To use
/// the backup, put it in the place of the database or pass it with --store.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The file to create
    #[arg(value_name = "DEST")]
    dest: PathBuf,
    /// Also copy the master key file to DEST.key; anyone with both files can read everything
    #[arg(long)]
    with_key: bool,
    /// Omit free space; takes twice as long
    #[arg(long)]
    compact: bool,
    /// The database: sqlite:PATH [default: sqlite:./wopr.db] [env: WOPR_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A configuration file that names the database
    #[arg(long, value_name = "FILE", env = "WOPR_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

impl Backup {
    pub(crate) async fn run(self) -> Result<Exit> {
        let args = HostArgs {
            store: self.store.clone(),
            config: self.config.clone(),
            ..HostArgs::default()
        };
        let config = args.load()?;
        let database = match &config.store {
            StoreUrl::Sqlite(path) => path.clone(),
            StoreUrl::Memory => {
                return Err(Failure::new(Exit::Usage, "a store in memory cannot be copied").into());
            }
            StoreUrl::Postgres(_) => {
                let text = "PostgreSQL makes its own backups, of a database in use too";
                return Err(Failure::new(Exit::Usage, text)
                    .hint("`pg_dump --format=custom --file=DEST URL` makes one, `pg_restore` puts it back")
                    .into());
            }
        };
        let key = if self.with_key {
            Some(key_beside(&config, &database)?)
        } else {
            None
        };
        let key_dest = with_suffix(&self.dest, ".key");
        for path in [Some(&self.dest), key.as_ref().map(|_| &key_dest)]
            .into_iter()
            .flatten()
        {
            if fs::symlink_metadata(path).is_ok() {
                let text = format!("{} is there already", path.display());
                return Err(Failure::new(Exit::Usage, text).hint("choose another name").into());
            }
        }

        let since = Instant::now();
        let form = if self.compact { Form::Compact } else { Form::AsIs };
        let mut signals = Signals::catch()?;
        let temporary = temporary_beside(&self.dest)?;
        let path = temporary.path().to_owned();
        let copying = tokio::task::spawn_blocking(move || {
            sqlite::copy(&database, &path, form)?;
            sqlite::verify(&path)
        });
        let contents = tokio::select! {
            contents = copying => contents?,
            // The temporary file is deleted on drop; the copying task ends with the process.
            () = signals.next() => return Ok(Exit::Interrupted),
        };
        let contents = contents.map_err(|error| backup_failure(&error))?;
        if let Some(key) = &key {
            copy_key(key, &key_dest)?;
        }
        publish(temporary, &self.dest)?;
        self.say(&config, &contents, key.is_some().then_some(&key_dest), since)?;
        Ok(Exit::Ok)
    }

    fn say(&self, config: &Config, contents: &Contents, key: Option<&PathBuf>, since: Instant) -> Result<()> {
        let Contents {
            schema,
            runs,
            events,
            bytes,
        } = contents;
        if self.format.json {
            let by_status: Map<String, Value> = runs
                .iter()
                .map(|(status, n)| (status.as_str().to_owned(), json!(n)))
                .collect();
            return output::json(&json!({
                "backup": self.dest,
                "key": key,
                "bytes": bytes,
                "schema": schema,
                "runs": by_status,
                "events": events,
                "tookMs": u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
            }));
        }
        let n_runs: u64 = runs.iter().map(|(_, n)| n).sum();
        let by_status: Vec<_> = runs
            .iter()
            .map(|(status, n)| format!("{n} {}", status.as_str()))
            .collect();
        output::line(format!(
            "{} holds {n_runs} runs with {events} events (schema {schema}, {:.1} MB, {:.1} s)",
            self.dest.display(),
            *bytes as f64 / 1e6,
            since.elapsed().as_secs_f64()
        ))?;
        if !by_status.is_empty() {
            output::line(format!("runs: {}", by_status.join(", ")))?;
        }
        match key {
            Some(key) => output::line(format!("master key: {}", key.display())),
            None => output::note(format!(
                "the master key is not in it: keep {}, without which tokens and stored secrets are void",
                keeper(config)
            )),
        }
    }
}

/// Describes where the master key is kept.
fn keeper(config: &Config) -> String {
    match (
        &config.secrets.master_key,
        &config.secrets.key_file,
        &config.store,
    ) {
        (Some(_), _, _) => "WOPR_MASTER_KEY".to_owned(),
        (None, Some(path), _) => path.display().to_string(),
        (None, None, StoreUrl::Sqlite(path)) => {
            let beside = with_suffix(path, ".key");
            if beside.exists() {
                beside.display().to_string()
            } else {
                // Hosts are configured in ways that this command cannot see.
                "the one that hosts have as WOPR_MASTER_KEY or secrets.key_file".to_owned()
            }
        }
        (None, None, StoreUrl::Memory | StoreUrl::Postgres(_)) => "it".to_owned(),
    }
}

/// Returns the key file beside the database, if that is the one in use.
fn key_beside(config: &Config, database: &Path) -> Result<PathBuf> {
    if config.secrets.master_key.is_some() || config.secrets.key_file.is_some() {
        let text = format!(
            "the master key is not beside the database but in {}",
            keeper(config)
        );
        return Err(Failure::new(Exit::Usage, text)
            .hint("keep it by other means, and leave out --with-key")
            .into());
    }
    let path = wopr_server::key_beside(database);
    match fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(error) => {
            let text = format!("cannot read the master key {}: {error}", path.display());
            Err(Failure::new(Exit::of_reading(&error), text).into())
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Creates an empty file in the same folder, readable only by its owner and deleted on drop unless published.
fn temporary_beside(dest: &Path) -> Result<NamedTempFile> {
    let made = tempfile::Builder::new()
        .prefix(".wopr-backup-")
        .tempfile_in(folder_of(dest));
    Ok(made.map_err(|error| {
        let text = format!("cannot write to {}: {error}", folder_of(dest).display());
        Failure::new(Exit::of_reading(&error), text)
    })?)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        Some(_) | None => Path::new("."),
    }
}

/// Renames a synced file and syncs the folder.
fn publish(temporary: NamedTempFile, dest: &Path) -> Result<()> {
    let failed = |error: io::Error| {
        let text = format!("cannot give the backup its name {}: {error}", dest.display());
        Failure::new(Exit::Failed, text)
    };
    temporary
        .persist_noclobber(dest)
        .map_err(|error| failed(error.error))?;
    Ok(File::open(folder_of(dest))
        .and_then(|folder| folder.sync_all())
        .map_err(failed)?)
}

fn copy_key(key: &Path, dest: &Path) -> Result<()> {
    let bytes = fs::read(key)?;
    let mut temporary = temporary_beside(dest)?;
    temporary.write_all(&bytes)?;
    temporary.as_file().sync_all()?;
    publish(temporary, dest)
}

fn backup_failure(error: &BackupError) -> Failure {
    match error {
        BackupError::Open(error) => host::open_failure(error),
        BackupError::Empty => Failure::cannot(Exit::NotFound, error).hint("--store or WOPR_STORE names it"),
        BackupError::Database(_) | BackupError::Io(_) | BackupError::Damaged(_) => {
            Failure::cannot(Exit::Failed, error)
        }
    }
}
