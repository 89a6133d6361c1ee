//! A temporary PostgreSQL server.
//!
//! It listens only on a Unix socket in its own folder, so it does not conflict with other servers and is not
//! reachable from outside. It syncs to disk as in production, because tests should see the real behavior.
//! PostgreSQL refuses to run as root, so for root it runs as `postgres` or `nobody`.
//!
//! The chaos tests compile this file too, because they restart their server. It therefore uses nothing else
//! of this crate.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};

/// The oldest version that wopr supports.
pub(crate) const OLDEST: u32 = 14;
/// The first version with selectable locale providers. Tests must not depend on a linguistic collation.
const WITH_LOCALE_PROVIDER: u32 = 15;
/// Debian's folder of PostgreSQL versions.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Users to run the server as if the current user is root.
const USERS: [&str; 2] = ["postgres", "nobody"];
/// Startup timeout.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two connection attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The executables of one version.
pub(crate) struct Programs {
    pub(crate) folder: PathBuf,
    pub(crate) version: u32,
}

impl Programs {
    /// Finds the newest installed version, from Debian or in `PATH`.
    pub(crate) fn find() -> Option<Self> {
        let debian = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
        let on_path = read(Command::new("pg_config").arg("--bindir"));
        debian
            .map(|version| version.path().join("bin"))
            .chain(on_path.map(|folder| PathBuf::from(folder.trim())))
            .filter_map(Self::in_folder)
            .max_by_key(|programs| programs.version)
    }

    fn in_folder(folder: PathBuf) -> Option<Self> {
        let all = ["initdb", "pg_ctl", "pg_isready", "postgres"];
        if !all.iter().all(|program| folder.join(program).is_file()) {
            return None;
        }
        let said = read(Command::new(folder.join("postgres")).arg("--version")).ok()?;
        let version = parse_version(&said).filter(|version| *version >= OLDEST)?;
        Some(Self { folder, version })
    }
}

fn parse_version(said: &str) -> Option<u32> {
    let number = said.trim().strip_prefix("postgres (PostgreSQL) ")?;
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// A user to run the server as.
struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Chooses the user if the current user is root.
    fn instead_of_root() -> Result<Self> {
        let number = |option: &str, name: &str| -> Option<u32> {
            read(Command::new("id").args([option, name]))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let user = USERS.iter().find_map(|name| {
            Some(Self {
                uid: number("-u", name)?,
                gid: number("-g", name)?,
            })
        });
        user.with_context(|| format!("find a user to run PostgreSQL as, one of {USERS:?}"))
    }
}

/// A running server and its files. Dropping it stops the server and deletes the files.
pub(crate) struct Cluster {
    programs: Programs,
    user: Option<User>,
    folder: PathBuf,
    postmaster: Option<Child>,
}

impl Cluster {
    /// Creates a cluster, starts its server and waits until it accepts connections.
    pub(crate) fn start(programs: Programs) -> Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Short, because socket paths are limited to little more than a hundred characters.
        let name = format!("wopr-pg-{}-{:08x}", std::process::id(), since.subsec_nanos());
        let folder = std::env::temp_dir().join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("make {}", folder.display()))?;
        // From here on, dropping cleans up.
        let mut cluster = Self {
            programs,
            user: None,
            folder,
            postmaster: None,
        };
        let folder = fs::metadata(&cluster.folder).context("look at the folder just made")?;
        // The folder is ours, so its owner is the current user.
        let is_root = folder.uid() == 0;
        if is_root {
            let User { uid, gid } = *cluster.user.insert(User::instead_of_root()?);
            chown(&cluster.folder, Some(uid), Some(gid))
                .with_context(|| format!("hand over {}", cluster.folder.display()))?;
        }
        cluster.init()?;
        cluster.launch()?;
        cluster.wait()?;
        Ok(cluster)
    }

    /// The connection URL; its user is `wopr`.
    pub(crate) fn url(&self) -> String {
        let socket = self.folder.to_string_lossy().replace('/', "%2F");
        format!("postgres://wopr@{socket}/postgres")
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The log file, which covers all starts.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Creates a command that runs one of the executables as the server's user.
    fn command(&self, program: &str, dies_with_us: bool) -> Command {
        let program = self.programs.folder.join(program);
        let mut command = Command::new("setpriv");
        if dies_with_us {
            // Requests a fast shutdown if this process is killed.
            command.arg("--pdeathsig=INT");
        }
        match &self.user {
            Some(User { uid, gid }) => {
                command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
                command.arg("--clear-groups").arg(program);
            }
            // Only Linux has `setpriv`; elsewhere the server outlives a killed test run.
            None if dies_with_us && cfg!(target_os = "linux") => {
                command.arg(program);
            }
            None => command = Command::new(program),
        }
        // The server's user may have no access to the current directory.
        command.current_dir(&self.folder);
        command
    }

    fn init(&self) -> Result<()> {
        let mut command = self.command("initdb", false);
        command.args(["--username=wopr", "--auth=trust", "--encoding=UTF8", "--pgdata"]);
        command.arg(self.data());
        if self.programs.version >= WITH_LOCALE_PROVIDER {
            command.args(["--locale=C", "--locale-provider=icu", "--icu-locale=en"]);
        } else {
            command.arg("--locale=C");
        }
        read(&mut command).context("make a PostgreSQL cluster")?;
        Ok(())
    }

    /// Starts the server without waiting for it.
    pub(crate) fn launch(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.context("open the server's log")?;
        let mut socket = OsString::from("unix_socket_directories=");
        socket.push(&self.folder);
        let mut command = self.command("postgres", true);
        command.arg("-D").arg(self.data());
        for setting in ["listen_addresses=", "max_connections=200"] {
            command.args(["-c", setting]);
        }
        command.arg("-c").arg(socket);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("share the server's log")?)
            .stderr(log);
        self.postmaster = Some(command.spawn().context("start PostgreSQL")?);
        Ok(())
    }

    /// Waits until the server accepts connections.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut ask = self.command("pg_isready", false);
            ask.arg("--quiet").arg("--host").arg(&self.folder);
            if read(&mut ask).is_ok() {
                return Ok(());
            }
            let ended = match &mut self.postmaster {
                Some(postmaster) => postmaster.try_wait().context("look after PostgreSQL")?,
                None => None,
            };
            if ended.is_some() || Instant::now() > deadline {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                bail!("start PostgreSQL; its log says:\n{}", log.trim());
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Cluster {
    /// Stops the server with a shutdown mode of `pg_ctl` and waits for it: `immediate` simulates a crash
    /// without a checkpoint, `fast` shuts down without waiting for clients.
    pub(crate) fn stop(&mut self, mode: &str) -> Result<()> {
        let Some(mut postmaster) = self.postmaster.take() else {
            return Ok(());
        };
        let mut stop = self.command("pg_ctl", false);
        stop.args(["stop", "--silent", "--mode", mode, "--pgdata"])
            .arg(self.data());
        let stopped = read(&mut stop);
        if stopped.is_err() {
            // Fails if the postmaster has already exited; otherwise its children notice and exit.
            let _ = postmaster.kill();
        }
        postmaster.wait().context("wait for the end of PostgreSQL")?;
        stopped.context("stop PostgreSQL")?;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for ended in [self.stop("immediate"), remove(&self.folder)] {
            if let Err(error) = ended {
                println!("{error:#}");
            }
        }
    }
}

/// Runs a command and returns its output.
fn read(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} ended with {}: {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("read what {name} printed"))
}

fn remove(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_is_the_first_number() {
        assert_eq!(
            parse_version("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"),
            Some(15)
        );
        assert_eq!(parse_version("postgres (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(parse_version("postgres (EnterpriseDB) 9.6"), None);
    }
}
